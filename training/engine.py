"""Where the fits of a retraining run. The results are the same bit by bit wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs one function over many items."""

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Results with the index of their item, in the order in which they are ready.

        ``function`` is one of a module, and pure: it may run twice where a worker dies. Raises
        what it raises.
        """


@dataclass(frozen=True)
class InProcess:
    """Threads of this process, ``jobs`` at a time."""

    jobs: int = 2

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """As ``Engine.map``."""
        with ThreadPoolExecutor(self.jobs) as pool:
            waiting = {pool.submit(function, item): at for at, item in enumerate(items)}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            finally:
                for each in waiting:
                    each.cancel()
