"""Threads that wait at barriers, and who may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.execution import access
from wattcast.features.execution.context import (
    Context,
    Finish,
    Frame,
    Handler,
    Items,
    LoopEdge,
    UnsupportedError,
    pure,
    store,
)
from wattcast.features.execution.integer import Operation
from wattcast.features.execution.loads import addresses
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import (
    BOOL,
    S64,
    U32,
    U64,
    Array,
    Counts,
    Group,
    Mask,
    as_type,
    spread,
)
from wattcast.features.memory import distinct
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


Deliver = tuple[Callable[[Group, Array], None], Array]
"""What becomes of a vote at a barrier, and one group's flags."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Threads of one barrier: by key, with the number of threads it waits for, if given."""

    groups: list[tuple[int, Group]] = field(default_factory=list)
    wanted: int | None = None
    deliver: list[Deliver] = field(default_factory=list)


class Barriers:
    """The barriers of a machine's blocks by number."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.waiting: dict[int, Waiting] = {}
        self.arrivals: dict[int, Counts] = {}

    def wait(
        self, barrier: int, key: int, group: Group, wanted: int | None,
        deliver: Deliver | None = None,
    ) -> None:  # fmt: skip
        """Threads wait at a barrier; ``release`` lets them go when nothing else can run."""
        held = self.waiting.setdefault(barrier, Waiting())
        held.groups.append((key, group))
        if wanted is not None:
            held.wanted = wanted
        if deliver is not None:
            held.deliver.append(deliver)

    def arrive(self, barrier: int, group: Group) -> None:
        """bar.arrive: counted at the barrier without waiting."""
        self.arrivals[barrier] = self.arrivals.get(barrier, 0) + group.lanes

    def release(self, *, force: bool) -> bool:
        """Open the barriers whose threads have all arrived; then those that never will."""
        machine, opened = self._machine, False
        alive = machine.live.reshape(machine.slots, -1).sum(axis=1)
        for barrier in list(self.waiting):
            held = self.waiting[barrier]
            mask = np.zeros(machine.count, dtype=np.bool_)
            for _, group in held.groups:
                mask |= group.mask
            arrived = mask.reshape(machine.slots, -1).sum(axis=1)
            enough = arrived >= alive
            if held.wanted is not None:
                present = arrived + self.arrivals.get(barrier, 0)
                enough |= (present >= held.wanted) & (arrived > 0)
                if held.wanted > machine.per_block and (enough & (present < held.wanted)).any():
                    machine.complain(
                        "barrier_divergence",
                        f"a barrier waits for {held.wanted} threads, more than the block has; "
                        "they were let go on",
                    )
            enough &= arrived > 0
            if barrier in self.arrivals:
                self.arrivals[barrier] = np.where(enough, 0, self.arrivals[barrier])
            if enough.any():
                self._open(barrier, mask & np.repeat(enough, machine.per_block))
                opened = True
        if not opened and self.waiting and force:
            machine.complain(
                "barrier_divergence",
                "a barrier is waited for by some threads of a block only; they were let go on",
            )
            for barrier in list(self.waiting):
                self._open(barrier, machine.live)
            opened = True
        return opened

    def _open(self, barrier: int, free: Mask) -> None:
        machine = self._machine
        held = self.waiting.pop(barrier)
        kept = Waiting()
        kept.wanted = held.wanted
        released = np.zeros(machine.count, dtype=np.bool_)
        for key, group in held.groups:
            part = group.narrowed(free, negated=False)
            if part is None:
                kept.groups.append((key, group))
                continue
            released |= part.mask
            if part.count < group.count:
                rest = group.narrowed(free, negated=True)
                if rest is not None:
                    kept.groups.append((key, rest))
            machine.put(key, part)
        if held.deliver:
            values = np.zeros(machine.count, dtype=np.bool_)
            for _, flags in held.deliver:
                values |= flags
            together = Group(machine, released, int(np.count_nonzero(released)))
            held.deliver[0][0](together, values)
        if kept.groups:
            kept.deliver = held.deliver
            self.waiting[barrier] = kept


# Memory barriers in shared memory: arrivals, bytes to come, phases, and who waits for them.
#
# PTX ISA 9.0, Parallel Synchronization and Communication Instructions: mbarrier. Asynchronous
# copies are done at once, so the bytes they bring are there when they are asked for; a wait that
# comes too early rests until the phase is complete, as hardware suspends it.

_WANTED, _PENDING, _PHASE = range(3)
_KINDS = ("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx")


class _Rest(NamedTuple):
    """Threads that wait: where they go on, and for which phase of which barriers."""

    key: int
    group: Group
    frame: Frame
    target: int
    where: Offsets
    wanted: npt.NDArray[np.int64]
    parity: bool


class Mbarriers:
    """The memory barriers of a machine's blocks by address.

    ``told`` is the number of bytes last announced at each; they are taken to come.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._state: dict[int, Counts] = {}
        self.told: dict[int, int] = {}
        self.waiting: list[_Rest] = []
        self._tried = False

    def at(self, address: int) -> Counts:
        """Arrivals wanted and pending, and the phase, ``int64[3, slots]``."""
        found = self._state.get(address)
        if found is None:
            found = self._state[address] = np.zeros((3, self._machine.slots), dtype=np.int64)
        return found

    def begin(self, address: int, counts: Counts, where: npt.NDArray[np.bool_]) -> None:
        """mbarrier.init in some slots."""
        state = self.at(address)
        state[_WANTED, where] = state[_PENDING, where] = counts[where]
        state[_PHASE, where] = 0

    def change(self, address: int, arrivals: Counts, dropped: Counts) -> None:
        """Arrivals by slot; phases they complete end."""
        state = self.at(address)
        state[_WANTED] -= dropped
        state[_PENDING] -= arrivals
        ended = False
        while True:
            done = (state[_PENDING] <= 0) & (state[_WANTED] > 0)
            if not done.any():
                break
            state[_PHASE, done] += 1
            state[_PENDING, done] += state[_WANTED, done]
            ended = True
        if ended:
            self._wake()

    def complete(
        self, where: Offsets, wanted: npt.NDArray[np.int64], parity: bool
    ) -> npt.NDArray[np.bool_]:
        """For each thread whether the phase it waits for is complete.

        One of a barrier that nobody made is: it is another block's, or made in a way not followed.
        """
        machine = self._machine
        found = np.ones(machine.count, dtype=np.bool_)
        for address in distinct(where):
            state = self._state.get(int(address))
            if state is None:
                machine.complain(
                    "mbarrier_unknown", "a memory barrier is waited for that nothing made; it was "
                    "taken to be complete",
                )  # fmt: skip
                continue
            phase = np.repeat(state[_PHASE], machine.per_block)
            ready = (phase & 1) != wanted if parity else phase != wanted
            found &= ready | (where != address)
        return found

    def wait(self, rest: _Rest) -> int | None:
        """The key where the group goes on; ``None`` if all or some of it rest."""
        ready = self.complete(rest.where, rest.wanted, rest.parity)
        now, later = rest.group.split(ready, negated=False)
        if now is not None:
            store(rest.frame, now, rest.target, np.ones(1, dtype=np.bool_))
            if later is None:
                return rest.key
            self._machine.put(rest.key, now)
        if later is not None:
            self.waiting.append(rest._replace(group=later))
        return None

    def _wake(self) -> None:
        self._tried = False
        resting, self.waiting = self.waiting, []
        for rest in resting:
            key = self.wait(rest)
            if key is not None:
                self._machine.put(key, rest.group)

    def release(self) -> bool:
        """Nothing else can run: waits give up, as those do whose time is over; and if that helps
        nobody, they are taken to be over."""
        resting, self.waiting = self.waiting, []
        if self._tried and resting:
            self._machine.complain(
                "mbarrier_stuck",
                "threads wait for a phase of a memory barrier that is never complete; they were "
                "let go on",
            )
        for rest in resting:
            store(rest.frame, rest.group, rest.target, np.full(1, self._tried))
            self._machine.put(rest.key, rest.group)
        self._tried = not self._tried
        return bool(resting)


def places(frame: Frame, slot: int, offset: int, group: Group) -> Iterator[tuple[int, Group]]:
    """Offsets in shared memory that threads name, generic addresses or not, and who names each."""
    where = access.in_window(addresses(frame, slot, offset))
    if where.shape[0] == 1:
        yield int(where[0]), group
        return
    for address in distinct(where[group.index]):
        part = group.narrowed(where == address, negated=False)
        if part is not None:
            yield int(address), part


def per_slot(value: Array, group: Group) -> Counts:
    """The sum of an unsigned number over a group's threads, by slot."""
    machine = group.machine
    table = spread(as_type(value, U32).astype(S64), machine.count) * group.mask
    found: Counts = table.reshape(machine.slots, -1).sum(axis=1)
    return found


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """mbarrier but its waits, which end a run (``finish``); arrivals by cp.async."""
    operands, kind = context.operands, modifiers[0]
    if kind == "async":  # cp.async.mbarrier.arrive: one that has been added counts for nothing
        if "noinc" not in modifiers:
            return None
        kind = "arrive"
    if kind == "pending_count":
        return _pending(context, items)
    if kind not in _KINDS:
        raise UnsupportedError(f"mbarrier.{kind}")
    remaining = list(items)
    state = None
    if not isinstance(remaining[0], ir.Address):
        state = operands.target(remaining.pop(0), U64)
    slot, offset = operands.address(remaining.pop(0))
    given = operands.source(remaining[0], U32) if remaining else None
    one: Array = np.ones(1, dtype=U32)
    expects = kind == "expect_tx" or "expect_tx" in modifiers
    if kind == "inval":
        return None

    def handler(frame: Frame, group: Group) -> None:
        barriers = group.machine.mbarriers
        number = one if given is None else frame[given]
        none = np.zeros(group.machine.slots, dtype=np.int64)
        for address, part in places(frame, slot, offset, group):
            barriers.at(address)
            counts = per_slot(number, part)
            if kind == "init":
                barriers.begin(address, counts // np.maximum(part.lanes, 1), part.lanes > 0)
                continue
            if state is not None:
                phase = np.repeat(barriers.at(address)[_PHASE], group.machine.per_block)
                store(frame, part, state, phase.astype(U64))
            if expects:
                barriers.told[address] = int(counts.max())
            arrivals = part.lanes if expects else counts
            drops = arrivals if kind == "arrive_drop" else none
            if kind not in ("complete_tx", "expect_tx"):
                barriers.change(address, arrivals, drops)

    return handler


def _pending(context: Context, items: Items) -> Handler:
    """mbarrier.pending_count of a state, which holds it above the phase."""
    operation = Operation(lambda a: (a >> np.uint64(32)).astype(U32), (U64,), U32)
    return pure(operation, context.operands, items)


def arrives_once(context: Context, operand: ir.Operand) -> Handler:
    """An arrival of each thread at a barrier, by an operation that is over at once."""
    slot, offset = context.operands.address(operand)

    def handler(frame: Frame, group: Group) -> None:
        none = np.zeros(group.machine.slots, dtype=np.int64)
        for address, part in places(frame, slot, offset, group):
            group.machine.mbarriers.change(address, part.lanes, none)

    return handler


def finish(context: Context, one: ir.Instruction, after: int, edge: LoopEdge | None) -> Finish:
    """mbarrier.try_wait and test_wait."""
    operands, items = context.operands, one.operands
    target = operands.target(items[0], BOOL)
    slot, offset = operands.address(items[1])
    parity = "parity" in one.modifiers
    wanted = operands.source(items[2], U32 if parity else U64)

    def apply(machine: Machine, frame: Frame, group: Group, shift: int) -> int | None:
        key = machine.move(after - shift, group, edge)
        where = access.in_window(addresses(frame, slot, offset))
        phase = as_type(frame[wanted], U64).astype(S64)
        return machine.mbarriers.wait(_Rest(key, group, frame, target, where, phase, parity))

    return apply
