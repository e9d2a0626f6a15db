"""PostgreSQL that restarts under load: answers or a clear 503, and nothing acknowledged is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from tests.app.conftest import settings_at
from tests.app.databases import database, own_server
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, ended, table, upload
from wattcast.app.store.database import Pool, open_database
from wattcast.app.store.jobs import JOB_EVENTS
from wattcast.app.store.measurements import MEASUREMENTS

pytestmark = pytest.mark.slow

ROWS = 30
KILLS = 4
OUTAGE_SECONDS = 1.5


class Load:
    """Callers in threads until ``stop``; what they were answered."""

    def __init__(self, client: httpx.Client) -> None:
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.batches: list[str] = []
        self.predictions: list[str] = []
        self._client = client
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def call(self, name: str, ask: Callable[[int], httpx.Response], into: list[str]) -> None:
        """Call ``ask`` with 0, 1, ... and remember the ``id`` of what was answered."""

        def run() -> None:
            number = 0
            while not self._ended.is_set():
                answer = ask(number)
                number += 1
                self.statuses[name, answer.status_code] += 1
                if answer.is_success:
                    body = answer.json()
                    into.extend([body["id"]] if isinstance(body, dict) else [])
                elif answer.json().get("type") != "/problems/store":
                    self.wrong.append(answer.text)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def _told_gone(client: httpx.Client) -> None:
    assert client.get("/readyz").status_code == 503
    assert client.get("/metrics").status_code == 200


def test_a_server_killed_and_started_again_costs_no_more_than_a_503(
    tmp_path: Path, vector_add: str
) -> None:
    with own_server() as server:

        def killed(client: httpx.Client) -> None:
            for _ in range(KILLS):
                time.sleep(0.7)
                server.kill()
                time.sleep(OUTAGE_SECONDS)
                _told_gone(client)
                server.start()

        _under_load(tmp_path, vector_add, server.url, killed)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/jobs"), ("POST", "/predict"), ("GET", "/readyz")]
)
def test_a_paused_server_costs_a_503_within_seconds(
    method: str, path: str, tmp_path: Path, vector_add: str
) -> None:
    body = {"ptx": vector_add, "gpu": GPU, "launch": {"grid": [64], "block": [128]}}
    sent = {"json": body} if method == "POST" else {}
    with own_server() as server:
        settings = settings_at(
            tmp_path / "home", database_url=server.url, database_seconds=2, job_workers=0
        )
        with running(settings) as client:
            assert client.post("/predict", json=body).status_code == 200
            with server.paused():
                begun = time.monotonic()
                answers = [client.request(method, path, **sent) for _ in range(2)]
                seconds = time.monotonic() - begun
                assert client.get("/healthz").status_code == 200
            print(f"{method} {path} answered twice in {seconds:.1f} s")
            for answer in answers:
                assert answer.status_code == 503, answer.text
                assert answer.json()["type"] == "/problems/store"
                assert answer.headers["Retry-After"]
            assert seconds < 20  # unbounded before
            until = time.monotonic() + 30
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < until
                time.sleep(0.1)
            assert client.request(method, path, **sent).status_code == 200


def test_a_statement_that_takes_too_long_is_ended_by_the_server(tmp_path: Path) -> None:
    with database("postgresql", tmp_path) as url:
        engine = open_database(url, Pool(seconds=1))
        with engine.connect() as connection, pytest.raises(OperationalError, match="timeout"):
            connection.exec_driver_sql("SELECT pg_sleep(30)")
        with engine.begin() as holder:
            holder.exec_driver_sql("LOCK TABLE predictions")
            with engine.connect() as other, pytest.raises(OperationalError, match="lock timeout"):
                other.exec_driver_sql("LOCK TABLE predictions")
        engine.dispose()


def _under_load(
    tmp_path: Path, vector_add: str, url: str, disturb: Callable[[httpx.Client], None]
) -> None:
    """Uploads, predictions and a retraining while the database is disturbed; what was
    acknowledged must be there afterwards, once."""
    body = {"ptx": vector_add, "gpu": GPU, "launch": {"grid": [64], "block": [128]}}
    settings = settings_at(tmp_path / "home", database_url=url, job_lease_seconds=2.0)
    with running(settings) as client:
        batch = upload(client, table(120, kernels=12))
        request = {"gpu": GPU, "mode": "continue", "families": ["catboost"]}
        job = client.post("/retrain", json={**request, "batches": [batch]}).json()["id"]
        load = Load(client)

        def uploads(of: int) -> Callable[[int], httpx.Response]:
            return lambda number: client.post(
                "/measurements",
                files={"file": ("r.csv", table(ROWS, kernels=5, seed=1000 * of + number))},
                data={"schema": SCHEMA},
            )

        for of in (1, 2):
            load.call("upload", uploads(of), load.batches)
        load.call("predict", lambda _: client.post("/predict", json=body), load.predictions)
        load.call("list", lambda _: client.get("/measurements"), [])
        load.call("jobs", lambda _: client.get("/jobs"), [])
        disturb(client)
        time.sleep(1)
        load.stop()
        print(dict(load.statuses))
        assert load.wrong == []
        assert load.statuses["list", 503] > 0  # the outage was felt
        until = time.monotonic() + 30
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert ended(client, f"/jobs/{job}")["state"] == "done"
    with running(settings) as client:
        for prediction in load.predictions:
            assert client.get(f"/predictions/{prediction}").status_code == 200
    engine = open_database(url)
    with engine.connect() as connection:
        counted = connection.execute(
            sa.select(MEASUREMENTS.c.batch_id, sa.func.count()).group_by(MEASUREMENTS.c.batch_id)
        )
        rows = {str(batch_id): count for batch_id, count in counted}
        ends = connection.execute(sa.select(JOB_EVENTS).where(JOB_EVENTS.c.state == "done"))
        assert len(ends.all()) == 1
    engine.dispose()
    assert rows.pop(batch) == 120
    assert set(rows) >= set(load.batches)
    assert set(rows.values()) == {ROWS}
