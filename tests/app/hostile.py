"""A service in a process of its own, its size, and how quickly it says that it is well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.e2e.test_serve import start, url_from

_PINGS = """
import http.client, json, sys, time
host, port = sys.argv[1:]
client = http.client.HTTPConnection(host, int(port), timeout=60)
while True:
    began = time.perf_counter()
    client.request("GET", "/healthz")
    answer = client.getresponse()
    answer.read()
    print(json.dumps([answer.status, time.perf_counter() - began]), flush=True)
    time.sleep(0.02)
"""


@dataclass
class Watched:
    """A running service. ``health`` holds the seconds of each answer of ``GET /healthz`` so far,
    ``peak_bytes`` the most resident memory seen."""

    process: subprocess.Popen[str]
    url: str
    health: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def resident_bytes(self) -> int:
        """Memory of the process now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def watch_memory(self) -> None:
        """Note the peak, until closed."""
        while not self.closing.wait(0.02):
            try:
                self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
            except psutil.Error:
                return


def load() -> float:
    """By how much work on this machine takes longer than if it were idle, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@contextmanager
def watched(home: Path, **environment: str) -> Iterator[Watched]:
    """``wattcast serve`` with a process beside it that asks whether it is well."""
    process = start(home, "--port", "0", WATTCAST_LOG_LEVEL="error", **environment)
    try:
        _, url = url_from(process)
        for pipe in (process.stdout, process.stderr):  # else a full one would hold it up
            assert pipe is not None
            threading.Thread(target=pipe.read, daemon=True).start()
        found = Watched(process, url)
        host, port = url.removeprefix("http://").split(":")
        pinger = subprocess.Popen(
            [sys.executable, "-c", _PINGS, host, port], stdout=subprocess.PIPE, text=True
        )

        def gather() -> None:
            assert pinger.stdout is not None
            for line in pinger.stdout:
                status, seconds = json.loads(line)
                assert status == 200
                found.health.append(seconds)

        threads = [threading.Thread(target=each) for each in (gather, found.watch_memory)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        try:
            yield found
        finally:
            found.closing.set()
            pinger.kill()
            pinger.wait()
            for thread in threads:
                thread.join()
            assert pinger.stdout is not None
            pinger.stdout.close()
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
