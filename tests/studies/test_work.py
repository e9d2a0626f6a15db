"""Training from measured work: constants, folds, scores, coverage, files, and what they reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from studies.data.launches import CLOCKS, GPU, MeasuredLaunch, launches_path, read_launches
from studies.fitting.trees.compact import save_compact
from studies.fitting.work.artifact import calibrated, train
from studies.fitting.work.folds import (
    MODEL,
    PHYSICAL,
    LeftOut,
    WorkCatboost,
    WorkTable,
    fit_residual,
    fitted_constants,
    folds_of,
    inputs_of,
    leave_out,
)
from studies.fitting.work.tables import known_table, pairs_of, score_table
from tests.needs import needs_data
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.models.cards import sha256_of
from wattcast.models.store import ArtifactStore
from wattcast.models.time.calibration import TimeCard
from wattcast.models.time.measured_work import PARTS, Work, p_norm, work_schema
from wattcast.models.time.work_model import work_inputs, work_parts, work_time_model
from wattcast.training.evaluation.scores import time_scores
from wattcast.training.families import library_versions

DOCS = Path(__file__).parents[2] / "docs" / "work.md"
STORE = ArtifactStore(kind=TimeCard)


def launch(program: str = "a-cuda", kernel: str = "k", seconds: float = 1e-3, blocks: int = 64):
    work = Work(Launch.of(blocks, 128), 1e6 * blocks, 1e7 * blocks, runtime="cuda")
    return MeasuredLaunch(program, kernel, f"{kernel}()", "", work, seconds)


def random_launches(count: int, seed: int = 0) -> list[MeasuredLaunch]:
    """Launches of programs with a CUDA and an OpenMP port each, two launches a port."""
    generator = np.random.default_rng(seed)
    found = []
    for at in range(count):
        blocks, threads = int(generator.integers(1, 5000)), int(generator.integers(1, 33)) * 32
        size = 10 ** generator.uniform(4, 10, size=4)
        work = Work(Launch.of(blocks, threads), *size.tolist(), runtime="cuda")
        program = f"p{at // 4}-{'cuda' if at % 4 < 2 else 'omp'}"
        found.append(MeasuredLaunch(program, "k", "k()", "", work, 1.0))
    return found


def test_planted_constants_are_found_again() -> None:
    table = WorkTable.of(random_launches(600))
    planted = np.array([1.2, 1.4, 1.3, 1.6, 30.0, 6.0, 12.0, 80.0, 3000.0])
    seconds = p_norm(planted[:, None] * table.units, 1.5)
    found = fitted_constants(table.units, seconds, table.weights)
    assert p_norm(
        np.array([found.factors[name] for name in PARTS])[:, None] * table.units, found.norm
    ) == pytest.approx(seconds, rel=0.05)
    assert found.factors["dram"] == pytest.approx(1.2, rel=0.03)
    assert found.norm == pytest.approx(1.5, rel=0.03)


def test_folds_keep_programs_and_ports_whole() -> None:
    launches = random_launches(200)
    table = WorkTable.of(launches)
    for protocol, key in (("program", "program"), ("port", "port_group")):
        folds = folds_of(table, protocol, seed=3)
        assert set(folds) == set(range(10))
        for name in {getattr(one, key) for one in launches}:
            own = [fold for fold, one in zip(folds, launches, strict=True)
                   if getattr(one, key) == name]  # fmt: skip
            assert len(set(own)) == 1
    apart = folds_of(table, "program", seed=3)
    assert any(apart[at] != apart[at + 2] for at in range(0, 200, 4))


def test_scores_by_hand() -> None:
    measured = np.array([1.0, 1.0, 1.0, 2.0])
    predicted = np.array([1.1, 0.8, 2.5, 1.0])
    found = time_scores(measured, predicted, np.array([0, 0, 1, 1]))
    assert found == pytest.approx(
        {
            "median_ape_percent": 35.0,  # 10, 20, 50, 150
            "within_25_percent_share": 0.5,
            "within_factor_2_share": 0.75,
            "program_median_ape_percent": 57.5,  # median of 15 and 100
            "program_within_factor_2_share": 0.75,
        }
    )


def test_intervals_hold_what_they_promise_on_known_noise() -> None:
    generator = np.random.default_rng(1)
    launches = random_launches(800)
    predicted = np.full((1, 800), 1e-3)
    # One error for a port group: rows of a group tell nothing new.
    errors = np.repeat(generator.normal(0, 0.5, 200), 4)
    seconds = 1e-3 * np.exp(errors)
    table = replace(WorkTable.of(launches), seconds=seconds)
    outside = np.zeros((1, 800), dtype=np.bool_)
    outside[0, :80] = True
    ways = {MODEL: predicted, PHYSICAL: predicted * 2}
    found = calibrated(table, LeftOut("port", ways, outside))
    assert np.log(found.unseen_kernel.high_factor) == pytest.approx(0.5 * 1.645, rel=0.15)
    assert found.unseen_kernel.low_factor == pytest.approx(1 / found.unseen_kernel.high_factor)
    assert found.unseen_kernel.groups == pytest.approx(0.9, abs=0.05)
    assert found.extrapolated.high_factor >= found.unseen_kernel.high_factor**1.5 * (1 - 1e-9)
    assert found.uncalibrated.high_factor == pytest.approx(
        (2 * np.exp(0.5 * 1.645)) ** 1.5, rel=0.3
    )
    assert found.uncalibrated.launches is None


def test_pairs_of_one_kernel() -> None:
    launches = [
        launch(seconds=2e-3, blocks=64),
        launch(seconds=2e-3, blocks=64),
        launch(seconds=1e-2, blocks=256),
        launch(kernel="other", seconds=5.0),
    ]
    intervals = work_time_model(STORE, GPU).card.intervals
    predicted = np.array([1e-3, 1e-3, 4e-3, 1.0])
    pairs = pairs_of(launches, predicted, intervals)
    assert len(pairs) == 6
    assert sum(pair.other_shape for pair in pairs) == 4
    again = next(pair for pair in pairs if pair.distance == 0)
    assert again.error == pytest.approx(-np.log(2))
    assert abs(again.corrected_error) < 0.02
    text = known_table(pairs)
    assert "| same grid and block | 2 | 50.0 |" in text


@needs_data
def test_served_constants_are_those_the_data_give() -> None:
    table = WorkTable.of(read_launches())
    found = fitted_constants(table.units, table.seconds, table.weights)
    served = work_schema().constants
    trained_on = work_time_model(STORE, GPU).card.sources[0].used_sha256
    if trained_on != sha256_of(launches_path()):
        pytest.skip("the constants were fitted to another copy of the table")
    assert found.factors == pytest.approx(dict(served.factors), rel=0.01)
    assert found.norm == pytest.approx(served.norm, rel=0.01)


@needs_data
def test_training_makes_the_inputs_that_serving_makes() -> None:
    launches = read_launches()[::50]
    table, constants = WorkTable.of(launches), work_schema().constants
    vectors, physical = inputs_of(table, constants)
    works = [one.work for one in launches]
    parts = work_parts(works, load_gpu(GPU), CLOCKS)
    assert np.array_equal(vectors, work_inputs(works, parts, constants.norm))
    assert np.array_equal(physical, p_norm(parts, constants.norm))


@needs_data
def test_the_packaged_files_come_from_this_code(tmp_path: Path) -> None:
    card = work_time_model(STORE, GPU).card
    if card.sources[0].used_sha256 != sha256_of(launches_path()):
        pytest.skip("the artifact was trained on another copy of the table")
    table = WorkTable.of(read_launches())
    vectors, physical = inputs_of(table, work_schema().constants)
    trees = fit_residual(table, vectors, physical, np.arange(len(table.seconds)))
    save_compact(WorkCatboost(), trees, tmp_path, vectors.shape[1])
    if card.libraries == library_versions(("catboost", "scipy")):
        for path in tmp_path.iterdir():
            assert sha256_of(path) == card.files[path.name], path.name


@needs_data
def test_training_twice_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01
    few_trees = MappingProxyType({**WorkCatboost.hyperparameters, "iterations": 20})
    monkeypatch.setattr(WorkCatboost, "hyperparameters", few_trees)
    lines = launches_path().read_text(encoding="utf-8").splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([lines[0], *lines[1::5]]) + "\n", encoding="utf-8")
    cards = [train(tmp_path / name, few, assignments=1).card for name in ("one", "two")]
    assert cards[0].to_json() == cards[1].to_json()
    assert cards[0].created.isoformat() == "2026-01-01"
    assert cards[0].training.rows == len(lines[1::5])
    opened = ArtifactStore([tmp_path / "one"], kind=TimeCard)
    assert opened.problems() == ()
    assert opened.list() == [cards[0]]


@pytest.mark.slow
@needs_data
def test_unseen_programs_reach_what_they_must() -> None:
    table = WorkTable.of(read_launches())
    for protocol, ape, within in (("program", 30.0, 0.78), ("port", 33.0, 0.75)):
        scores = leave_out(table, protocol, [0]).scores(table)
        print(f"\n{score_table([scores])}")
        found, physical = scores.model, scores.others[PHYSICAL]
        assert found["median_ape_percent"].mean <= ape
        assert found["within_factor_2_share"].mean >= within
        assert found["median_ape_percent"].mean < physical["median_ape_percent"].mean + 1
        assert scores.others["roofline"]["median_ape_percent"].mean > 50


def test_the_page_quotes_the_card() -> None:
    card = work_time_model(STORE, GPU).card
    assert score_table(card.scores).strip() in DOCS.read_text(encoding="utf-8")
