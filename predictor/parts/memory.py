"""Results that are made once and kept while they fit: modules, analyses, predictions.

All share one ``Memory``, bounded in bytes: what was used longest ago goes first, whatever it is.

    memory = Memory(256 * 2**20)
    analyses = memory.room(analysis_bytes, grows=True)
    analyses.get_or_make(key, make)
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from cachetools import LRUCache

from wattcast.features.attached import Attached, attached, detach
from wattcast.features.errors import GivenUpError, PtxError, ServiceError, checkpoint
from wattcast.features.ptx import ir, read_module

if TYPE_CHECKING:
    from wattcast.features.analysis import KernelAnalysis
    from wattcast.features.execution import ExecutionResult


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
            with suppress(AttributeError, OSError):  # glibc gives whole free pages back
                ctypes.CDLL(None).malloc_trim(0)

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


# About how much memory a parsed module and an analysis hold, for caches bounded in bytes.
#
# The figures were measured with ``tracemalloc`` over the fixture kernels (CPython 3.11, 64 bits)
# and are held to within a factor 1.5 by ``tests/features/test_held.py``.

TEXT_COPIES = 2
"""The text of a module, and the same without its comments."""

FUNCTION_BYTES = 2400
"""A function whose head alone was read: names, parameters, directives."""

PARSED_BYTES = 8000
"""A body that was parsed and analysed, besides its instructions: registers, blocks, loops."""

INSTRUCTION_BYTES = 1000
"""An instruction parsed (340), in the control-flow graph, as a value, as what decides, as timed."""

HANDLER_BYTES = 1350
"""An instruction compiled to handlers for the executed analysis."""

ANALYSIS_BYTES = 7000
"""An analysis of a launch, besides what it counted."""

COUNTED_BYTES = 225
"""Counts of an instruction that were worked out, and what is told of it."""

EXECUTED_BYTES = 10_000
"""An execution, besides its counts: samples, loops, diagnostics."""


_HANDLERS: Attached[ir.Function, object] = Attached("programs")
"""Programs of a function that was executed (``execution.engine``)."""


def module_bytes(module: ir.Module) -> int:
    """Bytes of a module with everything that is attached to its functions by now."""
    held = TEXT_COPIES * getsizeof(module.text) + FUNCTION_BYTES * len(module.functions)
    for function in module.functions:
        body = vars(function).get("body")  # asked for as an attribute it would be parsed now
        if body is not None:
            each = INSTRUCTION_BYTES + HANDLER_BYTES * bool(_HANDLERS.get(function))
            held += PARSED_BYTES + each * len(body.instructions)
    return held


def analysis_bytes(analysis: KernelAnalysis) -> int:
    """Bytes of an analysis by now, without its module, which its launches share."""
    held = ANALYSIS_BYTES + COUNTED_BYTES * len(analysis.function.body.instructions)
    execution = vars(analysis.runs).get("_execution")  # the cached property, if it was asked for
    if execution is None:
        return held
    return held + EXECUTED_BYTES + _counts_bytes(execution[0])


@attached
def _counts_bytes(execution: ExecutionResult) -> int:
    each = execution.functions.values()
    arrays = (getattr(counts, field.name) for counts in each for field in fields(counts))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


# Parsed PTX, kept by hash: the next launch of a known kernel need not parse it again.

_MOST_NAMES = 1000
"""Kinds of prediction remembered for one module: a kernel answers to any spacing of its name."""

_COPIES = 4
"""Copies of a text that its request leaves behind: body, JSON text, strings."""

_TIMED_BYTES = 400
"""One of them: a tuple of five, two strings and a number (tracemalloc)."""


RINGS = 0.2
"""Share of a dropped module and its analyses that only the collector frees: the instructions (one
object in seven of those that are freed, ``tests/app/test_kept.py``)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KnownModule:
    """A parsed module, the SHA-256 of its UTF-8 text and that text's size in bytes.
    ``seconds``: the quickest prediction so far, by kernel and what else it costs time for."""

    module: ir.Module
    sha256: str
    bytes: int
    seconds: dict[Hashable, float] = field(default_factory=dict)

    def took(self, what: Hashable, seconds: float) -> None:
        """Note how long a prediction of this kind took."""
        if len(self.seconds) >= _MOST_NAMES:
            self.seconds.clear()
        self.seconds[what] = min(seconds, self.seconds.get(what, inf))

    def fastest(self, what: Hashable) -> float:
        """The quickest prediction of this kind so far; infinite before the first."""
        return self.seconds.get(what, inf)


class ModuleCache:
    """The modules used last, as far as ``memory`` has room. Safe from any thread."""

    def __init__(self, memory: Memory, max_ptx_bytes: int) -> None:
        self._limit = max_ptx_bytes
        self._memory = memory
        self._modules: Kept[str, KnownModule] = memory.room(_held_bytes, grows=True, rings=RINGS)

    def read(self, ptx: str) -> KnownModule:
        """The module of a text.

        Raises PtxError (line, column) for what is no PTX, TooComplexError, and ServiceError
        ``too-large``.
        """
        found = self.known(ptx)
        if found is not None:
            return found
        try:
            encoded = ptx.encode()
        except UnicodeEncodeError as error:
            line = ptx.count("\n", 0, error.start) + 1
            column = error.start - ptx.rfind("\n", 0, error.start)
            raise PtxError("not Unicode text", line=line, column=column) from error
        if len(encoded) > self._limit:
            raise ServiceError(
                "too-large",
                f"the PTX has {len(encoded)} bytes; it may have at most {self._limit} "
                "(WATTCAST_MAX_PTX_BYTES)",
            )
        sha256, size = hashlib.sha256(encoded).hexdigest(), len(encoded)
        self._memory.passed(_COPIES * size)
        del encoded  # a megabyte for each of the text's, while its module is made

        def make() -> KnownModule:
            known = KnownModule(read_module(ptx), sha256, size)
            # Neither held nor in use by a request any more.
            weakref.finalize(known, _free, known.module).atexit = False
            return known

        return self._modules.get_or_make(ptx, make)

    def known(self, ptx: str) -> KnownModule | None:
        """The module of a text that was read before and is still held."""
        return self._modules.get(ptx)

    def place(self, known: KnownModule) -> Place | None:
        """Where this very module is held, for what refers to it: that goes with it. ``None``: it
        was too large, or is gone by now."""
        held = self.known(known.module.text) is known
        return self._modules.place(known.module.text) if held else None


def _free(module: ir.Module) -> None:
    for function in module.functions:
        detach(function)
        if "body" in vars(function):  # asked for as an attribute it would be parsed now
            detach(function.body)


def _held_bytes(known: KnownModule) -> int:
    return module_bytes(known.module) + _TIMED_BYTES * len(known.seconds)
