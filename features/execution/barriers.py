"""Threads that wait at barriers, and who may go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution import access
from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    pure,
    store,
)
from wattcast.features.execution.integer import Operation
from wattcast.features.execution.loads import addresses
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


# Memory barriers in shared memory (PTX ISA 9.0, Parallel Synchronization and Communication
# Instructions: mbarrier). Copies are done at once and products are not computed, so every phase is
# taken to be complete: a wait ends the first time it asks.

_TELLS = frozenset({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx"})


def always_true(one: ir.Instruction) -> bool:
    """Whether an instruction waits for a phase, which is complete."""
    return one.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait"))


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


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    """mbarrier: waits end, states are 0, and bytes that are announced are noted."""
    operands, kind = context.operands, modifiers[0]
    if always_true(context.instruction):
        return pure(Operation(lambda: np.ones(1, dtype=BOOL), (), BOOL), operands, items[:1])
    if kind == "pending_count":
        return pure(Operation(lambda: np.zeros(1, dtype=U32), (), U32), operands, items[:1])
    if kind not in _TELLS:
        raise UnsupportedError(f"mbarrier.{kind}")
    if kind == "expect_tx" or "expect_tx" in modifiers:
        return _announce(context, items)
    if isinstance(items[0], ir.Address):
        return None
    return pure(Operation(lambda: np.zeros(1, dtype=U64), (), U64), operands, items[:1])


def _announce(context: Context, items: Items) -> Handler:
    """Note the bytes that are to come at a barrier."""
    operands = context.operands
    state = None if isinstance(items[0], ir.Address) else operands.target(items[0], U64)
    place, given = items[state is not None :][:2]
    slot, offset = operands.address(place)
    number = operands.source(given, U32)

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        if state is not None:
            store(frame, group, state, np.zeros(1, dtype=U64))
        told = spread(as_type(frame[number], U32).astype(S64), machine.count)
        for address, part in places(frame, slot, offset, group):
            of_blocks = (told * part.mask).reshape(machine.slots, -1).sum(axis=1)
            machine.announced[address] = int(of_blocks.max())

    return handler
