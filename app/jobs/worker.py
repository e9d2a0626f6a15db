"""Workers: threads that claim jobs, and watch over the child process that runs each.

The service and ``wattcast worker`` use the same one. The work is done in a child so that the
service stays responsive, and so that whatever happens to the child happens to the child alone:

    child ends well        the job has ended with it, in the transaction of its effects
    child dies             the job goes back to the queue, up to ``job_attempts`` times
    worker dies            the child dies with it; the lease runs out and another worker claims
                           the job
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.logs import log
from wattcast.app.settings import Settings, foreign_environment
from wattcast.app.store.jobs import ENDED, Claim, JobStore, LeaseLostError
from wattcast.features.cuda.isolation import Limited

KINDS = ("retrain",)

TOKEN_VARIABLE = "WATTCAST_JOB_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable through which the child gets the lease's token."""

NO_ROOM_STATUS = 28
"""Exit status of a child that found a disk full (ENOSPC's number on Linux)."""

NICENESS = 10
"""Predictions come first where a job shares their cores."""

_LOOK_SECONDS = 0.1
"""How often a running child is looked at: what ends is noticed within this."""

_CLOSE_SECONDS = 2.0
"""How long closing waits for jobs to go back to the queue; what cannot does so by its lease."""

_RETRY_SECONDS = 1.0
"""Pause before a job runs again whose child died, times the attempts so far."""

_NO_ROOM_SECONDS = 30.0
"""The same where a disk was full: somebody has to make room."""


def work_folder(settings: Settings, job_id: UUID) -> Path:
    """Where a job keeps what another attempt can use; gone when the job has ended."""
    return settings.home / "work" / str(job_id)


POLL_SECONDS = 0.5
"""How often an idle worker looks for jobs; one of its own process is told at once."""


class Worker:
    """``settings.job_workers`` threads, at least one, until ``close``."""

    def __init__(self, settings: Settings, jobs: JobStore, count: int | None = None) -> None:
        self._settings = settings
        self._jobs = jobs
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._failing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"jobs-{at}", daemon=True)
            for at in range(settings.job_workers if count is None else count)
        ]

    def start(self) -> None:
        """Begin to look for jobs."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for jobs now: one was submitted here."""
        self._wake.set()

    def wait(self) -> None:
        """Until ``stop`` is called from elsewhere."""
        self._closing.wait()

    def stop(self) -> None:
        """Ask all threads to end soon; safe in a signal handler."""
        self._closing.set()
        self._wake.set()

    def close(self) -> None:
        """Stop; running jobs go back to the queue, their attempt uncounted."""
        self.stop()
        until = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        self._sweep()
        while not self._closing.is_set():
            if not self._step():
                self._wake.wait(POLL_SECONDS)
                self._wake.clear()

    def _sweep(self) -> None:
        """Remove what workers that died left of jobs that have ended."""
        folders = {path.name: path for path in self._settings.home.glob("work/*-*-*-*-*")}
        try:
            ended = self._jobs.ended_of([UUID(name) for name in folders])
        except (SQLAlchemyError, ValueError) as error:
            log().warning("cannot tell which jobs have ended", why=str(error.args[:1]))
            return
        for job_id in ended:
            shutil.rmtree(folders[str(job_id)], ignore_errors=True)

    def _step(self) -> bool:
        """Run one job; ``False`` if there is none or the database is gone."""
        settings = self._settings
        try:
            claim = self._jobs.claim(KINDS, settings.job_lease_seconds, settings.job_attempts)
            self._failing = False
            if claim is None:
                return False
            self._work(claim)
        except LeaseLostError:
            log().warning("job taken over by another worker")
        except (SQLAlchemyError, OSError) as error:
            if not self._failing:
                log().error("cannot work on jobs; trying again", why=str(error.args[:1]))
            self._failing = True
            return False
        return True

    def _work(self, claim: Claim) -> None:
        job = claim.job
        log().info("job started", job=str(job.id), kind=job.kind, attempt=job.attempts)
        start = time.monotonic()
        with _child(self._settings, claim) as child:
            try:
                ended = self._watch(child, claim, start)
            except LeaseLostError:
                # Lost to its own child, which has ended the job and is on its way out?
                found = self._jobs.get(job.id)
                if found is None or not found.ended:
                    raise
                ended = found.state
        seconds = time.monotonic() - start
        state = self._after(claim, child.returncode) if ended is None else ended
        if state in ENDED:  # what was kept for another attempt
            shutil.rmtree(work_folder(self._settings, job.id), ignore_errors=True)
        log().info("job left", job=str(job.id), state=state, seconds=round(seconds, 2))

    def _watch(self, child: subprocess.Popen[bytes], claim: Claim, start: float) -> str | None:
        """Wait for the child, renewing the lease; why it was stopped, ``None`` if it was not."""
        settings, job_id, token = self._settings, claim.job.id, claim.token
        every = min(1.0, settings.job_lease_seconds / 4)
        beaten = held = time.monotonic()
        while True:
            try:
                child.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            else:
                return None
            now = time.monotonic()
            if self._closing.is_set():
                _stop(child)
                self._jobs.release(job_id, token, "its worker was shut down", used=False)
                return "queued"
            if now - start > settings.job_seconds:
                _stop(child)
                why = f"took longer than {settings.job_seconds:g} s (WATTCAST_JOB_SECONDS)"
                self._jobs.fail(job_id, token, {"kind": "time-limit", "detail": why})
                return "failed"
            if now - beaten < every:
                continue
            beaten = now
            try:
                cancel = self._jobs.beat(job_id, token, settings.job_lease_seconds)
                held = now
            except SQLAlchemyError:
                # A database that restarts is no reason to lose an hour's work.
                if now - held > settings.job_lease_seconds:
                    raise
                continue
            if cancel:
                _stop(child)
                self._jobs.cancelled(job_id, token)
                return "cancelled"

    def _after(self, claim: Claim, returncode: int) -> str:
        """See to a job whose child is gone."""
        job = self._jobs.get(claim.job.id)
        if job is not None and job.ended:
            return job.state
        kind, wait, what = "internal", _RETRY_SECONDS, f"its process died ({_exit(returncode)})"
        if returncode == NO_ROOM_STATUS:
            kind, wait, what = "disk-full", _NO_ROOM_SECONDS, "no room was left on a disk"
        why = f"{what} at attempt {claim.job.attempts}"
        if claim.job.attempts >= self._settings.job_attempts:
            error = {"kind": kind, "detail": f"{why}; see the log"}
            self._jobs.fail(claim.job.id, claim.token, error)
            return "failed"
        self._jobs.release(claim.job.id, claim.token, why, wait_seconds=wait * claim.job.attempts)
        return "queued"


def _child(settings: Settings, claim: Claim) -> Limited:
    environment = {
        **foreign_environment(),
        **settings.environment(),
        TOKEN_VARIABLE: claim.token,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    # In a session of its own: Ctrl-C is for the worker, which then sees to its child.
    return Limited(
        [sys.executable, "-m", "wattcast.app.jobs", str(claim.job.id)],
        {"niceness": NICENESS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def _exit(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
