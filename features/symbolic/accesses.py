"""Sectors and bank conflicts of one access, exactly, where its address is known."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.isa import TILES, tile_lines
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import (
    SECTOR_BYTES,
    SECTOR_SHIFT,
    SECTORS_PER_LINE,
    bank_conflicts,
    distinct_per_row,
    l1_millicycles,
    sectors,
    shared_transactions,
)
from wattcast.features.symbolic.arith import Array, Missing, Val, Value, as_val
from wattcast.features.symbolic.evaluate import Context, Evaluator, Mask, State
from wattcast.features.symbolic.journal import Touched
from wattcast.features.symbolic.scheme import Access

MOST_CELLS = 1 << 22
"""Rows times lanes looked at for one access (32 MB of addresses); beyond, it is unknown."""

MOST_PHASES = 64
"""Different alignments of one access over the iterations of the loops around it."""

ACCESS_SPACES = frozenset({"global", "shared", "generic", "const"})
WORD_SHIFT = 2
"""Constant memory serves a warp one 4-byte word at a time (CUDA C++ Programming Guide, compute
capability 5.x: constant memory)."""


LINE_BYTES = SECTOR_BYTES * SECTORS_PER_LINE

Starts = tuple[tuple[int, float], ...]
"""Places in a line at which warps begin whose lanes lie evenly, and how many of the launch do."""


class Counting:
    """Counts lanes and warps of masks over the launch; keeps what accesses were found to do.

    ``warp_weights``: launch warps each sampled warp stands for.
    """

    def __init__(self, evaluator: Evaluator, warp_weights: npt.NDArray[np.float64]) -> None:
        self.evaluator = evaluator
        self.warp_weights = warp_weights
        self._counted: dict[tuple[int, int], tuple[Mask, Context, float, float]] = {}
        self.strides: dict[tuple[object, int], tuple[Mask, int | None, Array | None, Starts]] = {}
        self.patterns: dict[tuple[object, ...], Pattern] = {}

    def count(self, mask: Mask, context: Context) -> tuple[float, float]:
        """Launch totals of warps and lanes in a mask, over all rows."""
        key = (id(mask), id(context))
        kept = self._counted.get(key)
        if kept is not None and kept[0] is mask and kept[1] is context:
            return kept[2], kept[3]
        table = mask.reshape(mask.shape[0], -1, WARP_SIZE)
        lanes = table.sum(axis=2)
        weight = context.weight
        if mask.shape[0] != context.rows:
            weight = weight.sum(keepdims=True)
        warps = float(weight @ ((lanes > 0) @ self.warp_weights))
        total = float(weight @ (lanes @ self.warp_weights))
        self._counted[key] = (mask, context, warps, total)
        return warps, total

    def of_warps(self, mask: Mask, context: Context) -> npt.NDArray[np.float64]:
        """How often each sampled warp comes, over all rows."""
        here = mask.reshape(mask.shape[0], -1, WARP_SIZE).any(axis=2)
        weight = context.weight
        if mask.shape[0] != context.rows:
            weight = weight.sum(keepdims=True)
        found: npt.NDArray[np.float64] = weight @ here
        return found


def measure(walker: Counting, access: Access, context: Context, state: State) -> Touched:
    """What an access does for the lanes of ``state``. Unknown addresses are worst-case guesses.

    The guess: every lane its own sector in global memory, one transaction per request in
    shared and constant memory; it is marked by ``reason``.
    """
    requests, lanes = walker.count(state.mask, context)
    part = 1 if access.facts.category == "copy" and access.space != access.facts.space else 0
    if access.space not in ACCESS_SPACES:
        return Touched(access.position, part, requests, 0.0, 0.0, None, None, None)
    passes = access.space in ("shared", "const")
    unit = _unit(access)
    # Addresses that differ by a whole number of units share sectors and banks alike.
    key = (access.address, access.offset % unit, access.space, access.width, access.facts.entry)
    kept = walker.patterns.get(key)
    if kept is None or kept.context is not context or kept.mask is not state.mask:
        kept = walker.patterns[key] = _pattern(walker, access, context, state)
    if kept.reason is not None:
        moved = 0.0 if passes else lanes * state.share
        transactions = requests if passes else 0.0
        return Touched(access.position, part, requests, moved, transactions, None, None,
                       kept.reason)  # fmt: skip
    doubt = None if state.known else Missing("whether it is reached depends on data", 0)
    moved, transactions = (0.0, kept.total) if passes else (kept.total, 0.0)
    return Touched(access.position, part, requests, moved, transactions, kept.stride,
                   kept.step, doubt, kept.l1_millicycles)  # fmt: skip


def _unit(access: Access) -> int:
    """Bytes by which an address may move without another outcome."""
    if access.space == "shared":
        return max(4, access.width)
    return 1 << WORD_SHIFT if access.space == "const" else SECTOR_BYTES


class Pattern(NamedTuple):
    """What one address does for one set of lanes: sectors or transactions over the launch."""

    context: Context
    mask: Mask
    total: float
    stride: int | None
    step: int | None
    reason: Missing | None
    l1_millicycles: float = 0.0


def _pattern(walker: Counting, access: Access, context: Context, state: State) -> Pattern:
    value = walker.evaluator.evaluate(access.address, context)
    shared = access.space == "shared"
    unit = _unit(access)
    reason: Missing | None = None
    address = Val(0, 0, 0)
    if isinstance(value, int | Val):
        address = as_val(value)
    else:
        reason = value if isinstance(value, Missing) else Missing("a condition as address", 0)
    if reason is None and access.width <= 0:
        reason = Missing("the size of the access is not known", 0)
    lead: Value = tile_lines(access.facts)[1] if access.facts.entry in TILES else 0
    if access.stride is not None:
        lead = walker.evaluator.evaluate(access.stride, context)
    if reason is None and not isinstance(lead, int):
        reason = Missing("the stride of a matrix tile is not one number", 0)
    phases: list[tuple[int, npt.NDArray[np.float64]]] = []
    if reason is None:
        found = _phases(context, address, unit)
        if isinstance(found, Missing):
            reason = found
        else:
            phases = found
    rows = _rows(address.base, state)
    if reason is None and rows * state.mask.shape[1] * len(phases) > MOST_CELLS:
        reason = Missing("too many iterations differ to look at all", 0)
    if reason is not None or not isinstance(lead, int):
        return Pattern(context, state.mask, 0.0, None, None, reason)
    if access.facts.entry in TILES:
        total = 0.0
        for shift, weight in phases:
            counts = _of_tiles(walker.warp_weights, access, lead, address.base, shift, state)
            times = weight if weight.size == counts.size else weight.sum(keepdims=True)
            total += float(times @ counts)
        return Pattern(context, state.mask, total, None, _step(address, context), None)
    key = (access.address, id(context))
    known = walker.strides.get(key)
    if known is None or known[0] is not state.mask:
        known = walker.strides[key] = (
            state.mask,
            *_stride(address.base, state, walker.warp_weights),
        )
    _, stride, starts, begins = known
    total = cycles = 0.0
    loads = unit == SECTOR_BYTES and access.facts.category in ("load", "copy")
    for shift, weight in phases:
        offset = access.offset + shift
        if unit == SECTOR_BYTES and begins and stride is not None:
            times = float(weight.sum())
            for begin, warps in begins:
                each, long = _of_warp((begin + offset) % LINE_BYTES, stride, access.width)
                total += times * warps * each
                cycles += times * warps * long if loads else 0.0
            continue
        if shared and starts is not None and not ((starts - starts[0, 0]) % unit).any():
            # Moved by whole units a warp meets the same conflicts in other banks.
            one = State(state.mask[:, :WARP_SIZE])
            every = walker.warp_weights.sum(keepdims=True)
            per_row = _per_row(every, access, address.base[:WARP_SIZE], offset, one)  # type: ignore[index]
        else:
            per_row = _per_row(walker.warp_weights, access, address.base, offset, state, loads)
        if per_row.shape[1] != weight.shape[0]:
            weight = weight.sum(keepdims=True)
        total += float(weight @ per_row[0])
        cycles += float(weight @ per_row[1])
    step = _step(address, context)
    return Pattern(context, state.mask, total, stride, step, None, cycles if loads else 0.0)


@lru_cache(maxsize=4096)
def _of_warp(begin: int, stride: int, width: int) -> tuple[int, int]:
    """Sectors of a whole warp whose lanes lie ``stride`` bytes apart from ``begin`` on, and the
    thousandths of a cycle that its load takes in L1."""
    addresses = (begin + stride * np.arange(WARP_SIZE, dtype=np.int64))[None]
    counts, touched = sectors(addresses)
    return int(counts[0]), int(l1_millicycles(addresses, width, None, counts, touched)[0])


def _rows(base: Array | int, state: State) -> int:
    own = int(base.shape[0]) if isinstance(base, np.ndarray) and base.ndim == 2 else 1
    return max(own, int(state.mask.shape[0]))


def _per_row(
    weights: npt.NDArray[np.float64], access: Access, base: Array | int, offset: int, state: State,
    loads: bool = False,
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Sectors or transactions of each row, weighted over the sampled warps, and with ``loads``
    thousandths of a cycle in L1: ``[2, rows]``."""
    mask = state.mask
    moved = np.asarray(base) + offset
    shape: tuple[int, ...] = mask.shape
    if (moved.shape != shape and moved.shape != shape[1:]) or shape[0] > 1:
        shape = np.broadcast_shapes(shape, moved.shape)
        mask, moved = np.broadcast_to(mask, shape), np.broadcast_to(moved, shape)
    active = mask.reshape(-1, WARP_SIZE)
    addresses = moved.reshape(-1, WARP_SIZE)
    if access.facts.entry in ("ldmatrix", "stmatrix"):
        # The first eight lanes give the rows of the first matrix, and so on.
        active = active & (np.arange(WARP_SIZE) < 8 * access.width // 4)
    if access.space == "shared":
        width = 16 if access.facts.entry in ("ldmatrix", "stmatrix") else access.width
        counts = shared_transactions(np.ascontiguousarray(addresses), width, active)
    elif loads:
        counts, touched = sectors(addresses, active)
        cycles = l1_millicycles(addresses, access.width, active, counts, touched)
        return np.stack([part.reshape(shape[0], -1) @ weights for part in (counts, cycles)])
    else:
        counts = _distinct(
            addresses >> (WORD_SHIFT if access.space == "const" else SECTOR_SHIFT), active
        )
    found = counts.reshape(shape[0], -1) @ weights
    return np.stack([found, np.zeros_like(found)])


def _of_tiles(
    weights: npt.NDArray[np.float64], access: Access, lead: int, base: Array | int, shift: int,
    state: State,
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Sectors of each row's matrix tiles, or the conflict degree of all of a tile, weighted over
    the sampled warps; a warp's first lane tells where its tile lies."""
    shape = np.broadcast_shapes(state.mask.shape, np.shape(base))
    active = np.broadcast_to(state.mask, shape).reshape(-1, WARP_SIZE).any(axis=1)
    first = np.broadcast_to(base, shape).reshape(-1, WARP_SIZE)[:, :1] + access.offset + shift
    lines, long = tile_lines(access.facts)
    elements = (np.arange(lines)[:, None] * lead + np.arange(long)).ravel()
    where = first + elements * (access.facts.bits // 8)
    counts = bank_conflicts(where) if access.space == "shared" else sectors(where)[0]
    found: npt.NDArray[np.float64] = (counts * active).reshape(shape[0], -1) @ weights
    return found


def _distinct(units: Array, active: Mask) -> Array:
    """Distinct units of each row over its active lanes; cheap where lanes ascend."""
    if active.all():
        steps = units[:, 1:] - units[:, :-1]
        if not (steps < 0).any():
            counts: Array = (steps != 0).sum(axis=1) + 1
            return counts
        return distinct_per_row(units)[0]
    return distinct_per_row(units, active)[0]


def _phases(
    context: Context, address: Val, unit: int
) -> list[tuple[int, npt.NDArray[np.float64]]] | Missing:
    """Shifts of the address modulo ``unit`` over the iterations, with the weight of each row.

    A whole multiple of the unit changes neither how lanes share sectors nor banks.
    """
    phases = {0: context.weight}
    for loop, factor in address.terms.items():
        if not isinstance(factor, int):
            return Missing("the stride over the loop differs between lanes", 0)
        period = unit // gcd(unit, factor)
        if period == 1:
            continue
        where = context
        rows: npt.NDArray[np.intp] | None = None
        while where.loop != loop and where.parent is not None:
            if where.parent_rows is not None:
                rows = where.parent_rows if rows is None else where.parent_rows[rows]
            where = where.parent
        if where.start is None or where.stop is None:
            return Missing("the iterations are not known", 0)
        start, stop = where.start, where.stop
        further: dict[int, npt.NDArray[np.float64]] = {}
        for phase in range(period):
            # How many of start..stop-1 are congruent to the phase.
            held = (stop - 1 - phase) // period - (start - 1 - phase) // period
            part = held / (stop - start)
            if rows is not None:
                part = part[rows]
            if not part.any():
                continue
            for shift, weight in phases.items():
                moved = (shift + factor * phase) % unit
                before = further.get(moved)
                further[moved] = weight * part if before is None else before + weight * part
        phases = further
        if len(phases) > MOST_PHASES:
            return Missing("the alignment changes in too many ways", 0)
    return list(phases.items())


def _stride(
    base: Array | int, state: State, weights: npt.NDArray[np.float64]
) -> tuple[int | None, Array | None, Starts]:
    """Bytes between neighbouring lanes, if the same for all neighbours that take part; and the
    first addresses of the warps ``[1, warps]`` where every lane of each does, and they ascend."""
    if isinstance(base, int):
        return 0, None, ()
    first = base[0] if base.ndim == 2 else base
    mask = state.mask[0].reshape(-1, WARP_SIZE)
    if first.size == 1:
        return 0, None, ()
    table = first.reshape(-1, WARP_SIZE)
    both = mask[:, 1:] & mask[:, :-1]
    whole = both.all()
    steps = table[:, 1:] - table[:, :-1]
    steps = steps.ravel() if whole else steps[both]
    if steps.size == 0 or not (steps == steps[0]).all():
        return None, None, ()
    stride = int(steps[0])
    if not whole or stride < 0 or first is not base or state.mask.shape[0] > 1:
        return stride, None, ()
    starts = table[:, 0]
    held = np.bincount(starts & (LINE_BYTES - 1), weights, LINE_BYTES)
    begins = tuple((int(place), float(held[place])) for place in held.nonzero()[0])
    return stride, starts[None], begins


def _step(address: Val, context: Context) -> int | None:
    """Bytes per iteration of the innermost loop."""
    if context.loop < 0:
        return None
    factor = address.terms.get(context.loop, 0)
    return factor if isinstance(factor, int) else None
