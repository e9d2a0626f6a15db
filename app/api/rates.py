"""How often a caller may call: a token bucket for each, in memory of this process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


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
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a token: 0 if there was one, else the seconds until there is."""
        if not self._per_second:
            return 0.0
        now = self._clock()
        left, since = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        taken = left >= 1.0
        self._buckets[caller] = (left - 1.0 if taken else left, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._per_second
