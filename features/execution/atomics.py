"""Handlers of atom and red (PTX ISA 8.x, sections 9.7.13.4 and 9.7.13.5).

All threads of a group act in the order of their numbers, as if one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wattcast.features.execution import access
from wattcast.features.execution.context import (
    TRASH,
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    space_of,
)
from wattcast.features.execution.integer import Function
from wattcast.features.execution.loads import addresses, by_window
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import F16, TYPES, Array, DType, Group, as_type
from wattcast.features.memory import changes, distinct

Flat = npt.NDArray[np.int64]


# Operations that accumulate in any order of equal addresses through ufunc.at.
_UFUNCS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _vectorised(name: str) -> Function:
    if name in _UFUNCS:
        found: Function = _UFUNCS[name]
        return found
    table: dict[str, Function] = {
        "exch": lambda old, b: b,
        "inc": lambda old, b: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
    }
    if name not in table:
        raise UnsupportedError(f"atomic operation {name}")
    return table[name]


def combine(
    name: str, current: Array, group_of: Flat, b: Array, c: Array | None, need_old: bool
) -> tuple[Array, Array | None]:
    """Apply an operation of several threads to fewer memory cells, in thread order.

    ``current`` holds the cells; ``group_of`` says which cell each thread acts on. Returns the
    cells afterwards and, if wanted, what each thread found.
    """
    cells = current.copy()
    if not need_old and name in _UFUNCS:
        _UFUNCS[name].at(cells, group_of, b)
        return cells, None
    order = np.argsort(group_of, kind="stable")
    sorted_groups = group_of[order]
    starts = np.flatnonzero(changes(sorted_groups))
    lengths = np.diff(np.r_[starts, group_of.size])
    if starts.size < int(lengths.max()):
        return _by_cell(name, cells, sorted_groups[starts], starts, lengths, order, b, c)
    # In rounds: the first thread of every cell, then the second... (bounded by the threads).
    old = np.empty(group_of.shape, dtype=current.dtype)
    function = None if name == "cas" else _vectorised(name)
    for rank in range(int(lengths.max())):
        alive = starts[lengths > rank] + rank
        threads = order[alive]
        target = group_of[threads]
        found = cells[target]
        old[threads] = found
        if function is None:
            swap = b[threads]
            assert c is not None
            cells[target] = np.where(found == swap, c[threads], found)
        else:
            cells[target] = function(found, b[threads])
    return cells, old


def _by_cell(
    name: str, cells: Array, targets: Flat, starts: Flat, lengths: Flat, order: Flat,
    b: Array, c: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    """Few cells and many threads on each: one cell after the other."""
    old = np.empty(order.shape, dtype=cells.dtype)
    for target, start, length in zip(targets, starts, lengths, strict=True):
        threads = order[start : start + length]
        values = b[threads]
        if name in _UFUNCS:
            several = np.concatenate([cells[target : target + 1], values])
            running = _UFUNCS[name].accumulate(several, dtype=cells.dtype)
            found, last = running[:-1], running[-1]
        elif name == "exch":
            found, last = np.concatenate([cells[target : target + 1], values[:-1]]), values[-1]
        else:
            swap = None if c is None else c[threads]
            found, last = _one_by_one(name, cells[target], values, swap)
        old[threads] = found
        cells[target] = last
    return cells, old


def _one_by_one(
    name: str, value: Any, given: Array, replacement: Array | None
) -> tuple[Array, Any]:
    """cas, inc and dec of many threads on one cell."""
    found = np.empty_like(given)
    held = int(value)
    for k, limit in enumerate(given.tolist()):
        found[k] = held
        if name == "inc":
            held = 0 if held >= limit else held + 1
        elif name == "dec":
            held = limit if held == 0 or held > limit else held - 1
        elif held == limit:
            assert replacement is not None
            held = int(replacement[k])
    return found, held


def _perform(
    name: str, read: Callable[[Flat], Array], write: Callable[[Flat, Array], None], where: Flat,
    b: Array, c: Array | None, need_old: bool,
) -> Array | None:  # fmt: skip
    unique = distinct(where)
    if unique.size == where.size:
        old = read(where)
        if name == "cas":
            assert c is not None
            write(where, np.where(old == b, c, old))
        else:
            write(where, _vectorised(name)(old, b).astype(old.dtype, copy=False))
        return old
    cells, found = combine(name, read(unique), np.searchsorted(unique, where), b, c, need_old)
    write(unique, cells)
    return found


_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"})


def build(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """atom and red, scalar, vector and packed. Raises UnsupportedError."""
    name = next((m for m in modifiers if m in _OPERATIONS), None)
    kind = next((m for m in reversed(modifiers) if m in TYPES), "")
    if name is None or not kind or kind == "b128":
        raise UnsupportedError("atomic form")
    space = space_of(modifiers)
    need_old = context.instruction.base == "atom"
    operands = context.operands
    count = next((n for m, n in (("v2", 2), ("v4", 4), ("v8", 8)) if m in modifiers), 1)
    dtype = F16 if kind in ("f16", "f16x2") else TYPES[kind]
    lanes = count * (2 if kind == "f16x2" else 1)
    if kind in ("bf16", "bf16x2"):
        raise UnsupportedError("bf16 atomics")
    register = TYPES[kind]
    rest = items[1:] if need_old else items
    slot, offset = operands.address(rest[0])
    outs = elements(items[0]) if need_old else ()
    writes = [operands.writing(o, register) for o in outs]
    need_old = any(operands.target(o, register) != TRASH for o in outs)
    sources = [operands.source(o, register) for o in elements(rest[1])]
    third = operands.source(rest[2], register) if name == "cas" else None
    width = register.itemsize * count
    site = context.site(space, width, loads=True, stores=True, atomic=True)

    def parts(frame: Frame, slots: list[int], group: Group) -> list[Array]:
        """One array per memory element, for the active threads."""
        values: list[Array] = []
        for source in slots:
            held = np.broadcast_to(as_type(frame[source], register), (group.machine.count,))
            held = held if group.everyone else held[group.index]
            if kind == "f16x2":
                pairs = np.ascontiguousarray(held).view(F16).reshape(-1, 2)
                values += [pairs[:, 0], pairs[:, 1]]
            else:
                values.append(held)
        return values

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        where = addresses(frame, slot, offset)
        values = parts(frame, sources, group)
        swap = parts(frame, [third], group)[0] if third is not None else None
        found = [np.zeros(group.count, dtype=dtype) for _ in range(lanes)]
        index = group.index
        for window, part in _by_space(space, where, group):
            chosen = slice(None) if part is group else np.searchsorted(index, part.index)
            offsets = access.in_window(where) if space == "generic" else where
            for k in range(lanes):
                old = _memory(
                    site, window, offsets + dtype.itemsize * k if k else offsets, part, name,
                    values[k][chosen], None if swap is None else swap[chosen], need_old, dtype,
                    counted=k == 0,
                )  # fmt: skip
                if old is not None:
                    found[k][chosen] = old
        if not need_old:
            return
        if kind == "f16x2":
            found = [
                np.ascontiguousarray(np.stack(found[2 * k : 2 * k + 2], axis=1)).view(register)[
                    :, 0
                ]
                for k in range(count)
            ]
        for write, value in zip(writes, found, strict=True):
            full = np.zeros(machine.count, dtype=register)
            full[index] = value.view(register) if value.dtype is not register else value
            write(frame, group, full)

    return handler


def _by_space(space: str, where: Offsets, group: Group) -> list[tuple[int, Group]]:
    if space == "generic":
        return by_window(where, group)
    return [({"shared": access.SHARED_WINDOW, "local": access.LOCAL_WINDOW}.get(space, 0), group)]


def _memory(
    site: access.Site, window: int, where: Offsets, group: Group, name: str, b: Array,
    c: Array | None, need_old: bool, dtype: DType, *, counted: bool,
) -> Array | None:  # fmt: skip
    machine = group.machine
    tally = machine.tallies[site.number]
    size = dtype.itemsize
    if window:
        memory = machine.shared if window == access.SHARED_WINDOW else machine.local
        if counted and window == access.SHARED_WINDOW:
            tally.count_shared(where, site.width, group)
            if tally.contention is not None:
                tally.contention.count(where, group, shared=True)
        positions, inside = access.private_positions(site, memory, where, group, size)
        positions = positions & ~np.int64(size - 1)
        if inside is not None:
            positions = np.where(inside, positions, memory.origin[group.index])
        return _perform(
            name, lambda p: memory.read(p, dtype), memory.write, positions, b, c, need_old
        )
    if counted:
        tally.count_global(where, group)
        if tally.contention is not None:
            tally.contention.count(where, group, shared=False)
    if where.shape[0] == 1:
        flat = np.broadcast_to(where, (group.count,))
    else:
        flat = where if group.everyone else where[group.index]
    flat = flat & ~np.int64(size - 1)
    numbers = machine.memory.sort_out(flat)

    def act(number: int, where: Offsets, b: Array, c: Array | None) -> Array | None:
        region = machine.memory.regions[number]
        return _perform(
            name, lambda p: region.read(p, dtype, site.role), region.write, where - region.base,
            b, c, need_old,
        )  # fmt: skip

    first = int(numbers[0])
    if first >= 0 and (numbers == first).all():
        return act(first, flat, b, c)
    out = np.zeros(group.count, dtype=dtype)
    for number in distinct(numbers):
        chosen = numbers == number
        if number < 0:
            machine.complain_address(site, int(flat[chosen][0]), "ignored")
            continue
        old = act(int(number), flat[chosen], b[chosen], None if c is None else c[chosen])
        if old is not None:
            out[chosen] = old
    return out
