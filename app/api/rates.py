"""How often a caller may call, and how much one may hold at once: in memory of this process."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable
from functools import lru_cache

from cachetools import LRUCache

from wattcast.app.settings import Settings


class TokenBuckets:
    """``burst`` calls at once, refilled at ``per_second``; 0 sets no limit.

    The buckets used least recently are forgotten beyond ``most``, which lets an address that
    comes back start anew. For one thread: the event loop's.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(most)

    def take(self, caller: str) -> float:
        """Take a token: 0 if there was one, else the seconds until there is."""
        if not self._per_second:
            return 0.0
        now = self._clock()
        left, since = self._buckets.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        taken = left >= 1.0
        self._buckets[caller] = (left - 1.0 if taken else left, now)
        return 0.0 if taken else (1.0 - left) / self._per_second


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


class FailedKeys:
    """How long an address waits for the answer to a wrong key: the first few not at all, then
    twice as long each time, up to ``most_seconds``; one failure is forgiven every minute.

    The addresses that failed least recently are forgotten beyond ``most``. For one thread.
    """

    FREE = 5
    FIRST_SECONDS = 0.1
    FORGIVEN_SECONDS = 60.0

    def __init__(
        self,
        most_seconds: float,
        *,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_seconds = most_seconds
        self._clock = clock
        self._failed: LRUCache[str, tuple[float, float]] = LRUCache(most)

    def wait(self, address: str) -> float:
        """Note a failure: seconds by which its answer is held back."""
        if not self._most_seconds:
            return 0.0
        now = self._clock()
        count, since = self._failed.get(address, (0.0, now))
        # 64 doublings of a tenth of a second are longer than anybody waits.
        count = min(64.0, max(0.0, count - (now - since) / self.FORGIVEN_SECONDS) + 1.0)
        self._failed[address] = (count, now)
        if count <= self.FREE:
            return 0.0
        return min(
            self._most_seconds, math.ldexp(self.FIRST_SECONDS, math.ceil(count) - self.FREE - 1)
        )


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
        self.requests = Shares(settings.requests_at_once_per_caller, settings.requests_at_once)
        self.streams = Shares(settings.event_streams_per_caller)
        self.slow_bodies = Shares(settings.slow_bodies_per_caller)
        self.wrong_keys = Shares(settings.requests_at_once_per_caller)
        self.failed_keys = FailedKeys(settings.failed_key_seconds)
