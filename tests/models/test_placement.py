"""Placements beside all there are: small programs whose every placement can be tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from time import monotonic

import numpy as np
import pytest

from wattcast.features.errors import GivenUpError
from wattcast.models.placement import (
    CLOSE,
    GAP,
    Place,
    Placement,
    Program,
    cheapest,
    least_power,
    shortest,
)


def later() -> float:
    return monotonic() + 60


def program(seed: int, **given: object) -> Program:
    """Three works on one board of one kind and two of another, each at two limits."""
    random = np.random.default_rng(seed)
    slow = random.uniform(1.0, 10.0, (3, 1)) * random.uniform(0.5, 2.0, (3, 4))
    found = Program(
        units=random.integers(1, 3, 3).tolist(),
        seconds=slow,
        joules=slow * random.uniform(50, 300, (3, 4)),
        deadlines=np.full(3, inf),
        places=[Place(0, 100.0), Place(0, 200.0), Place(1, 150.0), Place(1, 300.0)],
        boards=[1, 2],
        idle_watts=[20.0, 30.0],
    )
    return replace(found, **given)  # type: ignore[arg-type]


def every(asked: Program) -> Iterator[tuple[float, float]]:
    """Joules and makespan of each way to put units on boards at limits, within the cap."""
    boards = [kind for kind, count in enumerate(asked.boards) for _ in range(count)]
    choices = [[at for at, p in enumerate(asked.places) if p.kind == k] for k in boards]
    works = [work for work, count in enumerate(asked.units) for _ in range(count)]
    for limits in product(*choices):
        for put in product(range(len(boards)), repeat=len(works)):
            drawn = sum(
                asked.places[limits[board]].limit_watts if board in put else asked.idle_watts[kind]
                for board, kind in enumerate(boards)
            )
            if drawn > asked.power_cap_watts:
                continue
            loads, joules, late = [0.0] * len(boards), 0.0, False
            for work, board in sorted(zip(works, put, strict=True), key=lambda e: asked.due[e[0]]):
                loads[board] += asked.seconds[work, limits[board]]
                joules += asked.joules[work, limits[board]]
                late |= loads[board] > asked.due[work]
            if not late:
                yield joules, max(loads)


def joules_of(asked: Program, found: Placement) -> float:
    return float((found.units * asked.joules).sum())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cap", [inf, 420.0])
def test_the_least_of_all_there_are(seed: int, cap: float) -> None:
    asked = program(seed, power_cap_watts=cap)
    possible = [*every(asked)]
    quickest = shortest(asked, later())
    assert quickest is not None
    best = min(seconds for _, seconds in possible)
    # What is aggregated over the boards of a place and shared out after may miss the last percent.
    assert best * (1 - 1e-9) <= quickest.makespan_seconds <= best * 1.1
    assert quickest.bound <= best * (1 + 1e-9)
    bound = best * 1.4
    asked = replace(asked, makespan_seconds=bound)
    found = cheapest(asked, later())
    assert found is not None
    least = min(joules for joules, seconds in possible if seconds <= bound)
    assert least * (1 - GAP) <= joules_of(asked, found) <= least * 1.05
    assert found.bound <= least * (1 + 1e-9)
    assert (found.units.sum(axis=1) == asked.units).all()
    assert (found.ends <= asked.due * (1 + 1e-9)).all()
    drawn = sum(n * p.limit_watts for n, p in zip(found.boards, asked.places, strict=True))
    assert drawn <= cap


def test_deadlines_hold_and_cost_joules() -> None:
    free = cheapest(replace(program(1), makespan_seconds=100.0), later())
    assert free is not None
    asked = replace(program(1), makespan_seconds=100.0)
    late = int(free.ends.argmax())
    due = np.full(3, inf)
    due[late] = free.ends[late] * 0.6
    asked = replace(asked, deadlines=due)
    found = cheapest(asked, later())
    possible = [joules for joules, _ in every(asked)]
    assert found is not None
    assert possible
    assert found.ends[late] <= due[late] * (1 + 1e-9)
    assert joules_of(asked, found) <= min(possible) * 1.05


def test_nothing_is_found_where_nothing_is() -> None:
    asked = program(2)
    quickest = min(seconds for _, seconds in every(asked))
    assert cheapest(replace(asked, makespan_seconds=quickest * 0.99), later()) is None
    needs = least_power(asked, later())
    assert needs is not None
    assert not [*every(replace(asked, power_cap_watts=needs - 1))]
    assert [*every(replace(asked, power_cap_watts=needs + 1))]
    assert cheapest(replace(asked, power_cap_watts=needs - 1), later()) is None
    with pytest.raises(GivenUpError, match="took too long"):
        cheapest(asked, monotonic() - 1)


def test_many_units_are_shared_out_whole() -> None:
    """A work of 10^9 units over 40 boards: none is lost, and all boards end together."""
    places = [Place(0, 100.0), Place(0, 200.0)]
    asked = Program(
        units=[10**9, 7],
        seconds=np.array([[2e-6, 1e-6], [3.0, 2.0]]),
        joules=np.array([[1e-4, 1.5e-4], [90.0, 120.0]]),
        deadlines=np.array([inf, 60.0]),
        places=places,
        boards=[40],
        idle_watts=[10.0],
        power_cap_watts=6_000.0,
    )
    found = shortest(asked, later())
    assert found is not None
    assert found.units.sum(axis=1).tolist() == asked.units
    # 20 boards at 200 W and 20 at 100 W do 30 runs in 1 us.
    work = (10**9 * 1e-6 + 7 * 2.0) / 30
    assert work * 0.99 <= found.makespan_seconds <= work * CLOSE * 1.01
    assert found.ends[1] <= 60.0


def test_a_limit_that_no_work_feels_is_not_kept() -> None:
    """Time and joules are the same at 150 W and more: the boards are set to 150 W."""
    asked = Program(
        units=[100],
        seconds=np.array([[1.2, 1.0, 1.0]]),
        joules=np.array([[100.0, 99.0, 99.0]]),
        deadlines=np.array([inf]),
        places=[Place(0, 100.0), Place(0, 150.0), Place(0, 200.0)],
        boards=[4],
        idle_watts=[10.0],
        makespan_seconds=26.0,
    )
    found = cheapest(asked, later())
    assert found is not None
    assert found.units[0].tolist() == [0, 100, 0]
    assert found.boards[2] == 0
