"""Trip counts: how often each loop's body runs, and how that is known.

A user gives counts by label, by source line (of ``.loc``, else of the PTX) or as ``default``.
What nobody gives is assumed, marked and warned about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.dataflow import definitions, reads
from wattcast.features.errors import Diagnostic, LaunchError
from wattcast.features.launch import Launch
from wattcast.features.loops import Loop, LoopForest, exits
from wattcast.features.ptx.ir import Immediate
from wattcast.features.schemas.counting import ASSUMED_N_LOOP

How = Literal["constant", "inferred", "executed", "given", "assumed"]
"""How a trip count is known (docs/design.md, KernelAnalysis)."""

DEFAULT_TRIP_COUNT = float(ASSUMED_N_LOOP)
"""Trips of a loop nobody told us about. A documented guess (see ``ASSUMED_N_LOOP``), not a
measurement: the answer is marked and its interval spans ``ASSUMED_TRIP_RANGE``."""

ASSUMED_TRIP_RANGE = (1.0, 1000.0)
"""Trips an assumed loop may really make, for the interval of an answer. The ends are as far
from the assumed 32 by factor on either side (32 x 32 = 1024), rounded."""


def told_trips(launch: Launch) -> float:
    """Trips told of each loop of a launch that nobody gave: ``DEFAULT_TRIP_COUNT`` up to a million
    threads, beyond as many as the middle of ``assumed_trips_of``, at least 1.

    Times of 40 launches of public programs beyond ten million threads are 1.4 times off in the
    median (``python -m studies code-alone``), 5.1 with the one number for all (39 launches, the
    same command at revision 2e67fde2). Some of these programs taught the middle.
    """
    return float(max(1, round(min(DEFAULT_TRIP_COUNT, _middle(launch)))))


def assumed_trips_of(launch: Launch, nested: int = 1) -> tuple[float, float]:
    """Trips an assumed loop of a launch may really make: a launch of few threads goes round its
    loops far more often than one of many.

    The middle falls with the threads to the power of .43, and is the assumed number at a million
    (2^20): so public programs say that were asked without arguments (an RTX 3080, ``python -m
    studies code-alone``). Times of nine in ten of the first 58 of them lay within a factor of 100
    of it. It is no promise: where the data decide, times lie beyond. Of loops in each other,
    ``nested`` deep, the trips together have this range, as it is one of whole times.
    """
    middle, told = _middle(launch), told_trips(launch)
    ends = min(1.0, middle / 100), max(DEFAULT_TRIP_COUNT, middle * 100)
    least, most = (told * (end / told) ** (1 / nested) for end in ends)
    return least, most


def _middle(launch: Launch) -> float:
    threads = launch.reference_threads or launch.threads
    return DEFAULT_TRIP_COUNT * float((2**20 / threads) ** 0.43)


@dataclass(frozen=True, slots=True)
class TripCount:
    """How often a loop's body runs each time the loop is entered.

    ``loop`` indexes ``LoopForest.loops``; ``line`` is the PTX line of the header and
    ``source_line`` the ``.loc`` line there (``None`` without line information). ``source_count``
    is what was given (or is assumed) for the loop of the source; an unrolled one goes round less
    often.
    """

    loop: int
    label: str | None
    line: int
    source_line: int | None
    count: float
    how: How
    source_count: float | None = None

    def if_assumed(self, trips: float | None) -> float:
        """The count if what is guessed of the loop of the source were ``trips``."""
        if trips is None or self.how != "assumed":
            return self.count
        return trips * self.count / self.source_count if self.source_count else trips

    def warning(self) -> Diagnostic:
        """What to tell of a count that nobody gave and no analysis found."""
        where = self.label or f"line {self.line}"
        detail = f"{self.source_count or self.count:,.4g} is assumed"
        return Diagnostic(
            "trip_count_assumed", f"no trip count for the loop at {where}; {detail}", self.line
        )


def resolve_trips(
    cfg: ControlFlowGraph, forest: LoopForest, given: Mapping[str, float], launch: Launch
) -> tuple[TripCount, ...]:
    """A trip count for every loop, in the order of ``forest.loops``.

    A line means the innermost loops that hold it. Lines and ``default`` count trips of the source:
    loops that the compiler made of one (``unrolled``) share the number. A label is one loop of the
    PTX. A label wins over a line, a line over
    ``default``. Raises LaunchError (field ``loops``) for a count that is negative or not
    finite, and for a key that names no loop.
    """
    counts = _checked(given)
    told = told_trips(launch) if forest.loops else DEFAULT_TRIP_COUNT
    labels, unrolled_loops = _named(forest, cfg)
    chosen: dict[int, float] = {}
    lines = [key for key in counts if key.isdecimal()]
    by_line = _innermost_by_line(cfg, forest) if lines else {}
    for key in lines:
        for loop in _at_line(by_line, key, forest):
            chosen.setdefault(loop.index, counts[key])
    if "default" in counts:
        for loop in forest.loops:
            chosen.setdefault(loop.index, counts["default"])
    source = dict(chosen)
    defaults: dict[int, float] = {}
    for parts in unrolled_loops:
        numbers = {chosen.get(loop) for loop, _ in parts}
        if len(numbers) > 1:
            continue
        if (number := numbers.pop()) is None:
            defaults.update(shared(parts, told))
        else:
            chosen.update(shared(parts, number))
    for key, count in counts.items():
        if key in labels:
            chosen[labels[key].index] = source[labels[key].index] = count
        elif key != "default" and not key.isdecimal():
            names = sorted(labels)
            raise LaunchError(
                f"loops[{key!r}] names no loop of this kernel; its loops are at: "
                f"{', '.join(names[:8]) or 'none'}",
                field="loops",
                known=names,
            )
    trips: list[TripCount] = []
    for loop in forest.loops:
        known = chosen.get(loop.index)
        how: How = "assumed" if known is None else "given"
        count = defaults.get(loop.index, told) if known is None else known
        if known is None and loop.index in forest.waiting:
            count, how = 1.0, "inferred"
        elif known is None:
            source.setdefault(loop.index, told)
        source_line = loop.location.line if loop.location else None
        trips.append(TripCount(loop.index, loop.label, loop.line, source_line, count, how,
                               source.get(loop.index)))  # fmt: skip
    return tuple(trips)


def _checked(given: Mapping[str, float]) -> dict[str, float]:
    for key, count in given.items():
        if not isfinite(count) or count < 0:
            raise LaunchError(
                f"loops[{key!r}] is {count:g}; a trip count must be a finite number >= 0",
                field="loops",
            )
    return {key.strip(): float(count) for key, count in given.items()}


Steps = tuple[tuple[int, int], ...]
"""Loops of one source loop with their steps in source trips, the widest first."""


@attached
def _named(
    forest: LoopForest, cfg: ControlFlowGraph
) -> tuple[Mapping[str, Loop], tuple[Steps, ...]]:
    """Loops by label, and those that the compiler unrolled: the same for every launch."""
    labels = {label: loop for loop in forest.loops for label in cfg.blocks[loop.header].labels}
    return labels, tuple(dict.fromkeys(unrolled(cfg, forest).values()))


def _innermost_by_line(cfg: ControlFlowGraph, forest: LoopForest) -> dict[int, set[int]]:
    """Loops whose own blocks (not those of inner loops) hold a line of source or PTX."""
    body = cfg.body
    sourced = any(instruction.location for instruction in body.instructions)
    found: dict[int, set[int]] = {}
    for block in cfg.blocks:
        loop = forest.innermost[block.index]
        if loop < 0:
            continue
        for instruction in body.instructions[block.start : block.end]:
            place = instruction.location
            line = place.line if sourced and place else instruction.line
            found.setdefault(line, set()).add(loop)
    return found


def _at_line(by_line: dict[int, set[int]], key: str, forest: LoopForest) -> list[Loop]:
    loops = [forest.loops[index] for index in by_line.get(int(key), ())]
    if not loops:
        raise LaunchError(
            f"loops[{key!r}]: no loop holds line {key}; loops are at lines: "
            f"{', '.join(str(line) for line in sorted(by_line)[:8]) or 'none'}",
            field="loops",
            known=sorted(by_line)[:64],
        )
    deepest = max(loop.depth for loop in loops)
    return [loop for loop in loops if loop.depth == deepest]


# --- loops of the source that the compiler made several of ------------------------------------
#
#     for (k = 0; k < n; ++k)   ->   four steps at a time, then one at a time
#
# They stand in the same loop and line, are decided by the same things, and count by steps that are
# multiples of each other. A trip count of the source is shared out among them.


def unrolled(cfg: ControlFlowGraph, forest: LoopForest) -> Mapping[int, Steps]:
    """For each loop that is part of an unrolled one: all parts of that."""
    alike: dict[object, list[tuple[int, int]]] = {}
    for loop in forest.loops:
        if loop.location is not None and (step := _step(cfg, loop)):
            alike.setdefault((loop.parent, loop.location.line), []).append((step, loop.index))
    found: dict[int, Steps] = {}
    for group in alike.values():
        least = min(step for step, _ in group)
        steps = [step // least for step, _ in group]
        if len(set(steps)) < len(steps) or len(steps) < 2 or any(s % least for s, _ in group):
            continue  # as many loops of the source, in one line
        parts = tuple(sorted(((loop, step // least) for step, loop in group), key=lambda p: -p[1]))
        found.update((loop, parts) for loop, _ in parts)
    return found


def shared(parts: Steps, trips: float) -> dict[int, float]:
    """Trips of each part, for trips of the source."""
    found = {}
    for number, (loop, step) in enumerate(parts):
        whole = trips // step if number + 1 < len(parts) else trips / step
        found[loop] = float(whole)
        trips -= whole * step
    return found


def _step(cfg: ControlFlowGraph, loop: Loop) -> int | None:
    """By how much the counter moves that the loop's exit compares, if it is a number."""
    blocks = (cfg.blocks[index] for index in sorted(loop.blocks))
    made = definitions(one for block in blocks for one in cfg.instructions(block))
    wanted = [one.predicate for one in exits(cfg, loop) if one.predicate is not None]
    for name in wanted:  # grows: what the tests are computed from, nearest first
        for one in made.get(name, ()):
            number, sources = one.operands[-1], reads(one)
            if one.base in ("add", "sub") and isinstance(number, Immediate):
                again = {other for s in sources for o in made.get(s, ()) for other in reads(o)}
                if name in sources or name in again:
                    return abs(int(number.value)) or None
            if one.base in ("setp", "add", "sub", "mov", "and", "or", "cvt"):
                wanted += [other for other in sources if other not in wanted]
    return None
