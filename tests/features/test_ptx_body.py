"""Bodies: statements, operands, scopes, labels."""

from __future__ import annotations

import gc
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import fixture, kernel
from wattcast.features.errors import PtxError
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import (
    Address,
    Body,
    Group,
    Immediate,
    Negated,
    Opaque,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)


def body(text: str) -> Body:
    return read_module(kernel(text)).kernel().body


def operands(text: str, declare: str = "") -> tuple[Operand, ...]:
    """Operands of one statement whose opcode is ``op``."""
    return body(f"{declare} op {text};").instructions[0].operands


R1, R2 = Register("%r1"), Register("%r2")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/usr/local/cuda-12.9/targets/x86_64-linux/include/crt/mma.hpp", 7),
        ("/x/site-packages/nvidia/cuda_nvcc/include/crt/mma.hpp", 7),
        ("/home/me/cuda/tile.h", 9),
        ("/home/me/include/tile.h", 9),
    ],
)
def test_what_a_header_of_cuda_does_stands_where_the_code_calls_it(path: str, line: int) -> None:
    """Also through two calls; headers of one's own keep their lines. ``.file`` may come last."""
    found = read_module(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n.loc 1 7 3\n"
        ".loc 2 8 1, function_name $L__info_string1, inlined_at 1 7 3\n"
        ".loc 2 9 1, function_name $L__info_string0, inlined_at 2 8 1\nbar.sync 0;\nret;\n}\n"
        f'.file 1 "k.cu"\n.file 2 "{path}"\n'
    )
    (place,) = {one.location for one in found.kernel().body.instructions}
    assert place is not None
    assert (place.file, place.line) == (1 if line == 7 else 2, line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r1, %r2", (R1, R2)),
        ("%r1,%r2", (R1, R2)),
        ("%r1 ,\n\t%r2 /* , %r3 */", (R1, R2)),
        ("%tid.x, %clock64, %envreg3", tuple(map(Special, ("%tid.x", "%clock64", "%envreg3")))),
        ("%lanemask_lt, %dynamic_smem_size, %globaltimer, %laneid, %warpid, %nctaid.z",
         tuple(map(Special, ("%lanemask_lt", "%dynamic_smem_size", "%globaltimer", "%laneid",
                             "%warpid", "%nctaid.z")))),
        ("%tidy, %SP, %clocks", tuple(map(Register, ("%tidy", "%SP", "%clocks")))),
        ("[%rd1], [%rd1+8], [ %rd1 + -4 ], [%rd1-4]",
         tuple(Address(Register("%rd1"), n) for n in (0, 8, -4, -4))),
        ("[buf], [buf+0x10], [64], buf+8, buf",
         (Address(Symbol("buf")), Address(Symbol("buf"), 16), Address(None, 64),
          Symbol("buf", 8), Symbol("buf"))),
        ("{%r1, _, 3}", (Vector((R1, Symbol("_"), Immediate(3, "3"))),)),
        ("%r1|%r2, !%p1", (Pair(R1, R2), Negated(Register("%p1")))),
        ("_|%r2", (Pair(Symbol("_"), R2),)),
        ("(%r1), f, (), (a, %r2)",
         (Group((R1,)), Symbol("f"), Group(()), Group((Symbol("a"), R2)))),
        ("{%r1,%r2,%r1,%r2}, [tex, {%r1, %r2}]",
         (Vector((R1, R2, R1, R2)), Address(Symbol("tex"), 0, (R1, R2)))),
        ("[tex, smp, {%r1}]", (Address(Symbol("tex"), 0, (Symbol("smp"), R1)),)),
        ("[%rd1, {%r1, %r2}], [%r1+8]",
         (Address(Register("%rd1"), 0, (R1, R2)), Address(R1, 8))),
    ],
)  # fmt: skip
def test_operands(text: str, expected: tuple[Operand, ...]) -> None:
    found = operands(text)
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-1", -1), ("42U", 42), ("0x1F", 31), ("0XffffffffU", 0xFFFFFFFF), ("017", 15),
        ("0b1011", 11), ("-0x10", -16), ("18446744073709551615", 2**64 - 1), ("0f3F800000", 1.0),
        ("0F40490FDB", 3.1415927410125732), ("0d3FF8000000000000", 1.5), ("0dBFF0000000000000", -1),
        ("1.0e5", 1e5), ("-2.5", -2.5), ("1.", 1.0), (".5", 0.5), ("3E-2", 0.03),
        ("0f7F800000", math.inf), ("WARP_SZ", 32),
    ],
)  # fmt: skip
def test_literals(text: str, value: float) -> None:
    assert operands(text) == (Immediate(value, text),)
    assert isinstance(operands(text)[0].value, type(value)) or value == -1  # type: ignore[union-attr]


def test_a_nan_keeps_its_bits() -> None:
    (nan,) = operands("0f7FC00001")
    assert isinstance(nan, Immediate)
    assert math.isnan(nan.value)
    assert nan.text == "0f7FC00001"


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1))
def test_integers_of_any_radix_come_back(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    for text in (f"{value}", f"{sign}{size:#x}", f"{sign}{size:#b}", f"{sign}0{size:o}"):
        assert operands(text) == (Immediate(value, text),)


NAMES = st.from_regex(r"%[a-z]{1,3}[0-9]{1,3}", fullmatch=True).filter(
    lambda name: not name.startswith(("%pm", "%clock"))
)
REGISTERS = NAMES.map(Register)
LEAVES = REGISTERS | st.integers(0, 99).map(lambda n: Immediate(n, str(n)))
ADDRESSES = st.builds(
    Address,
    REGISTERS | st.just(Symbol("buf")),
    st.integers(-9999, 9999),
    st.lists(LEAVES, max_size=3).map(tuple),
)
OPERANDS: st.SearchStrategy[Operand] = st.one_of(
    LEAVES,
    ADDRESSES,
    st.lists(LEAVES, min_size=1, max_size=8).map(lambda e: Vector(tuple(e))),
    st.lists(LEAVES, max_size=4).map(lambda e: Group(tuple(e))),
    st.builds(Pair, REGISTERS, REGISTERS),
    REGISTERS.map(Negated),
)


def written(operand: Operand) -> str:
    """An operand as PTX."""
    match operand:
        case Immediate(_, text):
            return text
        case Address(base, offset, coordinates):
            assert base is not None
            inner = f"{base.name}{offset:+d}" if offset else base.name
            if coordinates:
                inner += ", {" + ", ".join(map(written, coordinates)) + "}"
            return f"[{inner}]"
        case Vector(elements):
            return "{" + ", ".join(map(written, elements)) + "}"
        case Group(elements):
            return "(" + ", ".join(map(written, elements)) + ")"
        case Pair(first, second):
            return f"{written(first)}|{written(second)}"
        case Negated(inner_operand):
            return "!" + written(inner_operand)
        case Register(name) | Special(name) | Symbol(name, _):
            return name
        case Opaque(text):
            return text


@settings(deadline=None)
@given(st.lists(OPERANDS, min_size=1, max_size=5), st.sampled_from([", ", ",", " ,\n\t"]))
def test_written_operands_are_read_back(wanted: list[Operand], comma: str) -> None:
    assert operands(comma.join(map(written, wanted))) == tuple(wanted)


# --- scopes -------------------------------------------------------------------------


def test_a_register_of_an_inner_block_gets_its_own_name() -> None:
    found = body(
        ".reg .b32 t, %r<4>; mov.u32 t, %r1;\n"
        "{ .reg .b32 t; .reg .b32 %r<2>; mov.u32 t, %r1; mov.u32 %r3, 0; @t bra x; }\n"
        "{ .reg .b32 t; mov.u32 t, %r1; { .reg .b32 t; neg.s32 t, t; } not.b32 t, t; }\n"
        "x: mov.u32 t, %r1;"
    )
    shown = [
        (
            one.predicate,
            *[operand.name for operand in one.operands if isinstance(operand, Register)],
        )
        for one in found.instructions
    ]
    assert shown == [
        (None, "t", "%r1"),
        (None, "t@1", "%r1@1"),
        (None, "%r3"),
        ("t@1",),
        (None, "t@2", "%r1"),
        (None, "t@3", "t@3"),
        (None, "t@2", "t@2"),
        (None, "t", "%r1"),
    ]
    assert [(one.name, one.length) for one in found.registers] == [
        ("t", 1), ("%r", 4), ("t@1", 1), ("%r@1", 2), ("t@2", 1), ("t@3", 1)
    ]  # fmt: skip


def test_bare_names_are_registers_only_where_declared() -> None:
    found = body("{.reg .f16 low,high;\n mov.b32 {low,high},%r5;} mov.u32 %r1, low;")
    assert found.instructions[0].operands[0] == Vector((Register("low"), Register("high")))
    assert found.instructions[1].operands[1] == Symbol("low")
    ranged = body(".reg .b32 t1<12>; add.s32 t11, t1, t112;").instructions[0].operands
    assert ranged == (Register("t11"), Symbol("t1"), Symbol("t112"))


def test_a_label_of_an_inner_block_gets_its_own_name() -> None:
    found = body(
        "{ bra again; again: bra out; ts: .branchtargets again, out; brx.idx %r1, ts; }\n"
        "{ again: { bra again; } bra out; ts: .branchtargets again, out; brx.idx %r1, ts; }\n"
        "out: bra again; again: ret;"
    )
    targets = [one.operands[-1].name for one in found.instructions[:-1]]  # type: ignore[union-attr]
    assert targets == [
        "again@1", "out", "ts", "again@2", "out", "ts@2", "again"
    ]  # fmt: skip
    assert [(one.name, one.target) for one in found.labels] == [
        ("again@1", 1), ("again@2", 3), ("out", 6), ("again", 7)
    ]  # fmt: skip
    assert found.branch_tables == {"ts": ("again@1", "out"), "ts@2": ("again@2", "out")}


@pytest.mark.parametrize(
    "label", ["BB0_1", "$L__BB0_1", "$L__tmp1", "LBB0_1", "__local_label", "%loop", "L"]
)
def test_labels_of_every_compiler(label: str) -> None:
    found = body(f"{label} : add.s32 %r1, %r1, 1;bra {label};")
    assert found.labels == ((label, 6, 0),)
    assert len(found.instructions) == 2


def test_labels_behind_the_last_instruction() -> None:
    found = body("ret;\n$L__tmp3:\n$L__func_end0:")
    assert [one.target for one in found.labels] == [1, 1]


def test_a_call_with_its_parameter_block() -> None:
    caller = read_module(fixture("sample.sm_75.ptx")).kernel("caller").body
    call = next(one for one in caller.instructions if one.base == "call")
    assert call.operands == (
        Group((Symbol("retval0"),)),
        Symbol("_Z5powerfi"),
        Group((Symbol("param0"), Symbol("param1"))),
    )
    parameters = [one for one in caller.variables if one.space == "param"]
    assert [(one.name, one.bytes) for one in parameters[:3]] == [
        ("param0", 4), ("param1", 4), ("retval0", 4)
    ]  # fmt: skip


def test_rare_statements() -> None:
    found = read_module(fixture("exotic.ptx")).kernel("wide").body
    opcodes = {one.opcode: one for one in found.instructions}
    assert opcodes["mov.u32"].operands == (Register("a@2"), Special("%lanemask_lt"))
    assert opcodes["call"].operands == (Symbol("other"),)
    assert opcodes["future.op.v9"].operands[1] == Opaque("<b>")
    copy = next(one for one in found.instructions if one.base == "cp")
    assert copy.operands == (
        Address(Symbol("mailbox")),
        Address(Symbol("map"), 0, (Register("i"), Register("j"))),
        Address(Symbol("mailbox"), 8),
    )
    assert found.branch_tables == {"ts": ("LOOP", "DONE"), "ct": ("half_of", "other")}
    assert [(v.name, v.space, v.bytes, v.align) for v in found.variables] == [
        ("mailbox", "shared", 16, 8), ("other_box", "shared", 4, 8)
    ]  # fmt: skip
    assert [one.code for one in found.diagnostics] == ["unknown_operand"]


@pytest.mark.parametrize(
    ("text", "code", "instructions"),
    [
        ("unheard.of.u32 %r1, %r2;", None, 1),
        ("add.s32 %r1, ?, 3;", "unknown_operand", 1),
        ("vadd.u32.u32.u32 %r1, %r2.b0, %r3.h1;", "selector_ignored", 1),
        (".unheard 1, 2\nret;", "unknown_directive", 1),
        (".unheard 1, 2; ret;", "unknown_directive", 1),
        (".loc somewhere\nret;", "unknown_directive", 1),
        ("%r1 = 4; ret;", "unparsed_statement", 1),
        (".branchtargets a; ret;", "unknown_directive", 1),
        (".pragma \"used_bytes_mask 1; }\"; ret;", None, 1),
    ],
)  # fmt: skip
def test_the_unknown_is_kept_and_reported(text: str, code: str | None, instructions: int) -> None:
    found = body(text)
    assert len(found.instructions) == instructions
    assert {one.code for one in found.diagnostics} == ({code} if code else set())
    assert all(one.line == 6 for one in found.diagnostics)


def test_warnings_are_bounded() -> None:
    found = body("add.s32 ?;\n" * 1000)
    assert len(found.instructions) == 1000
    assert len(found.diagnostics) == 201
    assert found.diagnostics[-1].code == "more_diagnostics"
    assert "800" in found.diagnostics[-1].detail


@pytest.mark.parametrize("end", ["", "1 2\n3;"])
def test_a_body_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    """The collector stops every thread: in a service it runs as seldom as can be."""
    text = kernel("add.s32 %r1, %r1, %r2;\n" * 2000 + end)
    gc.collect()
    gc.disable()
    try:
        with suppress(PtxError):
            assert len(read_module(text).kernels[0].body.instructions) >= 2000
        assert gc.collect() < 200
    finally:
        gc.enable()
