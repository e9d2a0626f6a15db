"""What buffers hold before a workload runs: the configuration's data pattern, indices, rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattcast.training.measure.workload import ELEMENT_BYTES, Buffer, Pattern

SEED = 20260701
"""Data are the same on every board."""

_DTYPES = {"u8": "u1", "u32": "<u4", "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8"}


def fillings(
    buffer: Buffer, pattern: Pattern, address: int, seed: int
) -> Sequence[tuple[int, NDArray[Any]]]:
    """Byte offsets and contents of a buffer at a device address; reproducible from the seed."""
    fill = pattern if buffer.fill == "varied" else buffer.fill
    dtype, count = _DTYPES[buffer.element], buffer.elements
    random = np.random.default_rng(seed)
    if fill == "chase":
        assert buffer.stride_bytes is not None
        return [(0, _chase(buffer, address, random))]
    if fill == "zeros":
        return [(0, np.zeros(count, dtype))]
    if fill == "index":
        return [(0, np.arange(count).astype(dtype))]
    # Long buffers repeat a block of 64 MiB: making them takes longer than measuring otherwise.
    block = min(count, (64 << 20) // ELEMENT_BYTES[buffer.element])
    if fill == "random_bits":
        part = random.integers(0, 256, block * ELEMENT_BYTES[buffer.element], np.uint8).view(dtype)
    elif buffer.element in ("u8", "u32", "u64"):
        part = random.integers(int(buffer.low), max(int(buffer.high), int(buffer.low) + 1), block)
        part = part.astype(dtype)
    else:
        part = random.uniform(buffer.low, buffer.high, block).astype(dtype)
    size = part.nbytes
    return [
        (offset, part[: min(block, count - offset // ELEMENT_BYTES[buffer.element])])
        for offset in range(0, count * ELEMENT_BYTES[buffer.element], size)
    ]


def _chase(buffer: Buffer, address: int, random: np.random.Generator) -> NDArray[Any]:
    """A ring through every slot once, in random order: each slot holds the next one's address."""
    assert buffer.stride_bytes is not None
    step = buffer.stride_bytes // 8
    slots = buffer.elements // step
    # The ring starts at the first slot, where kernels enter it.
    order = np.concatenate([[0], 1 + random.permutation(slots - 1)])
    words = np.full(buffer.elements, address, "<u8")
    words[order * step] = address + np.roll(order, -1) * buffer.stride_bytes
    return words
