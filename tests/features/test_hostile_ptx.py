"""Hostile PTX, small: every pass ends, grows with its text alone, and minds clock and limits.

The large ones go through the service: tests/app/test_hostile_http.py (``make test-slow``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType

import pytest

from tests.fixtures.hostile_ptx import CASES, REGISTERS, SHAPES, STORE, kernel
from wattcast.features.analysis import analyse, statics
from wattcast.features.dataflow import dependent_chains
from wattcast.features.errors import (
    DEFAULT_EFFORT,
    DEFAULT_LIMITS,
    Clock,
    GivenUpError,
    PtxError,
    SizeLimits,
    TooComplexError,
    giving_up,
)
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import analyse_symbolically
from wattcast.models.papers.thesis.code import KernelCode

LAUNCH = Launch.of(4, 64)
NESTED = ("nested_loops", "nested_constant_loops", "nested_one_counter", "alive_around_loops")
"""Loops inside each other: 64 is the most."""
REFUSED = ("no_semicolon",)
every_shape = pytest.mark.parametrize("name", SHAPES)


def passes(text: str, limits: SizeLimits = DEFAULT_LIMITS) -> None:
    """Every pass over text and graph but the execution, which counts its own work."""
    module = read_module(text, limits)
    function = module.kernel("k") if module.function("k") else module.kernels[0]
    known = statics(module, function)
    known.registers(load_gpu("tesla-v100"))
    dependent_chains(function.body, known.cfg)
    KernelCode.of(function.body, known.cfg, known.loops)
    analyse_symbolically(module, function, LAUNCH)


def calls_of(work: Callable[[], None]) -> int:
    """Calls of functions that some work makes: its cost, whatever else the machine does."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    except (PtxError, TooComplexError):
        pass
    finally:
        sys.setprofile(before)
    return count


def test_there_are_enough_of_them() -> None:
    shapes = {name for name, _ in CASES}
    print(f"{len(CASES)} hostile texts of {len(shapes)} shapes")
    assert len(CASES) >= 60
    assert shapes == set(SHAPES)


@every_shape
def test_work_grows_with_the_text_alone(name: str) -> None:
    shape = SHAPES[name]
    small = 16 if name in NESTED else 60
    calls_of(lambda: passes(shape(3)))  # what is loaded and remembered at first use
    few, many = (calls_of(partial(passes, shape(n))) for n in (small, 4 * small))
    assert many <= 6 * few + 2000, f"{name}: {few} calls at {small}, {many} at {4 * small}"


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFUSED])
def test_the_whole_analysis_ends(name: str) -> None:
    """With a tenth of the effort it may have, which shapes that go on and on use up."""
    module, gpu = read_module(SHAPES[name](40)), load_gpu("tesla-v100")
    found = analyse(module, module.kernels[0], LAUNCH, gpu, effort=DEFAULT_EFFORT / 10)
    assert found.activity.warp_instructions_ptx >= 0
    assert found.vector("alavani2023").values


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_ptx_is_refused(name: str) -> None:
    with pytest.raises(PtxError):
        passes(SHAPES[name](2000))


@every_shape
def test_every_shape_is_given_up_at_once(name: str) -> None:
    clock = Clock()
    clock.give_up()
    with pytest.raises((GivenUpError, PtxError)), giving_up(clock=clock):
        passes(SHAPES[name](600))


@pytest.mark.parametrize(
    ("limit", "most", "name", "n", "line"),
    [
        ("max_line_characters", 1000, "one_line", 200, 9),
        ("max_statement_characters", 500, "one_statement", 500, 9),
        ("max_statement_characters", 500, "vectors", 500, 9),
        ("max_kernel_instructions", 100, "chain", 2000, None),
        ("max_kernel_instructions", 100, "declarations", 200, None),
        ("max_kernel_labels", 50, "labels_at_once", 100, None),
        ("max_kernel_blocks", 50, "diamonds", 40, None),
        ("max_kernel_blocks", 50, "labels", 100, None),
        ("max_kernel_edges", 50, "switch", 100, 9),
        ("max_kernel_edges", 500, "switches", 2500, None),
        ("max_loop_nesting", 20, "nested_loops", 21, None),
        ("max_kernel_liveness", 1000, "alive_over_blocks", 100, None),
        ("max_module_symbols", 50, "deep_calls", 100, None),
        ("max_module_symbols", 50, "variables", 100, None),
    ],
)
def test_a_limit_is_named_with_the_line(
    limit: str, most: int, name: str, n: int, line: int | None
) -> None:
    text = SHAPES[name](n)
    with pytest.raises(TooComplexError) as raised:
        passes(text, replace(DEFAULT_LIMITS, **{limit: most}))
    error = raised.value
    assert error.context["limit"] == limit
    assert f"more than {most:,} " in error.detail
    at = error.context["line"]
    assert isinstance(at, int)
    assert f"line {at}:" in error.detail
    assert 1 <= at <= text.count("\n") + 1
    if line is not None:
        assert at == line


def test_what_compilers_print_is_far_below_the_limits() -> None:
    """A kernel of 50,000 instructions, 5,000 blocks and loops ten deep."""
    loops = SHAPES["nested_loops"](10).split("{\n", 1)[1].rpartition(STORE)[0]
    declared, _, body = loops.partition(REGISTERS)
    steps = "".join(
        f"mad.lo.s32 %v{i}, %r1, {i}, %r2;\nadd.s32 %r1, %r1, %v{i};\n"
        + (f"setp.gt.s32 %p1, %r1, {i};\n@%p1 bra $J{i};\n$J{i}:\n" if i % 8 == 0 else "")
        for i in range(20_000)
    )
    module = read_module(kernel(body + steps, declared=declared + ".reg .b32 %v<20000>;\n"))
    known = statics(module, module.kernel())
    assert len(module.kernel().body.instructions) > 45_000
    assert known.registers(load_gpu("tesla-v100")).registers_per_thread > 0
