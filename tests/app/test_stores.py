"""Jobs are claimed once, survive their workers, and end once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError

from tests.app.live import at_once
from wattcast.app.store.database import database_now
from wattcast.app.store.jobs import JOBS, Claim, Job, JobStore, LeaseLostError
from wattcast.app.store.measurements import (
    Measurement,
    MeasurementStore,
    NewBatch,
    Rejection,
)
from wattcast.app.store.registry import (
    MODEL_ALIASES,
    ChampionMovedError,
    ModelName,
    NewVersion,
    Place,
    RegistryStore,
)
from wattcast.app.store.tables import entries
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


# --- One champion for each GPU, board and target; promotions one after the other, and the way
# back

PLACE = Place("tesla-k20", "", "power")


@pytest.fixture
def registry(engine: Engine) -> RegistryStore:
    return RegistryStore(engine)


def version(number: int, board: str = "") -> NewVersion:
    name = ModelName("tesla-k20", "power", "catboost", "alavani2023", "uploads", number)
    return NewVersion(name, board, "retrained", f"{number:064x}", {"promoted": True})


def promote(registry: RegistryStore, engine: Engine, number: int, place: Place = PLACE) -> None:
    new = version(number, place.board)
    with engine.begin() as connection:
        ids = registry.register(connection, [new], new)
        registry.promote(connection, place, ids[new.name], "tests", "better")


def champion(registry: RegistryStore, place: Place = PLACE) -> int | None:
    found = registry.snapshot().champion(place)
    return None if found is None else found.name.version


def test_at_first_the_packaged_default_serves(registry: RegistryStore) -> None:
    found = registry.snapshot()
    assert (found.generation, found.versions, found.standings) == (0, (), {})
    with pytest.raises(ServiceError, match="serves already"):
        registry.rollback(PLACE, "tests", "")
    assert registry.generation() == 0


def test_version_numbers_are_given_once(registry: RegistryStore) -> None:
    given: list[int] = []
    at_once([lambda: given.append(registry.reserve_version())] * 8)
    assert sorted(given) == list(range(1001, 1009))


def test_promotions_and_rollbacks_are_a_stack(registry: RegistryStore, engine: Engine) -> None:
    for number in (1, 2, 3):
        promote(registry, engine, number)
    assert champion(registry) == 3
    assert registry.rollback(PLACE, "tests", "worse").version.name.version == 3
    assert champion(registry) == 2
    promote(registry, engine, 4)
    for before in (2, 1, None):
        registry.rollback(PLACE, "tests", "worse")
        assert champion(registry) == before
    # Nothing is forgotten: every version and every promotion is still there.
    assert [one.name.version for one in registry.snapshot().versions] == [1, 2, 3, 4]
    history = registry.history("tesla-k20", "power")
    assert [move.version.name.version for move in history] == [4, 3, 2, 1]


def test_boards_have_champions_of_their_own(registry: RegistryStore, engine: Engine) -> None:
    other = Place("tesla-k20", "board-1", "power")
    promote(registry, engine, 1)
    promote(registry, engine, 2, other)
    assert (champion(registry), champion(registry, other)) == (1, 2)
    registry.rollback(other, "tests", "")
    assert (champion(registry), champion(registry, other)) == (1, None)


def test_a_candidate_is_not_a_champion(registry: RegistryStore, engine: Engine) -> None:
    new = version(1)
    with engine.begin() as connection:
        registry.register(connection, [new], new)
    standing = registry.snapshot().standings[PLACE]
    assert standing.champion is None
    assert standing.candidate is not None
    assert standing.candidate.name == new.name
    assert standing.candidate.verdict == {"promoted": True}


def test_every_change_is_a_new_generation(registry: RegistryStore, engine: Engine) -> None:
    seen = [registry.generation()]
    promote(registry, engine, 1)
    seen.append(registry.generation())
    registry.rollback(PLACE, "tests", "")
    seen.append(registry.generation())
    assert seen == sorted(set(seen))


def test_a_promotion_judged_against_another_champion_is_none(
    registry: RegistryStore, engine: Engine
) -> None:
    promote(registry, engine, 1)
    before = registry.snapshot().move_id(PLACE)
    promote(registry, engine, 2)
    new = version(3)
    with engine.connect() as connection:
        ids = registry.register(connection, [new], new)
        with pytest.raises(ChampionMovedError):
            registry.promote(connection, PLACE, ids[new.name], "tests", "", expected=before)
        connection.rollback()
    assert champion(registry) == 2
    assert len(registry.snapshot().versions) == 2


def test_promotions_at_once_leave_one_champion_and_lose_none(
    registry: RegistryStore, engine: Engine
) -> None:
    numbers = range(1, 9)
    at_once(partial(promote, registry, engine, number) for number in numbers)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(MODEL_ALIASES)) == 1
    back = []
    while (found := champion(registry)) is not None:
        back.append(found)
        registry.rollback(PLACE, "tests", "")
    assert sorted(back) == list(numbers)


def test_by_hand_any_version_may_serve(registry: RegistryStore, engine: Engine) -> None:
    promote(registry, engine, 1)
    packaged = NewVersion(version(0).name._replace(source="thesis"), "", "packaged", "0" * 64)
    for _ in range(2):
        registry.promote_by_hand(PLACE, packaged, "tests", "I know better")
    found = registry.snapshot().champion(PLACE)
    assert found is not None
    assert (found.origin, found.name.source) == ("packaged", "thesis")
    assert len(registry.snapshot().versions) == 2


# --- Batches of measurements are stored whole, once, and deleted whole; every change is audited

PTX_TEXT = "// a kernel"

PTX_SHA = "ab" * 32

ROW = Measurement(
    row=1,
    gpu="tesla-v100",
    board="GPU-7",
    kernel="_Z3addv",
    kernel_group="add",
    ptx_sha256=PTX_SHA,
    launch={"grid": [4], "block": [32], "dynamic_shared_bytes": 0, "arguments": {"0": 7}},
    core_mhz=1380.0,
    memory_mhz=None,
    power_watts=100.25,
    time_seconds=1.5e-5,
    repeats=3,
    vectors={"activity1": (1.0, float("nan"), 3.5)},
)


def batch(content: str = "c", rows: int = 3) -> NewBatch:
    return NewBatch(
        content_sha256=content.ljust(64, "0"),
        form="ptx",
        schemas={"activity1": "5" * 64},
        rows=[replace(ROW, row=n, board="A" if n % 2 else "B") for n in range(1, rows + 1)],
        rejected=1,
        rejections=[Rejection(4, "grid", "is missing")],
        ptx={PTX_SHA: PTX_TEXT},
    )


def test_a_batch_comes_back_as_it_was_stored(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    stored, new = store.add(batch(), "key:1")
    assert new
    assert (stored.accepted, stored.rejected, stored.uploaded_by) == (3, 1, "key:1")
    assert stored.rejections == (Rejection(4, "grid", "is missing"),)
    assert store.get(stored.id) == stored
    rows = [row for _, row in store.rows([stored.id])]
    assert [row.row for row in rows] == [1, 2, 3]
    first, vector = rows[0], rows[0].vectors["activity1"]
    assert replace(first, vectors={}) == replace(ROW, board="A", vectors={})
    assert (vector[0], isnan(vector[1]), vector[2]) == (1.0, True, 3.5)
    assert [row.board for row in rows] == ["A", "B", "A"]
    assert list(store.rows([stored.id], gpu="tesla-k20")) == []
    assert store.ptx([PTX_SHA, "0" * 64]) == {PTX_SHA: PTX_TEXT}
    assert store.get(uuid4()) is None


def test_uploads_of_the_same_content_at_once_make_one_batch(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    ids, failures = [], []

    def upload() -> None:
        try:
            ids.append(store.add(batch(rows=50), "key:1")[0].id)
        except Exception as error:
            failures.append(error)

    at_once([upload] * 8)
    assert not failures
    assert len(set(ids)) == 1
    assert len(list(store.rows(ids[:1]))) == 50
    assert [entry.action for entry in entries(engine)] == ["measurements.upload"]


def test_a_batch_is_stored_whole_or_not_at_all(engine: sa.Engine) -> None:
    store = MeasurementStore(engine)
    twice = replace(batch(), rows=[ROW, ROW])
    with pytest.raises(IntegrityError):
        store.add(twice, "key:1")
    assert store.latest() == []
    assert entries(engine) == []
    assert store.ptx([PTX_SHA]) == {}
