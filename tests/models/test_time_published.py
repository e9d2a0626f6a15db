"""Kernels whose time is published or follows from it: pointer chases, chains of multiply-adds."""

from __future__ import annotations

import pytest

from tests.features.test_activity_waiting import KERNEL, LOOP
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
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
