"""A new GPU from few measurements: never worse than its own median, never peeking."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.needs import needs_data
from wattcast.features.errors import DataError
from wattcast.training import few_shot
from wattcast.training.evaluation.scores import Rows
from wattcast.training.few_shot import (
    COLUMNS,
    WAYS,
    Calibrator,
    Launches,
    affine,
    carried,
    own_median,
    ranked,
)
from wattcast.training.power_rows import power_rows


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees enough to tell these rows apart, and quick."""
    monkeypatch.setattr(few_shot, "_TREES", 10)


def make_rows(seed: int = 0, gpus: int = 4, each: int = 120) -> Rows:
    """Launches whose power is a GPU's level to a slope of its own, times what the features say."""
    generator = np.random.default_rng(seed)
    vectors = np.exp(generator.uniform(0, 5, (gpus * each, 4)))
    gpu = np.repeat(np.arange(gpus), each)
    relative = 0.2 * np.log(vectors[:, 0]) - 0.1 * np.log(vectors[:, 1])
    watts = (40 + 25 * gpu) * np.exp((0.6 + 0.2 * gpu) * relative)
    noise = np.exp(0.03 * generator.standard_normal(len(gpu)))
    return Rows.of(vectors, watts * noise, np.arange(len(gpu)), gpus=[f"gpu{at}" for at in gpu])


def launches(relative: list[float], log_watts: list[float]) -> Launches:
    values = np.array(relative)
    return Launches(values, values[:, None], np.array(log_watts))


def test_ways_of_hand_checked_launches() -> None:
    known = launches([0.0, 1.0, 2.0], [4.0, 6.0, 5.0])
    test = launches([-1.0, 0.5, 3.0], [np.nan] * 3)
    np.testing.assert_allclose(own_median(known, test), [5, 5, 5])
    # Least power at the least relative power, and nothing beyond what was measured.
    np.testing.assert_allclose(ranked(known, test), [4, 4.5, 6])
    # Sum of squares 2, of products 1; the prior counts as 3 rows: (1 + 2) / (2 + 2).
    slope = 0.75
    level = np.median([4.0, 6 - slope, 5 - 2 * slope])
    np.testing.assert_allclose(affine(known, test), level + slope * test.relative)


def test_residuals_are_carried_near_and_not_far() -> None:
    known = launches([0.0, 0.1, 5.0, 5.1], [4.0, 4.1, 11.0, 11.1])
    test = launches([0.05, 5.05, 50.0], [np.nan] * 3)
    near, plain = carried(0.3)(known, test), affine(known, test)
    truth = np.array([4.05, 11.05])
    assert np.all(np.abs(near[:2] - truth) < np.abs(plain[:2] - truth))
    assert near[2] == pytest.approx(plain[2])


@given(st.lists(st.floats(2, 6), min_size=2, max_size=12), st.sampled_from(sorted(WAYS)))
def test_ways_are_finite_and_do_not_read_the_answer(watts: list[float], way: str) -> None:
    generator = np.random.default_rng(len(watts))
    known = Launches(
        generator.standard_normal(len(watts)),
        generator.standard_normal((len(watts), 3)),
        np.array(watts),
    )
    test = Launches(np.zeros(4), generator.standard_normal((4, 3)), np.full(4, np.nan))
    assert np.isfinite(WAYS[way](known, test)).all()


def errors(rows: Rows, shots: int, seed: int) -> tuple[float, float]:
    """Mean absolute errors in watts on one GPU of which ``shots`` launches are known: of the
    calibrator, and of their median."""
    assert rows.gpus is not None
    own = np.random.default_rng(seed).permutation(np.flatnonzero(rows.gpus == "gpu1"))
    known, test = rows.take(own[:shots]), rows.take(own[shots:])
    found = Calibrator()(rows.take(np.flatnonzero(rows.gpus != "gpu1")))(known, test.hidden())
    return tuple(np.abs(each - test.watts).mean() for each in (found, np.median(known.watts)))  # type: ignore[return-value]


@pytest.mark.parametrize("shots", [3, 8, 20])
def test_a_new_gpu_is_predicted_better_than_by_its_own_median(shots: int) -> None:
    found = np.mean([errors(make_rows(), shots, seed) for seed in range(6)], axis=0)
    assert found[0] < 0.7 * found[1]


@pytest.mark.parametrize("shots", [5, 20])
def test_where_features_say_nothing_the_median_is_hardly_missed(shots: int) -> None:
    # Shuffled power: every way but the median follows noise. Choosing must see that.
    rows = make_rows()
    shuffled = replace(rows, watts=np.random.default_rng(2).permutation(rows.watts))
    found = np.mean([errors(shuffled, shots, seed) for seed in range(10)], axis=0)
    assert found[0] <= 1.05 * found[1]


def test_a_choice_is_the_same_again_and_needs_two_launches() -> None:
    rows = make_rows()
    assert rows.gpus is not None
    train = rows.take(np.flatnonzero(rows.gpus != "gpu0"))
    known = rows.take(np.arange(6))
    assert Calibrator().choice(train, known) == Calibrator().choice(train, known)
    with pytest.raises(DataError, match="at least two"):
        Calibrator().choice(train, known.take(np.arange(1)))


def write(path: Path, rows: Rows, *, watts: bool) -> Path:
    names = [*COLUMNS, *(["power_watts"] if watts else [])]
    table = np.column_stack([rows.vectors, rows.watts]) if watts else rows.vectors
    lines = [",".join("" if np.isnan(cell) else f"{cell:.9g}" for cell in row) for row in table]
    path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")
    return path


@needs_data
def test_measured_launches_of_a_file_predict_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = partial(power_rows, ("K20", "M60", "V100"))
    monkeypatch.setattr(few_shot, "power_rows", three)
    m60 = power_rows(["M60"], columns=COLUMNS)
    order = np.random.default_rng(0).permutation(len(m60))
    known, asked = m60.take(order[:20]), m60.take(order[20:])
    found = few_shot.calibrate(
        write(tmp_path / "measured.csv", known, watts=True),
        write(tmp_path / "asked.csv", asked, watts=False),
    )
    assert found.measured == 20
    error = np.abs(np.array(found.predicted_watts) - asked.watts).mean()
    # The board itself is among the power files: this is about reading, not about a new GPU.
    assert error < 0.7 * np.abs(np.median(known.watts) - asked.watts).mean()


def test_a_defect_in_the_measured_file_has_a_place(tmp_path: Path) -> None:
    rows = Rows.of(np.ones((3, len(COLUMNS))), [50.0, 0.0, 60.0], ["a", "b", "c"])
    path = write(tmp_path / "measured.csv", rows, watts=True)
    with pytest.raises(DataError, match=r"row 3\.power_watts: 0 W is too low"):
        few_shot.calibrate(path)
