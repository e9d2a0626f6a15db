"""From entry to end over the blocks: who reaches each, and what it does there.

Regions (the function, each loop) are walked in an order that follows all forward edges; an
inner loop is one step of the region around it. Lanes whose way depends on data may go both
ways, and everything that rests on it is marked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wattcast.features.errors import checkpoint
from wattcast.features.symbolic.accesses import measure
from wattcast.features.symbolic.arith import NUMBER, Amount, Missing, Val, Value, inverted, most
from wattcast.features.symbolic.counting import Counting, Entry, Guarded, Split, Visit
from wattcast.features.symbolic.evaluate import Context, Evaluator, Mask, State
from wattcast.features.symbolic.plan import Shape, Watch

Edge = tuple[int, int, State]
"""Source block, target block (-1: out of the function), who goes along."""


class Walker(Counting):
    """One analysis of one function, with its journal."""

    def __init__(
        self,
        evaluator: Evaluator,
        shape: Shape,
        warp_weights: npt.NDArray[np.float64],
        *,
        accesses: bool,
    ) -> None:
        super().__init__(evaluator, warp_weights)
        self.measures = accesses
        self.scheme = evaluator.scheme
        self.shape = shape
        self.journal: list[Entry] = []
        self.visits = 0
        self.watch = Watch(self.scheme, shape.order, evaluator.lanes.living, self.layout)

    def run(self, loop: int, context: Context, state: State) -> list[Edge]:
        """Walk a loop (``rounds.LoopWalker``); returns the edges along which its lanes leave."""
        raise NotImplementedError

    # --- walking ---

    def region(self, loop: int, context: Context, arriving: State) -> tuple[list[Edge], list[Edge]]:
        """Walk a loop's blocks once (-1: the function). Returns latch edges and leaving edges."""
        header = self.scheme.forest.loops[loop].header if loop >= 0 else self.scheme.cfg.entry
        inside = set(self.shape.units.get(loop, ()))
        incoming: dict[int, list[State]] = {}
        states: dict[int, State] = {}
        latches: list[Edge] = []
        leaving: list[Edge] = []
        for block in self.shape.units.get(loop, ()):
            own = self.scheme.forest.innermost[block] == loop
            if block == header and own:
                state: State | None = arriving
            else:
                state = self._merged(block, incoming.get(block), states)
            if state is None:
                continue
            states[block] = state
            if own:
                edges = self.block(block, context, state)
            else:
                edges = self.run(self.shape.headers[block], context, state)
            for source, target, moving in edges:
                context.edges[source, target] = moving
                self.watch.along(target, moving.mask)
                if target == header and loop >= 0:
                    latches.append((source, target, moving))
                elif target in inside:
                    incoming.setdefault(target, []).append(moving)
                else:
                    leaving.append((source, target, moving))
        return latches, leaving

    def _merged(
        self, block: int, incoming: list[State] | None, states: dict[int, State]
    ) -> State | None:
        if not incoming:
            return None
        split = self.shape.meets[block]
        if split >= 0 and split in states:
            return states[split]  # all who were there come here
        if len(incoming) == 1:
            return incoming[0]
        mask = incoming[0].mask
        for state in incoming[1:]:
            mask = mask | state.mask
        return State(mask, all(state.known for state in incoming))

    def block(self, block: int, context: Context, state: State) -> list[Edge]:
        """Count a block and its accesses; returns where its lanes go."""
        checkpoint()
        self.visits += 1
        self.watch.at(block, state.mask)
        warps, lanes = self.count(state.mask, context)
        if block in self.shape.order.ends and self.watch.waited and context.loop < 0:
            coming = [
                (source, context.edges[source, block].mask)
                for source in self.scheme.cfg.blocks[block].predecessors
                if (source, block) in context.edges
            ]
            if coming:
                warps = self.weighed(None, self.watch.groups(block, coming))
        self.journal.append(Visit(block, warps, lanes, state.known))
        guarded: dict[int, State] = {}
        for position, guard, negated in self.scheme.guards[block]:
            value = self.predicate(guard, negated, context)
            chosen, _, _ = self.split(value, state)
            guarded[position] = chosen
            taken = self.count(chosen.mask, context)[1]
            self.journal.append(Guarded(position, taken, chosen.known))
        for access in self.scheme.accesses[block] if self.measures else ():
            reaching = guarded.get(access.position, state)
            self.journal.append(measure(self, access, context, reaching))
        return self._ending(block, context, state)

    def predicate(self, node: object, negated: bool, context: Context) -> Value:
        """A condition's value, the guard's sign included."""
        value = self.evaluator.evaluate(node, context)  # type: ignore[arg-type]
        return inverted(value) if negated else value

    def split(self, value: Value, state: State) -> tuple[State, State, Missing | None]:
        """Who of ``state`` finds a predicate true, and who false."""
        nobody = np.zeros((1, state.mask.shape[1]), dtype=np.bool_)
        if isinstance(value, NUMBER):
            none = State(nobody, state.known)
            return (state, none, None) if value else (none, state, None)
        if isinstance(value, Val):
            base = np.asarray(value.base, dtype=np.bool_)
            return state.only(base), state.only(~base), None
        reason = value if isinstance(value, Missing) else Missing("it changes in the loop", 0)
        both = State(state.mask, False)
        return both, both, reason

    def _ending(self, block: int, context: Context, state: State) -> list[Edge]:
        ending = self.scheme.endings[block]
        if ending.kind == "fall" or ending.condition is None:
            return [(block, target, state) for target in ending.targets]
        if ending.kind == "switch":
            reached = State(state.mask, False)
            lost = Missing(*ending.condition.value)
            self._note(ending.position, context, reached, reached, lost)
            return [(block, target, reached) for target in ending.targets]
        held = context.leaving.get(block)
        if held is not None:
            return self._leave(block, context, state, held)
        value = self.predicate(ending.condition, ending.negated, context)
        taken, other, reason = self.split(value, state)
        self._note(ending.position, context, taken, other, reason)
        edges = []
        for target, part in zip(ending.targets, (taken, other), strict=True):
            if isinstance(value, NUMBER) and not (value if part is taken else not value):
                continue
            if self.layout.any(part.mask):
                edges.append((block, target, part))
        return edges

    def _note(
        self, position: int, context: Context, taken: State, other: State, reason: Missing | None
    ) -> None:
        yes, yes_lanes = self.count(taken.mask, context)
        no, _ = self.count(other.mask, context)
        self.journal.append(Split(position, yes, yes_lanes, no, reason))

    def _leave(
        self, block: int, context: Context, state: State, held: Mask | tuple[Amount, Amount]
    ) -> list[Edge]:
        """The exit branch of a loop whose trip counts are solved: no condition to look at."""
        ending = self.scheme.endings[block]
        inside = [
            place for place, target in enumerate(ending.targets)
            if self.scheme.forest.holds(context.loop, target)
        ]  # fmt: skip
        if isinstance(held, tuple):
            warps, lanes = self.count(state.mask, context)
            stay = most(0.0, warps - held[0]), most(0.0, lanes - held[1])
            yes, no = (stay, held) if 0 in inside else (held, stay)
            self.journal.append(Split(ending.position, yes[0], yes[1], no[0], None))
            return [(block, ending.targets[place], state) for place in inside]
        going, staying = state.only(held), state.only(~held)
        pair = (staying, going) if 0 in inside else (going, staying)
        self._note(ending.position, context, *pair, None)
        if not self.layout.any(staying.mask):
            return []
        return [(block, ending.targets[place], staying) for place in inside]
