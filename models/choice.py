"""Which of several operating points to run at: Pareto set, best ones, constraints.

A point is seconds, watts and joules of the same work under other clocks, launch shapes or GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from wattcast.features.errors import ConstraintError
from wattcast.models.intervals import Z80

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Point(Generic[K]):
    """One way to run: ``key`` names it; time, power, and their product."""

    key: K
    time_seconds: float
    power_watts: float

    @property
    def energy_joules(self) -> float:
        """Power times time."""
        return self.power_watts * self.time_seconds

    @property
    def edp(self) -> float:
        """Energy-delay product in joule seconds."""
        return self.energy_joules * self.time_seconds

    @property
    def ed2p(self) -> float:
        """Energy-delay-squared product in joule square seconds."""
        return self.edp * self.time_seconds


OBJECTIVES: Mapping[str, Callable[[Point[Any]], float]] = MappingProxyType(
    {
        "min_energy": lambda point: point.energy_joules,
        "min_edp": lambda point: point.edp,
        "min_ed2p": lambda point: point.ed2p,
        "max_performance": lambda point: point.time_seconds,
        "min_power": lambda point: point.power_watts,
    }
)
"""What a best point minimises, by name."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a point must keep to; ``None`` sets no bound.

    ``max_slowdown`` bounds time over that of the reference, 1.1 is a tenth longer.
    """

    max_slowdown: float | None = None
    max_power_watts: float | None = None
    deadline_seconds: float | None = None

    def violated(self, point: Point[K], reference_seconds: float) -> tuple[str, ...]:
        """Names of the constraints that a point breaks."""
        slack = 1 + 1e-12  # the reference itself keeps max_slowdown 1
        bounds = self.bounds(point.time_seconds, point.power_watts, reference_seconds)
        return tuple(name for name, bound, value in bounds if value > bound * slack)

    def bounds(
        self, time_seconds: float, power_watts: float, reference_seconds: float
    ) -> list[tuple[str, float, float]]:
        """Name and value of each bound that is set, and what is held against it."""
        every = (
            ("max_slowdown", self.max_slowdown, time_seconds / reference_seconds),
            ("max_power_watts", self.max_power_watts, power_watts),
            ("deadline_seconds", self.deadline_seconds, time_seconds),
        )
        return [(name, bound, value) for name, bound, value in every if bound is not None]


def pareto(points: Sequence[Point[K]]) -> tuple[Point[K], ...]:
    """Points that no other beats in both time and energy, the fastest first.

    Of points equal in both, the first given stays.
    """
    best: list[Point[K]] = []
    for point in sorted(points, key=lambda each: (each.time_seconds, each.energy_joules)):
        if not best or point.energy_joules < best[-1].energy_joules:
            best.append(point)
    return tuple(best)


def best_points(
    points: Sequence[Point[K]], reference_seconds: float, constraints: Constraints
) -> dict[str, Point[K]]:
    """The best feasible point for each of ``OBJECTIVES``.

    Ties go to the faster point, then to the thriftier, then to the first given. Raises
    ConstraintError where no point keeps to the constraints: it names each with the value that
    comes nearest.
    """
    feasible = [point for point in points if not constraints.violated(point, reference_seconds)]
    if not feasible:
        raise _infeasible(points, reference_seconds, constraints)
    feasible.sort(key=lambda each: (each.time_seconds, each.energy_joules))
    return {name: min(feasible, key=cost) for name, cost in OBJECTIVES.items()}


def outweighs(energy_scale: float, one_in_ten: float) -> bool:
    """Whether what a point is expected to save is worth it: ``LEAST_SAVING`` at least, and more
    than what it is expected to cost.

    ``energy_scale``: predicted energy over the reference's. ``one_in_ten``: factor, 1 at least, by
    which measured energy scales exceed predicted ones of one kernel in ten that the model never
    saw. Logarithms of what is measured over what is predicted are taken to be normal around 0, so
    that the expected loss, that of E = max(scale - 1, 0), has the closed form of an option's price
    (F. Black and M. Scholes, Journal of Political Economy 81(3), 1973).
    """
    spread = max(log(one_in_ten) / Z80, LEAST_SPREAD)
    away, expected = log(energy_scale) / spread, energy_scale * exp(spread**2 / 2)
    loss = expected * NORMAL.cdf(away + spread) - NORMAL.cdf(away)
    return 1 - expected > loss and 1 - energy_scale >= LEAST_SAVING


LEAST_SAVING = 0.02
"""Smaller savings than two measurements of one kernel differ by (``REPEATS`` of the scaling
models) are not proposed."""
NORMAL = NormalDist()
LEAST_SPREAD = 1e-9
"""Of a model without any error: keeps the quotient finite."""


def _infeasible(
    points: Sequence[Point[K]], reference_seconds: float, constraints: Constraints
) -> ConstraintError:
    fastest = min(point.time_seconds for point in points)
    frugal = min(point.power_watts for point in points)
    told = "; ".join(
        f"{name} {bound:g} (the least of any point is {least:.4g})"
        for name, bound, least in constraints.bounds(fastest, frugal, reference_seconds)
    )
    return ConstraintError(f"no point satisfies all constraints: {told}", field="constraints")
