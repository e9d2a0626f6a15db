"""Rounds of a loop as they were watched: who ran what, and what was counted meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wattcast.features.execution.context import Run
from wattcast.features.execution.groups import Counts, Group
from wattcast.features.execution.operands import Frame
from wattcast.features.execution.paths import Path
from wattcast.features.execution.spaces import Offsets


@dataclass(slots=True, eq=False)
class Step:
    """One execution of a run: by whom, and which of them took its branch."""

    run: Run
    group: Group
    taken: Group | None = None

    def alike(self, other: Step) -> bool:
        """The same run by the same threads, with the same threads branching."""
        return (
            self.run is other.run
            and same(self.group, other.group)
            and same(self.taken, other.taken)
        )


def same(one: Group | None, other: Group | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.count != other.count:
        return False
    return np.array_equal(one.mask, other.mask)


Counters = dict[int, list[Counts]]


@dataclass(slots=True, eq=False)
class Watch:
    """The recent rounds of one loop by one group."""

    group: Group
    steps: list[Step]
    rounds: int = 0
    path: Path | None = None
    frames: list[Frame] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)
    run_stats: list[Counts] = field(default_factory=list)
    guarded: list[Counts] = field(default_factory=list)
    addresses: list[dict[int, Offsets | None]] = field(default_factory=list)
    inner: list[dict[int, tuple[Counts, Counts]]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    seen: list[dict[int, tuple[tuple[int, int], Counts]]] = field(default_factory=list)
    """Footprint mark and extra sectors of each access."""

    def matches(self, group: Group, steps: list[Step]) -> bool:
        """Whether the loop was gone round as before."""
        return (
            len(steps) == len(self.steps)
            and same(self.group, group)
            and all(a.alike(b) for a, b in zip(steps, self.steps, strict=True))
        )
