"""What no answer may break: the peak rates of the hardware, and that more work takes more.

Every fixture at its large launch. Peaks are asked of every GPU there is; counts of the symbolic
analysis serve all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import pytest

from benchmarks.execution import launch_of
from tests.app.conftest import settings_at
from tests.fixtures.kernels.data import FixtureKernel, Shape, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, times
from wattcast.features.analysis import KernelAnalysis, Mode, analyse
from wattcast.features.errors import AnalysisError, LaunchError
from wattcast.features.gpus import GpuProfile, list_gpus, load_gpu
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.occupancy import check_launch, occupancy, waves
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.models.clocks import default_clocks
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
    power = BoardModels(predictor.power, GPU).watts(analysis, clocks, seconds).estimate
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
