"""Generated kernels: the executed analysis agrees with the reference interpreter on memory and,
per instruction, on warp executions, active lanes, sectors and shared transactions.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.generated.arithmetic import every_instruction
from tests.generated.choices import Choices
from tests.generated.compare import differences, reference
from tests.generated.programs import generate, program
from wattcast.features.execution import machine

SEEDS = 80
"""Seeded kernels of the suite."""


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_seeded_kernels_do_the_same_on_both_interpreters(first: int) -> None:
    compared = 0
    for seed in range(first, first + 20):
        kernel = program(seed)
        expected = reference(kernel)
        if expected is not None:  # not too long for a scalar interpreter
            compared += 1
            assert differences(kernel, expected) == [], f"seed {seed}"
    assert compared >= 15


INSTRUCTIONS = list(every_instruction(Choices(1)))
TOGETHER = 24
"""Instructions per kernel; later ones see what earlier ones made."""


@pytest.mark.parametrize("part", range(4))
def test_every_opcode_of_the_tables_does_the_same_on_both_interpreters(part: int) -> None:
    groups = range(0, len(INSTRUCTIONS), TOGETHER)
    for start in groups[part::4]:
        body = [line for lines in INSTRUCTIONS[start : start + TOGETHER] for line in lines]
        kernel = generate(Choices(start), body)
        expected = reference(kernel)
        assert expected is not None
        assert differences(kernel, expected) == [], f"instructions from {start}"


@pytest.mark.parametrize(
    "lines",
    [
        "div.rz.f64 %g2, %g1, %g0;",
        "fma.rm.f64 %g2, %g0, %g0, %g1;",
        "cvt.rz.f64.u64 %g1, %d1;",
        "cvt.rm.f32.s64 %f1, %d0;",
        "div.rn.f32 %f1, %f1, %f1; cvt.rzi.s64.f32 %d0, %f1; cvt.rzi.u32.f32 %r2, %f1;",
        "div.rn.f64 %g1, %g0, %g0; cvt.rzi.s32.f64 %r2, %g1; cvt.rni.u16.f64 %h0, %g1;",
        "testp.subnormal.f32 %p0, %f1; testp.normal.f32 %p1, %f1;",
        "abs.ftz.f32 %f2, %f1; neg.ftz.f32 %f1, %f2;",
        "neg.f32 %f2, 0f00000000; max.f32 %f1, %f2, 0f00000000; min.f32 %f3, 0f00000000, %f2;",
        "min.NaN.f32 %f2, %f1, 0f80000000; max.NaN.f16 %e0, %e1, %e2;",
        "neg.f16 %e0, %e0; add.sat.f16 %e1, %e0, %e0; fma.rn.relu.f16x2 %x0, %x0, %x1, %x0;",
        "and.pred %p0, %p1, !%p2; xor.pred %p3, %p0, !%p1; not.pred %p1, %p1;",
    ],
)
def test_what_generated_kernels_brought_to_light_stays_right(lines: str) -> None:
    """Each was once different on the two interpreters, at values all kernels start with."""
    kernel = generate(Choices(7), [f"{line};" for line in lines.split(";") if line])
    expected = reference(kernel)
    assert expected is not None
    assert differences(kernel, expected) == []


def test_letting_others_past_a_spinning_warp_keeps_the_order_within_each_warp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Turns are given long before a loop could be taken for one that waits for another warp."""
    monkeypatch.setattr(machine, "SPIN_LIMIT", 10)
    for seed in range(20):
        kernel = program(seed)
        expected = reference(kernel)
        if expected is not None:
            assert differences(kernel, expected) == [], f"seed {seed}"


def test_the_seeded_kernels_use_every_kind_of_statement() -> None:
    found = Counter(
        word.rstrip(";").split(".")[0]
        for seed in range(SEEDS)
        for line in program(seed).ptx.splitlines()
        for word in line.split()
    )
    wanted = {"bra", "brx", "call", "ret", "exit", "bar", "barrier", "shfl", "vote", "match",
              "redux", "activemask", "atom", "red", "ld", "st", "cvta", "setp", "cvt"}  # fmt: skip
    assert wanted - set(found) == set()
