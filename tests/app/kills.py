"""Kills services, workers, training processes and readers of uploads, and counts what is left.

A round: a service on a database and home of their own, uploads and retrainings one after the
other, and a SIGKILL at a random moment to one of its processes; what died is started again. In the
end everything that was accepted must be there, every job ended, and every artifact whole.
With ``dask`` the fits run on a cluster of two workers, and those are killed too."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import httpx
import psutil
import sqlalchemy as sa

from tests.app.databases import database
from tests.app.measured import GPU, table, upload
from wattcast.app.services.models.artifacts import RegistryArtifacts
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.jobs import JOB_EVENTS, JOBS
from wattcast.app.store.measurements import MEASUREMENTS
from wattcast.app.store.registry import ALIAS_MOVES, MODEL_ALIASES, MODEL_VERSIONS
from wattcast.app.store.repositories import Repositories
from wattcast.app.store.tables import PREDICTIONS

Victim = Literal["api", "worker", "child", "reader", "dask-worker"]

VICTIMS: tuple[Victim, ...] = ("api", "worker", "child", "reader")

WITH_DASK: tuple[Victim, ...] = ("api", "worker", "child", "dask-worker")

LONG_UPLOAD = 3000
"""Rows of an upload whose reader is killed: it takes about half a second."""

DASK_WORKERS = 2

ROWS, KERNELS = 120, 12

LEASE_SECONDS = 2.0
"""Short, so that a job of a dead worker is soon taken over."""


@dataclass
class Counts:
    """What a run of rounds found. Everything from ``lost_rows`` on must be zero."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    kills_in_stage: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    jobs: int = 0
    attempts: int = 0
    promotions: int = 0
    lost_rows: int = 0
    lost_jobs: int = 0
    failed_jobs: int = 0
    jobs_ended_twice: int = 0
    jobs_with_effect_twice: int = 0
    champions_too_many: int = 0
    broken_artifacts: int = 0

    def told(self) -> str:
        """All of it as JSON."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(named, indent=1)

    @property
    def wrong(self) -> dict[str, int]:
        """What must be zero and is not."""
        names = list(self.__dataclass_fields__)
        must = names[names.index("lost_rows") :]
        return {name: getattr(self, name) for name in must if getattr(self, name)}


class Group:
    """A service without workers of its own and a worker, as processes that can be killed; with
    ``dask`` also a scheduler, which is not, and its workers."""

    def __init__(self, home: Path, url: str, *, dask: bool = False) -> None:
        self._log = (home.parent / "log.txt").open("ab")
        self._dask: list[subprocess.Popen[bytes]] = []
        self._scheduler_file = home.parent / "scheduler.json"
        self.settings = Settings(
            home=home,
            dask=self._start_cluster() if dask else None,
            database_url=url,  # type: ignore[arg-type]
            port=0,
            log_level="error",
            access_log=False,
            ptxas="off",
            job_lease_seconds=LEASE_SECONDS,
            job_attempts=50,
        )
        self.api = self._start_api()
        self.worker = self._start("worker", "--jobs", "1")

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        outside = {k: v for k, v in os.environ.items() if not k.startswith("WATTCAST_")}
        environment = {**outside, **self.settings.environment(), "WATTCAST_JOB_WORKERS": "0"}
        return subprocess.Popen(
            [sys.executable, "-m", "wattcast.app.cli", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def _start_api(self) -> subprocess.Popen[bytes]:
        api = self._start("serve")
        assert api.stdout is not None
        for line in api.stdout:
            if b"serves on" in line:
                self.url = line.split(b"serves on ")[1].split()[0].decode()
                return api
        raise AssertionError("the service did not start")

    def _start_cluster(self) -> str:
        """The address of a new scheduler with its workers."""
        self._scheduler = self._start_dask("scheduler", "--host", "127.0.0.1", "--port", "0")
        until = time.monotonic() + 60
        while not self._scheduler_file.exists() or not self._scheduler_file.read_text():
            assert time.monotonic() < until, "the Dask scheduler did not start"
            time.sleep(0.05)
        self._dask = [self._start_dask_worker() for _ in range(DASK_WORKERS)]
        address: str = json.loads(self._scheduler_file.read_text())["address"]
        return address

    def _start_dask_worker(self) -> subprocess.Popen[bytes]:
        # Without its nanny the process is the worker itself, and nobody else starts it again.
        return self._start_dask("worker", "--no-nanny", "--nthreads", "1")

    def _start_dask(self, *arguments: str) -> subprocess.Popen[bytes]:
        more = ("--scheduler-file", str(self._scheduler_file), "--no-dashboard")
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments, *more],
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self, victim: Victim) -> bool:
        """SIGKILL one process; ``False`` if there is none of the kind just now."""
        if victim == "dask-worker":
            oldest = self._dask.pop(0)
            oldest.kill()
            oldest.wait()
            self._dask.append(self._start_dask_worker())
            return True
        if victim in ("child", "reader"):
            above = self.worker if victim == "child" else self.api
            children = psutil.Process(above.pid).children()
            if not children:
                return False
            children[0].send_signal(signal.SIGKILL)
            return True
        process = self.api if victim == "api" else self.worker
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if victim == "api":
            self.api = self._start_api()
        else:
            self.worker = self._start("worker", "--jobs", "1")
        return True

    def close(self) -> None:
        for process in (self.worker, self.api):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for process in (*self._dask, *([self._scheduler] if self._dask else [])):
            process.kill()
            process.wait()
        self._log.close()


@contextmanager
def group(kind: str, folder: Path, *, dask: bool = False) -> Iterator[Group]:
    """A group of processes on a database of ``kind``."""
    with database(kind, folder) as url:
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        made = Group(home, url, dask=dask)
        try:
            yield made
        finally:
            made.close()


def run(kind: str, folder: Path, rounds: int, seed: int, *, dask: bool = False) -> Counts:
    """Rounds of kills on one database; what was found."""
    victims = WITH_DASK if dask else VICTIMS
    chance = random.Random(seed)
    counts = Counts()
    accepted: dict[str, int] = {}
    submitted: list[str] = []
    with group(kind, folder, dask=dask) as processes:
        engine = open_database(processes.settings.sqlalchemy_url)
        repositories = Repositories(engine)
        for at in range(rounds):
            victim = victims[at % len(victims)]
            # A board each: every retraining starts from the packaged champion, and costs alike.
            content = table(ROWS, kernels=KERNELS, seed=at, board=f"board-{at}")
            batch = _tried(processes, lambda client, c=content: upload(client, c))
            accepted[batch] = ROWS
            body = {"gpu": GPU, "mode": "continue", "families": ["catboost"], "batches": [batch]}
            key = {"Idempotency-Key": f"round-{seed}-{at}"}
            job = _tried(
                processes,
                lambda client, b=body, k=key: (
                    client.post("/retrain", json=b, headers=k).raise_for_status().json()["id"]
                ),
            )
            submitted.append(job)
            if victim == "reader":
                stage = "upload"
                content = table(LONG_UPLOAD, kernels=KERNELS, seed=rounds + at)
                accepted[_read_again(processes, content, chance)] = LONG_UPLOAD
            else:
                stage = _killed(processes, repositories, victim, job, chance)
            counts.kills[victim] += 1
            counts.kills_in_stage[stage] += 1
            _ended(repositories, job)
        counts.uploads = len(accepted)
        counts.rounds = counts.jobs = len(submitted)
        _inspect(engine, processes.settings, accepted, submitted, counts)
        engine.dispose()
    return counts


def _killed(
    processes: Group, repositories: Repositories, victim: Victim, job: str, chance: random.Random
) -> str:
    """Kill a victim at a random moment of a job; the stage that it was in."""
    # Every other one late: what is registered, stored and promoted takes a hundredth of the time.
    share = chance.choice((chance.random(), chance.uniform(0.95, 0.99)))
    pause = chance.uniform(0, 0.3)
    while True:
        found = repositories.jobs.get(UUID(job))
        assert found is not None
        if found.ended or found.progress >= share or found.attempts > 1:
            time.sleep(pause)
            if processes.kill(victim) or found.ended:
                return found.stage
        time.sleep(0.01)


def _read_again(processes: Group, content: bytes, chance: random.Random) -> str:
    """Upload a table whose reader is killed at a random moment; its batch."""
    pause, ended = chance.uniform(0, 0.6), threading.Event()

    def kill() -> None:
        ended.wait(pause)
        while not processes.kill("reader") and not ended.wait(0.01):
            continue

    killer = threading.Thread(target=kill)
    killer.start()
    batch: str = _tried(processes, lambda client: upload(client, content))
    ended.set()
    killer.join()
    return batch


def _tried(processes: Group, ask: Any, seconds: float = 60) -> Any:
    """What a call answers, made again while the service is being started."""
    until = time.monotonic() + seconds
    while True:
        try:
            with httpx.Client(base_url=processes.url, timeout=60) as client:
                return ask(client)
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _ended(repositories: Repositories, job: str, seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not (found := repositories.jobs.get(UUID(job))) or not found.ended:
        assert time.monotonic() < until, f"job {job} does not end: {found}"
        time.sleep(0.1)


def _inspect(
    engine: sa.Engine,
    settings: Settings,
    accepted: dict[str, int],
    submitted: list[str],
    counts: Counts,
) -> None:
    """Compare what is there with what was accepted."""
    with engine.connect() as connection:
        rows = connection.scalar(sa.select(sa.func.count()).select_from(MEASUREMENTS))
        jobs = {str(row.id): row for row in connection.execute(sa.select(JOBS))}
        ends = Counter(
            str(row.job_id)
            for row in connection.execute(
                sa.select(JOB_EVENTS).where(JOB_EVENTS.c.state.in_(("done", "failed")))
            )
        )
        versions = connection.execute(sa.select(MODEL_VERSIONS)).all()
        moves = connection.execute(sa.select(ALIAS_MOVES)).all()
        places = connection.execute(sa.select(MODEL_ALIASES)).all()
    counts.lost_rows = sum(accepted.values()) - int(rows or 0)
    counts.lost_jobs = len(set(submitted) ^ set(jobs))
    counts.failed_jobs = sum(job.state != "done" for job in jobs.values())
    counts.attempts = sum(job.attempts for job in jobs.values())
    counts.jobs_ended_twice = sum(ends[job] != 1 for job in jobs)
    of_job = Counter(str(version.job_id) for version in versions)
    promoted = sum((job.result or {}).get("promoted", False) for job in jobs.values())
    counts.promotions = len(moves)
    counts.jobs_with_effect_twice = sum(of_job[job] != 1 for job in jobs) + abs(
        promoted - len(moves)
    )
    champions = [place for place in places if place.champion_move_id is not None]
    counts.champions_too_many = abs(len(champions) - promoted)
    artifacts = RegistryArtifacts(settings.home / "registry")
    for version in Repositories(engine).registry.snapshot().versions:
        try:
            artifacts.open(version.name, version.card_sha256)
        except Exception as error:
            print(f"broken: {version.name}: {error}", file=sys.stderr)
            counts.broken_artifacts += 1


# --- Kills a service that answers predictions, and looks for every one that it acknowledged

CALLERS = 8

WARM = 30
"""Predictions that a service has answered before it counts as serving: the first are slow."""

BETWEEN_KILLS = (0.3, 1.0)
"""Seconds in which a service is left alone once it answers again."""


@dataclass
class Acknowledged:
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


def run_predictions(
    kind: str, folder: Path, kills: int, per_second: float, seed: int
) -> Acknowledged:
    """Kill a service at random moments; which acknowledged predictions its database lacks."""
    chance, counts = random.Random(seed), Acknowledged()
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
