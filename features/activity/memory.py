"""What passes the caches: sectors at L2 and DRAM from block footprints and their overlap.

The reuse rules are those of a prototype checked against hardware counters of V100 and
GTX 1080 Ti (median error 3 % and 1 % of L2 sectors, 0 % of DRAM bytes; docs/activity.md).
All quantities are 32-byte sectors of the whole launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from features.gpus import GpuProfile
from features.memory import SECTOR_BYTES, Overlap
from features.occupancy import Occupancy

L2_RETENTION = 0.7
"""Share of L2 that keeps data of use against a stream (docs/activity.md, reuse rules)."""

L2_RESIDENT = 0.75
"""A footprint below this share of L2 stays there from one launch to the next (ibid.)."""

GLOBAL_L1_SINCE = (5, 0)
"""Global loads are cached in L1 from compute capability 5.0 on; on 3.x L1 serves local memory
(CUDA C++ Programming Guide, compute capabilities 3.x and 5.x)."""


class Traffic(Protocol):
    """What an analysis knows of global memory (``features.execution.results.MemoryFacts``)."""

    @property
    def load_sectors(self) -> float: ...
    @property
    def store_sectors(self) -> float: ...
    @property
    def unique_load_sectors(self) -> float: ...
    @property
    def unique_store_sectors(self) -> float: ...
    @property
    def load_overlap(self) -> Overlap: ...
    @property
    def store_overlap(self) -> Overlap: ...
    @property
    def footprint_sectors(self) -> float: ...


@dataclass(frozen=True, slots=True)
class MemoryLevels:
    """Sectors that reach L2 and DRAM, and the launch's footprint in bytes."""

    l2_sectors: float
    dram_read_sectors: float
    dram_write_sectors: float
    footprint_bytes: float


def memory_levels(
    traffic: Traffic, gpu: GpuProfile, blocks: int, resident: Occupancy, shared_bytes: int
) -> MemoryLevels:
    """Apply the reuse rules.

    L1: what a block reads again hits as far as the footprints of the blocks resident on an SM
    fit into what shared memory leaves of it. Stores write through. L2: each wave of resident
    blocks brings its footprint, less what neighbouring blocks share; what was read before
    misses by how far the working set exceeds L2. A small footprint never leaves L2.
    """
    per_wave = min(blocks, resident.resident_blocks_per_sm * gpu.sm_count)
    share = per_wave / blocks
    waves = max(1.0, blocks / per_wave)
    again = max(0.0, traffic.load_sectors - traffic.unique_load_sectors)
    loads = traffic.unique_load_sectors + again * (
        1.0 - _l1_hits(traffic, gpu, blocks, resident, shared_bytes)
    )
    l2_sectors = loads + traffic.store_sectors
    footprint = traffic.footprint_sectors
    footprint_bytes = footprint * SECTOR_BYTES
    if footprint_bytes < L2_RESIDENT * gpu.l2_bytes:
        return MemoryLevels(l2_sectors, 0.0, 0.0, footprint_bytes)
    read_wave = min(
        traffic.unique_load_sectors * share * _own(traffic.load_overlap), footprint, loads
    )
    write_wave = min(traffic.unique_store_sectors * share * _own(traffic.store_overlap), footprint)
    working_set = (read_wave + write_wave) * SECTOR_BYTES
    misses = max(0.0, 1.0 - L2_RETENTION * gpu.l2_bytes / working_set) if working_set else 0.0
    cold = min(read_wave * waves, loads)
    return MemoryLevels(
        l2_sectors,
        dram_read_sectors=cold + (loads - cold) * misses,
        dram_write_sectors=min(write_wave * waves, traffic.store_sectors),
        footprint_bytes=footprint_bytes,
    )


def _l1_hits(
    traffic: Traffic, gpu: GpuProfile, blocks: int, resident: Occupancy, shared_bytes: int
) -> float:
    """Share of a block's repeated reads that L1 still holds."""
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    if (major, minor) < GLOBAL_L1_SINCE or not traffic.unique_load_sectors:
        return 0.0
    unified = gpu.capability.l1_bytes_per_sm
    on_sm = min(resident.resident_blocks_per_sm, -(-blocks // gpu.sm_count))
    # From 7.0 on shared memory is carved out of the same array (Volta tuning guide).
    left = unified - on_sm * shared_bytes if major >= 7 else unified
    wanted = on_sm * traffic.unique_load_sectors / blocks * SECTOR_BYTES
    return min(1.0, max(0.0, left) / wanted)


def _own(shared: Overlap) -> float:
    """Share of a block's footprint that neither its left nor its upper neighbour touches."""
    return (1.0 - (shared.x or 0.0)) * (1.0 - (shared.y or 0.0))
