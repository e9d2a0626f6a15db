"""Kernels whose time is published or follows from it: pointer chases, chains of multiply-adds."""

from __future__ import annotations

import pytest

from tests.features.execution_kernels import kernel
from tests.features.test_activity_waiting import KERNEL, LOOP
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.bottleneck import BottleneckTimeModel

ROUNDS = 8_000
CHASE = "mul.wide.u32 %rd5, %r3, 4;\nadd.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r3, [%rd6];\n"


def predicted(
    body: str, after: str, gpu_id: str, elements: int, launch: tuple[int, int]
) -> TimePrediction:
    text = KERNEL.format(body=LOOP.replace("64", str(ROUNDS)).format(body=body) + after)
    hints = {"0": PointerHint(elements=elements, values="index")}
    gpu = load_gpu(gpu_id)
    analysis = analyse(read_module(text), None, Launch.of(*launch, 0, hints), gpu)
    return BottleneckTimeModel().predict(analysis, gpu)


@pytest.mark.parametrize(
    ("gpu_id", "kilobytes", "cycles"),
    [
        # Cycles of a load by the size of the chain (Ernst, gpu-benches, cuda-latency).
        ("tesla-v100", 32, 30), ("tesla-v100", 4096, 215), ("a100-sxm4-80gb", 32, 36),
        ("a100-sxm4-80gb", 4096, 211), ("h100-pcie", 32, 34), ("h100-pcie", 4096, 266),
    ],
)  # fmt: skip
def test_a_pointer_chase_takes_the_published_latency(
    gpu_id: str, kilobytes: int, cycles: int
) -> None:
    found = predicted(CHASE, "st.global.u32 [%rd4], %r3;", gpu_id, kilobytes * 256, (1, 1))
    published = ROUNDS * cycles / (load_gpu(gpu_id).core_mhz * 1e6)
    assert 0.95 <= found.estimate.value / published <= 1.2
    assert found.regime == "latency"


@pytest.mark.parametrize(("gpu_id", "latency"), [("tesla-v100", 4), ("gtx-1080-ti", 6), ("a40", 4)])
@pytest.mark.parametrize("chains", [1, 8])
def test_chains_of_multiply_adds_of_one_warp_a_scheduler(
    gpu_id: str, latency: int, chains: int
) -> None:
    """One chain waits for each result; eight keep the pipe busy (Jia et al. 2018, Table 4.1)."""
    body = "".join(f"fma.rn.f32 %f{n % chains}, %f{n % chains}, %f20, %f21;\n" for n in range(64))
    after = "".join(f"st.global.f32 [%rd4+{4 * n}], %f{n};\n" for n in range(chains))
    gpu = load_gpu(gpu_id)
    found = predicted(body, after, gpu_id, 65536, (gpu.sm_count, 128))
    of_pipe = 4 * 32 / gpu.fp32_lanes
    expected = ROUNDS * 64 * max(latency / chains, of_pipe) / (gpu.core_mhz * 1e6)
    assert 0.95 <= found.estimate.value / expected <= 1.1
    assert found.regime == ("latency" if chains == 1 else "compute")


STEP = table("bodies", "time_published")["step"]


def test_a_warp_that_works_between_barriers_takes_the_time_measured() -> None:
    """121 cycles a step on an RTX 3080 at 1440 MHz: ``time/rtx_3080_launches.csv`` of the data
    folder, lfib4, two kernels with one block and nine such steps a round."""
    text = KERNEL.format(
        body="mov.u32 %r12, tile;\nmad.lo.u32 %r4, %r1, 4, %r12;\n"
        + LOOP.replace("64", str(ROUNDS)).format(body=STEP)
        + "st.global.u32 [%rd4], %r11;"
    )
    gpu = load_gpu("rtx-3080")
    launch = Launch.of(1, 256, 0, {"0": PointerHint(elements=65536)})
    analysis = analyse(read_module(text), None, launch, gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(1440, 9501))
    assert found.estimate.value * 1440e6 / ROUNDS == pytest.approx(121, rel=0.2)


STURM = """\
ld.global.nc.f32 %f3, [%rd4];
mul.f32 %f4, %f3, %f3;
div.rn.f32 %f5, %f4, %f1;
sub.f32 %f1, %f2, %f5;
"""


def test_a_chain_of_rounded_divisions_takes_the_time_measured() -> None:
    """146 cycles a step on an RTX 3080 at 1440 MHz: ``time/rtx_3080_launches.csv`` of the data
    folder, eigenvalue, 2 x 2047 steps in 415 us."""
    found = predicted(STURM, "st.global.f32 [%rd4], %f1;", "rtx-3080", 65536, (8, 256))
    gpu = load_gpu("rtx-3080")
    assert found.estimate.value * gpu.core_mhz * 1e6 / ROUNDS == pytest.approx(146, rel=0.15)


TRANSPOSED = stored_ptx("transposed_tile")
COPIED = TRANSPOSED.replace("LANES", "%r9").replace("OTHER", "%r7")
NAIVE = TRANSPOSED.replace("LANES", "%r7").replace("OTHER", "%r9")
TILES = TRANSPOSED.replace("LANES", "%r12").replace("OTHER", "%r13")
"""Tiles to where the transposed ones lie, by rows: as a transposition through shared memory."""


@pytest.mark.parametrize(
    ("text", "gpu_id", "n", "clocks", "measured_ms"),
    [
        # Copies and transpositions by tiles of 16 x 16: ``time/rtx_3080_launches.csv`` (matrixT)
        # and ``dvfs/wang_*.csv`` (transpose) of the data folder.
        (COPIED, "rtx-3080", 16384, (1440, 9501), 3.090),
        (NAIVE, "rtx-3080", 16384, (1440, 9501), 5.676),
        (TILES, "rtx-3080", 16384, (1440, 9501), 4.297),
        (TILES, "rtx-2070-super", 8192, (2080, 7300), 2.012),
        (TILES, "titan-x-pascal", 8192, (2000, 5000), 1.932),
        (TILES, "tesla-p100", 8192, (1328, 715), 1.064),
    ],
)  # fmt: skip
def test_transpositions_take_the_time_measured(
    text: str, gpu_id: str, n: int, clocks: tuple[int, int], measured_ms: float
) -> None:
    """Pieces of 64 bytes cost GDDR memory more than streams; each line of a store has a header."""
    gpu = load_gpu(gpu_id)
    hints = {"0": PointerHint(n * n), "1": PointerHint(n * n), "2": n}
    launch = Launch.of((n // 16, n // 16), (16, 16), 0, dict(hints))
    analysis = analyse(read_module(text), None, launch, gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(*clocks))
    assert found.estimate.value * 1e3 == pytest.approx(measured_ms, rel=0.1)


def test_both_halves_of_sectors_by_two_stores_cost_l2_no_more_than_they_move() -> None:
    """55.6 us: set_ulisttot of testSNAP in ``time/rtx_3080_launches.csv`` of the data folder, zeros
    to complex numbers part by part. Each store fills half of each sector of its lines."""
    text = kernel("mul.wide.u32 %rd4, %r5, 16; add.s64 %rd5, %rd1, %rd4; mov.b64 %rd6, 0; "
                  "st.global.u64 [%rd5], %rd6; st.global.u64 [%rd5+8], %rd6; ret;")  # fmt: skip
    gpu = load_gpu("rtx-3080")
    analysis = analyse(read_module(text), None, Launch.of(9688, 256, l2="cold"), gpu)
    found = BottleneckTimeModel().predict(analysis, gpu, ClockPair(1440, 9501))
    assert analysis.extras.store_headers == 0
    assert found.regime == "memory"
    assert found.estimate.value == pytest.approx(55.6e-6, rel=0.2)
