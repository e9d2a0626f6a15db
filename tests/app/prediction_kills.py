"""Kills a service that answers predictions, and looks for every one that it acknowledged."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import sqlalchemy as sa

from tests.app.kills import Group, group
from wattcast.app.store.database import open_database
from wattcast.app.store.tables import PREDICTIONS

CALLERS = 8
WARM = 30
"""Predictions that a service has answered before it counts as serving: the first are slow."""

BETWEEN_KILLS = (0.3, 1.0)
"""Seconds in which a service is left alone once it answers again."""


@dataclass
class Counts:
    """What was found; ``missing`` must be 0."""

    kills: int = 0
    acknowledged: int = 0
    """Predictions a second just before the kills."""
    stored: int = 0
    missing: int = 0


class Callers:
    """Threads that ask for predictions at a rate, all together, of whoever serves now."""

    def __init__(self, processes: Group, per_second: float) -> None:
        self.acknowledged: list[str] = []
        self._processes = processes
        self._pause = CALLERS / per_second
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CALLERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, number: int) -> None:
        ptx = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")
        # Half of the callers name two GPUs: their answers are two rows.
        where: dict[str, Any] = {"gpu": "tesla-v100"}
        if number % 2:
            where = {"gpus": ["tesla-v100", "tesla-k20"]}
        body = {"ptx": f"// {number}\n{ptx}", "launch": {"grid": [64], "block": [128]}, **where}
        due = time.monotonic()
        while not self._stopped.is_set():
            # Certificates are not looked at over plain HTTP, and reading them takes 30 ms.
            with httpx.Client(base_url=self._processes.url, timeout=30, verify=False) as client:
                try:
                    while not self._stopped.is_set():
                        self._ask(client, body)
                        due = max(due + self._pause, time.monotonic() - 1)
                        self._stopped.wait(max(0.0, due - time.monotonic()))
                except httpx.TransportError:
                    self._stopped.wait(0.2)

    def _ask(self, client: httpx.Client, body: dict[str, Any]) -> None:
        answer = client.post("/predict", json=body)
        if answer.is_success:
            told = answer.json()
            self.acknowledged += [one["id"] for one in told.get("predictions", [told])]


def run(kind: str, folder: Path, kills: int, per_second: float, seed: int) -> Counts:
    """Kill a service at random moments; which acknowledged predictions its database lacks."""
    chance, counts = random.Random(seed), Counts()
    with group(kind, folder) as processes:
        callers = Callers(processes, per_second)
        callers.start()
        try:
            for _ in range(kills):
                before, begun = len(callers.acknowledged), time.monotonic()
                while len(callers.acknowledged) < before + WARM:
                    assert time.monotonic() < begun + 120, "the service answers nothing"
                    time.sleep(0.005)
                time.sleep(chance.uniform(*BETWEEN_KILLS))
                processes.kill("api")
                counts.kills += 1
        finally:
            callers.stop()
        engine = open_database(processes.settings.sqlalchemy_url)
        with engine.connect() as connection:
            stored = set(connection.execute(sa.select(PREDICTIONS.c.id)).scalars())
        engine.dispose()
    counts.acknowledged, counts.stored = len(callers.acknowledged), len(stored)
    counts.missing = len({UUID(one) for one in callers.acknowledged} - stored)
    return counts
