"""Random but valid kernels, with a launch and data for them.

``generate(choices)`` builds one; ``program(seed)`` that of a seed. Whatever is generated ends
(loops are counted, gotos run down a step counter, recursion has a depth), keeps to its own memory,
and gives the same result in any order of blocks and warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.generated import accesses
from tests.generated.arithmetic import POOLS, SINGLES, WORDS, predicate, register
from tests.generated.choices import Choices
from tests.generated.writer import Writer

LAUNCHES = (
    ((1, 1, 1), (32, 1, 1)),
    ((1, 1, 1), (7, 1, 1)),
    ((2, 1, 1), (40, 1, 1)),
    ((1, 1, 1), (33, 2, 1)),
    ((2, 2, 1), (5, 3, 2)),
    ((3, 1, 1), (64, 1, 1)),
    ((1, 2, 1), (16, 4, 1)),
    ((1, 1, 2), (100, 1, 1)),
)
"""Grid and block: partial warps, several dimensions, several blocks and warps."""

HEADER = ".version 8.3\n.target sm_90\n.address_size 64\n"
FLOAT_SLOTS = {"f": ("singles", "f32", 4), "g": ("doubles", "f64", 8), "e": ("halves", "b16", 2)}
GOTO_STEPS = 24
BODY = "// body"
END = "// end"
"""Mark where a function's random part begins and ends."""


@dataclass(frozen=True)
class Generated:
    """A kernel ``k`` and its launch; ``seed`` is that of the data."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    seed: int

    @property
    def threads(self) -> int:
        return int(np.prod(self.grid) * np.prod(self.block))

    def arguments(self) -> dict[str, Any]:
        """By parameter name, in order; arrays are buffers."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        threads = self.threads
        warps = int(np.prod(self.grid)) * -(-int(np.prod(self.block)) // 32)
        table = random.integers(0, 2**32, accesses.TABLE_BYTES // 4, "u4")
        table[: len(WORDS)] = WORDS
        values = random.normal(0, 100, 64).astype("f4")
        values[: len(SINGLES)] = np.array(SINGLES, "u4").view("f4")
        random.shuffle(values)
        return {
            "own": random.integers(0, 2**32, (threads, accesses.SLOTS, 4), "u4"),
            "results": np.zeros((threads, 16), "u8"),
            "singles": np.zeros((POOLS["f"], threads), "f4"),
            "doubles": np.zeros((POOLS["g"], threads), "f8"),
            "halves": np.zeros((POOLS["e"] + 2 * POOLS["x"], threads), "f2"),
            "table": table,
            "values": values,
            "counters": np.zeros(accesses.COUNTER_BYTES // 4, "u4"),
            "sums": np.zeros(16, "f4"),
            "warpwords": np.zeros((warps, 8), "u4"),
            "n": np.uint32(random.integers(0, 2**32)),
            "x": np.float32(random.normal()),
        }


PARAMETERS = ", ".join(
    [f".param .u64 {name}" for name in ("own", "results", "singles", "doubles", "halves", "table",
                                        "values", "counters", "sums", "warpwords")]
    + [".param .u32 n", ".param .f32 x"]
)  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """Where statements are generated. ``uniform``: the block is together here; ``budget`` is
    the depth of nesting left; ``callable`` functions may be called; ``spaces`` are reachable;
    ``leave`` are the labels to break or continue to."""

    kernel: bool
    uniform: bool
    budget: int
    callable: tuple[str, ...]
    leave: tuple[str, ...] = ()

    @property
    def spaces(self) -> tuple[str, ...]:
        return ("global", "shared", "local") if self.kernel else ("global", "local")

    def inside(self, *, uniform: bool = False, leave: tuple[str, ...] = ()) -> Scope:
        return Scope(
            self.kernel, self.uniform and uniform, self.budget - 1, self.callable,
            self.leave + leave,
        )  # fmt: skip


def statement(w: Writer, scope: Scope) -> None:
    """One random statement."""
    c = w.choices
    kinds = ["straight", "straight", "own", "table", "straight", "own_atomic", "collective"]
    if scope.kernel:
        kinds += ["shared_atomic", "float_atomic", "warp_atomic"]
        if scope.uniform:
            kinds += ["exchange", "histogram"]
    if scope.budget > 0:
        kinds += ["if", "if", "loop", "uniform_loop", "goto", "switch", "guard_exit"]
    if scope.callable:
        kinds += ["call", "call"]
    if scope.leave:
        kinds += ["leave", "leave"]
    kind = c.pick(kinds)
    if kind == "straight":
        w.straight(c.integer(1, 5))
    elif kind == "own":
        accesses.own_access(w, scope.spaces)
    elif kind == "table":
        accesses.table_load(w)
    elif kind == "own_atomic":
        accesses.own_atomic(w, scope.spaces)
    elif kind == "shared_atomic":
        accesses.shared_atomic(w)
    elif kind == "float_atomic":
        accesses.float_atomic(w)
    elif kind == "warp_atomic":
        accesses.warp_atomic(w)
    elif kind == "collective":
        accesses.collective(w, uniform=scope.uniform)
    elif kind == "exchange":
        accesses.exchange(w)
    elif kind == "histogram":
        accesses.shared_counter(w)
    elif kind == "leave":
        w.emit(f"@{predicate(c)} bra {c.pick(scope.leave)};")
    elif kind == "guard_exit":
        _exit(w, scope)
    elif kind == "call":
        _call(w, c.pick(scope.callable))
    else:
        {"if": _if, "loop": _loop, "uniform_loop": _uniform_loop, "goto": _goto,
         "switch": _switch}[kind](w, scope)  # fmt: skip


def statements(w: Writer, scope: Scope, most: int) -> None:
    for _ in range(w.choices.integer(0 if scope.leave else 1, most)):
        statement(w, scope)


def condition(w: Writer) -> str:
    """A predicate that differs by lane, by data, or not at all."""
    c = w.choices
    kind = c.pick(("data", "lane", "uniform", "warp"))
    if kind == "data":
        return predicate(c)
    source = {"lane": "%laneid", "uniform": "%ctaid.x", "warp": "%warpid"}[kind]
    comparison = c.pick(("lt", "ge", "eq", "ne"))
    w.emit(f"mov.u32 %t0, {source};", f"setp.{comparison}.u32 %w, %t0, {c.integer(0, 20)};")
    return "!%w" if c.chance(30) else "%w"


def _if(w: Writer, scope: Scope) -> None:
    c = w.choices
    otherwise, join = w.new_label(), w.new_label()
    has_else = c.chance(50)
    w.emit(f"@{condition(w)} bra {otherwise if has_else else join};")
    statements(w, scope.inside(), 4)
    if has_else:
        w.emit(f"bra{c.pick(('', '.uni'))} {join};" if not scope.leave else f"bra {join};")
        w.label(otherwise)
        statements(w, scope.inside(), 4)
    w.label(join)


def _loop(w: Writer, scope: Scope) -> None:
    """Trips by data or lane, at most 5; tested at the top or at the bottom."""
    c = w.choices
    counter, top, after = w.new_counter(), w.new_label(), w.new_label()
    again = w.new_label()
    source = c.pick((register(c, "r"), "%laneid", "%tid.x", "%ctaid.x"))
    w.emit(f"mov.u32 {counter}, {source};", f"rem.u32 {counter}, {counter}, {c.integer(1, 5)};")
    at_top = c.chance(50)
    w.label(top)
    if at_top:
        w.emit(f"setp.eq.u32 %v, {counter}, 0;", f"@%v bra {after};")
    statements(w, scope.inside(leave=(again, after)), 4)
    w.label(again)
    if at_top:
        w.emit(f"sub.u32 {counter}, {counter}, 1;", f"bra {top};")
    else:
        w.emit(
            f"setp.ne.u32 %v, {counter}, 0;",
            f"sub.u32 {counter}, {counter}, 1;",
            f"@%v bra {top};",
        )
    w.label(after)


def _uniform_loop(w: Writer, scope: Scope) -> None:
    """The same number of trips for all threads; barriers may stand inside."""
    c = w.choices
    counter, top = w.new_counter(), w.new_label()
    w.emit(f"mov.u32 {counter}, 0;")
    w.label(top)
    held = Scope(scope.kernel, scope.uniform, scope.budget - 1, scope.callable)
    statements(w, held, 3)
    w.emit(
        f"add.u32 {counter}, {counter}, 1;",
        f"setp.lt.u32 %v, {counter}, {c.integer(1, 4)};",
        f"@%v bra {top};",
    )


def _goto(w: Writer, scope: Scope) -> None:
    """Blocks that jump anywhere among themselves, loops with two entries included."""
    c = w.choices
    counter, end = w.new_counter(), w.new_label()
    blocks = [w.new_label() for _ in range(c.integer(2, 5))]
    w.emit(f"mov.u32 {counter}, 0;")
    if c.chance(50):
        w.emit(f"@{condition(w)} bra {c.pick(blocks)};")
    for block in blocks:
        w.label(block)
        w.emit(f"add.u32 {counter}, {counter}, 1;", f"setp.gt.u32 %v, {counter}, {GOTO_STEPS};")
        w.emit(f"@%v bra {end};")
        w.straight(c.integer(0, 2))
        if c.chance(30):
            statements(w, scope.inside(leave=(end, c.pick(blocks))), 1)
        if c.chance(25):  # something that changes from step to step
            w.emit(f"and.b32 %t0, {counter}, {c.integer(1, 3)};", "setp.eq.u32 %w, %t0, 0;")
            w.emit(f"@%w bra {c.pick(blocks)};")
        else:
            w.emit(f"@{condition(w)} bra {c.pick([*blocks, end])};")
        if c.chance(40):
            w.emit(f"bra {c.pick([*blocks, end])};")
    w.label(end)


def _switch(w: Writer, scope: Scope) -> None:
    """An indexed branch."""
    c = w.choices
    cases = [w.new_label() for _ in range(c.integer(1, 4))]
    table, end = w.new_label(), w.new_label()
    w.emit(f"rem.u32 %t0, {register(c, 'r')}, {len(cases)};")
    w.emit(f"{table}: .branchtargets {', '.join(c.pick(cases) for _ in cases)};")
    w.guarded(f"brx.idx %t0, {table};")
    for case in cases:
        w.label(case)
        statements(w, scope.inside(), 2)
        if c.chance(60):
            w.emit(f"bra {end};")
    w.label(end)


def _exit(w: Writer, scope: Scope) -> None:
    """Some threads leave: the kernel, or only the function."""
    c = w.choices
    w.emit(f"@{condition(w)} {c.pick(('ret', 'exit') if c.chance(70) else ('exit', 'ret'))};")


def _call(w: Writer, name: str, depth: str = "") -> None:
    c = w.choices
    depth = depth or str(c.integer(0, 3))
    result, second = register(c, "r"), register(c, "d")
    call = f"call (got), {name}, (p0, p1, p2, p3, p4, p5);"
    guard = f"@{predicate(c)} " if c.chance(20) else ""
    w.emit(
        "{",
        ".param .b64 p0; .param .b64 p1; .param .b64 p2; .param .b32 p3;",
        ".param .b32 p4; .param .align 8 .b8 p5[16];",
        ".param .align 8 .b8 got[16];",
        "st.param.b64 [p0], %own;",
        "st.param.b64 [p1], %stride;",
        "st.param.b64 [p2], %table;",
        f"mov.u32 %t0, {depth};",
        "st.param.b32 [p3], %t0;",
        f"st.param.b32 [p4], {register(c, 'r')};",
        f"st.param.b64 [p5], {register(c, 'd')};",
        f"st.param.b32 [p5+8], {register(c, 'r')};",
        f"st.param.f32 [p5+12], {register(c, 'f')};",
        f"{guard}{call}",
    )
    if not guard:  # a call that did not happen leaves the results open
        w.emit(
            f"ld.param.b32 {result}, [got+8];",
            f"ld.param.b64 {second}, [got];",
            f"ld.param.f32 {register(c, 'f')}, [got+12];",
        )
    w.emit("}")


def _function(choices: Choices, name: str, callees: tuple[str, ...], guards: int) -> str:
    """``name(own, stride, table, depth, word, struct) -> struct``; may call itself."""
    w = Writer(choices, name, guards)
    w.emit(
        "ld.param.b64 %own, [own];",
        "ld.param.b64 %stride, [stride];",
        "ld.param.b64 %table, [table];",
        "ld.param.b32 %step, [depth];",
        "ld.param.b32 %r0, [word];",
        "ld.param.b64 %d0, [struct];",
        "ld.param.b32 %r1, [struct+8];",
        "ld.param.f32 %f0, [struct+12];",
    )
    _set_up(w)
    _clear(w)
    # for threads that return before the end
    w.emit(
        "st.param.b64 [back], %d0;", "st.param.b32 [back+8], %r0;", "st.param.f32 [back+12], %f0;"
    )
    w.emit(BODY)
    scope = Scope(kernel=False, uniform=False, budget=2, callable=callees)
    finish = w.new_label()
    statements(w, scope, 4)
    if choices.chance(40):  # recursion
        w.emit("setp.eq.u32 %v, %step, 0;", f"@%v bra {finish};", "sub.u32 %nr, %step, 1;")
        _call(w, name, "%nr")
        statements(w, Scope(kernel=False, uniform=False, budget=1, callable=()), 2)
    w.label(finish)
    w.emit(
        END,
        f"st.param.b32 [back+8], {register(choices, 'r')};",
        f"st.param.b64 [back], {register(choices, 'd')};",
        f"st.param.f32 [back+12], {register(choices, 'f')};",
        "ret;",
    )
    body = "\n".join(w.lines)
    extra = ".shared .align 1 .b8 gap[5];\n" if choices.chance(20) else ""
    return f"{_signature(name)}\n{{\n{w.registers()}\n{_local()}{extra}{body}\n}}\n"


def _clear(w: Writer) -> None:
    """What a function reads before it wrote would be undefined."""
    for i in range(2, POOLS["r"]):
        w.emit(f"add.u32 %r{i}, %r0, {i};")
    for i in range(1, POOLS["d"]):
        w.emit(f"xor.b64 %d{i}, %d0, {3 * i};")
    for i in range(1, POOLS["f"]):
        w.emit(f"add.rn.f32 %f{i}, %f0, 0f3F800000;")
    w.emit(*(f"cvt.rn.f64.s32 %g{i}, %r{i};" for i in range(POOLS["g"])))
    w.emit(*(f"cvt.u16.u32 %h{i}, %r{i};" for i in range(POOLS["h"])))
    w.emit(*(f"cvt.rn.f16.f32 %e{i}, %f{i};" for i in range(POOLS["e"])))
    w.emit(*(f"mov.b32 %x{i}, {{%e{i}, %e{i + 1}}};" for i in range(POOLS["x"])))
    w.emit(*(f"setp.lt.s32 %p{i}, %r{i}, 7;" for i in range(POOLS["p"])))


def _signature(name: str) -> str:
    return (
        f".func (.param .align 8 .b8 back[16]) {name}("
        ".param .b64 own, .param .b64 stride, .param .b64 table, .param .b32 depth, "
        ".param .b32 word, .param .align 8 .b8 struct[16])"
    )


def _local() -> str:
    return f".local .align 16 .b8 array[{accesses.LOCAL_BYTES}];\n"


def _set_up(w: Writer) -> None:
    """Scratch registers, which a guard may leave unwritten, and the local array get values."""
    w.emit("mov.b16 %nh, 1;", "mov.b32 %nr, 1;", "mov.b64 %nd, 1;", "mov.f32 %cf, 0f3F800000;",
           "mov.f64 %cg, 0d3FF0000000000000;", "setp.eq.u32 %v, %r0, 0;")  # fmt: skip
    w.emit("mov.u64 %local, array;", "st.local.u32 [%local], %r0;", "mov.u32 %t0, %laneid;")
    for offset in range(4, accesses.LOCAL_BYTES, 4):
        w.emit(f"st.local.u32 [%local+{offset}], %t0;")


def _prologue(w: Writer, *, slots_together: bool, pitch: int, shared: str) -> None:
    """Linear thread number, addresses, first values of all registers."""
    c = w.choices
    stride = 16 if slots_together else "%nthreads16"
    w.emit(
        "mov.u32 %t0, %tid.z;", "mov.u32 %t1, %ntid.y;", "mov.u32 %t2, %tid.y;",
        "mad.lo.u32 %t0, %t0, %t1, %t2;", "mov.u32 %t1, %ntid.x;", "mov.u32 %t2, %tid.x;",
        "mad.lo.u32 %tlinear, %t0, %t1, %t2;",
        "mov.u32 %t2, %ntid.y;", "mul.lo.u32 %t1, %t1, %t2;", "mov.u32 %t2, %ntid.z;",
        "mul.lo.u32 %nlinear, %t1, %t2;",
        "mov.u32 %t0, %ctaid.z;", "mov.u32 %t1, %nctaid.y;", "mov.u32 %t2, %ctaid.y;",
        "mad.lo.u32 %t0, %t0, %t1, %t2;", "mov.u32 %t1, %nctaid.x;", "mov.u32 %t2, %ctaid.x;",
        "mad.lo.u32 %t3, %t0, %t1, %t2;",
        "mad.lo.u32 %thread, %t3, %nlinear, %tlinear;",
        "mov.u32 %t2, %nctaid.y;", "mul.lo.u32 %t1, %t1, %t2;", "mov.u32 %t2, %nctaid.z;",
        "mul.lo.u32 %t1, %t1, %t2;", "mul.lo.u32 %t1, %t1, %nlinear;",
        "mul.wide.u32 %nthreads16, %t1, 16;",
        "ld.param.u64 %own, [own];",
        f"mov.u64 %stride, {stride};",
        f"mul.wide.u32 %a0, %thread, {16 * accesses.SLOTS if slots_together else 16};",
        "add.u64 %own, %own, %a0;",
        "ld.param.u64 %table, [table];",
        "ld.param.u64 %counters, [counters];",
        "ld.param.u64 %sums, [sums];",
        # every warp its own word, 32 bytes apart
        "add.u32 %t0, %nlinear, 31;", "shr.u32 %t0, %t0, 5;", "mov.u32 %t1, %warpid;",
        "mad.lo.u32 %t0, %t3, %t0, %t1;",
        "mul.wide.u32 %a0, %t0, 32;", "ld.param.u64 %warpword, [warpwords];",
        "add.u64 %warpword, %warpword, %a0;",
        f"mov.u64 %sbase, {shared};",
        f"mov.u32 %spitch, {pitch};",
        f"mov.u64 %sstride, {16 if pitch > 16 else 16 * _most_threads()};",
        f"mul.wide.u32 %a0, %tlinear, {pitch};",
        "add.u64 %shared, %sbase, %a0;",
        "ld.param.u32 %r0, [n];", "ld.param.f32 %f0, [x];", "mov.u32 %r1, %tlinear;",
    )  # fmt: skip
    for i in range(2, POOLS["r"]):
        w.emit(f"ld.global.u32 %r{i}, [%own+{4 * (i - 2)}];" if i < 6 else f"mov.u32 %r{i}, {i};")
    w.emit("ld.param.u64 %a0, [values];", "and.b32 %t0, %thread, 15;",
           "mul.wide.u32 %a1, %t0, 16;", "add.u64 %a0, %a0, %a1;",
           "ld.global.v2.f32 {%f1, %f2}, [%a0];", "ld.global.f32 %f3, [%a0+8];",
           "mov.b64 %d0, {%r2, %r3};", "mul.wide.u32 %d1, %r4, %r5;", "cvt.s64.s32 %d2, %r2;",
           "mov.b64 %d3, {%r1, %r0};", "cvt.f64.f32 %g0, %f1;", "cvt.rn.f64.s32 %g1, %r2;",
           "div.rn.f64 %g2, %g1, 0d4059000000000000;", "mov.b32 {%h0, %h1}, %r3;",
           "cvt.u16.u32 %h2, %r1;", "cvt.rn.f16.f32 %e0, %f1;", "cvt.rn.f16.s32 %e1, %r1;",
           "cvt.rn.f16.f32 %e2, %f0;", "mov.b32 %x0, {%e0, %e1};", "mov.b32 %x1, {%e2, %e0};",
           "setp.lt.s32 %p0, %r2, 0;", "and.b32 %t0, %r1, 1;", "setp.eq.u32 %p1, %t0, 0;",
           f"setp.lt.u32 %p2, %r1, {c.integer(0, 64)};", "setp.gt.u32 %p3, %r3, %r4;")  # fmt: skip
    _set_up(w)


def _most_threads() -> int:
    return max(int(np.prod(block)) for _, block in LAUNCHES)


def _epilogue(w: Writer) -> None:
    """What every thread that comes this far leaves behind: all its registers."""
    w.emit(END)
    w.emit("ld.param.u64 %a0, [results];", "mul.wide.u32 %a1, %thread, 128;",
           "add.u64 %a0, %a0, %a1;")  # fmt: skip
    for i in range(POOLS["r"]):
        w.emit(f"st.global.u32 [%a0+{4 * i}], %r{i};")
    for i in range(POOLS["d"]):
        w.emit(f"st.global.u64 [%a0+{32 + 8 * i}], %d{i};")
    for i in range(POOLS["h"]):
        w.emit(f"st.global.u16 [%a0+{64 + 2 * i}], %h{i};")
    for i in range(POOLS["p"]):
        w.emit(f"selp.u32 %t0, 1, 0, %p{i};", f"st.global.u8 [%a0+{96 + i}], %t0;")
    for letter, (buffer, kind, size) in FLOAT_SLOTS.items():
        w.emit(f"ld.param.u64 %a0, [{buffer}];", f"mul.wide.u32 %a1, %thread, {size};",
               "add.u64 %a0, %a0, %a1;",
               f"shr.u64 %a1, %nthreads16, {(16 // size).bit_length() - 1};")  # fmt: skip
        names = [f"%{letter}{i}" for i in range(POOLS[letter])]
        if letter == "e":
            for i in range(POOLS["x"]):
                w.emit(f"mov.b32 {{%nh, %nk{i}}}, %x{i};", f"mov.u16 %nj{i}, %nh;")
                names += [f"%nj{i}", f"%nk{i}"]
        for name in names:
            w.emit(f"st.global.{kind} [%a0], {name};", "add.u64 %a0, %a0, %a1;")
    w.emit("ret;")


def generate(choices: Choices, body: list[str] | None = None) -> Generated:
    """One kernel; ``body`` replaces its random statements."""
    c = choices
    grid, block = c.pick(LAUNCHES)
    guards = c.pick((10, 0, 40))
    functions: list[str] = []
    names: tuple[str, ...] = ()
    for number in range(0 if body else c.pick((0, 0, 1, 2))):
        name = f"helper{number}"
        functions.append(_function(c, name, names, guards))
        names += (name,)
    w = Writer(c, "k", guards)
    slots_together = c.chance(50)
    pitch = c.pick((16, 16 * accesses.SLOTS, 16 * accesses.SLOTS + 16))
    size = _most_threads() * (pitch if pitch > 16 else 16 * accesses.SLOTS)
    dynamic = c.chance(30)
    _prologue(
        w, slots_together=slots_together, pitch=pitch, shared="dynamic" if dynamic else "static"
    )
    w.emit(BODY)
    w.emit(*body or ())
    for _ in range(0 if body else c.integer(1, 8)):
        statement(w, Scope(kernel=True, uniform=True, budget=3, callable=names))
    _epilogue(w)
    declared = w.registers() + "\n".join(
        ("", ".reg .b32 %tlinear, %nlinear, %thread, %spitch;",
         ".reg .b64 %nthreads16, %counters, %sums, %warpword, %sbase, %sstride;",
         f".reg .b16 %nj<{POOLS['x']}>, %nk<{POOLS['x']}>;", "")
    )  # fmt: skip
    shared = f".shared .align 16 .b8 static[{size}];\n" if not dynamic else ""
    if c.chance(30):
        shared = f".shared .align 4 .b8 odd[{c.integer(1, 9) * 4}];\n" + shared
    words = ", ".join(str(v) for v in (WORDS * 2)[: accesses.CONSTANT_BYTES // 4])
    module = (
        f".const .align 128 .b32 constants[{accesses.CONSTANT_BYTES // 4}] = {{{words}}};\n"
        f".global .align 128 .b32 variables[{accesses.CONSTANT_BYTES // 4}] = {{{words}}};\n"
    )
    if dynamic:
        module += ".extern .shared .align 16 .b8 dynamic[];\n"
    kernel = (
        f".visible .entry k({PARAMETERS})\n{{\n{declared}{_local()}{shared}"
        ".shared .align 4 .b8 histogram[32];\n" + "\n".join(w.lines) + "\n}\n"
    )
    ptx = "\n".join([HEADER, module, *functions, kernel])
    return Generated(ptx, grid, block, size if dynamic else 0, c.integer(0, 1000))


def program(seed: int) -> Generated:
    """The kernel of a seed."""
    return generate(Choices(seed))
