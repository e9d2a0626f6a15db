"""Single instructions of the reference interpreter against numpy, exact rationals and Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.fixtures.kernels.data import SOURCES, buffer_sizes, materialise, ptx_path
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.reference.fixtures import ptx_text
from tests.reference.machine import PerInstruction, ReferenceResult, run
from tests.reference.memory import buffer_addresses, place_buffers
from tests.reference.parse import parse

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"

Array = np.ndarray[Any, np.dtype[Any]]

FULL = 0xFFFFFFFF


def apply(instruction: str, kinds: str, out: str, *inputs: Array) -> Array:
    """``instruction`` (``%d`` the result, ``%a %b %c`` the sources) on every element.

    ``kinds`` are the types of the sources and, last, of the result, as registers and memory have
    them; ``out`` is the numpy type of the result.
    """
    names = kinds.split()
    letters = "abc"[: len(inputs)]
    lines = ["mov.u32 %i, %tid.x;"]
    registers = [".reg .b32 %i; .reg .b64 %p, %o; .reg .pred %q, %s;"]
    for letter, kind, values in zip((*letters, "d"), names, (*inputs, None), strict=True):
        size = np.dtype(out).itemsize if values is None else values.itemsize
        registers.append(f".reg .{kind} %{letter};")
        address = f"ld.param.u64 %p, [p{letter}]; mul.wide.u32 %o, %i, {size}; add.u64 %p, %p, %o;"
        if values is None:
            lines += [instruction, address, f"st.global.{kind} [%p], %d;"]
        else:
            lines += [address, f"ld.global.{kind} %{letter}, [%p];"]
    parameters = ", ".join(f".param .u64 p{letter}" for letter in (*letters, "d"))
    body = "\n".join([*registers, *lines, "ret;"])
    ptx = f"{HEADER}.visible .entry k({parameters}) {{\n{body}\n}}"
    count = len(inputs[0])
    buffers = {f"p{letter}": values for letter, values in zip(letters, inputs, strict=True)}
    result = run(ptx, "k", (1,), (count,), {**buffers, "pd": np.zeros(count, out)})
    return result.memory["pd"]


random = np.random.Generator(np.random.PCG64(7))

EDGES = np.array([0, 1, 2, 31, 32, 33, 2**31 - 1, 2**31, 2**32 - 1, 0x12345678, 0xFFFF0000], "u4")

U32 = np.concatenate([EDGES, random.integers(0, 2**32, 53, "u4")])

V32 = np.roll(U32, 5)

W32 = np.roll(U32, 11)

S32, T32 = U32.view("i4"), V32.view("i4")

U64 = np.concatenate([EDGES.astype("u8") << np.uint64(31), random.integers(0, 2**64, 53, "u8")])

V64 = np.roll(U64, 3)

INTEGER: list[tuple[str, Callable[[int, int, int], int]]] = [
    ("add.u32 %d, %a, %b;", lambda a, b, c: a + b),
    ("sub.s32 %d, %a, %b;", lambda a, b, c: a - b),
    ("mul.lo.u32 %d, %a, %b;", lambda a, b, c: a * b),
    ("mul.hi.u32 %d, %a, %b;", lambda a, b, c: a * b >> 32),
    ("mad.lo.u32 %d, %a, %b, %c;", lambda a, b, c: a * b + c),
    ("mad.hi.u32 %d, %a, %b, %c;", lambda a, b, c: (a * b >> 32) + c),
    ("and.b32 %d, %a, %b;", lambda a, b, c: a & b),
    ("xor.b32 %d, %a, %b;", lambda a, b, c: a ^ b),
    ("not.b32 %d, %a;", lambda a, b, c: ~a),
    ("cnot.b32 %d, %a;", lambda a, b, c: int(a == 0)),
    ("shl.b32 %d, %a, %b;", lambda a, b, c: a << b if b < 32 else 0),
    ("shr.u32 %d, %a, %b;", lambda a, b, c: a >> b if b < 32 else 0),
    ("popc.b32 %d, %a;", lambda a, b, c: bin(a).count("1")),
    ("clz.b32 %d, %a;", lambda a, b, c: 32 - len(bin(a)[2:]) if a else 32),
    ("brev.b32 %d, %a;", lambda a, b, c: sum((a >> i & 1) << 31 - i for i in range(32))),
    ("bfind.u32 %d, %a;", lambda a, b, c: int(math.log2(a)) if a else -1),
    ("bfe.u32 %d, %a, 7, 9;", lambda a, b, c: a >> 7 & 511),
    ("bfi.b32 %d, %a, %b, 28, 9;", lambda a, b, c: b & 0x0FFFFFFF | a << 28),
    ("shf.l.wrap.b32 %d, %a, %b, %c;", lambda a, b, c: ((b << 32 | a) << c % 32) >> 32),
    ("shf.r.clamp.b32 %d, %a, %b, %c;", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("lop3.b32 %d, %a, %b, %c, 0xE8;", lambda a, b, c: a & b | b & c | a & c),
    ("lop3.b32 %d, %a, %b, %c, 0x96;", lambda a, b, c: a ^ b ^ c),
    ("prmt.b32 %d, %a, %b, 0x7031;", lambda a, b, c: (a >> 8 & 255) | (a >> 24) << 8
     | (a & 255) << 16 | (b >> 24) << 24),
    ("dp4a.u32.u32 %d, %a, %b, %c;", lambda a, b, c: c + sum(
        (a >> i & 255) * (b >> i & 255) for i in (0, 8, 16, 24))),
    ("sad.u32 %d, %a, %b, %c;", lambda a, b, c: abs(a - b) + c),
    ("min.u32 %d, %a, %b;", lambda a, b, c: min(a, b)),
    ("setp.hi.u32 %q, %a, %b; selp.b32 %d, %c, %a, %q;", lambda a, b, c: c if a > b else a),
    ("setp.lt.u32 %q|%s, %a, %b; selp.u32 %d, 1, 0, %s;", lambda a, b, c: int(a >= b)),
    ("setp.eq.u32 %q, %a, %b; setp.lt.or.u32 %q, %a, %c, %q; selp.u32 %d, 1, 0, !%q;",
     lambda a, b, c: int(not (a < c or a == b))),
    ("add.cc.u32 %d, %a, %b; addc.u32 %d, %c, 0;", lambda a, b, c: c + (a + b >> 32)),
    ("sub.cc.u32 %d, %a, %b; subc.u32 %d, %c, 0;", lambda a, b, c: c - (a < b)),
    ("mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;",
     lambda a, b, c: a * b + c >> 32),
    ("cvt.u16.u32 %d, %a; cvt.u32.u16 %d, %d;", lambda a, b, c: a & 0xFFFF),
    ("cvt.s32.s8 %d, %a;", lambda a, b, c: (a & 255) - (a & 128) * 2),
    ("cvt.sat.u8.u32 %d, %a;", lambda a, b, c: min(a, 255)),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "oracle"), INTEGER, ids=lambda v: str(v)[:24])
def test_unsigned_and_logic_instructions_wrap_at_32_bits(
    instruction: str, oracle: Callable[[int, int, int], int]
) -> None:
    if "cvt.u16" in instruction:
        instruction = "{ .reg .b16 %h; cvt.u16.u32 %h, %a; cvt.u32.u16 %d, %h; }"
    got = apply(instruction, "b32 b32 b32 b32", "u4", U32, V32, W32)
    rows = zip(U32.tolist(), V32.tolist(), W32.tolist(), strict=True)
    assert got.tolist() == [oracle(*row) & FULL for row in rows]


SIGNED: list[tuple[str, Callable[[int, int], int]]] = [
    ("shr.s32 %d, %a, %b;", lambda a, b: a >> min(b & FULL, 31)),
    ("mul.hi.s32 %d, %a, %b;", lambda a, b: a * b >> 32),
    ("abs.s32 %d, %a;", lambda a, b: abs(a)),
    ("neg.s32 %d, %a;", lambda a, b: -a),
    ("max.s32 %d, %a, %b;", lambda a, b: max(a, b)),
    ("add.sat.s32 %d, %a, %b;", lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("div.s32 %d, %a, %b;", lambda a, b: int(Fraction(a, b)) if b else -1),
    ("rem.s32 %d, %a, %b;", lambda a, b: int(math.fmod(a, b)) if b else a),
    ("bfe.s32 %d, %a, 20, 8;", lambda a, b: ((a >> 20 & 255) ^ 128) - 128),
    ("bfe.s32 %d, %a, 28, 8;", lambda a, b: a >> 28),
    ("setp.ge.s32 %q, %a, %b; selp.s32 %d, %a, %b, %q;", lambda a, b: max(a, b)),
    ("bfind.s32 %d, %a;", lambda a, b: len(bin(a if a >= 0 else ~a)[2:]) - 1
     if a not in (0, -1) else -1),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "oracle"), SIGNED, ids=lambda v: str(v)[:24])
def test_signed_instructions(instruction: str, oracle: Callable[[int, int], int]) -> None:
    got = apply(instruction, "b32 b32 b32", "i4", S32, T32)
    rows = zip(S32.tolist(), T32.tolist(), strict=True)
    assert got.tolist() == [(oracle(*row) + 2**31) % 2**32 - 2**31 for row in rows]


def test_wide_products_and_64_bit_integers() -> None:
    got = apply("mul.wide.s32 %d, %a, %b;", "b32 b32 b64", "i8", S32, T32)
    np.testing.assert_array_equal(got, S32.astype("i8") * T32)
    got = apply("mul.hi.u64 %d, %a, %b;", "b64 b64 b64", "u8", U64, V64)
    assert got.tolist() == [a * b >> 64 for a, b in zip(U64.tolist(), V64.tolist(), strict=True)]
    got = apply("shr.s64 %d, %a, 9;", "b64 b64", "i8", U64.view("i8"))
    np.testing.assert_array_equal(got, U64.view("i8") >> 9)
    swap = "{ .reg .b32 %l, %h; mov.b64 {%l, %h}, %a; mov.b64 %d, {%h, %l}; }"
    got = apply(swap, "b64 b64", "u8", U64)
    np.testing.assert_array_equal(got, U64 << np.uint64(32) | U64 >> np.uint64(32))


SINGLES = np.concatenate(
    [
        np.array([0, -0.0, 1, -1, 0.5, 3, np.inf, -np.inf, np.nan, 1e-45, 1e-38, 3.4e38], "f4"),
        random.normal(0, 1, 26).astype("f4"),
        np.exp(random.uniform(-87, 88, 26)).astype("f4"),
    ]
)

OTHERS = np.roll(SINGLES, 7)


def same(got: Array, want: Array) -> None:
    """Equal bits, any NaN equal to any other."""
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    kind = {2: "u2", 4: "u4", 8: "u8"}[want.itemsize]
    np.testing.assert_array_equal(got[~nan].view(kind), want[~nan].view(kind))


@pytest.mark.parametrize(
    ("name", "function", "kind", "dtype"),
    [
        (name, function, kind, dtype)
        for kind, dtype in (("f32", "f4"), ("f64", "f8"), ("f16", "f2"))
        for name, function in (
            ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide),
        )
        if (name, kind) != ("div.rn", "f16")  # PTX has no half-precision division
    ],
)  # fmt: skip
def test_float_arithmetic_is_that_of_ieee_754(
    name: str, function: Callable[[Array, Array], Array], kind: str, dtype: str
) -> None:
    with np.errstate(all="ignore"):
        a, b = SINGLES.astype(dtype), OTHERS.astype(dtype)
        want = function(a, b)
    registers = "b16 b16 b16" if kind == "f16" else f"{kind} {kind} {kind}"
    same(apply(f"{name}.{kind} %d, %a, %b;", registers, dtype, a, b), want)


def test_minimum_and_comparison_know_nan() -> None:
    with np.errstate(all="ignore"):
        want = np.fmin(SINGLES, OTHERS)
    got = apply("min.f32 %d, %a, %b;", "f32 f32 f32", "f4", SINGLES, OTHERS)
    np.testing.assert_array_equal(got, want)
    for name, ordered in (("lt", np.less), ("equ", np.equal), ("neu", np.not_equal)):
        got = apply(f"setp.{name}.f32 %q, %a, %b; selp.u32 %d, 1, 0, %q;", "f32 f32 b32", "u4",
                    SINGLES, OTHERS)  # fmt: skip
        unordered = np.isnan(SINGLES) | np.isnan(OTHERS)
        answer = ordered(SINGLES, OTHERS)
        np.testing.assert_array_equal(got, answer | unordered if name[-1] == "u" else answer)


@pytest.mark.parametrize(
    ("instruction", "function"),
    [
        ("ex2.approx.f32", np.exp2), ("lg2.approx.f32", np.log2), ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos), ("rsqrt.approx.f32", lambda a: 1 / np.sqrt(a)),
        ("sqrt.rn.f32", np.sqrt), ("rcp.rn.f32", lambda a: 1 / a), ("tanh.approx.f32", np.tanh),
    ],
)  # fmt: skip
def test_special_functions(instruction: str, function: Callable[[Array], Array]) -> None:
    with np.errstate(all="ignore"):
        want = function(SINGLES.astype("f8")).astype("f4")
    got = apply(f"{instruction} %d, %a;", "f32 f32", "f4", SINGLES)
    np.testing.assert_allclose(got, want, rtol=1e-7)


def test_packed_halves() -> None:
    a, b, c = (random.uniform(-2, 2, 64).astype("f2") for _ in "abc")
    want = np.float16(a.astype("f4") * b.astype("f4") + c.astype("f4"))
    got = apply("fma.rn.f16x2 %d, %a, %b, %c;", "b32 b32 b32 b32", "u4",
                a.view("u4"), b.view("u4"), c.view("u4"))  # fmt: skip
    np.testing.assert_allclose(got.view("f2"), want, rtol=1e-3, atol=1e-3)


def test_sub_word_loads_extend_as_their_type_says() -> None:
    data = np.arange(0, 256, 4, dtype="u1")
    for kind, view in (("s8", "i1"), ("u8", "u1")):
        ptx = f"""{HEADER}.visible .entry k(.param .u64 pa, .param .u64 pd) {{
            .reg .b32 %i, %v; .reg .b64 %a, %d, %o;
            mov.u32 %i, %tid.x; ld.param.u64 %a, [pa]; ld.param.u64 %d, [pd];
            cvt.u64.u32 %o, %i; add.u64 %a, %a, %o; ld.global.{kind} %v, [%a];
            mul.wide.u32 %o, %i, 4; add.u64 %d, %d, %o; st.global.b32 [%d], %v; ret; }}"""
        result = run(ptx, "k", (1,), (64,), {"pa": data, "pd": np.zeros(64, "i4")})
        np.testing.assert_array_equal(result.memory["pd"], data.view(view))


JUMP_TABLE = stored_ptx("jump_table")


def test_a_jump_table_sends_each_lane_its_way() -> None:
    result = run(JUMP_TABLE, "k", (1,), (7,), {"p": np.zeros(7, "u4")})
    assert result.memory["p"].tolist() == [10, 20, 30, 10, 20, 30, 10]
    stores = [r for r in result.per_instruction if r.opcode == "st.global.u32"]
    assert [(r.warp_executions, r.active_lanes) for r in stores] == [(1, 7)]


# --- Counts of the reference interpreter against numbers worked out by hand


def of(result: ReferenceResult, start: str) -> list[PerInstruction]:
    """The executed instructions whose opcode begins with ``start``."""
    return [row for row in result.per_instruction
            if row.opcode.startswith(start) and row.warp_executions]  # fmt: skip


def total(rows: list[PerInstruction], field: str) -> int:
    return sum(getattr(row, field) for row in rows)


def fixture(name: str, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any) -> Any:
    """A fixture kernel on sm_70 (the first target with it) with arguments of one's own."""
    kernel = next(k for k in KERNELS if k.name == name)
    target = "sm_80" if name.startswith(("mma", "async")) else "sm_70"
    return run(ptx_text(kernel.source, target), kernel.entry, grid, block, arguments)


def test_an_asynchronous_copy_counts_on_both_sides() -> None:
    result = fixture(
        "async_copy", (1,), (64,), out=np.zeros(64, np.float32),
        **{"in": np.zeros((2, 64, 4), np.float32)}, tiles=np.int32(2),
    )  # fmt: skip
    copies = of(result, "cp.async.cg")
    # Two tiles, two warps, 512 bytes per warp: 16 sectors, a transaction per quarter warp.
    assert total(copies, "sectors") == 2 * 2 * 16
    assert total(copies, "shared_transactions") == 2 * 2 * 4


def test_ldmatrix_takes_one_transaction_per_matrix_unless_rows_collide() -> None:
    half = np.float16
    padded = fixture(
        "mma_inline", (1,), (32,), c=np.zeros((16, 8), np.float32), a=np.zeros((16, 16), half),
        b=np.zeros((16, 8), half), k=np.int32(16),
    )  # fmt: skip
    # Rows 48 bytes apart hit different banks: x4 and x2 matrices.
    assert [r.shared_transactions for r in of(padded, "ldmatrix")] == [4, 2]
    bits = np.uint16
    packed = fixture("mma_bf16", (1,), (32,), c=np.zeros((16, 8), np.float32),
                     a=np.zeros((16, 16), bits), b=np.zeros((16, 8), bits))  # fmt: skip
    # Rows 32 bytes apart: rows r and r + 4 share banks. Rows 16 bytes apart: none do.
    assert [r.shared_transactions for r in of(packed, "ldmatrix")] == [8, 2]


BRANCHES = stored_ptx("branches_and_a_call")


def test_lanes_meet_again_at_the_smallest_program_counter() -> None:
    result = run(BRANCHES, "branches", (1,), (40,), {"p": np.zeros(40, np.uint32)})
    assert result.memory["p"].tolist() == [0, 2, 4, 6, 8, *range(105, 140)]
    counts = {(r.opcode, r.line): (r.warp_executions, r.active_lanes)
              for r in result.per_instruction}  # fmt: skip
    by_opcode = {opcode: value for (opcode, _), value in counts.items()}
    # 40 threads are two warps; the second warp holds no small thread.
    assert by_opcode["mul.wide.u32"] == (2, 40)
    assert by_opcode["bra"] == (2, 5)
    assert by_opcode["bra.uni"] == (2, 35)
    assert by_opcode["call.uni"] == (1, 5)
    assert by_opcode["st.param.b32"] == (1, 5)
    functions = {r.function for r in result.per_instruction}
    assert functions == {"branches", "twice"}
    # Both stores run by both warps; the guard decides who is active, and what memory sees.
    stores = of(result, "st.global")
    assert [(s.warp_executions, s.active_lanes, s.sectors) for s in stores] == [
        (2, 40, 5), (2, 0, 0),
    ]  # fmt: skip


def test_a_collective_waits_for_the_lanes_it_names() -> None:
    # Lane 0 goes straight to the vote; the others take a way that lies behind it in the text.
    ptx = stored_ptx("vote_behind_its_lanes")
    result = run(ptx, "wait", (1,), (32,), {"p": np.zeros(32, np.uint32)})
    assert set(result.memory["p"].tolist()) == {0xFFE00000}
    (vote,) = of(result, "vote")
    assert (vote.warp_executions, vote.active_lanes) == (1, 32)


# --- Fixture kernels and their launches: complete, and within what every GPU allows


def test_addresses_are_256_byte_aligned_with_a_gap_and_need_no_data() -> None:
    assert list(place_buffers({"a": 4, "b": 256, "c": 257, "d": 1}).values()) == [
        0x7F0000000000, 0x7F0000000200, 0x7F0000000400, 0x7F0000000700,
    ]  # fmt: skip
    for kernel in KERNELS:
        shape = kernel.shapes[0]
        made = buffer_addresses(materialise(kernel.name, shape))
        assert place_buffers(buffer_sizes(shape)) == made


def test_the_committed_ptx_is_what_the_source_list_says() -> None:
    listed = {f"{name}.{target}.ptx" for name, made in SOURCES.items() for target in made}
    folder = ptx_path("copy", "sm_70").parent
    assert {path.name for path in folder.glob("*.ptx")} == listed
    assert {path.stem for path in (folder.parent / "cuda").glob("*.cu")} == set(SOURCES)


def test_every_entry_of_the_ptx_has_launches() -> None:
    launched = {(kernel.source, kernel.entry) for kernel in (*KERNELS, *TENSOR_KERNELS)}
    for source, made in SOURCES.items():
        for target in made:
            program = parse(ptx_path(source, target).read_text())
            entries = {(source, f.name) for f in program.functions.values() if f.is_entry}
            assert entries <= launched
