"""The service over real HTTP beside a bare FastAPI echo of the same body, in the same run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil

from benchmarks.measure import Row, at_least, at_most, fact
from benchmarks.ptx_text import kernel

ECHO = """
import sys
import uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
@app.post("/predict")
async def echo(request: Request):
    return await request.json()
@app.get("/healthz")
async def healthz():
    return {"status": "ok"}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""


class Client:
    """One keep-alive HTTP/1.1 connection with as little work per request as possible."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one exchange."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        status = int(self._file.readline().split()[1])
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, self._file.read(length)

    def close(self) -> None:
        """Drop the connection."""
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def server(command: list[str], port: int, home: str) -> Iterator[tuple[psutil.Process, float]]:
    """A server process and the seconds until it answered ``/healthz``."""
    environment = {
        **os.environ,
        "WATTCAST_PORT": str(port),
        "WATTCAST_HOME": home,
        "WATTCAST_LOG_LEVEL": "error",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    start = time.perf_counter()
    with subprocess.Popen(command, env=environment) as process:
        try:
            while True:
                with contextlib.suppress(OSError):
                    client = Client(port)
                    ready = client.request("GET", "/healthz")[0] == 200
                    client.close()
                    if ready:
                        break
                if process.poll() is not None or time.perf_counter() - start > 60:
                    raise RuntimeError(f"{command} did not start")
                time.sleep(0.01)
            yield psutil.Process(process.pid), time.perf_counter() - start
        finally:
            process.terminate()
            process.wait(10)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def prediction_bodies(count: int, *, fresh: bool, published: bool = True) -> list[bytes]:
    """Requests with PTX never seen (``fresh``) or the same PTX with new launches and arguments.

    ``published``: answered from published feature schemas alone, time by the thesis' model; else
    by the default time model, which executes sampled blocks.
    """
    text = kernel(100)
    found = []
    for number in range(count):
        ptx = text.replace("synthetic", f"kernel_{number:05d}") if fresh else text
        body: dict[str, Any] = {
            "ptx": ptx,
            "gpu": "tesla-v100",
            "launch": {
                "grid": [1024 + number],
                "block": [256],
                "arguments": {"1": 100_000 + 37 * number},
            },
            "loops": {"default": 10},
            "registers_per_thread": 24,
            "time_model": "scheduling" if published else "auto",
            "model": "average" if published else "auto",
        }
        found.append(json.dumps(body).encode())
    return found


def _drive(port: int, bodies: list[bytes]) -> tuple[list[float], float]:
    """Latency of each request in seconds on one connection, and requests per second."""
    client = Client(port)
    samples = []
    start = time.perf_counter()
    for body in bodies:
        begin = time.perf_counter()
        status, answer = client.request("POST", "/predict", body)
        samples.append(time.perf_counter() - begin)
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
    rate = len(bodies) / (time.perf_counter() - start)
    client.close()
    return samples, rate


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def rows(requests: int = 1500) -> Iterator[Row]:
    """Every row of this part."""
    fresh, known = prediction_bodies(requests, fresh=True), prediction_bodies(requests, fresh=False)
    with tempfile.TemporaryDirectory() as home:
        port = free_port()
        with server([sys.executable, "-c", ECHO, str(port)], port, home):
            _drive(port, known[:200])
            _, echo_rate = _drive(port, known)
        yield fact("bare FastAPI echo of the same body", echo_rate, "requests/s")

        port = free_port()
        command = [sys.executable, "-m", "wattcast.app.cli", "serve"]
        with server(command, port, home) as (process, started):
            yield at_most("service start until /healthz answers", started, 2.0, "s")
            _drive(port, prediction_bodies(20, fresh=True)[:20])
            resident = process.memory_info().rss / 2**20
            yield at_most("resident before the first explanation", resident, 350.0, "MiB")
            for name, bodies, most, least in (
                ("published schema, PTX never seen", fresh, 5.0, 0.2),
                ("published schema, known PTX, new launch", known, 2.0, 0.35),
            ):
                samples, rate = _drive(port, bodies)
                p50, p99 = percentile(samples, 0.5) * 1e3, percentile(samples, 0.99) * 1e3
                yield at_most(f"POST /predict, {name}: p50", p50, most, "ms")
                yield fact(f"POST /predict, {name}: p99", p99, "ms")
                yield fact(f"POST /predict, {name}: rate", rate, "requests/s")
                yield at_least(
                    f"POST /predict, {name}: rate over echo", rate / echo_rate, least, "x"
                )
            for name, new, most in (
                ("PTX never seen", True, 10.0),
                ("known PTX, new launch", False, 4.0),
            ):
                samples, rate = _drive(
                    port, prediction_bodies(requests // 5, fresh=new, published=False)
                )
                name = f"POST /predict, default models, {name}"
                yield at_most(f"{name}: p50", percentile(samples, 0.5) * 1e3, most, "ms")
                yield fact(f"{name}: rate", rate, "requests/s")
                if not new:
                    yield at_least(f"{name}: rate over echo", rate / echo_rate, 0.2, "x")
            yield from _scaled(port)
            yield from _explained(port, process)


def _scaled(port: int) -> Iterator[Row]:
    """64 clock pairs of a launch that has been analysed."""
    body = json.loads(prediction_bodies(1, fresh=True)[0])
    asked = json.dumps({**body, "gpu": "gtx-titan-x", "time_model": "auto", "clocks": "grid"})
    client = Client(port)
    samples = []
    for _ in range(21):
        begin = time.perf_counter()
        status, answer = client.request("POST", "/dvfs", asked.encode())
        samples.append(time.perf_counter() - begin)
        if status != 200 or len(json.loads(answer)["points"]) != 64:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
    client.close()
    p50 = percentile(samples[1:], 0.5) * 1e3
    yield at_most("POST /dvfs, 64 pairs, once analysed: p50", p50, 10.0, "ms")


def _explained(port: int, process: psutil.Process) -> Iterator[Row]:
    client = Client(port)
    _, answer = client.request("POST", "/predict", prediction_bodies(1, fresh=True)[0])
    identity = json.loads(answer)["id"]
    for method in ("shap", "lime"):
        path = f"/explain?prediction_id={identity}&method={method}&target=power"
        status, text = client.request("GET", path)
        if status != 200:
            raise RuntimeError(f"{status}: {text[:300]!r}")
    client.close()
    resident = process.memory_info().rss / 2**20
    yield at_most("resident after SHAP and LIME", resident, 500.0, "MiB")
