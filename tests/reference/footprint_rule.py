"""The cache rule of the prototype, which takes a block's whole footprint for its working set.

What it cost and got right stands in docs/activity.md; here it is what the reuse distances of
``wattcast.features.activity.memory`` are measured against.
"""

from __future__ import annotations

from typing import NamedTuple

from wattcast.features.execution import MemoryFacts
from wattcast.features.memory import SECTOR_BYTES, Overlap
from wattcast.features.occupancy import Occupancy

L2_RETENTION = 0.7
L2_RESIDENT = 0.75


class Levels(NamedTuple):
    l2_sectors: float
    dram_read_sectors: float
    dram_write_sectors: float


def footprint_levels(
    memory: MemoryFacts, sm_count: int, l1_bytes: int, l2_bytes: int, blocks: int,
    resident: Occupancy,
) -> Levels:  # fmt: skip
    """Sectors past L1, read from and written to memory; no shared memory is taken from L1."""
    per_wave = min(blocks, resident.resident_blocks_per_sm * sm_count)
    share, waves = per_wave / blocks, max(1.0, blocks / per_wave)
    on_sm = min(resident.resident_blocks_per_sm, -(-blocks // sm_count))
    wanted = on_sm * memory.unique_load_sectors / blocks * SECTOR_BYTES
    hits = min(1.0, l1_bytes / wanted) if wanted else 0.0
    again = max(0.0, memory.load_sectors - memory.unique_load_sectors)
    loads = memory.unique_load_sectors + again * (1.0 - hits)
    l2_sectors = loads + memory.store_sectors
    footprint = memory.footprint_sectors
    if footprint * SECTOR_BYTES < L2_RESIDENT * l2_bytes:
        return Levels(l2_sectors, 0.0, 0.0)
    read_wave = min(
        memory.unique_load_sectors * share * _own(memory.load_overlap), footprint, loads
    )
    write_wave = min(memory.unique_store_sectors * share * _own(memory.store_overlap), footprint)
    working_set = (read_wave + write_wave) * SECTOR_BYTES
    misses = max(0.0, 1.0 - L2_RETENTION * l2_bytes / working_set) if working_set else 0.0
    cold = min(read_wave * waves, loads)
    return Levels(
        l2_sectors,
        cold + (loads - cold) * misses,
        min(write_wave * waves, memory.store_sectors),
    )


def _own(shared: Overlap) -> float:
    return (1.0 - (shared.x or 0.0)) * (1.0 - (shared.y or 0.0))
