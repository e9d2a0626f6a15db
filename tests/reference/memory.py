"""Memory of one launch: buffers at fixed addresses, module variables, shared and local windows.

Addresses (the contract with other engines, see ``tests/fixtures/kernels/README.md``): the first
buffer argument lies at 0x7f0000000000; each next one at the end of the one before, plus a gap of
256 bytes, rounded up to a multiple of 256.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.parse import InterpreterError

BUFFER_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
CONSTANT_BASE = 0x7C00_0000_0000
MODULE_BASE = 0x7B00_0000_0000
TEXTURE_BASE = 0x7900_0000_0000
WINDOW_BYTES = 1 << 40


@dataclass(frozen=True)
class Texture:
    """A texture object: ``texels`` of shape (height, width), point sampling, clamped,
    coordinates not normalised. Missing channels read as 0, 0, 1."""

    texels: np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over a buffer argument (its name, or an address): lengths innermost first.

    ``strides``: bytes between neighbours along every dimension but the first. ``swizzle``: 0, 32,
    64 or 128 bytes. What lies outside reads as zero.
    """

    address: Any
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


def place_buffers(sizes: Mapping[str, int]) -> dict[str, int]:
    """Addresses of buffers of these sizes in bytes, in their order."""
    addresses: dict[str, int] = {}
    at = BUFFER_BASE
    for name, size in sizes.items():
        addresses[name] = at
        at = (at + size + 256 + 255) // 256 * 256
    return addresses


def buffer_addresses(arguments: Mapping[str, object]) -> dict[str, int]:
    """Address of every numpy array among the arguments, in their order."""
    return place_buffers({n: v.nbytes for n, v in arguments.items() if isinstance(v, np.ndarray)})


class GlobalMemory:
    """Byte-addressed segments; an access outside all of them is a fault."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.segments: list[bytearray] = []

    def add(self, base: int, data: bytearray) -> None:
        at = bisect_right(self.bases, base)
        self.bases.insert(at, base)
        self.segments.insert(at, data)

    def find(self, address: int, size: int) -> tuple[bytearray, int]:
        """The segment that holds ``size`` bytes at ``address``, and the offset in it."""
        at = bisect_right(self.bases, address) - 1
        if at >= 0:
            offset = address - self.bases[at]
            if offset + size <= len(self.segments[at]):
                if address % size and size in (1, 2, 4, 8, 16):
                    raise InterpreterError(f"misaligned access of {size} bytes at {address:#x}")
                return self.segments[at], offset
        raise InterpreterError(f"access of {size} bytes at {address:#x} lies in no buffer")
