"""Running the service under uvicorn, with or without the demonstration."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from wattcast.app import logs, main, services
from wattcast.app.settings import Settings
from wattcast.app.store.private import UMASK
from wattcast.features.errors import WattcastError
from wattcast.features.ptx.ir import COLLECT_AFTER

DEMO_GPU = "tesla-v100"
DEMO_LAUNCH: dict[str, Any] = {"grid": [4096], "block": [256]}
SWITCH_SECONDS = 0.001
"""How long a thread may keep the interpreter from the event loop (Python's default is 5 ms)."""

READY_SECONDS = 60.0
"""How long the demonstration waits for the service: far beyond any start."""


MAPPED_BYTES = 1 << 20
"""Blocks of memory from this size on go back to the system when they are freed."""

HEAPS = 2
"""Heaps that threads allocate from: what one leaves free another can use."""

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h of glibc

MOST_HEAD_BYTES = 64 * 1024
"""Most bytes of a request's head, and of its trailers; common servers take 8 to 64 KiB."""

RESERVED_FILES = 128
"""Open files that are left to the database, uploads and models, of those the system allows; with
more connections than that requests are answered 503."""

GRACE_SECONDS = 3
"""How long requests under way may still be answered once the service is told to end."""

END_SECONDS = 9.0
"""When a service that was told to end is ended at once, whatever it is doing: requests get
``GRACE_SECONDS``, what is queued is written, and each thread a moment to come to a checkpoint."""


KILL_SECONDS = 9.5
"""When it is killed, where no thread of Python's got to run since the signal."""

_WATCH = """
import os, signal, sys, time
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
while told := os.read(0, 64):
    if {signal.SIGINT, signal.SIGTERM} & set(told):
        until, service = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
        while os.getppid() == service:
            time.sleep(0.1)
            if time.monotonic() > until:
                os.kill(service, signal.SIGKILL)
"""
"""Reads what C's handler of signals writes, which needs no interpreter: that may be held for
minutes by one call that nobody foresaw."""


class ServeError(WattcastError):
    """The service cannot listen, or its demonstration failed."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ServeError saying why there is none (port taken, say)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        # From now on, so that a second service on this port is refused before it says "ready".
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "set WATTCAST_HOST and WATTCAST_PORT or pass --host and --port"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL of a bound socket; a wildcard address is reached through the loopback."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configuration(app: FastAPI) -> uvicorn.Config:
    """How uvicorn serves ``app``, without WebSockets. Whoever holds connections without asking for
    anything is a reverse proxy's to end (docker/haproxy.cfg)."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    endless = files == resource.RLIM_INFINITY
    return uvicorn.Config(
        app,
        http="h11",  # httptools bounds no head
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        limit_concurrency=None if endless else max(2, files - RESERVED_FILES),
        ws="none",
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,  # uvicorn's own: whom it believes
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


class _Server(uvicorn.Server):
    """Ends within ``END_SECONDS`` of a signal, even where a thread holds the interpreter."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        told, tells = os.pipe()
        watch = [sys.executable, "-I", "-S", "-c", _WATCH, str(KILL_SECONDS), str(os.getpid())]
        # It ends with this process, whose end of the pipe is the only one.
        subprocess.Popen(watch, stdin=told, start_new_session=True)  # noqa: S603 - fixed words
        os.close(told)
        os.set_blocking(tells, False)
        self._tells = tells
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # In the place of the event loop's own, which looks for signals when a timer goes off:
        # uvicorn has one every 0.1 s.
        signal.set_wakeup_fd(self._tells, warn_on_full_buffer=False)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A thread of C that needs no interpreter: it writes where all threads are, and exits.
        faulthandler.dump_traceback_later(END_SECONDS, exit=True)
        super().handle_exit(sig, frame)


def serve(settings: Settings, when_ready: Callable[[str], None] | None = None) -> None:
    """Serve until interrupted (Ctrl-C, SIGTERM).

    ``when_ready`` is called in a thread with the service's URL once it answers; what it raises
    ends the service. Raises ServeError, or StoreError where the database cannot be opened.
    """
    logs.configure(settings)
    os.umask(UMASK)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what is imported stays for good
    gc.set_threshold(*COLLECT_AFTER)
    _return_memory()
    with listen(settings.host, settings.port) as sock:
        server = _Server(configuration(main.create_app(settings, services.Services.open(settings))))
        failure: list[Exception] = []

        def watch() -> None:
            try:
                _wait(server)
                if when_ready is not None and not server.should_exit:
                    when_ready(url_of(sock))
            except Exception as error:  # carried into the main thread below
                failure.append(error)
                server.should_exit = True

        threading.Thread(target=watch, name="when-ready", daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it is down
            server.run(sockets=[sock])
        faulthandler.cancel_dump_traceback_later()
        if failure:
            raise failure[0]
        if not server.started:
            raise ServeError("the service did not start; see the log above")


def _return_memory() -> None:
    """Have glibc give large blocks back when they are freed; without effect elsewhere.

    Left alone it raises the size from which blocks are mapped by themselves to that of the largest
    one freed, and then keeps texts of many megabytes in the heaps of as many threads.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    mallopt(_M_ARENA_MAX, HEAPS)


def _wait(server: uvicorn.Server) -> None:
    until = time.monotonic() + READY_SECONDS
    while not server.started and not server.should_exit:
        if time.monotonic() > until:
            raise ServeError(f"the service was not ready within {READY_SECONDS:.0f} s")
        time.sleep(0.02)


def demo_request() -> dict[str, Any]:
    """The body that the demonstration posts: our vector addition on a V100."""
    ptx = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")
    return {
        "ptx": ptx,
        "kernel": "vector_add",
        "gpu": DEMO_GPU,
        "launch": DEMO_LAUNCH,
        "explain": "shap",
    }


def demonstrate(url: str) -> dict[str, Any]:
    """One real prediction over HTTP. Raises ServeError if it is not a complete answer."""
    import httpx

    try:
        answer = httpx.post(f"{url}/predict", json=demo_request(), timeout=60.0)
    except httpx.HTTPError as error:
        raise ServeError(f"the demonstration got no answer from {url}: {error}") from error
    if answer.status_code != 200:
        raise ServeError(f"the demonstration was answered {answer.status_code}: {answer.text}")
    prediction: dict[str, Any] = answer.json()
    missing = [part for part in ("power", "time", "energy") if prediction.get(part) is None]
    if missing:
        reasons = "; ".join(w["detail"] for w in prediction.get("warnings", ()))
        raise ServeError(f"the demonstration has no {' and '.join(missing)}: {reasons}")
    return prediction
