"""Values of nodes for the sampled lanes, in the context of a loop iteration.

A ``Context`` is one loop being looked at: rows of iterations (with weights) and the value of
its counter. A node is evaluated in the innermost context it varies with and repeated along
the rows of contexts further in. Nothing recurses: expressions can be thousands deep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import WARP_SIZE, Launch, lane_values
from wattcast.features.symbolic.arith import (
    NUMBER,
    Amount,
    ApartError,
    Arithmetic,
    Array,
    Layout,
    Missing,
    Number,
    Test,
    Val,
    Value,
    as_val,
    each,
    inverted,
    least,
    limits,
    most,
)
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.values import Node

# The lanes of the sampled blocks: special registers, and who exists.


class Lanes:
    """All lanes of the sampled blocks, padded to whole warps: ids and who exists.

    Those of several launches lie one behind the other, as ``layout`` tells.
    """

    def __init__(self, launches: Sequence[Launch], blocks: Sequence[npt.NDArray[np.int64]]) -> None:
        self._each = [_OneLaunch(*pair) for pair in zip(launches, blocks, strict=True)]
        self.layout = Layout([one.count for one in self._each])
        self.count: Number = each(self.layout, self.layout.sizes)
        self._kept: dict[str, Value] = {}
        living = [one.living for one in self._each]
        self.living: Mask = (living[0] if len(living) == 1 else np.concatenate(living))[None, :]

    def special(self, name: str) -> Value:
        """A special register's value."""
        found = self._kept.get(name)
        if found is None:
            found = joined(self.layout, [one.special(name) for one in self._each])
            self._kept[name] = found
        return found


def joined(layout: Layout, values: Sequence[Value]) -> Value:
    """One value of what it is in each launch. Raises ApartError where the kinds differ."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Missing):
        kinds: list[object] = [v if isinstance(v, Missing) else type(v) for v in values]
    else:
        kinds = [(type(v), v.origin) if isinstance(v, Val) else type(v) for v in values]
    if kinds.count(kinds[0]) != len(kinds):
        raise ApartError([str(kind) for kind in kinds])
    if isinstance(first, int):
        number: Number = each(layout, list(values))
        return number
    if not isinstance(first, Val) or not isinstance(first.base, np.ndarray):
        return first
    held = [value for value in values if isinstance(value, Val)]
    low = each(layout, [value.low for value in held])
    high = each(layout, [value.high for value in held])
    return Val(np.concatenate([value.base for value in held]), low, high)


class _OneLaunch:
    """The lanes of one launch."""

    def __init__(self, launch: Launch, blocks: npt.NDArray[np.int64]) -> None:
        self.launch, self.blocks = launch, blocks
        thread = np.arange(launch.warps_per_block * WARP_SIZE)
        self.living = np.tile(thread < launch.threads_per_block, blocks.size)
        self.count = self.living.size

    def special(self, name: str) -> Value:
        """A special register's value."""
        found = lane_values(self.launch, self.blocks, name)
        if found is None:
            return Missing(f"%{name} is known only at run time", 0)
        if found.size == 1:
            return int(found[0])
        if name.startswith("lanemask"):
            return Val(found.astype(np.int32).astype(np.int64), *limits(32))
        return Val(found, 0, int(found.max()))


Mask = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class State:
    """Who reaches a block: ``mask`` bool (rows, lanes), or (1, lanes) if all rows agree.

    ``known``: nothing in it is guessed; else these lanes may come.
    """

    mask: Mask
    known: bool = True

    def only(self, chosen: Mask) -> State:
        """The part of it that ``chosen`` marks."""
        return State(self.mask & chosen, self.known)


@dataclass(slots=True, eq=False)
class Context:
    """Iterations of a loop (-1: the function itself) under the rows of ``parent``.

    ``kind``: ``root``, ``solve`` (counter symbolic and unbounded), ``body``, ``exit`` (the
    counter is each lane's last iteration), ``unknown`` (nothing known of the counter).
    ``leaving``: lanes that leave the loop from a block (or just the totals of warps and
    lanes); ``start`` and ``stop`` bound the iterations a row stands for.
    ``parent_rows`` gives each row's row in ``parent`` (``None``: the same rows).
    ``weight``: executions of each row in the launch, per block. Where launches differ in weight,
    start or stop, these are ``[launches, rows]``. ``edges`` are the states that
    went along block edges, ``exits`` the exit contexts of inner loops. ``family``: all contexts
    under one root, for ``end``.
    """

    loop: int
    parent: Context | None
    kind: str
    rows: int
    weight: npt.NDArray[np.float64]
    counter: Value
    parent_rows: npt.NDArray[np.intp] | None = None
    memo: dict[Node, Value] = field(default_factory=dict)
    edges: dict[tuple[int, int], State] = field(default_factory=dict)
    exits: dict[int, Context] = field(default_factory=dict)
    picked: tuple[Context, npt.NDArray[np.intp] | None] | None = None
    leaving: dict[int, Mask | tuple[Amount, Amount]] = field(default_factory=dict)
    start: npt.NDArray[np.int64] | None = None
    stop: npt.NDArray[np.int64] | None = None
    family: list[Context] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.family = self.parent.family
        self.family.append(self)

    def end(self) -> None:
        """Nothing under this root is asked for again. Contexts and those of their exits refer to
        each other: left so, their values (a megabyte) wait for the collector, which seldom runs."""
        for context in self.family:
            context.exits.clear()
        self.family.clear()


MOST_WORKED_OUT = 1 << 32
"""Bytes of values that are worked out for a launch, since contexts keep theirs: without it a public
kernel of nested loops (vol2col, HeCBench) filled 24 GB."""


class Evaluator(Arithmetic):
    """Evaluates nodes of a scheme for sampled lanes. ``argument`` gives parameters' values."""

    def __init__(
        self,
        scheme: Scheme,
        lanes: Lanes,
        argument: Callable[[str, int, int], Value],
        symbols: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.lanes = lanes
        self.argument = argument
        self.symbols = symbols
        self.worked_out = 0  # bytes

    def evaluate(self, node: Node, context: Context) -> Value:
        """The value of a node in a context."""
        known = context.memo.get(node)
        if known is not None:
            return known
        if node.op == "const":
            value: int = node.value
            return value
        stack = [(node, context)]
        while stack:
            top, where = stack[-1]
            if top in where.memo:
                stack.pop()
                continue
            home = where
            while home.parent is not None and not top.loops >> home.loop & 1:
                home = home.parent
            if home is not where:
                found = home.memo.get(top)
                if found is None:
                    stack.append((top, home))
                    continue
                where.memo[top] = lifted(found, where, home)
                stack.pop()
                continue
            waiting = [
                (arg, place) for arg, place in self._needs(top, home) if arg not in place.memo
            ]
            if waiting:
                stack.extend(waiting)
                continue
            home.memo[top] = self._computed(top, home)
            stack.pop()
        return context.memo[node]

    def _computed(self, node: Node, context: Context) -> Value:
        if self.worked_out > MOST_WORKED_OUT:
            return Missing("there are too many values to keep", 0)
        try:
            found = self._compute(node, context)
        except OverflowError:
            return Missing("the numbers are too large", 0)
        if isinstance(found, Val) and isinstance(found.base, np.ndarray):
            self.worked_out += found.base.nbytes
        return found

    def _needs(self, node: Node, context: Context) -> list[tuple[Node, Context]]:
        if node.op == "phi":
            phi = self.scheme.phis[node]
            if context.parent is None or phi.step is None or context.kind == "unknown":
                return []
            return [(phi.start, context.parent), (phi.step, context.parent)]
        if node.op == "exit":
            if context.picked is not None:
                return [(node, context.picked[0])]
            there = context.exits.get(node.value)
            return [(node.args[0], there)] if there is not None else []
        if node.op == "join":
            return [
                (arg, context)
                for arg, source in zip(node.args, node.value[1], strict=True)
                if self._edge(context, source, node.value[0]) is not None
            ]
        return [(arg, context) for arg in node.args]

    def _compute(self, node: Node, context: Context) -> Value:
        op, memo = node.op, context.memo
        if node.args and op not in ("phi", "exit", "join"):
            args = [memo[arg] for arg in node.args]
            if op == "select":
                return choose(args, self.lanes.layout)
            return self.apply(op, node.bits, node.args[0].bits, args)
        if op == "const":
            constant: int = node.value
            return constant
        if op == "unknown":
            return Missing(*node.value)
        if op == "special":
            return self.lanes.special(node.value)
        if op == "param":
            return self.argument(node.value[0], node.value[1], node.bits)
        if op == "symbol":
            name, offset = node.value
            if name not in self.symbols:
                return Missing(f"the address of {name} is not known", 0)
            return int(self.symbols[name]) + int(offset)
        if op == "phi":
            return self._phi(node, context)
        if op == "exit":
            if context.picked is not None:
                return self._picked(context.picked[0].memo[node], context)
            there = context.exits.get(node.value)
            if there is None:
                return Missing("a value from a loop whose trip count is not known", 0)
            return there.memo[node.args[0]]
        return self._join(node, context)

    def _phi(self, node: Node, context: Context) -> Value:
        phi = self.scheme.phis[node]
        parent = context.parent
        if parent is None or context.loop != node.value[0]:
            return Missing("a loop that is not followed", 0)
        if phi.step is None:
            line = self.scheme.forest.loops[context.loop].line
            return Missing(f"{phi.register} does not change in equal steps", line)
        if context.kind == "unknown":
            line = self.scheme.forest.loops[context.loop].line
            return Missing("the loop's iterations are not known", line)
        start, step = parent.memo[phi.start], parent.memo[phi.step]
        start, step = lifted(start, context, parent), lifted(step, context, parent)
        if isinstance(step, NUMBER) and step == 0:
            return start
        counted = self.apply("mul", node.bits, node.bits, [step, context.counter])
        return self.apply("add", node.bits, node.bits, [start, counted])

    def _picked(self, value: Value, context: Context) -> Value:
        """A value of a loop's body in each lane's last iteration."""
        assert context.picked is not None
        rows = context.picked[1]
        if not isinstance(value, Val):
            return value
        if value.terms:
            return Missing("a value that changes with two loops", 0)
        base = value.base
        if rows is None or isinstance(base, NUMBER) or base.ndim < 2 or base.shape[0] == 1:
            return value
        wide = np.broadcast_to(base, (base.shape[0], rows.shape[1]))
        return Val(np.take_along_axis(wide, rows, axis=0), value.low, value.high, None,
                   value.origin)  # fmt: skip

    def _edge(self, context: Context, source: int, target: int) -> State | None:
        if context.picked is not None:
            body, rows = context.picked
            state = body.edges.get((source, target))
            if state is None or rows is None or state.mask.shape[0] == 1:
                return state
            return State(np.take_along_axis(state.mask, rows, axis=0), state.known)
        return context.edges.get((source, target))

    def _join(self, node: Node, context: Context) -> Value:
        """The value of whichever edge each lane came along."""
        target, sources = node.value
        memo = context.memo
        result: Value | None = None
        line = self.scheme.cfg.body.instructions[self.scheme.cfg.blocks[target].start].line
        if context.kind == "solve":
            return Missing("a value merged within the loop", line)
        for arg, source in zip(node.args, sources, strict=True):
            state = self._edge(context, source, target)
            if state is None:
                continue
            value = memo[arg]
            if not state.known:
                if isinstance(value, Missing):
                    return value
                return Missing("which path was taken depends on data", line)
            if result is not None:
                value = choose([Val(state.mask, 0, 1), value, result], self.lanes.layout)
            result = value
            if isinstance(result, Missing):
                return result
        return Missing("a block that no lane reaches", line) if result is None else result


def lifted(value: Value, inner: Context, outer: Context) -> Value:
    """A value of an outer context, repeated along the rows of an inner one."""
    if not isinstance(value, Val | Test):
        return value
    if isinstance(value, Test):
        held = lifted(value.value, inner, outer)
        return Test(value.how, held) if isinstance(held, Val) else value
    parts = [value.base, *value.terms.values()]
    if all(isinstance(p, NUMBER) or p.ndim < 2 or p.shape[0] == 1 for p in parts):
        return value
    chain = []
    context = inner
    while context is not outer:
        if context.parent_rows is not None:
            chain.append(context.parent_rows)
        assert context.parent is not None
        context = context.parent
    if not chain:
        return value
    rows = chain[-1]
    for further in reversed(chain[:-1]):
        rows = rows[further]

    def pick(part: Any) -> Any:
        many = isinstance(part, np.ndarray) and part.ndim == 2 and part.shape[0] > 1
        return part[rows] if many else part

    terms = {loop: pick(factor) for loop, factor in value.terms.items()}
    return Val(pick(value.base), value.low, value.high, terms, value.origin)


BUFFERS_APART, _OR = 1 << 40, " or "
"""Bytes between the buffers of two pointers of which one is chosen."""


def choose(args: list[Value], layout: Layout) -> Value:
    """The second where the first is true, else the third."""
    chooser, yes, no = args
    if isinstance(chooser, Missing):
        return chooser
    if isinstance(chooser, NUMBER):
        return yes if chooser else no
    if isinstance(chooser, Test):
        return Missing("a choice that changes within the loop", 0)
    for value, rest in ((yes, chooser.base), (no, None)):
        if isinstance(value, Missing | Test):
            # A value that no lane takes need not be known.
            taken = np.asarray(chooser.base if rest is not None else inverted(chooser).base)  # type: ignore[union-attr]
            if layout.any(taken):
                return value if isinstance(value, Missing) else Missing("a condition chosen", 0)
            return no if rest is not None else yes
    a, b = as_val(yes), as_val(no)  # type: ignore[arg-type]
    origin = a.origin
    if origin != b.origin:
        if origin is None or b.origin is None:
            return Missing("one of two addresses that are not known", 0)
        # Two buffers: far apart, and aligned alike. What lies between them stays unknown.
        apart = BUFFERS_APART * (1 + origin.count(_OR))
        origin += _OR + b.origin
        b = Val(b.base + apart, b.low + apart, b.high + apart, b.terms)
    terms: dict[int, Array | Number] = {}
    for loop in {**a.terms, **b.terms}:
        terms[loop] = np.where(chooser.base, a.terms.get(loop, 0), b.terms.get(loop, 0))
    low, high = least(a.low, b.low), most(a.high, b.high)
    base = np.where(chooser.base, a.base, b.base)
    return Val(base, low, high, terms, origin)
