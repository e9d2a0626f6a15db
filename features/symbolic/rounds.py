"""Loops: how often each lane goes round, and the loop's body walked with that knowledge.

In this order: solved in closed form (exit tests that are linear in the counter), tried
iteration by iteration (geometric steps, conditional exits), unknown (walked once, for the loops
in it).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.symbolic.arith import (
    INFINITE,
    NUMBER,
    ApartError,
    Missing,
    Number,
    Test,
    Val,
    Value,
    agreed,
    each,
    inverted,
    least,
)
from wattcast.features.symbolic.counting import (
    NEVER,
    Counts,
    Rounds,
    kept,
    picked_rows,
    solve_test,
    weights_of,
)
from wattcast.features.symbolic.evaluate import Context, Evaluator, Mask, State, choose
from wattcast.features.symbolic.plan import DEEPEST, Shape
from wattcast.features.symbolic.walk import Edge, Walker

MOST_CELLS = 1 << 22
"""Rows times lanes of one loop looked at apart (4 MB of masks)."""

BENT_CELLS = 1 << 18
"""Rows times lanes up to which iterations are looked at apart only for the sake of addresses
that are not linear in the counter (``k >> 4``); beyond, those addresses are unknown."""

TRY_BUDGET = 2000
"""Blocks walked one iteration at a time, over the whole analysis (each some 50 us): enough for
geometric loops and for some hundred iterations; it bounds the time of hostile loops."""


class LoopWalker(Walker):
    """A walker that runs loops. ``ends``: a function that the kernel calls ends threads."""

    ends = False

    def __init__(
        self, evaluator: Evaluator, shape: Shape, warp_weights: npt.NDArray[np.float64],
        *, accesses: bool,
    ) -> None:  # fmt: skip
        super().__init__(evaluator, shape, warp_weights, accesses=accesses)
        self.budget = TRY_BUDGET
        self.cells = evaluator.lanes.count

    def run(self, loop: int, context: Context, state: State) -> list[Edge]:
        """Walk a loop from its header on; returns the edges along which its lanes leave."""
        line = self.scheme.forest.loops[loop].line
        if self.scheme.forest.loops[loop].depth > DEEPEST:
            return self._unknown(loop, context, state, Missing("it is nested too deeply", line))
        if self.ends:
            lost = Missing("a function that the kernel calls may end threads", line)
            return self._unknown(loop, context, state, lost)
        reason: Missing | None = None
        if self.shape.closed[loop]:
            solved = self._solve(loop, context, state)
            if not isinstance(solved, Missing):
                edges = self._closed(loop, context, state, *solved)
                if not isinstance(edges, Missing):
                    return edges
                solved = edges
            reason = solved
        if state.known:
            tried = self._try(loop, context, state)
            if not isinstance(tried, Missing):
                return tried
            if reason is None or tried.line or not reason.line:
                reason = tried
        return self._unknown(
            loop, context, state, reason or Missing("it is reached by guess", line)
        )

    # --- closed form ---

    def _solve(
        self, loop: int, context: Context, state: State
    ) -> tuple[Number | Counts, list[Mask | None]] | Missing:
        """Last iteration of every lane (a number if one for all), and who leaves by which exit."""
        counter = Val(0, 0, INFINITE, {loop: 1})
        there = Context(loop, context, "solve", context.rows, context.weight, counter)
        saved, self.evaluator.obligations = self.evaluator.obligations, []
        lasts: list[Number | Counts] = []
        try:
            for leave in self.shape.exits[loop]:
                ending = self.scheme.endings[leave.source]
                assert ending.condition is not None
                value: Value = self.evaluator.evaluate(ending.condition, there)
                if ending.negated:
                    value = inverted(value)
                inside = [self.scheme.forest.holds(loop, t) for t in ending.targets]
                if not any(inside):
                    return Missing("a block both of whose ways lead out", 0)
                stays = value if inside[0] else inverted(value)
                if isinstance(stays, Missing):
                    return stays
                if isinstance(stays, NUMBER):
                    lasts.append(int(NEVER) if stays else 0)
                elif isinstance(stays, Val):
                    lasts.append(np.where(stays.base, NEVER, np.int64(0)))
                elif set(stays.value.terms) != {loop} or stays.value.origin:
                    return Missing("its end depends on another loop's counter", 0)
                else:
                    lasts.append(solve_test(stays))
            obligations = self.evaluator.obligations
        finally:
            self.evaluator.obligations = saved
        shape = state.mask.shape
        numbers = [last for last in lasts if isinstance(last, NUMBER)]
        last: Number | Counts
        if len(numbers) == len(lasts):
            last = least(*numbers)
            if last >= NEVER:
                return Missing("it never ends", self.scheme.forest.loops[loop].line)
        else:
            first: Counts = np.asarray(lasts[0])
            for other in lasts[1:]:
                first = np.minimum(first, np.asarray(other))
            wide = np.broadcast_to(first, np.broadcast_shapes(shape, np.shape(first)))
            entering = np.broadcast_to(state.mask, wide.shape)
            if not self.layout.any(entering):
                return Missing("no lane enters it", 0)
            high = self._end(np.maximum, wide, entering)
            if high >= NEVER:
                return Missing("it never ends", self.scheme.forest.loops[loop].line)
            low = self._end(np.minimum, wide, entering)
            last = low if low == high else np.where(entering, wide, 0)
        for need in obligations:
            if not kept(need.value, need.low, need.high, last, loop, state.mask, self.layout):
                return Missing("its counter wraps", self.scheme.forest.loops[loop].line)
        chosen: list[Mask | None] = [None]
        if len(lasts) == 1:
            return last, chosen
        chosen = []
        before = np.zeros((1, 1), dtype=np.bool_)
        for one in lasts:
            mine = (np.asarray(one) == np.asarray(last)) & ~before
            mine = mine if mine.ndim == 2 else np.atleast_2d(mine)
            before = before | mine
            chosen.append(mine)
        return last, chosen

    def _end(self, end: np.ufunc, wide: Counts, inside: Mask) -> Number:
        """The least or the greatest count of the lanes inside."""
        if self.layout.count == 1:
            return int(end.reduce(wide[inside]))
        found: Number = self.layout.extreme(
            end, np.where(inside, wide, NEVER if end is np.minimum else -NEVER)
        )
        return found

    def _closed(
        self,
        loop: int,
        context: Context,
        state: State,
        last: Number | Counts,
        chosen: list[Mask | None],
    ) -> list[Edge] | Missing:
        exits = self.shape.exits[loop]
        latch = self.scheme.forest.loops[loop].back_edges[0][0]
        at_latch = all(leave.source == latch for leave in exits)
        apart = bool(self.shape.varies[loop] >> loop & 1)
        made: tuple[Context, State, npt.NDArray[np.intp] | None] | Missing
        if not apart and self.shape.bent >> loop & 1:
            rounds = self.layout.extreme(np.maximum, last) + 1
            apart = bool(rounds * context.rows * self.cells <= BENT_CELLS)
        made = self._body(loop, context, state, last, apart, at_latch)
        if isinstance(made, Missing):
            return made
        body, arriving, picked = made
        parent_rows = body.parent_rows
        assert body.stop is not None
        for leave, mine in zip(exits, chosen, strict=True):
            if mine is not None and mine.shape[0] > 1 and parent_rows is not None:
                mine = mine[parent_rows]
            if at_latch and not apart:  # rows hold many iterations: only the totals are known
                body.leaving[leave.source] = self.count(state.mask, context)
                continue
            if isinstance(last, int):
                gone: Mask = self.of_lanes(body.stop - 1 == last)
            else:
                wide = np.atleast_2d(np.asarray(last))
                wide = wide if wide.shape[0] == 1 or parent_rows is None else wide[parent_rows]
                gone = wide == self.of_lanes(body.stop - 1)
            body.leaving[leave.source] = gone if mine is None else gone & mine
        self._went_round(loop, context, state, last)
        counter: Value
        if isinstance(last, NUMBER):
            counter = last
        else:
            low, high = (self.layout.extreme(one, last) for one in (np.minimum, np.maximum))
            counter = Val(last, low, high)
        leaving = Context(loop, context, "exit", context.rows, context.weight, counter)
        leaving.picked = (body, picked)
        self.region(loop, body, arriving)
        context.exits[loop] = leaving
        edges: list[Edge] = []
        for leave, mine in zip(exits, chosen, strict=True):
            part = state if mine is None else state.only(mine)
            if mine is None or self.layout.any(part.mask):
                edges.append((leave.source, leave.target, part))
        return edges

    def _body(
        self,
        loop: int,
        context: Context,
        state: State,
        last: Number | Counts,
        apart: bool,
        at_latch: bool,
    ) -> tuple[Context, State, npt.NDArray[np.intp] | None] | Missing:
        """The iterations in rows: each apart, or runs of them in which the same lanes stay."""
        rows = context.rows
        mask = state.mask
        pairs = zip(self.layout.parts(last), self.layout.parts(mask), strict=True)
        alike = [next(pairs)] if isinstance(last, int) else pairs
        found = [self._points(one, part, rows, apart, at_latch) for one, part in alike]
        if agreed([one is None for one in found]):
            return Missing("too many iterations that differ", 0)
        every = [one for one in found if one is not None]
        starts = every[0]
        sizes = [points.size - 1 for points in starts]
        if any([points.size - 1 for points in one] != sizes for one in every[1:]):
            raise ApartError([tuple(points.size for points in one) for one in every])
        count = sum(sizes)
        if count * self.cells > MOST_CELLS * 4:
            return Missing("too many iterations that differ", 0)
        start, stop = self._same(
            [np.concatenate([points[:-1] for points in one]) for one in every],
            [np.concatenate([points[1:] for points in one]) for one in every],
        )
        parent_rows = np.repeat(np.arange(rows), sizes)
        top: Number
        if stop.ndim == 1:
            top = int(stop.max()) - 1
        else:
            top = each(self.layout, (stop.max(axis=1) - 1).tolist())
        if apart:
            counter: Value
            if count > 1:
                counter = Val(self.of_lanes(start), 0, top)
            else:
                counter = each(self.layout, np.atleast_2d(start)[:, 0].tolist())
        else:
            counter = Val(0, 0, top, {loop: 1}) if top else 0
        weight = context.weight[..., parent_rows] * (stop - start)
        identity = count == rows and all(size == 1 for size in sizes)
        body = Context(loop, context, "body", count, weight, counter,
                       None if identity else parent_rows)  # fmt: skip
        body.start, body.stop = start, stop
        picked: npt.NDArray[np.intp] | None = None
        if isinstance(last, NUMBER):
            arriving = mask if mask.shape[0] == 1 or identity else mask[parent_rows]
            if count > 1:
                ends_at = np.cumsum(sizes) - 1
                picked = np.broadcast_to(ends_at[:, None], (rows, mask.shape[1]))
        else:
            table = np.atleast_2d(last)
            wide = table if table.shape[0] == 1 else table[parent_rows]
            there = mask if mask.shape[0] == 1 else mask[parent_rows]
            arriving = there & (wide >= self.of_lanes(start))
            if count > 1:
                firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
                parts = [
                    picked_rows(firsts, one, part)
                    for one, part in zip(every, self.layout.parts(table), strict=True)
                ]
                picked = np.minimum(np.concatenate(parts, axis=1), count - 1)
        return body, State(arriving, state.known), picked

    def _points(
        self, last: int | Counts, mask: Mask, rows: int, apart: bool, at_latch: bool
    ) -> list[Counts] | None:
        """Where the runs of iterations of each row begin, and where the last one ends; ``None`` if
        they are too many."""
        starts: list[Counts] = []
        table = np.atleast_2d(np.asarray(last))
        for row in range(table.shape[0]):
            if isinstance(last, int):
                ends = np.array([last], dtype=np.int64)
            else:
                ends = np.unique(table[row][mask[row if mask.shape[0] > 1 else 0]])
                ends = ends if ends.size else np.zeros(1, dtype=np.int64)
            if apart:
                if (int(ends[-1]) + 1) * mask.shape[1] > MOST_CELLS * 4:
                    return None
                points = np.arange(int(ends[-1]) + 2, dtype=np.int64)
            elif at_latch:
                points = np.concatenate([[0], ends + 1])
            else:
                points = np.unique(np.concatenate([[0], ends, ends + 1]))
            starts.append(points)
        return starts * rows if len(starts) == 1 else starts

    def _same(self, starts: list[Counts], stops: list[Counts]) -> tuple[Counts, Counts]:
        """Starts and stops of rows, ``[rows]`` where all launches have the same."""
        one = all((a == starts[0]).all() for a in starts[1:])
        if one and all((a == stops[0]).all() for a in stops[1:]):
            return starts[0], stops[0]
        return np.stack(starts), np.stack(stops)

    def of_lanes(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``[rows]`` or ``[launches, rows]`` as a table that goes with ``[rows, lanes]``."""
        if values.ndim == 1:
            return values[:, None]
        return np.repeat(values.T, self.layout.sizes, axis=1)

    def _went_round(
        self, loop: int, context: Context, state: State, last: Number | Counts,
    ) -> None:  # fmt: skip
        """Write down how often the header was executed."""
        entries = self.count(state.mask, context)[1]
        reason: Missing | None = None
        if isinstance(last, NUMBER):
            rounds = entries * (last + 1)
        else:
            wide = np.broadcast_to(last, np.broadcast_shapes(last.shape, state.mask.shape))
            inside = np.broadcast_to(state.mask, wide.shape)
            per_warp = ((wide + 1) * inside).reshape(wide.shape[0], -1, 32).sum(axis=2)
            rounds = self.weighed(weights_of(wide, context), per_warp)
            ends = (self._end(end, wide, inside) for end in (np.minimum, np.maximum))
            if not state.known and next(ends) != next(ends):
                line = self.scheme.forest.loops[loop].line
                reason = Missing("which lanes enter it depends on data", line)
        self.journal.append(Rounds(loop, entries, rounds, reason))

    # --- one iteration after the other ---

    def _try(self, loop: int, context: Context, state: State) -> list[Edge] | Missing:
        """Walk the iterations in turn; given up where a way out depends on data."""
        scheme = self.scheme
        line = scheme.forest.loops[loop].line
        for condition in self.shape.conditions[loop]:
            if condition.unknown:
                return Missing(*condition.value)
        if not self.shape.exits[loop]:
            return Missing("it has no exit", line)
        mark = len(self.journal)
        phis = [p for p in scheme.loop_phis.get(loop, ()) if p.step is None]
        values = {p.node: self.evaluator.evaluate(p.start, context) for p in phis}
        current = state
        rounds = np.zeros((context.rows, state.mask.shape[1]), dtype=np.int64)
        going: dict[tuple[int, int], State] = {}
        after: dict[object, Value] = {}
        number = 0
        while True:
            before = self.visits
            body = Context(loop, context, "body", context.rows, context.weight, number)
            body.start = np.full(context.rows, number)
            body.stop = body.start + 1
            body.memo.update(values)
            latches, leaving = self.region(loop, body, current)
            self.budget -= self.visits - before
            lost = Missing("whether it goes on depends on data", line)
            if any(not s.known for _, _, s in (*latches, *leaving)):
                del self.journal[mark:]
                return self._why(loop, body) or lost
            if self.budget < 0:
                del self.journal[mark:]
                return Missing("it takes too many iterations to follow", line)
            rounds += current.mask
            left: Mask | None = None
            for source, target, part in leaving:
                held = going.get((source, target))
                going[source, target] = part if held is None else State(held.mask | part.mask)
                left = part.mask if left is None else left | part.mask
            # Threads may also end here, by ret: they just do not come round.
            if left is not None:
                for node in scheme.exits.get(loop, ()):
                    self._keep(after, node.args[0], body, left)
            if not latches:
                break
            mask = latches[0][2].mask
            for _, _, part in latches[1:]:
                mask = mask | part.mask
            if not self.layout.any(mask):
                break
            values = {
                p.node: self.evaluator.evaluate(p.latch, body)
                if p.latch is not None
                else Missing("it differs between the ways round", line)
                for p in phis
            }
            current = State(mask)
            number += 1
        last = np.maximum(rounds - 1, 0)
        self._went_round(loop, context, state, last)
        there = Context(loop, context, "exit", context.rows, context.weight,
                        Val(last, 0, self.layout.extreme(np.maximum, last)))  # fmt: skip
        there.memo.update(after)  # type: ignore[arg-type]
        context.exits[loop] = there
        return [(source, target, part) for (source, target), part in going.items()]

    def _why(self, loop: int, body: Context) -> Missing | None:
        for condition in self.shape.conditions[loop]:
            value = body.memo.get(condition)
            if isinstance(value, Missing):
                return value
        return None

    def _keep(self, after: dict[object, Value], node: object, body: Context, left: Mask) -> None:
        """Remember a value for the lanes that leave now."""
        value = self.evaluator.evaluate(node, body)  # type: ignore[arg-type]
        held = after.get(node)
        if held is None or isinstance(held, Missing):
            after[node] = value if held is None else held
            return
        if isinstance(value, Missing | Test) or isinstance(held, Test):
            after[node] = value if isinstance(value, Missing) else Missing("a condition", 0)
            return
        after[node] = choose([Val(left, 0, 1), value, held], self.layout)

    # --- unknown ---

    def _unknown(self, loop: int, context: Context, state: State, reason: Missing) -> list[Edge]:
        body = Context(loop, context, "unknown", context.rows, context.weight, reason)
        entries = self.count(state.mask, context)[1]
        self.journal.append(Rounds(loop, entries, entries, reason))
        if self.scheme.forest.loops[loop].depth <= DEEPEST:
            self.region(loop, body, State(state.mask, False))
        else:
            self.watch.doubtful.update(self.scheme.forest.loops[loop].blocks)
        exits = self.shape.exits[loop]
        one = len({leave.target for leave in exits}) == 1
        part = State(state.mask, one and state.known)
        return [(leave.source, leave.target, part) for leave in exits]
