"""The command line and Python predict by the models that were promoted in a service's database."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

import wattcast
from tests.app.conftest import Run, settings_at
from tests.app.databases import KINDS, database
from tests.app.live import running
from wattcast.app import python
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.registry import ModelName, NewVersion, Place, RegistryStore
from wattcast.features.errors import ModelError
from wattcast.predictor.messages.predict import PredictAnswer

GPU = "tesla-v100"
LAUNCH = ("--gpu", GPU, "--grid", "4096", "--block", "256", "--json")
WHICH = {"family": "extratrees", "schema": "alavani2023", "source": "thesis", "version": 1}
POLL_SECONDS = 0.01


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Python keeps its services: they are of the test's settings."""
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WATTCAST_PTXAS", "off")
    monkeypatch.setattr("wattcast.app.services.models.standalone.POLL_SECONDS", POLL_SECONDS)
    python._predictor.cache_clear()
    yield
    python._predictor.cache_clear()


def in_python(file: str, **more: object) -> PredictAnswer:
    return wattcast.predict(Path(file), gpu=GPU, grid=4096, block=256, **more)  # type: ignore[arg-type]


def family(answer: PredictAnswer) -> str:
    assert answer.model is not None
    return answer.model.family


def promote(client: httpx.Client, **more: object) -> None:
    answer = client.post(f"/models/{GPU}/power/promote", json={**WHICH, **more})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_promotion_holds_for_every_face(
    kind: str, run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path / "home", job_workers=0)
    with database(kind, tmp_path) as url:
        if kind == "postgresql":
            monkeypatch.setenv("WATTCAST_DATABASE_URL", url)
            settings = settings_at(tmp_path / "home", job_workers=0, database_url=url)
        default = family(in_python(file))
        assert default != "extratrees"
        with running(settings) as client:
            promote(client)
            body = {"ptx": Path(file).read_text(), "gpu": GPU}
            launch = {"grid": [4096], "block": [256]}
            served = client.post("/predict", json={**body, "launch": launch}).json()
            assert served["model"]["family"] == "extratrees"
            time.sleep(2 * POLL_SECONDS)
            python = in_python(file)
            told = json.loads(run("predict", file, *LAUNCH)[0])
            assert python.power is not None
            assert python.power.watts == told["power"]["watts"] == served["power"]["watts"]
            assert family(python) == told["model"]["family"] == "extratrees"
            without = json.loads(run("predict", file, *LAUNCH, "--no-registry")[0])
            assert without["model"]["family"] == family(in_python(file, registry=False)) == default
            (compared,) = wattcast.compare(Path(file), gpus=[GPU], grid=4096, block=256)
            assert family(compared) == "extratrees"
        # The service has ended; its database is still there.
        assert json.loads(run("predict", file, *LAUNCH)[0])["model"]["family"] == "extratrees"
        with running(settings) as client:
            assert client.post(f"/models/{GPU}/power/rollback", json={}).status_code == 200
        time.sleep(2 * POLL_SECONDS)
        assert family(in_python(file)) == default
        assert json.loads(run("predict", file, *LAUNCH)[0])["model"]["family"] == default


def test_a_boards_champion_answers_for_that_board(run: Run, file: str, tmp_path: Path) -> None:
    with running(settings_at(tmp_path / "home", job_workers=0)) as client:
        promote(client, board="board-1")
    of_board = json.loads(run("predict", file, *LAUNCH, "--board", "board-1")[0])
    assert of_board["model"]["family"] == family(in_python(file, board="board-1")) == "extratrees"
    assert family(in_python(file)) != "extratrees"
    assert family(in_python(file, board="board-2")) != "extratrees"


def test_the_setting_leaves_promoted_models_out(
    run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(settings_at(tmp_path / "home", job_workers=0)) as client:
        promote(client)
    monkeypatch.setenv("WATTCAST_REGISTRY", "off")
    assert family(in_python(file)) != "extratrees"
    assert json.loads(run("predict", file, *LAUNCH)[0])["model"]["family"] != "extratrees"


def test_a_prediction_makes_no_database_and_changes_none(
    run: Run, file: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    run("predict", file, *LAUNCH)
    assert not home.exists() or list(home.iterdir()) == []
    settings = settings_at(home, job_workers=0)
    with running(settings) as client:
        promote(client)
    kept = home / "wattcast.db"
    before = kept.read_bytes()
    assert json.loads(run("predict", file, *LAUNCH)[0])["model"]["family"] == "extratrees"
    assert kept.read_bytes() == before


@pytest.mark.parametrize("migration", ["0003", "9999"])
def test_a_database_of_another_program(migration: str, run: Run, file: str, tmp_path: Path) -> None:
    url = settings_at(tmp_path / "home").sqlalchemy_url
    engine = open_database(url)
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE alembic_version SET version_num = :to"), {"to": migration}
        )
    _, err = run("predict", file, *LAUNCH, status=1)
    assert migration in err
    assert err.count("\n") == 1
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == migration
    engine.dispose()


def test_a_database_that_does_not_answer_is_an_error_only_for_who_needs_it(
    run: Run, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTCAST_DATABASE_URL", "postgresql://anna:secret@127.0.0.1:1/none")
    _, err = run("predict", file, *LAUNCH, status=1)
    told = json.loads(err)["detail"]  # with --json
    assert told.startswith("cannot ask postgresql://anna:***@127.0.0.1:1/none")
    assert "WATTCAST_REGISTRY=off" in err
    assert err.count("\n") == 1
    run("predict", file, *LAUNCH, "--no-registry")
    run("features", file, *LAUNCH)
    run("gpus")
    monkeypatch.setenv("WATTCAST_DATABASE_URL", "no url")
    _, err = run("predict", file, *LAUNCH, status=1)
    assert json.loads(err)["detail"] == "WATTCAST_DATABASE_URL is not an SQLAlchemy URL"


def test_a_champion_whose_artifact_is_gone_is_an_error(run: Run, file: str, tmp_path: Path) -> None:
    settings: Settings = settings_at(tmp_path / "home")
    engine = open_database(settings.sqlalchemy_url)
    name = ModelName(GPU, "power", "xgboost", "alavani2023", "upload", 7)
    gone = NewVersion(name, "", "retrained", "0" * 64)
    RegistryStore(engine).promote_by_hand(Place(GPU, "", "power"), gone, "tests", "")
    engine.dispose()
    with pytest.raises(ModelError):
        in_python(file)
    _, err = run("predict", file, *LAUNCH, status=1)
    assert json.loads(err)["detail"].startswith("no xgboost power model")
    assert err.count("\n") == 1
