"""Tensor maps: which bytes of global memory a box of a tensor is (PTX ISA 9.0, Tensors).

The 128 bytes of a map are opaque, and a launch seldom tells of them. Then the box is assumed: its
bytes are those announced at the memory barrier of the copy, its lines 128 bytes long, the widest
that a swizzle takes, and the lines of the tensor far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.spaces import SPAN

Integers = npt.NDArray[np.int64]

BYTES = 128
"""Bytes of a tensor map (CUDA driver API, CUtensorMap)."""
LINE_BYTES = 128
"""Bytes that the inner dimension of a box has at most under the widest swizzle (CUDA driver API,
cuTensorMapEncodeTiled)."""
ASSUMED_BOX_BYTES = 8192
"""A box of which nothing tells the size: 64 lines of 128 bytes."""
PITCHES = {1: (), 2: (1 << 17,), 3: (1 << 10, 1 << 24), 4: (1 << 10, 1 << 24, 1 << 28),
           5: (1 << 10, 1 << 24, 1 << 28, 1 << 31)}  # fmt: skip
"""Assumed bytes between neighbours along all dimensions but the first, by the number of dimensions:
large enough that boxes apart in a usual tensor are apart in memory."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box that is copied; lengths innermost first.

    ``address`` in bytes; ``strides`` are bytes along every dimension but the first; ``swizzle`` is
    0, 32, 64 or 128 bytes. What lies outside reads as zero.
    """

    address: int
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    @property
    def box_bytes(self) -> int:
        """Bytes of a box, those outside the tensor included."""
        return int(np.prod(self.box)) * self.element_bytes


@dataclass(frozen=True)
class Lines:
    """Lines of boxes, one box a row: addresses of their first bytes that lie in the tensor, how
    many there are (0: none), and how many bytes of the line come before them."""

    starts: Integers
    lengths: Integers
    before: Integers


def assumed(address: int, dimensions: int, box_bytes: int, element_bytes: int) -> TensorMap:
    """A map of which only the bytes of a box are known."""
    inner = min(box_bytes, LINE_BYTES)
    box = (inner // element_bytes, -(-box_bytes // inner))[: max(2, dimensions)]
    if dimensions == 1:
        box = (box_bytes // element_bytes,)
    whole = (1 << 31) - 1
    return TensorMap(
        address, element_bytes, (whole,) * dimensions, PITCHES[dimensions],
        (*box, *(1,) * (dimensions - len(box))),
    )  # fmt: skip


def lines(tensor: TensorMap, places: Sequence[Integers], known: bool) -> Lines:
    """The lines of the boxes at ``places`` (an array for each dimension, innermost first)."""
    size = tensor.element_bytes
    rows = int(np.prod(tensor.box[1:]))
    number = np.arange(rows)
    at = np.zeros((places[0].size, rows), dtype=np.int64)
    inside = np.ones(at.shape, dtype=np.bool_)
    for place, length, pitch, limit in zip(
        places[1:], tensor.box[1:], tensor.strides, tensor.dims[1:], strict=True
    ):
        index = place[:, None] + number % length
        inside &= (index >= 0) & (index < limit)
        at += index * pitch
        number = number // length
    low = np.clip(places[0], 0, tensor.dims[0])[:, None]
    high = np.clip(places[0] + tensor.box[0], 0, tensor.dims[0])[:, None]
    at += low * size
    if not known:  # it must lie in the buffer made for it
        at %= SPAN // 2
    lengths = np.where(inside, (high - low) * size, 0)
    before = np.broadcast_to((low - places[0][:, None]) * size, at.shape)
    return Lines(tensor.address + at, lengths, np.where(inside, before, 0))


def swizzled(address: Integers, span: int) -> Integers:
    """Bits 4 to 6 of addresses in shared memory XORed with those from 7 on, as many as lines of
    ``span`` bytes need (PTX ISA 9.0, Swizzling Modes)."""
    if span <= 16:
        return address
    result: Integers = address ^ ((address >> 7 & (span // 16 - 1)) << 4)
    return result
