"""``python -m studies trace-totals``: boards whose errors are known."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from studies.traces.trace_totals import Pool, components, held, least_share, mixes
from studies.traces.unknown_kernels import Row, by_boards, left_out
from wattcast.predictor.traces.totals import Told, half_width, joined

KERNELS = 40


def board(number: int, common: float, own: float) -> Pool:
    """A board whose kernels err by a common part and one of their own, normally distributed."""
    rng = np.random.default_rng(number)
    errors = rng.normal(0.0, common) + rng.normal(0.0, own, KERNELS)
    names = np.array([f"k{n}" for n in range(KERNELS)])
    half = 1.645 * sqrt(common**2 + own**2)
    same = np.full(KERNELS, 100.0)
    return Pool(
        "code", f"board {number}", np.full(KERNELS, "s"), names, names, same * np.exp(errors),
        same, np.full(KERNELS, 1 - np.exp(-half)), np.full(KERNELS, np.exp(half) - 1),
    )  # fmt: skip


def drawn(common: float, own: float, boards: int = 30) -> list[list]:  # type: ignore[type-arg]
    pools = [board(number, common, own) for number in range(boards)]
    return [mixes(pool, 60, np.random.default_rng(0)) for pool in pools]


def coverage(some: list[list], shared: float) -> float:  # type: ignore[type-arg]
    return float(np.mean([held(one, shared) for one in some]))


def test_errors_of_their_own_average_out_and_common_ones_do_not() -> None:
    apart, alike = drawn(0.0, 0.1), drawn(0.1, 0.0)
    assert coverage(apart, 0.0) >= 0.87
    assert coverage(alike, 0.0) < 0.6
    assert 0.8 <= coverage(alike, 1.0) <= 1.0
    half = drawn(0.1 / sqrt(2), 0.1 / sqrt(2))
    assert coverage(half, 0.0) < 0.75 < 0.85 <= coverage(half, 0.5)


def test_the_least_share_holds_the_level_on_every_board() -> None:
    calm, off = drawn(0.0, 0.1, 3), drawn(0.0, 0.1, 3)
    assert least_share(calm) <= 0.1
    factor = 1.12  # a board that draws 12 % more than is told
    shifted = [type(mix)(factor * mix.true, *list(vars(mix).values())[1:]) for mix in off[0]]
    share = least_share([*calm, shifted])
    assert share > least_share(calm)
    assert held(shifted, share) >= 0.9


def test_a_mix_has_different_kernels_and_the_same_twice() -> None:
    pool = board(0, 0.0, 0.1)
    first, second = (mixes(pool, 20, np.random.default_rng(3)) for _ in range(2))
    assert [mix.true for mix in first] == [mix.true for mix in second]
    for mix in first:
        assert 3 <= len(mix.lower) <= KERNELS
        assert mix.value == pytest.approx(100.0)  # shares of the time add up


def test_components_are_those_the_board_was_made_of() -> None:
    found = np.array([components(board(number, 0.3, 0.1))[:2] for number in range(60)])
    assert np.sqrt(np.mean(found[:, 0] ** 2)) == pytest.approx(0.3, rel=0.25)
    assert found[:, 1].mean() == pytest.approx(0.1, rel=0.1)


def test_half_widths_are_joined_as_worked_out_by_hand() -> None:
    assert joined(np.array([3.0, 4.0]), 0.0) == pytest.approx(5.0)
    assert joined(np.array([3.0, 4.0]), 1.0) == pytest.approx(7.0)
    assert joined(np.array([3.0, 4.0]), 0.5) == pytest.approx(sqrt(37.0))
    Own = dict[tuple[str, Told], dict[str, np.ndarray]]
    two: Own = {
        ("a", "code"): {"k": np.array([3.0, 1.0])},
        ("b", "code"): {"k": np.array([4.0, 2.0])},
    }
    assert half_width(two, {}, (), 0) == pytest.approx(5.0)
    assert half_width(two, {"a": np.array([0.0, 2.0])}, (), 1) == pytest.approx(3.0)
    # A board that is a guess: gaps and kernels without code are off together.
    bare: Own = {("a", "no code"): {"k": np.array([3.0, 3.0]), "l": np.array([1.0, 1.0])}}
    assert half_width(bare, {"a": np.array([2.0, 2.0])}, ("a",), 0) == pytest.approx(6.0)
    assert half_width(bare, {"a": np.array([3.0, 3.0])}, (), 0) == pytest.approx(5.0)


def rows_of(board: str, share: float, families: int = 6) -> list[Row]:
    return [
        Row("s", board, f"f{n}", f"f{n}", 50 + share * 200, 50.0, 30.0, 250.0, 0.0, 250.0, 1e9, 80)
        for n in range(families)
    ]


def test_a_share_is_that_of_the_other_boards() -> None:
    found = [*rows_of("a", 0.2), *rows_of("b", 0.2), *rows_of("c", 0.6)]
    told = by_boards(found)
    assert told.watts[-1] == pytest.approx(90.0)  # c is told by a and b
    assert told.watts[0] in (pytest.approx(90.0), pytest.approx(170.0))
    share, errors, _ = left_out(found)
    assert share == pytest.approx(0.2)
    assert errors[:12] == pytest.approx(np.zeros(12))
    assert errors[-1] == pytest.approx(np.log(170 / 90))
