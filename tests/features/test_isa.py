"""The facts of the PTX ISA: what `classify` tells, and that a broken table is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.machine_code import find_nvdisasm, machine_lines
from tests.fixtures.tables import rows, table
from wattcast.features.analysis import analyse
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.errors import DataError
from wattcast.features.execution import control, execute, matrix, program
from wattcast.features.execution.context import Context
from wattcast.features.execution.program import Program
from wattcast.features.gpus import load_gpu
from wattcast.features.isa import TABLE, classify, isa, load_isa
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.machine_code import Pipes, machine_code, pipes_of
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Body, Module


@pytest.mark.parametrize(
    ("opcode", "opcode_class", "pipe"),
    rows("isa", "class_and_pipe"),
)
def test_class_and_pipe(opcode: str, opcode_class: str, pipe: str) -> None:
    facts = classify(opcode)
    assert (facts.known, facts.opcode_class, facts.pipe) == (True, opcode_class, pipe)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    rows("isa", "bytes_per_lane"),
)
def test_bytes_per_lane(opcode: str, expected: int) -> None:
    assert classify(opcode).bytes_per_lane == expected


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("fma.rn.f32", 2),
        ("mad.f64", 2),
        ("mad.lo.s32", 0),
        ("add.f64", 1),
        ("fma.rn.bf16x2", 4),
        ("sin.approx.f32", 1),
        ("setp.lt.f32", 0),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2 * 16 * 8 * 16 / 32),
        ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", 0),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 2 * 16 * 16 * 16 / 32),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", 2 * 64 * 128 * 16 / 128),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 2 * 8 * 8 * 4 / 32),
    ],
)
def test_flops_per_lane(opcode: str, flops: float) -> None:
    assert classify(opcode).flops_per_lane == flops


def test_a_copy_names_both_memories() -> None:
    facts = classify("cp.async.bulk.tensor.2d.shared::cluster.global.tile")
    assert (facts.space, facts.source_space) == ("shared", "global")
    back = classify("cp.async.bulk.global.shared::cta.bulk_group")
    assert (back.space, back.source_space) == ("global", "shared")


@given(st.text(max_size=40))
def test_any_text_is_classified_and_unknown_is_said(text: str) -> None:
    facts = classify(text)
    assert facts.opcode == text
    assert facts.known == (facts.category != "unknown") == (facts.pipe != "unknown")
    if not facts.known:
        assert facts.bytes_per_lane == 0
        assert facts.space is None


@pytest.mark.parametrize("opcode", ["", ".", "frobnicate.f32", "cp", "wgmma", "LD.global.f32"])
def test_unknown_opcodes(opcode: str) -> None:
    assert not classify(opcode).known


@given(
    st.sampled_from(sorted(isa().entries)),
    st.lists(st.sampled_from([*sorted(isa().type_bits), "global", "v4", "m16n8k16", "x2"])),
)
def test_every_entry_is_known_under_any_modifiers(opcode: str, modifiers: list[str]) -> None:
    facts = classify(".".join([opcode, *modifiers]))
    assert facts.known
    assert facts.entry.startswith(opcode)
    assert facts.section
    assert facts.sass_expansion >= 0
    assert facts.bytes_per_lane >= 0


TABLE_TEXT = TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('category = "compute"\npipe = "arithmetic"\nflops = 1\nopcodes = ["add"', None, None),
        ('"sub", "subc", "mul"]', '"sub", "sub", "mul"]', "groups.arithmetic.opcodes"),
        ('"sub", "subc", "mul"]', '"sub", "SUB", "mul"]', "groups.arithmetic.opcodes.3"),
        ("f64 = 64\n", "f64 = 0\n", "type_bits.f64"),
        ('f64 = "fp64"', 'f64 = "fp65"', "pipe_rules.arithmetic.f64"),
        ('pipe = "special_function"', 'pipe = "magic"', "groups.special_functions.pipe"),
        ('space = "tensor"', 'space = "moon"', "groups.tensor_memory_load.space"),
        ("weight = 0.4", "weight = -0.4", "expansion.0.weight"),
        ("weight = 0.4", "wieght = 0.4", "expansion.0.wieght"),
        ('opcodes = ["cvta", "isspacep"]', 'opcodes = ["cvta", "isspace"]', "expansion.2.opcodes"),
        ('category = "store"\n', "", "groups.store.category"),
        ("flops = 2\n", "flops = true\n", "groups.multiply_add.flops"),
    ],
)
def test_a_broken_table_is_named_by_key(
    tmp_path: Path, old: str, new: str | None, key: str | None
) -> None:
    assert old in TABLE_TEXT
    path = tmp_path / "isa.toml"
    if new is None:
        path.write_text(TABLE_TEXT, encoding="utf-8")
        assert len(load_isa(path).entries) == len(isa().entries)
        return
    path.write_text(TABLE_TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_isa(path)
    assert caught.value.context["key"] == key
    assert key is not None
    assert key in caught.value.detail


def test_a_table_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "isa.toml"
    path.write_text("pipes = [", encoding="utf-8")
    with pytest.raises(DataError, match=r"isa\.toml is not TOML"):
        load_isa(path)


# --- How far every instruction of the PTX ISA is followed: ``python -m
# tests.features.test_isa`` prints the table

FORMS = Path(__file__).with_name("isa_forms.txt")

HEAD = table("bodies", "isa_forms")["head"]

Followed = Literal["values", "counts", "unknown"]

# Counted, but what they give is not followed.
COUNTS = (
    "mma.sp:", "mma.sp.sync", "mma.sync", "wmma.", "wgmma.mma_async", "ldmatrix", "stmatrix",
    "movmatrix",
)  # fmt: skip

# Not executed at all: their results keep old values, and a warning names them where that matters.
UNKNOWN = (
    "set.gtu.f16x2.f16x2", "atom.global.cas.b128", "== Video", "e4m3x", "e5m2x", "e3m2x", "e2m3x",
    "e2m1x", "ue8m0x",
)  # fmt: skip


class Form(NamedTuple):
    section: str
    text: str

    @property
    def opcode(self) -> str:
        return self.text.split()[0].rstrip(";")


def forms() -> Iterator[Form]:
    section = ""
    for line in FORMS.read_text().splitlines():
        if line.startswith("== "):
            section = line[3:]
        elif line and not line.startswith("#"):
            yield Form(section, line)


@cache
def module_of(form: Form) -> Module:
    return read_module(f"{HEAD}{form.text}\n ret;\n}}\n")


def followed(form: Form) -> Followed:
    """How far the form is followed where all it gives decides something."""
    told: list[Followed] = []

    def unknown(*_: object) -> object:
        told.append("unknown")
        return lambda *_: None

    def counts(context: Context) -> object:
        told.append("counts")
        return lambda *_: None

    with (
        patch.object(program, "_unsupported", unknown),
        patch.object(control, "_unknown", unknown),
        patch.object(matrix, "unfollowed", counts),
        patch.object(program, "is_plain", lambda _: False),
    ):
        Program(module_of(form).kernel("k"), module_of(form))
    return told[0] if told else "values"


def expected(form: Form) -> Followed:
    told = f"{form.text} == {form.section}"
    if any(name in form.text for name in COUNTS):
        return "counts"
    return "unknown" if any(name in told for name in UNKNOWN) else "values"


@pytest.mark.parametrize("form", list(forms()), ids=lambda form: form.text[:70])
def test_every_instruction_is_read_classified_and_followed_as_far_as_told(form: Form) -> None:
    module = module_of(form)
    assert module.diagnostics == ()
    inside = [one.opcode for one in module.kernel("k").body.instructions]
    assert [opcode for opcode in inside if not classify(opcode).known] == []
    assert followed(form) == expected(form)


@pytest.mark.parametrize(
    "form", [form for form in forms() if expected(form) == "unknown"], ids=lambda form: form.opcode
)
def test_what_is_not_executed_is_named_in_a_warning(form: Form) -> None:
    module = module_of(form)
    with patch.object(program, "is_plain", lambda _: False):
        ran = execute(module.kernel("k"), module, Launch.of(1, 32, 0, {}))
    told = [each.detail for each in ran.diagnostics if each.code == "unsupported_instruction"]
    assert len(told) == 1
    assert told[0].split()[0] in form.text


if __name__ == "__main__":
    for each in forms():
        print(f"{followed(each):8} {each.section[:40]:40} {each.text[:90]}")


# --- Machine instructions of PTX in its place: what ptxas joins and drops

MACHINE_HEAD = table("bodies", "machine_code_texts")["head"]

LOADS = 11

CASES = table("bodies", "machine_code")


def body_of(text: str) -> Body:
    module = read_module(MACHINE_HEAD + text.replace(";", ";\n") + "ret;\n}\n")
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
    source = MACHINE_HEAD + text.replace(";", ";\n") + "ret;\n}\n"
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
    text = MACHINE_HEAD + (
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
