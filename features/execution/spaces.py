"""The memories that executed threads see: global regions, shared and local arrays.

Generic addresses: global memory is addressed as it is; shared and local memory lie in
windows told by the address bits from ``WINDOW_SHIFT`` on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.values import U8, U32, U64, Array, DType
from wattcast.features.integers import UNSIGNED
from wattcast.features.launch import PointerHint, lane_values, place_in
from wattcast.features.memory import distinct

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


Offsets = npt.NDArray[np.int64]

GLOBAL_SPACES = ("global", "generic", "texture")
"""Spaces of instructions that may be global memory."""
WINDOW_SHIFT = 56
WINDOWS: dict[str, int] = {"shared": 1 << WINDOW_SHIFT, "local": 2 << WINDOW_SHIFT}

GLOBAL_BASE = 0x7F00_0000_0000
"""Address of the first buffer; synthetic buffers follow ``SPAN`` bytes apart."""
SPAN = 1 << 34
SYMBOL_BASE = 0x7E00_0000_0000
"""Address of the first module variable (global and constant memory)."""
PARAMETER_BASE = 0x7D00_0000_0000
"""Address of the kernel's parameters where a kernel takes their address."""
TEXTURE_BASE = 0x7800_0000_0000
"""Address of what the first texture or surface reference is bound to, ``SPAN`` bytes apart."""
CODE_BASE = 0x7C00_0000_0000
"""Address of the first function, for calls through registers; functions lie 256 bytes apart."""

PAGE_SHIFT = 9
PAGE = 1 << PAGE_SHIFT
_TABLE = 1 << 16


class Region(Protocol):
    """A piece of global memory. Offsets are bytes from ``base``, aligned to the dtype."""

    name: str
    base: int
    size: int

    def read(self, offsets: Offsets, dtype: DType, role: str) -> Array:
        """Values at ``offsets``."""

    def write(self, offsets: Offsets, values: Array) -> None:
        """Store ``values``; where offsets repeat the last one wins."""


class _Bytes:
    """Memory in one flat array, read and written as values of any type."""

    def __init__(self, flat: npt.NDArray[np.uint8]) -> None:
        self.flat = flat
        self._views: dict[DType, Array] = {}

    def view(self, dtype: DType) -> Array:
        """The whole memory as values of one type."""
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.flat.view(dtype)
        return found

    def read(self, positions: Offsets, dtype: DType, role: str = "") -> Array:
        """Values at byte positions."""
        size = dtype.itemsize
        return self.view(dtype)[positions if size == 1 else positions >> (size.bit_length() - 1)]

    def write(self, positions: Offsets, values: Array) -> None:
        """Store at byte positions; where they repeat the last one wins."""
        size = values.dtype.itemsize
        index = positions if size == 1 else positions >> (size.bit_length() - 1)
        self.view(values.dtype)[index] = values


class DenseRegion(_Bytes):
    """Known bytes (module variables, parameters)."""

    def __init__(self, name: str, base: int, data: npt.NDArray[np.uint8]) -> None:
        super().__init__(np.zeros(-(-data.size // 16) * 16 + 16, dtype=np.uint8))
        self.flat[: data.size] = data
        self.name = name
        self.base = base
        self.size = data.size


@lru_cache(maxsize=16)
def _random(seed: int) -> npt.NDArray[np.float64]:
    found = np.random.default_rng(seed).random(_TABLE)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=16)
def _numbers(seed: int, low: float, high: float, dtype: DType, whole: bool = True) -> Array:
    """The table of random numbers in [low, high), the same for every launch."""
    values = low + _random(seed) * (high - low)
    if whole:
        values = np.floor(values)
    if dtype.kind != "f":
        values = values.astype(np.int64).astype(UNSIGNED[dtype.itemsize])
    table: Array = values.astype(dtype) if dtype.kind == "f" else values.view(dtype)
    table.flags.writeable = False
    return table


def shuffled(numbers: Offsets, below: int, seed: int) -> Offsets:
    """Each number's place in a fixed shuffle of 0..``below``-1, without a table.

    Steps that can be undone within so many bits (multiplication by odd numbers, shifts folded
    back: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014), gone on with
    where they leave the range.
    """
    bits = max(2, (below - 1).bit_length())
    mask, half = (1 << bits) - 1, bits // 2
    found = numbers % below
    out = np.arange(found.size)
    mixed = found
    while out.size:
        mixed = (mixed * 0x2545F4914F6CDD1D + (2 * seed + 1)) & mask
        mixed = ((mixed ^ (mixed >> half)) * 0x1B873593CC9E2D51) & mask
        mixed = ((mixed ^ (mixed >> half)) * 0x27D4EB2F165667C5) & mask
        mixed ^= mixed >> half
        found[out] = mixed
        out, mixed = out[mixed >= below], mixed[mixed >= below]
    return found


class SyntheticRegion:
    """A buffer nobody gave: pseudo-random contents of address and type, until written.

    ``role`` says how a load's value is used: ``float``, ``int`` or ``index``. Contents follow
    the pointer's hint: uniform in [low, high), zeros, sorted (rising from low to high over the
    elements), index (whole numbers below ``elements``) or near (whole numbers below ``high``, each
    within ``low`` of its own place, which repeats every ``high``: neighbours in a mesh). Without
    bounds of their own, integers are uniform in [0, 256) and indices in [0, elements). More whole
    numbers than the table of random ones holds are shuffled: each comes once, and chains of them
    do not end early.
    """

    def __init__(self, name: str, base: int, hint: PointerHint | None, elements: int,
                 seed: int, page_limit: int = 131072) -> None:  # fmt: skip
        self.name = name
        self.base = base
        self.size = SPAN
        self.hint = hint or PointerHint()
        self.elements = max(1, self.hint.elements or elements)
        self.page_limit = page_limit
        self.dropped = False
        self._seed = seed
        self._pages: npt.NDArray[np.int32] | None = None
        self._pool = np.zeros(PAGE, dtype=np.uint8)
        self._used = 1

    def _bounds(self) -> tuple[float, float]:
        low, high = float(self.hint.low), float(self.hint.high)
        return low, float(self.elements) if self.hint.values == "index" and high <= 1 else high

    def _range(self, role: str) -> tuple[float, float]:
        """Bounds of integers."""
        low, high = self._bounds()
        if (low, high) == (0.0, 1.0):
            high = 256.0 if role != "index" else float(self.elements)
        return low, high

    def _table(self, dtype: DType, role: str) -> Array:
        if dtype.kind != "f":
            return _numbers(self._seed, *self._range(role), dtype)
        return _numbers(self._seed, *self._bounds(), dtype, whole=self.hint.values == "index")

    def generate(self, offsets: Offsets, dtype: DType, role: str) -> Array:
        """The contents nobody has written."""
        size = dtype.itemsize
        if self.hint.values == "zeros":
            return np.zeros(offsets.shape, dtype=dtype)
        element = offsets if size == 1 else offsets >> (size.bit_length() - 1)
        if self.hint.values == "sorted":
            high = self.hint.high
            if dtype.kind != "f" and (self.hint.low, high) == (0.0, 1.0):
                high = float(self.elements)
            position = np.minimum(element / self.elements, 1.0)
            return (self.hint.low + position * (high - self.hint.low)).astype(dtype)
        if self.hint.values == "near":
            count = int(self.hint.high) if self.hint.high > 1.0 else self.elements
            apart = self.hint.low * (2.0 * _random(self._seed)[element & (_TABLE - 1)] - 1.0)
            near: Array = np.clip(element % count + np.rint(apart), 0, count - 1)
            return near.astype(np.int64).astype(dtype)
        low, high = self._range(role)
        # More values than the table has, and no more than 64-bit steps can shuffle.
        if dtype.kind != "f" and _TABLE < high - low <= 1 << 62:
            found = shuffled(element.reshape(-1), int(high - low), self._seed) + int(low)
            return found.astype(UNSIGNED[size]).view(dtype).reshape(offsets.shape)
        mixed = (element + (element >> 16) * 7919) & (_TABLE - 1)
        result: Array = self._table(dtype, role)[mixed]
        return result

    def read(self, offsets: Offsets, dtype: DType, role: str) -> Array:
        if self._pages is None:
            return self.generate(offsets, dtype, role)
        slots = self._pages[offsets >> PAGE_SHIFT]
        written = slots != 0
        if not written.any():
            return self.generate(offsets, dtype, role)
        index = (slots.astype(np.int64) << PAGE_SHIFT) | (offsets & (PAGE - 1))
        size = dtype.itemsize
        held: Array = self._pool.view(dtype)[index >> (size.bit_length() - 1)]
        if written.all():
            return held
        return np.where(written, held, self.generate(offsets, dtype, role))

    def write(self, offsets: Offsets, values: Array) -> None:
        dtype = values.dtype
        if self._pages is None:
            self._pages = np.zeros(SPAN >> PAGE_SHIFT, dtype=np.int32)
        numbers = offsets >> PAGE_SHIFT
        slots = self._pages[numbers]
        if not slots.all():
            self._map(distinct(numbers[slots == 0]), dtype)
            slots = self._pages[numbers]
        index = (slots.astype(np.int64) << PAGE_SHIFT) | (offsets & (PAGE - 1))
        # Slot 0 takes the writes for which no page was left; nothing reads it.
        self._pool.view(dtype)[index >> (dtype.itemsize.bit_length() - 1)] = values

    def _map(self, numbers: Offsets, dtype: DType) -> None:
        room = self.page_limit - self._used
        if numbers.size > room:
            self.dropped = True
            numbers = numbers[: max(0, room)]
        if not numbers.size or self._pages is None:
            return
        end = self._used + numbers.size
        if end * PAGE > self._pool.size:
            grown = np.zeros(max(end * PAGE, min(2 * self._pool.size, self.page_limit * PAGE)), U8)
            grown[: self._pool.size] = self._pool
            self._pool = grown
        starts = (numbers << PAGE_SHIFT)[:, None]
        offsets = (starts + np.arange(0, PAGE, dtype.itemsize)).reshape(-1)
        role = "float" if dtype.kind == "f" else "int"
        fresh = self.generate(offsets, dtype, role)
        self._pool[self._used * PAGE : end * PAGE] = fresh.view(U8)
        self._pages[numbers] = np.arange(self._used, end, dtype=np.int32)
        self._used = end


class PrivateMemory(_Bytes):
    """Shared memory (one piece per block slot) or local memory (one piece per thread).

    ``origin`` is the first byte of each thread's piece in one flat array.
    """

    def __init__(self, pieces: int, size: int, owner: Offsets) -> None:
        self.size = -(-max(size, 16) // 16) * 16
        self.origin: Offsets = owner * self.size
        super().__init__(np.zeros(pieces * self.size, dtype=np.uint8))


class GlobalMemory:
    """All regions by address."""

    def __init__(self, regions: list[Any]) -> None:
        self.regions: list[Region] = sorted(regions, key=lambda r: r.base)
        self._bases = np.array([r.base for r in self.regions], dtype=np.int64)
        self._ends = np.array([r.base + r.size for r in self.regions], dtype=np.int64)

    def find(self, address: int) -> Region | None:
        """The region that holds an address."""
        index = int(np.searchsorted(self._bases, address, side="right")) - 1
        if index < 0 or address >= self._ends[index]:
            return None
        return self.regions[index]

    def sort_out(self, addresses: Offsets) -> npt.NDArray[np.intp]:
        """The region's number for each address, -1 where there is none."""
        if not self.regions:
            return np.full(addresses.shape, -1, dtype=np.intp)
        index = np.searchsorted(self._bases, addresses, side="right") - 1
        return np.where((index >= 0) & (addresses < self._ends[index]), index, -1)


# Special registers of the sampled threads (PTX ISA 8.x, chapter 10).


def _squeezed(values: Array, dtype: DType) -> Array:
    narrow = values.astype(dtype)
    return narrow[:1].copy() if (narrow == narrow[0]).all() else narrow


def special_values(machine: Machine, name: str) -> Array | None:
    """One value per thread (one for all where they agree); ``None`` if it is not known."""
    launch = machine.launch
    blocks = np.array(machine.blocks, dtype=np.int64)
    found = lane_values(launch, blocks, name.removeprefix("%"))
    if found is not None:
        return _squeezed(found, U32)
    head, _, axis = name.removeprefix("%").partition(".")
    number = {"x": 0, "y": 1, "z": 2}.get(axis, 3)
    block = np.repeat(blocks, machine.per_block)
    place = *place_in(launch.grid, block), np.zeros(1, dtype=np.int64)

    dynamic = machine.shared_bytes - machine.program.shared_bytes
    cluster = machine.program.cluster
    whole = math.prod(cluster)
    sizes, blocks_along = (*cluster, 1), (*launch.grid, 0)
    x, y, z = (at % size for at, size in zip(place, cluster, strict=False))
    words: dict[str, Any] = {
        "smid": block % machine.multiprocessors, "nsmid": machine.multiprocessors,
        "nwarpid": 64, "gridid": 0, "dynamic_smem_size": dynamic,
        "total_smem_size": machine.shared_bytes, "aggr_smem_size": machine.shared_bytes,
        "reserved_smem_offset_begin": 0, "clusterid": place[number] // sizes[number],
        "nclusterid": blocks_along[number] // sizes[number],
        "cluster_ctaid": place[number] % sizes[number],
        "cluster_nctaid": (*cluster, 0)[number], "cluster_nctarank": whole,
        "is_explicit_cluster": whole > 1,
        "cluster_ctarank": x + cluster[0] * (y + cluster[1] * z),
    }  # fmt: skip
    if head in words:
        return _squeezed(np.atleast_1d(words[head]), U32)
    if head in ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
        return np.zeros(1, dtype=U64)
    if head == "envreg1":  # high word of where cooperative launches have their barrier
        return np.array([(GLOBAL_BASE + 64 * SPAN) >> 32], dtype=U32)
    if head.startswith(("envreg", "pm")):
        return np.zeros(1, dtype=U32)
    if head in ("shared_window", "local_window"):
        return np.array([WINDOWS[head.partition("_")[0]]], dtype=U64)
    return None


# Tensor maps: which bytes of global memory a box of a tensor is (PTX ISA 9.0, Tensors).
#
# The 128 bytes of a map are opaque, and a launch seldom tells of them. Then the box is assumed: its
# bytes are those announced at the memory barrier of the copy, its lines 128 bytes long, the widest
# that a swizzle takes, and the lines of the tensor far apart.

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
