"""The proxy of the compose file in front of a service: who holds connections is ended by it."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_shares import connect, holding, other, status, statuses

CONFIGURATION = Path(__file__).parents[2] / "docker" / "haproxy.cfg"

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="no haproxy on this machine"),
    pytest.mark.skipif(
        resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096, reason="too few open files"
    ),
]


@contextmanager
def behind_proxy(home: Path, **environment: str) -> Iterator[httpx.Client]:
    """A client of the proxy of a service whose log level is ``error``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        pytest.MonkeyPatch.context() as patch,
        running_believing(patch, home) as service,
        subprocess.Popen(
            ["haproxy", "-db", "-f", CONFIGURATION],
            env={
                **os.environ,
                "BIND": f"127.0.0.1:{port}",
                "API": f"127.0.0.1:{service.base_url.port}",
                **environment,
            },
            stderr=subprocess.DEVNULL,
        ) as proxy,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    if client.get("/healthz").status_code == 200:
                        break
                except httpx.ConnectError:
                    assert time.monotonic() < until, "the proxy does not listen"
                time.sleep(0.1)
            yield client
        finally:
            proxy.kill()


@contextmanager
def running_believing(patch: pytest.MonkeyPatch, home: Path) -> Iterator[httpx.Client]:
    patch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    with running(settings_at(home, job_workers=0, requests_per_second=0.5)) as client:
        yield client


def test_half_sent_heads_end(tmp_path: Path) -> None:
    with behind_proxy(tmp_path, HEAD_SECONDS="1") as client:
        with holding(client, b"GET /gpus HTTP/1.1\r\nHost: local", 300) as held:
            found = statuses(held, 10)
            assert found == {408: 300}, found
        with holding(client, b"", 3) as held:
            assert statuses(held, 10) == {408: 3}
        with connect(client, b"GET /" + b"x" * 1000) as sock, pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(1000):
                sock.sendall(b"x" * 10_000)
                time.sleep(0.001)


def test_line_ends_do_not_keep_a_connection(tmp_path: Path) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with behind_proxy(tmp_path, HEAD_SECONDS="1") as client, connect(client, whole) as sock:
        assert status(sock) == 200
        until = time.monotonic() + 10
        with pytest.raises(ConnectionError):  # noqa: PT012 - at which of them is not known
            while time.monotonic() < until:
                sock.sendall(b"\r\n")
                time.sleep(0.1)


def test_who_does_not_read_is_cut_off(tmp_path: Path) -> None:
    with behind_proxy(tmp_path, IDLE_SECONDS="1") as client:
        version = client.get("/").text.partition("/static/")[2].partition("/")[0]
        ask = f"GET /static/{version}/plotly.js HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with connect(client, ask * 4) as sock:
            time.sleep(4)
            got = 0
            with pytest.raises(ConnectionResetError):  # noqa: PT012
                while part := sock.recv(65536):
                    got += len(part)
                raise ConnectionResetError
        assert got < 4 * 4_000_000


def test_connections_of_an_address_are_limited(tmp_path: Path) -> None:
    with (
        behind_proxy(tmp_path, CONNECTIONS_PER_CALLER="6") as client,
        other(client) as second,
    ):
        with ExitStack() as stack:
            held, reset = list[socket.socket](), 0
            for _ in range(8):  # and the client's own
                try:
                    held.append(stack.enter_context(connect(client, b"")))
                except ConnectionResetError:  # the proxy was quicker than the call that connects
                    reset += 1
            answers = statuses(held, 1)
            answers[0] += reset
            assert answers == {None: 5, 0: 3}
            assert second.get("/gpus").status_code == 200
        time.sleep(0.2)
        assert client.get("/gpus").status_code == 200


def test_nobody_calls_from_another_address(tmp_path: Path) -> None:
    """The service counts by the address that the proxy saw: 5 calls in ten seconds of each."""
    with behind_proxy(tmp_path) as client, other(client) as second:
        forged = [
            client.get("/gpus", headers={"X-Forwarded-For": f"192.0.2.{number}"}).status_code
            for number in range(11)
        ]
        assert forged[:5] == [200] * 5
        assert forged[-1] == 429
        assert second.get("/gpus").status_code == 200
