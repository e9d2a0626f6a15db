"""``wattcast serve`` as a process: what ``make run`` does, on a free port."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

from tests.app.conftest import Ended
from tests.app.measured import FAMILY, GPU, SCHEMA, table, upload
from tests.app.test_jobs_worker import gone
from tests.fixtures.hostile_ptx import SHAPES
from wattcast.features.cuda.isolation import find_nvrtc, in_force


def start(home: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "wattcast.app.cli", "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WATTCAST_HOME": str(home), "PYTHONUNBUFFERED": "1", **environment},
    )


def url_from(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What the service printed until it serves, and its URL."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if found := re.search(r"serves on (http://\S+)", line):
            return printed, found[1]
    raise AssertionError(printed + (process.stderr.read() if process.stderr else ""))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path, "--demo", "--port", "0")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_demonstration_predicts_and_then_serves(demo: subprocess.Popen[str]) -> None:
    printed, url = url_from(demo)
    assert f"POST {url}/predict answered" in printed
    assert re.search(r"power +[\d.]+ W +[\d.]+ W \.\. [\d.]+ W", printed)
    assert re.search(r"energy +[\d.]+ .?J", printed)
    assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30) == 0


def test_a_taken_port_is_one_line(ended: Ended) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, out, err = ended("serve", "--port", taken.getsockname()[1])
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "cannot listen on 127.0.0.1" in err


def test_an_unusable_home_is_told(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path / "file"))
    status, _, err = ended("serve", "--port", "0")
    assert status == 1
    assert "cannot open the database" in err


# --- the end, in the middle of work -------------------------------------------------------------

SLOW_CUDA = """\
template <int N, int M> struct F { static constexpr int v = F<N-1, 2*M+1>::v + F<N-1, 2*M>::v; };
template <int M> struct F<0, M> { static constexpr int v = M; };
__global__ void k(int *o) { *o = F<17, 1>::v; }
"""
"""262,144 instances: NVRTC takes longer than the 20 s it has."""

Way = Callable[[str], None]
LAUNCH = {"grid": [4096], "block": [256]}
FAST = ("a retraining", "an event stream", "a compilation")
"""A child that works, a connection that is held, and a process started outside of ours: each of
the others, in the slow suite, is one of these kinds again."""


def launches() -> bytes:
    """A zip whose rows take long: each kernel is another, and has 2,000 loads."""
    text = SHAPES["known_loads"](2_000)
    rows = ["gpu,ptx,grid,block,time_seconds", *(f"v100,{n}.ptx,4096,256,1e-5" for n in range(100))]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.csv", "\n".join(rows))
        for n in range(100):
            archive.writestr(f"{n}.ptx", f"{text}// {n}\n")
    return out.getvalue()


def as_parquet(rows: bytes) -> bytes:
    """A CSV as Parquet."""
    out = io.BytesIO()
    pq.write_table(pv.read_csv(io.BytesIO(rows)), out)
    return out.getvalue()


def sending(content: bytes, **form: str) -> Way:
    """Upload measurements."""

    def way(url: str) -> None:
        httpx.post(f"{url}/measurements", files={"file": ("rows", content)}, data=form, timeout=120)

    return way


def arriving(url: str) -> None:
    """Begin to send a large upload, and go on forever."""

    def body() -> Iterator[bytes]:
        yield b"--x\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n"
        while True:
            yield b"1" * 100_000
            time.sleep(0.1)

    head = {"Content-Type": "multipart/form-data; boundary=x"}
    httpx.post(f"{url}/measurements", content=body(), headers=head, timeout=120)


def retraining(url: str) -> None:
    """Learn from 20,000 rows."""
    with httpx.Client(base_url=url, timeout=120) as client:
        batch = upload(client, table(20_000))
        asked = {"gpu": GPU, "mode": "continue", "families": [FAMILY], "batches": [batch]}
        assert client.post("/retrain", json=asked).status_code == 202


def listening(url: str) -> None:
    """Hold an event stream."""
    with httpx.stream("GET", f"{url}/jobs/events", timeout=120) as answer:
        for _ in answer.iter_raw():
            pass


def queueing(url: str) -> None:
    """Ask for 24 analyses at once, most of which wait for their turn."""
    ptx = SHAPES["known_loads"](19_000)

    def ask(number: int) -> None:
        body = {"ptx": f"{ptx}// {number}\n", "kernel": "k", "gpu": "v100", "launch": LAUNCH}
        httpx.post(f"{url}/predict", json=body, timeout=120)

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(ask, range(24)))


def compiling(url: str) -> None:
    """Compile what takes longer than it may."""
    asked: dict[str, Any] = {"gpu": "v100", "launch": {"grid": 64, "block": 64}}
    httpx.post(f"{url}/predict", json={**asked, "cuda": SLOW_CUDA}, timeout=120)


READER = "wattcast.app.services.measurements"
BUSY: dict[str, tuple[Callable[[], Way], str | None, dict[str, str]]] = {
    "an upload arriving": (lambda: arriving, None, {}),
    "a table": (lambda: sending(table(80_000, kernels=30), schema=SCHEMA), READER, {}),
    "Parquet": (
        lambda: sending(as_parquet(table(80_000)), schema=SCHEMA), "parquet_rows.py", {}
    ),
    "launches": (lambda: sending(launches()), READER, {}),
    "launches, in threads": (
        lambda: sending(launches()),
        None,
        {"WATTCAST_UPLOAD_READERS": "threads"},
    ),
    "a retraining": (lambda: retraining, "wattcast.app.jobs", {}),
    "an event stream": (lambda: listening, None, {}),
    "a waiting queue": (lambda: queueing, None, {"WATTCAST_ANALYSES_AT_ONCE": "4"}),
    "a compilation": (lambda: compiling, "--ready", {}),  # jail.py, which forks for each
}  # fmt: skip
"""What keeps the service busy: the way to begin it, what the child's command line holds that works
on it, and settings."""


@pytest.mark.parametrize(
    "doing",
    [pytest.param(doing, marks=[pytest.mark.slow] * (doing not in FAST)) for doing in BUSY],
)
def test_a_signal_ends_all_of_it(tmp_path: Path, doing: str) -> None:
    """The service has ended 10 s after SIGTERM, with every process below it."""
    made, at_work, environment = BUSY[doing]
    if doing == "a compilation" and not (find_nvrtc() and in_force()):
        pytest.skip("the extra cuda (NVRTC) is not installed, or this kernel isolates nothing")
    way = made()
    process = start(tmp_path, "--port", "0", WATTCAST_LOG_LEVEL="error", **environment)
    below: set[psutil.Process] = set()
    stood_still = 0.0  # the machine: a round of the loop below takes a few hundredths of a second
    # Read all along: requests cut off tell more than a pipe holds, and who writes to a full
    # one waits for a reader.
    told: list[str] = []
    reader = threading.Thread(target=told.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        _, url = url_from(process)
        said: list[BaseException] = []

        def busy() -> None:
            try:
                way(url)
            except (httpx.HTTPError, AssertionError) as error:
                said.append(error)

        threading.Thread(target=busy, daemon=True).start()
        service = psutil.Process(process.pid)
        wait_for(service, at_work, below, said)
        time.sleep(1.0)
        assert not said, said
        process.send_signal(signal.SIGTERM)
        start_of_end = before = time.monotonic()
        while process.poll() is None:
            note(service, below)
            time.sleep(0.02)
            stood_still += max(0.0, time.monotonic() - before - 0.5)
            before = time.monotonic()
            assert before - start_of_end - stood_still < 10
        took = time.monotonic() - start_of_end
        print(f"ended {took:.1f} s after the signal ({stood_still:.1f} still), doing {doing}")
        for one in below:
            gone(one)
    finally:
        process.kill()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        reader.join(10)
        with process:  # closes its pipes
            pass
    killed = {-signal.SIGKILL, 1} if stood_still > 1 else set[int]()  # by the service's own clock
    assert process.returncode in {0, -signal.SIGTERM} | killed, told
    if doing == "a retraining":
        with sqlite3.connect(tmp_path / "wattcast.db") as database:
            assert database.execute("SELECT state FROM jobs").fetchall() == [("queued",)]


def note(service: psutil.Process, below: set[psutil.Process]) -> None:
    """Remember the processes that are below the service now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below.update(service.children(recursive=True))


def wait_for(
    service: psutil.Process,
    at_work: str | None,
    below: set[psutil.Process],
    said: list[BaseException],
) -> None:
    """Until a child works whose command line holds ``at_work``.

    Readers of uploads are nice: beside whatever else runs on this machine they may get no time at
    all, and never start the child. Here they get as much as others do, and what they got counts.
    """
    while at_work is not None:
        note(service, below)
        spent_seconds = 0.0
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word.endswith(at_work) for word in one.cmdline()):
                    return
                spent_seconds += sum(one.cpu_times()[:2])
                with contextlib.suppress(psutil.AccessDenied):  # who is not root may not
                    one.nice(0)
        assert spent_seconds < 60
        assert not said, said  # at last when the request gives up, after 120 s
        time.sleep(0.02)
