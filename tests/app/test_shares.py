"""One caller who holds all it may, and another who is served as if it were alone."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import statistics
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from wattcast.app.api import access, guard
from wattcast.app.api.access import Rate, network_of
from wattcast.app.services.analyses import CALLER_NAME, AnalysisPool, Shares, Turns
from wattcast.app.store.database import open_database
from wattcast.app.store.jobs import JobStore
from wattcast.app.store.keys import KeyStore
from wattcast.features.errors import GivenUpError, ServiceError

GREEDY, OTHER = "127.0.0.1", "127.0.0.2"
HELD = 520
"""What one caller tries to hold, of each kind."""

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW_BODY = HEAD + b'Content-Length: 100\r\n\r\n{"ptx"'


@pytest.fixture(scope="module", autouse=True)
def enough_files() -> Iterator[None]:
    """Both ends of every connection are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(client: httpx.Client, sent: bytes = b"", *, source: str = GREEDY) -> socket.socket:
    address = (client.base_url.host, client.base_url.port)
    made = socket.create_connection(address, timeout=20, source_address=(source, 0))
    made.sendall(sent)
    return made


def status(sock: socket.socket) -> int | None:
    """Status of the answer; 0 for a connection that was closed, ``None`` for one still open."""
    try:
        got = sock.recv(65536)
    except TimeoutError:
        return None
    except ConnectionResetError:
        return 0
    return int(got.split(b" ", 2)[1]) if got.startswith(b"HTTP/1.1 ") else 0


def statuses(held: list[socket.socket], seconds: float) -> Counter[int | None]:
    """What each was answered within ``seconds`` from now."""
    until = time.monotonic() + seconds
    found: Counter[int | None] = Counter()
    for sock in held:
        sock.settimeout(max(0.01, until - time.monotonic()))
        found[status(sock)] += 1
    return found


@contextmanager
def holding(client: httpx.Client, sent: bytes, count: int = HELD) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(client, sent)) for _ in range(count)]


@contextmanager
def other(client: httpx.Client) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(local_address=OTHER)
    with httpx.Client(base_url=client.base_url, transport=transport, timeout=30) as made:
        yield made


def predicted(client: httpx.Client, ptx: str, times: int = 20) -> float:
    """Median seconds of predictions, every one of which must be answered."""
    body = {"ptx": ptx, "gpu": "v100", "launch": {"grid": [64], "block": [128]}}
    took = []
    for _ in range(times):
        start = time.perf_counter()
        answer = client.post("/predict", json=body)
        took.append(time.perf_counter() - start)
        assert answer.status_code == 200, answer.text
    return statistics.median(took)


def check_as_usual(alone: float, beside: float) -> None:
    """Printed; the bound is for a machine that runs other tests too."""
    print(f"median alone {alone * 1e3:.1f} ms, beside it {beside * 1e3:.1f} ms")
    assert beside < 5 * alone + 0.25


def waiting_job(home: Path) -> str:
    engine = open_database(settings_at(home).sqlalchemy_url)
    made, _ = JobStore(engine).submit("retrain", {}, "test")
    engine.dispose()
    return str(made.id)


def test_event_streams_of_one_caller_leave_the_others_theirs(
    tmp_path: Path, vector_add: str
) -> None:
    settings = settings_at(tmp_path, job_workers=0)
    with running(settings) as client, other(client) as second:
        path = f"/jobs/{waiting_job(tmp_path)}/events"
        alone = predicted(second, vector_add)
        ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with holding(client, ask) as held:
            found = statuses(held, 20)
            assert found[200] == 16
            assert found[429] + found[0] == HELD - 16
            with second.stream("GET", path) as events:
                assert events.status_code == 200
            check_as_usual(alone, predicted(second, vector_add))
            assert second.get("/jobs").status_code == 200
            assert client.get("/readyz").status_code == 200
            assert client.get(path).json()["type"] == "/problems/rate"
        until = time.monotonic() + 20
        while (again := client.get("/gpus").status_code) != 200 and time.monotonic() < until:
            time.sleep(0.1)
        assert again == 200


def test_slow_bodies_of_one_caller_leave_the_others_theirs(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 4)
    with running(settings_at(tmp_path, job_workers=0)) as client, other(client) as second:
        alone = predicted(second, vector_add)
        began = time.monotonic()
        with holding(client, SLOW_BODY) as held:
            time.sleep(0.5)
            refused = client.post("/predict", json={})
            assert refused.status_code == 429
            assert "64 such requests of this caller" in refused.json()["detail"]
            assert client.get("/healthz").status_code == 200
            check_as_usual(alone, predicted(second, vector_add))
            # Those that may go on are given up in the end.
            found = statuses(held, 9 - (time.monotonic() - began))
            print(f"{HELD} slow bodies: {dict(found)}")
            assert found[408] == 64
            assert found[429] + found[0] == HELD - 64
        assert client.get("/gpus").status_code == 200


def test_heads_and_trailers_have_a_largest_size(tmp_path: Path) -> None:
    with running(settings_at(tmp_path, job_workers=0)) as client:
        for start in (
            b"GET /gpus HTTP/1.1\r\nHost: localhost\r\nX: ",
            b"GET /" + b"x" * 1000,
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ",
        ):
            with connect(client, start) as sock, pytest.raises(ConnectionError):  # noqa: PT012
                for _ in range(1000):
                    sock.sendall(b"x" * 10_000)
                    time.sleep(0.001)
        answer = client.get("/gpus", headers={"X-Long": "x" * 10_000})
        assert answer.status_code == 200
        whole = json.dumps({"ptx": "// " + "x" * 3_000_000, "gpu": "v100"}).encode()
        parts = [*(whole[i : i + 1] for i in range(100)), whole[100:]]
        media = {"Content-Type": "application/json"}
        sent = client.post("/features", content=iter(parts), headers=media)  # chunked
        assert sent.status_code == 422, sent.text


def test_wrong_keys_are_slowed_down_and_right_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "WRONG_KEY_SECONDS", 2.0)
    settings = settings_at(tmp_path, api_keys="required", job_workers=0)
    with running(settings) as client:
        engine = open_database(settings.sqlalchemy_url)
        _, token = KeyStore(engine).create("lab", ["read"], "test")
        engine.dispose()
        right = {"Authorization": f"Bearer {token}"}

        def wrong(number: int) -> tuple[int, float]:
            start = time.perf_counter()
            headers = {"Authorization": f"Bearer wrong{number}"}
            found = client.get("/gpus", headers=headers).status_code
            return found, time.perf_counter() - start

        took = [wrong(number) for number in range(6)]
        assert {found for found, _ in took} == {401}
        assert [seconds > 1.9 for _, seconds in took] == [False] * 5 + [True]
        with ThreadPoolExecutor(8) as pool:
            many = [pool.submit(wrong, number) for number in range(8)]
            start = time.perf_counter()
            assert client.get("/gpus", headers=right).status_code == 200
            assert not all(one.done() for one in many) or time.perf_counter() - start < 2
            assert {one.result()[0] for one in many} == {401}


def test_shares_are_given_back_and_take_no_memory() -> None:
    shares = Shares(2, 3)
    assert [shares.enter("a") for _ in range(3)] == [True, True, False]
    assert [shares.enter("b") for _ in range(2)] == [True, False]
    assert shares.full
    for caller in "aab":
        shares.leave(caller)
    assert (shares.held, shares.of("a"), vars(shares)["_by_caller"]) == (0, 0, {})


def test_a_rate_is_each_callers_own_and_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def played() -> list[bool]:
        rate, found = Rate(2), []
        for caller in "aaaab":
            found.append(await rate.take(caller) > 0)
        now = time.time() + 25  # two windows of ten seconds later nothing is left of the first
        monkeypatch.setattr("time.time", lambda: now)
        found.append(await rate.take("a") > 0)
        assert await Rate(0).take("a") == 0
        return found

    assert asyncio.run(played()) == [False, False, True, True, False, False]


def test_an_ipv6_subscriber_is_one_caller() -> None:
    assert (
        network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    )
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("unix") == "unix"


def test_who_hangs_up_in_a_body_leaves_no_error_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_at(tmp_path, job_workers=0, access_log=True, log_level="info")
    with running(settings) as client:
        connect(client, SLOW_BODY).close()
        until, lines = time.monotonic() + 20, ""
        while "/predict" not in lines and time.monotonic() < until:
            time.sleep(0.05)
            lines += capsys.readouterr().err
    assert '"path":"/predict","status":499' in lines
    assert "Traceback" not in lines


def test_callers_take_turns_and_one_place_is_left() -> None:
    async def played() -> list[str]:
        turns, order = Turns(2, 1), []

        async def work(name: str) -> None:
            await turns.take(name[0])
            order.append(name)

        # The greedy one has both places, and four wait; the second finds the spare one.
        tasks = [asyncio.create_task(work(f"a{number}")) for number in range(6)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(work(name)) for name in ("b0", "b1", "c0")]
        await asyncio.sleep(0)
        assert order == ["a0", "a1", "b0"]
        assert turns.waiting == 6
        tasks[3].cancel()  # a3 hangs up while it waits
        await asyncio.sleep(0)
        assert turns.waiting == 5
        for name in ("a", "b", "a", "c", "a", "b"):
            turns.give(name)
            await asyncio.sleep(0)
        for name in ("a", "a"):
            turns.give(name)
        assert (vars(vars(turns)["_places"])["_by_caller"], turns.waiting) == ({}, 0)
        return order[3:]

    # Whoever has nothing comes first, then callers in turn, each in its own order.
    assert asyncio.run(played()) == ["c0", "b1", "a2", "a4", "a5"]


def test_long_work_of_one_caller_leaves_the_next_a_thread() -> None:
    leave = threading.Event()
    pool = AnalysisPool(2, 100, 30, spare=1)

    async def ask(caller: str, work: Callable[[], object]) -> object:
        CALLER_NAME.set(caller)
        return await pool.run(work)

    async def played() -> None:
        greedy = [asyncio.create_task(ask("a", lambda: leave.wait(20))) for _ in range(64)]
        await asyncio.sleep(0.1)
        assert pool.pending == 64
        for number in range(3):
            assert await asyncio.wait_for(ask("b", lambda n=number: n), 10) == number
        for one in greedy[10:]:
            one.cancel()
        await asyncio.sleep(0.1)
        assert pool.pending == 10
        assert await asyncio.wait_for(ask("c", lambda: "third"), 10) == "third"
        leave.set()
        assert await asyncio.gather(*greedy[:10]) == [True] * 10
        await asyncio.sleep(0.1)
        assert pool.pending == 0

    asyncio.run(played())
    pool.close()


def test_work_that_waits_too_long_for_its_turn_is_given_up() -> None:
    leave = threading.Event()
    pool = AnalysisPool(1, 10, 0.3)

    async def played() -> None:
        blocked = asyncio.create_task(pool.run(leave.wait, 20))
        await asyncio.sleep(0)
        with pytest.raises(ServiceError) as told:
            await pool.run(int)
        assert told.value.kind == "time-limit"
        with pytest.raises(ServiceError):
            await blocked
        leave.set()
        while pool.pending:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert await pool.run(int) == 0

    asyncio.run(played())
    pool.close()


def test_work_that_fails_leaves_nothing_to_the_garbage_collector() -> None:
    class Made:
        """What the work holds when it is given up."""

    refs = []

    def work() -> None:
        made = Made()
        refs.append(weakref.ref(made))
        future: Future[None] = Future()
        future.set_exception(GivenUpError("given up"))  # they refer to each other, and to ``made``
        future.result()

    async def played() -> None:
        with pytest.raises(ServiceError):
            await pool.run(work)

    pool = AnalysisPool(1, 10, 30)
    gc.disable()
    try:
        asyncio.run(played())
        assert refs[0]() is None
    finally:
        gc.enable()
        pool.close()


def test_a_turn_that_comes_as_its_caller_hangs_up_goes_to_the_next() -> None:
    async def played() -> None:
        turns = Turns(1, 0)
        await turns.take("a")
        waits = asyncio.create_task(turns.take("b"))
        after = asyncio.create_task(turns.take("c"))
        await asyncio.sleep(0)
        turns.give("a")
        waits.cancel()
        await asyncio.wait([waits, after], timeout=5)
        assert waits.cancelled()
        assert after.done()
        assert vars(vars(turns)["_places"])["_by_caller"] == {"c": 1}

    asyncio.run(played())
