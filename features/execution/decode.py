"""From one instruction to its handler."""

from __future__ import annotations

from wattcast.features.execution import alu, atomics, barriers, bulk, loads, matrix, textures, warp
from wattcast.features.execution import bulk as clusters
from wattcast.features.execution.context import (
    Context,
    Frame,
    Handler,
    Items,
    UnsupportedError,
)
from wattcast.features.execution.floating import is_long_division
from wattcast.features.execution.values import F32, U32, Group, as_type, spread
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
            return barriers.build(context, modifiers, items)
        return loads.copy_async(context, modifiers, items) if len(items) >= 3 else None
    if base == "mbarrier":
        return barriers.build(context, modifiers, items)
    if base in clusters.BUILDERS:
        return clusters.BUILDERS[base](context, modifiers, items)
    if base in warp.BUILDERS:
        return warp.BUILDERS[base](context, modifiers, items)
    if base in matrix.BUILDERS:
        return matrix.BUILDERS[base](context, modifiers, items)
    if base in textures.TEXTURES:
        return textures.build(context, base, modifiers, items)
    handler = alu.build(base, modifiers, items, context.operands)
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
    if base == "wmma":
        return rest.startswith("mma.")
    if base == "tcgen05":  # moves and multiplies what is in tensor memory
        return rest.startswith(("mma", "ld.", "st.", "cp.", "shift", "dealloc", "wait"))
    if base == "clusterlaunchcontrol":  # what it says of a cancelled block is always the same
        return rest.startswith("query_cancel")
    if base in ("shfl", "vote", "match", "redux"):  # of registers of other lanes, counted alike
        return True
    others = (_SPECIAL, _SILENT, _MEMORY, warp.BUILDERS, clusters.BUILDERS, textures.TEXTURES)
    return not any(base in names for names in others)


_SPECIAL = frozenset(
    {
        "bar", "barrier", "atom", "red", "cp", "bra", "brx", "ret", "exit", "trap", "call",
        "mbarrier", "ldmatrix", "stmatrix",
    }
)  # fmt: skip


def _arrive(context: Context, items: Items) -> Handler:
    number = context.operands.source(items[0], U32)

    def handler(frame: Frame, group: Group) -> None:
        barrier = spread(as_type(frame[number], U32), group.machine.count)[group.index[0]]
        group.machine.barriers.arrive(int(barrier), group)

    return handler
