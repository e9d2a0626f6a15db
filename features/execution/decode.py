"""From one instruction to its handler."""

from __future__ import annotations

import numpy as np

from wattcast.features.execution import (
    alu,
    atomics,
    bulk,
    clusters,
    loads,
    matrix,
    mbarriers,
    warp,
    warpgroup,
)
from wattcast.features.execution.context import Context
from wattcast.features.execution.floating import is_long_division
from wattcast.features.execution.groups import Group
from wattcast.features.execution.operands import (
    TRASH,
    Frame,
    Handler,
    Items,
    UnsupportedError,
    elements,
    store,
)
from wattcast.features.execution.values import F32, S32, TYPES, U32, U64, Array, as_type, spread
from wattcast.features.integers import UNSIGNED
from wattcast.features.ptx import ir

# Order memory, wait for copies or hint at caches: nothing to do where every access is at once.
_SILENT = frozenset({
    "membar", "fence", "prefetch", "prefetchu", "pragma", "nanosleep", "discard", "applypriority",
    "createpolicy", "griddepcontrol", "setmaxnreg", "brkpt", "pmevent", "istypep", "alloca",
    "stacksave", "stackrestore", "tensormap",
})  # fmt: skip

_MEMORY: dict[str, warp.Builder] = {"ld": loads.load, "ldu": loads.load, "st": loads.save}


def decode(context: Context, one: ir.Instruction) -> Handler | None:
    """The handler of an instruction that does not end a run; ``None`` if it does nothing.

    Raises UnsupportedError (or KeyError, IndexError for malformed ones) if it cannot be
    executed.
    """
    base, _, rest = one.opcode.partition(".")
    modifiers = tuple(rest.split(".")) if rest else ()
    items = one.operands
    if base in ("bar", "barrier"):
        arrives = "arrive" in modifiers and "cluster" not in modifiers
        return _arrive(context, items) if arrives else None
    if base in _SILENT:
        return None
    if base == "st" and modifiers[0] in ("async", "bulk"):
        return clusters.asynchronous(context, base, modifiers, items)
    if base in _MEMORY:
        return _MEMORY[base](context, modifiers, items)
    if base in ("atom", "red"):
        if "async" in modifiers:
            return clusters.asynchronous(context, base, modifiers, items)
        return atomics.build(context, base, modifiers, items)
    if base == "cp":
        if "bulk" in modifiers:
            return bulk.build(context, modifiers, items)
        if "mbarrier" in modifiers:
            return mbarriers.build(context, modifiers, items)
        return loads.copy_async(context, modifiers, items) if len(items) >= 3 else None
    if base == "mbarrier":
        return mbarriers.build(context, modifiers, items)
    if base == "wgmma":
        return warpgroup.build(context, modifiers, items)
    if base == "tcgen05":
        return warpgroup.build_fifth(context, modifiers, items)
    if base in clusters.BUILDERS:
        return clusters.BUILDERS[base](context, modifiers, items)
    if base in warp.BUILDERS:
        return warp.BUILDERS[base](context, modifiers, items)
    if base in matrix.BUILDERS:
        return matrix.BUILDERS[base](context, modifiers, items)
    if base in TEXTURES:
        return fetch(context, base, modifiers, items)
    if base == "cvt" and any(isinstance(item, ir.Vector) for item in items):
        items = tuple(part for item in items for part in elements(item))
    handler = alu.build(base, modifiers, items, context.operands, precise=context.precise)
    if handler is None:
        raise UnsupportedError("not known")
    if has_long_way(one):
        return _watched_division(context, items, handler)
    return handler


def _watched_division(context: Context, items: Items, handler: Handler) -> Handler:
    """Also counts the warps of which a lane takes the long way (``floating.is_long_division``)."""
    site = context.site("none", 0)
    dividend, divisor = (context.operands.source(each, F32) for each in items[1:3])

    def watched(frame: Frame, group: Group) -> None:
        long = is_long_division(as_type(frame[dividend], F32), as_type(frame[divisor], F32))
        group.machine.tallies[site.number].count_long_ways(long, group)
        handler(frame, group)

    return watched


def has_long_way(one: ir.Instruction) -> bool:
    """Whether operands decide how many machine instructions it is: a division rounded to f32."""
    modifiers = one.opcode.split(".")
    return (
        modifiers[0] == "div" and modifiers[-1] == "f32" and not {"approx", "full"} & {*modifiers}
    )


def is_plain(one: ir.Instruction) -> bool:
    """Whether an instruction only computes registers from registers, and counts always alike."""
    base, _, rest = one.opcode.partition(".")
    if base in matrix.BUILDERS:
        return base == "mma" or rest.startswith("mma.")
    if base == "tcgen05":  # moves and multiplies what is in tensor memory
        return rest.startswith(("mma", "ld.", "st.", "cp.", "shift", "dealloc", "wait"))
    if base == "clusterlaunchcontrol":  # what it says of a cancelled block is always the same
        return rest.startswith("query_cancel")
    if base in ("shfl", "vote", "match", "redux"):  # of registers of other lanes, counted alike
        return True
    others = (_SPECIAL, _SILENT, _MEMORY, warp.BUILDERS, clusters.BUILDERS, TEXTURES)
    return not any(base in names for names in others)


_SPECIAL = frozenset(
    {
        "bar", "barrier", "atom", "red", "cp", "bra", "brx", "ret", "exit", "trap", "call",
        "mbarrier",
    }
)  # fmt: skip


def _arrive(context: Context, items: Items) -> Handler:
    number = context.operands.source(items[0], U32)

    def handler(frame: Frame, group: Group) -> None:
        barrier = spread(as_type(frame[number], U32), group.machine.count)[group.index[0]]
        group.machine.barriers.arrive(int(barrier), group)

    return handler


# --- textures and surfaces: fetched values are invented (PTX ISA 8.x, 9.7.10-11) ------------------

TEXTURES = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
_RANDOM = np.random.default_rng(20260101).random(1 << 12)


def fetch(context: Context, base: str, modifiers: tuple[str, ...], items: Items) -> Handler:
    """A fetch gives each thread a value in [0, 1) (integers: [0, 256)) by its coordinates."""
    operands = context.operands
    types = [m for m in modifiers if m in TYPES]
    result = TYPES[types[0]] if types else F32
    if base == "tex" and len(types) > 1:
        result = TYPES[types[-2]]
    site = context.site("texture", 4, loads=base != "sust", stores=base in ("sust", "sured"))
    if base in ("sust", "sured"):

        def surface(frame: Frame, group: Group) -> None:
            group.machine.tallies[site.number].requests += group.warps

        return surface
    outs = [operands.target(o, result) for o in elements(items[0])]
    fits = [operands.writer(o, result) for o in outs]
    address = items[1]
    coordinates: list[int] = []
    if isinstance(address, ir.Address):
        for item in address.coordinates:
            parts = [p for p in elements(item) if isinstance(p, ir.Register | ir.Immediate)]
            coordinates += [operands.source(p, S32) for p in parts]
    texture = None
    if isinstance(address, ir.Address) and isinstance(address.base, ir.Register):
        texture = operands.source(address.base, U64)
    by_float = bool(types) and types[-1] == "f32"

    def texel(frame: Frame, group: Group) -> Array | None:
        """A texel of a given image: point sampling, clamped, coordinates not normalised."""
        images = group.machine.textures
        if texture is None or not images:
            return None
        image = images.get(int(frame[texture].reshape(-1)[0]))
        if image is None:
            return None
        places = []
        for slot, size in zip(coordinates, reversed(image.shape), strict=False):
            held = as_type(frame[slot], F32 if by_float else S32)
            whole = np.floor(held.astype(np.float64)).astype(np.int64)
            places.append(np.clip(whole, 0, size - 1))
        return image[tuple(reversed(places))]

    def handler(frame: Frame, group: Group) -> None:
        machine = group.machine
        machine.tallies[site.number].requests += group.warps
        found = texel(frame, group) if base == "tex" else None
        if found is not None:
            for out, value in zip(outs, (found, 0, 0, 1), strict=False):
                if out != TRASH:
                    channel = spread(np.atleast_1d(np.asarray(value)).astype(result), machine.count)
                    store(frame, group, out, channel)
            return
        mixed: Array = np.zeros(1, dtype=np.uint64)
        for slot in coordinates:
            held = frame[slot]
            bits = as_type(held, UNSIGNED[held.dtype.itemsize]).astype(np.uint64)
            mixed = mixed * np.uint64(2654435761) + (bits ^ (bits >> np.uint64(15)))
        for k, (out, fit) in enumerate(zip(outs, fits, strict=True)):
            if out == TRASH:
                continue
            values = _RANDOM[((mixed + np.uint64(977 * k)) & np.uint64(0xFFF)).astype(np.intp)]
            whole = (values * 256).astype(result) if result.kind != "f" else values.astype(result)
            whole = spread(whole, machine.count)
            store(frame, group, out, fit(whole) if fit else whole)

    return handler
