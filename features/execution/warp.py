"""Instructions in which the lanes of a warp talk (PTX ISA 8.x, sections 9.7.9 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    store,
)
from wattcast.features.execution.values import BOOL, S32, TYPES, U32, Array, Group, as_type, spread
from wattcast.features.integers import UNSIGNED
from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx import ir

_LANE = np.arange(WARP_SIZE, dtype=np.int64)
_BIT = (np.uint64(1) << np.arange(WARP_SIZE, dtype=np.uint64)).astype(U32)


def _table(value: Array, group: Group) -> Array:
    """A value as ``(warps, 32)``."""
    return spread(value, group.machine.count).reshape(-1, WARP_SIZE)


def _active(group: Group) -> Array:
    return group.mask.reshape(-1, WARP_SIZE)


def ballot(flags: Array) -> Array:
    """``bool[warps, 32]`` -> ``uint32[warps]``, lane 0 in bit 0."""
    packed = np.packbits(flags, axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view(U32)[:, 0]


def _all_lanes(per_warp: Array) -> Array:
    return np.repeat(per_warp, WARP_SIZE)


def member_mask(one: ir.Instruction) -> ir.Operand | None:
    """The member mask of a collective instruction, if it has one."""
    parts = one.opcode.split(".")
    if parts[0] in ("shfl", "vote", "match", "redux", "elect") and "sync" in parts:
        return one.operands[-1]
    if parts[:2] in (["bar", "warp"], ["barrier", "warp"]) and one.operands:
        return one.operands[0]
    return None


def is_collective(one: ir.Instruction) -> bool:
    """Whether lanes wait here for the others of their warp that a mask names."""
    if one.base in ("mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"):
        return True
    return member_mask(one) is not None


def shuffle(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """shfl.sync and shfl: up, down, bfly, idx, with the clamp and segment mask of operand c."""
    mode = next(m for m in modifiers if m in ("up", "down", "bfly", "idx"))
    operands = context.operands
    dtype = TYPES[modifiers[-1]]
    writes = operands.writings(items[0], dtype, BOOL)
    a = operands.source(items[1], dtype)
    b, c = operands.source(items[2], U32), operands.source(items[3], U32)

    known: dict[tuple[int, int], tuple[Array, Array]] = {}

    def handler(frame: Frame, group: Group) -> None:
        value = _table(as_type(frame[a], dtype), group)
        amount, control = as_type(frame[b], U32), as_type(frame[c], U32)
        if amount.shape[0] == 1 and control.shape[0] == 1:
            key = (int(amount[0]), int(control[0]))
            if key not in known:
                known[key] = _sources(mode, amount[:, None], control[:, None])
            source, inside = known[key]
        else:
            source, inside = _sources(mode, _table(amount, group), _table(control, group))
        source = np.broadcast_to(source, value.shape)
        result = np.take_along_axis(value, source, axis=1)
        if not group.everyone:  # a lane that takes no part gives nothing
            present = np.take_along_axis(_active(group), source, axis=1)
            result = np.where(present, result, value)
        writes[0](frame, group, result.reshape(-1))
        for write in writes[1:]:
            write(frame, group, np.broadcast_to(inside, value.shape).reshape(-1))

    return handler


def _sources(mode: str, amounts: Array, controls: Array) -> tuple[Array, Array]:
    """The lane each lane reads, and whether it lies inside the segment (PTX ISA 9.7.9.6)."""
    amount = (amounts & np.uint32(31)).astype(np.int64)
    control = controls.astype(np.int64)
    clamp, segment = control & 31, (control >> 8) & 31
    lane = np.broadcast_to(_LANE, (control.shape[0], WARP_SIZE))
    limit = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - amount
        inside = source >= limit
    else:
        if mode == "down":
            source = lane + amount
        elif mode == "bfly":
            source = lane ^ amount
        else:
            source = (lane & segment) | (amount & ~segment)
        inside = source <= limit
    return np.where(inside, source, lane), inside


def vote(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """vote{.sync}.all/any/uni/ballot over the group's active lanes (of the member mask)."""
    mode = next(m for m in modifiers if m in ("all", "any", "uni", "ballot"))
    operands = context.operands
    dst = operands.target(items[0], U32 if mode == "ballot" else BOOL)
    p, negated = operands.predicate(items[1])

    def handler(frame: Frame, group: Group) -> None:
        value = as_type(frame[p], BOOL)
        flags = _table(~value if negated else value, group)
        active = _active(group)
        result: Array
        if mode == "ballot":
            result = ballot(flags & active)
        elif mode == "any":
            result = np.any(flags & active, axis=1)
        elif mode == "all":
            result = np.all(flags | ~active, axis=1)
        else:
            some, every = np.any(flags & active, axis=1), np.all(flags | ~active, axis=1)
            result = every | ~some
        store(frame, group, dst, _all_lanes(result))

    return handler


def active_mask(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """activemask: the lanes that execute it together."""
    dst = context.operands.target(items[0], U32)

    def handler(frame: Frame, group: Group) -> None:
        store(frame, group, dst, _all_lanes(ballot(_active(group))))

    return handler


def match(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """match.any / match.all: the active lanes that hold the same value."""
    operands = context.operands
    dtype = UNSIGNED[TYPES[modifiers[-1]].itemsize]
    every = "all" in modifiers
    writes = operands.writings(items[0], U32, BOOL)
    a = operands.source(items[1], dtype)

    def handler(frame: Frame, group: Group) -> None:
        value = _table(as_type(frame[a], dtype), group)
        active = _active(group)
        members = ballot(active)
        if every:
            low = np.where(active, value, dtype.type(np.iinfo(dtype).max)).min(axis=1)
            high = np.where(active, value, dtype.type(0)).max(axis=1)
            same = low == high
            writes[0](frame, group, _all_lanes(np.where(same, members, np.uint32(0))))
            for write in writes[1:]:
                write(frame, group, _all_lanes(same))
            return
        out = np.zeros(value.shape, dtype=U32)
        for lane in range(WARP_SIZE):
            equal = (value == value[:, lane : lane + 1]) & active[:, lane : lane + 1]
            out |= np.where(equal, _BIT[lane], np.uint32(0))
        writes[0](frame, group, out.reshape(-1))

    return handler


def reduce(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """redux.sync: add, min, max, and, or, xor over the active lanes of the member mask."""
    operands = context.operands
    mode = next(m for m in modifiers if m in ("add", "min", "max", "and", "or", "xor"))
    dtype = TYPES[modifiers[-1]]
    if dtype.itemsize != 4:
        raise UnsupportedError("redux type")
    dst, a = operands.target(items[0], dtype), operands.source(items[1], dtype)
    members = operands.source(items[2], U32)
    low: float
    high: float
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    start = {"add": 0, "or": 0, "xor": 0, "min": high, "max": low}.get(mode)
    filler = dtype.type(start) if start is not None else as_type(np.full(1, -1, S32), dtype)[0]
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[mode]  # fmt: skip

    def handler(frame: Frame, group: Group) -> None:
        mask = _table(as_type(frame[members], U32), group)
        chosen = _active(group) & ((mask & _BIT) != 0)
        value = np.where(chosen, _table(as_type(frame[a], dtype), group), filler)
        result = function.reduce(value, axis=1, dtype=dtype)
        store(frame, group, dst, _all_lanes(result))

    return handler


def elect(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """elect.sync: the lowest active lane of the member mask."""
    operands = context.operands
    target = items[0]
    if not isinstance(target, ir.Pair):
        raise UnsupportedError("elect form")
    dst, flag = operands.target(target.first, U32), operands.target(target.second, BOOL)
    members = operands.source(items[1], U32)

    def handler(frame: Frame, group: Group) -> None:
        mask = _table(as_type(frame[members], U32), group)
        leader = (_active(group) & ((mask & _BIT) != 0)).argmax(axis=1)
        store(frame, group, dst, _all_lanes(leader.astype(U32)))
        store(frame, group, flag, (leader[:, None] == _LANE).reshape(-1))

    return handler


Builder = Callable[[Context, tuple[str, ...], Items], Handler | None]

BUILDERS: dict[str, Builder] = {
    "shfl": shuffle,
    "vote": vote,
    "activemask": active_mask,
    "match": match,
    "redux": reduce,
    "elect": elect,
}
