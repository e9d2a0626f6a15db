"""From one instruction to its handler."""

from __future__ import annotations

from wattcast.features.cfg import BRANCHES, RETURNS
from wattcast.features.execution import alu, atomics, barriers, bulk, loads, matrix, textures, warp
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


def decode(context: Context, one: ir.Instruction) -> Handler | None:
    """The handler of an instruction that does not end a run; ``None`` if it does nothing.

    Raises UnsupportedError (or KeyError, IndexError for malformed ones) if it cannot be
    executed.
    """
    return _BUILDERS.get(one.base, _arithmetic)(context, one.modifiers, one.operands)


def _nothing(context: Context, modifiers: tuple[str, ...], items: Items) -> None:
    return None


def _store(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    build = bulk.asynchronous if modifiers[0] in ("async", "bulk") else loads.save
    return build(context, modifiers, items)


def _atomic(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    build = bulk.asynchronous if "async" in modifiers else atomics.build
    return build(context, modifiers, items)


def _copy(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    if "bulk" in modifiers:
        return bulk.build(context, modifiers, items)
    if "mbarrier" in modifiers:
        return barriers.build(context, modifiers, items)
    return loads.copy_async(context, modifiers, items) if len(items) >= 3 else None


def _arithmetic(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler:
    one = context.instruction
    handler = alu.build(one.base, modifiers, items, context.operands)
    if handler is None:
        raise UnsupportedError("not known")
    return _watched_division(context, items, handler) if has_long_way(one) else handler


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
    return base not in _BUILDERS or base in _COUNTED_ALIKE


def _arrive(context: Context, modifiers: tuple[str, ...], items: Items) -> Handler | None:
    if "arrive" not in modifiers or "cluster" in modifiers:
        return None
    number = context.operands.source(items[0], U32)

    def handler(frame: Frame, group: Group) -> None:
        barrier = spread(as_type(frame[number], U32), group.machine.count)[group.index[0]]
        group.machine.barriers.arrive(int(barrier), group)

    return handler


_COUNTED_ALIKE = frozenset({"shfl", "vote", "match", "redux", "mma", "movmatrix", "wgmma"})
"""Instructions on registers of several lanes: what they give decides nothing of their own count."""

_BUILDERS: dict[str, warp.Builder] = {
    **dict.fromkeys((*_SILENT, *RETURNS, *BRANCHES, "call"), _nothing),
    **dict.fromkeys(("bar", "barrier"), _arrive),
    **dict.fromkeys(("atom", "red"), _atomic),
    **dict.fromkeys(textures.TEXTURES, textures.build),
    "ld": loads.load, "ldu": loads.load, "st": _store, "cp": _copy, "mbarrier": barriers.build,
    **bulk.BUILDERS, **warp.BUILDERS, **matrix.BUILDERS,
}  # fmt: skip
