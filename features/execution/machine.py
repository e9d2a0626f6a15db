"""Runs the threads of several blocks together.

Threads are numbered slot by slot (a slot is one sampled block), each block padded to whole
warps. Groups of threads wait in ``pending`` by key: the instruction number less the call
depth times ``FRAME_STEP``. The smallest key runs first, over all warps at once; since warps
are independent this is, for each warp, the rule *deepest frame, then lowest instruction*.
Threads only ever rest at the start of a run, where groups that meet become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from wattcast.features.errors import Diagnostic, Effort, checkpoint
from wattcast.features.execution import control, spaces
from wattcast.features.execution.access import Site
from wattcast.features.execution.barriers import Barriers
from wattcast.features.execution.context import FRAME_STEP, PARAMETERS, Frame, Gather, LoopEdge
from wattcast.features.execution.paths import Step
from wattcast.features.execution.program import Program
from wattcast.features.execution.spaces import TensorMap, special_values
from wattcast.features.execution.steady import Override, Steady, Trips
from wattcast.features.execution.tally import COUNTED, Tally, Trace
from wattcast.features.execution.values import (
    BOOL,
    U32,
    Array,
    Counts,
    CutShortError,
    Group,
    Mask,
    as_type,
    spread,
)
from wattcast.features.execution.warp import ballot
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.memory import MOST_KEYS, distinct

MANY_SITES = 1000
LEAST_KEYS = 200
"""Memory instructions of a kernel beyond which their footprints share a fourth of the room of one,
and what each has at least: random accesses of thousands would take gigabytes."""
MOST_FRAMES = 64
"""Call depth at which recursion is cut (hardware gives out of its 1 KB default stack first)."""
MOST_DIAGNOSTICS = 200
MOST_PATH = 2048
"""Runs remembered to find repeated ways round a loop."""
SPIN_LIMIT = 1000
"""Runs in a row without any other group getting its turn before the others are let in."""


class Machine:
    """The state of all threads of the sampled blocks; ``run`` executes them.

    ``blocks`` are linear block numbers (x fastest), ``traced`` the slots whose accesses are noted
    one by one; ``overrides`` decide branches. What is done is counted in ``effort``, up to its
    limit; ``skipped`` are executions in ``run_stats`` that were worked out from others.
    """

    def __init__(
        self,
        program: Program,
        launch: Launch,
        blocks: tuple[int, ...],
        memory: spaces.GlobalMemory,
        parameters: bytes,
        *,
        dynamic_shared_bytes: int,
        effort: Effort,
        step_limit: int,
        multiprocessors: int = 80,
        extrapolate: bool = True,
        traced: Sequence[int] = (),
        overrides: Mapping[int, Override] = MappingProxyType({}),
    ) -> None:
        self.program = program
        self.launch = launch
        self.blocks = blocks
        self.memory = memory
        self.effort = effort
        self.overrides = overrides
        self.step_limit = step_limit
        self.multiprocessors = multiprocessors
        self.most_frames = MOST_FRAMES
        self.slots = len(blocks)
        self.per_block = launch.warps_per_block * WARP_SIZE
        self.count = self.slots * self.per_block
        in_block = np.arange(self.count) % self.per_block < launch.threads_per_block
        self.live: Mask = in_block
        self.live_count = int(np.count_nonzero(in_block))
        self.owners: npt.NDArray[np.int64] = np.repeat(
            np.arange(self.slots, dtype=np.int64), launch.warps_per_block
        )
        self.shared_bytes = program.shared_bytes + dynamic_shared_bytes
        self.shared = spaces.PrivateMemory(
            self.slots,
            self.shared_bytes,
            np.repeat(np.arange(self.slots, dtype=np.int64), self.per_block),
        )
        self._local: spaces.PrivateMemory | None = None
        self._parameters = np.frombuffer(parameters.ljust(-(-len(parameters) // 8) * 8 + 8, b"\0"),
                                         dtype=np.uint8)  # fmt: skip
        self.run_stats = np.zeros((len(program.runs), 2, self.slots), dtype=np.int64)
        self.skipped = np.zeros((len(program.runs), self.slots), dtype=np.int64)
        self.guarded = np.zeros((max(1, len(program.guarded)), self.slots), dtype=np.int64)
        self.counted = np.zeros((len(program.sites), len(COUNTED), self.slots), dtype=np.int64)
        # Shared and local accesses list no sectors.
        sites = sum(site.space in spaces.GLOBAL_SPACES for site in program.sites)
        most = MOST_KEYS if sites <= MANY_SITES else max(LEAST_KEYS, MOST_KEYS // 4 // sites)
        self.tallies = [
            Tally(
                self.counted[site.number],
                site.number,
                atomic=site.atomic,
                most_keys=most,
                repeats=bool(program.loops),
            )
            for site in program.sites
        ]
        self.trace = Trace(self.slots, traced) if traced else None
        self.trips = Trips(self, len(program.loops))
        self.diagnostics: dict[tuple[str, int | None], Diagnostic] = {}
        self.steps = 0
        self.finished = False
        self.pending: dict[int, Group] = {}
        self.barriers = Barriers(self)
        self.announced: dict[int, int] = {}  # bytes last told at each memory barrier
        self.assumed_maps: set[TensorMap] = set()
        self.gathering: dict[int, Group] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._returns: dict[int, Array] = {}
        self._everyone: Group | None = None
        self.steady = Steady(self) if extrapolate else None
        self.path: list[Step] = []
        self._marks: dict[int, int] = {}
        self._moving: Group | None = None
        self._frame: Frame = []
        self._run = program.runs[self._entry()]

    # --- what handlers ask ---

    @property
    def local(self) -> spaces.PrivateMemory:
        """Local memory of all threads, made when first touched."""
        if self._local is None:
            size = self.program.local_bytes * (self.most_frames if self._recursive else 1)
            limit = max(self.program.local_bytes, 256 * 1024 * 1024 // max(1, self.count))
            self._local = spaces.PrivateMemory(
                self.count, min(size, limit), np.arange(self.count, dtype=np.int64)
            )
        return self._local

    @property
    def _recursive(self) -> bool:
        return len(self.program.functions) > 1

    def clock(self) -> int:
        """Cycles so far: four per run executed (monotone, not a timing)."""
        return self.steps * 4

    def complain(self, code: str, detail: str, line: int | None = None) -> None:
        """Report once per code and place."""
        key = (code, line)
        if key not in self.diagnostics and len(self.diagnostics) < MOST_DIAGNOSTICS:
            self.diagnostics[key] = Diagnostic(code, detail, line)

    def complain_address(self, site: Site, address: int, consequence: str) -> None:
        """Report an address outside every buffer."""
        self.complain(
            "address_out_of_range",
            f"{site.opcode} at address 0x{address & 0xFFFFFFFFFFFFFFFF:x} lies outside "
            f"what it may touch ({consequence})",
            site.line,
        )

    def per_slot(self, per_row: Counts, owners: npt.NDArray[np.int64]) -> Counts:
        """Sum counts of warps by block slot."""
        if per_row.size == self.owners.size:
            result: Counts = per_row.reshape(self.slots, -1).sum(axis=1)
            return result
        out = np.zeros(self.slots, dtype=np.int64)
        np.add.at(out, owners, per_row)
        return out

    # --- frames and calls ---

    def key(self, position: int, depth: int) -> int:
        """Where threads are, ordered as they run."""
        return position - depth * FRAME_STEP

    def depth_of(self, shift: int) -> int:
        """The call depth of a key shift."""
        return shift // FRAME_STEP

    def frame(self, depth: int, function: int) -> Frame:
        """The registers of a function at a call depth."""
        found = self._frames.get((depth, function))
        if found is None:
            slots = self.program.functions[function].slots
            found = list(slots.initial)
            found[PARAMETERS] = {}
            for name, slot in slots.specials.items():
                found[slot] = self._special(name)
            for symbol in slots.locals:
                address = symbol.offset + depth * self.program.local_bytes
                found[symbol.slot] = np.array([address], dtype=np.uint64)
            self._frames[(depth, function)] = found
        return found

    def _special(self, name: str) -> Array:
        if name.startswith("!parameter."):
            _, offset, dtype = name.split(".")
            start = int(offset)
            kind = np.dtype(dtype)
            piece = self._parameters[start : start + kind.itemsize]
            if piece.size < kind.itemsize:
                return np.zeros(1, dtype=kind)
            return piece.copy().view(kind)
        if name.startswith("!address."):
            return np.array([spaces.PARAMETER_BASE + int(name.split(".")[1])], dtype=np.uint64)
        values = special_values(self, name)
        if values is None:
            self.complain("unknown_special_register", f"{name} is not known; read as 0")
            return np.zeros(1, dtype=np.uint32)
        return values

    def remember(self, depth: int, site: int, group: Group) -> None:
        """Note to which call site the group returns from a depth."""
        new = np.array([site], dtype=np.int64)
        old = self._returns.get(depth)
        if not group.full and old is not None:
            new = np.where(group.mask, new, old)
        self._returns[depth] = new

    def leave(self, frame: Frame, group: Group, shift: int) -> int | None:
        """ret: back to the caller, or the end of the thread in the kernel itself."""
        depth = self.depth_of(shift)
        if depth == 0:
            self.kill(group)
            return None
        sites = self._returns[depth]
        if sites.shape[0] == 1:
            parts = [(int(sites[0]), group)]
        else:
            parts = []
            for site in distinct(sites[group.index]):
                part = group.narrowed(sites == site, negated=False)
                if part is not None:
                    parts.append((int(site), part))
        callee = self._run.function
        for site, part in parts:
            key = control.give_back(
                self.program, self, site, frame, self.program.functions[callee], part, depth
            )
            self.put(key, part)
        return None

    # --- groups ---

    def resting(self) -> list[tuple[int, Group]]:
        """All groups but the one that is carried out, with their keys."""
        waiting = (place for held in self.barriers.waiting.values() for place in held.groups)
        return [*self.pending.items(), *self.gathering.items(), *waiting]

    def inside(self, key: int) -> set[int]:
        """Loops that threads are in, or in a function called from them; and those around a key."""
        at = [key, *(other for other, _ in self.resting())]
        runs = [self._run, *(self.program.runs[other % FRAME_STEP] for other in at)]
        places = {(run.function, run.start) for run in runs}
        for sites in self._returns.values():
            calls = (self.program.call_sites[site] for site in distinct(sites))
            places |= {(call.caller, call.after - 1) for call in calls}
        found = set()
        for function, position in places:
            linked = self.program.functions[function]
            loops = linked.around(position - linked.base)
            found |= {linked.first_loop + loop.index for loop in loops}
        return found

    def everyone(self) -> Group:
        """All living threads, always the same object until one exits."""
        group = self._everyone
        if group is None or group.count != self.live_count:
            group = self._everyone = Group(self, self.live, self.live_count)
        return group

    def put(self, key: int, group: Group) -> None:
        """Let a group rest at a key; groups at the same key become one."""
        held = self.pending.get(key)
        if held is None:
            self.pending[key] = group
            return
        count = held.count + group.count
        if count == self.live_count:
            self.pending[key] = self.everyone()
        else:
            self.pending[key] = Group(self, held.mask | group.mask, count)

    def kill(self, group: Group) -> None:
        """The threads exit."""
        self.live = self.live & ~group.mask
        self.live_count -= group.count
        if self.gathering:  # who waited for these threads may be complete now
            self._regather()

    def _regather(self) -> None:
        for key, group in list(self.gathering.items()):
            del self.gathering[key]
            self.put(key, group)

    def move(self, key: int, group: Group, edge: LoopEdge | None) -> int:
        """Go along an edge, counting loop trips; the key where the group goes on."""
        if edge is None:
            return key
        self.trips.along(edge, group, self._frame, key)
        if self.steady is None or group is not self._moving:
            return key
        start = self._marks.get(edge.loop)
        self._marks[edge.loop] = len(self.path)
        if edge.entering or start is None:
            self.steady.entered(edge)
        else:
            self.steady.round(edge, group, self._frame, key, self.path[start:])
        return key

    def extend_path(self, loop: int, steps: list[Step], times: int) -> None:
        """Whole iterations of a loop were skipped, all threads alike: as if they had been run."""
        if len(self.path) + times * len(steps) > MOST_PATH:
            self.forget_path()
            return
        self.path += times * steps
        self._marks[loop] = len(self.path)

    def forget_path(self) -> None:
        """Iterations were skipped: what was recorded is no whole path of any outer loop."""
        self.path = []
        self._marks = {}

    def _unblock(self) -> bool:
        """Nothing can run: open barriers, or end a deadlock."""
        if self.barriers.waiting and self.barriers.release(force=not self.gathering):
            return True
        if not self.gathering:
            return False
        self.complain(
            "collective_divergence",
            "lanes wait for others of their warp that never come; they were let go on",
        )
        self.forced = True
        self._regather()
        return True

    forced = False

    # --- collectives ---

    def _gather(self, gather: Gather, frame: Frame, group: Group, key: int) -> Group | None:
        """Those of the group (and of who waits here) whose warps are complete; others wait."""
        held = self.gathering.pop(key, None)
        if held is None and group.whole_warps:
            self.forced = False
            return group
        if held is not None:
            group = Group(self, held.mask | group.mask, held.count + group.count)
        lanes = group.mask
        if gather.mask is None:
            wanted = np.full(self.count, 0xFFFFFFFF, dtype=np.uint32)
        else:
            wanted = spread(as_type(frame[gather.mask], U32), self.count)
        chosen = lanes
        if gather.guard is not None:
            guard = as_type(frame[gather.guard], BOOL)
            chosen = lanes & (~guard if gather.negated else guard)
        named = np.where(chosen, wanted, np.uint32(0)).reshape(-1, WARP_SIZE)
        arrived = ballot(lanes.reshape(-1, WARP_SIZE))
        alive = ballot(self.live.reshape(-1, WARP_SIZE))
        missing = np.bitwise_or.reduce(named, axis=1) & alive & ~arrived
        if self.forced or not missing.any():
            self.forced = False
            return group
        ready, rest = group.split(np.repeat(missing == 0, WARP_SIZE), negated=False)
        if rest is not None:
            self.gathering[key] = rest
        return ready

    def release(self) -> None:
        """Let go of everything; nothing can be asked of the machine afterwards.

        It and its groups hold each other, megabytes of them, and would wait for the collector of
        cycles, which runs seldom in a service.
        """
        vars(self).clear()

    # --- running ---

    def run(self) -> None:
        """Execute until every thread has exited.

        Raises CutShortError where the budget ends, GivenUpError where the request is given up.
        """
        self.put(self.key(self._entry(), 0), self.everyone())
        with np.errstate(all="ignore"):
            while self.pending or self._unblock():
                key = min(self.pending)
                if self.steps - self._progress > SPIN_LIMIT and len(self.pending) > 1:
                    self._go(*self._another(key))
                else:
                    self._go(key, self.pending.pop(key))
        self.finished = True

    _progress = 0

    def _another(self, key: int) -> tuple[int, Group]:
        """Let other warps run past those that spin (waiting for them, maybe).

        Takes from ``pending`` the next warps that have no threads at a smaller key: within a
        warp the order holds.
        """
        self._progress = self.steps
        before = np.zeros(self.count // WARP_SIZE, dtype=np.bool_)
        for other in sorted(self.pending):
            group = self.pending[other]
            rows = group.mask.reshape(-1, WARP_SIZE).any(axis=1)
            part = None
            if other != key:
                part, rest = group.split(np.repeat(~before, WARP_SIZE), negated=False)
            if part is not None:
                del self.pending[other]
                if rest is not None:
                    self.pending[other] = rest
                return other, part
            before |= rows
        return key, self.pending.pop(key)

    def _entry(self) -> int:
        return self.program.by_name[self.program.kernel.name].base

    def _go(self, key: int, group: Group) -> None:
        """Follow one group for as long as it may run: until it splits, waits or meets another."""
        runs = self.program.runs
        stats = self.run_stats
        effort = self.effort
        depth = -(key // FRAME_STEP)
        shift = depth * FRAME_STEP
        position = key + shift
        run = runs[position]
        frame = self.frame(depth, run.function)
        limit = min(self.pending) if self.pending else None
        pending = len(self.pending)
        self._frame = frame
        while True:
            self.steps += 1
            checkpoint()
            effort.spent += run.issue_units + run.lane_units * group.count
            if effort.spent > effort.limit:
                self.put(key, group)
                raise CutShortError("effort")
            if self.steps > self.step_limit:
                self.put(key, group)
                raise CutShortError("steps")
            group.full = group.count == self.live_count
            if run.gather is not None and (not group.full or key in self.gathering):
                together = self._gather(run.gather, frame, group, key)
                if together is None:
                    return
                group = together
            stats[run.index] += group.stat
            self._run = run
            if len(self.path) > MOST_PATH:
                self.forget_path()
            self.path.append(Step(run, group))
            self._moving = group
            for handler in run.handlers:
                handler(frame, group)
            following = run.finish(self, frame, group, shift)
            if following is None:
                return
            key = following
            if len(self.pending) != pending:
                limit = min(self.pending) if self.pending else None
                pending = len(self.pending)
            if limit is not None and (key >= limit or self.steps - self._progress > SPIN_LIMIT):
                self.put(key, group)
                return
            run = runs[key + shift]
