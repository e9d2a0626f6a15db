"""Which kernels are shown to compute the same under another launch, and why others are not."""

from __future__ import annotations

import pytest

from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from wattcast.features.invariance import doubt
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

HEAD = table("bodies", "invariance")["head"]
PLACE = "mad.lo.s32 %r5, %r2, %r3, %r4;"
STORE = """mul.wide.s32 %rd2, %r5, 4;
\tadd.s64 %rd3, %rd1, %rd2;
\tst.global.u32 [%rd3], %r1;
\tret;
"""


def reason(body: str, base: Launch, other: Launch, *, strides: bool = False) -> str | None:
    module = read_module(HEAD + "\t" + body + "\n\t" + STORE + "}\n")
    found = doubt(module, module.kernel(), base, other, strides=strides)
    return None if found is None else found.reason


def line(blocks: int, threads: int) -> Launch:
    return Launch.of(blocks, threads)


SAME = {
    "the place as nvcc writes it": PLACE,
    "the place times a pitch, put together later": """mul.lo.s32 %r10, %r2, %r3;
        mul.lo.s32 %r11, %r10, 12;
        mad.lo.s32 %r5, %r4, 12, %r11;""",
    "the place in 64 bits": """mul.wide.u32 %rd5, %r2, %r3;
        cvt.u64.u32 %rd6, %r4;
        add.s64 %rd7, %rd5, %rd6;
        cvt.u32.u64 %r5, %rd7;""",
    "a loop over neighbours": PLACE
    + """
        mov.u32 %r12, 0;
        LOOP:
        add.s32 %r12, %r12, 1;
        setp.lt.s32 %p1, %r12, %r5;
        @%p1 bra LOOP;""",
    "a tainted start that is carried round": """mul.lo.s32 %r10, %r2, %r3;
        mov.u32 %r12, 0;
        LOOP:
        add.s32 %r10, %r10, 1;
        add.s32 %r12, %r12, 1;
        setp.lt.s32 %p1, %r12, %r1;
        @%p1 bra LOOP;
        add.s32 %r5, %r10, %r4;""",
    "the lane": "and.b32 %r20, %r4, 31;\n" + PLACE + "add.s32 %r5, %r5, %r20;",
    "a shuffle in whole warps": PLACE
    + "shfl.sync.bfly.b32 %r21, %r5, 1, 31, -1; add.s32 %r5, %r5, %r21;",
    "all threads of the grid": """mov.u32 %r22, %nctaid.x;
        mul.lo.s32 %r23, %r22, %r3;
        mad.lo.s32 %r5, %r2, %r3, %r4;
        add.s32 %r5, %r5, %r23;""",
}

OTHER = {
    "a size in the code": ("mad.lo.s32 %r5, %r2, 256, %r4;", "along x is in the code: 256"),
    "a size in the code, as a shift": (
        "shl.b32 %r10, %r2, 8; or.b32 %r5, %r10, %r4;", "%ctaid.x"),
    "the block alone": ("mov.u32 %r5, %r2;", "%ctaid.x"),
    "the thread of the block": ("mov.u32 %r5, %r4;", "%ctaid.x, %ntid.x"),
    "a guard on the thread": (
        PLACE + "setp.ne.s32 %p1, %r4, 0; @%p1 ret;", "whether a thread goes on"),
    "a predicated store": (
        PLACE + "setp.ne.s32 %p1, %r4, 0; @%p1 st.global.u32 [%rd1], %r1;", "whether a thread"),
    "what is stored": (PLACE + "st.global.u32 [%rd1], %r2;", "what is stored"),
    "shared memory": (PLACE + "st.shared.u32 [tile], %r1;", "share memory"),
    "a barrier": (PLACE + "bar.sync 0;", "of a block work together"),
    "who comes first": (
        PLACE + "atom.global.add.u32 %r30, [%rd1], 1; add.s32 %r5, %r5, %r30;", "comes first"),
    "a carry": (
        PLACE + "add.cc.u32 %r31, %r2, -1; addc.u32 %r32, 0, 0; add.s32 %r5, %r5, %r32;",
        "depends on"),
    "a clamped difference": (
        "cvt.sat.u32.s32 %r10, %r4; mad.lo.s32 %r5, %r2, %r3, %r10;", "depends on"),
    "a rounded place": (
        "cvt.rn.f32.s32 %f1, %r4; mov.b32 %r10, %f1; mad.lo.s32 %r5, %r2, %r3, %r10;",
        "depends on"),
    "a factor that changes between two uses": (
        """mov.u32 %r12, 1;
        LOOP:
        mul.lo.s32 %r13, %r2, %r3;
        mul.lo.s32 %r13, %r13, %r12;
        add.s32 %r12, %r12, 1;
        mad.lo.s32 %r5, %r4, %r12, %r13;
        setp.lt.s32 %p1, %r12, 3;
        @%p1 bra LOOP;""", "depends on"),
    "an unknown instruction": (PLACE + "frobnicate.u32 %r5, %r5;", "is not known"),
    "a fence": (PLACE + "membar.gl;", "orders"),
    "the clock": (PLACE + "mov.u32 %r33, %clock; st.global.u32 [%rd1], %r33;", "%clock"),
}  # fmt: skip


@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_what_rests_on_the_place_in_the_grid_is_the_same(body: str) -> None:
    assert reason(body, line(64, 256), line(128, 128)) is None
    assert reason(body, line(64, 256), line(64, 256)) is None


@pytest.mark.parametrize(("body", "told"), OTHER.values(), ids=OTHER)
def test_what_rests_on_the_block_is_not(body: str, told: str) -> None:
    found = reason(body, line(64, 256), line(128, 128))
    assert found is not None
    assert told in found
    assert reason(body, line(64, 256), line(64, 256)) is None


def test_warps_must_stay_whole() -> None:
    for name in ("the lane", "a shuffle in whole warps"):
        assert reason(SAME[name], line(64, 256), line(1024, 16)) is not None
        assert reason(SAME[name], line(1024, 16), line(64, 256)) is not None


def test_a_stride_over_the_grid_needs_as_many_threads_unless_the_user_says_so() -> None:
    body = SAME["all threads of the grid"]
    assert "%nctaid.x" in (reason(body, line(64, 256), line(65, 256)) or "")
    assert reason(body, line(64, 256), line(65, 256), strides=True) is None


def test_blocks_that_stay_may_share_memory() -> None:
    body = PLACE + "st.shared.u32 [tile], %r4; bar.sync 0; ld.shared.u32 %r5, [tile];"
    assert reason(body, line(64, 256), line(65, 256)) is None


def test_places_that_could_wrap_are_not_followed() -> None:
    found = reason(PLACE, line(1 << 23, 256), line(1 << 24, 128))
    assert found is not None
    assert "threads along an axis" in found


def test_functions_that_are_called_are_looked_into() -> None:
    text = stored_ptx("places_in_a_function")
    for what, same in (("7", True), ("%tid.x", False)):
        module = read_module(text.replace("WHAT", what))
        found = doubt(module, module.kernel(), line(2, 64), line(4, 32))
        assert (found is None) == same
