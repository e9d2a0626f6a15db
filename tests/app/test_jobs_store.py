"""Jobs are claimed once, survive their workers, and end once."""

from __future__ import annotations

from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from tests.app.live import at_once
from wattcast.app.store.database import database_now
from wattcast.app.store.jobs import JOBS, Claim, Job, JobStore, LeaseLostError
from wattcast.features.errors import ServiceError

KIND = ("retrain",)


@pytest.fixture
def jobs(engine: Engine) -> JobStore:
    return JobStore(engine)


def submit(jobs: JobStore, key: str | None = None, **request: object) -> Job:
    return jobs.submit("retrain", request, "tests", key)[0]


def claim(jobs: JobStore, lease_seconds: float = 30, most_attempts: int = 5) -> Claim:
    found = jobs.claim(KIND, lease_seconds, most_attempts)
    assert found is not None
    return found


def test_the_clock_is_the_databases(engine: Engine) -> None:
    with engine.connect() as connection:
        first, second = (connection.scalar(sa.select(database_now())) for _ in range(2))
    assert 1.7e9 < first <= second < first + 60


def test_a_job_goes_from_queued_to_done(jobs: JobStore, engine: Engine) -> None:
    job = submit(jobs, gpu="tesla-k20")
    assert (job.state, job.attempts, job.request) == ("queued", 0, {"gpu": "tesla-k20"})
    held = claim(jobs)
    assert held.job.id == job.id
    assert jobs.claim(KIND, 30, 5) is None
    assert not jobs.beat(job.id, held.token, 30)
    jobs.progress(job.id, held.token, "folds", 0.25, "5 of 20")
    with engine.begin() as connection:
        jobs.finish(connection, job.id, held.token, {"promoted": True})
    done = jobs.get(job.id)
    assert done is not None
    assert (done.state, done.progress, done.result) == ("done", 1.0, {"promoted": True})
    assert done.ended
    events = jobs.events(job.id)
    assert [event.stage for event in events] == ["queued", "starting", "folds", "done"]
    assert jobs.events(job.id, after=events[1].id) == events[2:]


def test_the_oldest_comes_first_and_other_kinds_are_left(jobs: JobStore) -> None:
    first, second = submit(jobs, n=1), submit(jobs, n=2)
    jobs.submit("other", {}, "tests")
    assert [claim(jobs).job.id for _ in range(2)] == [first.id, second.id]
    assert jobs.claim(KIND, 30, 5) is None


def test_an_expired_lease_is_taken_over_and_the_first_worker_can_do_nothing(
    jobs: JobStore, engine: Engine
) -> None:
    job = submit(jobs)
    first = claim(jobs, lease_seconds=-1)
    second = claim(jobs)
    assert (second.job.id, second.job.attempts) == (job.id, 2)
    for act in (
        lambda: jobs.beat(job.id, first.token, 30),
        lambda: jobs.progress(job.id, first.token, "folds", 0.5),
        lambda: jobs.fail(job.id, first.token, {"kind": "data", "detail": "no"}),
        lambda: jobs.release(job.id, first.token, "no"),
        lambda: jobs.cancelled(job.id, first.token),
    ):
        with pytest.raises(LeaseLostError):
            act()
    with pytest.raises(LeaseLostError), engine.begin() as connection:
        jobs.finish(connection, job.id, first.token, {})
    assert [e.stage for e in jobs.events(job.id)] == ["queued", "starting", "starting"]
    with engine.begin() as connection:
        jobs.finish(connection, job.id, second.token, {})


def test_what_is_not_committed_has_not_happened(jobs: JobStore, engine: Engine) -> None:
    job = submit(jobs)
    held = claim(jobs)
    with engine.connect() as connection:
        jobs.finish(connection, job.id, held.token, {})
        connection.rollback()
    again = jobs.get(job.id)
    assert again is not None
    assert again.state == "running"


def test_a_job_that_kills_its_workers_fails_in_the_end(jobs: JobStore) -> None:
    job = submit(jobs)
    for _ in range(3):
        claim(jobs, lease_seconds=-1, most_attempts=3)
    assert jobs.claim(KIND, 30, 3) is None
    failed = jobs.get(job.id)
    assert failed is not None
    assert failed.state == "failed"
    assert failed.error is not None
    assert "died 3 times" in failed.error["detail"]


def test_a_released_job_waits_and_runs_again(jobs: JobStore) -> None:
    job = submit(jobs)
    held = claim(jobs)
    jobs.release(job.id, held.token, "the child died", wait_seconds=60)
    assert jobs.claim(KIND, 30, 5) is None
    jobs2 = submit(jobs)
    second = claim(jobs)
    assert second.job.id == jobs2.id
    jobs.release(jobs2.id, second.token, "shutting down", used=False)
    third = claim(jobs)
    assert (third.job.id, third.job.attempts) == (jobs2.id, 1)


def test_cancelling(jobs: JobStore, engine: Engine) -> None:
    waiting = submit(jobs)
    cancelled = jobs.cancel(waiting.id, "tests")
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    assert jobs.claim(KIND, 30, 5) is None
    running = submit(jobs)
    held = claim(jobs)
    asked = jobs.cancel(running.id, "tests")
    assert asked is not None
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert jobs.beat(running.id, held.token, 30)
    # Whoever is told so in time has no effect any more.
    with pytest.raises(LeaseLostError), engine.begin() as connection:
        jobs.finish(connection, running.id, held.token, {})
    jobs.cancelled(running.id, held.token)
    again = jobs.cancel(running.id, "tests")
    assert again is not None
    assert again.state == "cancelled"
    assert jobs.cancel(uuid4(), "tests") is None


def test_a_job_to_be_cancelled_whose_worker_died_is_cancelled(jobs: JobStore) -> None:
    job = submit(jobs)
    claim(jobs, lease_seconds=-1)
    jobs.cancel(job.id, "tests")
    assert jobs.claim(KIND, 30, 5) is None
    found = jobs.get(job.id)
    assert found is not None
    assert found.state == "cancelled"


def test_a_key_makes_one_job_of_a_request_sent_twice(jobs: JobStore) -> None:
    first, new = jobs.submit("retrain", {"gpu": "a"}, "tests", "k1")
    assert new
    second, new = jobs.submit("retrain", {"gpu": "a"}, "tests", "k1")
    assert (second.id, new) == (first.id, False)
    with pytest.raises(ServiceError, match="another request"):
        jobs.submit("retrain", {"gpu": "b"}, "tests", "k1")
    assert jobs.submit("retrain", {"gpu": "a"}, "tests", "k2")[1]
    assert len(jobs.latest()) == 2


def test_many_workers_share_many_jobs_without_taking_one_twice(
    jobs: JobStore, engine: Engine
) -> None:
    wanted = {submit(jobs, n=n).id for n in range(20)}
    taken: list[Claim] = []

    def work() -> None:
        while (found := jobs.claim(KIND, 60, 5)) is not None:
            taken.append(found)
            with engine.begin() as connection:
                jobs.finish(connection, found.job.id, found.token, {})

    at_once([work] * 6)
    assert len(taken) == len(wanted) == 20
    assert {one.job.id for one in taken} == wanted
    with engine.connect() as connection:
        states = connection.scalars(sa.select(JOBS.c.state)).all()
    assert set(states) == {"done"}
