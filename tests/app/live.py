"""The service under uvicorn in a thread, on a free port: tests speak real HTTP to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from wattcast.app.main import create_app
from wattcast.app.server import configuration, listen, url_of
from wattcast.app.settings import Settings


@contextmanager
def running(settings: Settings) -> Iterator[httpx.Client]:
    """A client of a service that runs until the block ends."""
    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(configuration(create_app(settings)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        try:
            with httpx.Client(base_url=url_of(sock), timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def at_once(works: Iterable[Callable[[], object]]) -> None:
    """Do all of it at the same time, to the end."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
