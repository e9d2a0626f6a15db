"""What was counted of a launch: one result, whether it was executed or worked out.

Totals of the whole launch. Arrays are ``float64[instructions]`` by position in a function.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wattcast.features.launch import Dim3
from wattcast.features.reuse import Stream

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
    memory.

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
