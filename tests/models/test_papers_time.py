"""What every time model of a paper promises: that it is monotone, and what it says and refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.models.time_works import ALL_GPUS, K20, KERNELS, MATMUL, VECTOR_ADD, code_of, gpus, works
from wattcast.features.analysis import analyse
from wattcast.features.errors import LaunchError, ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.thesis.delay import DelayTimeModel
from wattcast.models.papers.thesis.scheduling import SchedulingTimeModel
from wattcast.models.papers.thesis.work import KernelWork, work_of
from wattcast.models.papers.volkov import VolkovTimeModel

SCHEDULING, DELAY, VOLKOV = SchedulingTimeModel(), DelayTimeModel(), VolkovTimeModel()
THESIS = [SCHEDULING, DELAY]
MODELS = [*THESIS, VOLKOV]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda one: type(one).__name__)
both_of_the_thesis = pytest.mark.parametrize("model", THESIS, ids=lambda one: type(one).__name__)
ROUNDING = 1 - 1e-12


def predicted(model: Any, *asked: Any) -> Any:
    """A prediction; Volkov's model, which has no launch overhead, refuses work of 0 s."""
    try:
        return model.predict_work(*asked)
    except ModelError:
        if model is not VOLKOV:
            raise
        reject()


def seconds(
    model: Any, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
) -> float:
    found: float = predicted(model, work, gpu, clocks).estimate.value
    return found


@every_model
@given(works, gpus, st.integers(1, 40_000))
def test_more_blocks_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, more: int
) -> None:
    blocks, threads = work.launch.blocks, work.launch.threads_per_block
    larger = replace(work, launch=Launch.of(blocks + more, threads))
    assert seconds(model, larger, gpu) >= seconds(model, work, gpu) * ROUNDING


@every_model
@given(works, gpus, st.integers(0, 1), st.floats(0, 500))
def test_more_trips_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, loop: int, more: float
) -> None:
    trips = list(work.trip_counts)
    trips[loop] += more
    longer = replace(work, trip_counts=tuple(trips))
    assert seconds(model, longer, gpu) >= seconds(model, work, gpu) * ROUNDING


@every_model
@given(works, gpus, st.floats(0.1, 3), st.floats(0.05, 1), st.floats(0.05, 1))
def test_lower_clocks_never_shorten_it(
    model: Any, work: KernelWork, gpu: GpuProfile, fast: float, core: float, memory: float
) -> None:
    quick = ClockPair(gpu.core_mhz * fast, gpu.memory_mhz * fast)
    slow = ClockPair(quick.core_mhz * core, quick.memory_mhz * memory)
    assert seconds(model, work, gpu, slow) >= seconds(model, work, gpu, quick) * ROUNDING


@every_model
@given(works, gpus)
def test_a_prediction_is_finite_inside_its_interval_and_made_of_its_parts(
    model: Any, work: KernelWork, gpu: GpuProfile
) -> None:
    found = predicted(model, work, gpu)
    assert 0 < found.estimate.low < found.estimate.value < found.estimate.high
    assert isfinite(found.estimate.high)
    assert all(part >= 0 for part in found.parts.values())
    whole = max(found.parts.values()) if model is VOLKOV else sum(found.parts.values())
    assert whole == pytest.approx(found.estimate.value, rel=1e-9)


@both_of_the_thesis
@pytest.mark.parametrize("gpu_id", ALL_GPUS)
def test_zero_work_leaves_the_launch_overhead(model: Any, gpu_id: str) -> None:
    """196 x 256 threads: 0.00002 x 50176 + 1.4489 us, the line printed for Tesla K20."""
    empty = replace(VECTOR_ADD, code=code_of("empty.ptx"))
    overhead = (0.00002 * 50176 + 1.4489) * 1e-6
    assert seconds(model, empty, load_gpu(gpu_id)) == pytest.approx(overhead, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "gpu_id", "codes"),
    [
        (SCHEDULING, "tesla-k20", {"latency_assumed": 1}),  # shl: no measured latency
        (SCHEDULING, "tesla-m60", {"launch_overhead_assumed": 1}),
        (SCHEDULING, "gtx-1050", {"latency_assumed": 2}),  # and the global latency
        (SCHEDULING, "tesla-v100", {"throughput_assumed": 2}),  # global and shared
        (DELAY, "tesla-k20", {"latency_assumed": 1}),
        (DELAY, "tesla-m60", {"launch_overhead_assumed": 1, "peak_warps_assumed": 1}),
        (DELAY, "gtx-1050", {"latency_assumed": 2}),
        (VOLKOV, "tesla-m60", {"latency_assumed": 1, "throughput_assumed": 1}),
    ],
)
def test_every_stand_in_is_reported(model: Any, gpu_id: str, codes: dict[str, int]) -> None:
    told = Counter(d.code for d in model.predict_work(MATMUL, load_gpu(gpu_id)).diagnostics)
    assert told >= Counter(codes)
    if gpu_id == "tesla-k20":
        assert told == Counter(codes)
    missing = model.predict_work(replace(MATMUL, trip_counts=()), K20).diagnostics
    assert "trip_count_assumed" in [d.code for d in missing]


@both_of_the_thesis
def test_an_analysed_launch_is_taken_with_its_guesses(model: Any) -> None:
    module = read_module((KERNELS / "tiled_matmul.ptx").read_text(encoding="utf-8"))
    launch = Launch.of((32, 32), (32, 32))
    given = analyse(
        module, module.kernel(), launch, K20, loops={"default": 32}, registers_per_thread=32
    )
    work = work_of(given)
    assert work.shared_bytes_per_block == 2 * 32 * 32 * 4
    assert work.trip_counts == (32.0,)
    assert work_of(given).code is work.code  # the text is worked out once
    sure = model.predict(given, K20).estimate
    assert sure == model.predict_work(work, K20).estimate
    assert sure == model.predict_work(MATMUL, K20).estimate
    guessed = analyse(module, module.kernel(), launch, K20)
    assert guessed.trips_assumed
    wide = model.predict(guessed, K20).estimate
    assert wide.high / wide.low > 10 * sure.high / sure.low


@every_model
def test_what_cannot_be_is_refused(model: Any) -> None:
    bare = K20.model_copy(update={"latencies": {}, "id": "bare"})
    bare.__dict__.pop("latency_cycles", None)
    with pytest.raises(ModelError, match="bare"):
        model.predict_work(VECTOR_ADD, bare)
    with pytest.raises(LaunchError, match="fits on an SM"):
        model.predict_work(replace(MATMUL, registers_per_thread=65), K20)
    for clocks in (ClockPair(0, 2600), ClockPair(-5, 2600), ClockPair(0, 0)):
        with pytest.raises(LaunchError, match="_mhz"):
            model.predict_work(MATMUL, K20, clocks)
    with pytest.raises(LaunchError, match="trip count"):
        model.predict_work(replace(MATMUL, trip_counts=(-1,)), K20)
