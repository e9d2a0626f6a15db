"""A compiled function and what the builders of its handlers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.execution.access import Site
from wattcast.features.execution.integer import Function, Operation
from wattcast.features.execution.roles import Usage
from wattcast.features.execution.values import (
    BOOL,
    ISSUE_UNITS,
    TYPES,
    U32,
    U64,
    Array,
    DType,
    Group,
    as_type,
    constant,
    literal,
    merge,
    widen,
)
from wattcast.features.loops import Loop, LoopForest
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


# From operands to register slots: the vocabulary every handler is built from.
#
# A frame is a list of arrays. Slot 0 holds the parameter store of the frame, slot 1 the carry
# flag, slot 2 is where ignored results go; then come registers, immediates, special registers
# and symbols, so a handler reads every operand the same way: ``frame[slot]``.

Frame = list[Any]
Handler = Callable[[Frame, Group], None]
Items = tuple[ir.Operand, ...]
Write = Callable[[Frame, Group, Array], None]

PARAMETERS, CARRY, TRASH = 0, 1, 2
CARRY_FLAG = ir.Register("!carry")
"""The carry flag as an operand."""


class UnsupportedError(ValueError):
    """An instruction or operand the engine cannot execute; its text says what."""


class LocalSymbol(NamedTuple):
    """A local variable: its address depends on the call depth."""

    slot: int
    offset: int


class Slots:
    """Slot numbers of one function's registers, constants and special registers.

    ``initial`` is the template of a frame. ``specials`` and ``locals`` are filled in per
    frame by the machine.
    """

    def __init__(self, body: ir.Body) -> None:
        self.initial: Frame = [None, np.zeros(1, dtype=np.bool_), np.zeros(1, dtype=U64)]
        self.sizes: list[int] = [0, 0, 0]
        self.specials: dict[str, int] = {}
        self.locals: list[LocalSymbol] = []
        self._names: dict[str, int] = {CARRY_FLAG.name: CARRY}
        self._types: dict[str, DType] = {}
        self._constants: dict[tuple[Any, ...], int] = {}
        for declaration in body.registers:
            dtype = TYPES.get(declaration.type, U64)
            if declaration.length == 1:
                self._types[declaration.name] = dtype
            for index in range(declaration.length):
                if index > 200_000:
                    break
                self._types[f"{declaration.name}{index}"] = dtype

    def _new(self, value: Any, size: int) -> int:
        self.initial.append(value)
        self.sizes.append(size)
        return len(self.initial) - 1

    def register(self, name: str, default: DType = U64) -> int:
        """The slot of a register, made when first seen (zero until written)."""
        slot = self._names.get(name)
        if slot is None:
            dtype = self._types.get(name.partition("@")[0], default)
            dtype = self._types.get(name, dtype)
            slot = self._new(np.zeros(1, dtype=dtype), 0 if dtype is BOOL else dtype.itemsize)
            self._names[name] = slot
        return slot

    def is_declared(self, name: str) -> bool:
        """Whether the body declares the register."""
        return name in self._types or name.partition("@")[0] in self._types

    def constant(self, value: Array) -> int:
        """The slot of a constant."""
        key = (value.dtype.str, value.tobytes())
        slot = self._constants.get(key)
        if slot is None:
            slot = self._constants[key] = self._new(value, value.dtype.itemsize)
        return slot

    def special(self, name: str) -> int:
        """The slot of a special register whose value does not change while a block runs."""
        slot = self.specials.get(name)
        if slot is None:
            slot = self.specials[name] = self._new(np.zeros(1, dtype=U32), 4)
        return slot

    def local_symbol(self, offset: int) -> int:
        """The slot of a local variable's address."""
        slot = self._new(np.zeros(1, dtype=U64), 8)
        self.locals.append(LocalSymbol(slot, offset))
        return slot


class Operands:
    """Builds slots from IR operands for one function."""

    def __init__(self, slots: Slots, resolve: Callable[[str, Slots], int | None]) -> None:
        self.slots = slots
        self._resolve = resolve

    def source(self, operand: ir.Operand, dtype: DType) -> int:
        """The slot an operand is read from. Raises UnsupportedError."""
        if isinstance(operand, ir.Register):
            return self.slots.register(operand.name, dtype)
        if isinstance(operand, ir.Immediate):
            return self.slots.constant(literal(operand.value, operand.text, dtype))
        if isinstance(operand, ir.Special):
            return self.slots.special(operand.name)
        if isinstance(operand, ir.Symbol):
            slot = self._resolve(operand.name, self.slots)
            if slot is None:
                raise UnsupportedError(f"unknown symbol {operand.name}")
            return self._shifted(slot, operand.offset)
        raise UnsupportedError(f"operand {type(operand).__name__}")

    def _shifted(self, slot: int, offset: int) -> int:
        if not offset:
            return slot
        for symbol in self.slots.locals:
            if symbol.slot == slot:
                return self.slots.local_symbol(symbol.offset + offset)
        held = self.slots.initial[slot]
        return self.slots.constant(held + constant(offset, held.dtype))

    def address(self, operand: ir.Operand) -> tuple[int, int]:
        """Slot and byte offset of an address operand. Raises UnsupportedError."""
        if not isinstance(operand, ir.Address):
            return self.source(operand, U64), 0
        if operand.base is None:
            return self.slots.constant(constant(operand.offset, U64)), 0
        return self.source(operand.base, U64), operand.offset

    def target(self, operand: ir.Operand, dtype: DType) -> int:
        """The slot a result is written to. Raises UnsupportedError."""
        if isinstance(operand, ir.Register):
            return self.slots.register(operand.name, dtype)
        if isinstance(operand, ir.Symbol) and operand.name == "_":
            return TRASH
        raise UnsupportedError(f"destination {type(operand).__name__}")

    def predicate(self, operand: ir.Operand) -> tuple[int, bool]:
        """Slot of a predicate source and whether it is negated."""
        if isinstance(operand, ir.Negated):
            slot, negated = self.predicate(operand.operand)
            return slot, not negated
        return self.source(operand, BOOL), False

    def writer(self, slot: int, dtype: DType) -> Function | None:
        """What must be done to a result of ``dtype`` before it fits the register."""
        size = self.slots.sizes[slot]
        if slot == TRASH:
            return None
        if (size == 0) != (dtype is BOOL):
            return (lambda v: as_type(v, BOOL)) if size == 0 else (lambda v: v.astype(U32))
        if size == 0 or dtype.itemsize == size:
            return None
        return lambda v: widen(v, size)

    def writing(self, operand: ir.Operand, dtype: DType) -> Write:
        """Writes results of ``dtype``; what is ignored is not written. Raises UnsupportedError."""
        slot = self.target(operand, dtype)
        fit = self.writer(slot, dtype)

        def write(frame: Frame, group: Group, value: Array) -> None:
            if slot != TRASH:
                store(frame, group, slot, fit(value) if fit else value)

        return write

    def writings(self, operand: ir.Operand, *dtypes: DType) -> list[Write]:
        """The same for each that a destination holds."""
        return [self.writing(*each) for each in zip(elements(operand), dtypes, strict=False)]


def elements(operand: ir.Operand) -> Items:
    """The operands that a vector or ``d|p`` holds; any other operand alone."""
    if isinstance(operand, ir.Pair):
        return operand.first, operand.second
    return operand.elements if isinstance(operand, ir.Vector) else (operand,)


# --- handlers of pure operations ------------------------------------------------------------


def _binary(function: Function, dst: int, a: int, b: int, ta: DType, tb: DType) -> Handler:
    def handler(frame: Frame, group: Group) -> None:
        x, y = frame[a], frame[b]
        if x.dtype is not ta:
            x = as_type(x, ta)
        if y.dtype is not tb:
            y = as_type(y, tb)
        value = function(x, y)
        frame[dst] = value if group.full else merge(group, value, frame[dst])

    return handler


def _general(function: Function, dst: int, slots: list[int], types: tuple[DType, ...]) -> Handler:
    pairs = list(zip(slots, types, strict=True))

    def handler(frame: Frame, group: Group) -> None:
        value = function(*(as_type(frame[slot], dtype) for slot, dtype in pairs))
        frame[dst] = value if group.full else merge(group, value, frame[dst])

    return handler


def _plain_predicates(operation: Operation, items: Items) -> tuple[Function, Items]:
    """Take negations (``!%p``) out of the operands and into the function."""
    flags = [isinstance(o, ir.Negated) for o in items[1 : len(operation.sources) + 1]]
    function = operation.function
    if not any(flags):
        return function, items

    def negating(*values: Array) -> Any:
        return function(*(~v if flag else v for v, flag in zip(values, flags, strict=True)))

    return negating, tuple(o.operand if isinstance(o, ir.Negated) else o for o in items)


def _several(operation: Operation, operands: Operands, items: Items) -> Handler:
    function, plain = _plain_predicates(operation, items)
    slots = [operands.source(o, t) for o, t in zip(plain[1:], operation.sources, strict=False)]
    pairs = list(zip(slots, operation.sources, strict=True))
    results = (operation.result, *operation.others)
    writes = operands.writings(items[0], *results)

    def handler(frame: Frame, group: Group) -> None:
        values = function(*(as_type(frame[slot], dtype) for slot, dtype in pairs))
        for write, value in zip(writes, values, strict=True):
            write(frame, group, value)

    return handler


def pure(operation: Operation, operands: Operands, items: Items) -> Handler:
    """The handler of a pure operation: first operand the destination (as many in it as there are
    results), then the sources.

    Raises UnsupportedError if the number of operands does not fit.
    """
    wanted = len(operation.sources)
    if len(items) - 1 < wanted:
        raise UnsupportedError(f"{len(items)} operands where {wanted + 1} are needed")
    if isinstance(items[0], ir.Pair | ir.Vector):
        return _several(operation, operands, items)
    dst = operands.target(items[0], operation.result)
    function, items = _plain_predicates(operation, items)
    slots = [operands.source(o, t) for o, t in zip(items[1:], operation.sources, strict=False)]
    fit = operands.writer(dst, operation.result)
    if fit is not None:
        inner, fitted = function, fit

        def function(*values: Array) -> Array:
            return fitted(inner(*values))

    types = operation.sources
    if wanted == 2:  # most are of this kind
        return _binary(function, dst, slots[0], slots[1], types[0], types[1])
    return _general(function, dst, slots, types)


def store(frame: Frame, group: Group, slot: int, value: Array) -> None:
    """Write a result whose size fits the register."""
    frame[slot] = value if group.full else merge(group, value, frame[slot])


FRAME_STEP = 1 << 40
"""Call depth times this is subtracted from an instruction number: the deepest runs first."""

Finish = Callable[["Machine", Frame, Group, int], "int | None"]

_BARRIERS = frozenset({"bar", "barrier"})


def is_barrier(instruction: ir.Instruction) -> bool:
    """Whether threads of a block wait here (not ``bar.warp.sync``); those of a cluster wait for
    their own block, the others are taken to be there."""
    parts = instruction.opcode.split(".")
    return parts[0] in _BARRIERS and not ({"warp", "arrive"} & set(parts))


@dataclass(slots=True)
class LoopEdge:
    """What moving along an edge to a loop header means: ``entering`` or coming round again."""

    loop: int
    entering: bool


class Gather(NamedTuple):
    """A run that begins with a collective: slots of its member mask and of its guard."""

    mask: int | None
    guard: int | None
    negated: bool


@dataclass(slots=True, eq=False)
class Run:
    """Straight-line code: instructions ``[start, end)``, global numbers."""

    index: int
    start: int
    end: int
    function: int
    handlers: tuple[Handler, ...] = ()
    by_position: dict[int, Handler] = field(default_factory=dict)
    gather: Gather | None = None
    finish: Finish = None  # type: ignore[assignment]
    issue_units: int = ISSUE_UNITS
    lane_units: int = 1


@dataclass
class Linked:
    """A function in the program. ``base`` is the global number of its first instruction."""

    index: int
    function: ir.Function
    body: ir.Body
    base: int
    slots: Slots
    cfg: ControlFlowGraph
    loops: LoopForest
    usage: Usage
    first_loop: int
    locals: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(init=False)
    headers: dict[int, Loop] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = {label.name: label.target for label in reversed(self.body.labels)}
        self.headers = {loop.header: loop for loop in self.loops.loops}

    def around(self, position: int) -> list[Loop]:
        """The loops around a position (the last for one behind the end), outermost first."""
        position = min(position, len(self.body.instructions) - 1)
        if position < 0:
            return []
        return [self.loops.loops[index] for index in self.loops.around(self.cfg.block_of[position])]


@dataclass(slots=True)
class CallSite:
    """Where a call returns to, and the caller's names for the results."""

    after: int
    results: tuple[ir.Operand, ...]
    caller: int
    edge: LoopEdge | None


@dataclass(slots=True)
class Context:
    """Builds the handlers of one function.

    ``parameters`` maps a kernel's parameter names to their byte offsets (empty for device
    functions); ``roles`` says how loaded registers are used; ``sites`` grows over the program.
    ``idle``: what the instruction being built computes, loads or stores decides no count;
    ``decides``: branches or addresses rest on its results.
    """

    operands: Operands
    parameters: Mapping[str, int]
    roles: Mapping[str, str]
    sites: list[Site]
    body: ir.Body
    idle: bool = False
    decides: bool = False
    position: int = 0
    instruction: ir.Instruction = field(
        default_factory=lambda: ir.Instruction(0, 0, 0, "", (), None, False, None)
    )

    def site(
        self,
        space: str,
        width: int,
        *,
        loads: bool = False,
        stores: bool = False,
        atomic: bool = False,
        role: str = "int",
    ) -> Site:
        """A new site for the instruction being built."""
        made = Site(
            len(self.sites), self.position, self.instruction.line, self.instruction.opcode,
            space, width, loads=loads, stores=stores, atomic=atomic, role=role,
        )  # fmt: skip
        self.sites.append(made)
        return made


SPACES = ("global", "shared", "local", "const", "param")


def space_of(modifiers: tuple[str, ...]) -> str:
    """The state space an opcode names, ``generic`` if none."""
    for modifier in modifiers:
        head = modifier.partition("::")[0]
        if head in SPACES:
            return head
    return "generic"
