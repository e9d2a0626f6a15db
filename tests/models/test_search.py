"""The search for the best configuration, on boards of which the tests know everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattcast.features.errors import DataError
from wattcast.models.search import GAIN, LEARNED_FROM, Floats, Search, coded

ROWS = list(product((16, 32, 64, 128, 256, 512), (1, 2, 4, 8), (1, 2, 3, 4), (False, True)))


def board(seed: int) -> tuple[Floats, Floats]:
    """True seconds of a space and what is predicted of them: wrong by a smooth tenth that goes
    with the parameters, and by a twentieth that goes with nothing."""
    random = np.random.default_rng(seed)
    columns = coded(ROWS)
    places = np.log2(1 + columns)
    truth = np.exp(((places - random.uniform(places.min(0), places.max(0))) ** 2).sum(1) * 0.1)
    truth *= np.exp(random.normal(0, 0.05, truth.size))
    wave = np.cos(places @ random.normal(size=places.shape[1]) + random.uniform(0, 6))
    return truth, truth * np.exp(0.15 * wave + random.normal(0, 0.05, truth.size))


def searched(
    truth: Floats, predicted: Floats, measure: Callable[[int, int], float | None], most: int = 60
) -> Search:
    search = Search(coded(ROWS), predicted)
    for number in range(most):
        asked = search.propose()
        if not asked or search.finished():
            break
        search.tell(asked[0], measure(asked[0], number))
    return search


def lost(search: Search, truth: Floats) -> float:
    best = search.best()
    assert best is not None
    return float(truth[best] / truth.min() - 1)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_is_near_after_few_measurements(seed: int) -> None:
    truth, predicted = board(seed)
    search = searched(truth, predicted, lambda index, _: float(truth[index]))
    told = len(search.measured)
    assert lost(search, truth) <= 0.05
    # As many draws without a prediction find one as good about every other time.
    good = int((truth <= truth[search.best()] + 1e-12).sum())
    assert told < 0.7 * (truth.size + 1) / (good + 1) or told <= LEARNED_FROM


def test_the_same_measurements_give_the_same_proposals() -> None:
    truth, predicted = board(0)
    orders = []
    for _ in range(2):
        asked: list[int] = []

        def measure(index: int, _: int, asked: list[int] = asked) -> float:
            asked.append(index)
            return float(truth[index])

        searched(truth, predicted, measure)
        orders.append(asked)
    assert orders[0] == orders[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["slow", "fast", "failures", "drift", "noise"])
def test_bad_measurements_do_not_break_it(seed: int, kind: str) -> None:
    truth, predicted = board(seed)
    random = np.random.default_rng(seed)

    def measure(index: int, number: int) -> float | None:
        value = float(truth[index])
        if kind == "slow" and random.random() < 0.15:
            return value * random.uniform(1.5, 10)
        if kind == "fast" and number == 9:
            return value / 4
        if kind == "failures" and random.random() < 0.2:
            return None
        if kind == "drift":
            return value * (1 + 0.001 * number)
        return value * math.exp(random.normal(0, 0.02)) if kind == "noise" else value

    search = searched(truth, predicted, measure)
    assert lost(search, truth) <= 0.10


def test_a_value_too_good_to_be_true_is_asked_again_and_then_believed() -> None:
    truth, predicted = board(1)
    search = searched(truth, predicted, lambda index, _: float(truth[index]), most=12)
    before = search.best()
    odd = next(i for i in range(truth.size) if i not in search.measured)
    search.tell(odd, float(truth.min()) / 5)
    assert search.best() == before
    assert not search.finished()
    assert search.propose() == [odd]
    search.tell(odd, float(truth.min()) / 5)
    assert search.best() == odd


def test_energy_under_a_bound_of_time() -> None:
    truth, predicted = board(2)
    seconds = np.exp(np.random.default_rng(7).permutation(truth.size) / truth.size)
    bound = float(np.median(seconds))
    search = Search(coded(ROWS), predicted, seconds * 1.05, bound)
    for _ in range(40):
        (index,) = search.propose()
        search.tell(index, float(truth[index]), float(seconds[index]))
    best = search.best()
    assert best is not None
    assert seconds[best] <= bound
    assert truth[best] <= 1.05 * truth[seconds <= bound].min()


def test_exact_predictions_need_no_more_than_what_a_stop_asks() -> None:
    truth, _ = board(3)
    search = searched(truth, truth, lambda index, _: float(truth[index]))
    assert lost(search, truth) == 0
    assert float(search.outlook().gain.max()) < GAIN
    assert len(search.measured) <= 2 * LEARNED_FROM


def test_all_measured_is_finished() -> None:
    search = Search(coded([(1,), (2,), (3,)]), np.array([1.0, 2.0, 3.0]))
    for value in (3.0, None, 2.0):
        (index,) = search.propose()
        search.tell(index, value)
    assert search.finished()
    assert search.propose() == []


def test_several_at_once_are_different() -> None:
    _, predicted = board(4)
    found = Search(coded(ROWS), predicted).propose(8)
    assert len(set(found)) == 8


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.floats(1e-9, 1e9) | st.none()), min_size=1, max_size=15
    )
)
def test_whatever_is_told_the_outlook_is_finite(told: list[tuple[int, float | None]]) -> None:
    search = Search(coded([(n, n % 3) for n in range(12)]), np.linspace(1, 2, 12))
    for index, value in told:
        search.tell(index, value)
    outlook = search.outlook()
    assert np.isfinite(outlook.value).all()
    assert (outlook.gain >= 0).all()
    assert (outlook.low <= outlook.value).all()
    assert (outlook.value <= outlook.high).all()
    assert all(0 <= each < 12 for each in search.propose(3))


def test_what_is_no_measurement_is_refused() -> None:
    search = Search(coded([(1,), (2,)]), np.array([1.0, 2.0]))
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(DataError):
            search.tell(0, value)
    with pytest.raises(DataError):
        search.tell(2, 1.0)
    with pytest.raises(DataError):
        Search(coded([(1,), (2,)]), np.array([1.0, 0.0]))
