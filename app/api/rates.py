"""How often a caller may call, and how much one may hold at once: in memory of this process."""

from __future__ import annotations

import ipaddress
import time
from functools import lru_cache

from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from wattcast.app.settings import Settings

REQUESTS_AT_ONCE = 512
"""Requests that one process serves at the same time: each may hold a connection and a database
file, and 1,024 open files are what systems give a process by default."""

STREAMS_AT_ONCE = 16
"""Jobs that one caller follows by events: what two people with a page each look at."""

RATE_SECONDS = 10
"""A rate is kept on average over so long: what a page or a script asks for at once passes."""

WRONG_KEYS, WRONG_KEY_SECONDS = 5, 2.0
"""Wrong keys of one address within RATE_SECONDS that are answered at once, and how late the answer
to each further one is."""


class Rate:
    """At most ``count`` calls of each caller within ``RATE_SECONDS``; 0 sets no limit.

    For one thread: the event loop's.
    """

    def __init__(self, count: float) -> None:
        self._item = RateLimitItemPerSecond(max(1, round(count)), RATE_SECONDS) if count else None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def take(self, caller: str) -> float:
        """Count a call: 0 if it may be made, else the seconds until one may."""
        if self._item is None or await self._limiter.hit(self._item, caller):
            return 0.0
        window = await self._limiter.get_window_stats(self._item, caller)
        return max(1.0, window.reset_time - time.time())


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


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What counts as one caller: an IPv4 address, or the /64 that one IPv6 subscriber has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class Load:
    """What one service serves at this moment, by caller."""

    def __init__(self, settings: Settings) -> None:
        each = settings.requests_at_once_per_caller
        self.requests = Shares(each, REQUESTS_AT_ONCE)
        self.streams = Shares(STREAMS_AT_ONCE)
        self.wrong_keys = Shares(each)
        self.wrong = Rate(WRONG_KEYS)
