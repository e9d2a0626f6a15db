"""Uploads read in processes of their own answer as threads do, and survive what happens to one."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.app.conftest import settings_at
from tests.app.databases import KINDS, database
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, table
from wattcast.app.services import Services
from wattcast.app.services.measurements import __main__ as process
from wattcast.app.services.measurements import readers as module
from wattcast.app.services.measurements.upload import UploadOptions
from wattcast.features.errors import ServiceError

MINE = module.__package__
OPTIONS = UploadOptions(schema=SCHEMA)


def readers() -> list[int]:
    """Process ids of the readers that this process has started."""
    return [one.pid for one in psutil.Process().children() if MINE in one.cmdline()]


@pytest.fixture
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    with database(getattr(request, "param", "sqlite"), tmp_path) as url:
        opened = Services.open(
            settings_at(
                tmp_path / "home", database_url=url, upload_readers="processes", job_workers=0
            )
        )
        yield opened
        opened.close()


def stored(services: Services, content: bytes) -> tuple[int, bool]:
    batch, is_new = services.reader.store(io.BytesIO(content), OPTIONS, "somebody")
    assert batch.uploaded_by == "somebody"
    assert services.data is not None
    assert services.data.measurements.get(batch.id) == batch
    return batch.accepted, is_new


def cases(vector_add: str) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    """Path, file and form of uploads: good, good in parts, and bad in every way."""
    good = table(50)
    broken = good.replace(b"kernel_3,", b"kernel_3,-", 1) + b"tesla-k20,k\n"
    ptx = b"gpu,ptx,grid,block,time_seconds\ntesla-k20,no.ptx,1,1,1\n"
    forms: list[tuple[bytes, dict[str, str]]] = [
        (good, {"schema": SCHEMA}),
        (good, {"schema": SCHEMA}),  # again: the same batch
        (broken, {"schema": SCHEMA, "board": "B"}),
        (b"", {"schema": SCHEMA}),
        (b"\x1f\x8b broken", {"schema": SCHEMA}),
        (good, {"schema": "no-such-schema"}),
        (good, {"schema": SCHEMA, "gpu": "no-such-gpu"}),
        (ptx, {}),
        (b"kernel,power_watts\nk,\xff\n", {"schema": SCHEMA, "gpu": GPU}),
        (table(300, kernels=20), {"schema": SCHEMA}),  # more rows than are taken here
    ]
    return [
        (path, {"file": ("rows.csv", content)}, form)
        for content, form in forms
        for path in ("/measurements/check", "/measurements")
    ]


def test_processes_answer_as_threads_do(tmp_path: Path, vector_add: str) -> None:
    def answers(kind: str) -> tuple[list[tuple[int, dict[str, Any], str | None]], list[str]]:
        settings = settings_at(
            tmp_path / kind, upload_readers=kind, max_upload_rows=200, job_workers=0
        )
        with running(settings) as client:
            found = [client.post(p, files=f, data=d) for p, f, d in cases(vector_add)]
            assert bool(readers()) == (kind == "processes")
            places = [one.headers["Location"] for one in found if one.status_code == 201]
            kept = [client.get(f"{place}/rows").text for place in places]
            text = client.get("/metrics").text
            rows = [line for line in text.splitlines() if "uploaded_rows_total{" in line]
        told = [(one.status_code, one.json(), one.headers.get("retry-after")) for one in found]
        assert rows
        for _, body, _ in told:
            for each_time_anew in ("id", "created", "request_id"):
                body.pop(each_time_anew, None)
        return told, kept

    threads, processes = answers("threads"), answers("processes")
    assert processes == threads
    assert threads[1][0].count("\n") == 1 + 50  # a line for each row
    assert {status for status, _, _ in threads[0]} >= {200, 201, 413, 422}
    assert readers() == []  # they end with the service


def test_a_reader_that_was_killed_is_replaced(services: Services) -> None:
    assert stored(services, table(20)) == (20, True)
    (first,) = readers()
    os.kill(first, signal.SIGKILL)
    assert stored(services, table(20, seed=1)) == (20, True)
    (second,) = readers()
    assert second != first
    assert stored(services, table(20, seed=2)) == (20, True)
    assert readers() == [second]  # one reader reads many uploads


@pytest.mark.parametrize("services", KINDS, indirect=True)
def test_an_upload_whose_reader_is_killed_is_stored_once(services: Services) -> None:
    stored(services, table(20))
    killed: list[int] = []

    def kill() -> None:
        for pause in (0.05, 0.3):
            time.sleep(pause)
            if not killed:
                killed.extend(readers())
                os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    accepted, _ = stored(services, table(4000, kernels=30, seed=3))
    killer.join()
    assert killed
    assert accepted == 4000
    assert services.data is not None
    sizes = sorted(batch.accepted for batch in services.data.measurements.latest(limit=10))
    assert sizes == [20, 4000]


def test_a_reader_that_dies_twice_is_our_fault(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServiceError, match="broke off") as found:
        services.reader.store(io.BytesIO(table(20)), OPTIONS, "somebody")
    assert found.value.kind == "internal"


def test_a_reader_that_hangs_is_killed(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(services, table(20))
    (hanging,) = readers()
    os.kill(hanging, signal.SIGSTOP)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    quick = services.settings.model_copy(update={"upload_seconds": 0.5})
    monkeypatch.setattr(services, "settings", quick)
    with pytest.raises(ServiceError) as found:
        services.reader.store(io.BytesIO(table(20, seed=1)), OPTIONS, "somebody")
    assert found.value.kind == "time-limit"
    assert readers() == []


def test_a_reader_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    order = io.BytesIO()
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.05)
    into, out_of = os.pipe()
    with os.fdopen(into, "rb") as source, os.fdopen(out_of, "wb"):
        start = time.monotonic()
        process.serve(source, order)
    assert time.monotonic() - start < 5
    assert order.getvalue() == b""
