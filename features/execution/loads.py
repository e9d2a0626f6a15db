"""Handlers of ld, st and their kin (PTX ISA 8.x, section 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wattcast.features.execution import access
from wattcast.features.execution.context import (
    PARAMETERS,
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    space_of,
)
from wattcast.features.execution.spaces import Offsets
from wattcast.features.execution.values import (
    S64,
    TYPES,
    U64,
    U128,
    Array,
    DType,
    Group,
    as_type,
    spread,
)
from wattcast.features.integers import UNSIGNED
from wattcast.features.memory import distinct
from wattcast.features.ptx import ir
from wattcast.features.wide_loads import joined_loads

_COUNTS = {"v2": 2, "v4": 4, "v8": 8}


def _shape(modifiers: tuple[str, ...]) -> tuple[DType, int]:
    kind = modifiers[-1] if modifiers else ""
    if kind not in TYPES:
        raise UnsupportedError(f"access of type {kind or 'none'}")
    return TYPES[kind], next((_COUNTS[m] for m in modifiers if m in _COUNTS), 1)


def addresses(frame: Frame, slot: int, offset: int) -> Offsets:
    """The byte address of each thread (or one for all), as int64."""
    held: Array = frame[slot]
    if held.dtype.itemsize != 8:
        held = as_type(held, U64)
    base = held if held.dtype is S64 else held.view(S64)
    return base + offset if offset else base


# --- parameters -----------------------------------------------------------------------------


def pick_bytes(stored: dict[int, Array], offset: int, dtype: DType) -> Array:
    """A value of a parameter variable written in pieces of other sizes."""
    size = dtype.itemsize
    out = np.zeros(1, dtype=U64)
    for start, value in stored.items():
        width = value.dtype.itemsize
        if start + width <= offset or start >= offset + size:
            continue
        bits = as_type(value, UNSIGNED[width]).astype(U64)
        shift = (start - offset) * 8
        out = out | (bits << np.uint64(shift) if shift >= 0 else bits >> np.uint64(-shift))
    return as_type(out, UNSIGNED[size]).view(dtype)


def _parameter_address(operand: ir.Operand) -> tuple[str, int]:
    place = ir.place_of(operand)
    if place is not None:
        return place
    if isinstance(operand, ir.Symbol):
        return operand.name, operand.offset
    raise UnsupportedError("parameter addressed through a register")


def _load_parameter(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    dtype, count = _shape(modifiers)
    operands = context.operands
    writes = [operands.writing(o, dtype) for o in elements(items[0])]
    name, offset = _parameter_address(items[1])
    size = dtype.itemsize
    if name in context.parameters:
        start = context.parameters[name] + offset
        sources = [
            operands.slots.special(f"!parameter.{start + size * k}.{dtype.str}")
            for k in range(count)
        ]

        def kernel(frame: Frame, group: Group) -> None:
            for source, write in zip(sources, writes, strict=True):
                write(frame, group, frame[source])

        return kernel

    def handler(frame: Frame, group: Group) -> None:
        stored = frame[PARAMETERS].get(name, {})
        for k, write in enumerate(writes):
            held = stored.get(offset + size * k)
            if held is not None and held.dtype.itemsize == size:
                value = as_type(held, dtype)
            else:
                value = pick_bytes(stored, offset + size * k, dtype)
            write(frame, group, value)

    return handler


def _store_parameter(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    dtype, _ = _shape(modifiers)
    raw = UNSIGNED[dtype.itemsize]
    operands = context.operands
    name, offset = _parameter_address(items[0])
    sources = [operands.source(o, dtype) for o in elements(items[1])]

    def handler(frame: Frame, group: Group) -> None:
        stored = frame[PARAMETERS].setdefault(name, {})
        for k, source in enumerate(sources):
            put_parameter(stored, offset + raw.itemsize * k, as_type(frame[source], raw), group)

    return handler


def put_parameter(stored: dict[int, Array], offset: int, value: Array, group: Group) -> None:
    """Write a piece of a parameter variable for the group's threads."""
    if not group.full:
        old = stored.get(offset)
        if old is None or old.dtype.itemsize != value.dtype.itemsize:
            old = pick_bytes(stored, offset, UNSIGNED[value.dtype.itemsize])
        value = np.where(group.mask, value, old.view(value.dtype))
    width = value.dtype.itemsize
    for start in [
        s for s in stored if s < offset + width and s + stored[s].dtype.itemsize > offset
    ]:
        if start != offset or stored[start].dtype.itemsize != width:
            _split(stored, start)
    for start in [s for s in stored if offset < s < offset + width]:
        del stored[start]
    stored[offset] = value


def _split(stored: dict[int, Array], start: int) -> None:
    """Break a piece into bytes, so that part of it can be replaced."""
    value = stored.pop(start)
    width = value.dtype.itemsize
    bits = as_type(value, UNSIGNED[width])
    for k in range(width):
        stored[start + k] = (bits >> bits.dtype.type(8 * k)).astype(UNSIGNED[1])


# --- loads and stores ----------------------------------------------------------------------------

Act = Callable[..., Any]


def by_space(site: access.Site, width: int, private: Act, far: Act) -> Act:
    """An access of ``width`` bytes a lane: counted in the site's space and done there, by
    ``private`` in shared and local memory, by ``far`` elsewhere (``access``). It takes addresses,
    the group, and what follows these in both."""

    def shared(where: Offsets, group: Group, *values: Any) -> Any:
        machine = group.machine
        machine.tallies[site.number].count_shared(where, max(width, site.width), group)
        return private(site, machine.shared, where, group, *values)

    def local(where: Offsets, group: Group, *values: Any) -> Any:
        machine = group.machine
        machine.tallies[site.number].count_local(where, width, group)
        return private(site, machine.local, where, group, *values)

    def constant(where: Offsets, group: Group, *values: Any) -> Any:
        tally = group.machine.tallies[site.number]
        tally.count_constant(where, group)
        return far(site, tally, where, group, *values)

    def memory(where: Offsets, group: Group, *values: Any) -> Any:
        tally = group.machine.tallies[site.number]
        tally.count_global(where, group, width if site.loads else 0)
        return far(site, tally, where, group, *values)

    def generic(where: Offsets, group: Group, *values: Any) -> Any:
        inside = access.in_window(where)
        parts = [
            (part, windows[window](inside, part, *values))
            for window, part in by_window(where, group)
        ]
        first = parts[0][1]
        if len(parts) == 1 or first is None:
            return first
        out = [np.zeros(group.machine.count, dtype=each.dtype) for each in first]
        for part, found in parts:
            for total, piece in zip(out, found, strict=True):
                np.copyto(total, piece, where=part.mask)
        return out

    windows = {0: memory, access.SHARED_WINDOW: shared, access.LOCAL_WINDOW: local}
    named = {
        "shared": shared, "local": local, "const": constant, "param": constant, "generic": generic,
    }  # fmt: skip
    return named.get(site.space, memory)


def reader(site: access.Site, dtype: DType, count: int, *, idle: bool = False) -> Act:
    """Counts and reads ``count`` consecutive values; ``idle``: only counts."""
    private = access.touch_private if idle else access.read_private
    far = access.touch_global if idle else access.read_global
    act = by_space(site, dtype.itemsize * count, private, far)
    return lambda where, group: act(where, group, dtype, count)


def by_window(where: Offsets, group: Group) -> list[tuple[int, Group]]:
    """The group's threads by the window their generic addresses lie in."""
    found = access.windows(where)
    if found.shape[0] == 1:
        return [(_known(int(found[0])), group)]
    active = found if group.everyone else found[group.index]
    first = int(active[0])
    if (active == first).all():
        return [(_known(first), group)]
    parts = []
    for window in distinct(active):
        part = group.narrowed(found == window, negated=False)
        if part is not None:
            parts.append((_known(int(window)), part))
    return parts


def _known(window: int) -> int:
    return window if window in (access.SHARED_WINDOW, access.LOCAL_WINDOW) else 0


def load(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """ld, ldu. Raises UnsupportedError for types it does not know."""
    space = space_of(modifiers)
    if space == "param" and not (
        isinstance(items[1], ir.Address) and isinstance(items[1].base, ir.Register)
    ):
        return _load_parameter(context, modifiers, items)
    dtype, count = _shape(modifiers)
    operands = context.operands
    outs = elements(items[0])
    if len(outs) != count:
        raise UnsupportedError(f"{len(outs)} registers for {count} values")
    writes = [operands.writing(o, dtype) for o in outs]
    whole = dtype is U128
    if whole:
        dtype, count = U64, 2
    slot, offset = operands.address(items[1])
    names = [o.name for o in outs if isinstance(o, ir.Register)]
    role = next((context.roles[n] for n in names if n in context.roles), "int")
    width = dtype.itemsize * count
    if space == "shared":
        width = max(width, int(joined_loads(context.body).bytes[context.instruction.position]))
    site = context.site(space, width, loads=True, role=role)
    idle = context.idle
    read = reader(site, dtype, count, idle=idle)

    def handler(frame: Frame, group: Group) -> None:
        values = read(addresses(frame, slot, offset), group)
        if idle:
            return
        if whole:
            values = [np.stack(np.broadcast_arrays(*values), axis=-1).view(U128)[:, 0]]
        for write, value in zip(writes, values, strict=True):
            write(frame, group, value)

    return handler


def save(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """st. Raises UnsupportedError for types it does not know."""
    space = space_of(modifiers)
    if space == "param":
        return _store_parameter(context, modifiers, items)
    dtype, count = _shape(modifiers)
    operands = context.operands
    stored = elements(items[1])
    if len(stored) != count:
        raise UnsupportedError(f"{len(stored)} registers for {count} values")
    sources = [operands.source(o, dtype) for o in stored]
    slot, offset = operands.address(items[0])
    site = context.site(space, dtype.itemsize * count, stores=True)
    whole = dtype is U128
    if whole:
        dtype, count = U64, 2
    idle = context.idle
    touch = reader(site, dtype, count, idle=True)
    write = by_space(site, site.width, access.write_private, access.write_global)

    def handler(frame: Frame, group: Group) -> None:
        where = addresses(frame, slot, offset)
        if idle:
            touch(where, group)
            return
        if whole:
            held = as_type(frame[sources[0]], U128)
            values = [np.ascontiguousarray(held[half]) for half in ("low", "high")]
        else:
            values = [as_type(frame[s], dtype) for s in sources]
        write(where, group, values)

    return handler


def copy_async(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """cp.async.ca/cg: 4, 8 or 16 bytes from global to shared memory, zero-filled past src-size.

    The global side is counted as sectors of this instruction, the shared side as its shared
    transactions. The copy is done at once: nothing may read it before the wait anyway.
    """
    operands = context.operands
    size = items[2]
    if not isinstance(size, ir.Immediate):
        raise UnsupportedError("cp.async size")
    width = int(size.value)
    count = width // 4
    dtype = UNSIGNED[4]
    to_slot, to_offset = operands.address(items[0])
    from_slot, from_offset = operands.address(items[1])
    ignore: tuple[int, bool] | None = None
    taken: int | None = None
    if len(items) > 3 and isinstance(items[3], ir.Register | ir.Negated):
        slot, negated = operands.predicate(items[3])
        if operands.slots.sizes[slot] == 0:
            ignore = slot, negated
        else:
            taken = slot
    elif len(items) > 3:
        taken = operands.source(items[3], dtype)
    site = context.site("global", width, loads=True, stores=True)
    # A second site of the same instruction holds the shared side.
    shared = context.site("shared", width, stores=True)
    idle = context.idle

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        tally = machine.tallies[site.number]
        where = addresses(frame, from_slot, from_offset)
        copied: Group | None = group
        if ignore is not None:
            copied = group.narrowed(as_type(frame[ignore[0]], np.dtype(np.bool_)), not ignore[1])
        elif taken is not None:
            copied = group.narrowed(as_type(frame[taken], dtype) != 0, False)
        values = [np.zeros(1, dtype=dtype)] * count
        if copied is not None:
            tally.count_global(where, copied, width)
            look = access.touch_global if idle else access.read_global
            read = look(site, tally, where, copied, dtype, count)
            if copied is group or idle:
                values = read
            else:
                mask = copied.mask
                values = [np.where(mask, spread(v, machine.count), dtype.type(0)) for v in read]
        if taken is not None:
            kept = as_type(frame[taken], dtype).astype(S64)
            values = [np.where(kept >= 4 * (k + 1), v, dtype.type(0)) for k, v in enumerate(values)]
        target = addresses(frame, to_slot, to_offset)
        machine.tallies[shared.number].count_shared(target, width, group)
        if idle:
            access.touch_private(shared, machine.shared, target, group, dtype, count)
            return
        access.write_private(shared, machine.shared, target, group, values)

    return handler
