"""Parsed PTX, kept by hash: the next launch of a known kernel need not parse it again."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf

from wattcast.features.attached import detach
from wattcast.features.errors import PtxError, ServiceError
from wattcast.features.held import module_bytes
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.predictor.parts.memory import Kept, Memory, Place

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

    module: Module
    sha256: str
    bytes: int
    seconds: dict[Hashable, float] = field(default_factory=dict)

    def took(self, what: Hashable, seconds: float) -> None:
        """Note how long a prediction of this kind took."""
        if len(self.seconds) >= _MOST_NAMES:
            self.seconds.clear()
        self.seconds[what] = min(seconds, self.fastest(what))

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

    def keeps(self, known: KnownModule) -> bool:
        """Whether this very module is held: it may have been too large, or is gone by now."""
        return self._modules.get(known.module.text) is known

    def place(self, known: KnownModule) -> Place:
        """Where it is held, for what refers to it: that goes with it."""
        return self._modules.place(known.module.text)


def _free(module: Module) -> None:
    for function in module.functions:
        detach(function)
        if "body" in vars(function):  # asked for as an attribute it would be parsed now
            detach(function.body)


def _held_bytes(known: KnownModule) -> int:
    return module_bytes(known.module) + _TIMED_BYTES * len(known.seconds)
