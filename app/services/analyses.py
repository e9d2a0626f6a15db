"""Threads in which PTX is analysed and uploads are read, within limits: the event loop answers
others meanwhile, callers take turns, and work whose caller no longer waits ends at its next
checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextvars import ContextVar
from traceback import clear_frames
from typing import Any, ParamSpec, TypeVar

from wattcast.features.errors import Clock, GivenUpError, ServiceError, giving_up

CALLER_NAME: ContextVar[str] = ContextVar("caller_name", default="")
"""Who makes the present request, as limits know it; empty outside of requests."""


class Shares:
    """How much each caller holds of something at this moment: at most ``each``, all ``total``.

    Who holds nothing takes no memory. For one thread: the event loop's.
    """

    def __init__(self, each: int, total: int | None = None) -> None:
        self.each = each
        self.total = total
        self.held = 0
        self._by_caller: dict[str, int] = {}

    def of(self, caller: str) -> int:
        """How much a caller holds."""
        return self._by_caller.get(caller, 0)

    @property
    def full(self) -> bool:
        """Whether nobody can have more."""
        return self.total is not None and self.held >= self.total

    def enter(self, caller: str) -> bool:
        """Take one, to be given back by ``leave``; ``False`` if there is none for this caller."""
        has = self.of(caller)
        if has >= self.each or self.full:
            return False
        self._by_caller[caller] = has + 1
        self.held += 1
        return True

    def leave(self, caller: str) -> None:
        """Give one back."""
        left = self._by_caller[caller] - 1
        self.held -= 1
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]


class Turns:
    """At most ``at_once`` work at a time for one caller, and ``spare`` more for callers who have
    none: one caller who fills its share, however long its work takes, leaves the next one a place.
    Where nothing is free, callers take turns, each in the order of its own requests.

    For the event loop's thread.
    """

    def __init__(self, at_once: int, spare: int) -> None:
        self._places = Shares(at_once, at_once + spare)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return sum(len(queue) for queue in self._waiting.values())

    async def take(self, caller: str) -> None:
        """Wait for a place, to be given back by ``give``; cancelled, there is nothing to give."""
        if self.enter(caller):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(caller)
            else:
                self._forget(caller, turn)
            raise

    def give(self, caller: str) -> None:
        """Give a place back: whoever has waited longest for a turn gets it."""
        self._places.leave(caller)
        for name in list(self._waiting):
            # One that is cancelled has yet to hear of it and leave.
            turn = next((turn for turn in self._waiting[name] if not turn.done()), None)
            if turn is not None and self.enter(name):
                self._forget(name, turn)
                if name in self._waiting:
                    self._waiting.move_to_end(name)
                turn.set_result(None)

    def enter(self, caller: str) -> bool:
        """Take a place that is free for this caller now; ``False`` if none is."""
        places = self._places
        is_spare = places.held >= places.each
        return not (is_spare and places.of(caller)) and places.enter(caller)

    def _forget(self, caller: str, turn: asyncio.Future[None]) -> None:
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]


P = ParamSpec("P")
T = TypeVar("T")

Hearing = Callable[[], Awaitable[Any]]
CALLER: contextvars.ContextVar[Hearing | None] = contextvars.ContextVar("caller", default=None)
"""What to await for the caller of the present request to hang up, where that is known."""

UNHEARD_SECONDS = 0.02
"""How long work runs before its caller is listened to: most is done by then, and listening takes
as long as a twentieth of it."""

CLOSE_SECONDS = 1.5
"""How long closing waits for work that was told to end; what does not is left behind."""


class Ear:
    """The caller of the present request, heard hanging up once somebody listens."""

    def __init__(self) -> None:
        self._hearing = CALLER.get()
        self._heard: set[asyncio.Future[Any]] = set()

    async def heard_while(self, work: asyncio.Future[Any], seconds: float) -> None:
        """Until the work ends, the caller hangs up or the time is over."""
        if self._hearing is not None and not self._heard:
            self._heard.add(asyncio.ensure_future(self._hearing()))
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({work, *self._heard}, timeout=seconds, return_when=first)

    def cancel(self) -> None:
        """Listen no more."""
        for each in self._heard:
            each.cancel()


class AnalysisPool:
    """Runs at most ``at_once`` analyses, lets ``waiting`` more wait, each up to ``seconds``;
    ``spare`` more run for callers of whom none runs.

    ``what`` is what the work is called in errors: uploads have a pool of their own.
    """

    def __init__(
        self,
        at_once: int,
        waiting: int,
        seconds: float,
        what: str = "analysis",
        *,
        spare: int = 0,
    ) -> None:
        self._executor = ThreadPoolExecutor(at_once + spare, thread_name_prefix=what)
        self._turns = Turns(at_once, spare)
        self._what = what
        self._most = at_once + waiting
        self._seconds = seconds
        self._clocks: dict[Future[Any], Clock] = {}
        self._lock = threading.Lock()
        self._closing = False

    @property
    def pending(self) -> int:
        """How much work waits or runs."""
        return len(self._clocks) + self._turns.waiting

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work`` in a thread.

        Raises ServiceError ``busy`` when too many wait, and ``time-limit`` when it takes too
        long, when the caller hangs up and when the service ends: then the work is given up, and
        its slot is free as soon as it comes to a checkpoint.
        """
        clock = Clock(self._seconds)
        context = contextvars.copy_context()

        def made() -> T:
            try:
                with giving_up(clock=clock):
                    return work(*args, **kwargs)
            except Exception as error:
                # What was made so far goes now: the collector would hold everyone up (memory.py).
                clear_frames(error.__traceback__)
                raise

        if self.pending >= self._most or self._closing:
            raise ServiceError(
                "busy", f"{self.pending} requests of this kind wait already; try again"
            )
        loop = asyncio.get_running_loop()
        until, caller, ear = loop.time() + self._seconds, CALLER_NAME.get(), Ear()
        try:
            if self._turns.enter(caller) or await self._turn(caller, ear, until):
                job = self._submit(caller, clock, context, made)
                try:
                    return await self._ended(job, clock, ear, until)
                except GivenUpError as error:
                    if clock.until > loop.time():  # not by us: a compiler, or the request's seconds
                        raise ServiceError("time-limit", error.detail) from None
        finally:
            ear.cancel()
        raise ServiceError(
            "time-limit", f"the {self._what} did not end within {self._seconds:g} s"
        ) from None

    async def _turn(self, caller: str, ear: Ear, until: float) -> bool:
        """Wait until it is this caller's turn: ``False`` if that comes too late."""
        turn, taken = asyncio.ensure_future(self._turns.take(caller)), False
        left = until - asyncio.get_running_loop().time()
        try:
            await ear.heard_while(turn, left)
            taken = turn.done()
        finally:
            if not turn.cancel() and not taken:  # it came as this request was cancelled
                self._turns.give(caller)
        return taken

    def _submit(
        self,
        caller: str,
        clock: Clock,
        context: contextvars.Context,
        made: Callable[[], T],
    ) -> Future[T]:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closing:
                self._turns.give(caller)
                raise ServiceError("busy", "the service is ending; try again")
            job = self._executor.submit(context.run, made)
            self._clocks[job] = clock

        def done(job: Future[T]) -> None:
            with self._lock:
                self._clocks.pop(job, None)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._turns.give, caller)

        job.add_done_callback(done)
        return job

    async def _ended(self, job: Future[T], clock: Clock, ear: Ear, until: float) -> T:
        """The job's result. Raises GivenUpError where it is late or nobody waits for it."""
        waiter = asyncio.wrap_future(job)
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait({waiter}, timeout=min(UNHEARD_SECONDS, until - loop.time()))
            if not waiter.done():
                await ear.heard_while(waiter, until - loop.time())
            if waiter.done():
                return waiter.result()
        finally:
            if not waiter.done():
                clock.give_up()
                waiter.add_done_callback(_seen)
                job.cancel()  # succeeds only if it still waits
        raise GivenUpError("the work was given up")

    def stop(self) -> None:
        """Take no more work and give up what waits and runs; safe from any thread."""
        with self._lock:
            self._closing = True
            for clock in self._clocks.values():
                clock.give_up()

    def close(self) -> None:
        """``stop``, and wait a moment for what runs to end."""
        self.stop()
        with self._lock:
            running = list(self._clocks)
        self._executor.shutdown(wait=False, cancel_futures=True)
        wait_for(running, CLOSE_SECONDS)


def _seen(late: asyncio.Future[T]) -> None:
    """Nobody waits for this result any more; an error in it is not worth a log line."""
    if not late.cancelled():
        late.exception()
