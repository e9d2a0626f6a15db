"""Memory instructions, and the reads and writes behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wattcast.features.execution.spaces import WINDOW_SHIFT, WINDOWS, Offsets, PrivateMemory, Region
from wattcast.features.execution.tally import Tally
from wattcast.features.execution.values import Array, DType, Group, Mask
from wattcast.features.memory import distinct

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine

_OFFSET_MASK = (1 << WINDOW_SHIFT) - 1


@dataclass(slots=True, eq=False)
class Site:
    """A static memory instruction. ``number`` is dense over the program's sites.

    ``width`` is the bytes one lane moves in one request, of the wide load that ptxas makes of it
    and its neighbours where it joins them; ``role`` how the loaded value is used.
    """

    number: int
    position: int
    line: int
    opcode: str
    space: str
    width: int
    loads: bool
    stores: bool
    atomic: bool
    role: str


# --- reads and writes --------------------------------------------------------------------------


def _regions(
    machine: Machine, site: Site, tally: Tally, addresses: Offsets, width: int
) -> tuple[Region, Offsets] | None:
    """The one region that holds all addresses, and their offsets."""
    region = tally.region
    if region is None:
        region = machine.memory.find(int(addresses[0]))
        if region is None:
            return None
        tally.region = region
    offsets = addresses - region.base
    if int(offsets.view(np.uint64).max()) <= region.size - width:
        return region, offsets
    tally.region = None
    return None


def read_global(
    site: Site, tally: Tally, addresses: Offsets, group: Group, dtype: DType, count: int,
    *, idle: bool = False,
) -> list[Array]:  # fmt: skip
    """``count`` consecutive values per thread; uniform if the address is. ``idle``: complains of
    addresses all the same; what is there stays unknown, also where a store would write it."""
    machine = group.machine
    size = dtype.itemsize
    active = _aligned(machine, site, addresses, size * count, group)
    compact = active.shape[0] > 1 and not group.everyone
    if compact:
        active = active[group.index]
    found = _regions(machine, site, tally, active, size * count)
    places = [active + size * k for k in range(count)]
    if idle:
        if found is None:
            consequence = "read as 0" if site.loads else "not written"
            for where in places:
                list(_by_region(site, machine, where, size, consequence))
        return [np.zeros(1, dtype=dtype)] * count
    if found is not None:
        region, offsets = found
        values = [region.read(offsets + size * k, dtype, site.role) for k in range(count)]
    else:
        values = [_scattered(site, where, machine, dtype) for where in places]
    return [_expanded(v, group) for v in values] if compact else values


def _expanded(values: Array, group: Group) -> Array:
    full = np.zeros(group.machine.count, dtype=values.dtype)
    full[group.index] = values
    return full


def _by_region(
    site: Site, machine: Machine, addresses: Offsets, size: int, otherwise: str
) -> Iterator[tuple[Region, Mask, Offsets]]:
    """The regions that accesses of ``size`` bytes fall in: which do, and their offsets there.

    Complains of those that fall in none, saying what becomes of them.
    """
    numbers = machine.memory.sort_out(addresses)
    for number in distinct(numbers):
        chosen = numbers == number
        if number < 0:
            machine.complain_address(site, int(addresses[chosen][0]), otherwise)
            continue
        region = machine.memory.regions[number]
        yield region, chosen, np.minimum(addresses[chosen] - region.base, region.size - size)


def _scattered(site: Site, addresses: Offsets, machine: Machine, dtype: DType) -> Array:
    """Reads that fall in several regions, or in none."""
    out = np.zeros(addresses.shape, dtype=dtype)
    parts = _by_region(site, machine, addresses, dtype.itemsize, "read as 0")
    for region, chosen, offsets in parts:
        out[chosen] = region.read(offsets, dtype, site.role)
    return out


def _write_scattered(site: Site, addresses: Offsets, machine: Machine, values: Array) -> None:
    """Writes that fall in several regions, or in none."""
    parts = _by_region(site, machine, addresses, values.dtype.itemsize, "not written")
    for region, chosen, offsets in parts:
        region.write(offsets, values[chosen])


def write_global(
    site: Site, tally: Tally, addresses: Offsets, group: Group, values: list[Array]
) -> None:
    """Store consecutive values of each active thread."""
    machine = group.machine
    size = values[0].dtype.itemsize
    addresses = _aligned(machine, site, addresses, size * len(values), group)
    if addresses.shape[0] == 1:  # the last active thread wins
        last = int(group.index[-1])
        values = [v if v.shape[0] == 1 else v[last : last + 1] for v in values]
    elif not group.everyone:
        index = group.index
        addresses = addresses[index]
        values = [v if v.shape[0] == 1 else v[index] for v in values]
    found = _regions(machine, site, tally, addresses, size * len(values))
    if found is not None:
        region, offsets = found
        for k, value in enumerate(values):
            region.write(offsets + size * k, value)
        return
    for k, value in enumerate(values):
        held = np.broadcast_to(value, addresses.shape)
        _write_scattered(site, addresses + size * k, machine, held)


def _aligned(machine: Machine, site: Site, addresses: Offsets, width: int, group: Group) -> Offsets:
    """Addresses rounded down to the access's natural alignment (a fault on hardware)."""
    if width == 1:
        return addresses
    odd = addresses & (width - 1)
    if not odd.any():
        return addresses
    if addresses.shape[0] == 1 or odd[group.index].any():
        machine.complain(
            "misaligned_address",
            f"{site.opcode} at an address that is no multiple of {width}; rounded down",
            site.line,
        )
    return addresses & ~np.int64(width - 1)


def private_positions(
    site: Site, memory: PrivateMemory, addresses: Offsets, group: Group, width: int
) -> tuple[Offsets, npt.NDArray[np.bool_] | None]:
    """Flat positions in shared or local memory for the active threads (in order).

    The second result marks positions inside the piece; ``None`` if all are.
    """
    machine = group.machine
    origin = memory.origin
    if not group.everyone:
        index = group.index
        origin = origin[index]
        if addresses.shape[0] > 1:
            addresses = addresses[index]
    limit = memory.size - width
    if int(addresses.view(np.uint64).max()) <= limit:
        return origin + addresses, None
    inside = addresses.view(np.uint64) <= limit
    machine.complain_address(site, int(addresses[~inside][0]), f"{site.space} memory")
    return origin + np.where(inside, addresses, 0), np.broadcast_to(inside, origin.shape)


def read_private(
    site: Site, memory: PrivateMemory, addresses: Offsets, group: Group, dtype: DType, count: int,
    *, idle: bool = False,
) -> list[Array]:  # fmt: skip
    """The same from shared or local memory."""
    size = dtype.itemsize
    addresses = _aligned(group.machine, site, addresses, size * count, group)
    positions, inside = private_positions(site, memory, addresses, group, size * count)
    if idle:
        return [np.zeros(1, dtype=dtype)] * count
    values = [memory.read(positions + size * k if k else positions, dtype) for k in range(count)]
    if inside is not None:
        values = [np.where(inside, v, dtype.type(0)) for v in values]
    return values if group.everyone else [_expanded(v, group) for v in values]


def write_private(
    site: Site, memory: PrivateMemory, addresses: Offsets, group: Group, values: list[Array]
) -> None:
    """Store consecutive values of each active thread to shared or local memory."""
    size = values[0].dtype.itemsize
    addresses = _aligned(group.machine, site, addresses, size * len(values), group)
    positions, inside = private_positions(site, memory, addresses, group, size * len(values))
    if not group.everyone:
        values = [v if v.shape[0] == 1 else v[group.index] for v in values]
    for k, value in enumerate(values):
        where = positions + size * k
        if inside is not None:
            where, value = where[inside], np.broadcast_to(value, positions.shape)[inside]
        memory.write(where, value)


def windows(addresses: Offsets) -> npt.NDArray[np.int64]:
    """The window of generic addresses: 0 global, 1 shared, 2 local."""
    return addresses >> WINDOW_SHIFT


def in_window(addresses: Offsets) -> Offsets:
    """The offset of generic addresses within their window."""
    return addresses & _OFFSET_MASK


SHARED_WINDOW = WINDOWS["shared"] >> WINDOW_SHIFT
LOCAL_WINDOW = WINDOWS["local"] >> WINDOW_SHIFT
