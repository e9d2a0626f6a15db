"""Known kernels measured again, over HTTP and on both databases: what is promoted keeps its word on
kernels that neither base nor uploads hold."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from studies.fitting.trees.tables import TrainingTable
from tests.app.conftest import settings_at
from tests.app.databases import KINDS, database
from tests.app.live import running
from tests.app.measured import upload
from tests.training.left_out import GPU, coverage_by_group, fewer_trees, parted, train_without
from wattcast.app.services.retrain import KIND, run_job
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.jobs import JobStore
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore
from wattcast.training import power_rows
from wattcast.training.data.datasets import find_data
from wattcast.training.evaluation.splits import Rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_data() is None, reason="no data sets: set WATTCAST_DATA or lay ../shared/data beside"
    ),
]

BOARD = "lab-7"
SHIFT = 1.15
CHAMPION = {"family": "catboost", "schema": "alavani2023", "source": "thesis", "version": 2}


class Split(NamedTuple):
    known: TrainingTable
    others: Rows
    artifacts: Path


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """K20 without every seventh kernel group, those, and a model trained without them."""
    home = tmp_path_factory.mktemp("leak")
    known, others = parted()
    with fewer_trees():
        train_without(known, home / "artifacts", CHAMPION["version"])
        yield Split(known, others, home / "artifacts")


@pytest.fixture(params=KINDS)
def settings(request: pytest.FixtureRequest, split: Split, tmp_path: Path) -> Iterator[Settings]:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "artifacts").symlink_to(split.artifacts)
    with database(request.param, tmp_path) as url:
        yield settings_at(home=tmp_path / "home", database_url=SecretStr(url), job_workers=0)


@pytest.fixture
def service(settings: Settings) -> Iterator[httpx.Client]:
    with running(settings) as client:
        yield client


def measured_again(known: TrainingTable) -> bytes:
    """The rows of the known kernels under other names, drawing 15 % more."""
    rows, generator = known.rows[known.served], np.random.default_rng(1)
    watts = rows.watts * SHIFT * np.exp(generator.normal(0, 0.01, len(rows)))
    text = io.StringIO()
    writer = csv.writer(text)
    model = ArtifactStore().find(GPU, "power", "catboost", "alavani2023").card
    writer.writerow(("gpu", "board", "kernel", "power_watts", *model.feature_names))
    for at in range(len(rows)):
        values = [repr(value) for value in rows.vectors[at].tolist()]
        writer.writerow((GPU, BOARD, f"again_{rows.groups[at]}", repr(float(watts[at])), *values))
    return text.getvalue().encode()


def worked_on(settings: Settings) -> None:
    """Do the one job that waits here, where the published rows can be taken for fewer."""
    engine = open_database(settings.sqlalchemy_url)
    try:
        claim = JobStore(engine).claim((KIND,), 600, 1)
        assert claim is not None
        run_job(settings, claim.job.id, claim.token)
    finally:
        engine.dispose()


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_what_is_promoted_holds_on_kernels_that_were_kept_out(
    mode: str,
    service: httpx.Client,
    settings: Settings,
    split: Split,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = (split.known.clean, split.known.rows["as_recomputed"])
    monkeypatch.setattr(power_rows, "served_rows", lambda *given: base)
    named = service.post(f"/models/{GPU}/power/promote", json={**CHAMPION, "board": BOARD})
    assert named.status_code == 200, named.text
    body = {"gpu": GPU, "batches": [upload(service, measured_again(split.known))]}
    body |= {"mode": mode, "families": ["catboost"]}
    plan = service.post("/retrain", json={**body, "dry_run": True}).json()["targets"][0]
    assert plan["mode"] == ("continue" if mode == "auto" else "full")
    assert all(kernel["known"] for kernel in plan["kernels"])
    accepted = service.post("/retrain", json=body)
    assert accepted.status_code == 202, accepted.text
    worked_on(settings)
    job: Any = service.get(accepted.headers["Location"]).json()
    assert job["state"] == "done", job["error"]
    result = job["result"]
    assert result["mode"] == plan["mode"]
    version = result["candidate"]["version"]
    card = service.get(f"/models/{GPU}/power/catboost-alavani2023-uploads/{version}").json()
    assert card["board"]["unseen_kernel"] == "not measured"
    found = ArtifactStore((settings.home / "registry",)).find(
        GPU, "power", "catboost", "alavani2023", source="uploads", version=version
    )
    by_group = coverage_by_group(BoostedPowerModel(found), split.others, SHIFT)
    assert len(by_group) == 13
    assert np.mean(by_group) >= 0.85 or not result["promoted"]
    # It is better on what both know, so that it serves this board: the word above is its own.
    assert result["promoted"], result["verdict"]["reasons"]
    (place,) = service.get(f"/models/{GPU}/power/registry").json()["places"]
    assert (place["board"], place["champion"]["version"]) == (BOARD, version)
