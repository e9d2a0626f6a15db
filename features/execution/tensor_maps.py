"""Tensor maps: which bytes of global memory a box of a tensor is (PTX ISA 9.0, Tensors).

The 128 bytes of a map are opaque, and a launch seldom tells of them. Then the box is assumed: its
bytes are those announced at the memory barrier of the copy, its lines 128 bytes long, the widest
that a swizzle takes, and the lines of the tensor far apart.
"""

from __future__ import annotations

import math
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

    ``address`` in bytes; ``strides`` are bytes along every dimension but the first.
    """

    address: int
    element_bytes: int
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def box_bytes(self) -> int:
        """Bytes of a box."""
        return math.prod(self.box) * self.element_bytes


@dataclass(frozen=True)
class Lines:
    """Lines of boxes, one box a row: addresses of their first bytes that lie in the tensor, and how
    many there are (0: none)."""

    starts: Integers
    lengths: Integers


def assumed(address: int, dimensions: int, box_bytes: int, element_bytes: int) -> TensorMap:
    """A map of which only the bytes of a box are known."""
    inner = min(box_bytes, LINE_BYTES)
    box = (inner // element_bytes, -(-box_bytes // inner))[: max(2, dimensions)]
    if dimensions == 1:
        box = (box_bytes // element_bytes,)
    return TensorMap(
        address, element_bytes, PITCHES[dimensions], (*box, *(1,) * (dimensions - len(box)))
    )


def lines(tensor: TensorMap, places: Sequence[Integers]) -> Lines:
    """The lines of the boxes at ``places`` (an array for each dimension, innermost first); what
    lies before the tensor is none of them."""
    size = tensor.element_bytes
    rows = math.prod(tensor.box[1:])
    number = np.arange(rows)
    at = np.zeros((places[0].size, rows), dtype=np.int64)
    inside = np.ones(at.shape, dtype=np.bool_)
    for place, length, pitch in zip(places[1:], tensor.box[1:], tensor.strides, strict=True):
        index = place[:, None] + number % length
        inside &= index >= 0
        at += index * pitch
        number = number // length
    low = np.maximum(places[0], 0)[:, None]
    high = np.maximum(places[0] + tensor.box[0], 0)[:, None]
    at = (at + low * size) % (SPAN // 2)  # it must lie in the buffer made for it
    return Lines(tensor.address + at, np.where(inside, (high - low) * size, 0))
