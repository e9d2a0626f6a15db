"""Hostile programs end, with a correct answer or one that says what it lacks."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
import pytest

from tests.features.whole_runs import run_whole
from tests.generated.hostile import PROGRAMS
from tests.reference.machine import run
from tests.reference.memory import place_buffers
from wattcast.features.analysis import analyse
from wattcast.features.errors import AnalysisError, SizeLimits
from wattcast.features.execution import execute
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module as read
from wattcast.features.ptx.ir import Module

NESTING = SizeLimits(max_loop_nesting=256)
"""Beyond what is served by default: what the analyses make of it is the question here."""


def read_module(text: str) -> Module:
    return read(text, NESTING)


GPU = "tesla-v100"
EFFORT = 150_000_000
HANG_SECONDS = 60
"""Far beyond any cap: what takes this long has hung. No measure of speed."""

every_program = pytest.mark.parametrize("name", PROGRAMS)


@contextmanager
def no_hang() -> Iterator[None]:
    """Interrupts what does not end."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"did not end within {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@every_program
def test_the_executed_analysis_ends_and_is_right_or_says_what_it_lacks(name: str) -> None:
    program = PROGRAMS[name]
    with no_hang():
        analysis = analyse(
            read_module(program.ptx), None, program.launch, load_gpu(GPU), analysis="executed",
            effort=EFFORT,
        )  # fmt: skip
        vector = analysis.vector("activity1")
        result = analysis.executed
    codes = {d.code for d in vector.diagnostics}
    executed = sum(float(f.warp_executions.sum()) for f in result.functions.values())
    if program.says:
        assert codes & set(program.says)
    assert result.sampling.completed or "execution_cut_short" in codes
    if program.executions is not None and result.sampling.completed:
        assert executed == pytest.approx(program.executions, rel=1e-12)
    assert all(math.isfinite(v) for v in vector.model_inputs())
    assert executed >= 0


@every_program
def test_the_symbolic_analysis_ends_with_numbers_or_refuses(name: str) -> None:
    program = PROGRAMS[name]
    with no_hang():
        analysis = analyse(
            read_module(program.ptx), None, program.launch, load_gpu(GPU), analysis="symbolic"
        )
        try:
            numbers = analysis.vector("activity1").model_inputs()
        except AnalysisError:
            assert analysis.symbolic.unproven
            numbers = ()
    assert all(math.isfinite(v) for v in numbers)


@every_program
def test_a_few_steps_are_enough_to_end_it(name: str) -> None:
    """The step limit alone bounds every program, without any clock."""
    program = PROGRAMS[name]
    module = read_module(program.ptx)
    with no_hang():
        result = execute(
            module.kernel(None), module, program.launch, effort=None, step_limit=300,
            extrapolate=False,
        )  # fmt: skip
    codes = {d.code for d in result.diagnostics}
    assert result.sampling.steps <= 301
    assert result.sampling.completed != ("execution_cut_short" in codes)


@pytest.mark.parametrize(
    "name",
    ["irreducible", "scattered_branches", "5000_labels", "1000_predicated_branches",
     "unreachable_code", "3000_functions", "200_nested_loops_once"],
)  # fmt: skip
def test_what_ends_by_itself_is_counted_as_the_reference_counts_it(name: str) -> None:
    ptx = PROGRAMS[name].ptx
    module = read_module(ptx)
    wanted = run(ptx, "k", (1,), (40,), {"out": np.zeros(64, "u4")})
    address = next(iter(place_buffers({"out": 256}).values()))
    launch = Launch.of(1, 40, 0, {"0": address})
    result, after = run_whole(module.kernel(None), module, launch, {address: np.zeros(64, "u4")})
    for quantity in ("warp_executions", "active_lanes"):
        found = sum(getattr(each, quantity).sum() for each in result.functions.values())
        assert found == sum(getattr(row, quantity) for row in wanted.per_instruction)
    np.testing.assert_array_equal(after[address].view("u4"), wanted.memory["out"])
