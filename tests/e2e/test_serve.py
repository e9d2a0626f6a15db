"""``wattcast serve`` as a process: what ``make run`` does, on a free port."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest


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


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, "--port", str(taken.getsockname()[1]))
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.count("\n") == 1
    assert "cannot listen on 127.0.0.1" in err


def test_an_unusable_home_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = start(tmp_path / "file", "--port", "0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot open the database" in err
    assert "Traceback" not in err


def test_predictions_survive_a_kill_signal(tmp_path: Path) -> None:
    from importlib.resources import files

    ptx = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")
    body = {"ptx": ptx, "gpu": "v100", "launch": {"grid": 64, "block": 256}}
    process = start(tmp_path, "--port", "0")
    try:
        _, url = url_from(process)
        with httpx.Client(base_url=url) as client:
            predicted = [client.post("/predict", json=body).json() for _ in range(20)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        process.kill()
    process = start(tmp_path, "--port", "0")
    try:
        _, url = url_from(process)
        with httpx.Client(base_url=url) as client:
            for one in predicted:
                assert client.get(f"/predictions/{one['id']}").json() == one
    finally:
        process.kill()
        process.communicate()
