"""Handlers of register-to-register instructions: arithmetic, comparison, selection, moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wattcast.features.execution import integer
from wattcast.features.execution.context import (
    CARRY,
    Frame,
    Handler,
    Items,
    Operands,
    UnsupportedError,
    destinations,
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


def _combined(
    modifiers: tuple[str, ...], items: Items, operands: Operands
) -> Callable[[Frame], tuple[Array, Array]]:
    """What a comparison and its opposite give, each combined with the predicate that may follow."""
    function, dtype, combine = _compare(modifiers)
    a, b = operands.source(items[1], dtype), operands.source(items[2], dtype)
    third = operands.predicate(items[3]) if combine is not None else None

    def compared(frame: Frame) -> tuple[Array, Array]:
        result = function(as_type(frame[a], dtype), as_type(frame[b], dtype))
        if third is None or combine is None:
            return result, ~result
        other = as_type(frame[third[0]], BOOL)
        other = ~other if third[1] else other
        return combine(result, other), combine(~result, other)

    return compared


def set_predicate(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """setp with one or two destinations and an optional combining predicate."""
    if modifiers[-1] in ("f16x2", "bf16x2"):
        return _set_packed(modifiers, items, operands)
    function, dtype, combine = _compare(modifiers)
    first, second = destinations(items[0])
    p = operands.target(first, BOOL)
    if second is None and combine is None:
        return pure(integer.Operation(function, (dtype, dtype), BOOL), operands, items)
    q = operands.target(second, BOOL) if second is not None else None
    compared = _combined(modifiers, items, operands)

    def handler(frame: Frame, group: Group) -> None:
        result, opposite = compared(frame)
        store(frame, group, p, result)
        if q is not None:
            store(frame, group, q, opposite)

    return handler


def _set_packed(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    function, dtype, combine = _compare((*modifiers[:-1], modifiers[-1].removesuffix("x2")))
    if combine is not None or not isinstance(items[0], ir.Pair):
        raise UnsupportedError("packed setp")
    low = operands.target(items[0].first, BOOL)
    high = operands.target(items[0].second, BOOL)
    a, b = operands.source(items[1], U32), operands.source(items[2], U32)

    def handler(frame: Frame, group: Group) -> None:
        x, y = halves(as_type(frame[a], U32)), halves(as_type(frame[b], U32))
        store(frame, group, low, function(x[0].view(dtype), y[0].view(dtype)))
        store(frame, group, high, function(x[1].view(dtype), y[1].view(dtype)))

    return handler


def set_register(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """set: all ones (or 1.0) where the comparison holds."""
    target = TYPES.get(modifiers[-2], U32)
    compared = _combined(modifiers, items, operands)
    dst = operands.target(items[0], target)
    if target.kind == "f":
        one = target.type(1)
    else:
        one = UNSIGNED[target.itemsize].type(np.iinfo(UNSIGNED[target.itemsize]).max)
    fit = operands.writer(dst, target)

    def handler(frame: Frame, group: Group) -> None:
        value = np.where(compared(frame)[0], one, one.dtype.type(0))
        store(frame, group, dst, fit(value) if fit else value)

    return handler


def select(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """selp: one of two values by a predicate."""
    dtype = TYPES[modifiers[-1]]
    dst = operands.target(items[0], dtype)
    a, b = operands.source(items[1], dtype), operands.source(items[2], dtype)
    p, negated = operands.predicate(items[3])
    if negated:
        a, b = b, a
    fit = operands.writer(dst, dtype)

    def handler(frame: Frame, group: Group) -> None:
        chosen = as_type(frame[p], BOOL)
        if chosen.shape[0] == 1:
            value = as_type(frame[a if chosen[0] else b], dtype)
        else:
            value = np.where(chosen, as_type(frame[a], dtype), as_type(frame[b], dtype))
        store(frame, group, dst, fit(value) if fit else value)

    return handler


def _by_sign(a: Array, b: Array, c: Array) -> Array:
    return np.where(c >= 0, a, b)


def select_by_sign(modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """slct: ``c >= 0 ? a : b``."""
    dtype = TYPES[modifiers[-2]]
    by = F32 if modifiers[-1] == "f32" else S32
    return pure(integer.Operation(_by_sign, (dtype, dtype, by), dtype), operands, items)


# --- carries ---------------------------------------------------------------------------------


def _product(modifiers: tuple[str, ...], dtype: DType) -> integer.Function:
    return Lanes(dtype).high if "hi" in modifiers else np.multiply


def with_carry(base: str, modifiers: tuple[str, ...], items: Items, operands: Operands) -> Handler:
    """add.cc, addc, sub.cc, subc, mad.cc, madc: the carry flag lives in its own slot."""
    kind = TYPES[modifiers[-1]]
    dtype = UNSIGNED[kind.itemsize]
    takes = base in ("addc", "subc", "madc")
    gives = "cc" in modifiers
    dst = operands.target(items[0], dtype)
    multiply = _product(modifiers, kind) if base.startswith("mad") else None
    held = kind if multiply else dtype
    slots = [operands.source(o, held) for o in items[1:]]

    def handler(frame: Frame, group: Group) -> None:
        values = [as_type(frame[s], held) for s in slots]
        if multiply is not None:
            x, y = as_type(multiply(values[0], values[1]), dtype), as_type(values[2], dtype)
        else:
            x, y = values
        carry = frame[CARRY].astype(dtype) if takes else None
        if base.startswith("sub"):
            out = x - y
            flag = x < y
            if carry is not None:
                flag = flag | (out < carry)
                out = out - carry
        else:
            out = x + y
            flag = out < x
            if carry is not None:
                out = out + carry
                flag = flag | (out < carry)
        store(frame, group, dst, out)
        if gives:
            store(frame, group, CARRY, flag)

    return handler


# --- moves -----------------------------------------------------------------------------------


def _joined(parts: list[Array], dtype: DType) -> Array:
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
    if isinstance(source, ir.Vector) and not isinstance(target, ir.Vector):
        dtype = TYPES[kind]
        part = UNSIGNED[dtype.itemsize // len(source.elements)]
        slots = [operands.source(o, part) for o in source.elements]
        dst = operands.target(target, dtype)

        def pack(frame: Frame, group: Group) -> None:
            store(frame, group, dst, _joined([frame[s] for s in slots], dtype))

        return pack
    if isinstance(target, ir.Vector):
        if isinstance(source, ir.Vector):
            raise UnsupportedError("mov of two vectors")
        dtype = TYPES[kind] if kind == "b128" else UNSIGNED[TYPES[kind].itemsize]
        part = UNSIGNED[dtype.itemsize // len(target.elements)]
        src = operands.source(source, dtype)
        outs = [operands.target(o, part) for o in target.elements]
        fits = [operands.writer(o, part) for o in outs]

        def unpack(frame: Frame, group: Group) -> None:
            value = as_type(frame[src], dtype)
            for index, (out, fit) in enumerate(zip(outs, fits, strict=True)):
                if dtype is U128:
                    piece = np.ascontiguousarray(value["high" if index else "low"])
                else:
                    piece = (value >> dtype.type(8 * part.itemsize * index)).astype(part)
                store(frame, group, out, fit(piece) if fit else piece)

        return unpack
    if isinstance(source, ir.Special) and source.name in CLOCKS:
        return _clock(source.name, TYPES[kind], operands.target(target, TYPES[kind]))
    if kind == "pred":
        p, negated = operands.predicate(source)
        dst = operands.target(target, BOOL)

        def copy_predicate(frame: Frame, group: Group) -> None:
            value = as_type(frame[p], BOOL)
            store(frame, group, dst, ~value if negated else value)

        return copy_predicate
    dtype = TYPES[kind]
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
    target = items[0]
    if not isinstance(target, ir.Pair):
        return pure(integer.Operation(function, (U32,) * 3, U32), operands, items[:4])
    dst, flag = operands.target(target.first, U32), operands.target(target.second, BOOL)
    slots = [operands.source(o, U32) for o in items[1:4]]
    p, negated = operands.predicate(items[5])
    either = "or" in modifiers

    def handler(frame: Frame, group: Group) -> None:
        value = function(*(as_type(frame[s], U32) for s in slots))
        other = as_type(frame[p], BOOL)
        other = ~other if negated else other
        store(frame, group, dst, value)
        store(frame, group, flag, (value != 0) | other if either else (value != 0) & other)

    return handler


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
