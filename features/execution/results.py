"""What executing a kernel tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.execution.sampling import SamplingPlan
from wattcast.features.launch import Dim3
from wattcast.features.memory import Overlap
from wattcast.features.reuse import Stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class InstructionCounts:
    """Counts of one function's instructions for the whole launch, indexed by position.

    ``warp_executions``: a warp's threads at the same place executing it once.
    ``active_lanes``: lanes whose guard is true, summed over warp executions.
    ``requests``: warp executions with an active lane that reach memory (global, local,
    constant, texture); ``shared_requests`` likewise for shared memory. ``sectors``: distinct
    32-byte sectors of global memory per warp execution, summed; ``local_sectors`` the same for
    local memory (interleaved by words). ``shared_transactions``: including bank
    conflicts. ``constant_transactions``: distinct words; of a division, warps of which a lane
    takes the long way. ``l1_millicycles``: thousandths of a cycle that L1 takes for loads of global
    memory. ``unique_sectors``: distinct sectors of one block, summed over blocks.
    """

    function: str
    warp_executions: Floats
    active_lanes: Floats
    requests: Floats
    sectors: Floats
    local_sectors: Floats
    shared_requests: Floats
    shared_transactions: Floats
    constant_transactions: Floats
    l1_millicycles: Floats
    unique_sectors: Floats


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often a loop's header was executed per entry, over the sampled threads.

    ``back_edges`` counts coming round again (``mean`` less one per entry). ``entries`` are
    thread entries of the whole launch. ``extrapolated``: iterations were skipped because
    they repeat, or cut off where the budget ended. ``rough``: what they touched of memory is a
    guess, as accesses do not move by whole sectors, or not evenly.
    """

    function: str
    loop: int
    label: str | None
    line: int
    mean: float
    lowest: int
    highest: int
    entries: float
    extrapolated: bool
    rough: bool


@dataclass(frozen=True, slots=True)
class BufferFootprint:
    """Distinct sectors touched in one buffer (a parameter or a module variable).

    ``load_sectors`` and ``store_sectors`` are means over blocks of distinct sectors per block
    (weighted to the launch); ``low`` and ``high`` bound the byte offsets touched by the
    sampled blocks; ``distinct_sectors`` estimates the whole launch's: block footprints less
    what blocks share, at most what lies between the bounds.
    """

    name: str
    base: int
    load_sectors: float
    store_sectors: float
    low: int
    high: int
    distinct_sectors: float


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Footprints and reuse of global memory.

    Sectors. ``load_sectors``/``store_sectors``: after coalescing, launch totals (atomics count
    as both). ``unique_load_sectors``/``unique_store_sectors``: distinct within a block, summed
    over blocks, so ``load_sectors - unique_load_sectors`` are re-references inside blocks.
    Overlaps are shares of one block's footprint that its neighbour touches too.
    ``footprint_sectors`` estimates the distinct sectors of the whole launch. ``streams`` tells
    buffer by buffer how data are used again; their distances are in requests. ``busy_blocks`` of
    the launch make requests to global memory at all (1 if none), on average ``requests_per_block``.
    What blocks share is told by their places in ``grid`` (``SamplingPlan.grid``).
    """

    load_sectors: float
    store_sectors: float
    unique_load_sectors: float
    unique_store_sectors: float
    load_overlap: Overlap
    store_overlap: Overlap
    footprint_sectors: float
    busy_blocks: float
    requests_per_block: float
    buffers: tuple[BufferFootprint, ...]
    streams: tuple[Stream, ...]
    grid: Dim3


@dataclass(frozen=True, slots=True)
class AtomicCounts:
    """What an atom or red instruction does in global or in shared memory; launch totals.

    ``requests`` are warp executions, ``operations`` the lanes in them; ``passes`` sums the largest
    number of lanes at one address over warp executions. ``hottest_operations`` and
    ``hottest_requests`` fall on the address hit most often (``None`` in shared memory).
    """

    function: str
    position: int
    line: int
    opcode: str
    space: Literal["global", "shared"]
    requests: float
    operations: float
    passes: float
    hottest_operations: float | None
    hottest_requests: float | None


@dataclass(frozen=True, slots=True)
class AtomicFacts:
    """Atomics of a launch, and the address of global memory that all of them together hit most
    (0 without atomics)."""

    sites: tuple[AtomicCounts, ...]
    hottest_operations: float
    hottest_requests: float


@dataclass(frozen=True, slots=True)
class SamplingInfo:
    """What was run. ``relative_standard_error`` is that of the launch's warp executions.

    ``completed`` tells that every sampled block ran to its end. ``effort`` is the work it took, in
    instructions times lanes (``features.effort.Effort``). ``uneven``: blocks do more or less by
    their place, and those that were run stand for others there.
    """

    plan: SamplingPlan
    launch_blocks: int
    relative_standard_error: float
    uneven: bool
    completed: bool
    steps: int
    effort: int


@dataclass(frozen=True)
class ExecutionResult:
    """The executed analysis of one launch. ``functions`` is keyed by function name."""

    functions: Mapping[str, InstructionCounts]
    loops: tuple[LoopTrips, ...]
    memory: MemoryFacts
    atomics: AtomicFacts
    sampling: SamplingInfo
    diagnostics: tuple[Diagnostic, ...]
    shared_bytes: int
    contents: Mapping[int, npt.NDArray[np.uint8]]
    """Exact mode: the buffers' bytes afterwards, by base address; empty otherwise."""
    lower_bounds: bool = False
    """Cut short outside any loop whose counts could be scaled: what lies behind is missing."""
    carried_out: Mapping[str, Floats] = field(default_factory=dict)
    """By function: executions of each instruction by warps that were really carried out."""

    @property
    def warp_executions(self) -> float:
        """Executed warp instructions of the launch."""
        return sum(float(f.warp_executions.sum()) for f in self.functions.values())

    @property
    def active_lanes(self) -> float:
        """Executed thread instructions (guards true) of the launch."""
        return sum(float(f.active_lanes.sum()) for f in self.functions.values())
