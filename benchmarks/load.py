"""Uploads and predictions while the service retrains: nothing may fail, predictions stay quick.

    python -m benchmarks load

32 clients upload tables at once, others ask for 200 predictions a second at fixed moments (a slow
answer does not slow the asking), and a retraining on 2,000 rows runs all the while, with
WATTCAST_JOB_PRIORITY=idle unless told otherwise. Clients share the machine's cores with the
service. WATTCAST_DATABASE_URL chooses the database; else SQLite.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

from benchmarks.measure import Row, at_most, fact
from benchmarks.service import Client, free_port, percentile, prediction_bodies, server
from tests.app.measured import GPU, SCHEMA, ended, table, upload

UPLOADS, RATE, SECONDS, CLIENTS = 32, 200, 20, 16
UPLOAD_ROWS = 200


@dataclass
class Asked:
    """Milliseconds from the moment a request was due to its answer, and what went wrong."""

    milliseconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def rows() -> Iterator[Row]:
    """Every row of this part."""
    with tempfile.TemporaryDirectory() as home:
        port = free_port()
        os.environ.setdefault("WATTCAST_JOB_PRIORITY", "idle")
        with server([sys.executable, "-m", "wattcast.app.cli", "serve"], port, home):
            yield from _loaded(port)


def _loaded(port: int) -> Iterator[Row]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        batch = upload(client, table())
        _ask(port, 2)  # the first answers load models
        quiet = _ask(port, 5)
        yield fact("quiet: p99 of predictions", percentile(quiet.milliseconds, 0.99), "ms")
        order = {"gpu": GPU, "schema": SCHEMA, "batches": [batch]}
        answer = client.post("/retrain", json=order)
        answer.raise_for_status()
        job, started = answer.headers["Location"], time.perf_counter()
        tables = [table(UPLOAD_ROWS, seed=number + 1) for number in range(UPLOADS)]
        # One client: each new one would read the machine's certificates, on the service's cores.
        limits = httpx.Limits(max_connections=UPLOADS)
        with (
            httpx.Client(base_url=client.base_url, timeout=120, limits=limits) as uploader,
            ThreadPoolExecutor(UPLOADS + 1) as pool,
        ):
            asked = pool.submit(_ask, port, SECONDS)
            sent = list(pool.map(lambda content: _send(uploader, content), tables))
            found = asked.result()
        result = ended(client, job)
        yield fact("retraining beside it", time.perf_counter() - started, "s")
        failed = [one for one, _ in sent if one != 201]
        yield fact("slowest upload", max(seconds for _, seconds in sent), "s")
        yield fact("predictions answered", len(found.milliseconds), "")
        yield at_most("uploads refused", len(failed), 0, "")
        yield at_most("predictions that failed", len(found.errors), 0, "")
        yield at_most("retrainings that failed", float(result["state"] != "done"), 0, "")
        yield fact("beside it all: p50", percentile(found.milliseconds, 0.5), "ms")
        yield at_most("beside it all: p99", percentile(found.milliseconds, 0.99), 60.0, "ms")
        for line in [*found.errors[:3], *map(str, failed[:3])]:
            print(line, file=sys.stderr)


def _send(client: httpx.Client, content: bytes) -> tuple[int, float]:
    start = time.perf_counter()
    answer = client.post(
        "/measurements", files={"file": ("rows.csv", content)}, data={"schema": SCHEMA}
    )
    return answer.status_code, time.perf_counter() - start


def _ask(port: int, seconds: float) -> Asked:
    """Predictions in a process of their own: the uploads' threads would delay the clock."""
    command = [sys.executable, "-m", "benchmarks.load", str(port), str(seconds)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return Asked(**json.loads(answer.stdout))


def _asked(port: int, seconds: float) -> Asked:
    due: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    bodies = itertools.cycle(prediction_bodies(200, fresh=False))
    found, lock = Asked(), threading.Lock()

    def work() -> None:
        client = Client(port)
        while (moment := due.get()) is not None:
            with lock:
                body = next(bodies)
            status, answer = client.request("POST", "/predict", body)
            took = (time.perf_counter() - moment) * 1e3
            with lock:
                found.milliseconds.append(took)
                if status != 200:
                    found.errors.append(f"{status}: {answer[:200]!r}")
        client.close()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(int(seconds * RATE)):
        moment = start + number / RATE
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put(moment)
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return found


if __name__ == "__main__":
    asked = _asked(int(sys.argv[1]), float(sys.argv[2]))
    json.dump({"milliseconds": asked.milliseconds, "errors": asked.errors}, sys.stdout)
