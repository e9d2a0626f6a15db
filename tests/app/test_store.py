"""Predictions are found at once, written in batches and survive a restart."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from wattcast.app.store import database
from wattcast.app.store.database import HEAD, MIGRATIONS, StoreError, open_database, revision
from wattcast.app.store.jobs import JobStore
from wattcast.app.store.keys import KeyStore
from wattcast.app.store.predictions import PredictionStore, latest
from wattcast.app.store.tables import METADATA, PREDICTIONS, PTX
from wattcast.predictor.parts.memory import Memory
from wattcast.predictor.parts.stored import PredictionRecord

FIXTURES = Path(__file__).parents[1] / "fixtures"


def record(ptx: str = "//", prediction_id: UUID | None = None) -> PredictionRecord:
    return PredictionRecord(
        id=prediction_id or uuid4(),
        created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        ptx_sha256=f"{abs(hash(ptx)):064x}",
        gpu="tesla-k20",
        kernel="k",
        request='{"gpu":"tesla-k20"}',
        result=b'{"id":"x","power":null}',
        vectors='{"alavani2023":[1.0,null]}',
        models="null",
        ptx=ptx,
    )


def test_a_prediction_is_found_before_and_after_it_is_written(url: str) -> None:
    store = PredictionStore(open_database(url))
    one = record()
    store.add(one)
    assert store.get(one.id) == replace(one, ptx=None)
    assert store.flush()
    assert store.get(uuid4()) is None
    store.close()


def test_predictions_survive_a_restart(url: str) -> None:
    store = PredictionStore(open_database(url))
    many = [record(f"// {n}") for n in range(50)]
    for one in many:
        store.add(one)
    store.close()
    again = PredictionStore(open_database(url))
    for one in many:
        found = again.get(one.id)
        assert found is not None
        assert (found.result, found.vectors, found.created) == (
            one.result,
            one.vectors,
            one.created,
        )
        assert again.ptx(one.ptx_sha256) == one.ptx
    again.close()


def test_each_ptx_is_stored_once(url: str) -> None:
    for _ in range(2):
        store = PredictionStore(open_database(url))
        for _ in range(3):
            store.add(record("// the same"))
        store.close()
    engine = open_database(url)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(PTX)) == 1
        assert connection.scalar(sa.select(sa.func.count()).select_from(PREDICTIONS)) == 6
    engine.dispose()


def test_memory_holds_the_latest_and_the_database_all(url: str) -> None:
    """Bounded in bytes: without its PTX a record takes about 2 kB, whatever its PTX is."""
    store = PredictionStore(open_database(url), memory=Memory(5_000))
    many = [record(ptx="//" + "x" * 100_000) for _ in range(5)]
    for one in many:
        store.add(one)
    assert store.flush()
    assert store.recent(many[0].id) is None
    recent = store.recent(many[4].id)
    assert recent is not None
    assert recent == replace(many[4], ptx=None)
    found = store.get(many[0].id)
    assert found is not None
    assert found.result == many[0].result
    store.close()


def test_a_row_the_database_refuses_does_not_hold_up_others(url: str) -> None:
    store = PredictionStore(open_database(url))
    bad, good = replace(record(), gpu=None), record()  # type: ignore[arg-type]
    with capture_logs() as said:
        for one in (bad, good):
            store.add(one)
        assert store.flush()
    store.close()
    again = PredictionStore(open_database(url))
    assert (again.get(bad.id), again.get(good.id) is not None) == (None, True)
    again.close()
    (refusal,) = [line for line in said if "refused" in line["event"]]
    assert refusal["id"] == str(bad.id)
    assert bad.request not in refusal["why"]  # nothing of what was asked


def test_a_commit_whose_answer_was_lost_is_made_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PredictionStore(open_database(url))
    commit, lost = store._commit, []

    def committed_then_lost(records: Sequence[PredictionRecord]) -> None:
        commit(records)
        if not lost:
            lost.append(True)
            raise OperationalError("COMMIT", {}, Exception("server closed the connection"))

    monkeypatch.setattr(store, "_commit", committed_then_lost)
    many = [record(), record()]
    with capture_logs() as said:
        for one in many:
            store.add(one)
        assert store.flush()
    store.close()
    assert lost
    assert [line for line in said if "refused" in line["event"]] == []
    again = PredictionStore(open_database(url))
    assert all(again.get(one.id) is not None for one in many)
    again.close()


def test_a_full_queue_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_database(url)
    store = PredictionStore(engine, queue_rows=3)
    held = threading.Event()
    commit = store._commit
    monkeypatch.setattr(store, "_commit", lambda rows: (held.wait(30), commit(rows)))
    store.add(record())
    until = time.monotonic() + 30
    while store._waiting:  # the writer has taken the first
        assert time.monotonic() < until
        time.sleep(0.001)
    for _ in range(3):
        store.add(record())
    with pytest.raises(StoreError, match="too slow"):
        store.add(record())
    held.set()
    store.close()


def test_what_is_waited_for_is_committed(url: str) -> None:
    store, other = PredictionStore(open_database(url)), open_database(url)
    for number in range(20):
        one = record(f"// {number}")
        store.wait([store.add(one)])
        with other.connect() as connection:
            found = connection.scalar(sa.select(PREDICTIONS.c.id).where(PREDICTIONS.c.id == one.id))
        assert found == one.id
    store.close()
    other.dispose()


def test_a_row_that_fails_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PredictionStore(open_database(url))
    commit, broken = store._commit, OperationalError("INSERT", {}, Exception("gone"))

    def fail(_: object) -> None:
        raise broken

    monkeypatch.setattr(store, "_commit", fail)
    monkeypatch.setattr(store, "_takes_rows", lambda: False)
    one = record()
    row = store.add(one)
    with pytest.raises(StoreError, match="nothing was stored"):
        store.wait([row])
    assert store.recent(one.id) is None
    until = time.monotonic() + 30
    while store.healthy:
        assert time.monotonic() < until
        time.sleep(0.01)
    monkeypatch.setattr(store, "_commit", commit)
    monkeypatch.undo()
    until = time.monotonic() + 30
    while not store.healthy:  # nobody asks for a prediction: it finds out itself
        assert time.monotonic() < until
        time.sleep(0.01)
    store.close()
    again = PredictionStore(open_database(url))
    assert again.get(one.id) is None
    again.close()


def test_a_row_nobody_waits_for_any_more_is_not_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, held = PredictionStore(open_database(url), seconds=0.2), threading.Event()
    commit = store._commit
    monkeypatch.setattr(store, "_commit", lambda rows: (held.wait(30), commit(rows)))
    first, second = record(), record()
    begun = store.add(first)
    while store._waiting:
        time.sleep(0.001)
    late = store.add(second)
    with pytest.raises(StoreError, match=r"within 0\.2 s"):
        store.wait([late])
    held.set()
    begun.result(30)
    store.close()
    again = PredictionStore(open_database(url))
    assert (again.get(first.id) is not None, again.get(second.id)) == (True, None)
    again.close()


def test_homes_and_databases_are_for_their_user_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    url = f"sqlite:///{home / 'w.db'}"
    for made_by_hand in (False, True):
        store = PredictionStore(open_database(url))
        store.wait([store.add(record())])
        modes = {path.name: path.stat().st_mode & 0o777 for path in (home, *home.iterdir())}
        assert modes.pop("home") == (0o755 if made_by_hand else 0o700)  # others may need it
        assert set(modes) >= {"w.db", "w.db-wal"}
        assert set(modes.values()) == {0o600}
        store.close()
        home.chmod(0o755)
        (home / "w.db").chmod(0o644)


def test_rows_wait_while_the_database_is_locked(url: str) -> None:
    engine = open_database(url)
    blocker = sa.create_engine(engine.url).connect()
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=1")
        blocker.exec_driver_sql("BEGIN EXCLUSIVE")
    else:
        blocker.exec_driver_sql("LOCK TABLE predictions, ptx IN ACCESS EXCLUSIVE MODE")
    store = PredictionStore(engine)
    one = record()
    store.add(one)
    assert store.get(one.id) == replace(one, ptx=None)
    release = threading.Timer(0.2, blocker.rollback)
    release.start()
    assert store.flush(20)
    release.join()
    store.close()
    blocker.close()
    blocker.engine.dispose()


def test_a_database_of_five_migrations_is_taken_as_it_is(tmp_path: Path) -> None:
    """Written by the program of 2026-11-25, before its migrations became one."""
    path = tmp_path / "wattcast.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FIXTURES / "store" / "database_0005.sql").read_text("utf-8"))
    engine = open_database(f"sqlite:///{path}")
    assert revision(engine) == HEAD
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    assert sqlite_schema(engine) == sqlite_schema(open_database(f"sqlite:///{tmp_path / 'new.db'}"))
    (kept,) = latest(engine, limit=10)
    assert "tesla-v100" in kept.request + kept.result
    store = PredictionStore(engine)
    found = store.get(kept.id)
    store.close()
    assert found is not None
    assert [key.name for key in KeyStore(engine).all()] == ["lab"]
    assert [job.state for job in JobStore(engine).latest(10)] == ["queued"]
    engine.dispose()


def sqlite_schema(engine: sa.Engine) -> set[frozenset[str]]:
    """Statements that make the tables and indices, without blanks; columns in any order."""
    with engine.connect() as connection:
        made = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        texts = ["".join(text.split()).replace('"', "") for (text,) in made]
    parts = (text.removesuffix(")").partition("(") for text in texts)
    return {frozenset([name, *rest.split(",")]) for name, _, rest in parts}


def test_migrations_make_the_tables_of_the_code(url: str) -> None:
    engine = open_database(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


def test_the_known_head_is_that_of_the_folder() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_processes_that_start_together_migrate_once(url: str) -> None:
    engines: list[sa.Engine] = []
    failures: list[Exception] = []

    def start() -> None:
        try:
            engines.append(open_database(url))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [revision(engine) for engine in engines] == [HEAD] * 4
    for engine in engines:
        engine.dispose()


def test_who_opens_waits_for_who_makes_the_file(tmp_path: Path) -> None:
    """However long that takes: a busy file is not an unusable one."""
    path = tmp_path / "w.db"
    made = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with ThreadPoolExecutor(1) as pool:
        with database.alone_on(str(path)):
            made.execute("BEGIN EXCLUSIVE")
            opened = pool.submit(open_database, f"sqlite:///{path}", database.Pool(seconds=0.1))
            with pytest.raises(TimeoutError):
                opened.result(1.0)
            made.close()
        opened.result().dispose()


def test_a_database_of_a_newer_program_is_refused(url: str) -> None:
    engine = open_database(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(StoreError, match="needs another Wattcast"):
        open_database(url)


def test_an_unusable_database_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the database sqlite"):
        open_database(f"sqlite:///{tmp_path / 'file' / 'below' / 'w.db'}")
    with pytest.raises(StoreError) as caught:
        open_database("postgresql+nosuchdriver://user:secret@localhost/w")
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError, match="not an SQLAlchemy URL"):
        open_database("nonsense")
