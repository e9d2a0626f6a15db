"""Generated kernels with affine guards and loops, for the tests of the symbolic analysis."""

from __future__ import annotations

from hypothesis import strategies as st

from wattcast.features.execution import ExecutionResult
from wattcast.features.symbolic import SymbolicResult

PREDICATES = 8
LANE, BLOCK, GLOBAL, LIMIT, SIZE = "%r2", "%r3", "%r5", "%r1", "%r4"
"""Registers of ``execution_kernels.kernel``: tid.x, ctaid.x, both as index, n, ntid.x."""


class AffineBuilder:
    """Turns drawn choices into PTX: nested guards and loops over ids, n and counters."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.labels = 0
        self.fresh = 40
        self.scope = [LANE, BLOCK, GLOBAL, LIMIT, SIZE]

    def label(self) -> str:
        self.labels += 1
        return f"$a{self.labels}"

    def register(self) -> str:
        self.fresh += 1
        return f"%r{self.fresh}"

    def pick(self, choices: list[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def operand(self) -> str:
        number = self.draw(st.integers(-3, 40))
        return self.pick([*self.scope, *self.scope, str(number)])

    def value(self) -> str:
        """A register holding a small expression of what is in scope."""
        made = self.register()
        form = self.pick(
            [
                "add.s32 {d}, {a}, {b};", "sub.s32 {d}, {a}, {b};", "mul.lo.s32 {d}, {a}, 3;",
                "shl.b32 {d}, {a}, 2;", "and.b32 {d}, {a}, 12;", "shr.u32 {d}, {a}, 1;",
                "mad.lo.s32 {d}, {a}, 2, {b};", "min.s32 {d}, {a}, {b};", "rem.u32 {d}, {a}, 5;",
                "max.u32 {d}, {a}, 7;", "div.s32 {d}, {a}, 3;", "xor.b32 {d}, {a}, 5;",
            ]
        )  # fmt: skip
        self.lines.append(form.format(d=made, a=self.pick(self.scope), b=self.operand()))
        return made

    def condition(self) -> str:
        predicate = f"%p{self.draw(st.integers(1, PREDICATES - 1))}"
        how = self.pick(["lt.s32", "ge.s32", "lt.u32", "gt.u32", "eq.s32", "ne.s32", "le.s32"])
        self.lines.append(f"setp.{how} {predicate}, {self.value()}, {self.operand()};")
        return self.pick([predicate, f"!{predicate}"])

    def access(self) -> None:
        index, address = self.register(), f"%rd{self.draw(st.integers(4, 7))}"
        self.lines.append(f"and.b32 {index}, {self.value()}, 255;")
        self.lines.append(
            f"mul.wide.u32 {address}, {index}, 4; add.u64 {address}, %rd1, {address};"
        )
        guard = f"@{self.condition()} " if self.draw(st.integers(0, 3)) == 0 else ""
        self.lines.append(f"{guard}st.global.u32 [{address}], 1;")

    def shared(self) -> None:
        index = self.register()
        self.lines.append(f"and.b32 {index}, {self.value()}, 127; shl.b32 {index}, {index}, 2;")
        self.lines.append(f"st.shared.u32 [{index}], 1;")

    def block(self, depth: int) -> None:
        """Some statements, nested up to ``depth``."""
        known = len(self.scope)
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.draw(st.integers(0, 6)) if depth else self.draw(st.integers(0, 2))
            if kind == 0:
                self.access()
            elif kind == 1:
                self.shared()
            elif kind == 2:
                self.scope.append(self.value())
            elif kind == 3:
                end = self.label()
                self.lines.append(f"@{self.condition()} bra {end};")
                self.block(depth - 1)
                self.lines.append(f"{end}:")
            elif kind == 4:
                other, end, merged = self.label(), self.label(), self.register()
                self.lines.append(f"@{self.condition()} bra {other};")
                self.block(depth - 1)
                self.lines.append(f"add.s32 {merged}, {self.pick(self.scope[:known])}, 1;")
                self.lines.append(f"bra {end}; {other}:")
                self.block(depth - 1)
                self.lines.append(f"mov.u32 {merged}, {self.pick(self.scope[:known])};")
                self.lines.append(f"{end}:")
                self.scope.append(merged)
            else:
                self.loop(depth)
        # Values made under a condition have none where it does not hold.
        del self.scope[known:]

    def loop(self, depth: int) -> None:
        counter, start, end = self.register(), self.label(), self.label()
        step = self.draw(st.integers(1, 5))
        bound = self.register()
        self.lines.append(f"and.b32 {bound}, {self.value()}, 15;")
        shape = self.draw(st.integers(0, 5))
        if shape == 0:  # test first
            self.lines.append(f"mov.u32 {counter}, {self.draw(st.integers(0, 3))}; {start}:")
            self.lines.append(f"setp.ge.s32 %p1, {counter}, {bound}; @%p1 bra {end};")
        elif shape == 1:  # geometric
            self.lines.append(f"mov.u32 {counter}, {step}; {start}:")
        elif shape == 2:  # down to zero
            self.lines.append(f"add.u32 {counter}, {bound}, 1; {start}:")
        else:
            first = self.pick([LANE, BLOCK, "0", "2"])
            self.lines.append(f"mov.u32 {counter}, {first}; {start}:")
        outside = len(self.scope)
        self.scope.append(counter)
        self.block(depth - 1)
        if shape == 5:  # a second way out, in the middle
            self.lines.append(f"setp.gt.s32 %p2, {counter}, 11; @%p2 bra {end};")
        if shape == 0:
            self.lines.append(f"add.s32 {counter}, {counter}, {step}; bra {start};")
        elif shape == 1:
            self.lines.append(f"shl.b32 {counter}, {counter}, 1;")
            self.lines.append(f"setp.lt.s32 %p1, {counter}, {bound}; @%p1 bra {start};")
        elif shape == 2:
            self.lines.append(f"add.s32 {counter}, {counter}, -1;")
            self.lines.append(f"setp.ne.s32 %p1, {counter}, 0; @%p1 bra {start};")
        else:
            self.lines.append(f"add.s32 {counter}, {counter}, {step};")
            sign = self.pick(["s32", "u32"])
            self.lines.append(f"setp.lt.{sign} %p1, {counter}, {bound}; @%p1 bra {start};")
        self.lines.append(f"{end}:")
        del self.scope[outside + 1 :]  # the counter lives on behind the loop


@st.composite
def affine_programs(draw: st.DrawFn) -> str:
    """A body for ``execution_kernels.kernel``; registers up to %r399."""
    builder = AffineBuilder(draw)
    if draw(st.booleans()):
        end = builder.label()
        builder.lines.append(f"setp.ge.s32 %p1, {GLOBAL}, {LIMIT}; @%p1 bra {end};")
        builder.block(3)
        builder.lines.append(f"{end}: ret;")
    else:
        builder.block(3)
        builder.lines.append("ret;")
    return "\n".join(builder.lines)


def known(symbolic: SymbolicResult) -> bool:
    """Whether no count at all is unknown."""
    return symbolic.complete and all(f.counts_known.all() for f in symbolic.functions.values())


def loop_errors(symbolic: SymbolicResult, executed: ExecutionResult, function: str) -> list[str]:
    """What loops called constant or inferred say that the execution does not bear out."""
    found = []
    ran = {loop.loop: loop for loop in executed.loops if loop.function == function}
    for loop in symbolic.loops:
        if not loop.exact:
            continue
        real = ran.get(loop.loop)
        if real is None or not real.entries:
            continue  # whether it is entered is a matter of counts
        if abs(loop.mean - real.mean) > 1e-6 * max(1.0, real.mean):
            said = f"said {loop.mean}, really {real.mean}"
            found.append(f"loop {loop.loop}: {said}")
    return found


def count_errors(symbolic: SymbolicResult, executed: ExecutionResult) -> list[str]:
    """What counts and accesses not marked as guessed say that the execution does not bear out."""
    found = []
    for name, real in executed.functions.items():
        said = symbolic.functions.get(name)
        if said is None:
            if symbolic.complete and real.warp_executions.any():
                found.append(f"{name} is executed")
            continue
        for position in range(len(said.warp_executions)):
            checks = []
            if said.counts_known[position]:
                checks += [
                    ("warps", said.warp_executions, real.warp_executions),
                    ("lanes", said.active_lanes, real.active_lanes),
                ]
            if said.access_known[position]:
                checks += [
                    ("shared", said.shared_transactions, real.shared_transactions),
                    ("sectors", said.sectors, real.sectors),
                ]
            for what, ours, theirs in checks:
                a, b = ours[position], theirs[position]
                if abs(a - b) > 1e-6 * max(1.0, b):
                    found.append(f"{name}, instruction {position}: {what} {a:g}, really {b:g}")
    return found
