"""A full disk: a clear answer, nothing half-written, and all is well again once there is room."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, ended, table, upload
from wattcast.app.jobs import worker as jobs
from wattcast.app.problems import is_full
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.jobs import Claim
from wattcast.app.store.measurements import MEASUREMENTS
from wattcast.app.store.registry import MODEL_VERSIONS
from wattcast.models.store import NATIVE_NAMES

SPOOLED_BYTES = 1024 * 1024
"""Up to here starlette keeps a form's file in memory."""


@contextmanager
def small_files(most_bytes: int) -> Iterator[None]:
    """This process and its new children may write files only so large, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Pages:
    """How many pages an SQLite database may have; 1 stands for those that it has."""

    MOST = 1073741823

    def __init__(self, home: Path) -> None:
        self.home = home
        self.most = self.MOST

    def limit(self, connection: sa.Connection) -> None:
        # A connection keeps the limit: services of other tests are none of ours.
        if str(connection.engine.url.database).startswith(str(self.home)):
            connection.exec_driver_sql(f"PRAGMA max_page_count = {self.most}")


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    made = Pages(tmp_path)
    sa.event.listen(sa.Engine, "begin", made.limit)
    yield made
    sa.event.remove(sa.Engine, "begin", made.limit)


def posted(client: httpx.Client, content: bytes) -> httpx.Response:
    return client.post(
        "/measurements", files={"file": ("rows.csv", content)}, data={"schema": SCHEMA}
    )


def refused(answer: httpx.Response, where: str) -> None:
    assert answer.status_code == 507, answer.text
    problem = answer.json()
    assert problem["type"] == "/problems/disk-full"
    assert problem["detail"] == f"there is no room left {where}; nothing was stored"
    assert answer.headers["Retry-After"] == "60"


def stored_rows(settings: Settings) -> int:
    engine = open_database(settings.sqlalchemy_url)
    with engine.connect() as connection:
        count = connection.scalar(sa.select(sa.func.count()).select_from(MEASUREMENTS))
    engine.dispose()
    assert count is not None
    return int(count)


@pytest.mark.parametrize(
    ("path", "rows"),
    [("/measurements", 1000), ("/measurements", 10_000), ("/retrain", 1000)],
    ids=["while unpacked", "while it arrives", "of a retraining"],
)
def test_no_room_for_temporary_files(path: str, rows: int, tmp_path: Path) -> None:
    content = table(rows)
    assert (len(content) > SPOOLED_BYTES) == (rows == 10_000)
    settings = settings_at(tmp_path / "home", job_workers=0)
    with running(settings) as client:
        form = {"schema": SCHEMA, "gpu": GPU}
        with small_files(min(len(content) // 2, SPOOLED_BYTES)):
            answer = client.post(path, files={"file": ("rows.csv", content)}, data=form)
        refused(answer, "for a temporary file")
        assert client.get("/measurements").json() == client.get("/jobs").json() == []
        assert stored_rows(settings) == 0
        assert client.post(path, files={"file": ("r.csv", content)}, data=form).is_success
        assert stored_rows(settings) == rows


def test_no_room_in_the_database(pages: Pages, tmp_path: Path) -> None:
    settings = settings_at(tmp_path / "home", job_workers=0)
    with running(settings) as client:
        batch = upload(client, table(100))
        pages.most = 1
        refused(posted(client, table(2000, seed=1)), "in the database")
        request = {"gpu": GPU, "batches": [batch], "board": "x" * 60}
        answers = [client.post("/retrain", json=request) for _ in range(200)]
        # Some may find room in pages that are half empty.
        full = [answer for answer in answers if answer.status_code != 202]
        assert full
        refused(full[0], "in the database")
        assert len(client.get("/measurements").json()) == 1
        assert len(client.get("/jobs").json()) == min(100, len(answers) - len(full))
        assert stored_rows(settings) == 100
        pages.most = Pages.MOST
        assert posted(client, table(2000, seed=1)).status_code == 201
        assert stored_rows(settings) == 2100


@pytest.mark.slow
@pytest.mark.parametrize("family", ["catboost", "xgboost"])
def test_no_room_for_a_model(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt's process may write no file as large as a model; the second one may."""
    settings = settings_at(tmp_path / "home")
    started: list[subprocess.Popen[bytes]] = []
    child = jobs._child

    def first_with_small_files(settings: Settings, claim: Claim) -> subprocess.Popen[bytes]:
        made = child(settings, claim)
        if not started:
            limits = MODEL_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(made.pid, resource.RLIMIT_FSIZE, limits)
        started.append(made)
        return made

    monkeypatch.setattr(jobs, "_child", first_with_small_files)
    monkeypatch.setattr(jobs, "_NO_ROOM_SECONDS", 0.05)
    with running(settings) as client:
        batch = upload(client, table(120, kernels=12))
        _checkpoint(settings)
        body = {"gpu": GPU, "mode": "continue", "families": [family], "batches": [batch]}
        job = ended(client, client.post("/retrain", json=body).headers["Location"])
        events = client.get(f"/jobs/{job['id']}/events").text
        assert "no room was left on a disk at attempt 1" in events
        assert (job["state"], job["attempts"], len(started)) == ("done", 2, 2)
        answer = client.get(f"/models/{GPU}/power/registry").json()
        assert len([one for one in answer["versions"] if one["origin"] == "retrained"]) == 1
        until = time.monotonic() + 30
        while list((settings.home / "work").iterdir()):  # until the worker has cleared up
            assert time.monotonic() < until
            time.sleep(0.05)
    (folder,) = (settings.home / "registry" / GPU / "power").glob("*/*")
    assert (folder / NATIVE_NAMES[family]).stat().st_size > MODEL_BYTES
    engine = open_database(settings.sqlalchemy_url)
    with engine.connect() as connection:
        assert len(connection.execute(sa.select(MODEL_VERSIONS)).all()) == 1
    engine.dispose()


MODEL_BYTES = 1_000_000
"""The packaged model that is continued has 1.12 MB; what a job writes of its progress has less."""


def _checkpoint(settings: Settings) -> None:
    """What is in SQLite's log goes into the database: the log starts anew."""
    engine = open_database(settings.sqlalchemy_url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.slow
def test_a_disk_that_really_is_full(small_disk: Path, vector_add: str) -> None:
    settings = settings_at(small_disk / "home", job_workers=0)
    body = {"ptx": vector_add, "gpu": GPU, "launch": {"grid": [64], "block": [128]}}
    with running(settings) as client:
        upload(client, table(100))
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left") as full:
            _fill(filler)
        assert is_full(full.value)
        refused(posted(client, table(3000, seed=1)), "in the database")
        assert len(client.get("/measurements").json()) == 1
        asked = [client.post("/predict", json=body) for _ in range(300)]
        assert {answer.status_code for answer in asked} <= {200, 507}
        filler.unlink()
        assert posted(client, table(3000, seed=1)).status_code == 201
        until = time.monotonic() + 30
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert stored_rows(settings) == 3100
    with running(settings) as client:  # of what was answered nothing is missing
        for prediction in (answer.json()["id"] for answer in asked if answer.is_success):
            assert client.get(f"/predictions/{prediction}").status_code == 200


def test_only_a_full_disk_is_called_one() -> None:
    psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    full, other = psycopg.errors.DiskFull(), psycopg.errors.AdminShutdown()
    for cause, expected in ((full, True), (other, False), (OSError(2, ""), False)):
        error, answer = sa.exc.OperationalError("", {}, cause), RuntimeError()
        error.__cause__, answer.__cause__ = cause, error  # as "raise ... from" sets them
        assert is_full(answer) is expected
