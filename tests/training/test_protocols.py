"""Folds keep kernels apart, scores are what they say, and nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest

from studies.evaluation import cross_validate
from studies.fitting.nested import averaged_folds, calibrated, nested_folds
from studies.fitting.out_of_fold import plain
from wattcast.training.evaluation.scores import Floats, Rows, outside_range, point_scores


def make_rows(seed: int = 0, groups: int = 30, per_group: int = 8) -> Rows:
    """Rows whose power follows their kernel (x0) and, a little, their launch (x1)."""
    generator = np.random.default_rng(seed)
    kernel = np.repeat(np.arange(groups), per_group)
    vectors = np.column_stack([kernel.astype(float), generator.random(len(kernel))])
    level = generator.uniform(50, 150, groups)[kernel]
    watts = level + 5 * vectors[:, 1]
    return Rows.of(vectors, watts, [f"kernel{at:03d}" for at in kernel])


def nearest(train: Floats, watts: Floats, test: Floats) -> Floats:
    """Power of the nearest training row: perfect memory and nothing else."""
    distance = ((test[:, None, :] - train[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(watts[distance.argmin(axis=1)])


def test_scores_of_hand_checked_rows() -> None:
    rows = Rows.of(np.zeros((4, 1)), [100.0, 100.0, 100.0, 200.0], ["a", "a", "a", "b"])
    predicted = np.array([110.0, 90.0, 100.0, 160.0])
    found = point_scores(rows.watts, predicted, rows.groups)
    assert found["mae_watts"] == pytest.approx((10 + 10 + 0 + 40) / 4)
    assert found["rmse_watts"] == pytest.approx(np.sqrt((100 + 100 + 1600) / 4))
    assert found["mape_percent"] == pytest.approx((10 + 10 + 0 + 20) / 4)
    assert found["median_ape_percent"] == pytest.approx(10)  # of 0, 10, 10, 20
    assert found["kernel_macro_mape_percent"] == pytest.approx((20 / 3 + 20) / 2)
    assert found["r2"] == pytest.approx(1 - 1800 / 7500)  # mean 125: 3 * 25^2 + 75^2


def test_jobs_change_nothing() -> None:
    rows = make_rows()
    one = cross_validate(rows, nearest, "grouped", range(3), jobs=1)
    four = cross_validate(rows, nearest, "grouped", range(3), jobs=4)
    np.testing.assert_array_equal(one.predicted_watts, four.predicted_watts)
    assert one.scores() == four.scores()


def test_outside_the_training_range() -> None:
    train = np.array([[0.0, 5.0], [10.0, np.nan], [3.0, 6.0]])
    test = np.array([[0.0, 6.0], [11.0, 5.5], [5.0, 4.9], [5.0, np.nan]])
    assert outside_range(train, test).tolist() == [False, True, True, False]


def test_nested_folds_calibrate_without_the_kernels_they_test() -> None:
    rows = make_rows(groups=25)
    folds = nested_folds(rows, plain(nearest), [0])
    assert sorted(np.concatenate([fold.test for fold in folds]).tolist()) == list(range(200))
    for fold in folds:
        assert not set(rows.groups[fold.test]) & set(fold.inner.rows.groups)
    same = averaged_folds([folds, folds])
    for fold, twice in zip(folds, same, strict=True):
        np.testing.assert_allclose(fold.predicted_watts, twice.predicted_watts)


def test_unseen_kernels_are_covered_where_rows_would_promise_too_much() -> None:
    rows = make_rows(groups=60)
    grouped = cross_validate(rows, nearest, "grouped", range(3))
    random = cross_validate(rows, nearest, "random", range(3))
    found = calibrated(grouped, random, nested_folds(rows, plain(nearest), [0]), 40.0)
    assert found.unseen_kernel.coverage is not None
    assert found.seen_kernel.coverage is not None
    assert found.unseen_kernel.coverage.kernels >= 0.85
    assert 0.85 <= found.seen_kernel.coverage.rows <= 0.95
    unseen, seen = (
        np.ptp(width.around(np.array([100.0])))
        for width in (found.unseen_kernel, found.seen_kernel)
    )
    assert unseen > 2 * seen
    assert found.floor_watts == 40.0
