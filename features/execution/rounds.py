"""Rounds of a loop as they were watched: who ran what, and what was counted meanwhile."""

from __future__ import annotations

import numpy as np

from wattcast.features.execution.context import Run
from wattcast.features.execution.groups import Counts, Group
from wattcast.features.execution.operands import Frame
from wattcast.features.execution.paths import Path
from wattcast.features.execution.spaces import Offsets


class Step:
    """One execution of a run: by whom, and which of them took its branch."""

    __slots__ = ("group", "run", "taken")

    def __init__(self, run: Run, group: Group) -> None:
        self.run = run
        self.group = group
        self.taken: Group | None = None

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


class Watch:
    """The recent rounds of one loop by one group."""

    __slots__ = (
        "addresses", "counters", "frames", "group", "guarded", "inner", "marks", "path", "rounds",
        "run_stats", "seen", "steps",
    )  # fmt: skip

    def __init__(self, group: Group, steps: list[Step]) -> None:
        self.group = group
        self.steps = steps
        self.rounds = 0
        self.path: Path | None = None
        self.frames: list[Frame] = []
        self.counters: list[Counters] = []
        self.run_stats: list[Counts] = []
        self.guarded: list[Counts] = []
        self.addresses: list[dict[int, Offsets | None]] = []
        self.inner: list[dict[int, tuple[Counts, Counts]]] = []
        self.marks: list[int] = []
        self.seen: list[dict[int, tuple[tuple[int, int], Counts]]] = []  # footprint mark, extra

    def matches(self, group: Group, steps: list[Step]) -> bool:
        """Whether the loop was gone round as before."""
        return (
            len(steps) == len(self.steps)
            and same(self.group, group)
            and all(a.alike(b) for a, b in zip(steps, self.steps, strict=True))
        )
