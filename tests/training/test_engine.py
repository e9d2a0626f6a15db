"""Fits and predictions of folders give the same on a cluster, even if a worker dies."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wattcast
from tests.training.uploaded import measured, order, packaged, uploads
from wattcast.app.cli import app
from wattcast.training.boosted import FitTask, fit_predict_all, retrain
from wattcast.training.engine import (
    ClusterError,
    Engine,
    InProcess,
    OnDask,
    SpreadXgboost,
    fit_data_parallel,
    open_engine,
)
from wattcast.training.evaluation.scores import Rows
from wattcast.training.families import Xgboost

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
    sample = rows(60, 6)
    halves = np.array_split(np.arange(len(sample)), 2)
    tasks = [
        FitTask(family, sample.vectors[one], sample.watts[one], sample.vectors[other])
        for family in ("xgboost", "catboost")
        for one, other in (halves, halves[::-1])
    ]
    here, there = (dict(fit_predict_all(where, tasks)) for where in (InProcess(2), engine))
    assert sorted(here) == sorted(there) == [0, 1, 2, 3]
    assert all((here[at] == there[at]).all() for at in here)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees where this process fits or says what is fitted; workers keep their own number."""
    monkeypatch.setattr(Xgboost, "hyperparameters", {**Xgboost.hyperparameters, **QUICK})


@pytest.mark.usefixtures("quick")
def test_a_fit_on_many_rows_takes_the_cluster_and_no_other_does(engine: Engine) -> None:
    assert isinstance(engine, OnDask)
    sample = rows(600)
    many, few = (replace(engine, spread_rows=number) for number in (600, 601))
    alone = Xgboost().fit(sample.vectors, sample.watts).save_raw("ubj")
    assert SpreadXgboost(few).fit(sample.vectors, sample.watts).save_raw("ubj") == alone
    spread = SpreadXgboost(many).fit(sample.vectors, sample.watts)
    assert spread.num_boosted_rounds() == QUICK["n_estimators"]
    assert spread.save_raw("ubj") != alone
    tasks = [
        FitTask(family, sample.vectors, sample.watts, sample.vectors[:100])
        for family in ("xgboost", "catboost")
    ]
    here, there = (dict(fit_predict_all(where, tasks)) for where in (InProcess(2), many))
    assert here[0] == pytest.approx(there[0], rel=0.1)
    assert (here[0] != there[0]).any()
    assert (here[1] == there[1]).all()


@pytest.mark.usefixtures("quick")
def test_a_retraining_on_many_rows_is_spread_and_judged_alike(
    engine: Engine, tmp_path: Path
) -> None:
    assert isinstance(engine, OnDask)
    champion = packaged()
    given = uploads(measured(champion, kernels=10, launches=8))
    asked = order(champion, families=("xgboost",), continued=False)
    errors = []
    for name, where in (("alone", InProcess(1)), ("spread", replace(engine, spread_rows=1))):
        made = retrain(asked, given, None, tmp_path / name, engine=where)
        errors.append(made.card.score("measured", "grouped").model["mae_watts"].mean)
    assert errors[0] != errors[1]
    assert errors[1] == pytest.approx(errors[0], rel=0.25)


@dataclass(frozen=True)
class Slow:
    """A task that tells who runs it, and takes a while."""

    number: int
    folder: str


def slowly(task: Slow) -> int:
    (Path(task.folder) / f"{task.number}-{os.getpid()}").touch()
    time.sleep(0.3)
    return task.number * task.number


@pytest.mark.slow
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


def test_bulk_predicts_a_folder_on_the_cluster_as_it_does_here(
    cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    text = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text("utf-8")
    kernel = text[text.index(".visible .entry") :]
    folder = tmp_path / "kernels"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "two.ptx").write_text(text + kernel.replace("vector_add", "second"))
    (folder / "bad.ptx").write_text("no ptx")
    (folder / "notes.txt").write_text("not code")
    tables = []
    for name, where in (("here", ()), ("there", ("--dask", cluster.scheduler_address))):
        out = tmp_path / f"{name}.csv"
        words = ["bulk", str(folder), "--gpu", "v100", "--gpu", "k20", "--grid", "64",
                 "--block", "256", "--out", str(out), *where]  # fmt: skip
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
        assert "4 predicted, 2 failed" in ended.output
        tables.append(out.read_text())
    assert tables[0] == tables[1]
    found = list(csv.DictReader(tables[0].splitlines()))
    assert [(row["file"], row["kernel"], row["gpu"]) for row in found] == [
        ("bad.ptx", "", "v100"),
        ("bad.ptx", "", "k20"),
        ("deep/two.ptx", "vector_add", "v100"),
        ("deep/two.ptx", "second", "v100"),
        ("deep/two.ptx", "vector_add", "k20"),
        ("deep/two.ptx", "second", "k20"),
    ]
    assert all("not PTX" in row["problem"] and not row["power_watts"] for row in found[:2])
    one = wattcast.predict(folder / "deep" / "two.ptx", gpu="v100", grid=64, block=256,
                           kernel="second")  # fmt: skip
    assert one.power is not None
    assert one.time is not None
    assert found[3]["power_watts"] == f"{one.power.watts:.6g}"
    assert found[3]["time_seconds"] == f"{one.time.seconds:.6g}"


def test_bulk_takes_launches_from_a_table(tmp_path: Path) -> None:
    text = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text("utf-8")
    (tmp_path / "a.ptx").write_text(text)
    table = tmp_path / "launches.csv"
    table.write_text(
        "file,grid,block,kernel,arguments\n"
        "a.ptx,64,256,,3=1024 0:elements=1024 1:elements=1024 2:elements=1024\n"
        'a.ptx,"8,8",256,vector_add,\na.ptx,64,256,nobody,\n'
    )
    run = partial(CliRunner().invoke, app)
    words = ["bulk", str(tmp_path), "--gpu", "v100", "--launches", str(table)]
    ended = run(words)
    assert ended.exit_code == 0, ended.output
    found = list(csv.DictReader(ended.stdout.splitlines()))
    assert [(row["grid"], row["kernel"]) for row in found] == [
        ("64", "vector_add"), ("8,8", "vector_add"), ("64", "nobody"),
    ]  # fmt: skip
    assert "argument_assumed" not in found[0]["warnings"]
    assert "argument_assumed" in found[1]["warnings"]
    assert "nobody" in found[2]["problem"]
    table.write_text("file,grid\na.ptx,64\n")
    assert "column block is missing" in run(words).output
    table.write_text("file,grid,block,gird\na.ptx,64,1,1\n")
    assert "unknown column gird" in run(words).output
    assert "give --grid and --block" in run(words[:4]).output
    (tmp_path / "a.ptx").write_text("no ptx")
    assert run([*words[:4], "--grid", "1", "--block", "32"]).exit_code == 1


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattcast.training.engine.WORKERS_SECONDS", 0.5)
    with (
        pytest.raises(ClusterError, match="no Dask scheduler answers"),
        open_engine("tcp://127.0.0.1:9"),
    ):
        pass
