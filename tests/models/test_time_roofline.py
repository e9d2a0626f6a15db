"""The roofline of time: peaks as vendors print them, bounds by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.time_works import K20, KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.roofline import RooflineTimeModel, matrix_flops, roofline_parts

MODEL = RooflineTimeModel()
V100 = load_gpu("tesla-v100")
PTX = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"


@cache
def analysed(
    path: Path,
    gpu_id: str,
    grid: int | tuple[int, int],
    block: int | tuple[int, int],
    arguments: tuple[tuple[str, int], ...] = (),
    trips: int = 0,
) -> KernelAnalysis:
    """``trips`` of every loop, 0 for none given."""
    module = read_module(path.read_text(encoding="utf-8"))
    return analyse(
        module,
        module.kernel(),
        Launch.of(grid, block, arguments=dict(arguments)),
        load_gpu(gpu_id),
        loops={"default": trips} if trips else None,
    )


def vector_add(elements: int) -> KernelAnalysis:
    path = KERNELS / "vector_add.ptx"
    return analysed(path, "tesla-k20", elements // 256, 256, (("3", elements),))


def matmul(trips: int) -> KernelAnalysis:
    return analysed(KERNELS / "tiled_matmul.ptx", "tesla-k20", (32, 32), (32, 32), trips=trips)


def empty(gpu_id: str) -> KernelAnalysis:
    return analysed(KERNELS / "empty.ptx", gpu_id, 196, 256)


def matrices() -> KernelAnalysis:
    """C (256 x 256) += A B over 128 columns, FP16 in, FP32 out: 256 warps of 8 steps each."""
    sides = (("3", 256), ("4", 256), ("5", 128))
    return analysed(PTX / "wmma_matmul.sm_70.ptx", "tesla-v100", 64, 128, sides, 8)


def test_a_stream_is_bound_by_memory() -> None:
    """2**24 elements: 3 x 4 x 2**24 bytes / 208 GB/s = 0.9679 ms; the additions take
    2**24 / (192 x 13 x 706e6) = 9.521 us of the lanes."""
    prediction = MODEL.predict(vector_add(2**24), K20)
    assert prediction.parts["memory"] == pytest.approx(3 * 4 * 2**24 / 208e9, rel=1e-3)
    assert prediction.parts["fp32"] == pytest.approx(9.521e-6, rel=1e-3)
    assert prediction.estimate.value == prediction.parts["memory"]
    assert prediction.regime == "memory"


def test_what_stays_in_l2_costs_no_memory() -> None:
    """50,176 elements are 0.6 MB: between launches they stay in the 1.25 MB of L2."""
    prediction = MODEL.predict(vector_add(50_176), K20)
    assert prediction.parts["memory"] == 0
    assert prediction.regime == "compute"


def test_matrices_run_on_tensor_cores() -> None:
    """2 x 256 x 256 x 128 = 16.8 million operations at 113.05 TFLOPS: 0.1484 us."""
    analysis = matrices()
    assert matrix_flops(analysis) == pytest.approx(2 * 256 * 256 * 128, rel=1e-12)
    assert MODEL.predict(analysis, V100).parts["tensor"] == pytest.approx(0.1484e-6, rel=1e-3)
    with pytest.raises(ModelError, match="tensor cores"):
        roofline_parts(analysis.activity, matrix_flops(analysis), K20, default_clocks(K20))


def test_every_precision_has_a_bound_of_its_own() -> None:
    """A million warp instructions of each kind: 32e6 / (lanes x 80 x 1380 MHz), FP16 on 64 lanes
    of pairs."""
    nothing = empty("tesla-v100").activity
    activity = replace(nothing, fp32_instructions=1e6, fp64_instructions=1e6, fp16_instructions=1e6)
    parts = roofline_parts(activity, 0.0, V100, default_clocks(V100))
    for name, lanes in (("fp32", 64), ("fp64", 32), ("fp16", 64)):
        assert parts[name] == pytest.approx(32e6 / (lanes * 80 * 1380e6), rel=1e-9)
    assert parts["tensor"] == 0


@given(st.floats(0.1, 3), st.floats(0.1, 3))
def test_bounds_follow_the_clock_that_drives_them(core: float, memory: float) -> None:
    analysis = vector_add(2**24)
    clocks = ClockPair(K20.core_mhz * core, K20.memory_mhz * memory)
    at_default, parts = (MODEL.predict(analysis, K20, each).parts for each in (None, clocks))
    assert parts["fp32"] == pytest.approx(at_default["fp32"] / core)
    assert parts["memory"] == pytest.approx(at_default["memory"] / memory)


def test_the_answer_says_how_little_it_claims() -> None:
    prediction = MODEL.predict(vector_add(2**24), K20)
    estimate = prediction.estimate
    assert estimate.basis == "uncalibrated"
    assert (estimate.low, estimate.high) == (estimate.value / 4, estimate.value * 4)
    assert [d.code for d in prediction.diagnostics] == ["time_is_lower_bound"]


def test_assumed_trips_widen_the_interval() -> None:
    guessed = matmul(0)
    assert guessed.trips_assumed
    estimate = MODEL.predict(guessed, K20).estimate
    assert estimate.high > 20 * 4 * estimate.value
    assert estimate.low < estimate.value / 20 / 4


def test_an_empty_kernel_is_no_launch_of_0_seconds() -> None:
    with pytest.raises(ModelError, match=r"roofline .* fp32, .* memory, .* 0 s .* bottleneck"):
        MODEL.predict(empty("tesla-k20"), K20)
