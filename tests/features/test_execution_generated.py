"""Generated programs: the engine and the reference interpreter agree on counts and memory.

Programs are built from nested ifs, loops with thread-dependent trips, early exits, loads and
stores to private places, shared memory between barriers, and warp shuffles.
"""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.execution_kernels import BASE, kernel
from tests.features.whole_runs import run_whole
from tests.reference.machine import run as run_reference
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

DATA = [10, 11, 12, 13]  # registers the programs compute with
WORDS = 4

_ARITHMETIC = [
    "add.u32 {d}, {a}, {b};", "sub.s32 {d}, {a}, {b};", "mul.lo.u32 {d}, {a}, {b};",
    "xor.b32 {d}, {a}, {b};", "shr.s32 {d}, {a}, 3;", "shl.b32 {d}, {a}, 2;",
    "min.s32 {d}, {a}, {b};", "mad.lo.s32 {d}, {a}, {b}, {c};", "mul.hi.u32 {d}, {a}, {b};",
    "prmt.b32 {d}, {a}, {b}, {c};", "popc.b32 {d}, {a};", "brev.b32 {d}, {a};",
    "bfe.s32 {d}, {a}, 5, 9;", "lop3.b32 {d}, {a}, {b}, {c}, 150;",
    "shf.l.wrap.b32 {d}, {a}, {b}, {c};", "cvt.s32.s8 {d}, {a};",
]  # fmt: skip


class Builder:
    """Turns drawn choices into PTX; labels are numbered."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.labels = 0
        self.lines: list[str] = []

    def register(self) -> str:
        return f"%r{self.draw(st.sampled_from(DATA))}"

    def label(self) -> str:
        self.labels += 1
        return f"$l{self.labels}"

    def condition(self) -> str:
        """A predicate that differs between lanes, warps, or not at all."""
        source = self.draw(st.sampled_from(["%r2", "%r3", "%r2", self.register()]))
        self.lines.append(f"and.b32 %r20, {source}, {self.draw(st.sampled_from([1, 7, 32, 63]))};")
        self.lines.append(f"setp.gt.u32 %p1, %r20, {self.draw(st.integers(0, 9))};")
        return self.draw(st.sampled_from(["%p1", "!%p1"]))

    def simple(self) -> None:
        kind = self.draw(st.integers(0, 9))
        d, a, b, c = (self.register() for _ in range(4))
        guard = ""
        if self.draw(st.integers(0, 4)) == 0:
            guard = f"@{self.condition()} "
        place = 4 * self.draw(st.integers(0, WORDS - 1))
        if kind <= 5:
            line = self.draw(st.sampled_from(_ARITHMETIC)).format(d=d, a=a, b=b, c=c)
        elif kind == 6:
            line = f"st.global.u32 [%rd5+{place}], {a};"
        elif kind == 7:
            line = f"ld.global.u32 {d}, [%rd5+{place}];"
        elif kind == 8:
            line = f"selp.b32 {d}, {a}, {b}, %p1;"
        else:
            line = f"st.shared.u32 [%r21], {a};"
        self.lines.append(guard + line)

    def block(self, depth: int, whole: bool) -> None:
        """Some statements; ``whole`` tells that all threads of the block are here."""
        for _ in range(self.draw(st.integers(1, 4))):
            kind = self.draw(st.integers(0, 7))
            if kind <= 3 or depth == 0:
                self.simple()
            elif kind == 4:
                end = self.label()
                self.lines.append(f"@{self.condition()} bra {end};")
                self.block(depth - 1, False)
                self.lines.append(f"{end}:")
            elif kind == 5:
                other, end = self.label(), self.label()
                self.lines.append(f"@{self.condition()} bra {other};")
                self.block(depth - 1, False)
                self.lines.append(f"bra {end}; {other}:")
                self.block(depth - 1, False)
                self.lines.append(f"{end}:")
            elif kind == 6:
                self.loop(depth, whole)
            elif whole:
                self.lines.append("bar.sync 0; ld.shared.u32 %r11, [%r22]; bar.sync 0;")
                self.lines.append("shfl.sync.bfly.b32 %r12, %r10, 5, 31, -1;")

    def loop(self, depth: int, whole: bool) -> None:
        counter, start = f"%r{24 + depth}", self.label()
        bound = self.draw(st.sampled_from(["3", "5", "lane"]))
        whole = whole and bound != "lane"
        if bound == "lane":
            self.lines.append(f"and.b32 {counter}, %r2, 6;")
        else:
            self.lines.append(f"mov.u32 {counter}, {bound};")
        self.lines.append(f"{start}:")
        self.block(depth - 1, whole)
        self.lines.append(f"sub.s32 {counter}, {counter}, 1;")
        self.lines.append(f"setp.gt.s32 %p2, {counter}, 0; @%p2 bra {start};")


@st.composite
def programs(draw: st.DrawFn) -> str:
    builder = Builder(draw)
    builder.lines.append(f"""
        mul.wide.u32 %rd4, %r5, {4 * WORDS}; add.u64 %rd5, %rd1, %rd4;
        shl.b32 %r21, %r2, 2; xor.b32 %r22, %r21, 4;
        mov.u32 %r10, %r5; mul.lo.u32 %r11, %r5, 40503; not.b32 %r12, %r2; mov.u32 %r13, 77;
        setp.eq.u32 %p1, %r2, 3;
    """)
    builder.block(3, True)
    if draw(st.booleans()):
        builder.lines.append(f"@{builder.condition()} ret;")
        builder.block(1, False)
    builder.lines += [f"st.global.u32 [%rd5+{4 * k}], %r{r};" for k, r in enumerate(DATA)]
    return "\n".join([*builder.lines, "ret;"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=programs(), block=st.sampled_from([32, 48, 64, 65]))
def test_both_interpreters_agree(body: str, block: int) -> None:
    text = kernel(body, declarations=".shared .align 4 .b8 s[512];")
    out = np.zeros(2 * block * WORDS, dtype=np.uint32)
    wanted = run_reference(text, "k", (2,), (block,), {"out": out, "n": np.uint32(5)})
    module = read_module(text)
    launch = Launch.of(2, block, 0, {"out": BASE, "n": 5})
    result, after = run_whole(module.kernel("k"), module, launch, {BASE: out})
    assert result.sampling.completed
    counts = result.functions["k"]
    for one in wanted.per_instruction:
        found = (
            counts.warp_executions[one.index],
            counts.active_lanes[one.index],
            counts.sectors[one.index],
            counts.shared_transactions[one.index],
        )
        expected = (one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions)
        assert found == expected, f"{one.opcode} in line {one.line}"
    np.testing.assert_array_equal(after[BASE].view(np.uint32), wanted.memory["out"])
