"""Threads in which PTX is analysed: the event loop answers others meanwhile, within limits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from app.problems import ServiceError

P = ParamSpec("P")
T = TypeVar("T")


class AnalysisPool:
    """Runs at most ``at_once`` analyses, lets ``waiting`` more wait, each up to ``seconds``.

    Used from one event loop; the counters need no lock.
    """

    def __init__(self, at_once: int, waiting: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix="analysis")
        self._most = at_once + waiting
        self._seconds = seconds
        self._pending = 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work`` in a thread.

        Raises ServiceError ``busy`` when too many wait, and ``time-limit`` when it takes too
        long; a thread cannot be stopped, so its slot stays taken until the work is done.
        """
        if self._pending >= self._most:
            raise ServiceError("busy", f"{self._pending} analyses wait already; try again")
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: context.run(work, *args, **kwargs)
        )
        self._pending += 1
        future.add_done_callback(self._done)
        ended, _ = await asyncio.wait((future,), timeout=self._seconds)
        if not ended:
            future.cancel()  # succeeds only if it still waits
            raise ServiceError("time-limit", f"the analysis did not end within {self._seconds:g} s")
        return future.result()

    def _done(self, future: asyncio.Future[T]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # seen, also when nobody waits any more

    def close(self) -> None:
        """Take no more work; wait for what runs."""
        self._executor.shutdown(wait=True, cancel_futures=True)
