"""Products of matrices by mma, wgmma and tcgen05 in all their types: the engine as the scalar
reference interpreter has them, which shares no code with it, and as numpy has some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.features.execution_kernels import BASE
from tests.reference.machine import run as interpret
from tests.reference.memory import buffer_addresses
from wattcast.features.execution import ExactMemory, execute
from wattcast.features.execution.values import eight_bit_values
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

HEAD = ".version 9.0\n.target sm_120a\n.address_size 64\n"
Words = np.ndarray[Any, np.dtype[np.uint32]]


def both(text: str, given: dict[str, Words], out: int, block: int = 32) -> tuple[Words, Words]:
    """What the engine and the interpreter leave in ``out``; their counts of shared memory agree."""
    arguments = {"out": np.zeros(out, dtype=np.uint32), **given}
    wanted = interpret(text, "k", (1,), (block,), arguments)
    module, places = read_module(text), buffer_addresses(arguments)
    assert places["out"] == BASE
    launch = Launch.of(1, block, 0, dict(places))
    memory = ExactMemory({places[name]: value for name, value in arguments.items()})
    ran = execute(module.kernel("k"), module, launch, exact=memory, effort=None)
    assert ran.diagnostics == ()
    counts = ran.functions["k"]
    for one in wanted.per_instruction:
        assert counts.warp_executions[one.index] == one.warp_executions, one.opcode
        assert counts.shared_transactions[one.index] == one.shared_transactions, one.opcode
    return ran.contents[BASE].view(np.uint32), wanted.memory["out"]


def registers(name: str, count: int) -> str:
    return ", ".join(f"%{name}{i}" for i in range(count))


def product_text(opcode: str, a: int, b: int, rest: str = "", result: int = 4) -> str:
    """Each lane's registers come from ``in`` and go to ``out``: A, B, C and three more words."""
    order = [f"%a{i}" for i in range(a)] + [f"%b{i}" for i in range(b)]
    order += [f"%c{i}" for i in range(result)] + ["%e0", "%e1", "%e2"]
    loads = "\n".join(f"ld.global.b32 {name}, [%i+{4 * i}];" for i, name in enumerate(order))
    stores = "\n".join(f"st.global.b32 [%o+{4 * i}], %d{i};" for i in range(result))
    return f"""{HEAD}.visible .entry k(.param .u64 out, .param .u64 in)
{{ .reg .b32 %a<8>, %b<8>, %c<4>, %d<4>, %e<3>, %t; .reg .b64 %i, %o, %w;
   mov.u32 %t, %tid.x; ld.param.u64 %i, [in]; ld.param.u64 %o, [out];
   mul.wide.u32 %w, %t, {4 * len(order)}; add.u64 %i, %i, %w;
   mul.wide.u32 %w, %t, {4 * result}; add.u64 %o, %o, %w;
   {loads}
   {opcode} {{{registers("d", result)}}}, {{{registers("a", a)}}}, {{{registers("b", b)}}},
       {{{registers("c", result)}}}{rest};
   {stores}
   ret; }}"""


def halves(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    found: Words = random.uniform(-2, 2, (*shape, 2)).astype("f2").view(np.uint32)[..., 0]
    return found


def bfloats(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    pairs = random.uniform(-2, 2, (*shape, 2)).astype("f4").view("u4") >> 16
    found: Words = pairs[..., 0] | pairs[..., 1] << 16
    return found


def singles(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    return random.uniform(-2, 2, shape).astype("f4").view(np.uint32)


def tensor_floats(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    return singles(random, shape) & np.uint32(0xFFFFE000)


def bits(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    return random.integers(0, 1 << 32, shape, dtype=np.uint32)


def eights(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    """Bytes that are numbers in both 8-bit floats."""
    pieces = random.integers(0, 0x78, (*shape, 4), dtype=np.uint8)
    signs = random.integers(0, 2, (*shape, 4), dtype=np.uint8) << 7
    found: Words = (pieces | signs).view(np.uint32)[..., 0]
    return found


def pairs_of_four(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    """Metadata: in each four bits two places, the first below the second."""
    codes = np.array([0x4, 0x8, 0xC, 0x9, 0xD, 0xE], dtype=np.uint64)
    chosen = codes[random.integers(0, 6, (*shape, 8))] << (4 * np.arange(8, dtype=np.uint64))
    found: Words = chosen.sum(axis=-1).astype(np.uint32)
    return found


def ones_of_two(random: np.random.Generator, shape: tuple[int, ...]) -> Words:
    codes = np.array([0x4, 0xE], dtype=np.uint64)
    chosen = codes[random.integers(0, 2, (*shape, 8))] << (4 * np.arange(8, dtype=np.uint64))
    found: Words = chosen.sum(axis=-1).astype(np.uint32)
    return found


Draw = Callable[[np.random.Generator, tuple[int, ...]], Words]
SCALE = "{%e1}, {BYTE, PLACE}, {%e2}, {BYTE, PLACE}"
FORMS: list[tuple[str, int, int, Draw, Draw, str, Draw]] = [
    ("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, halves, singles, "", bits),
    ("m16n8k64.row.col.s32.s4.u4.s32", 4, 2, bits, bits, "", bits),
    ("m16n8k256.row.col.s32.b1.b1.s32.and.popc", 4, 2, bits, bits, "", bits),
    ("m16n8k128.row.col.s32.b1.b1.s32.xor.popc", 2, 1, bits, bits, "", bits),
    *(
        (f"kind::f8f6f4.m16n8k32.row.col.f32.{a}.{b}.f32", 4, 2, eights, singles, "", bits)
        for a, b in (("e2m1", "e3m2"), ("e2m3", "e2m1"), ("e3m2", "e4m3"), ("e5m2", "e2m3"))
    ),
    *(
        ("sp::ordered_metadata.m16n8k32.row.col.f32.f16.f16.f32", 4, 4, halves, singles,
         f", %e0, {selector}", pairs_of_four)
        for selector in (0, 1)
    ),
    *(
        ("sp.m16n8k16.row.col.f32.bf16.bf16.f32", 2, 2, bfloats, singles, f", %e0, {selector}",
         pairs_of_four)
        for selector in range(4)
    ),
    ("sp.m16n8k8.row.col.f32.tf32.tf32.f32", 2, 2, tensor_floats, singles, ", %e0, 3", ones_of_two),
    ("sp.m16n8k16.row.col.f32.tf32.tf32.f32", 4, 4, tensor_floats, singles, ", %e0, 1",
     ones_of_two),
    ("sp.m16n8k32.row.col.s32.s8.u8.s32", 2, 2, bits, bits, ", %e0, 1", pairs_of_four),
    ("sp.m16n8k64.row.col.s32.u8.s8.s32", 4, 4, bits, bits, ", %e0, 0", pairs_of_four),
    ("sp.m16n8k64.row.col.s32.s4.s4.s32", 2, 2, bits, bits, ", %e0, 1", pairs_of_four),
    ("sp::ordered_metadata.m16n8k128.row.col.s32.u4.s4.s32", 4, 4, bits, bits, ", %e0, 0",
     pairs_of_four),
    ("sp::ordered_metadata.kind::f8f6f4.m16n8k64.row.col.f32.e4m3.e2m1.f32", 4, 4, eights,
     singles, ", %e0, 0", pairs_of_four),
    *(
        ("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e5m2.e2m3.f32.ue8m0", 4,
         2, eights, singles, ", " + SCALE.replace("BYTE", byte).replace("PLACE", place), bits)
        for byte, place in (("0", "0"), ("3", "1"))
    ),
    *(
        ("kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0", 4, 2,
         bits, singles, ", " + SCALE.replace("BYTE", byte).replace("PLACE", "1"), bits)
        for byte in "02"
    ),
    ("kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3", 4, 2,
     bits, singles, ", " + SCALE.replace("BYTE", "0").replace("PLACE", "0"), bits),
    ("sp::ordered_metadata.kind::mxf4.block_scale.scale_vec::2X.m16n8k128.row.col.f32.e2m1.e2m1"
     ".f32.ue8m0", 4, 4, bits, singles,
     ", %e0, 0, " + SCALE.replace("BYTE", "2").replace("PLACE", "0"), pairs_of_four),
]  # fmt: skip


def drawn(a: int, b: int, factors: Draw, addend: Draw, third: Draw) -> Words:
    """Registers of 32 lanes; scales not far from one."""
    random = np.random.default_rng(7)
    parts = [factors(random, (32, a + b)), addend(random, (32, 4)), third(random, (32, 1))]
    scales = random.integers(0x70, 0x7F, (32, 2, 4), dtype=np.uint8).view(np.uint32)[..., 0]
    return np.concatenate([*parts, scales], axis=1).astype(np.uint32)


@pytest.mark.parametrize(("form", "a", "b", "factors", "addend", "rest", "third"), FORMS)
def test_mma_of_every_type_sparsity_and_scale(
    form: str, a: int, b: int, factors: Draw, addend: Draw, rest: str, third: Draw
) -> None:
    parts = form.split(".")
    at = 1 if parts[0].startswith("sp") else 0
    opcode = ".".join(["mma", *parts[:at], "sync.aligned", *parts[at:]])
    given = drawn(a, b, factors, addend, third)
    found, wanted = both(product_text(opcode, a, b, rest), {"in": given.reshape(-1)}, 32 * 4)
    assert found.tolist() == wanted.tolist()
    assert len(set(found.tolist())) > 100  # not all the same


def test_scaled_fp4_is_what_numpy_multiplies() -> None:
    """Rows of A, columns of B and their scales, put where the PTX ISA says that lanes hold them."""
    random = np.random.default_rng(3)
    a, b = random.integers(0, 16, (16, 64)), random.integers(0, 16, (64, 8))
    by_row, by_column = random.integers(0x40, 0x78, (16, 4)), random.integers(0x40, 0x78, (8, 4))
    given = np.zeros((32, 13), dtype=np.uint64)
    for lane in range(32):
        quad, inner = divmod(lane, 4)
        for i in range(32):  # eight elements of 4 bits to a register
            row, column = quad + 8 * (i // 8 % 2), inner * 8 + i % 8 + i // 16 * 32
            given[lane, i // 8] |= np.uint64(int(a[row, column]) << 4 * (i % 8))
        for i in range(16):
            value = int(b[inner * 8 + i % 8 + i // 8 * 32, quad])
            given[lane, 4 + i // 8] |= np.uint64(value << 4 * (i % 8))
        scales = by_row[quad + 8 * (inner % 2)], by_column[quad]
        for word, four in zip((11, 12), scales, strict=True):
            given[lane, word] = sum(int(x) << 8 * i for i, x in enumerate(four))
    opcode = ("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col"
              ".f32.e2m1.e2m1.f32.ue4m3")  # fmt: skip
    text = product_text(opcode, 4, 2, ", {%e1}, {0, 0}, {%e2}, {0, 0}")
    words = given.astype(np.uint32).reshape(-1)
    found, _ = both(text, {"in": words}, 32 * 4)
    four, scale = eight_bit_values("e2m1"), eight_bit_values("ue4m3")
    wide = np.repeat(scale[by_row], 16, axis=1) * four[a]
    want = wide @ (np.repeat(scale[by_column], 16, axis=1).T * four[b])
    got = found.view("f4").reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert four[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # OCP Microscaling Formats 1.0


def tile_text(threads: int, words: int, declared: str, body: str) -> str:
    """``words`` of ``in`` lie in shared memory ``tile``; %t thread, %o where its results go."""
    return f"""{HEAD.replace("sm_120a", "sm_100a")}
.visible .entry k(.param .u64 out, .param .u64 in)
{{ .reg .pred %p, %q; .reg .b32 %t, %j, %v, %s, %x<8>, %d<32>; .reg .b64 %i, %o, %w, %g<4>;
   .shared .align 1024 .b8 tile[{4 * words}]; .shared .align 8 .b8 done[8];
   .shared .align 4 .b8 home[4];
   {declared}
   mov.u32 %t, %tid.x; ld.param.u64 %i, [in]; ld.param.u64 %o, [out]; mov.u32 %s, tile;
   mov.u32 %j, %t;
FILL:
   mul.wide.u32 %w, %j, 4; add.u64 %w, %i, %w; ld.global.b32 %v, [%w];
   mad.lo.u32 %x0, %j, 4, %s; st.shared.b32 [%x0], %v; add.u32 %j, %j, {threads};
   setp.lt.u32 %p, %j, {words}; @%p bra FILL;
   bar.sync 0;
   {body}
   ret; }}"""


def descriptor(start: int, leading: int, stride: int) -> str:
    """Of a matrix in shared memory that is not swizzled."""
    return hex(start // 16 | leading // 16 << 16 | stride // 16 << 32 | 1 << 46)


@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("selector", [0, 1])
def test_sparse_wgmma(selector: int, from_registers: bool) -> None:
    a = "{%x1, %x2, %x3, %x4}" if from_registers else descriptor(0, 1024, 128)
    give = "" if from_registers else f"mov.u64 %g0, {a};"
    b = descriptor(2048, 128, 512)
    flags = "1, 1, 0" if from_registers else "1, 1, 0, 0"
    body = f"""mad.lo.u32 %x0, %t, 16, %s; ld.shared.v4.b32 {{%x1, %x2, %x3, %x4}}, [%x0];
        mad.lo.u32 %x0, %t, 4, %s; ld.shared.b32 %x5, [%x0+2560]; {give} mov.u64 %g1, {b};
        mov.b32 %d0, 0f3F800000; mov.b32 %d1, 0f40000000; mov.b32 %d2, 0; mov.b32 %d3, %d1;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {{{registers("d", 4)}}},
            {a if from_registers else "%g0"}, %g1, %x5, {selector}, 1, {flags};
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        mul.wide.u32 %w, %t, 16; add.u64 %o, %o, %w;
        st.global.v4.b32 [%o], {{{registers("d", 4)}}};"""
    random = np.random.default_rng(5)
    given = np.concatenate([halves(random, (640,)), pairs_of_four(random, (128,))])
    found, wanted = both(tile_text(128, 768, "", body), {"in": given}, 512, block=128)
    assert found.tolist() == wanted.tolist()
    assert len(set(found.tolist())) > 400


SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_memory_keeps_what_is_stored_in_other_shapes(shape: str) -> None:
    """Stored in rows and read in a shape, stored in the shape and read in rows."""
    per = SHAPES[shape] * 4
    second = ", 8" if shape.endswith("x2") else ""
    name = f"{shape}.x4.b32"
    body = f"""setp.gt.u32 %p, %t, 31; @%p bra MADE;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [home], 32;
MADE:   bar.sync 0;
        ld.shared.b32 %x1, [home]; shr.u32 %x2, %t, 5; shl.b32 %x2, %x2, 21;
        add.u32 %x1, %x1, %x2; mad.lo.u32 %x0, %t, 64, %s;
        ld.shared.v4.b32 {{%d0, %d1, %d2, %d3}}, [%x0];
        ld.shared.v4.b32 {{%d4, %d5, %d6, %d7}}, [%x0+16];
        ld.shared.v4.b32 {{%d8, %d9, %d10, %d11}}, [%x0+32];
        ld.shared.v4.b32 {{%d12, %d13, %d14, %d15}}, [%x0+48];
        tcgen05.st.sync.aligned.32x32b.x16.b32 [%x1], {{{registers("d", 16)}}};
        tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.{name} {{{registers("d", per)}}}, [%x1]{second};
        tcgen05.wait::ld.sync.aligned;
        xor.b32 %d0, %d0, -1;
        tcgen05.st.sync.aligned.{name} [%x1]{second}, {{{registers("d", per)}}};
        tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{registers("d", 16)}}}, [%x1];
        mul.wide.u32 %w, %t, 64; add.u64 %o, %o, %w;
        {"".join(f"st.global.b32 [%o+{4 * i}], %d{i};" for i in range(16))}"""
    given = np.arange(2048, dtype=np.uint32)
    found, wanted = both(tile_text(128, 2048, "", body), {"in": given}, 2048, block=128)
    assert found.tolist() == wanted.tolist()
    changed = np.flatnonzero(found != given)
    assert changed.size == 128  # one register of each thread
    assert (found[changed] == ~given[changed]).all()


def product_of_fifth(a_rows: int, kind: str, code: int, in_memory: bool) -> str:
    """out = A B + A B of 32 columns; A may first be copied to tensor memory."""
    told = 1 << 4 if kind != "i8" else 2 << 4
    told |= code << 7 | code << 10 | 4 << 17 | a_rows // 16 << 24
    a = descriptor(0, 16 * a_rows, 128)
    b = descriptor(32 * a_rows, 512, 128)
    copy = f"mov.u64 %g0, {a};"
    if in_memory:
        copy += "add.u32 %x3, %x1, 64; tcgen05.cp.cta_group::1.128x256b [%x3], %g0;"
    from_ = "[%x3]" if in_memory else "%g0"
    one = "tcgen05.mma.cta_group::1.kind::" + kind
    return f"""setp.gt.u32 %p, %t, 31; @%p bra MADE;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [home], 128;
MADE:   setp.ne.u32 %p, %t, 0; @%p bra HELD; mbarrier.init.shared::cta.b64 [done], 1;
HELD:   bar.sync 0; ld.shared.b32 %x1, [home]; @%p bra WAIT;
        {copy} mov.u64 %g1, {b}; mov.b32 %x2, {told};
        setp.ne.u32 %q, %t, 0;
        {one} [%x1], {from_}, %g1, %x2, %q;
        setp.eq.u32 %q, %t, 0;
        {one} [%x1], {from_}, %g1, %x2, %q;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
WAIT:   mbarrier.try_wait.parity.shared::cta.b64 %p, [done], 0; @!%p bra WAIT;
        tcgen05.fence::after_thread_sync; shr.u32 %x2, %t, 5; shl.b32 %x2, %x2, 21;
        add.u32 %x1, %x1, %x2;
        tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{registers("d", 32)}}}, [%x1];
        tcgen05.wait::ld.sync.aligned;
        mul.wide.u32 %w, %t, 128; add.u64 %o, %o, %w;
        {"".join(f"st.global.b32 [%o+{4 * i}], %d{i};" for i in range(32))}"""


@pytest.mark.parametrize(
    ("kind", "code", "rows", "in_memory"),
    [("f16", 0, 128, False), ("f16", 0, 128, True), ("f16", 1, 64, False), ("tf32", 2, 128, False),
     ("f8f6f4", 0, 128, False), ("f8f6f4", 1, 128, True), ("i8", 1, 128, False)],
)  # fmt: skip
def test_products_in_tensor_memory(kind: str, code: int, rows: int, in_memory: bool) -> None:
    random = np.random.default_rng(11)
    draws: dict[tuple[str, int], Draw] = {
        ("f16", 0): halves, ("f16", 1): bfloats, ("tf32", 2): tensor_floats,
        ("i8", 1): bits,
    }  # fmt: skip
    words = (rows + 32) * 8
    given = draws.get((kind, code), eights)(random, (words,))
    text = tile_text(128, words, "", product_of_fifth(rows, kind, code, in_memory))
    found, wanted = both(text, {"in": given}, 128 * 32, block=128)
    assert found.tolist() == wanted.tolist()
    if (kind, code, rows) != ("f16", 0, 128):
        return
    # Rows in groups of eight, 16 bytes of each beside each other, then the next 16 bytes of k.
    cells = given.view("f2").astype("f8")
    a = cells[: rows * 16].reshape(2, rows, 8).transpose(1, 0, 2).reshape(rows, 16)
    b = cells[rows * 16 :].reshape(2, 32, 8).transpose(1, 0, 2).reshape(32, 16)
    np.testing.assert_allclose(found.view("f4").reshape(128, 32), 2 * a @ b.T, rtol=1e-5, atol=1e-5)
