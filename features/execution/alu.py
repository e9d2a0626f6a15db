"""Handlers of register-to-register instructions: arithmetic, comparison, selection, moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wattcast.features.execution import integer
from wattcast.features.execution.context import (
    CARRY_FLAG,
    Frame,
    Handler,
    Items,
    Operands,
    UnsupportedError,
    pure,
    store,
)
from wattcast.features.execution.floating import comparison, conversion, floating_operation
from wattcast.features.execution.spaces import WINDOW_SHIFT, WINDOWS
from wattcast.features.execution.values import (
    BOOL,
    F32,
    S32,
    TYPES,
    U32,
    U64,
    U128,
    Array,
    DType,
    Group,
    as_type,
    halves,
)
from wattcast.features.integers import UNSIGNED, Lanes
from wattcast.features.ptx import ir


def arithmetic(base: str, modifiers: tuple[str, ...]) -> integer.Operation | None:
    """The pure operation of an opcode, whichever family it is of."""
    if base == "cvt":
        return conversion(modifiers)
    if base == "prmt":
        return integer.permute_operation(modifiers)
    found = floating_operation(base, modifiers)
    return found or integer.integer_operation(base, modifiers)


# --- setp, set, selp, slct ------------------------------------------------------------------

_COMPARISONS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
    "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
})  # fmt: skip
_COMBINE: dict[str, integer.Function] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip


def _compare(modifiers: tuple[str, ...]) -> tuple[integer.Function, DType, integer.Function | None]:
    name = next((m for m in modifiers if m in _COMPARISONS), None)
    if name is None or modifiers[-1] not in TYPES:
        raise UnsupportedError("comparison")
    try:
        function, dtype = comparison(name, modifiers[-1])
    except KeyError as error:
        raise UnsupportedError(f"comparison {name}.{modifiers[-1]}") from error
    combine = next((_COMBINE[m] for m in modifiers if m in _COMBINE), None)
    return function, dtype, combine


def _comparing(modifiers: tuple[str, ...], *, both: bool) -> integer.Operation:
    """A comparison, combined with the predicate that may follow; ``both``: so is its opposite."""
    function, dtype, combine = _compare(modifiers)

    def compared(a: Array, b: Array, *other: Array) -> Any:
        found = function(a, b)
        ways = [found, ~found] if both else [found]
        if combine is not None:
            ways = [combine(way, *other) for way in ways]
        return ways if both else ways[0]

    sources = (dtype, dtype) if combine is None else (dtype, dtype, BOOL)
    plain = function if combine is None and not both else compared
    return integer.Operation(plain, sources, BOOL, (BOOL,) * both)


def set_predicate(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """setp with one or two destinations and an optional combining predicate."""
    both = isinstance(items[0], ir.Pair)
    if modifiers[-1] not in ("f16x2", "bf16x2"):
        return pure(_comparing(modifiers, both=both), operands, items)
    function, dtype, combine = _compare((*modifiers[:-1], modifiers[-1].removesuffix("x2")))
    if combine is not None or not both:
        raise UnsupportedError("packed setp")

    def compared(a: Array, b: Array) -> list[Array]:
        pairs = zip(halves(a), halves(b), strict=True)
        return [function(x.view(dtype), y.view(dtype)) for x, y in pairs]

    return pure(integer.Operation(compared, (U32, U32), BOOL, (BOOL,)), operands, items)


def set_register(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """set: all ones (or 1.0) where the comparison holds."""
    target = TYPES.get(modifiers[-2], U32)
    test, sources, *_ = _comparing(modifiers, both=False)
    if target.kind == "f":
        one = target.type(1)
    else:
        one = UNSIGNED[target.itemsize].type(np.iinfo(UNSIGNED[target.itemsize]).max)

    def apply(*values: Array) -> Any:
        return np.where(test(*values), one, one.dtype.type(0))

    return pure(integer.Operation(apply, sources, target), operands, items)


def _pick(yes: Array, no: Array, chosen: Array) -> Array:
    if chosen.shape[0] == 1:
        return yes if chosen[0] else no
    return np.where(chosen, yes, no)


def select(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """selp: one of two values by a predicate."""
    dtype = TYPES[modifiers[-1]]
    return pure(integer.Operation(_pick, (dtype, dtype, BOOL), dtype), operands, items)


def _by_sign(a: Array, b: Array, c: Array) -> Array:
    return np.where(c >= 0, a, b)


def select_by_sign(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """slct: ``c >= 0 ? a : b``."""
    dtype = TYPES[modifiers[-2]]
    by = F32 if modifiers[-1] == "f32" else S32
    return pure(integer.Operation(_by_sign, (dtype, dtype, by), dtype), operands, items)


# --- carries ---------------------------------------------------------------------------------


def with_carry(base: str, modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """add.cc, addc, sub.cc, subc, mad.cc, madc: the carry flag lives in its own slot."""
    kind = TYPES[modifiers[-1]]
    dtype = UNSIGNED[kind.itemsize]
    gives, subtracts = "cc" in modifiers, base.startswith("sub")
    product = Lanes(kind).high if "hi" in modifiers else np.multiply

    def apply(*values: Array) -> Any:
        if base.startswith("mad"):
            values = (product(*values[:2]), *values[2:])
        a, b = (as_type(value, dtype) for value in values[:2])
        out = a - b if subtracts else a + b
        flag = a < b if subtracts else out < a
        for carry in values[2:]:
            before = out
            out = before - carry.astype(dtype) if subtracts else before + carry.astype(dtype)
            flag = flag | (out > before if subtracts else out < before)
        return (out, flag) if gives else out

    numbers = (kind,) * 3 if base.startswith("mad") else (dtype,) * 2
    if base in _CARRIERS:
        numbers, items = (*numbers, BOOL), (*items[: len(numbers) + 1], CARRY_FLAG)
    if gives:
        items = (ir.Pair(items[0], CARRY_FLAG), *items[1:])
    return pure(integer.Operation(apply, numbers, dtype, (BOOL,) * gives), operands, items)


# --- moves -----------------------------------------------------------------------------------


def _joined(parts: Sequence[Array], dtype: DType) -> Array:
    if dtype is U128:
        halves = np.broadcast_arrays(*(as_type(part, U64) for part in parts))
        return np.stack(halves, axis=-1).view(U128)[:, 0]
    size = dtype.itemsize // len(parts)
    raw = UNSIGNED[dtype.itemsize]
    out = np.zeros(1, dtype=raw)
    for index, part in enumerate(parts):
        piece = as_type(part, UNSIGNED[size]).astype(raw)
        out = out | (piece << raw.type(8 * size * index))
    return out


def move(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """mov, also packing into and unpacking from vectors."""
    kind = modifiers[-1]
    if kind not in TYPES:
        raise UnsupportedError(f"mov.{kind}")
    target, source = items[0], items[1]
    dtype = TYPES[kind]
    if isinstance(source, ir.Vector) and not isinstance(target, ir.Vector):
        count = len(source.elements)
        part = UNSIGNED[dtype.itemsize // count]
        packed = integer.Operation(lambda *s: _joined(s, dtype), (part,) * count, dtype)
        return pure(packed, operands, (target, *source.elements))
    if isinstance(target, ir.Vector):
        if isinstance(source, ir.Vector):
            raise UnsupportedError("mov of two vectors")
        dtype = dtype if kind == "b128" else UNSIGNED[dtype.itemsize]
        count = len(target.elements)
        part = UNSIGNED[dtype.itemsize // count]

        def unpack(value: Array) -> list[Array]:
            if dtype is U128:
                return [np.ascontiguousarray(value[half]) for half in ("low", "high")]
            bits = 8 * part.itemsize
            return [(value >> dtype.type(bits * n)).astype(part) for n in range(count)]

        parts = integer.Operation(unpack, (dtype,), part, (part,) * (count - 1))
        return pure(parts, operands, items)
    if isinstance(source, ir.Special) and source.name in CLOCKS:
        return _clock(source.name, dtype, operands.target(target, dtype))
    return pure(integer.Operation(lambda a: a, (dtype,), dtype), operands, (target, source))


CLOCKS = frozenset({"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo",
                    "%globaltimer_hi"})  # fmt: skip


def _clock(name: str, dtype: DType, dst: int) -> Handler:
    """Time: instructions issued so far, four cycles each (a monotone stand-in)."""

    def handler(frame: Frame, group: Group) -> None:
        cycles = group.machine.clock()
        if name.endswith("_hi"):
            cycles >>= 32
        value = np.array([cycles & 0xFFFFFFFFFFFFFFFF], dtype=U64)
        store(frame, group, dst, as_type(value, UNSIGNED[dtype.itemsize]))

    return handler


# --- addresses -------------------------------------------------------------------------------


def convert_address(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """cvta: generic addresses of shared and local memory lie in windows of their own."""
    dtype = TYPES[modifiers[-1]]
    space = next(
        (m.partition("::")[0] for m in modifiers if m != "to" and m not in TYPES), "global"
    )
    window = np.uint64(WINDOWS.get(space, 0))
    to = "to" in modifiers
    if dtype.itemsize != 8 or not window:
        return pure(integer.Operation(lambda a: a, (dtype,), dtype), operands, items)
    mask = np.uint64((1 << WINDOW_SHIFT) - 1)
    function: integer.Function = (lambda a: a & mask) if to else (lambda a: (a & mask) | window)
    return pure(integer.Operation(function, (U64,), U64), operands, items)


def is_space(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """isspacep: whether a generic address lies in a window."""
    space = modifiers[0].partition("::")[0]
    window = np.uint64(WINDOWS.get(space, 0) >> WINDOW_SHIFT)
    shift = np.uint64(WINDOW_SHIFT)
    return pure(integer.Operation(lambda a: (a >> shift) == window, (U64,), BOOL), operands, items)


def logic(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """lop3 with its table as the last operand; an optional predicate result."""
    table = items[4]
    if not isinstance(table, ir.Immediate):
        raise UnsupportedError("lop3 table")
    function = integer.logic3(int(table.value) & 0xFF)
    if not isinstance(items[0], ir.Pair):
        return pure(integer.Operation(function, (U32,) * 3, U32), operands, items[:4])
    combine = np.logical_or if "or" in modifiers else np.logical_and

    def apply(a: Array, b: Array, c: Array, other: Array) -> tuple[Array, Array]:
        value = function(a, b, c)
        return value, combine(value != 0, other)

    operation = integer.Operation(apply, (U32, U32, U32, BOOL), U32, (BOOL,))
    return pure(operation, operands, (*items[:4], items[5]))


Builder = Callable[[tuple[str, ...], Items, Operands], Handler]

BUILDERS: dict[str, Builder] = {
    "setp": set_predicate,
    "set": set_register,
    "selp": select,
    "slct": select_by_sign,
    "mov": move,
    "cvta": convert_address,
    "isspacep": is_space,
    "lop3": logic,
}

_CARRIERS = frozenset({"addc", "subc", "madc"})


def build(
    base: str, modifiers: tuple[str, ...], items: Items, operands: Operands
) -> Handler | None:
    """The handler of a register-to-register instruction; ``None`` if it is no such thing.

    Raises UnsupportedError for forms of known instructions that are not executed.
    """
    if base in BUILDERS:
        return BUILDERS[base](modifiers, items, operands)
    if base in _CARRIERS or ("cc" in modifiers and base in ("add", "sub", "mad")):
        return with_carry(base, modifiers, items, operands)
    operation = arithmetic(base, modifiers)
    if operation is None:
        return None
    return pure(operation, operands, items)
