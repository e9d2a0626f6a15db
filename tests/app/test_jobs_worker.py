"""A worker sees to its child processes: those that die, hang, are cancelled, or outlive it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from tests.app.conftest import settings_at
from wattcast.app.jobs import worker as module
from wattcast.app.jobs.__main__ import _stand_back as stand_back
from wattcast.app.jobs.worker import Worker
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.jobs import JOBS, Claim, Job, JobStore
from wattcast.features.cuda.isolation import Limited


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_at(tmp_path / "home", job_attempts=2, job_lease_seconds=2.0)


@pytest.fixture
def jobs(settings: Settings) -> Iterator[JobStore]:
    engine = open_database(settings.sqlalchemy_url)
    yield JobStore(engine)
    engine.dispose()


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[subprocess.Popen[bytes]]]:
    """Makes workers start this program instead of a retraining; the processes started."""
    started: list[subprocess.Popen[bytes]] = []

    def use(program: str) -> list[subprocess.Popen[bytes]]:
        def start(settings: Settings, claim: Claim) -> Limited:
            made = Limited([sys.executable, "-c", program], {})
            started.append(made)
            return made

        monkeypatch.setattr(module, "_child", start)
        return started

    return use


def submit(jobs: JobStore) -> Job:
    return jobs.submit("retrain", {}, "tests")[0]


def until(jobs: JobStore, job: Job, reached: Callable[[Job], bool]) -> Job:
    end = time.monotonic() + 60
    while True:
        found = jobs.get(job.id)
        assert found is not None
        if reached(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


@pytest.fixture
def working(settings: Settings, jobs: JobStore) -> Iterator[Worker]:
    made = Worker(settings, jobs, 1)
    yield made
    made.close()


Busy = tuple[Job, list[subprocess.Popen[bytes]]]


@pytest.fixture
def busy(
    jobs: JobStore, working: Worker, child: Callable[[str], list[subprocess.Popen[bytes]]]
) -> Busy:
    """A running job and its children, which do not end by themselves."""
    started = child("import time; time.sleep(600)")
    job = submit(jobs)
    working.start()
    working.wake()
    until(jobs, job, lambda one: one.state == "running" and bool(started))
    return job, started


def test_a_child_that_dies_is_tried_again_and_then_given_up(
    jobs: JobStore, working: Worker, child: Callable[[str], list[subprocess.Popen[bytes]]]
) -> None:
    started = child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    job = submit(jobs)
    working.start()
    failed = until(jobs, job, lambda one: one.ended)
    assert (failed.state, failed.attempts, len(started)) == ("failed", 2, 2)
    assert failed.error is not None
    assert "signal 9" in failed.error["detail"]


def test_a_running_job_is_cancelled_and_its_child_ended(
    jobs: JobStore, working: Worker, busy: Busy
) -> None:
    job, started = busy
    jobs.cancel(job.id, "tests")
    assert until(jobs, job, lambda one: one.ended).state == "cancelled"
    assert started[0].poll() is not None


def test_a_child_that_takes_too_long_is_ended(
    settings: Settings,
    jobs: JobStore,
    child: Callable[[str], list[subprocess.Popen[bytes]]],
) -> None:
    started = child("import time; time.sleep(600)")
    hasty = Worker(settings.model_copy(update={"job_seconds": 0.3}), jobs, 1)
    job = submit(jobs)
    hasty.start()
    failed = until(jobs, job, lambda one: one.ended)
    hasty.close()
    assert failed.error is not None
    assert (failed.state, failed.error["kind"]) == ("failed", "time-limit")
    assert started[0].poll() is not None


def test_a_worker_that_is_shut_down_gives_its_job_back_uncounted(
    jobs: JobStore, working: Worker, busy: Busy
) -> None:
    job, started = busy
    working.close()
    found = jobs.get(job.id)
    assert found is not None
    assert (found.state, found.attempts) == ("queued", 0)
    assert started[0].poll() is not None


def test_a_long_job_keeps_its_lease(jobs: JobStore, working: Worker, busy: Busy) -> None:
    _, started = busy
    time.sleep(2.5)  # longer than the lease
    assert jobs.claim(("retrain",), 30, 5) is None
    assert len(started) == 1


def test_a_child_that_lingers_after_the_end_of_its_job_leaves_nothing(
    settings: Settings,
    jobs: JobStore,
    working: Worker,
    child: Callable[[str], list[subprocess.Popen[bytes]]],
) -> None:
    started = child("import time; time.sleep(600)")
    job = submit(jobs)
    folder = module.work_folder(settings, job.id)
    folder.mkdir(parents=True)
    working.start()
    until(jobs, job, lambda one: one.state == "running" and bool(started))
    engine = open_database(settings.sqlalchemy_url)
    with engine.begin() as connection:
        token = connection.scalar(sa.select(JOBS.c.lease_token).where(JOBS.c.id == job.id))
        assert token is not None
        jobs.finish(connection, job.id, token, {})
    engine.dispose()
    end = time.monotonic() + 30
    while folder.exists() or started[0].poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert until(jobs, job, lambda one: one.ended).state == "done"


def test_what_a_dead_worker_left_of_ended_jobs_is_removed(
    settings: Settings, jobs: JobStore, working: Worker
) -> None:
    done, waits = submit(jobs), submit(jobs)
    jobs.cancel(done.id, "tests")
    claimed = jobs.claim(("retrain",), 60, 5)  # held, so that the worker under test leaves it alone
    assert claimed is not None
    folders = [module.work_folder(settings, job.id) for job in (done, waits)]
    for folder in folders:
        (folder / "made").mkdir(parents=True)
    working.start()
    end = time.monotonic() + 30
    while folders[0].exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert folders[1].exists()


def test_the_child_dies_with_its_worker() -> None:
    """And what the child started in the same way."""
    limited = "import sys; from wattcast.features.cuda.isolation import Limited\n"
    child = f"{limited}found = Limited(['/bin/sleep', '600'], {{}}); print(found.pid, flush=True)\n"
    child += "found.wait()"
    worker = f"{limited}Limited([sys.executable, '-c', {child!r}], {{'niceness': 3}}).wait()"
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        sleeping = psutil.Process(int(parent.stdout.readline()))
        below = psutil.Process(parent.pid).children(recursive=True)
        assert {one.nice() for one in below} == {os.nice(0) + 3}
        assert sleeping in below
        parent.kill()
        assert len(below) == 2
        for one in below:
            gone(one)


def gone(process: psutil.Process) -> None:
    """Wait until it runs no more (in a container nobody may clear it away); a busy machine may
    take its time, what never ends fails."""
    end = time.monotonic() + 60
    with contextlib.suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        process.nice(0)  # at 19 it may get no time to end beside other tests
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_settings_reach_a_child_as_they_are(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="no idle priority on this system")
@pytest.mark.parametrize(("priority", "is_idle"), [("idle", True), ("low", False)])
def test_an_idle_job_is_scheduled_behind_everything_else(
    settings: Settings, priority: str, is_idle: bool
) -> None:
    chosen = settings.model_copy(update={"job_priority": priority})
    found: list[int] = []

    def job() -> None:  # a thread's own: a process would hardly be let to its end
        stand_back(chosen)
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    assert [policy == os.SCHED_IDLE for policy in found] == [is_idle]
    assert os.sched_getscheduler(0) != os.SCHED_IDLE
