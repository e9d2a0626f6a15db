"""What is unlike the training rows scores high, also where no single feature leaves its range."""

from __future__ import annotations

import numpy as np

from wattcast.models.power.boosted import Novelty
from wattcast.training.provenance import summarise


def _rows(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.lognormal(0, 1, 400)
    return np.column_stack([x, 5 * x * generator.lognormal(0, 0.05, 400), np.full(400, 7.0)])


NOVELTY = Novelty(summarise(_rows(), ["a", "b", "constant"]))


def test_rows_like_those_of_training_are_usual() -> None:
    score = NOVELTY.score(_rows(seed=1))
    assert np.quantile(score, 0.8) < 1.5
    assert (score >= 0).all()


def test_a_combination_that_training_never_had_is_novel() -> None:
    low, high = np.quantile(_rows(), [0.05, 0.95], axis=0)
    usual = NOVELTY.score([[low[0], low[1], 7.0], [high[0], high[1], 7.0]])
    mixed = NOVELTY.score([[low[0], high[1], 7.0], [high[0], low[1], 7.0]])
    assert mixed.min() > 2 * usual.max()


def test_novelty_grows_outside_the_range_up_to_a_bound() -> None:
    top = _rows().max(axis=0)
    inside, beyond, far, endless = NOVELTY.score(
        [top, top * [1.5, 1.5, 1], top * [2.5, 2.5, 1], top * [1e9, 1e9, 1]]
    )
    assert inside < beyond < far <= endless < 200


def test_a_missing_value_is_no_novelty() -> None:
    row = np.median(_rows(), axis=0)
    gap = row.copy()
    gap[1] = np.nan
    full, missing = NOVELTY.score([row, gap])
    assert missing <= full + 0.5


def test_constant_features_and_no_rows() -> None:
    assert NOVELTY.score(np.zeros((0, 3))).shape == (0,)
    other = Novelty(summarise(np.full((5, 2), 3.0), ["a", "b"]))
    assert other.score([[3.0, 3.0]])[0] == 0.0
