"""Each protocol keeps apart what it says, uses every row at most once, and leaks nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor

from studies.evaluation import (
    BASELINES,
    WITH_SHOTS,
    AnyProtocol,
    evaluate,
    folds_of,
    nearest_watts,
    units_of,
)
from studies.fitting.out_of_fold import Fit, joined, plain
from wattcast.training.evaluation.scores import Floats, Indices, Predict, Rows

PROTOCOLS: tuple[AnyProtocol, ...] = ("random", "grouped", "family", "gpu", "new_gpu", "known")


def shots_of(protocol: AnyProtocol, shots: int = 3) -> int:
    return shots if protocol in WITH_SHOTS else 0


def make_rows(seed: int = 0, groups: int = 24, gpus: int = 3) -> Rows:
    """Kernels in near-twin pairs, four groups to a family, on several GPUs and two clocks.

    Power is the kernel's level times the GPU's, with a little of the launch.
    """
    generator = np.random.default_rng(seed)
    sizes = generator.integers(2, 9, 2 * groups * gpus)
    kernel = np.repeat(np.tile(np.arange(2 * groups), gpus), sizes)
    gpu = np.repeat(np.repeat(np.arange(gpus), 2 * groups), sizes)
    launch = generator.random(len(kernel))
    clock = generator.integers(1, 3, len(kernel)) * 500.0
    level = generator.uniform(50, 150, groups)[kernel // 2] + 2 * (kernel % 2)
    return Rows.of(
        np.column_stack([kernel, launch, gpu]),
        level * (1 + 0.2 * gpu) + 5 * launch + clock / 100,
        [f"group{at // 2:03d}" for at in kernel],
        kernels=[f"kernel{at:03d}" for at in kernel],
        families=[f"family{at // 8:02d}" for at in kernel],
        gpus=[f"gpu{at}" for at in gpu],
        clocks=clock,
    )


def shared(left: Indices | np.ndarray, right: Indices | np.ndarray) -> set[object]:
    return set(left.tolist()) & set(right.tolist())


@given(st.integers(0, 10_000), st.sampled_from(PROTOCOLS), st.integers(1, 5))
def test_a_protocol_keeps_its_sides_apart(seed: int, protocol: AnyProtocol, shots: int) -> None:
    rows = make_rows(seed % 7)
    assert rows.families is not None
    assert rows.gpus is not None
    tested = np.zeros(len(rows), dtype=int)
    for train, cases in folds_of(rows, protocol, seed, shots=shots_of(protocol, shots)):
        for known, test in cases:
            tested[test] += 1
            assert len(test)
            assert len(known) == shots_of(protocol, shots)
            assert not shared(train, test)
            assert not shared(train, known)
            assert not shared(known, test)
            for either in (known, test):
                if protocol in ("grouped", "family", "known"):
                    assert not shared(rows.groups[train], rows.groups[either])
                if protocol == "family":
                    assert not shared(rows.families[train], rows.families[either])
                if protocol in ("gpu", "new_gpu"):
                    assert not shared(rows.gpus[train], rows.gpus[either])
            if protocol == "known":
                assert len(set(units_of(rows)[np.concatenate([known, test])].tolist())) == 1
            if protocol == "new_gpu":
                assert len({*rows.gpus[known].tolist(), *rows.gpus[test].tolist()}) == 1
    assert tested.max() == 1
    if protocol not in WITH_SHOTS:
        assert tested.min() == 1
    if protocol == "new_gpu":
        assert len(tested) - tested.sum() == 3 * shots
    if protocol == "known":
        sizes = np.bincount(units_of(rows))[units_of(rows)]
        np.testing.assert_array_equal(
            np.bincount(units_of(rows), weights=tested),
            np.maximum(np.bincount(units_of(rows)) - shots, 0),
        )
        assert not tested[sizes <= shots].any()


@given(st.integers(0, 10_000), st.sampled_from(PROTOCOLS))
def test_a_seed_decides_everything(seed: int, protocol: AnyProtocol) -> None:
    rows = make_rows(1)

    def dealt(seed: int) -> list[list[int]]:
        folds = folds_of(rows, protocol, seed, shots=shots_of(protocol))
        return [case.known.tolist() + case.test.tolist() for fold in folds for case in fold.cases]

    assert dealt(seed) == dealt(seed)
    assert (dealt(seed) == dealt(seed + 1)) == (protocol == "gpu")


@pytest.mark.parametrize(
    ("protocol", "missing", "shots", "message"),
    [
        ("family", "families", 0, "do not give their families"),
        ("gpu", "gpus", 0, "do not give their GPUs"),
        ("known", "", 0, "does not go with 0 known rows"),
        ("grouped", "", 3, "does not go with 3 known rows"),
    ],
)
def test_what_a_protocol_needs_is_asked_for(
    protocol: AnyProtocol, missing: str, shots: int, message: str
) -> None:
    rows = replace(make_rows(), **({missing: None} if missing else {}))
    with pytest.raises(ValueError, match=message):
        list(folds_of(rows, protocol, 0, shots=shots))


def test_too_few_families_or_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="2 families cannot fill 5 folds"):
        list(folds_of(make_rows(groups=8), "family", 0))
    with pytest.raises(ValueError, match="needs two of them"):
        list(folds_of(make_rows(gpus=1), "gpu", 0))


def trees(train: Floats, watts: Floats, test: Floats) -> Floats:
    model = ExtraTreesRegressor(10, min_samples_leaf=3, random_state=0)
    return np.asarray(model.fit(train, watts).predict(test))


MODELS: dict[str, Fit] = {"memory": nearest_watts, "trees": plain(trees)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shuffled_power_is_not_predicted(protocol: AnyProtocol, name: str) -> None:
    # Without a leak, features say nothing of shuffled power: memory errs twice the variance
    # (R2 about -1), trees somewhat more than once. A leak of test rows would lift either above 0.
    rows = make_rows(groups=20)
    shuffled = replace(rows, watts=np.random.default_rng(1).permutation(rows.watts))
    seeds = range(2 if name == "trees" else 5)
    found = evaluate(shuffled, MODELS[name], protocol, seeds, shots=shots_of(protocol))
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
def test_a_model_never_sees_the_power_it_is_asked_for(protocol: AnyProtocol) -> None:
    rows = make_rows(groups=20)

    def spy(train: Rows) -> Predict:
        assert np.isfinite(train.watts).all()

        def predict(known: Rows, test: Rows) -> Floats:
            assert np.isnan(test.watts).all()
            assert np.isfinite(known.watts).all()
            assert len(known) == shots_of(protocol)
            return np.full(len(test), np.median(train.watts))

        return predict

    found = evaluate(rows, spy, protocol, range(2), shots=shots_of(protocol))
    assert np.isnan(found.predicted_watts).sum() == (found.folds == -1).sum()
    if protocol not in WITH_SHOTS:
        assert found.scores() == found.baseline_scores()


def test_known_rows_help_and_are_set_beside_their_own_median() -> None:
    rows = make_rows()
    unseen = evaluate(rows, nearest_watts, "grouped", range(3))
    known = evaluate(rows, nearest_watts, "known", range(3), shots=2)
    assert known.scores()["mae_watts"].mean < unseen.scores()["mae_watts"].mean
    assert set(known.other_scores()) == set(BASELINES) - {"median_watts"}
    assert set(unseen.other_scores()) == {"clock_median_watts", "nearest_watts"}


def test_taken_hidden_and_joined_rows_keep_their_labels() -> None:
    rows = make_rows()
    order = np.random.default_rng(0).permutation(len(rows))
    parts = joined([rows.take(order[:50]), rows.take(order[50:])])
    for name in ("vectors", "watts", "groups", "kernels", "families", "gpus", "clocks"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(rows.take(order), name))
    assert np.isnan(rows.hidden().watts).all()
    bare = joined([rows, replace(rows, families=None, gpus=None)])
    assert bare.families is None
    assert bare.gpus is None
    np.testing.assert_array_equal(units_of(replace(rows, kernels=None)), rows.groups)
