"""Who works next where many wait: callers in turn, not requests in the order they came."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextvars import ContextVar

CALLER_NAME: ContextVar[str] = ContextVar("caller_name", default="")
"""Who makes the present request, as limits know it; empty outside of requests."""


class Turns:
    """At most ``at_once`` work at a time for one caller, and ``spare`` more for callers who have
    none: one caller who fills its share, however long its work takes, leaves the next one a place.
    Where nothing is free, callers take turns, each in the order of its own requests.

    For the event loop's thread.
    """

    def __init__(self, at_once: int, spare: int) -> None:
        self._at_once = at_once
        self._spare = spare
        self._working: dict[str, int] = {}
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
        left = self._working[caller] - 1
        if left:
            self._working[caller] = left
        else:
            del self._working[caller]
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
        has, held = self._working.get(caller, 0), sum(self._working.values())
        most = self._at_once if has else self._at_once + self._spare
        if has >= self._at_once or held >= most:
            return False
        self._working[caller] = has + 1
        return True

    def _forget(self, caller: str, turn: asyncio.Future[None]) -> None:
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]
