"""Choosing among operating points: hand-worked sets, and what holds for any."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.errors import ConstraintError
from wattcast.models.choice import OBJECTIVES, Constraints, Point, best_points, outweighs, pareto

# time s, power W: energy 10, 9, 8.4, 12, 9 J
FAST = Point("fast", 1.0, 10.0)
MIDDLE = Point("middle", 1.2, 7.5)
FRUGAL = Point("frugal", 1.4, 6.0)
WORSE = Point("worse", 1.5, 8.0)
SLOW = Point("slow", 3.0, 3.0)
ALL = (FAST, MIDDLE, FRUGAL, WORSE, SLOW)


def test_the_pareto_set_and_the_best_points_by_hand() -> None:
    assert [point.key for point in pareto(ALL)] == ["fast", "middle", "frugal"]
    best = {name: point.key for name, point in best_points(ALL, 1.0, Constraints()).items()}
    # EDP 10, 10.8, 11.76, 18, 27; ED2P 10, 12.96, 16.5, 27, 81
    assert best == {
        "min_energy": "frugal",
        "min_edp": "fast",
        "min_ed2p": "fast",
        "max_performance": "fast",
        "min_power": "slow",
    }


def test_constraints_leave_points_out() -> None:
    def chosen(**bounds: float) -> dict[str, str]:
        found = best_points(ALL, 1.0, Constraints(**bounds))
        return {name: point.key for name, point in found.items()}

    assert chosen(max_slowdown=1.2)["min_energy"] == "middle"
    assert chosen(max_power_watts=7.0)["max_performance"] == "frugal"
    assert chosen(deadline_seconds=1.45)["min_power"] == "frugal"
    # The reference itself keeps a slowdown of 1, whatever rounding does.
    assert chosen(max_slowdown=1.0)["min_energy"] == "fast"


def test_infeasible_constraints_name_the_nearest_values() -> None:
    with pytest.raises(ConstraintError) as caught:
        best_points(ALL, 2.0, Constraints(max_slowdown=0.25, max_power_watts=2.0))
    assert "max_slowdown 0.25 (the least of any point is 0.5)" in caught.value.detail
    assert "max_power_watts 2 (the least of any point is 3)" in caught.value.detail


def test_equal_points_go_to_the_first_given() -> None:
    twins = (Point("low clock", 1.0, 5.0), Point("high clock", 1.0, 5.0))
    assert [point.key for point in pareto(twins)] == ["low clock"]
    assert best_points(twins, 1.0, Constraints())["min_energy"].key == "low clock"


points = st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1, 1e3)), min_size=1, max_size=30).map(
    lambda pairs: [Point(index, *pair) for index, pair in enumerate(pairs)]
)


@given(points)
def test_no_pareto_point_is_beaten_and_every_other_one_is(found: list[Point[int]]) -> None:
    front = pareto(found)
    chosen = {point.key for point in front}
    for point in found:
        beaten = any(
            other.time_seconds <= point.time_seconds
            and other.energy_joules <= point.energy_joules
            and other.key != point.key
            and (other.time_seconds, other.energy_joules)
            != (point.time_seconds, point.energy_joules)
            for other in found
        )
        assert not (beaten and point.key in chosen)
        if not beaten:
            same = (point.time_seconds, point.energy_joules)
            assert same in {(each.time_seconds, each.energy_joules) for each in front}


@given(points)
def test_best_points_minimise_and_two_of_them_lie_on_the_front(found: list[Point[int]]) -> None:
    best = best_points(found, 1.0, Constraints())
    for name, cost in OBJECTIVES.items():
        assert cost(best[name]) == min(cost(point) for point in found)
    front = {(each.time_seconds, each.energy_joules) for each in pareto(found)}
    for name in ("min_energy", "min_edp", "max_performance"):
        assert (best[name].time_seconds, best[name].energy_joules) in front


@pytest.mark.parametrize("scale", [0.7, 0.9, 0.94, 0.97, 1.0, 1.1])
@pytest.mark.parametrize("one_in_ten", [1.0, 1.05, 1.2, 1.5])
def test_a_point_is_worth_it_where_the_expected_saving_exceeds_the_expected_loss(
    scale: float, one_in_ten: float
) -> None:
    # Quantiles of the error, a tenth of which lies beyond ``one_in_ten``.
    errors = np.array([NormalDist().inv_cdf((at + 0.5) / 20_000) for at in range(20_000)])
    drawn = scale * np.exp(errors * np.log(one_in_ten) / 1.282)
    expected = float(np.mean(1 - drawn) - np.mean(np.maximum(drawn - 1, 0)))
    assert outweighs(scale, one_in_ten) == (expected > 0 and scale <= 0.98)


def test_a_saving_that_usually_pays_is_proposed_though_one_kernel_in_ten_loses() -> None:
    assert outweighs(0.92, 1.2)  # one in ten costs 10 % more, the others save 8 % and more
    assert not outweighs(0.97, 1.2)
    assert not outweighs(0.985, 1.01)  # less than measurements differ by
