"""Parsed PTX, kept by hash: the next launch of a known kernel need not parse it again."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf

from wattcast.features.effort import DEFAULT_LIMITS, SizeLimits
from wattcast.features.errors import PtxError, ServiceError
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module

_MOST_NAMES = 1000
"""Kinds of prediction remembered for one module: a kernel answers to any spacing of its name."""


@dataclass(frozen=True, slots=True)
class KnownModule:
    """A parsed module, the SHA-256 of its UTF-8 text and that text's size in bytes.

    ``seconds``: the quickest prediction so far, by kernel and what else it costs time for.
    """

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
    """The modules used last, up to ``capacity_bytes`` of PTX text. Safe from any thread."""

    def __init__(
        self, capacity_bytes: int, max_ptx_bytes: int, limits: SizeLimits = DEFAULT_LIMITS
    ) -> None:
        self._capacity = capacity_bytes
        self._size_limits = limits
        self._limit = max_ptx_bytes
        self._held = 0
        self._modules: OrderedDict[str, KnownModule] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, ptx: str) -> KnownModule:
        """The module of a text.

        Raises PtxError (line, column) for what is no PTX, TooComplexError, and ServiceError
        ``too-large``.
        """
        found = self.known(ptx)
        if found is not None:
            return found
        encoded = _encoded(ptx)
        if len(encoded) > self._limit:
            raise ServiceError(
                "too-large",
                f"the PTX has {len(encoded)} bytes; it may have at most {self._limit} "
                "(WATTCAST_MAX_PTX_BYTES)",
            )
        known = KnownModule(
            read_module(ptx, self._size_limits), hashlib.sha256(encoded).hexdigest(), len(encoded)
        )
        with self._lock:
            if known.bytes <= self._capacity and ptx not in self._modules:
                self._modules[ptx] = known
                self._held += known.bytes
                while self._held > self._capacity:
                    _, evicted = self._modules.popitem(last=False)
                    self._held -= evicted.bytes
        return known

    def known(self, ptx: str) -> KnownModule | None:
        """The module of a text that was read before and is still held."""
        with self._lock:
            found = self._modules.get(ptx)
            if found is not None:
                self._modules.move_to_end(ptx)
            return found


def _encoded(ptx: str) -> bytes:
    try:
        return ptx.encode()
    except UnicodeEncodeError as error:
        line = ptx.count("\n", 0, error.start) + 1
        column = error.start - ptx.rfind("\n", 0, error.start)
        raise PtxError("not Unicode text", line=line, column=column) from error
