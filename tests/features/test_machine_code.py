"""Machine instructions of PTX in its place: what ptxas joins and drops."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.machine_code import find_nvdisasm, machine_lines
from tests.fixtures.tables import table
from wattcast.features.analysis import analyse
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.gpus import load_gpu
from wattcast.features.isa import classify
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.machine_code import Pipes, machine_code, pipes_of
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Body

HEAD = table("bodies", "machine_code_texts")["head"]
LOADS = 11

CASES = table("bodies", "machine_code")


def body_of(text: str) -> Body:
    module = read_module(HEAD + text.replace(";", ";\n") + "ret;\n}\n")
    return module.functions[0].body


@pytest.mark.parametrize(("text", "left"), CASES.items())
def test_what_is_left_of_each_instruction(text: str, left: str) -> None:
    code = machine_code(body_of(text))
    assert code.instructions[LOADS:-1].tolist() == [float(one) for one in left.split()]


@pytest.mark.parametrize(("text", "left"), CASES.items())
def test_ptxas_leaves_as_many(text: str, left: str) -> None:
    """The expected figures above are those of the compiler."""
    if find_ptxas() is None or find_nvdisasm() is None:
        pytest.skip("needs NVIDIA's ptxas and nvdisasm (requirements-cuda.lock)")
    source = HEAD + text.replace(";", ";\n") + "ret;\n}\n"
    module = read_module(source)
    lines = machine_lines(source, module, "sm_75")["k"]
    body = module.functions[0].body
    found = sum(lines[one.line] for one in body.instructions[LOADS:-1])
    assert found == sum(int(one) for one in left.split())


def test_a_multiply_add_runs_on_the_pipe_of_its_product() -> None:
    code = machine_code(body_of("mul.lo.s32 %r6, %r2, %r3; add.s32 %r7, %r6, %r4;"))
    assert Pipes(*code.pipes[LOADS + 1]).fma == 1


@pytest.mark.parametrize(
    ("opcode", "double", "others"),
    [("div.rn.f64", 8, 4), ("sqrt.rn.f64", 8, 6), ("rcp.rn.f64", 5, 2), ("max.f64", 1, 6)],
)
def test_of_a_double_sequence_few_are_double(opcode: str, double: int, others: int) -> None:
    """Multiply-adds of the short way, as nvdisasm prints it for sm_80; the rest compares."""
    found = pipes_of(opcode)
    assert (found.fp64, found.alu, found.sfu) == (double, others, "max" not in opcode)


@pytest.mark.parametrize(
    ("opcode", "products", "tests", "all_of_them"),
    [("div.rn.f32", 5, 1, 10), ("sqrt.rn.f32", 4, 2, 10), ("rcp.rn.f32", 3, 3, 10),
     ("ex2.approx.f32", 2, 1, 4), ("rcp.approx.f32", 1, 5, 7), ("sin.approx.f32", 1, 0, 2)],
)  # fmt: skip
def test_what_is_rounded_tests_for_its_rare_way_and_meets_again(
    opcode: str, products: int, tests: int, all_of_them: int
) -> None:
    """As nvdisasm prints it for sm_80: BSSY, BRA and BSYNC are issued, and no pipe's."""
    found = pipes_of(opcode)
    assert (found.fma, found.alu, found.sfu) == (products, tests, 1)
    assert classify(opcode).sass_expansion == all_of_them


def test_products_of_a_division_leave_the_integer_pipe() -> None:
    """div.s32 for sm_80: 9 IMAD, 3 for the special function unit, 12 others."""
    found = pipes_of("div.s32")
    assert found.fma == pytest.approx(9, abs=0.5)
    assert found.alu == pytest.approx(12, abs=0.5)


PIECES = [
    "mul.f32 %f{a}, %f{b}, %f{c};", "add.f32 %f{a}, %f{b}, %f{c};", "neg.f32 %f{a}, %f{b};",
    "mul.lo.s32 %r{a}, %r{b}, %r{c};", "add.s32 %r{a}, %r{b}, %r{c};",
    "xor.b32 %r{a}, %r{b}, %r{c};",
    "shl.b32 %r{a}, %r{b}, {c};", "mul.wide.s32 %rd{a}, %r{b}, %r{c};",
    "add.s64 %rd{a}, %rd{b}, 8;",
    "st.global.u32 [%rd{a}], %r{b};", "@%p1 add.s32 %r{a}, %r{b}, 1;",
]  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(PIECES), *[st.integers(1, 12)] * 3), min_size=1, max_size=40)
)
def test_joining_never_adds_work(pieces: list[tuple[str, int, int, int]]) -> None:
    """Never more than the instructions by themselves; what is not joined keeps its weight."""
    text = "".join(piece.format(a=a, b=b, c=c) for piece, a, b, c in pieces)
    body = body_of(text)
    code = machine_code(body)
    alone = np.array([max(2.0, classify(one.opcode).sass_expansion) for one in body.instructions])
    assert (code.instructions >= 0).all()
    assert (code.instructions <= alone).all()
    assert (code.pipes.sum(axis=1) <= 2 * code.instructions + 1e-9).all()  # fp32 is in fma too
    stores = [one.position for one in body.instructions if re.match("st", one.opcode)]
    assert (code.instructions[stores] == 1).all()


SKIPPED = """setp.eq.u32 %p1, %r1, 7; @%p1 bra $over; add.f32 %f4, %f1, %f2;
{work} $over: st.global.f32 [%rd1], %f4;"""


def branch_of(body: Body) -> int:
    return next(one.position for one in body.instructions if one.base == "bra")


@pytest.mark.parametrize(
    ("work", "predicated"),
    [
        ("add.f32 %f4, %f4, %f3; st.global.f32 [%rd1+4], %f4;", True),
        ("add.f32 %f4, %f4, %f3;" * 20, False),
        ("bar.sync 0;", False),
        ("setp.lt.f32 %p2, %f4, %f3; @%p2 bra $over; mul.f32 %f4, %f4, %f4;", True),
        # Of two conditions the second is not waited for: memory is not touched early.
        ("setp.lt.f32 %p2, %f4, %f3; @%p2 bra $over; st.global.f32 [%rd1+8], %f4;", False),
        ("$again: sub.f32 %f4, %f4, %f3; setp.gt.f32 %p2, %f4, %f3; @%p2 bra $again;", False),
    ],
)
def test_a_short_way_round_is_predicated(work: str, predicated: bool) -> None:
    """Its instructions are issued whenever the branch would have been, and the branch never is."""
    body = body_of(SKIPPED.format(work=work).replace(";;", ";"))
    code, at = machine_code(body), branch_of(body)
    assert code.instructions[at] == (0.0 if predicated else 1.0)
    assert code.issued_with[at + 1] == (at if predicated else at + 1)
    assert (code.issued_with[: at + 1] == np.arange(at + 1)).all()


@pytest.mark.parametrize(
    ("before", "text", "instructions"),
    [
        ("mov.u32 %r1, %ctaid.x;", SKIPPED, 1.0),
        ("mov.u32 %r1, %tid.x;", SKIPPED, 3.0),
        ("ld.global.u32 %r1, [%rd1];", SKIPPED, 3.0),
        # Nobody is met where the kernel ends, nor in a loop that lanes leave.
        ("mov.u32 %r1, %tid.x;", SKIPPED.replace("st.global.f32 [%rd1], %f4;", "ret;"), 1.0),
        ("mov.u32 %r1, %tid.x; $again:", SKIPPED.replace("$over:", "bra $again; $over:"), 1.0),
    ],
)
def test_lanes_that_part_meet_again(before: str, text: str, instructions: float) -> None:
    """BSSY and BSYNC beside the branch itself."""
    body = body_of(before + text.format(work="add.f32 %f4, %f4, %f3;" * 20))
    assert machine_code(body).instructions[branch_of(body)] == instructions


@pytest.mark.parametrize(("high", "long"), [(0.0, True), (1.0, False)])
def test_divisions_of_zero_take_their_long_way(high: float, long: bool) -> None:
    text = HEAD + (
        "setp.gt.f32 %p1, %f1, 0f00000000;\ndiv.rn.f32 %f4, %f1, %f2;\n"
        "setp.gt.f32 %p2, %f4, 0f3F000000;\n@%p2 bra $over;\nmembar.gl;\n$over:\n"
        "st.global.f32 [%rd1], %f4;\nret;\n}\n"
    )
    module = read_module(text)
    hint = PointerHint(64, "uniform", min(0.25, high), high)
    launch = Launch.of(4, 64, 0, {"0": hint, "1": 64})
    found = analyse(module, None, launch, load_gpu("rtx-2080-ti"), analysis="executed")
    counts = found.executed.functions["k"]
    (division,) = machine_code(module.functions[0].body).divisions
    assert counts.constant_transactions[division] == (8.0 if long else 0.0)
    assert found.activity.constant_transactions == 0.0
    _, pipes = machine_code(module.functions[0].body).issued(counts)
    short = machine_code(module.functions[0].body).pipes[division]
    assert pipes[division].sum() == pytest.approx(8.0 * (short.sum() + (17.0 if long else 0.0)))
