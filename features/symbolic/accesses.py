"""Sectors and bank conflicts of one access, exactly, where its address is known."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.isa import TILES, tile_lines
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import (
    LINE_BYTES,
    SECTOR_BYTES,
    SECTOR_SHIFT,
    bank_conflicts,
    distinct_per_row,
    l1_millicycles,
    sectors,
    shared_transactions,
)
from wattcast.features.symbolic.arith import (
    Amount,
    ApartError,
    Array,
    Each,
    Layout,
    Missing,
    Number,
    Val,
    Value,
    agreed,
    as_val,
    each,
    listed,
    spread,
)
from wattcast.features.symbolic.counting import Counting, Floats, Touched, packed
from wattcast.features.symbolic.evaluate import Context, Mask, State
from wattcast.features.symbolic.scheme import Access

MOST_CELLS = 1 << 22
"""Rows times lanes looked at for one access (32 MB of addresses); beyond, it is unknown."""

MOST_PHASES = 64
"""Different alignments of one access over the iterations of the loops around it."""

ACCESS_SPACES = frozenset({"global", "shared", "generic", "const"})
WORD_SHIFT = 2
"""Constant memory serves a warp one 4-byte word at a time (CUDA C++ Programming Guide, compute
capability 5.x: constant memory)."""


MOST_KINDS = 8
"""Kinds of warps looked at one by one: more are looked at all together, in as much time."""

FAR = LINE_BYTES << 40
"""The beginning of some line, far from both ends of memory."""

Phases = list[tuple[int, Floats]]


def measure(walker: Counting, access: Access, context: Context, state: State) -> Touched:
    """What an access does for the lanes of ``state``; why not, if its address is not known."""
    requests, _ = walker.count(state.mask, context)
    part = 1 if access.facts.category == "copy" and access.space != access.facts.space else 0
    if access.space not in ACCESS_SPACES:
        return Touched(access.position, part, requests, 0.0, 0.0, None, None)
    unit = _unit(access)
    grounds = _ground(walker, access, context, state, unit)
    if grounds.reason is not None:
        return Touched(access.position, part, requests, 0.0, 0.0, None, grounds.reason)
    # Addresses that differ by a whole number of units share sectors and banks alike.
    kind = access.facts.opcode if access.facts.entry in TILES else access.facts.entry
    key = (access.address, access.offset % unit, access.space, access.width, kind)
    kept = walker.patterns.get(key)
    if kept is None or kept.grounds is not grounds:
        pairs = zip(*(_pattern(access, ground) for ground in grounds.found), strict=True)
        totals, cycles = (each(walker.layout, list(column)) for column in pairs)
        kept = walker.patterns[key] = Patterns(grounds, totals, cycles)
    doubt = None if state.known else Missing("whether it is reached depends on data", 0)
    passes = access.space in ("shared", "const")
    moved, transactions = (0.0, kept.totals) if passes else (kept.totals, 0.0)
    return Touched(access.position, part, requests, moved, transactions, grounds.stride,
                   doubt, kept.l1_millicycles)  # fmt: skip


def _unit(access: Access) -> int:
    """Bytes by which an address may move without another outcome."""
    if access.space == "shared":
        return max(4, access.width)
    return 1 << WORD_SHIFT if access.space == "const" else SECTOR_BYTES


class Pattern(NamedTuple):
    """What one address does for one set of lanes: sectors or transactions over the launch."""

    total: float
    l1_millicycles: float = 0.0


class Ground(NamedTuple):
    """An address for one launch's set of lanes, whatever offset is added and however much is moved:
    what shifts it over the iterations and how often, and how lanes lie to each other. ``lead``:
    elements between the lines of a matrix tile."""

    state: State
    warp_weights: Floats
    base: Array | int
    phases: Phases
    stride: int | None = None
    starts: Array | None = None
    kinds: Kinds | None = None
    lead: int = 0


class Grounds(NamedTuple):
    """Those of all launches that are walked. ``reason``: why the address is not known."""

    context: Context
    mask: Mask
    found: list[Ground]
    stride: Number | None
    reason: Missing | None


class Patterns(NamedTuple):
    """What one address does, by its grounds."""

    grounds: Grounds
    totals: Amount
    l1_millicycles: Amount


class Kinds(NamedTuple):
    """Kinds of warps: where in a line each ``begins``, and which lanes take part (a bit each).
    ``shares``: for each phase, how many warps of the launch each kind stands for. Lane n lies
    ``layout[n]`` (int64) bytes behind the beginning. ``lowest``: the lowest address of all."""

    shares: list[list[float]]
    begins: tuple[tuple[int, int], ...]
    layout: bytes
    lowest: int


def _kinds(base: Any, mask: Mask, layout: Layout, weights: Floats, phases: list[Phases]) -> Any:
    """The kinds of an address's warps for each launch, or ``None`` for all of them if not the lanes
    of all lie to each other in one way."""
    shape = np.broadcast_shapes(np.shape(base), mask.shape, (1, layout.total))
    rows, table = shape[0], np.broadcast_to(base, shape).reshape(-1, WARP_SIZE)
    active = np.broadcast_to(mask, shape).reshape(-1, WARP_SIZE)
    lanes = packed(active)[:, 0]
    fullest = table[np.bitwise_count(lanes).argmax()]
    steps = fullest - fullest[0]
    moved = table - steps
    begins = moved[np.arange(len(moved)), active.argmax(axis=1)]
    if ((moved != begins[:, None]) & active).any():
        return None
    codes = (begins & (LINE_BYTES - 1)) | (lanes.astype(np.int64) * LINE_BYTES)
    codes, which = np.unique(codes, return_inverse=True)
    if codes.size > MOST_KINDS:
        return None
    kinds = tuple((code % LINE_BYTES, code // LINE_BYTES) for code in codes.tolist())
    first = layout.starts // WARP_SIZE
    launches = np.arange(layout.count).repeat(np.diff(first, append=len(weights)))
    cells = (np.arange(rows)[:, None] * layout.count + launches).ravel() * len(kinds) + which
    size = rows, layout.count, len(kinds)
    warps = np.bincount(cells, np.tile(weights, rows), np.prod(size)).reshape(size)
    low = table.min(axis=1, where=active, initial=FAR).reshape(rows, -1).min(axis=0)
    lowest = np.minimum.reduceat(low, first).tolist()
    found = []
    for number, own in enumerate(phases):
        times = (w if w.size == rows else w.sum(keepdims=True) for _, w in own)
        shares = [(each_row @ warps[:, number]).tolist() for each_row in times]
        found.append(Kinds(shares, kinds, steps.astype(np.int64).tobytes(), lowest[number]))
    return found


def _ground(walker: Counting, access: Access, context: Context, state: State, unit: int) -> Grounds:
    """What accesses of one address and unit have in common; found once for each set of lanes."""
    key = (access.address, unit, access.width > 0, access.stride, access.facts.entry in TILES)
    kept = walker.grounds.get(key)
    if kept is None or kept.context is not context or kept.mask is not state.mask:
        kept = walker.grounds[key] = _grounded(walker, access, context, state, unit)
    return kept


def _grounded(
    walker: Counting, access: Access, context: Context, state: State, unit: int
) -> Grounds:
    value = walker.evaluator.evaluate(access.address, context)
    layout, tiles = walker.layout, access.facts.entry in TILES
    reason: Missing | None = None
    address = Val(0, 0, 0)
    if isinstance(value, int | Each | Val):
        address = as_val(value)
    else:
        reason = value if isinstance(value, Missing) else Missing("a condition as address", 0)
    if reason is None and access.width <= 0:
        reason = Missing("the size of the access is not known", 0)
    lead: Value = tile_lines(access.facts)[1] if tiles else 0
    if access.stride is not None:
        lead = walker.evaluator.evaluate(access.stride, context)
    if reason is None and not isinstance(lead, int | Each):
        reason = Missing("the stride of a matrix tile is not one number", 0)
    phases: list[Phases] = []
    if reason is None:
        found = _phases(context, address, unit, layout)
        if isinstance(found, Missing):
            reason = found
        else:
            phases = found
    bases = layout.parts(address.base)
    if reason is None:
        rows = _rows(bases[0], state)
        cells = zip(layout.sizes, phases, strict=True)
        much = [rows * lanes * len(shifts) > MOST_CELLS for lanes, shifts in cells]
        if agreed(much):
            reason = Missing("too many iterations differ to look at all", 0)
    if reason is not None:
        return Grounds(context, state.mask, [], None, reason)
    masks = layout.parts(state.mask)
    every: list[Ground] = []
    leads = listed(lead, layout.count)
    kinds: Any = None
    if unit == SECTOR_BYTES and not tiles:
        kinds = _kinds(spread(address.base), state.mask, layout, walker.warp_weights, phases)
        if kinds is None and layout.count > 1:  # as each launch alone
            parts = zip(bases, masks, layout.sizes, layout.warps, phases, strict=True)
            kinds = [
                (_kinds(base, mask, Layout([size]), walker.warp_weights[warps], [own]) or [None])[0]
                for base, mask, size, warps, own in parts
            ]
    for number, base in enumerate(bases):
        part = State(masks[number])
        weights = walker.warp_weights[layout.warps[number]]
        if tiles:
            ground = Ground(part, weights, base, phases[number], lead=leads[number])
        else:
            own = kinds and kinds[number]
            ground = Ground(part, weights, base, phases[number], *_stride(base, part), own)
        every.append(ground)
    strides = each(layout, [ground.stride for ground in every])
    return Grounds(context, state.mask, every, strides, None)


def _pattern(access: Access, ground: Ground) -> Pattern:
    state, weights, base, phases, _, starts, kinds, lead = ground
    if access.facts.entry in TILES:
        total = 0.0
        for shift, weight in phases:
            rows = _of_tiles(weights, access, lead, base, shift, state)
            times = weight if weight.size == rows.size else weight.sum(keepdims=True)
            total += float(times @ rows)
        return Pattern(total)
    unit = _unit(access)
    total = cycles = 0.0
    width: int | None = None
    if unit == SECTOR_BYTES and access.facts.category in ("load", "copy", "store"):
        width = 0 if access.facts.category == "store" else access.width
    for number, (shift, weight) in enumerate(phases):
        offset = access.offset + shift
        if kinds is not None and kinds.lowest + offset >= 0:
            for (begin, lanes), share in zip(kinds.begins, kinds.shares[number], strict=True):
                at = (begin + offset) % LINE_BYTES
                counted, millicycles = _of_kind(at, lanes, kinds.layout, width)
                total += share * counted
                cycles += share * millicycles
            continue
        shared = access.space == "shared"
        if shared and starts is not None and not ((starts - starts[0, 0]) % unit).any():
            # Moved by whole units a warp meets the same conflicts in other banks.
            one = State(state.mask[:, :WARP_SIZE])
            every = weights.sum(keepdims=True)
            per_row = _per_row(every, access, base[:WARP_SIZE], offset, one)  # type: ignore[index]
        else:
            per_row = _per_row(weights, access, base, offset, state, width)
        if per_row.shape[1] != weight.shape[0]:
            weight = weight.sum(keepdims=True)
        total += float(weight @ per_row[0])
        cycles += float(weight @ per_row[1])
    return Pattern(total, cycles)


@lru_cache(maxsize=16384)
def _of_kind(begin: int, lanes: int, layout: bytes, width: int | None) -> tuple[int, int]:
    """Sectors of a warp of one of ``Kinds``, and its ``l1_millicycles`` where ``width`` tells."""
    addresses = (FAR + begin + np.frombuffer(layout, dtype=np.int64))[None]
    active = (lanes >> np.arange(WARP_SIZE) & 1).astype(np.bool_)[None]
    counts, touched = sectors(addresses, active)
    if width is None:
        return int(counts[0]), 0
    return int(counts[0]), int(l1_millicycles(addresses, width, active, counts, touched)[0])


def _rows(base: Array | int, state: State) -> int:
    own = int(base.shape[0]) if isinstance(base, np.ndarray) and base.ndim == 2 else 1
    return max(own, int(state.mask.shape[0]))


def _per_row(
    weights: npt.NDArray[np.float64], access: Access, base: Array | int, offset: int, state: State,
    l1_width: int | None = None,
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Sectors or transactions of each row, weighted over the sampled warps, and with ``l1_width``
    their ``l1_millicycles``: ``[2, rows]``."""
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
    elif l1_width is not None:
        counts, touched = sectors(addresses, active)
        cycles = l1_millicycles(addresses, l1_width, active, counts, touched)
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


def _phases(context: Context, address: Val, unit: int, layout: Layout) -> list[Phases] | Missing:
    """For each launch: shifts of the address modulo ``unit`` over the iterations, with the weight
    of each row.

    A whole multiple of the unit changes neither how lanes share sectors nor banks.
    """
    if not address.terms and context.weight.ndim == 1:
        return [[(0, context.weight)]] * layout.count
    found = [_phases_of(context, address, unit, number) for number in range(layout.count)]
    good = [one for one in found if not isinstance(one, Missing)]
    if len(good) == len(found):
        return good
    lost = [one for one in found if isinstance(one, Missing)]
    if good or lost.count(lost[0]) != len(found):
        raise ApartError([one if isinstance(one, Missing) else None for one in found])
    return lost[0]


def _own(values: npt.NDArray[Any], number: int) -> npt.NDArray[Any]:
    """The rows of one launch."""
    return values[number] if values.ndim == 2 else values


def _phases_of(context: Context, address: Val, unit: int, number: int) -> Phases | Missing:
    phases = {0: _own(context.weight, number)}
    for loop, factors in address.terms.items():
        factor = factors.values[number] if isinstance(factors, Each) else factors
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
        start, stop = _own(where.start, number), _own(where.stop, number)
        further: dict[int, Floats] = {}
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


def _stride(base: Array | int, state: State) -> tuple[int | None, Array | None]:
    """Bytes between neighbouring lanes, if the same for all neighbours that take part; and the
    first addresses of the warps ``[1, warps]`` where every lane of each does, and they ascend."""
    if isinstance(base, int):
        return 0, None
    first = base[0] if base.ndim == 2 else base
    mask = state.mask[0]
    if first.size == 1:
        return 0, None
    both = mask[1:] & mask[:-1]
    both[WARP_SIZE - 1 :: WARP_SIZE] = False  # neighbours in two warps
    steps = first[1:] - first[:-1]
    if not steps.any():
        return 0, None  # one address, as where it is a number
    stride = int(steps[both.argmax()])
    if not both.any() or ((steps != stride) & both).any():
        return None, None
    if not mask.all() or stride < 0 or first is not base or state.mask.shape[0] > 1:
        return stride, None
    return stride, first[::WARP_SIZE][None]
