"""What no answer may break: the peak rates of the hardware, and that more work takes more.

Every fixture at its large launch. Peaks are asked of every GPU there is; counts of the symbolic
analysis serve all of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any

import pytest

from benchmarks.execution import launch_of
from tests.app.conftest import settings_at
from tests.fixtures.kernels.data import FixtureKernel, Shape, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, times
from wattcast.features.analysis import KernelAnalysis, Mode, analyse
from wattcast.features.counted import REPEATED_ERROR
from wattcast.features.errors import CUT_SHORT, AnalysisError, GivenUpError, LaunchError, giving_up
from wattcast.features.gpus import GpuProfile, list_gpus, load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.occupancy import check_launch, occupancy, waves
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.models.clocks import default_clocks
from wattcast.models.energy import energy
from wattcast.models.speed import speed_of_light
from wattcast.models.time.base import get_time_model
from wattcast.models.time.beside import beside
from wattcast.predictor import Predictor
from wattcast.predictor.parts.time_and_power import BoardModels

BY_NAME = {kernel.name: kernel for kernel in KERNELS}

ROUNDING = 1 + 1e-9

GPU = load_gpu("tesla-v100")

GPUS = list_gpus()


@lru_cache(maxsize=1)
def module(path: Path) -> Module:
    return read_module(path.read_text(encoding="utf-8"))


def analysed(kernel: FixtureKernel, shape: Shape, mode: Mode = "symbolic") -> KernelAnalysis:
    text = ptx_path(kernel.source, targets(kernel.source)[0])
    return analyse(module(text), kernel.entry, launch_of(shape), GPU, analysis=mode)


def where_proven(test: Callable[..., None]) -> Callable[..., None]:
    """A test of both modes; symbols may refuse what the executed case tells of."""

    @wraps(test)
    def run(mode: Mode, **given: Any) -> None:
        try:
            test(mode=mode, **given)
        except AnalysisError as error:
            assert mode == "symbolic"
            assert "not proven" in error.detail  # noqa: PT017

    return run


def on(analysis: KernelAnalysis, gpu: GpuProfile) -> KernelAnalysis:
    """The same launch on another GPU. Raises LaunchError where it cannot run there."""
    registers = analysis.registers.registers_per_thread
    shared = analysis.static_shared_bytes
    check_launch(gpu, analysis.launch, shared, registers)
    resident = occupancy(gpu, analysis.launch, registers, shared)
    return replace(
        analysis, gpu=gpu, occupancy=resident, waves=waves(gpu, analysis.launch, resident)
    )


def rates(analysis: KernelAnalysis, seconds: float) -> dict[str, tuple[float, float]]:
    """What the answer says happens in a second, and what the hardware can do at most."""
    gpu, did = analysis.gpu, analysis.activity
    clock = default_clocks(gpu).core_hz * gpu.sm_count
    lanes = 32 / seconds
    tensor = sum(work.multiply_adds for work in analysis.extras.tensor if work.kind == "f16")
    dram = (did.dram_read_sectors + did.dram_write_sectors) * SECTOR_BYTES
    per_sm = (gpu.l2_bytes_per_clock or 64 * gpu.sm_count) / gpu.sm_count
    found = {
        "dram": (dram / seconds, gpu.bandwidth_bytes_per_second),
        "l2": (did.l2_sectors * SECTOR_BYTES / seconds, per_sm * clock),
        "l1": (
            (did.global_load_sectors + did.global_store_sectors) * SECTOR_BYTES / seconds,
            128 * clock,
        ),
        "shared": (
            (did.shared_transactions - did.shared_requests) * lanes * 4,
            gpu.capability.shared_bytes_per_clock * clock,
        ),
        "issue": (did.warp_instructions_sass / seconds, gpu.warp_schedulers * clock),
        "fp32": (did.fp32_instructions * lanes, gpu.fp32_lanes * clock),
        "alu": (did.alu_pipe_instructions * lanes, gpu.int_lanes * clock),
        "fp64": (did.fp64_instructions * lanes, gpu.fp64_lanes * clock),
        "sfu": (did.sfu_instructions * lanes, gpu.sfu_lanes * clock),
        "blocks": (did.blocks / seconds, clock),
    }
    if gpu.tensor_fma_per_clock:
        found["tensor"] = (tensor / seconds, gpu.tensor_fma_per_clock * clock)
    return found


def cases() -> list[Any]:
    return [
        *(pytest.param(name, "symbolic") for name in BY_NAME),
        *(pytest.param(name, "executed", marks=pytest.mark.slow) for name in BY_NAME),
    ]


@pytest.mark.parametrize(("name", "mode"), cases())
@where_proven
def test_no_answer_exceeds_a_peak_of_any_gpu(name: str, mode: Mode) -> None:
    kernel = BY_NAME[name]
    analysis = analysed(kernel, kernel.large, mode)
    model, ran = get_time_model("bottleneck"), 0
    for gpu in GPUS:
        try:
            there = on(analysis, gpu)
        except LaunchError:
            continue
        ran += 1
        estimate = model.predict(there, gpu).estimate
        beyond = {
            what: said / most
            for what, (said, most) in rates(there, estimate.value).items()
            if said > most * ROUNDING
        }
        assert not beyond, (gpu.id, beyond)
        shares_are_shares(there, estimate.value)
    assert ran >= len(GPUS) // 2


def shares_are_shares(analysis: KernelAnalysis, seconds: float) -> None:
    """Of the time predicted, by the counts, every unit takes a share, and no point lies above its
    roof."""
    clocks, more = default_clocks(analysis.gpu), beside(analysis.extras)
    told = speed_of_light(
        analysis.activity, analysis.operations, analysis.gpu, clocks, seconds, more
    )
    assert told.seconds == seconds, analysis.gpu.id
    for each in told.units:
        assert 0.0 <= each.share <= ROUNDING, (analysis.gpu.id, each)
        assert 0.0 <= each.achieved <= each.share * each.peak * ROUNDING, (analysis.gpu.id, each)
    for point in told.points:
        assert point.achieved <= point.peak * ROUNDING
        if point.intensity is not None:
            assert point.achieved <= point.intensity * told.dram_peak * ROUNDING


def test_an_answer_that_is_too_fast_would_be_seen() -> None:
    analysis = analysed(BY_NAME["saxpy"], BY_NAME["saxpy"].large)
    seconds = get_time_model("bottleneck").predict(analysis, GPU).estimate.value
    said, most = rates(analysis, 0.7 * seconds)["dram"]
    assert said > most


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor(settings_at(tmp_path_factory.mktemp("home")))


def seconds_and_joules(predictor: Predictor, analysis: KernelAnalysis) -> tuple[float, float]:
    """Time beyond that of a launch itself, and the energy of all of it."""
    clocks = default_clocks(GPU)
    found = get_time_model("bottleneck").predict(analysis, GPU, clocks)
    seconds = found.estimate.value
    power = next(BoardModels(predictor.power, GPU).watts(analysis, [clocks], [seconds])).estimate
    assert power is not None
    return seconds - found.parts["launch"], power.value * seconds


FULL = 16
"""Waves from which a launch is long enough that its end does not count."""


@pytest.mark.parametrize(("name", "mode"), cases())
@where_proven
def test_twice_the_work_takes_twice_the_time_and_no_less_energy(
    name: str, mode: Mode, predictor: Predictor
) -> None:
    kernel, factor = BY_NAME[name], 1
    one = analysed(kernel, times(name, factor), mode)
    while factor < 64 and (one.activity.footprint_bytes < 4 * GPU.l2_bytes or one.waves < FULL):
        factor *= 4
        one = analysed(kernel, times(name, factor), mode)
    two = analysed(kernel, times(name, 2 * factor), mode)
    small, large = (seconds_and_joules(predictor, each) for each in (one, two))
    assert large[1] >= small[1]
    assert 1.8 < large[0] / small[0] < 2.2, (factor, one.activity.footprint_bytes / GPU.l2_bytes)


def test_an_interpreter_whose_program_symbols_do_not_know_is_refused_and_run() -> None:
    kernel = BY_NAME["virtual_machine"]
    with pytest.raises(AnalysisError, match="not proven"):
        _ = analysed(kernel, kernel.large, "symbolic").coverage
    assert analysed(kernel, kernel.large, "auto").coverage.assumed == 0


# --- What an analysis of bounded effort answers: nothing missing, and no made-up data as
# knowledge

PTX = Path(__file__).parents[1] / "fixtures" / "ptx" / "effort" / "kernels.ptx"

MODULE = read_module(PTX.read_text(encoding="utf-8"))

SECTOR = 32


def found(
    kernel: str, grid: Any, block: Any, given: dict[str, Any], **options: Any
) -> KernelAnalysis:
    launch = Launch.of(grid, block, 0, given)
    return analyse(MODULE, kernel, launch, GPU, **options)


LAUNCHES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dot_rows": (128, 256, {"3": 8192, "4": 2048}),
    "causal": ((256, 32), 64, {"3": 256}),
    "product": ((128, 128), (32, 32), {"3": 4096}),
    "last_block_sums": (8192, 256, {"3": 1 << 26}),
    "windows": ((2048, 64), 256, {"2": 2048 * 256, "3": 1024, "4": 4}),
}
"""Grid, block and arguments of launches too long to run whole."""


@cache
def whole(kernel: str, analysis: Mode = "auto") -> KernelAnalysis:
    """One analysis of a long launch for all tests that only look at it."""
    return found(kernel, *LAUNCHES[kernel], analysis=analysis)


def executed(analysis: KernelAnalysis) -> float:
    return analysis.activity.values()["warp_instructions_ptx"]


def seconds(analysis: KernelAnalysis) -> float:
    """Time beyond that of a launch itself."""
    found = get_time_model("bottleneck").predict(analysis, GPU)
    return found.estimate.value - found.parts["launch"]


def dram(analysis: KernelAnalysis) -> float:
    """Bytes between L2 and device memory."""
    values = analysis.activity.values()
    return SECTOR * (values["dram_read_sectors"] + values["dram_write_sectors"])


def test_skipped_rounds_of_an_outer_loop_leave_all_their_traffic() -> None:
    assert dram(whole("dot_rows", "executed")) == pytest.approx(2 * 8192 * 2048 * 4, rel=0.02)


def test_the_last_blocks_loop_is_one_blocks() -> None:
    one, two = (
        found("last_block_sums", blocks, 256, {"3": blocks * 2560}, analysis="executed")
        for blocks in (8192, 16384)
    )
    assert 1.9 < dram(two) / dram(one) < 2.1
    assert 1.9 < executed(two) / executed(one) < 2.1
    assert 1.9 < seconds(two) / seconds(one) < 2.1


def test_given_trips_take_effect_where_made_up_data_would_not_let_them() -> None:
    given = [
        found("csr_rows", 1024, 256, {"5": 262144}, loops={"default": trips})
        for trips in (1, 8, 64, 1000)
    ]
    counts, times = [executed(one) for one in given], [seconds(one) for one in given]
    assert times == sorted(times)
    assert 4 < times[2] / times[1] < 9
    assert times[3] / times[2] == pytest.approx(1000 / 64, rel=0.2)
    assert 4 < counts[2] / counts[1] < 8.5
    assert counts == sorted(counts)
    slope = (counts[3] - counts[2]) / (counts[2] - counts[1])
    assert slope == pytest.approx((1000 - 64) / (64 - 8), rel=0.05)
    none = executed(found("csr_rows", 1024, 256, {"5": 262144}, loops={"default": 0}))
    assert none < counts[0]


def test_trips_from_made_up_data_are_assumed_and_from_described_data_given() -> None:
    made_up = found("ragged", 256, 256, {"3": 65536})
    assert {trip.how for trip in made_up.trip_counts} == {"assumed"}
    few, many = (executed_case(case) for case in made_up.activity_cases[-2:])
    assert few < executed(made_up) < many
    hint = PointerHint(65536, "uniform", 0, 64)
    described = found("ragged", 256, 256, {"3": 65536, "1": hint})
    assert {trip.how for trip in described.trip_counts} == {"given"}
    assert described.trip_counts[0].count * 4 == pytest.approx(32, rel=0.1)


def executed_case(case: Any) -> float:
    return float(case.values()["warp_instructions_ptx"])


@pytest.mark.parametrize("blocks", [64, 256])
def test_a_loop_as_long_as_the_blocks_number_has_its_true_mean(blocks: int) -> None:
    made = found("causal", (blocks, 32), 64, {"3": blocks}, analysis="executed")
    assert made.trip_counts[0].count == pytest.approx((blocks + 1) / 2, rel=0.02)
    counts = made.counts.functions(None)["causal"].warp_executions
    assert counts.max() == pytest.approx(2 * 32 * blocks * (blocks + 1) / 2, rel=0.02)


def test_windows_that_few_blocks_clip_are_not_clipped_for_all() -> None:
    samples, channels, step, rows = 2048 * 256, 1024, 4, 64
    made = whole("windows", "executed")
    true = sum(
        -(-max(0, samples - row * step * channel) // 32)
        for row in range(rows)
        for channel in range(channels)
    )
    assert made.activity.values()["global_load_requests"] == pytest.approx(true, rel=0.02)


def test_the_budget_alone_decides_where_an_execution_ends() -> None:
    shape = ("causal", (64, 32), 64, {"3": 64})
    whole = found(*shape, analysis="executed")
    ends = [found(*shape, analysis="executed", effort=10**6).executed for _ in range(2)]
    assert whole.executed.sampling.completed
    assert not ends[0].sampling.completed
    assert ends[0].sampling.effort == ends[1].sampling.effort > 10**6
    for name, counts in ends[0].functions.items():
        again = ends[1].functions[name].warp_executions
        assert (counts.warp_executions == again).all()


def test_a_request_is_given_up_and_leaves_nothing_behind() -> None:
    made = found("dot_rows", *LAUNCHES["dot_rows"], analysis="executed")
    with giving_up(0), pytest.raises(GivenUpError):
        _ = made.activity
    assert dram(made) == pytest.approx(2 * 8192 * 2048 * 4, rel=0.02)


@pytest.mark.parametrize("key", ["line", "default"])
def test_loops_that_unrolling_made_of_one_share_its_trips(key: str) -> None:
    def counted(trips: float) -> tuple[dict[int, float], float]:
        line = str(found("unrolled_sum", 256, 256, {}).trip_counts[0].source_line)
        made = found("unrolled_sum", 256, 256, {}, loops={line if key == "line" else key: trips})
        assert {trip.how for trip in made.trip_counts} == {"given"}
        assert {trip.source_count for trip in made.trip_counts} == {trips}
        loads = made.activity.values()["global_load_requests"]
        return {trip.line: trip.count for trip in made.trip_counts}, loads

    trips, loads = counted(131)
    assert sorted(trips.values()) == [3, 32]
    warps = 256 * 256 / 32
    assert loads == pytest.approx(warps * (131 + 1), rel=0.02)
    assert counted(8)[1] == pytest.approx(warps * (8 + 1), rel=0.02)


def test_a_label_is_one_loop_of_the_ptx() -> None:
    first, _ = found("unrolled_sum", 256, 256, {}).trip_counts
    made = found("unrolled_sum", 256, 256, {}, loops={str(first.label): 7.0, "default": 131.0})
    assert made.trip_counts[0].count == 7
    assert made.trip_counts[1].count in (3, 32)


@pytest.mark.parametrize("kernel", LAUNCHES)
def test_a_small_budget_answers_as_a_large_one_within_what_it_says(kernel: str) -> None:
    full = whole(kernel)
    cut = found(kernel, *LAUNCHES[kernel], effort=5_000_000)
    assert full.executed.sampling.completed
    assert CUT_SHORT in {said.code for said in cut.executed.diagnostics}
    assert executed(cut) == pytest.approx(executed(full), rel=0.1)
    assert dram(cut) == pytest.approx(dram(full), rel=0.2)
    model = get_time_model("bottleneck")
    told, true = model.predict(cut, GPU).estimate, model.predict(full, GPU).estimate
    assert told.low < true.value < told.high
    shares = cut.coverage
    total = shares.executed + shares.extrapolated + shares.worked_out + shares.assumed
    assert total == pytest.approx(1)


def test_what_is_extrapolated_widens_the_interval(tmp_path: Path) -> None:
    made, exact = whole("windows"), whole("dot_rows")
    assert made.coverage.extrapolated > 0.1
    assert made.coverage.error > exact.coverage.error == REPEATED_ERROR
    wide, narrow = (intervals(made, each.coverage.error, tmp_path)[1] for each in (made, exact))
    assert wide > 1.02 * narrow


def test_trips_that_are_given_are_not_extrapolated() -> None:
    given = {"5": 262144}
    made = found("csr_rows", 1024, 256, given, loops={"default": 64}, analysis="executed")
    assert all(trip.how == "given" for trip in made.trip_counts)
    assert made.coverage.assumed == 0
    assert made.coverage.worked_out > 0.5


def intervals(analysis: KernelAnalysis, error: float, home: Path) -> list[float]:
    """Widths high / low of power and time where counts are known to ``error``."""
    analysis = copy(analysis)
    vars(analysis)["coverage"] = replace(analysis.coverage, error=error)
    clocks = default_clocks(GPU)
    models = BoardModels(Predictor(settings_at(home)).power, GPU)
    power = next(models.watts(analysis, [clocks])).estimate
    duration = get_time_model("bottleneck").predict(analysis, GPU, clocks)
    assert power is not None
    both = energy(power, duration, GPU)
    return [one.high / one.low for one in (power, duration.estimate, both)]


def test_what_counts_leave_open_is_in_every_interval(tmp_path: Path) -> None:
    """Time grows with everything counted, power with what moves: less than time, never more. Their
    own doubts know nothing of that of counts."""
    made = whole("product", "executed")
    certain, open_ = intervals(made, 0.0, tmp_path), intervals(made, 0.2, tmp_path)
    power, time, both = (b / a for a, b in zip(certain, open_, strict=True))
    assert 1.05 < time < 1.2**2
    assert 1.01 < power < time
    assert 1.01 < both <= power * time


def test_iterations_taken_from_others_leave_a_stated_error() -> None:
    taken = whole("dot_rows", "executed")
    run = found("dot_rows", *LAUNCHES["dot_rows"], analysis="executed", extrapolate=False,
                effort=4e9)  # fmt: skip
    assert taken.coverage.error > run.coverage.error == 0


def test_assumed_trips_are_shared_between_an_unrolled_loop_and_what_is_left_of_it() -> None:
    """32 trips of the source are 8 of four steps and none of one, not 32 of each."""
    assumed = found("unrolled_sum", 4096, 256, {})
    given = found("unrolled_sum", 4096, 256, {}, loops={"default": 32})
    assert {trip.how for trip in assumed.trip_counts} == {"assumed"}
    assert [trip.count for trip in assumed.trip_counts] == [
        trip.count for trip in given.trip_counts
    ]
    assert executed(assumed) == pytest.approx(executed(given))
    source = [trip.if_assumed(64) for trip in assumed.trip_counts]
    assert source == [2 * trip.count for trip in assumed.trip_counts]
