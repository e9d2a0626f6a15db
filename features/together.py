"""Launches that are asked for one after the other, worked out together.

    with together(launches):
        for launch in launches: analyse(module, function, launch, gpu, analysis="symbolic")

What is told of each launch is what it is alone (``features.symbolic.analyse_together``): this says
which others to look at on the way, never what to find.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from wattcast.features.launch import Launch
from wattcast.features.ptx.ir import Function, Module

if TYPE_CHECKING:
    from wattcast.features.symbolic import SymbolicResult

AHEAD = 128
"""Launches worked out before they are asked for: results of so many are held (some 10 kB each for
100 instructions), and numpy's time per operation is shared by about as many."""


class _Waiting:
    """Launches to come, and what was worked out of them before they were asked for."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = {_key(launch): launch for launch in launches}
        self._keys = list(self._launches)
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._found: dict[Hashable, dict[Hashable, SymbolicResult]] = {}

    def take(
        self,
        module: Module,
        function: Function,
        launch: Launch,
        loops: Mapping[str, float],
        accesses: bool,
    ) -> SymbolicResult | None:
        """The analysis of a launch and, on the way, of those that follow it; ``None`` for one that
        nobody announced, or that cannot be analysed."""
        from wattcast.features.symbolic import analyse_together

        key = _key(launch)
        place = self._place.get(key)
        if place is None:
            return None
        what = id(module), function.name, tuple(sorted(loops.items())), accesses
        known = self._found.get(what)
        if known is None or key not in known:
            keys = self._keys[place : place + AHEAD]
            several = [self._launches[one] for one in keys]
            pairs = analyse_together(module, function, several, loops=loops, accesses=accesses)
            known = self._found[what] = {_key(one): result for one, result in pairs}
        return known.get(key)


_WAITING: ContextVar[_Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def together(launches: Sequence[Launch]) -> Iterator[None]:
    """Announce the launches of one kernel that are analysed inside."""
    token = _WAITING.set(_Waiting(launches))
    try:
        yield
    finally:
        _WAITING.reset(token)


def announced(
    module: Module,
    function: Function,
    launch: Launch,
    loops: Mapping[str, float],
    accesses: bool,
) -> SymbolicResult | None:
    """The symbolic analysis of an announced launch; ``None`` if it has to be made alone."""
    waiting = _WAITING.get()
    return None if waiting is None else waiting.take(module, function, launch, loops, accesses)


def _key(launch: Launch) -> Hashable:
    given = launch.arguments.items()
    arguments = tuple((name, type(value), value) for name, value in given)
    return launch.grid, launch.block, launch.dynamic_shared_bytes, arguments
