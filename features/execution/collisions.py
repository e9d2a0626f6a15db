"""What the atomics of the sampled blocks say about the launch: passes, and the hottest address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.contention import Contention, Hits
from wattcast.features.execution.footprints import Ran
from wattcast.features.execution.program import Program
from wattcast.features.execution.results import AtomicCounts, AtomicFacts
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.execution.tally import Tally

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CANDIDATES = 4096
"""Addresses that the hottest one is looked for among."""


class Hottest(NamedTuple):
    """Operations and warp requests at the hottest address of a launch."""

    operations: float
    requests: float


def atomic_facts(program: Program, plan: SamplingPlan, batches: Sequence[Ran]) -> AtomicFacts:
    """Every atom and red instruction that ran, and the address they hit most together."""
    found: list[AtomicCounts] = []
    everywhere: list[Hits] = []
    for site in program.sites:
        if not site.atomic:
            continue
        linked = next(f for f in reversed(program.functions) if f.base <= site.position)
        ran = _Followed(plan, batches, site.number)
        hits = ran.hits()
        everywhere += hits
        place = linked.function.name, site.position - linked.base, site.line, site.opcode
        requests, shared = (
            ran.total(lambda t, _: t.requests),
            ran.total(lambda t, _: t.shared_requests),
        )
        if requests:
            operations = ran.total(lambda _, c: c.operations)
            passes = ran.total(lambda _, c: c.passes)
            found.append(
                AtomicCounts(*place, "global", requests, operations, passes, *hottest(hits, plan))
            )
        if shared:
            operations = ran.total(lambda _, c: c.shared_operations)
            passes = ran.total(lambda _, c: c.shared_passes)
            found.append(AtomicCounts(*place, "shared", shared, operations, passes, None, None))
    return AtomicFacts(tuple(found), *hottest(everywhere, plan))


class _Followed:
    """One site in all batches."""

    def __init__(self, plan: SamplingPlan, batches: Sequence[Ran], number: int) -> None:
        self.plan = plan
        self.parts: list[tuple[int, Tally, Contention]] = []
        for batch in batches:
            tally = batch.machine.tallies[number]
            assert tally.contention is not None
            self.parts.append((batch.first, tally, tally.contention))

    def total(self, pick: Callable[[Tally, Contention], Counts]) -> float:
        """The launch total of a counter."""
        counts = np.zeros(len(self.plan.blocks), dtype=np.int64)
        for first, tally, contention in self.parts:
            values = pick(tally, contention)
            counts[first : first + values.size] = values
        return self.plan.total(counts)

    def hits(self) -> list[Hits]:
        """Hits by place in the plan."""
        found = []
        for first, _, contention in self.parts:
            hits = contention.hits()
            found.append(hits._replace(slots=hits.slots + first))
        return found


def hottest(parts: Sequence[Hits], plan: SamplingPlan) -> Hottest:
    """Operations on the hottest address of the launch, from hits in the sampled blocks.

    What several blocks hit is everyone's: a block's hits count for all blocks it stands for. The
    address is chosen without the block whose hits there are then counted, for each block in
    turn: of addresses hit at random the one hit most is no hotter elsewhere, and one that a
    block has to itself counts for that block alone. At least what was seen is counted, exactly
    that where every block was run.
    """
    if not any(part.addresses.size for part in parts):
        return Hottest(0.0, 0.0)
    addresses = np.concatenate([part.addresses for part in parts])
    units, place = np.unique(addresses, return_inverse=True)
    slots = np.concatenate([part.slots for part in parts])
    operations = np.concatenate([part.operations for part in parts])
    requests = np.concatenate([part.requests for part in parts])
    weights = plan.weights()
    seen = np.bincount(place, operations, minlength=units.size)
    top = int(seen.argmax())
    at_top = place == top
    least = Hottest(float(seen[top]), float(requests[at_top].sum()))
    if plan.complete:
        return least
    whole = np.bincount(place, operations * weights[slots], minlength=units.size)
    chosen = np.sort(np.argsort(-whole, kind="stable")[:CANDIDATES])
    number = np.full(units.size, -1, dtype=np.int64)
    number[chosen] = np.arange(chosen.size)
    kept = number[place] >= 0
    cells = number[place[kept]] * weights.size + slots[kept]
    shape = chosen.size, weights.size

    def by_block(values: Floats) -> Floats:
        found = np.bincount(cells, values[kept], minlength=shape[0] * shape[1])
        weighted: Floats = found.reshape(shape) * weights
        return weighted

    acted, asked = by_block(operations), by_block(requests)
    best = (acted.sum(axis=1)[:, None] - acted).argmax(axis=0)
    blocks = np.arange(weights.size)
    found = Hottest(float(acted[best, blocks].sum()), float(asked[best, blocks].sum()))
    return found if found.operations > least.operations else least
