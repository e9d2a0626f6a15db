"""Folds, searches, big fits and extraction give the same on a cluster, even if a worker dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from wattcast.features.errors import ModelError
from wattcast.training.bulk import KernelTask, extract_all
from wattcast.training.data_parallel import fit_data_parallel
from wattcast.training.engine import ClusterError, Engine, InProcess, OnDask, open_engine
from wattcast.training.evaluation.protocols import cross_validate
from wattcast.training.evaluation.splits import Rows
from wattcast.training.families import Xgboost
from wattcast.training.search import cross_validate_on, fit_fold, search

distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning",
    "ignore::ResourceWarning",
)  # fmt: skip

QUICK = {"n_estimators": 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        silence_logs=50,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def engine(cluster: distributed.LocalCluster) -> Iterator[Engine]:
    with open_engine(cluster.scheduler_address) as opened:
        yield opened


def rows(count: int = 200, kernels: int = 20) -> Rows:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(count, 5))
    watts = 60 + 10 * vectors[:, 0] + 5 * np.abs(vectors[:, 1]) + generator.normal(size=count)
    return Rows.of(vectors, watts, np.arange(count) % kernels)


def fit_predict(vectors: np.ndarray, watts: np.ndarray, test: np.ndarray) -> np.ndarray:
    family = Xgboost()
    family.hyperparameters = {**Xgboost.hyperparameters, **QUICK}
    return family.predict(family.fit(vectors, watts), test)


def test_folds_are_the_same_bit_by_bit_wherever_they_run(engine: Engine) -> None:
    expected = cross_validate(rows(), fit_predict, "grouped", [0, 1])
    for where in (InProcess(2), engine):
        found = cross_validate_on(where, rows(), "xgboost", "grouped", [0, 1], QUICK)
        assert (found.predicted_watts == expected.predicted_watts).all()
        assert (found.baseline_watts == expected.baseline_watts).all()
        assert (found.outside == expected.outside).all()


@dataclass(frozen=True)
class Slow:
    """A task that tells who runs it, and takes a while."""

    number: int
    folder: str


def slowly(task: Slow) -> int:
    (Path(task.folder) / f"{task.number}-{os.getpid()}").touch()
    time.sleep(0.3)
    return task.number * task.number


def test_a_worker_that_dies_in_the_middle_costs_nothing_but_time(
    engine: Engine, cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    tasks = [Slow(number, str(tmp_path)) for number in range(12)]
    found: dict[int, int] = {}
    killed = None
    for at, result in engine.map(slowly, tasks):
        found[at] = result
        if killed is None and len(found) == 2:
            running = {int(path.name.split("-")[1]) for path in tmp_path.iterdir()}
            killed = running.pop()
            os.kill(killed, signal.SIGKILL)
    assert found == {number: number * number for number in range(12)}
    started = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert len(started) > len(set(started)), "no task of the dead worker ran again"


def test_a_search_finds_what_is_no_worse_and_the_same_everywhere(engine: Engine) -> None:
    sample = rows(100, 10)
    found = [search(where, sample, "catboost", 3, at_once=2) for where in (InProcess(2), engine)]
    assert found[0] == found[1]
    assert found[0].mae_watts < found[0].baseline_mae_watts
    assert found[0].trials == 3
    with pytest.raises(ModelError, match="extratrees"):
        search(InProcess(1), sample, "extratrees", 1)


def test_one_model_is_fitted_on_rows_that_are_spread_over_workers(engine: Engine) -> None:
    assert isinstance(engine, OnDask)
    sample = rows(4000)
    parts = [
        (sample.vectors[part], sample.watts[part]) for part in np.array_split(np.arange(4000), 2)
    ]
    booster = fit_data_parallel(engine.client, parts, QUICK)
    alone = fit_predict(sample.vectors, sample.watts, sample.vectors)
    spread = Xgboost().predict(booster, sample.vectors)
    baseline = np.mean(np.abs(sample.watts - np.median(sample.watts)))
    errors = [np.mean(np.abs(each - sample.watts)) for each in (alone, spread)]
    assert errors[1] == pytest.approx(errors[0], rel=0.1)
    assert errors[1] < 0.6 * baseline


def test_features_of_many_launches(engine: Engine) -> None:
    ptx = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text("utf-8")
    tasks = [
        KernelTask(ptx, "tesla-v100", "alavani2023", (64 * n, 1, 1), (256, 1, 1))
        for n in range(1, 9)
    ] + [KernelTask("no ptx", "tesla-v100", "alavani2023", (1, 1, 1), (32, 1, 1))]
    here, there = (extract_all(where, tasks) for where in (InProcess(2), engine))
    assert repr(here) == repr(there)  # NaN where a field has no value
    assert all(one.values is not None for one in here[:-1])
    assert here[0] != here[1]
    assert here[-1].values is None
    assert here[-1].problem


def test_errors_of_a_task_reach_the_caller(engine: Engine) -> None:
    for where in (InProcess(1), engine):
        with pytest.raises(AttributeError):
            list(where.map(fit_fold, [None]))  # type: ignore[list-item]


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattcast.training.engine.WORKERS_SECONDS", 0.5)
    with (
        pytest.raises(ClusterError, match="no Dask scheduler answers"),
        open_engine("tcp://127.0.0.1:9"),
    ):
        pass
