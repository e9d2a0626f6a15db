"""Each protocol keeps apart what it says, uses every row at most once, and leaks nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor

from studies.evaluation import evaluate, known_folds, nearest_watts
from studies.fitting.out_of_fold import Fit, joined, plain
from wattcast.training.evaluation.scores import Floats, Predict, Protocol, Rows, fold_assignment

PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")


def make_rows(seed: int = 0, groups: int = 24, gpus: int = 3) -> Rows:
    """Kernels in near-twin pairs on several GPUs: the kernel's level times the GPU's, with a little
    of the launch."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(2, 9, 2 * groups * gpus)
    kernel = np.repeat(np.tile(np.arange(2 * groups), gpus), sizes)
    gpu = np.repeat(np.repeat(np.arange(gpus), 2 * groups), sizes)
    launch = generator.random(len(kernel))
    level = generator.uniform(50, 150, groups)[kernel // 2] + 2 * (kernel % 2)
    return Rows.of(
        np.column_stack([kernel, launch, gpu]),
        level * (1 + 0.2 * gpu) + 5 * launch,
        [f"group{at // 2:03d}" for at in kernel],
        kernels=[f"kernel{at:03d}" for at in kernel],
        gpus=[f"gpu{at}" for at in gpu],
    )


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_launches_are_known_of_the_kernels_left_out_alone(seed: int, shots: int) -> None:
    rows = make_rows(seed % 7)
    assert rows.kernels is not None
    tested = np.zeros(len(rows), dtype=int)
    for train, cases in known_folds(rows, seed, shots):
        for known, test in cases:
            tested[test] += 1
            assert (len(known), len(test) > 0) == (shots, True)
            assert not set(rows.groups[train]) & set(rows.groups[[*known, *test]])
            assert len({*rows.kernels[known].tolist(), *rows.kernels[test].tolist()}) == 1
    sizes = np.bincount(rows.kernels)
    np.testing.assert_array_equal(
        np.bincount(rows.kernels, weights=tested), np.maximum(sizes - shots, 0)
    )


@given(st.integers(0, 10_000), st.sampled_from(PROTOCOLS))
def test_folds_are_dealt_by_the_seed_and_keep_their_sides_apart(
    seed: int, protocol: Protocol
) -> None:
    rows = make_rows(1)
    dealt = fold_assignment(rows, protocol, seed, 5)
    assert (dealt == fold_assignment(rows, protocol, seed, 5)).all()
    assert (dealt != fold_assignment(rows, protocol, seed + 1, 5)).any()
    if protocol == "grouped":
        assert all(len(set(dealt[rows.groups == one])) == 1 for one in np.unique(rows.groups))


def trees(train: Floats, watts: Floats, test: Floats) -> Floats:
    model = ExtraTreesRegressor(10, min_samples_leaf=3, random_state=0)
    return np.asarray(model.fit(train, watts).predict(test))


MODELS: dict[str, Fit] = {"memory": nearest_watts, "trees": plain(trees)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shuffled_power_is_not_predicted(protocol: Protocol, name: str) -> None:
    # Without a leak, features say nothing of shuffled power: memory errs twice the variance
    # (R2 about -1), trees somewhat more than once. A leak of test rows would lift either above 0.
    rows = make_rows(groups=20)
    shuffled = replace(rows, watts=np.random.default_rng(1).permutation(rows.watts))
    seeds = range(2 if name == "trees" else 5)
    found = evaluate(shuffled, MODELS[name], protocol, seeds)
    assert found.scores()["r2"].mean <= 0
    assert all(scores["r2"].mean <= 0.01 for scores in found.other_scores().values())


def test_the_guard_sees_a_leak() -> None:
    # Every row twice: its copy is a leak in random folds and none in grouped ones.
    rows = make_rows()
    shuffled = replace(rows, watts=np.random.default_rng(1).permutation(rows.watts))
    twice = joined([shuffled, shuffled])
    assert evaluate(twice, nearest_watts, "random", [0]).scores()["r2"].mean > 0.5
    assert evaluate(twice, nearest_watts, "grouped", [0]).scores()["r2"].mean <= 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_never_sees_the_power_it_is_asked_for(protocol: Protocol) -> None:
    rows = make_rows(groups=20)

    def spy(train: Rows) -> Predict:
        assert np.isfinite(train.watts).all()

        def predict(known: Rows, test: Rows) -> Floats:
            assert np.isnan(test.watts).all()
            assert len(known) == 0
            return np.full(len(test), np.median(train.watts))

        return predict

    found = evaluate(rows, spy, protocol, range(2))
    assert np.isnan(found.predicted_watts).sum() == (found.folds == -1).sum()
    assert found.scores() == found.baseline_scores()


def test_taken_hidden_and_joined_rows_keep_their_labels() -> None:
    rows = make_rows()
    order = np.random.default_rng(0).permutation(len(rows))
    parts = joined([rows.take(order[:50]), rows.take(order[50:])])
    for name in ("vectors", "watts", "groups", "kernels", "gpus"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(rows.take(order), name))
    assert np.isnan(rows.hidden().watts).all()
    assert joined([rows, replace(rows, gpus=None)]).gpus is None
