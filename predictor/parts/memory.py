"""Results that are made once and kept while they fit: modules, analyses, predictions.

All share one ``Memory``, bounded in bytes: what was used longest ago goes first, whatever it is.

    memory = Memory(256 * 2**20)
    analyses = memory.room(analysis_bytes, grows=True)
    analyses.get_or_make(key, make)
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from wattcast.features.effort import checkpoint
from wattcast.features.errors import GivenUpError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOOK_SECONDS = 0.1
"""How often a thread that waits for another looks whether it is given up."""

ENTRY_BYTES = 1000
"""What keeping anything takes besides itself: key, entry and their places in three dictionaries
(0.6 to 1.2 kB by tracemalloc, ``tests/app/test_kept.py``)."""

_WEIGHED_AGAIN = 16
"""Entries that may still be growing: those of the latest requests, a few for each thread."""


_COLLECTED_SHARE = 0.25
"""Share of the capacity that is dropped between collections: a function and what is worked out
about it refer to each other, and the collector alone frees such a ring. The service lets it run
far too rarely for that (``app/server.py``); a run stops every thread for 0.3 to 0.6 s with 256 MB
held, so modules break their rings themselves (``modules.py``)."""

_COLLECTED_BYTES = 16 * 2**20
"""At the least so many: a run takes its time with little held, too."""


Place = tuple[int, Hashable]
"""Number of a room, and a key in it."""


class _Entry(NamedTuple):
    value: Any
    room: Kept[Any, Any]
    bytes: int
    beside: Place | None


class _Latest(LRUCache[Place, _Entry]):
    """Counts the bytes of growing entries that went, and lets those go that hold them."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, getsizeof=lambda entry: entry.bytes)
        self.dropped_bytes = 0
        self.followers: dict[Place, set[Place]] = {}

    def __delitem__(self, key: Place) -> None:
        beside = self[key].beside
        super().__delitem__(key)
        if beside is not None and (others := self.followers.get(beside)) is not None:
            others.discard(key)
        for follower in self.followers.pop(key, ()):
            self.pop(follower, None)

    def popitem(self) -> tuple[Place, _Entry]:
        key, entry = super().popitem()
        self.dropped(entry)
        return key, entry

    def dropped(self, entry: _Entry) -> None:
        """Count an entry that went."""
        if entry.room.grows:
            self.dropped_bytes += int(entry.room.rings * entry.bytes)


class Memory:
    """A budget of bytes that several rooms share. Safe from any thread.

    An entry that grows after it was made (an analysis works some of its results out when they are
    asked for) is weighed again as the next ones come.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._kept = _Latest(capacity_bytes)
        self._growing: deque[Place] = deque(maxlen=_WEIGHED_AGAIN)
        self._rooms = 0
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """About the memory that is held, at most the capacity."""
        with self._lock:
            return int(self._kept.currsize)

    def passed(self, size: int) -> None:
        """Note bytes of a request that may be left in rings, as if they had been dropped."""
        with self._lock:
            self._kept.dropped_bytes += size

    def room(
        self, weigh: Callable[[V], int], *, grows: bool = False, rings: float = 1.0
    ) -> Kept[Any, V]:
        """A part of its own keys. ``weigh`` tells about how many bytes a value holds;
        ``grows``: later perhaps more. ``rings``: share of a dropped value that the collector alone
        frees."""
        with self._lock:
            self._rooms += 1
            return Kept(self, self._rooms, weigh, grows, rings)

    def _put(self, room: Kept[Any, V], key: Place, value: V, beside: Place | None) -> None:
        with self._lock:
            for each in tuple(self._growing):
                entry = self._kept.get(each)
                if entry is None:
                    self._growing.remove(each)
                elif (weight := ENTRY_BYTES + entry.room.weigh(entry.value)) != entry.bytes:
                    self._keep(each, entry._replace(bytes=weight))
            self._keep(key, _Entry(value, room, ENTRY_BYTES + room.weigh(value), beside))
            if room.grows and key in self._kept:
                self._growing.append(key)
            rings = max(_COLLECTED_SHARE * self._kept.maxsize, _COLLECTED_BYTES)
            collect = self._kept.dropped_bytes > rings
            if collect:
                self._kept.dropped_bytes = 0
        if collect:
            gc.collect()
            _return_free_memory()

    def _keep(self, key: Place, entry: _Entry) -> None:
        followers = self._kept.followers.pop(key, set())
        self._kept.pop(key, None)
        alone = entry.beside is not None and entry.beside not in self._kept
        if entry.bytes <= self._kept.maxsize and not alone:
            if followers:
                self._kept.followers[key] = followers  # they go with it
            self._kept[key] = entry
            # What had to make room for it may be what it stands beside.
            if entry.beside is not None:
                if entry.beside in self._kept:
                    self._kept.followers.setdefault(entry.beside, set()).add(key)
                else:
                    del self._kept[key]
            return
        for follower in followers:
            self._kept.pop(follower, None)
        self._kept.dropped(entry)


def _return_free_memory() -> None:
    """Have glibc give whole free pages back (``malloc_trim``); without effect elsewhere."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(eq=False, slots=True)
class Kept(Generic[K, V]):
    """A room of a ``Memory``, as ``Memory.room`` makes it. Safe from any thread.

    Who asks for what another thread is making waits for it, so nothing is made twice at once.
    An error is raised to everyone who waits, and not kept.
    """

    _memory: Memory
    _number: int
    weigh: Callable[[V], int]
    grows: bool
    rings: float
    _making: dict[K, Future[V]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: K) -> V | None:
        """What is kept under ``key``."""
        with self._memory._lock:
            found = self._memory._kept.get((self._number, key))
        return None if found is None else found.value

    def put(self, key: K, value: V, beside: Place | None = None) -> None:
        """Keep ``value``, unless it is larger than the whole memory.
        ``beside``: what it refers to without weighing it; once that goes, so does ``value``."""
        self._memory._put(self, (self._number, key), value, beside)

    def place(self, key: K) -> Place:
        """Where ``key`` is kept, for what is kept beside it."""
        return self._number, key

    def drop(self, key: K) -> None:
        """Forget what is kept under ``key``, if anything is."""
        with self._memory._lock:
            self._memory._kept.pop((self._number, key), None)

    def get_or_make(self, key: K, make: Callable[[], V], beside: Place | None = None) -> V:
        """What is kept under ``key``, else what ``make`` returns; ``beside`` as for ``put``.
        Raises what ``make`` raises."""
        while True:
            with self._lock:
                found = self.get(key)
                if found is not None:
                    return found
                made = self._making.get(key)
                if made is None:
                    made = self._making[key] = Future()
                    break
            try:
                return _result(made)
            except GivenUpError:  # by its maker, whose caller is gone; ours may still wait
                checkpoint()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            made.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self.put(key, value, beside)
        made.set_result(value)
        return value


def _result(made: Future[V]) -> V:
    """What another thread is making; minds the clock of the one that waits."""
    while True:
        try:
            return made.result(timeout=_LOOK_SECONDS)
        except TimeoutError:
            if made.done():  # what was made raised it
                raise
            checkpoint()
