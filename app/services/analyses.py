"""Threads in which PTX is analysed and uploads are read, within limits: the event loop answers
others meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from wattcast.features.errors import ServiceError

P = ParamSpec("P")
T = TypeVar("T")


class AnalysisPool:
    """Runs at most ``at_once`` analyses, lets ``waiting`` more wait, each up to ``seconds``.

    ``what`` is what the work is called in errors: uploads have a pool of their own.
    """

    def __init__(self, at_once: int, waiting: int, seconds: float, what: str = "analysis") -> None:
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix=what)
        self._what = what
        self._most = at_once + waiting
        self._seconds = seconds
        self._pending = 0
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """How much work waits or runs."""
        return self._pending

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work`` in a thread.

        Raises ServiceError ``busy`` when too many wait, and ``time-limit`` when it takes too
        long; a thread cannot be stopped, so its slot stays taken until the work is done.
        """
        with self._lock:
            if self._pending >= self._most:
                raise ServiceError(
                    "busy", f"{self._pending} requests of this kind wait already; try again"
                )
            self._pending += 1
        context = contextvars.copy_context()
        job = self._executor.submit(lambda: context.run(work, *args, **kwargs))
        job.add_done_callback(self._done)
        waiter = asyncio.wrap_future(job)
        ended, _ = await asyncio.wait((waiter,), timeout=self._seconds)
        if not ended:
            waiter.add_done_callback(_seen)
            job.cancel()  # succeeds only if it still waits
            raise ServiceError(
                "time-limit", f"the {self._what} did not end within {self._seconds:g} s"
            )
        return waiter.result()

    def _done(self, _: Future[T]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        """Take no more work; wait for what runs."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _seen(late: asyncio.Future[T]) -> None:
    """Nobody waits for this result any more; an error in it is not worth a log line."""
    if not late.cancelled():
        late.exception()
