"""Handlers of ld, st and their kin (PTX ISA 8.x, section 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from wattcast.features.attached import attached
from wattcast.features.dataflow import reads
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
from wattcast.features.execution.spaces import SPAN, Offsets
from wattcast.features.execution.values import (
    F32,
    S32,
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
    private, far = (partial(one, idle=idle) for one in (access.read_private, access.read_global))
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
            read = access.read_global(site, tally, where, copied, dtype, count, idle=idle)
            if copied is group or idle:
                values = read
            else:
                mask = copied.mask
                values = [np.where(mask, spread(v, machine.count), dtype.type(0)) for v in read]
        target = addresses(frame, to_slot, to_offset)
        machine.tallies[shared.number].count_shared(target, width, group)
        if idle:
            access.read_private(shared, machine.shared, target, group, dtype, count, idle=True)
            return
        if taken is not None:
            kept = as_type(frame[taken], dtype).astype(S64)
            values = [np.where(kept >= 4 * (k + 1), v, dtype.type(0)) for k, v in enumerate(values)]
        access.write_private(shared, machine.shared, target, group, values)

    return handler


# Textures and surfaces (PTX ISA 8.x, 9.7.10-11): where texels lie; what they hold is invented.
#
# Memory bound to a one-dimensional texture lies as it is. Arrays of two and three dimensions lie in
# blocks of 64 bytes and 8 rows: each of their sectors holds 16 bytes of two rows (X.Org, Nouveau,
# memory types: block linear).

TEXTURES = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
_RANDOM = np.random.default_rng(20260101).random(1 << 12)

MOST_ROW_BYTES, MOST_ROWS = 1 << 16, 1 << 15
"""Rows of an array lie as if it were that large: its true width is not known."""
_NARROW = {0xFFFF: 2, 0xFF: 1}
"""Masks that leave so many bytes of an integer."""


def fetch(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    """A fetch gives each thread a value in [0, 1) (integers: [0, 256)) by its coordinates, and
    counts the sectors of its texels; a surface is stored to where its coordinates say."""
    base, operands = context.instruction.base, context.operands
    types = [m for m in modifiers if m in TYPES]
    result = TYPES[types[0]] if types else F32
    if base == "tex" and len(types) > 1:
        result = TYPES[types[-2]]
    stores = base in ("sust", "sured")
    memory = base not in ("txq", "suq")
    site = context.site("texture" if memory else "none", 4, loads=base != "sust", stores=stores)
    address = next((item for item in items if isinstance(item, ir.Address)), None)
    coordinates: list[int] = []
    for item in address.coordinates if address else ():
        parts = [p for p in elements(item) if isinstance(p, ir.Register | ir.Immediate)]
        coordinates += [operands.source(p, S32) for p in parts]
    texture = None
    if address is not None and isinstance(address.base, ir.Register | ir.Symbol):
        texture = operands.source(address.base, U64)
    by_float = base in ("tex", "tld4") and bool(types) and types[-1] == "f32"
    layered = any(m.startswith("a") for m in modifiers[:3] if m in ("a1d", "a2d", "acube"))
    values = items[1] if stores and len(items) > 1 else items[0]
    size = 1 if base.startswith("su") else _texel_bytes(context.body, elements(values), result)

    def places(frame: Frame) -> list[Offsets]:
        """Whole coordinates, x first; of an array of textures the layer comes last."""
        held = [as_type(frame[slot], F32 if by_float else S32) for slot in coordinates]
        if layered and held:
            held = [*held[1:], as_type(frame[coordinates[0]], S32)]
        return [np.floor(each.astype(np.float64)).astype(np.int64) for each in held]

    def touch(frame: Frame, group: Group) -> None:
        machine = group.machine
        if texture is None or not coordinates or not memory:
            machine.tallies[site.number].requests += group.warps
            return
        where = as_type(frame[texture], U64).astype(S64) + _offsets(places(frame), size)
        machine.tallies[site.number].count_global(where, group)

    if stores:
        return touch
    writes = [operands.writing(o, result) for o in elements(items[0])]

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        touch(frame, group)
        mixed: Array = np.zeros(1, dtype=np.uint64)
        for slot in coordinates:
            held = frame[slot]
            bits = as_type(held, UNSIGNED[held.dtype.itemsize]).astype(np.uint64)
            mixed = mixed * np.uint64(2654435761) + (bits ^ (bits >> np.uint64(15)))
        for k, write in enumerate(writes):
            invented = _RANDOM[((mixed + np.uint64(977 * k)) & np.uint64(0xFFF)).astype(np.intp)]
            integers = result.kind != "f"
            whole = (invented * 256).astype(result) if integers else invented.astype(result)
            write(frame, group, spread(whole, machine.count))

    return handler


def _offsets(places: Sequence[Offsets], size: int) -> Offsets:
    """Byte offsets of texels of ``size`` bytes; coordinates beyond an edge are taken to it."""
    if len(places) == 1:
        return np.clip(places[0] * size, 0, SPAN - size)
    x = np.clip(places[0] * size, 0, MOST_ROW_BYTES - size)
    y = np.clip(places[1], 0, MOST_ROWS - 1)
    block = (y >> 3) * (MOST_ROW_BYTES >> 6) + (x >> 6)
    inside = ((x >> 5 & 1) << 8) | ((y >> 1 & 3) << 6) | ((x >> 4 & 1) << 5)
    found = (block << 9) + (inside | ((y & 1) << 4) | (x & 15))
    if len(places) > 2:
        plane = MOST_ROW_BYTES * MOST_ROWS
        found = found + np.clip(places[2], 0, SPAN // plane - 1) * plane
    return found


def _texel_bytes(body: ir.Body, outs: Sequence[ir.Operand], result: DType) -> int:
    """Bytes of a texel: of the channels that are read, four each but where all that reads one
    keeps less of it."""
    readers = _readers(body)
    used = [readers.get(out.name, ()) if isinstance(out, ir.Register) else () for out in outs]
    last = max((n for n, by in enumerate(used) if by), default=0)
    wide = max((_kept_bytes(one) for by in used for one in by), default=result.itemsize)
    channels = 1 << last.bit_length()
    return channels * min(wide, result.itemsize)


def _kept_bytes(one: ir.Instruction) -> int:
    """How many low bytes of a 32-bit integer an instruction looks at, as far as its name tells."""
    if one.base == "and":
        masks = [o.value for o in one.operands if isinstance(o, ir.Immediate)]
        return min((_NARROW.get(int(mask), 4) for mask in masks), default=4)
    if one.base == "cvt" and one.modifiers:
        kept = TYPES.get(one.modifiers[0])
        return kept.itemsize if kept is not None and kept.kind != "f" else 4
    return 4


@attached
def _readers(body: ir.Body) -> dict[str, list[ir.Instruction]]:
    found: dict[str, list[ir.Instruction]] = {}
    for one in body.instructions:
        for name in reads(one):
            found.setdefault(name, []).append(one)
    return found
