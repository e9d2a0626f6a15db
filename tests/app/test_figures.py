"""What ``GET /metrics`` looks up: jobs of the database, models that answer, drift."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import Engine

from tests.app.conftest import settings_at
from tests.app.live import running
from wattcast.app.store.jobs import JOBS, Job, JobStore
from wattcast.features.errors import Diagnostic
from wattcast.features.schemas import FeatureVector
from wattcast.models.explain import Background
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore
from wattcast.predictor.parts import drift
from wattcast.predictor.parts.drift import WINDOW, DriftWatch, stability_index
from wattcast.predictor.parts.watts import Watts

Labels = dict[str, str]
AT = datetime(2026, 1, 1, tzinfo=UTC)
GPU, SCHEMA = "tesla-v100", "alavani2023"
FEWEST = 20
"""Predictions that are compared, here."""


def found(client: httpx.Client, name: str, **labels: str) -> list[tuple[Labels, float]]:
    """Samples of a name that have these labels among theirs."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == f"wattcast_{name}" and labels.items() <= sample.labels.items()
    ]


def value(client: httpx.Client, name: str, **labels: str) -> float:
    ((_, only),) = found(client, name, **labels)
    return only


@pytest.fixture
def service(url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A service that leaves jobs to others."""
    with running(settings_at(tmp_path / "home", database_url=url, job_workers=0)) as client:
        yield client


def submit(engine: Engine, key: str) -> Job:
    return JobStore(engine).submit("retrain", {}, "tests", key)[0]


def ended(engine: Engine, state: str, seconds: float) -> None:
    """A job that took so long."""
    times = {"started": AT, "finished": AT + timedelta(seconds=seconds)}
    job = submit(engine, f"{state} {seconds}")
    with engine.begin() as connection:
        connection.execute(sa.update(JOBS).where(JOBS.c.id == job.id).values(state=state, **times))


def test_the_queue_is_told_by_every_replica(service: httpx.Client, engine: Engine) -> None:
    assert value(service, "jobs", kind="retrain", state="queued") == 0
    assert value(service, "oldest_queued_job_seconds", kind="retrain") == 0
    first, _ = submit(engine, "1"), submit(engine, "2")
    ago = {"created": datetime.now(UTC) - timedelta(seconds=100)}
    with engine.begin() as connection:
        connection.execute(sa.update(JOBS).where(JOBS.c.id == first.id).values(**ago))
    assert value(service, "jobs", kind="retrain", state="queued") == 2
    assert 100 <= value(service, "oldest_queued_job_seconds", kind="retrain") < 160
    held = JobStore(engine).claim(("retrain",), 60, 5)
    assert held is not None
    assert held.job.id == first.id
    assert value(service, "jobs", kind="retrain", state="queued") == 1
    assert value(service, "jobs", kind="retrain", state="running") == 1
    assert value(service, "oldest_queued_job_seconds", kind="retrain") < 60


def test_durations_of_jobs_are_told_by_outcome(service: httpx.Client, engine: Engine) -> None:
    for seconds in (4.0, 20.0, 5000.0):
        ended(engine, "done", seconds)
    ended(engine, "failed", 2.0)
    JobStore(engine).cancel(submit(engine, "never started").id, "tests")
    done = {"kind": "retrain", "outcome": "done"}
    counts = {labels["le"]: count for labels, count in found(service, "job_seconds_bucket", **done)}
    expected = {"5": 1, "15": 1, "60": 2, "180": 2, "600": 2, "1800": 2, "3600": 2, "+Inf": 3}
    assert {bound.removesuffix(".0"): count for bound, count in counts.items()} == expected
    assert value(service, "job_seconds_count", **done) == 3
    assert value(service, "job_seconds_sum", **done) == pytest.approx(5024, abs=0.01)
    assert value(service, "job_seconds_count", outcome="failed") == 1
    assert value(service, "job_seconds_count", outcome="cancelled") == 0
    assert value(service, "jobs", state="cancelled") == 1


def test_metrics_are_told_where_the_database_does_not_answer(
    service: httpx.Client, engine: Engine
) -> None:
    assert value(service, "database_up") == 1
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs RENAME TO elsewhere")
    assert value(service, "database_up") == 0
    assert found(service, "jobs") == []
    assert found(service, "requests_total", route="/metrics") != []


def test_the_models_that_answer_are_told(service: httpx.Client, vector_add: str) -> None:
    def answers(board: str = "") -> list[tuple[str, str, str]]:
        told = found(service, "model_info", gpu=GPU, target="power", board=board)
        return [(one["family"], one["version"], one["champion"]) for one, _ in told]

    launch = {"grid": [64], "block": [128]}
    body = {"ptx": vector_add, "gpu": GPU, "launch": launch}
    model = service.post("/predict", json=body).json()["model"]
    default = (model["family"], str(model["version"]), "default")
    assert answers() == [default]
    which = {"family": "extratrees", "schema": SCHEMA, "source": "thesis", "version": 1}
    path = f"/models/{GPU}/power"
    assert service.post(f"{path}/promote", json=which).status_code == 200
    assert answers() == [("extratrees", "1", "promoted")]
    one = {**which, "board": "board-1"}
    assert service.post(f"{path}/promote", json=one).status_code == 200
    assert answers("board-1") == [("extratrees", "1", "promoted")]
    assert service.post(f"{path}/rollback", json={}).status_code == 200
    assert answers() == [default]


def test_the_model_told_is_the_one_that_answers(client: httpx.Client, vector_add: str) -> None:
    for labels, _ in found(client, "model_info"):
        body = {"ptx": vector_add, "gpu": labels["gpu"], "launch": {"grid": [64], "block": [128]}}
        if client.get(f"/gpus/{labels['gpu']}").status_code != 200:
            continue
        answer = client.post("/predict", json=body).json()
        codes = {warning["code"] for warning in answer["warnings"]}
        model = answer["model"]
        if model is not None and "other_model_answers" not in codes:
            told = labels["family"], labels["schema"], labels["source"], labels["version"]
            assert (
                *(model[name] for name in ("family", "schema", "source")),
                str(model["version"]),
            ) == told


def test_drift_of_what_is_asked(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "FEWEST", FEWEST)
    body = {
        "ptx": vector_add,
        "gpu": GPU,
        "model": "xgboost",
        "launch": {"grid": [64], "block": [128]},
    }
    with running(settings_at(tmp_path)) as client:
        assert found(client, "drift_predictions") == []
        warned = 0
        for grid in range(1, FEWEST):
            launch = {"grid": [grid * grid * grid], "block": [64]}
            warnings = client.post("/predict", json={**body, "launch": launch}).json()["warnings"]
            codes = {one["code"] for one in warnings}
            warned += bool(codes & {"outside_training_range", "unlike_training"})
        of = {"gpu": GPU, "schema": SCHEMA}
        assert value(client, "drift_predictions", **of) == FEWEST - 1
        assert value(client, "drift_outside_share", **of) == pytest.approx(warned / (FEWEST - 1))
        assert 0 < warned < FEWEST - 1
        assert found(client, "drift_stability_index") == []
        model = client.post("/predict", json=body).json()["model"]
        indices = {
            labels["feature"]: index for labels, index in found(client, "drift_stability_index")
        }
        card = client.get(model["card"]).json()
        assert set(indices) <= {feature["name"] for feature in card["features"]}
        # One kernel over and over: its instructions fall into one bin each.
        assert max(indices.values()) > 0.25


@cache
def packaged() -> BoostedPowerModel:
    return BoostedPowerModel(ArtifactStore().find(GPU, "power", "xgboost", SCHEMA))


def background() -> Background:
    return packaged().background


@pytest.mark.parametrize("at", range(15))
def test_values_as_in_training_have_no_drift(at: int) -> None:
    feature = background().features[at]
    total = sum(part.count for part in feature.bins)
    # As many of each bin as training had, each at its bin's mean.
    like = np.repeat(
        [part.mean for part in feature.bins],
        [round(1000 * part.count / total) for part in feature.bins],
    )
    same = stability_index(feature, like.astype(np.float32))
    assert same == pytest.approx(0, abs=0.01)
    far = stability_index(feature, np.full(1000, feature.quantiles[-1] * 10 + 1, np.float32))
    assert far is not None
    assert far > 0.25


@given(
    values=st.lists(st.floats(-1e6, 1e9, width=32) | st.just(float("nan")), min_size=1),
    at=st.integers(0, 14),
)
def test_the_index_is_never_negative_and_misses_leave_none(values: list[float], at: int) -> None:
    index = stability_index(background().features[at], np.array(values, np.float32))
    if np.isnan(values).all():
        assert index is None
    else:
        assert index is not None
        assert 0 <= index < 40


def test_only_the_latest_predictions_count() -> None:
    watch, model = DriftWatch(), packaged()
    names = model.card.feature_names
    vector = FeatureVector(SCHEMA, GPU, dict.fromkeys(names, 1.0), names, ())
    flag = (Diagnostic("outside_training_range", ""),)
    for diagnostics in ((), flag):
        for _ in range(WINDOW):
            watch.saw(GPU, Watts(model.card, vector, None, model, diagnostics=diagnostics))
    (seen,) = watch.all()
    assert (seen.predictions, seen.outside_share) == (WINDOW, 1.0)
    watch.saw(GPU, Watts())  # nothing was predicted: nothing to compare
    assert len(list(watch.all())) == 1


def test_every_metric_is_documented(client: httpx.Client) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(wattcast_\w+)`", text))
    told = set(re.findall(r"^# TYPE (wattcast_\w+)", client.get("/metrics").text, re.MULTILINE))
    of_others = ("wattcast_test_", "_created")  # other tests' own; when a counter was made
    told = {name for name in told if not any(part in name for part in of_others)}
    assert told == named
