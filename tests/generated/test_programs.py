"""Generated kernels: the executed analysis agrees with the reference interpreter on memory and,
per instruction, on warp executions, active lanes, sectors and shared transactions.

``python -m tests.generated.hunt`` tries thousands more and cuts down what fails.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from tests.generated.arithmetic import tables
from tests.generated.compare import differences, reference
from tests.generated.programs import Generated, program, programs

SEEDS = 80
"""Seeded kernels of the suite; they are longer than what hypothesis draws."""


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_a_drawn_kernel_does_the_same_on_both_interpreters(kernel: Generated) -> None:
    expected = reference(kernel)
    assume(expected is not None)
    assert expected is not None
    assert differences(kernel, expected) == []


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


def test_the_seeded_kernels_use_every_row_of_the_tables_and_every_kind_of_statement() -> None:
    """Nothing is compared that is never generated: opcodes and constructs all occur."""
    found = Counter(
        word.rstrip(";").split(".")[0]
        for seed in range(300)
        for line in program(seed).ptx.splitlines()
        for word in line.split()
    )
    wanted = {
        opcode.split(".")[0]
        for rows in tables().values()
        for row in rows
        for opcodes, _ in row
        for opcode in opcodes
    }
    wanted |= {"brx", "call", "ret", "exit", "bar", "barrier", "shfl", "vote", "match", "redux",
               "activemask", "atom", "red", "ld", "st", "cvta", "rem"}  # fmt: skip
    assert wanted - set(found) == set()
