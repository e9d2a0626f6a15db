"""What passes the caches: sectors at L2 and DRAM from reuse distances and from what blocks share.

A cache is used by some blocks at a time: L1 by those resident on its SM, L2 by all resident ones.
Blocks of a wave run in step, so together they touch, in a window of time, the distinct lines of
one block in that window times what blocks do not share; the longest window that fits into the
cache is its reach. What is used again within the reach hits, everything else misses (a cache
that replaces what was used longest ago; Denning, The Working Set Model for Program Behavior,
CACM 1968). All quantities are 32-byte sectors of the whole launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf

from wattcast.features.counts import Patch, ReuseCurve, Stream, Traffic, patch
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Dim3, Launch
from wattcast.features.memory import LINE_BYTES, SECTOR_BYTES
from wattcast.features.occupancy import Occupancy

L2_SHARE = 0.75
"""Share of L2 that holds what a launch uses again as a perfect cache would (the prototype's
threshold, docs/activity.md)."""

L2_LEAVES: Mapping[str, tuple[float, float]] = {"8.0": (0.6, 1.25), "9.0": (0.6, 1.25)}
"""Footprints in sizes of L2 from which data begin to leave before the next launch comes back to
them, and beyond which all have left; else ``ONE_PARTITION``. Ernst, gpu-benches: loads that miss
L2 of a V100 at 1.03, 1.14, 1.25 and 1.38 of its size are .23, .65, .85 and .92 (cuda-latency), of
an L40 at .93, 1.02, 1.12 and 1.23 none, .2, .78 and .96 (gpu-l2-cache). A100 and H100 keep two
copies of what both halves of the GPU read: .47 at .75, .62 at .9, .76 at .99 of an A100, .35 at
.79, .58 at .94, .89 at 1.13 of an H100 (gpu-l2-cache); one SM alone has all of it."""
ONE_PARTITION = (0.9, 1.28)

DIRTY_SHARES = ((8, 0.14), (0, 0.5))
"""Share of L2 whose stored data are still there when a launch ends, and not yet in DRAM, from a
major compute capability on. Ten of the kernels of ``python -m studies volta`` wrote 3.00 MB less
than they stored, half of the 6 MB; Turing, not measured, is told as Volta. Launches that store 1.3
to 400 MB on an RTX 3080 wrote .4 to 1 MB less than they stored, of its 5 MB (DRAM bytes of
``time/rtx_3080_launches.csv`` beyond what is read: s3d, hungarian, babelstream)."""

DIRTY_REACH = 2.5
"""Sizes of L2 that pass to and from DRAM until what was stored is written there at the latest.
Beside 67 MB read a kernel of them leaves 8,001 of 34,960 sectors (histogram_k1; kmeans_k1, beside
394 MB, 9,928 of 102,400: 6)."""

GLOBAL_L1_SINCE = (5, 0)
"""Global loads can be cached in L1 from compute capability 5.0 on; on 3.x L1 serves local memory
(CUDA C++ Programming Guide, compute capabilities 3.x and 5.x)."""
READ_ONLY_L1 = ("5.", "6.1", "6.2")
"""Capabilities whose L1 holds what is read by ``ld.global.nc`` and no other global loads, unless a
program is compiled with -dlcm=ca (NVIDIA, Maxwell and Pascal Tuning Guides, Unified L1/Texture
Cache: GP100 caches global loads by default, GP104 follows Maxwell)."""

_AMPERE_KB = (0, 8, 16, 32, 64, 100, 132, 164)
_HOPPER_KB = (*_AMPERE_KB, 196, 228)
SHARED_CARVEOUTS_KB = {
    "7.0": (0, 8, 16, 32, 64, 96), "7.5": (32, 64),
    "8.0": _AMPERE_KB, "8.6": _AMPERE_KB[:6], "8.7": _AMPERE_KB, "8.9": _AMPERE_KB[:6],
    "9.0": _HOPPER_KB, "10.0": _HOPPER_KB, "11.0": _HOPPER_KB, "12.0": _AMPERE_KB[:6],
    "12.1": _AMPERE_KB[:6],
}  # fmt: skip
"""Sizes that shared memory can have where L1 has the rest of one array: the driver takes the least
that holds the blocks (CUDA C++ Programming Guide, sections Shared Memory of the compute
capabilities; Tuning Guides of the architectures). 11.0 is taken to be as 10.0."""

MOST_HALVINGS = 40
REACH_PRECISION = 1e-3
"""How well the reach of a cache is located, relative."""


@dataclass(frozen=True, slots=True)
class MemoryLevels:
    """Sectors that reach L2 and DRAM, and the launch's footprint in bytes."""

    l2_sectors: float
    dram_read_sectors: float
    dram_write_sectors: float
    footprint_bytes: float


def memory_levels(
    traffic: Traffic, gpu: GpuProfile, launch: Launch, resident: Occupancy, shared_bytes: int,
    read_only: float = 0.0,
) -> MemoryLevels:  # fmt: skip
    """Apply the reuse rules; ``shared_bytes`` are those of a block, ``read_only`` the share of the
    sectors loaded by ``ld.global.nc``.

    L1 starts a launch empty; stores write through it and do not stay. What is stored is written to
    DRAM when it is replaced in L2 and not read before. A warm L2 holds what an equal launch left
    there: the more of it the less the footprint exceeds L2. A cold one is empty, and what it holds
    at the end is written later.
    """
    blocks = min(traffic.busy_blocks, launch.blocks)
    grid = traffic.grid or launch.grid
    busy_sms = min(gpu.sm_count, blocks)
    on_sm = min(resident.resident_blocks_per_sm, ceil(blocks / gpu.sm_count))
    first = _Cache(
        [(stream, stream.kept) for stream in traffic.streams],
        capacity_lines=l1_bytes(gpu, on_sm, shared_bytes) / LINE_BYTES,
        resident=on_sm,
        blocks=blocks / busy_sms,
        spacing=gpu.sm_count,
        busy_blocks=blocks,
        grid=grid,
        requests_per_block=traffic.requests_per_block,
    )
    second = _Cache(
        [(stream, stream.all) for stream in traffic.streams],
        capacity_lines=L2_SHARE * gpu.l2_bytes / LINE_BYTES,
        resident=min(blocks, on_sm * busy_sms),
        blocks=blocks,
        spacing=1,
        busy_blocks=blocks,
        grid=grid,
        requests_per_block=traffic.requests_per_block,
    )
    held = read_only if gpu.compute_capability.startswith(READ_ONLY_L1) else 1.0
    at_l2 = reads = writes = 0.0
    for stream in traffic.streams:
        loads = stream.kept_load_sectors
        if first.capacity_lines:
            kept = stream.kept
            missed = first.misses(
                stream, kept, kept.loads_beyond, stream.unique_kept_sectors, loads
            )
            loads += held * (missed - loads)
        loads += stream.direct_load_sectors + stream.atomic_sectors
        stores = stream.store_sectors
        at_l2 += loads + stores
        asked = stream.kept_load_sectors + stream.direct_load_sectors + stream.atomic_sectors
        read = stream.unique_read_sectors
        again = max(0.0, asked - read)
        every = stream.all
        missed = second.misses(stream, every, every.loads_beyond, read, read + again)
        reads += min(missed, loads)
        writes += second.misses(
            stream, every, every.stores_beyond, stream.unique_store_sectors,
            stores + stream.atomic_sectors,
        )  # fmt: skip
    footprint = traffic.footprint_sectors * SECTOR_BYTES
    if launch.l2 == "cold":
        whole = gpu.l2_bytes / SECTOR_BYTES
        lately = DIRTY_REACH * whole * writes / max(reads + writes, 1.0)
        major = int(gpu.compute_capability.split(".")[0])
        share = next(share for since, share in DIRTY_SHARES if major >= since)
        writes = max(0.0, writes - min(share * whole, lately))
    else:
        left = _left(footprint / gpu.l2_bytes, gpu, busy_sms)
        reads, writes = left * reads, left * writes
    return MemoryLevels(at_l2, reads, writes, footprint)


def local_levels(
    loads: float, stores: float, stack_bytes: float, gpu: GpuProfile, launch: Launch,
    resident_blocks: float, shared_bytes: int,
) -> tuple[float, float, float]:  # fmt: skip
    """Of ``loads`` and ``stores``, sectors of local memory, those that reach L2, are read
    from DRAM and written there.

    Each thread comes back to its ``stack_bytes``, and the next block's to those of the last. What
    of the stacks of the threads resident L1 does not hold is loaded from L2, what L2 does not hold
    from DRAM, where it was written when it was replaced. Stores pass L1. On 1,500 configurations
    with counters, spills without loops have the sectors exactly (``python -m studies counters``).
    ``shared_bytes`` are those of a block.
    """
    resident = min(resident_blocks, ceil(launch.blocks / gpu.sm_count))
    on_sm = resident * launch.threads_per_block * stack_bytes
    if not on_sm:
        return 0.0, 0.0, 0.0
    missed = loads * max(0.0, 1.0 - l1_bytes(gpu, resident, shared_bytes) / on_sm)
    beyond = max(0.0, 1.0 - gpu.l2_bytes / (on_sm * min(gpu.sm_count, launch.blocks)))
    return stores + missed, beyond * missed, beyond * stores


def _left(size: float, gpu: GpuProfile, busy_sms: float) -> float:
    """The share of a footprint of so many sizes of L2 that an equal launch before did not leave
    there."""
    whole = ONE_PARTITION if busy_sms <= 1 else L2_LEAVES.get(gpu.compute_capability, ONE_PARTITION)
    past = min(1.0, max(0.0, (size - whole[0]) / (whole[1] - whole[0])))
    return past * past * (3.0 - 2.0 * past)


def l1_bytes(gpu: GpuProfile, blocks: float, shared_bytes: int) -> float:
    """What global loads have of L1 where so many blocks run, each with ``shared_bytes``."""
    capability = gpu.compute_capability
    if tuple(int(part) for part in capability.split(".")) < GLOBAL_L1_SINCE:
        return 0.0
    facts = gpu.capability
    sizes = SHARED_CARVEOUTS_KB.get(capability)
    if sizes is None:
        return facts.l1_bytes_per_sm
    used = blocks * (shared_bytes + facts.reserved_shared_bytes_per_block)
    carved = next((size for size in sizes if size * 1024 >= used), sizes[-1])
    return max(0.0, facts.l1_bytes_per_sm - carved * 1024)


EVERY_BLOCK = 0.99
"""Share of a block's lines that all blocks that were run touch above which every block does. Where
1,024 threads gather from 32,000 lines at random few blocks share .39 by chance (``spmv_scalar`` of
tests/app/test_advice_holds.py)."""


class _Cache:
    """A cache, empty at first, that ``blocks`` of ``busy_blocks`` use in turn, ``resident`` of them
    at a time.

    ``reach`` is the longest window that fits, in lifetimes of a block; above 1 it holds what
    earlier blocks touched, infinite if it holds all that the launch touches.
    """

    def __init__(
        self, users: Sequence[tuple[Stream, ReuseCurve]], *, capacity_lines: float, resident: float,
        blocks: float, busy_blocks: float, spacing: int, grid: Dim3, requests_per_block: float,
    ) -> None:  # fmt: skip
        self.users = [(stream, curve.windows, curve.lines) for stream, curve in users]
        self.capacity_lines = capacity_lines
        self.blocks = blocks
        self.resident = min(resident, blocks)
        self.spacing, self.grid, self.busy_blocks = spacing, grid, busy_blocks
        self.lifetime = max(1.0, requests_per_block)
        self.reach = self._reach()

    def _patch(self, blocks: float) -> Patch:
        return patch(blocks, self.spacing, self.grid)

    def _lines(self, lifetimes: float) -> float:
        """Distinct lines that all users touch in a window."""
        among = self._patch(self.resident * max(1.0, lifetimes))
        window = min(lifetimes, 1.0) * self.lifetime
        return sum(
            min(
                stream.distinct_lines,
                stream.line_sharing.union(among, _between(window, windows, lines)),
            )
            for stream, windows, lines in self.users
        )

    def _reach(self) -> float:
        low, high = 0.0, self.blocks / self.resident
        if self._lines(high) <= self.capacity_lines:
            return inf
        if self._lines(1.0) <= self.capacity_lines:
            low = 1.0
        else:
            high = 1.0
        for _ in range(MOST_HALVINGS):
            middle = (low + high) / 2
            if self._lines(middle) <= self.capacity_lines:
                low = middle
            else:
                high = middle
            if high - low <= REACH_PRECISION * low:
                break
        return low

    def misses(
        self,
        stream: Stream,
        curve: ReuseCurve,
        beyond: Sequence[float],
        once: float,
        touched: float,
    ) -> float:
        """Of ``touched`` sectors, ``once`` of them new to their block, those that miss.

        ``beyond`` is the share of the others that lies outside each window of the curve.
        """
        missed = once * self._new(stream, curve, once) if once else 0.0
        if self.reach < 1.0:
            window = self.reach * self.lifetime
            again = _between(window, curve.windows, beyond)
            missed += max(0.0, touched - once) * again * self._in_step(stream, curve)
        return missed

    def _new(self, stream: Stream, curve: ReuseCurve, once: float) -> float:
        """The share of the sectors new to their block that no other block left in the cache."""
        if self.reach < 1.0:
            return self._in_step(stream, curve)
        held = min(self.blocks, self.resident * self.reach)
        steady = self._steady(stream, curve, held)
        each = once / self.busy_blocks
        filled = stream.sharing.union(self._patch(held), each) / each
        return (filled + (self.blocks - held) * steady) / self.blocks

    def _steady(self, stream: Stream, curve: ReuseCurve, held: float) -> float:
        """The same once the cache is full and remembers the last ``held`` blocks."""
        if held >= self.blocks:
            return 0.0
        sharing = stream.sharing
        # What one wave adds to the blocks remembered, half of it before and half behind them.
        before = min(held - self.resident / 2, self.blocks - self.resident)
        if before >= 1.0:
            fresh = sharing.copies(self._patch(before + self.resident))
            fresh = (fresh - sharing.copies(self._patch(before))) / self.resident
        else:
            fresh = sharing.copies(self._patch(self.blocks)) / self.blocks
        fresh *= self._untouched(stream, curve, self._patch(held), self.lifetime)
        return (1.0 - sharing.everyone) * fresh

    def _in_step(self, stream: Stream, curve: ReuseCurve) -> float:
        """The share of its misses that a block of a wave is not spared by the others."""
        sharing, together = stream.sharing, self._patch(self.resident)
        window = self.reach * self.lifetime
        fresh = sharing.copies(together) * self._untouched(stream, curve, together, window)
        return (sharing.everyone + (1.0 - sharing.everyone) * fresh) / self.resident

    def _untouched(self, stream: Stream, curve: ReuseCurve, among: Patch, window: float) -> float:
        """The share of sectors touched at random that several blocks do not keep in a window.

        Between two touches of a sector its line is touched ``per_line`` times on average, and
        each time it may be ``gone``. Where every block touches all lines they stay.
        """
        if stream.sharing.population == inf:
            return 1.0
        lines = stream.line_sharing
        if lines.everyone > EVERY_BLOCK:
            return 0.0
        population = min(lines.population, stream.sharing.population)
        touched = _between(window, curve.windows, curve.lines)
        touched *= (1.0 - lines.everyone) * lines.copies(among)
        gone = exp(-touched / population)
        per_line = stream.sharing.population / population
        return gone * per_line / (1.0 + gone * (per_line - 1.0))


def _between(at: float, windows: Sequence[float], values: Sequence[float]) -> float:
    """Linear interpolation, constant beyond the ends (several times faster than numpy's for a
    single number)."""
    after = bisect_right(windows, at)
    if after == 0:
        return values[0]
    if after == len(windows):
        return values[-1]
    low, high = windows[after - 1], windows[after]
    return values[after - 1] + (values[after] - values[after - 1]) * (at - low) / (high - low)
