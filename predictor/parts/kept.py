"""Results that are made once and kept while they fit: compiled sources, analyses."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from wattcast.features.effort import checkpoint
from wattcast.features.errors import GivenUpError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOOK_SECONDS = 0.1
"""How often a thread that waits for another looks whether it is given up."""


class Kept(Generic[K, V]):
    """The results used last, up to ``capacity`` in the unit of ``weigh``. Safe from any thread.

    Who asks for what another thread is making waits for it, so nothing is made twice at once.
    An error is raised to everyone who waits, and not kept.
    """

    def __init__(self, capacity: int, weigh: Callable[[V], int]) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._held = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._making: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """What is kept under ``key``."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """What is kept under ``key``, else what ``make`` returns. Raises what ``make`` raises."""
        while True:
            with self._lock:
                found = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
                    return found[0]
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
            self._keep(key, value)
        made.set_result(value)
        return value

    def _keep(self, key: K, value: V) -> None:
        weight = self._weigh(value)
        if weight > self._capacity:
            return
        self._kept[key] = value, weight
        self._held += weight
        while self._held > self._capacity:
            _, (_, evicted) = self._kept.popitem(last=False)
            self._held -= evicted


def _result(made: Future[V]) -> V:
    """What another thread is making; minds the clock of the one that waits."""
    while True:
        try:
            return made.result(timeout=_LOOK_SECONDS)
        except TimeoutError:
            if made.done():  # what was made raised it
                raise
            checkpoint()
