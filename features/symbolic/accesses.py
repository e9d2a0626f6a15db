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

MOST_KINDS = 8
"""Kinds of warps looked at one by one: more are looked at all together, in as much time."""

FAR = LINE_BYTES << 40
"""The beginning of some line, far from both ends of memory."""

Starts = tuple[tuple[int, float], ...]
"""Places in a line at which warps begin whose lanes lie evenly, and how many of the launch do."""


def packed(mask: Mask) -> npt.NDArray[np.uint32]:
    """Warps of ``[rows, lanes]``, a bit for each lane: ``[rows, warps]``."""
    found = np.packbits(mask.reshape(-1), bitorder="little").view(np.uint32)
    return found.reshape(mask.shape[0], -1)


class Counting:
    """Counts lanes and warps of masks over the launch; keeps what accesses were found to do.

    ``warp_weights``: launch warps each sampled warp stands for.
    """

    def __init__(self, evaluator: Evaluator, warp_weights: npt.NDArray[np.float64]) -> None:
        self.evaluator = evaluator
        self.warp_weights = warp_weights
        self._counted: dict[tuple[int, int], tuple[Mask, Context, float, float]] = {}
        self._packed: tuple[Mask, npt.NDArray[np.uint32]] | None = None
        self.grounds: dict[tuple[object, ...], Ground] = {}
        self.patterns: dict[tuple[object, ...], Pattern] = {}

    def count(self, mask: Mask, context: Context) -> tuple[float, float]:
        """Launch totals of warps and lanes in a mask, over all rows."""
        key = (id(mask), id(context))
        kept = self._counted.get(key)
        if kept is not None and kept[0] is mask and kept[1] is context:
            return kept[2], kept[3]
        lanes = np.bitwise_count(self.lanes_of(mask))
        weight = context.weight
        if mask.shape[0] != context.rows:
            weight = weight.sum(keepdims=True)
        warps = float(weight @ ((lanes > 0) @ self.warp_weights))
        total = float(weight @ (lanes @ self.warp_weights))
        self._counted[key] = (mask, context, warps, total)
        return warps, total

    def lanes_of(self, mask: Mask) -> npt.NDArray[np.uint32]:
        """Each row's warps, a bit for each of their lanes; kept for the mask asked for last."""
        if self._packed is None or self._packed[0] is not mask:
            self._packed = mask, packed(mask)
        return self._packed[1]

    def of_warps(self, mask: Mask, context: Context) -> npt.NDArray[np.float64]:
        """How often each sampled warp comes, over all rows."""
        here = self.lanes_of(mask) != 0
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
    ground = _ground(walker, access, context, state, unit)
    # Addresses that differ by a whole number of units share sectors and banks alike.
    kind = access.facts.opcode if access.facts.entry in TILES else access.facts.entry
    key = (access.address, access.offset % unit, access.space, access.width, kind)
    kept = walker.patterns.get(key)
    if kept is None or kept.ground is not ground:
        kept = walker.patterns[key] = _pattern(walker, access, state, ground)
    if ground.reason is not None:
        moved = 0.0 if passes else lanes * state.share
        transactions = requests if passes else 0.0
        return Touched(access.position, part, requests, moved, transactions, None, None,
                       ground.reason)  # fmt: skip
    doubt = None if state.known else Missing("whether it is reached depends on data", 0)
    moved, transactions = (0.0, kept.total) if passes else (kept.total, 0.0)
    return Touched(access.position, part, requests, moved, transactions, ground.stride,
                   ground.step, doubt, kept.l1_millicycles)  # fmt: skip


def _unit(access: Access) -> int:
    """Bytes by which an address may move without another outcome."""
    if access.space == "shared":
        return max(4, access.width)
    return 1 << WORD_SHIFT if access.space == "const" else SECTOR_BYTES


class Pattern(NamedTuple):
    """What one address does for one set of lanes: sectors or transactions over the launch."""

    ground: Ground
    total: float
    l1_millicycles: float = 0.0


class Ground(NamedTuple):
    """An address for one set of lanes, whatever offset is added and however much is moved:
    what shifts it over the iterations and how often, and how lanes lie to each other. ``lead``:
    elements between the lines of a matrix tile."""

    context: Context
    mask: Mask
    base: Array | int
    phases: list[tuple[int, npt.NDArray[np.float64]]]
    stride: int | None
    starts: Array | None
    begins: Starts
    step: int | None
    reason: Missing | None
    kinds: Kinds | None = None
    lead: int = 0


class Kinds(NamedTuple):
    """Warps of ``[rows, warps]`` by ``which`` kind they are: where in a line they begin, and which
    lanes take part (a bit each). Lane n lies ``layout[n]`` (int64) bytes behind the beginning.
    ``lowest``: the lowest address of all."""

    which: npt.NDArray[np.intp]
    begins: tuple[tuple[int, int], ...]
    layout: bytes
    lowest: int


def _kinds(base: Array | int, mask: Mask) -> Kinds | None:
    """The kinds of an address's warps, if the lanes of all lie to each other in one way."""
    shape = np.broadcast_shapes(np.shape(base), mask.shape)
    table = np.broadcast_to(base, shape).reshape(-1, WARP_SIZE)
    active = np.broadcast_to(mask, shape).reshape(-1, WARP_SIZE)
    lanes = packed(active)[:, 0]
    fullest = table[np.bitwise_count(lanes).argmax()]
    layout = fullest - fullest[0]
    moved = table - layout
    begins = moved[np.arange(len(moved)), active.argmax(axis=1)]
    if ((moved != begins[:, None]) & active).any():
        return None
    codes = (begins & (LINE_BYTES - 1)) | (lanes.astype(np.int64) * LINE_BYTES)
    codes, which = np.unique(codes, return_inverse=True)
    if codes.size > MOST_KINDS:
        return None
    kinds = tuple((code % LINE_BYTES, code // LINE_BYTES) for code in codes.tolist())
    lowest = int(table.min(where=active, initial=FAR))
    return Kinds(which.reshape(shape[0], -1), kinds, layout.astype(np.int64).tobytes(), lowest)


def _ground(walker: Counting, access: Access, context: Context, state: State, unit: int) -> Ground:
    """What accesses of one address and unit have in common; found once for each set of lanes."""
    key = (access.address, unit, access.width > 0, access.stride, access.facts.entry in TILES)
    kept = walker.grounds.get(key)
    if kept is None or kept.context is not context or kept.mask is not state.mask:
        kept = walker.grounds[key] = _grounded(walker, access, context, state, unit)
    return kept


def _grounded(
    walker: Counting, access: Access, context: Context, state: State, unit: int
) -> Ground:
    value = walker.evaluator.evaluate(access.address, context)
    reason: Missing | None = None
    phases: list[tuple[int, npt.NDArray[np.float64]]] = []
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
        return Ground(context, state.mask, 0, [], None, None, (), None, reason)
    if access.facts.entry in TILES:
        step = _step(address, context)
        return Ground(
            context, state.mask, address.base, phases, None, None, (), step, None, None, lead
        )
    laid = _stride(address.base, state, walker.warp_weights)
    step, base = _step(address, context), address.base
    kinds = None if laid[-1] or unit != SECTOR_BYTES else _kinds(base, state.mask)
    return Ground(context, state.mask, base, phases, *laid, step, None, kinds)


def _pattern(walker: Counting, access: Access, state: State, ground: Ground) -> Pattern:
    _, _, base, phases, stride, starts, begins, _, reason, kinds, lead = ground
    if reason is not None:
        return Pattern(ground, 0.0)
    if access.facts.entry in TILES:
        total = 0.0
        for shift, weight in phases:
            rows = _of_tiles(walker.warp_weights, access, lead, base, shift, state)
            times = weight if weight.size == rows.size else weight.sum(keepdims=True)
            total += float(times @ rows)
        return Pattern(ground, total)
    unit = _unit(access)
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
        shared = access.space == "shared"
        if shared and starts is not None and not ((starts - starts[0, 0]) % unit).any():
            # Moved by whole units a warp meets the same conflicts in other banks.
            one = State(state.mask[:, :WARP_SIZE])
            every = walker.warp_weights.sum(keepdims=True)
            per_row = _per_row(every, access, base[:WARP_SIZE], offset, one)  # type: ignore[index]
        elif kinds is not None and kinds.lowest + offset >= 0:
            told = [
                _of_kind((begin + offset) % LINE_BYTES, lanes, kinds.layout, access.width)
                for begin, lanes in kinds.begins
            ]
            counts = np.array(told, dtype=np.int64).T[:, kinds.which]
            per_row = np.stack([part @ walker.warp_weights for part in counts])
        else:
            per_row = _per_row(walker.warp_weights, access, base, offset, state, loads)
        if per_row.shape[1] != weight.shape[0]:
            weight = weight.sum(keepdims=True)
        total += float(weight @ per_row[0])
        cycles += float(weight @ per_row[1])
    return Pattern(ground, total, cycles if loads else 0.0)


@lru_cache(maxsize=4096)
def _of_warp(begin: int, stride: int, width: int) -> tuple[int, int]:
    """Sectors of a whole warp whose lanes lie ``stride`` bytes apart from ``begin`` on, and the
    thousandths of a cycle that its load takes in L1."""
    addresses = (begin + stride * np.arange(WARP_SIZE, dtype=np.int64))[None]
    counts, touched = sectors(addresses)
    return int(counts[0]), int(l1_millicycles(addresses, width, None, counts, touched)[0])


@lru_cache(maxsize=16384)
def _of_kind(begin: int, lanes: int, layout: bytes, width: int) -> tuple[int, int]:
    """The same of a warp of one of ``Kinds``."""
    addresses = (FAR + begin + np.frombuffer(layout, dtype=np.int64))[None]
    active = (lanes >> np.arange(WARP_SIZE) & 1).astype(np.bool_)[None]
    counts, touched = sectors(addresses, active)
    return int(counts[0]), int(l1_millicycles(addresses, width, active, counts, touched)[0])


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
    mask = state.mask[0]
    if first.size == 1:
        return 0, None, ()
    both = mask[1:] & mask[:-1]
    both[WARP_SIZE - 1 :: WARP_SIZE] = False  # neighbours in two warps
    steps = first[1:] - first[:-1]
    stride = int(steps[both.argmax()])
    if not both.any() or ((steps != stride) & both).any():
        return None, None, ()
    if not mask.all() or stride < 0 or first is not base or state.mask.shape[0] > 1:
        return stride, None, ()
    starts = first[::WARP_SIZE]
    held = np.bincount(starts & (LINE_BYTES - 1), weights, LINE_BYTES)
    begins = tuple((int(place), float(held[place])) for place in held.nonzero()[0])
    return stride, starts[None], begins


def _step(address: Val, context: Context) -> int | None:
    """Bytes per iteration of the innermost loop."""
    if context.loop < 0:
        return None
    factor = address.terms.get(context.loop, 0)
    return factor if isinstance(factor, int) else None
