"""Which work goes onto which boards, at which power limits: an integer program.

A place is a kind of board at one of its limits; how many boards are set to it is for the program to
say. Each work is a number of equal units, and a unit runs on one board without a pause. Units of a
place are shared out over its boards, those of the earliest deadline first, so that a place keeps a
deadline ``d`` where the work due by then fits into it:

    sum over work due by d of units x seconds  <=  d x boards of the place
    units of one work                          <=  floor(d / seconds) x boards of the place

Both are needed, and nearly enough: units are then shared out in full, and where one ends late the
program is solved again with all deadlines that much earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import GivenUpError, MissingExtraError

Floats = NDArray[np.float64]

GAP = 0.002
"""How far above the best possible joules a solution may lie, relative: predictions are off by 3 %
and more (docs/accuracy.md), so nobody can tell less."""

MOST_NODES = 100
"""Nodes of the solver's tree for one program: counted, not timed, so that the same request gets the
same answer. Programs of 40 boards of 4 kinds with 64 works at 5 limits mostly take one."""

MOST_WHOLE = 32
"""Units of a work up to which the program counts them one by one. More are divided and rounded to
whole units after: with 1,000 here the same programs take twenty times as long."""

TRIES, LEAST_EARLIER = 8, 1.001
"""Programs solved until all units are in time, and by which ratio deadlines are brought forward at
least."""

KEPT = 1 - 1e-6
"""The solver keeps to a constraint within 1e-6: it is asked for so much more."""

STEPS, CLOSE = 40, 1.01
"""Halvings in search of the shortest makespan, and how close two makespans end it, as a ratio."""

INFEASIBLE = 2
"""``scipy.optimize.milp``'s status for a program that has no solution."""


class Place(NamedTuple):
    """A kind of board, by its number, at one power limit."""

    kind: int
    limit_watts: float


@dataclass(frozen=True)
class Program:
    """What is asked. ``seconds`` and ``joules`` ``[work, place]`` are those of a unit, infinite
    where it cannot run; ``deadlines`` and the makespan are in seconds, infinite for none. A board
    that no place takes draws ``idle_watts`` of its kind."""

    units: Sequence[int]
    seconds: Floats
    joules: Floats
    deadlines: Floats
    places: Sequence[Place]
    boards: Sequence[int]
    idle_watts: Sequence[float]
    power_cap_watts: float = inf
    makespan_seconds: float = inf

    @property
    def due(self) -> Floats:
        """When each work must be done ``[work]``."""
        return np.minimum(self.deadlines, self.makespan_seconds)


@dataclass(frozen=True)
class Placement:
    """What is found: boards set to each place, units ``[work, place]``, when each work ends, and
    how long each place is at work. ``bound`` is what its joules, or its makespan where that was
    sought, cannot be below."""

    boards: NDArray[np.int64]
    units: NDArray[np.int64]
    ends: Floats
    makespan_seconds: float
    bound: float


def cheapest(program: Program, until: float) -> Placement | None:
    """Least joules within deadlines and makespan; ``None`` where no placement is found that keeps
    to them.

    Raises GivenUpError beyond ``until`` (``time.monotonic``) and MissingExtraError.
    """
    found, impossible = _within(program, until)
    if found is not None or impossible:
        return found
    quickest = shortest(replace(program, makespan_seconds=inf), until)
    if quickest is None or quickest.makespan_seconds > program.makespan_seconds:
        return None
    least = np.array(program.units, dtype=np.float64) @ program.joules.min(axis=1)
    return replace(quickest, bound=float(least))


def shortest(program: Program, until: float) -> Placement | None:
    """The shortest makespan found, and among near ones the least joules. Raises as ``cheapest``."""
    quickest, units = program.seconds.min(axis=1), np.array(program.units, dtype=np.float64)
    low = bound = max(float(quickest.max()), float(units @ quickest) / sum(program.boards))
    slowest = np.where(np.isfinite(program.seconds), program.seconds, 0.0).max(axis=1)
    best, _ = _within(replace(program, makespan_seconds=CLOSE * float(units @ slowest)), until)
    if best is None:
        return None
    for _ in range(STEPS):
        if best.makespan_seconds <= low * CLOSE:
            break
        middle = sqrt(low * best.makespan_seconds)
        found, impossible = _within(replace(program, makespan_seconds=middle), until)
        if found is not None:
            best = found
            continue
        low, bound = middle, middle if impossible else bound
    return replace(best, bound=min(bound, best.makespan_seconds))


def _within(program: Program, until: float) -> tuple[Placement | None, bool]:
    """What ``cheapest`` answers, and whether it is proven that there is nothing."""
    asked, bound = program, None
    for tried in range(TRIES):
        solved = _raw(asked, until)
        if solved is None or solved.x is None:
            return None, tried == 0 and (solved is None or solved.status == INFEASIBLE)
        bound = solved.mip_dual_bound if bound is None else bound
        found = _placement(program, _able(asked), solved, bound)
        late = found.ends / program.due
        if late.max() <= 1 + 1e-9:
            return found, False
        # First that of late works alone, then all.
        moved = (late > 1) | (tried >= TRIES // 2)
        earlier = np.where(moved, max(float(late.max()), LEAST_EARLIER), 1.0)
        asked = replace(asked, deadlines=asked.due / earlier)
    return None, False


def least_power(program: Program, until: float) -> float | None:
    """Watts below which no power cap can be kept; ``None`` where none is enough."""
    found = _raw(replace(program, power_cap_watts=inf), until, power=True)
    return None if found is None or found.x is None else float(found.mip_dual_bound)


# --- the program ---------------------------------------------------------------------------------


def _placement(program: Program, able: NDArray[np.bool_], solved: Any, bound: float) -> Placement:
    parts, count = _parts(program), len(program.places)
    boards = np.rint(solved.x[:count]).astype(np.int64)
    units = np.zeros(program.seconds.shape, dtype=np.int64)
    shares = np.zeros(program.seconds.shape)
    shares[able] = solved.x[count:]
    for work, each in enumerate(shares):
        units[work] = _rounded(each / parts[work], program.units[work])
    _lower_limits(program, boards, units)
    ends = _ends(program, boards, units)
    return Placement(boards, units, ends, float(ends.max()), bound)


def _lower_limits(program: Program, boards: NDArray[np.int64], units: NDArray[np.int64]) -> None:
    """Moves the boards of a place, with all their work, to a lower limit that none of it feels:
    a program whose joules are the same does not tell the two apart."""
    for at, place in enumerate(program.places):
        here = units[:, at] > 0
        for lower, other in enumerate(program.places):
            if other.kind != place.kind or other.limit_watts >= place.limit_watts:
                continue
            if all(
                (each[here, lower] <= each[here, at] * (1 + 1e-9)).all()
                for each in (program.seconds, program.joules)
            ):
                for counts in (boards, units.T):
                    counts[lower] += counts[at]
                    counts[at] = 0
                break


def _able(program: Program) -> NDArray[np.bool_]:
    """Where a unit ends in time ``[work, place]``."""
    found: NDArray[np.bool_] = program.seconds <= program.due[:, None] * (1 + 1e-12)
    return found & np.isfinite(program.seconds)


def _parts(program: Program) -> Floats:
    """Into how many parts each work is divided: its units, or fewer of more than one."""
    return np.minimum(np.array(program.units, dtype=np.float64), MOST_WHOLE)


def _raw(program: Program, until: float, *, power: bool = False) -> Any:
    """What the solver says; ``None`` for a program that has no solution. ``power``: the least power
    instead of the least joules."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError as error:
        raise MissingExtraError("scipy", "fleet") from error
    able, parts, count = _able(program), _parts(program), len(program.places)
    if not able.any(axis=1).all():
        return None
    each = np.array(program.units, dtype=np.float64) / parts
    works, places = np.nonzero(able)
    rows, low, high = _rows(program, works, places, each, parts)
    entries = [(row, at, value) for row, one in enumerate(rows) for at, value in one.items()]
    row, at, value = (np.array(column) for column in zip(*entries, strict=True))
    shape = (len(rows), count + len(works))
    drawn = np.array([p.limit_watts - program.idle_watts[p.kind] for p in program.places])
    joules = program.joules[works, places] * each[works]
    cost = np.concatenate([drawn, 0 * joules] if power else [0 * drawn, joules])
    scale = float(np.abs(cost).max()) or 1.0
    most = np.concatenate([[program.boards[p.kind] for p in program.places], parts[works]])
    whole = np.concatenate([np.ones(count), parts[works] == np.array(program.units)[works]])
    left = until - monotonic()
    if left <= 0:
        raise GivenUpError("placing the jobs took too long: ask about fewer jobs, boards or limits")
    found = milp(
        cost / scale,
        integrality=whole,
        bounds=Bounds(0, most),
        constraints=LinearConstraint(csr_array((value, (row, at)), shape=shape), low, high),
        options={"node_limit": MOST_NODES, "time_limit": left, "mip_rel_gap": GAP},
    )
    if found.status == 1 and monotonic() >= until:
        raise GivenUpError("placing the jobs took too long: ask about fewer jobs, boards or limits")
    if found.x is None:
        return found
    idle = float(np.dot(program.boards, program.idle_watts)) if power else 0.0
    found.mip_dual_bound = found.mip_dual_bound * scale + idle
    return found


def _rows(
    program: Program, works: NDArray[Any], places: NDArray[Any], each: Floats, parts: Floats
) -> tuple[list[dict[int, float]], list[float], list[float]]:
    """The constraints: coefficients by variable, and their ends. Variables are the boards of each
    place, then the parts of each work there."""
    rows: list[dict[int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def keep(row: dict[int, float], least: float, most: float) -> None:
        size = max(map(abs, row.values()), default=1.0)
        rows.append({at: value / size for at, value in row.items()})
        low.append(least / size)
        high.append(most / size)

    count = len(program.places)
    of_work: list[list[int]] = [[] for _ in program.units]
    of_place: list[list[int]] = [[] for _ in program.places]
    for number, (work, place) in enumerate(zip(works.tolist(), places.tolist(), strict=True)):
        of_work[work].append(count + number)
        of_place[place].append(number)
    for work, at in enumerate(of_work):
        keep(dict.fromkeys(at, 1.0), parts[work], parts[work])
    for kind, boards in enumerate(program.boards):
        own = [at for at, place in enumerate(program.places) if place.kind == kind]
        keep(dict.fromkeys(own, 1.0), 0.0, boards)
    if program.power_cap_watts < inf:
        idle = program.idle_watts
        more = {at: p.limit_watts - idle[p.kind] for at, p in enumerate(program.places)}
        keep(more, -inf, program.power_cap_watts - float(np.dot(program.boards, idle)))
    for place, numbers in enumerate(of_place):
        for row in _due(program, works, each, place, numbers, count):
            keep(row, -inf, 0.0)
    return rows, low, high


def _due(
    program: Program, works: NDArray[Any], each: Floats, place: int, numbers: list[int], count: int
) -> Iterator[dict[int, float]]:
    """That the work at a place is done in time on its boards."""
    due, seconds = program.due, program.seconds[:, place]
    row: dict[int, float] = {}
    ordered = sorted(numbers, key=lambda number: float(due[works[number]]))
    for at, number in enumerate(ordered):
        work = int(works[number])
        end = float(due[work]) * KEPT
        if end == inf:  # only that there is a board
            most = float(program.units[work])
        else:
            row[count + number] = each[work] * seconds[work]
            if at + 1 == len(ordered) or due[works[ordered[at + 1]]] > due[work]:
                yield {**row, place: -end}
                by_then = {count + n: int(works[n]) for n in ordered[: at + 1]}
                for long in _long(by_then, seconds / end, each):
                    yield {**long, place: -1.0}
            most = np.floor(float(due[work]) * (1 + 1e-12) / seconds[work])
        yield {count + number: each[work], place: -float(min(most, program.units[work]))}


def _long(works: Mapping[int, int], shares: Floats, each: Floats) -> Iterator[dict[int, float]]:
    """That a board has room for one unit of more than half of the time, for two of more than a
    third, and so on. ``shares`` are of the time, one of each unit of a work."""
    for k in (1, 2, 3, 4):
        # Of units that fit into it, these sum up to k at most (Fekete and Schepers 2001, New
        # classes of fast lower bounds for bin packing problems).
        counts = {at: np.ceil((k + 1) * shares[work] * KEPT) - 1 for at, work in works.items()}
        found = {
            at: float(count * each[works[at]] / k) for at, count in counts.items() if count > 0
        }
        if found:
            yield found


# --- units on boards -----------------------------------------------------------------------------


def _rounded(shares: Floats, units: int) -> NDArray[np.int64]:
    """Whole units by their shares of a work: what is left goes to the largest remainders."""
    exact = np.maximum(shares, 0.0) / max(float(shares.sum()), 1e-300) * units
    whole = np.floor(exact + 1e-6).astype(np.int64)
    left = int(units - whole.sum())
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: max(left, 0)]] += 1
    if left < 0:
        whole[int(whole.argmax())] += left
    return whole


def _ends(program: Program, boards: NDArray[np.int64], units: NDArray[np.int64]) -> Floats:
    """When each work ends ``[work]``."""
    ends = np.zeros(len(program.units))
    for place, count in enumerate(boards.tolist()):
        works: list[int] = np.flatnonzero(units[:, place]).tolist()
        if works:
            seconds, here = program.seconds[works, place], units[works, place]
            found = _ends_here(here, seconds, program.due[works], max(count, 1))
            ends[works] = np.maximum(ends[works], found)
    return ends


def _ends_here(units: NDArray[np.int64], seconds: Floats, due: Floats, boards: int) -> Floats:
    """The same of the works at one place. The longest units are shared out first; then each board
    runs what is due first ahead."""
    times, rank = np.unique(due, return_inverse=True)
    loads = np.zeros((len(times), boards))  # of works due at each time
    taken = np.zeros((len(units), boards))
    for work in np.lexsort((due, -seconds)):
        at = rank[work]
        slack = np.append(0.0, times[at + 1 :] - times[at])
        # How long a board is at work by then, or must have been for what is due later.
        busy = (np.cumsum(loads, axis=0)[at:] - slack[:, None]).max(axis=0)
        taken[work] = _shared(np.maximum(busy, 0.0), int(units[work]), float(seconds[work]))
        loads[at] += taken[work] * seconds[work]
    ends, done = np.zeros(len(units)), np.zeros(boards)
    for work in np.lexsort((-seconds, due)):
        done = done + taken[work] * seconds[work]
        ends[work] = done[taken[work] > 0].max()
    return ends


def _shared(loads: Floats, units: int, seconds: float) -> Floats:
    """How many of equal units each board takes, so that all end as early as can be."""
    ordered = np.cumsum(np.sort(loads)) + units * seconds
    level = float((ordered / np.arange(1, len(loads) + 1)).min())
    taken = np.floor(np.maximum(level - loads, 0.0) / seconds * (1 - 1e-12))
    left = int(units - taken.sum())
    order = np.argsort(loads + taken * seconds, kind="stable")
    for at in range(0, left, len(loads)):
        taken[order[: left - at]] += 1
    return taken
