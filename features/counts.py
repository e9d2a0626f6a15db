"""What was counted of a launch: one result, whether it was executed or worked out.

Totals of the whole launch. Arrays are ``float64[instructions]`` by position in a function.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import expm1, gcd
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import Dim3

# How blocks use the same data again: within a block over time, and between blocks.
#
# What an analysis measures of sampled blocks, and what follows for any set of blocks: the distinct
# sectors (or lines) that they touch together. ``features.activity.memory`` makes cache traffic of
# it.


class Patch(NamedTuple):
    """Some blocks of a grid, ``adjacent`` or far apart, in as many ``rows`` (equal y and z) and
    ``columns`` (equal x)."""

    blocks: float
    rows: float
    columns: float
    adjacent: bool


def patch(count: float, spacing: int, grid: Dim3) -> Patch:
    """The first ``count`` blocks of the linear order (x fastest), ``spacing`` apart."""
    width, height = grid[0], grid[1] * grid[2]
    reach = count * spacing / width
    if spacing >= width:
        rows = min(count, float(height))
    else:
        rows = min(max(1.0, reach), count, float(height))
    columns = min(count, width / gcd(width, spacing))
    return Patch(count, rows, max(1.0, columns), spacing == 1)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Shares of a block's footprint in one buffer that other blocks touch too.

    ``everyone``: all blocks touch it; the others are shares of the rest. ``beside``, ``below``:
    with the next block along x, along y. ``row``, ``column``: with far blocks of the same y and z,
    of the same x. ``population``: if finite, blocks touch so many units at random.
    """

    everyone: float = 0.0
    beside: float = 0.0
    below: float = 0.0
    row: float = 0.0
    column: float = 0.0
    population: float = float("inf")

    def copies(self, among: Patch) -> float:
        """By how much the rest of several blocks exceeds that of one, chance apart."""
        if among.adjacent:
            along = among.blocks / among.rows
            wide = 1.0 + max(0.0, along - 1.0) * (1.0 - self.beside)
            return wide * (1.0 + (among.rows - 1.0) * (1.0 - self.below))
        alone = max(0.0, 1.0 - self.row - self.column)
        return self.row * among.rows + self.column * among.columns + alone * among.blocks

    def union(self, among: Patch, each: float) -> float:
        """Distinct units of several blocks, each of which touches ``each`` of them."""
        rest = each * (1.0 - self.everyone) * self.copies(among)
        if self.population != float("inf"):
            rest = -self.population * expm1(-rest / self.population)
        return each * self.everyone + rest


@dataclass(frozen=True, slots=True)
class ReuseCurve:
    """How soon a block comes back to a buffer, by ``windows``: the block's own requests to global
    memory, from 0 up.

    ``lines``: distinct 128-byte lines touched in a window of that length, on average.
    ``loads_beyond``, ``stores_beyond``: of the sectors touched again, the share whose line lay
    untouched for longer.
    """

    windows: tuple[float, ...]
    lines: tuple[float, ...]
    loads_beyond: tuple[float, ...]
    stores_beyond: tuple[float, ...]

    def longer(self, factor: float) -> ReuseCurve:
        """The curve of a block that goes on in the same way for ``factor`` times as long."""
        if factor <= 1.0:
            return self
        return ReuseCurve(
            (*self.windows, self.windows[-1] * factor),
            (*self.lines, self.lines[-1] * factor),
            (*self.loads_beyond, self.loads_beyond[-1]),
            (*self.stores_beyond, self.stores_beyond[-1]),
        )


class Run(NamedTuple):
    """Sectors side by side that a block touches on average, and by how many the next block along x
    and along y moves on; infinite where nothing tells of ends."""

    length: float = float("inf")
    along_x: float = 0.0
    along_y: float = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether neighbours along an axis go on where a block ends, give or take a sector."""
        return any(0.0 < step <= self.length + 1.0 for step in self[1:])

    def of(self, blocks: float, grid: Dim3) -> float:
        """Sectors side by side that so many neighbouring blocks touch."""
        length = self.length
        across = min(blocks, grid[0])
        for step, count in ((self.along_x, across), (self.along_y, blocks / across)):
            if 0.0 < step <= length + 1.0:
                length += step * (count - 1.0)
        return length


NO_RUN = Run()


@dataclass(frozen=True, slots=True)
class Stream:
    """What a launch does to one buffer, in 32-byte sectors of the whole launch.

    ``kept_load_sectors`` may be held by L1; ``direct_load_sectors`` pass it (``.cg``, volatile).
    Atomics pass it too. The ``unique_`` ones are distinct within a block, summed over blocks: of
    loads that L1 may hold, of all loads and atomics, of those not stored to before, of stores
    and atomics. ``distinct_sectors`` and ``distinct_lines``: of the whole launch. ``kept`` follows
    the loads that L1 may hold, ``all`` every access; ``run`` tells what lies side by side.
    """

    name: str
    kept_load_sectors: float
    direct_load_sectors: float
    store_sectors: float
    atomic_sectors: float
    unique_kept_sectors: float
    unique_load_sectors: float
    unique_read_sectors: float
    unique_store_sectors: float
    distinct_sectors: float
    distinct_lines: float
    sharing: Sharing
    line_sharing: Sharing
    kept: ReuseCurve = field(repr=False)
    all: ReuseCurve = field(repr=False)
    run: Run = NO_RUN

    def times(self, factor: float) -> Stream:
        """The stream of blocks that go on in the same way for ``factor`` times as long."""
        sectors = {name: getattr(self, name) * factor for name in _of_length()}
        return replace(self, kept=self.kept.longer(factor), all=self.all.longer(factor), **sectors)


@cache
def _of_length() -> tuple[str, ...]:
    """Fields of a stream that grow with how long its blocks go on."""
    names = (each.name for each in fields(Stream))
    return tuple(name for name in names if name.endswith(("_sectors", "_lines")))


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

KNOWN: Flags = np.ones(1, dtype=np.bool_)
"""One for all instructions: none is in doubt."""


COUNTED = (
    "warp_executions", "active_lanes", "requests", "sectors", "shared_requests",
    "shared_transactions", "constant_transactions", "l1_millicycles",
)  # fmt: skip
"""What every analysis counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Counts of one function's instructions.

    ``warp_executions``: a warp's threads at the same place executing it once.
    ``active_lanes``: lanes whose guard is true, summed over warp executions.
    ``requests``: warp executions with an active lane that reach memory (global, local,
    constant, texture); ``shared_requests`` likewise for shared memory. ``sectors``: distinct
    32-byte sectors of global memory per warp execution, summed. ``shared_transactions``: including
    bank conflicts. ``constant_transactions``: distinct words; of a division, warps of which a lane
    takes the long way. ``l1_millicycles``: thousandths of a cycle that L1 takes for loads of global
    memory, and of the 128-byte lines that stores touch.

    An execution alone knows ``local_sectors`` (of local memory, interleaved by words) and
    ``unique_sectors`` (distinct within a block, summed over blocks). ``counts_known`` tells where
    executions and lanes do not rest on a guess, ``access_known`` where sectors and transactions
    do not.
    """

    function: str
    warp_executions: Floats
    active_lanes: Floats
    requests: Floats
    sectors: Floats
    shared_requests: Floats
    shared_transactions: Floats
    constant_transactions: Floats
    l1_millicycles: Floats
    local_sectors: Floats | None = None
    unique_sectors: Floats | None = None
    counts_known: Flags = field(default_factory=lambda: KNOWN)
    access_known: Flags = field(default_factory=lambda: KNOWN)

    def times(self, factors: Floats) -> Counts:
        """Counts of instructions that run more often, or less."""
        counted = {name: getattr(self, name) for name in (*COUNTED, "local_sectors")}
        known = {name: value * factors for name, value in counted.items() if value is not None}
        return Counts(self.function, **known)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Footprints and reuse of global memory.

    Sectors. ``load_sectors`` and ``store_sectors``: after coalescing (atomics count as both;
    textures and surfaces are in ``streams`` alone). ``streams`` tells buffer by buffer how data are
    used again; their distances are in requests. ``busy_blocks`` of the launch make requests to
    global memory at all (1 if none), on average ``requests_per_block``. What blocks share is told
    by their places in ``grid``. ``footprint_sectors``: distinct ones. ``exact``: every address is a
    sum of multiples, so what is touched again follows from its form.
    """

    load_sectors: float
    store_sectors: float
    footprint_sectors: float
    busy_blocks: float
    requests_per_block: float
    streams: tuple[Stream, ...]
    grid: Dim3 | None = None
    exact: bool = False

    def pieces(self, blocks: float, grid: Dim3) -> float:
        """Pieces of memory, each side by side, for each distinct sector that so many blocks at a
        time read and write."""
        touched = pieces = 0.0
        for stream in self.streams:
            ways = (stream.unique_load_sectors > 0) + (stream.unique_store_sectors > 0)
            touched += ways * stream.distinct_sectors
            run = stream.run.of(blocks, self.grid or grid)
            pieces += ways * stream.distinct_sectors / run
        return pieces / touched if touched else 0.0

    def times(self, loads: float, stores: float, requests: float) -> Traffic:
        """That of blocks that go on for longer, or end sooner.

        Distances of reuse and shares that blocks have in common stay. Which buffer an instruction
        goes to is not followed: loads of all buffers have one factor, stores another.
        """
        loaded, stored = self.load_sectors * loads, self.store_sectors * stores
        total = self.load_sectors + self.store_sectors
        return replace(
            self,
            load_sectors=loaded,
            store_sectors=stored,
            footprint_sectors=self.footprint_sectors * ((loaded + stored) / total if total else 1),
            requests_per_block=self.requests_per_block * requests,
            streams=tuple(
                replace(
                    stream.times(loads),
                    store_sectors=stream.store_sectors * stores,
                    atomic_sectors=stream.atomic_sectors * stores,
                    unique_store_sectors=stream.unique_store_sectors * stores,
                )
                for stream in self.streams
            ),
        )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


@dataclass(frozen=True, slots=True)
class AtomicUse:
    """One atom or red instruction, in global or in shared memory.

    ``requests`` are warp executions, ``operations`` the lanes in them. ``passes`` weights each
    warp execution with the largest number of its lanes at one address: they go one after the
    other. ``hottest_operations`` (lanes) and ``hottest_requests`` (warps) fall on the address of
    global memory that the instruction hits most in the whole launch. ``uniform``: the code tells
    that the lanes of a warp share the address, whatever the data.
    """

    function: str
    position: int
    line: int
    source_line: int | None
    opcode: str
    space: Literal["global", "shared"]
    requests: float
    operations: float
    passes: float | None
    hottest_operations: float | None
    hottest_requests: float | None
    uniform: bool = False

    @property
    def aggregated(self) -> bool:
        """Whether ptxas lets one lane of a warp do the atomics of all: integer sums of which each
        warp, by the code, hits one address (machine code of ptxas 12.9 for sm_75 and sm_80: VOTE
        and POPC, shuffles or REDUX, then RED by one lane)."""
        words = self.opcode.split(".")
        if self.space != "global" or "add" not in words or not {"u32", "s32"} & set(words):
            return False
        return self.uniform and self.passes == self.operations

    def times(self, factor: float) -> AtomicUse:
        """The use of an instruction that runs more often, or less."""
        names = ("requests", "operations", "passes", "hottest_operations", "hottest_requests")
        times: dict[str, Any] = {name: _times(getattr(self, name), factor) for name in names}
        return replace(self, **times)


@dataclass(frozen=True, slots=True)
class Atomics:
    """All atomics of a launch.

    ``hottest_operations`` and ``hottest_requests`` fall on the address of global memory that all
    instructions together hit most; 0 without global atomics. ``line_operations`` fall on its
    128-byte line that they hit most.
    """

    uses: tuple[AtomicUse, ...]
    hottest_operations: float | None
    hottest_requests: float | None
    line_operations: float | None = None

    def times(self, function: str, factors: Floats) -> Atomics:
        """Atomics of a launch whose instructions run more often; the hottest address stays so."""
        uses = tuple(
            use.times(float(factors[use.position])) if use.function == function else use
            for use in self.uses
        )
        before = sum(use.operations for use in self.uses if use.space == "global")
        after = sum(use.operations for use in uses if use.space == "global")
        ratio = after / before if before else 1.0
        tops = self.hottest_operations, self.hottest_requests, self.line_operations
        return Atomics(uses, *(_times(each, ratio) for each in tops))
