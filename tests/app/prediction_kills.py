"""Kills a service that answers predictions, and looks for every one that it acknowledged.

``python -m tests.app.prediction_kills --kills 20 --database sqlite`` prints the counts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
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
    unanswered: int = 0
    refused: int = 0
    seconds_served: float = 0.0
    per_second: float = 0.0
    """Predictions a second just before the kills."""
    stored: int = 0
    missing: int = 0


class Callers:
    """Threads that ask for predictions at a rate, all together, of whoever serves now."""

    def __init__(self, processes: Group, per_second: float) -> None:
        self.acknowledged: list[str] = []
        self.unanswered = self.refused = 0
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
                    self.unanswered += 1
                    self._stopped.wait(0.2)

    def _ask(self, client: httpx.Client, body: dict[str, Any]) -> None:
        answer = client.post("/predict", json=body)
        if answer.is_success:
            told = answer.json()
            self.acknowledged += [one["id"] for one in told.get("predictions", [told])]
        else:
            self.refused += 1


def run(kind: str, folder: Path, kills: int, per_second: float, seed: int) -> Counts:
    """Kill a service at random moments; which acknowledged predictions its database lacks."""
    chance, counts = random.Random(seed), Counts()
    with group(kind, folder) as processes:
        callers = Callers(processes, per_second)
        callers.start()
        served = 0
        try:
            for _ in range(kills):
                before, begun = len(callers.acknowledged), time.monotonic()
                while len(callers.acknowledged) < before + WARM:
                    assert time.monotonic() < begun + 120, "the service answers nothing"
                    time.sleep(0.005)
                before, begun = len(callers.acknowledged), time.monotonic()
                time.sleep(chance.uniform(*BETWEEN_KILLS))
                counts.seconds_served += time.monotonic() - begun
                served += len(callers.acknowledged) - before
                processes.kill("api")
                counts.kills += 1
        finally:
            callers.stop()
        engine = open_database(processes.settings.sqlalchemy_url)
        with engine.connect() as connection:
            stored = set(connection.execute(sa.select(PREDICTIONS.c.id)).scalars())
        engine.dispose()
    counts.acknowledged, counts.stored = len(callers.acknowledged), len(stored)
    counts.unanswered, counts.refused = callers.unanswered, callers.refused
    counts.per_second = served / max(counts.seconds_served, 1e-9)
    counts.missing = len({UUID(one) for one in callers.acknowledged} - stored)
    return counts


def main() -> int:
    """Run what the command line asks for; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=100, help="requests a second")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(given.database, Path(folder), given.kills, given.rate, given.seed)
    print(json.dumps(asdict(found), indent=1))
    return int(found.missing > 0)


if __name__ == "__main__":
    sys.exit(main())
