"""Folds keep kernels apart, scores are what they say, and nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.evaluation import cross_validate
from studies.fitting.nested import averaged_folds, calibrated, nested_folds
from studies.fitting.out_of_fold import averaged, plain
from wattcast.training.evaluation.scores import point_scores
from wattcast.training.evaluation.splits import (
    Floats,
    Protocol,
    Rows,
    fold_assignment,
    outside_range,
)


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


@given(st.integers(0, 1000), st.integers(5, 40), st.sampled_from(["random", "grouped"]))
def test_every_row_is_in_one_fold(seed: int, groups: int, protocol: Protocol) -> None:
    rows = make_rows(seed, groups, per_group=3)
    folds = fold_assignment(rows, protocol, seed)
    assert set(folds.tolist()) == set(range(5))
    np.testing.assert_array_equal(folds, fold_assignment(rows, protocol, seed))
    if protocol == "random":
        counts = np.bincount(folds)
        assert counts.max() - counts.min() <= 1


@given(st.integers(0, 1000))
def test_a_kernel_is_never_on_both_sides(seed: int) -> None:
    rows = make_rows(seed)
    folds = fold_assignment(rows, "grouped", seed)
    for group in np.unique(rows.groups):
        assert len(set(folds[rows.groups == group].tolist())) == 1


def test_seeds_deal_the_folds_anew() -> None:
    rows = make_rows()
    dealt = {tuple(fold_assignment(rows, "grouped", seed).tolist()) for seed in range(10)}
    assert len(dealt) == 10


def test_too_few_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="4 kernel groups cannot fill 5 folds"):
        fold_assignment(make_rows(groups=4), "grouped", 0)


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


def test_memory_helps_on_random_folds_and_not_on_unseen_kernels() -> None:
    rows = make_rows()
    random = cross_validate(rows, nearest, "random", range(3)).scores()
    grouped = cross_validate(rows, nearest, "grouped", range(3)).scores()
    assert random["r2"].mean > 0.95
    assert grouped["r2"].mean < 0.5


@pytest.mark.parametrize("protocol", ["random", "grouped"])
def test_shuffled_power_is_not_predicted(protocol: Protocol) -> None:
    # A leak of test rows into training would let memory answer: R2 would rise above zero.
    rows = make_rows()
    generator = np.random.default_rng(1)
    shuffled = Rows(rows.vectors, generator.permutation(rows.watts), rows.groups)
    found = cross_validate(shuffled, nearest, protocol, range(5)).scores()
    assert found["r2"].mean <= 0


def test_out_of_fold_predictions_come_from_other_rows_only() -> None:
    rows = make_rows()
    seen: list[tuple[set[float], set[float]]] = []

    def spy(train: Floats, watts: Floats, test: Floats) -> Floats:
        seen.append((set(train[:, 1].tolist()), set(test[:, 1].tolist())))
        return np.full(len(test), np.median(watts))

    result = cross_validate(rows, spy, "random", [0])
    assert all(not train & test for train, test in seen)
    # The model is the baseline here, so their scores are the same.
    assert result.scores() == result.baseline_scores()


def test_jobs_change_nothing() -> None:
    rows = make_rows()
    one = cross_validate(rows, nearest, "grouped", range(3), jobs=1)
    four = cross_validate(rows, nearest, "grouped", range(3), jobs=4)
    np.testing.assert_array_equal(one.predicted_watts, four.predicted_watts)
    assert one.scores() == four.scores()


def test_average_of_models_on_the_same_folds() -> None:
    rows = make_rows()
    first = cross_validate(rows, nearest, "grouped", [0])
    second = cross_validate(rows, lambda x, y, z: np.full(len(z), y.mean()), "grouped", [0])
    mean = averaged([first, second])
    np.testing.assert_allclose(
        mean.predicted_watts, (first.predicted_watts + second.predicted_watts) / 2
    )


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
