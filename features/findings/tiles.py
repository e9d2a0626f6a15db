"""Loops in which the threads of a block read the same data: staged in shared memory instead.

A load whose address does not change along an axis of the block is done by every thread of that
axis. Where the loop steps through the data, the block can bring a tile of them once, each thread
its part, and read it from shared memory (D. Kirk, W. Hwu, Programming Massively Parallel
Processors, "Tiling for reduced memory traffic").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import Any

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cfg import BasicBlock
from wattcast.features.dataflow import argument_name, reads, writes
from wattcast.features.errors import NONSENSE
from wattcast.features.findings.finding import (
    Difference,
    Evidence,
    Finding,
    NotRewritableError,
    Rewriting,
    inside_of,
    operands_of,
    place,
)
from wattcast.features.findings.tensor import LEAST_REUSE
from wattcast.features.isa import classify
from wattcast.features.loops import Loop
from wattcast.features.ptx.ir import Immediate, Instruction, Register

MOST_DEPTH = 64
"""Longest side of a tile along the loop: a compiler unrolls no longer ones."""

MOST_LINES = 4096
"""Instructions of a loop over a tile, unrolled."""

_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Load:
    """A load or store of global memory, in a loop or not.

    ``base`` is the pointer's parameter, ``offset`` bytes of the first iteration, ``threads`` and
    ``blocks`` bytes from one to the next by axis, ``step`` bytes from one iteration to the next.
    """

    one: Instruction
    base: str
    offset: int
    threads: tuple[int, int, int]
    blocks: tuple[int, int, int]
    step: int
    width: int


@dataclass(frozen=True)
class _Tile:
    """Loads of one array that an unrolled loop does at once, ``apart`` bytes one from the next."""

    loads: tuple[Load, ...]
    apart: int
    reuse: int
    """Threads of a block that load the same."""

    @property
    def first(self) -> Load:
        return self.loads[0]


def reread_tiles(evidence: Evidence) -> Iterator[Finding]:
    """Loads in a loop that several threads of a block do alike.

    The loop is written anew: an outer loop brings tiles with a barrier before and after, an inner
    one, unrolled, computes from them. Only loops of one basic block whose addresses are sums of
    multiples of thread, block and iteration, and blocks of more than one row.
    """
    analysis = evidence.analysis
    if analysis.launch.block.count(1) > 1:
        yield from _products(evidence)
        return
    events = evidence.events[analysis.function.name]
    for loop in analysis.loops.loops:
        block = analysis.cfg.blocks[loop.header]
        if not loop.single_block or not events.warp_executions[block.start]:
            continue
        trips = _rounds(analysis, loop)
        tiles = _tiles(analysis, loop, block)
        if not tiles or trips is None:
            continue
        try:
            yield _staged(evidence, block, tiles, trips)
        except NotRewritableError:
            continue


def _products(evidence: Evidence) -> Iterator[Finding]:
    """Products of matrices by blocks of one dimension, which make rows and columns of their threads
    themselves. Nothing is written anew: what they load comes from shared memory at most, a word
    that a whole warp reads in fours."""
    analysis, activity = evidence.analysis, evidence.activity
    function, events = analysis.function, evidence.events[analysis.function.name]
    side = isqrt(analysis.launch.threads_per_block)
    for loop in analysis.loops.loops:
        inside = inside_of(analysis, loop.blocks)
        loads = [one for one in inside if events.global_sectors[one.position] and writes(one)]
        words = {name for one in loads for name in writes(one)}
        fused = [o for o in inside if o.base == "fma" and len(words.intersection(reads(o)[:2])) > 1]
        work = sum(float(events.active_lanes[one.position]) for one in fused)
        size = max((classify(one.opcode).bytes_per_lane for one in loads), default=1)
        if loop.children or work * size < LEAST_REUSE * max(activity.footprint_bytes, 1.0):
            continue
        difference, less = Difference(), 1 - 1 / side
        for one in inside:
            at = one.position
            asked, sectors = float(events.warp_executions[at]), float(events.global_sectors[at])
            if one not in loads:  # a round of a tile is unrolled
                difference.fewer(function.body, one, 0.0 if one in fused else less * asked)
                continue
            shared = asked / (4 if sectors <= asked else 1)
            difference.loads -= less * asked
            for name, amount in (
                ("global_load_requests", -less * asked), ("global_load_sectors", -less * sectors),
                ("l2_sectors", -less * float(events.l2_sectors[at])),
                ("shared_requests", shared), ("shared_transactions", shared),
            ):  # fmt: skip
                difference.add(name, amount)
        yield Finding(
            "reread_tiles",
            tuple(place(function, one) for one in loads),
            f"{len(fused)} multiply-adds of a loop load both factors from global memory, each "
            f"element {work * size / activity.footprint_bytes:.0f} times in the launch",
            f"stage tiles of {side} x {side} in shared memory: every thread loads one element of "
            "each, __syncthreads(), compute from the tiles, __syncthreads()",
            difference.applied(activity),
        )


def _rounds(analysis: KernelAnalysis, loop: Loop) -> int | None:
    """Rounds of the loop as it stands, unrolled or not, for each thread that enters it."""
    found = next((t for t in analysis.trip_counts if t.loop == loop.index), None)
    if found is None or found.how == "assumed" or found.count < 1:
        return None
    return round(found.count)


def _tiles(analysis: KernelAnalysis, loop: Loop, block: BasicBlock) -> list[_Tile]:
    """The arrays worth a tile; none where the loop does anything that forbids barriers in it."""
    inside = analysis.cfg.instructions(block)
    facts = [classify(one.opcode) for one in inside]
    if any(of.category in ("barrier", "atomic", "store") for of in facts):
        return []
    groups: dict[tuple[object, ...], list[Load]] = {}
    for load in _loads(analysis, loop, inside):
        key = load.base, load.threads, load.blocks, load.step, load.width
        groups.setdefault(key, []).append(load)
    found = []
    shape = analysis.launch.block
    for loads in groups.values():
        loads.sort(key=lambda load: load.offset)
        first = loads[0]
        reuse = prod(size for size, step in zip(shape, first.threads, strict=True) if not step)
        apart, rest = divmod(first.step, len(loads))
        if first.step < 0:
            loads.reverse()
        even = all(b.offset - a.offset == apart for a, b in pairwise(loads))
        if reuse > 1 and apart and not rest and even:
            found.append(_Tile(tuple(loads), apart, reuse))
    rounds = {len(tile.loads) for tile in found}
    return found if len(rounds) == 1 else []


def _loads(analysis: KernelAnalysis, loop: Loop, inside: Sequence[Instruction]) -> Iterator[Load]:
    """Loads of a loop that are done by every thread and see no one's stores."""
    chosen = [
        one
        for one in inside
        if classify(one.opcode).category == "load"
        and one.predicate is None
        and isinstance(one.operands[0], Register)
        and not {"volatile", "relaxed", "acquire"} & set(one.modifiers)
    ]
    yield from summed_accesses(analysis, loop, chosen)


def summed_accesses(
    analysis: KernelAnalysis, loop: Loop | None, chosen: Sequence[Instruction]
) -> Iterator[Load]:
    """Those of the accesses ``chosen`` to global memory whose addresses are sums of multiples, of
    iterations of ``loop`` too."""
    from wattcast.features.symbolic.analyse import Arguments
    from wattcast.features.symbolic.build import scheme
    from wattcast.features.symbolic.forms import Forms

    made = scheme(analysis.module, analysis.function)
    forms = Forms(made, analysis.launch, Arguments(made, analysis.launch, analysis.module).constant)
    by_position = {one.position: one for one in chosen}
    for access in (each for block in made.accesses for each in block):
        one = by_position.get(access.position)
        if one is None or access.space not in ("global", "generic"):
            continue
        try:
            found = _summed(access.address, forms, -1 if loop is None else loop.index)
        except NONSENSE:
            found = None
        if found is not None:
            base, offset, threads, blocks, step = found
            yield Load(one, base, offset + access.offset, threads, blocks, step, access.width)


def _summed(
    address: Any, forms: Any, loop: int
) -> tuple[str, int, tuple[int, int, int], tuple[int, int, int], int] | None:
    """Pointer, constant, bytes by thread, block and iteration; ``None`` if it is no such sum."""
    from wattcast.features.values import affine

    offset, base, step = 0, "", 0
    threads, blocks = [0, 0, 0], [0, 0, 0]
    waiting = [(address, 1)]
    for _ in range(64):
        if not waiting:
            return base, offset, (*threads,), (*blocks,), step  # type: ignore[return-value]
        node, times = waiting.pop()
        sums = affine(node, forms.leaf, forms.memo)
        if sums is None:
            return None
        offset += times * sums.constant
        for leaf, each in sums.terms:
            factor = times * each
            if leaf.op == "param" and factor == 1 and not base:
                base = argument_name(*leaf.value)
            elif leaf.op == "exit":
                waiting.append((leaf.args[0], factor))
            elif leaf.op == "phi" and leaf.value[0] == loop:
                phi = forms.scheme.phis[leaf]
                way = affine(phi.step, forms.leaf, forms.memo) if phi.step else None
                if way is None or way.terms:
                    return None
                step += factor * way.constant
                waiting.append((phi.start, factor))
            elif leaf.op == "special" and leaf.value[:-1] == "tid.":
                threads[_AXES.index(leaf.value[-1])] += factor
            elif leaf.op == "special" and leaf.value[:-1] == "ctaid.":
                blocks[_AXES.index(leaf.value[-1])] += factor
            else:
                return None
    return None


# --- the loop written anew ------------------------------------------------------------------------


def _staged(evidence: Evidence, block: BasicBlock, tiles: Sequence[_Tile], trips: int) -> Finding:
    analysis = evidence.analysis
    function, launch = analysis.function, analysis.launch
    inside = analysis.cfg.instructions(block)
    unrolled = len(tiles[0].loads)
    depth = max(tile.reuse for tile in tiles)
    depth = -(-depth // unrolled) * unrolled
    threads = launch.threads_per_block
    bytes_ = sum(threads // t.reuse * depth * t.first.width for t in tiles)
    if (
        depth > MOST_DEPTH
        or any(depth % tile.reuse for tile in tiles)
        or trips * unrolled < depth
        or depth // unrolled * len(inside) > MOST_LINES
        or bytes_ > analysis.gpu.capability.max_shared_bytes_per_block
    ):
        raise NotRewritableError("no tile of this depth")
    change = Rewriting(analysis.module, function)
    writer = _Writer(change, analysis, inside, tiles, depth)
    lines = writer.lines(rounds=-(-trips * unrolled // depth), repeats=depth // unrolled)
    for one in inside:
        change.swap(one, lines if one is inside[0] else [])
    reuse = ", ".join(
        f"{len(tile.loads)} x {tile.first.one.opcode} of one array by {tile.reuse} threads"
        for tile in tiles
    )
    sides = sorted({side for side in launch.block if side > 1} | {depth})
    shape = " x ".join(str(side) for side in (sides if len(sides) > 1 else sides * 2))
    return Finding(
        "reread_tiles",
        tuple(place(function, load.one) for tile in tiles for load in tile.loads),
        f"the threads of a block load the same data from global memory: {reuse}, in each of "
        f"{trips} rounds of a loop",
        f"stage tiles of {shape} in shared memory: every thread loads one element of each, "
        "__syncthreads(), compute from the tiles, __syncthreads()",
        ptx=change.text(),
    )


class _Writer:
    """Writes the loop over tiles."""

    def __init__(
        self,
        change: Rewriting,
        analysis: KernelAnalysis,
        inside: Sequence[Instruction],
        tiles: Sequence[_Tile],
        depth: int,
    ) -> None:
        self._change, self._analysis, self._inside = change, analysis, inside
        self._tiles, self._depth = tiles, depth
        self._launch = analysis.launch
        self._thread = [change.new("b32") for _ in _AXES]
        self._block = [change.new("b32") for _ in _AXES]
        self._start: list[str] = []
        for axis, name in enumerate(_AXES):
            if self._launch.block[axis] > 1:
                self._start.append(f"mov.u32 {self._thread[axis]}, %tid.{name};")
            if self._launch.grid[axis] > 1:
                self._start.append(f"mov.u32 {self._block[axis]}, %ctaid.{name};")

    def lines(self, rounds: int, repeats: int) -> list[str]:
        """The loop: ``rounds`` tiles, each computed from in ``repeats`` copies of the old body."""
        change = self._change
        counter, more = change.new("b32"), change.new("pred")
        staging: list[str] = []
        reading: dict[int, tuple[str, int, int]] = {}
        for number, tile in enumerate(self._tiles):
            staging += self._stage(tile, f"wattcast_tile{number}", reading)
        kept, steps = self._split()
        body = [line for copy in range(repeats) for line in self._copy(kept, reading, copy)]
        return [
            *self._start,
            f"mov.u32 {counter}, {rounds};",
            "$wattcast_tiles:",
            *staging,
            "bar.sync 0;",
            *body,
            "bar.sync 0;",
            *(change.text_of(one) for one in steps),
            f"add.s32 {counter}, {counter}, -1;",
            f"setp.ne.s32 {more}, {counter}, 0;",
            f"@{more} bra $wattcast_tiles;",
        ]

    def _stage(self, tile: _Tile, name: str, reading: dict[int, tuple[str, int, int]]) -> list[str]:
        """Loads of a tile to shared memory, each thread its part; where each load of the old loop
        finds its word: register, bytes of the first, bytes from one iteration to the next."""
        change, first, shape = self._change, tile.first, self._launch.block
        width, depth = first.width, self._depth
        used = [axis for axis in range(3) if first.threads[axis]]
        others = [axis for axis in range(3) if shape[axis] > 1 and not first.threads[axis]]
        across = prod(shape[axis] for axis in used)
        change.declare(f".shared .align 16 .b8 {name}[{across * depth * width}];")
        # Along x if the array is, so that neighbouring threads store side by side.
        rows = 0 not in used  # one row of the tile for each thread that shares nothing
        pointer = self._sum(
            first.base,
            first.offset,
            [*zip(self._thread, first.threads, strict=True)],
            [*zip(self._block, first.blocks, strict=True)],
        )
        along = self._linear(others, shape)
        index = self._linear(used, shape)
        wide = change.new("b64")
        self._start += [
            f"mul.wide.s32 {wide}, {along}, {tile.apart};",
            f"add.s64 {pointer}, {pointer}, {wide};",
        ]
        tile_at, store, read = (change.new("b32") for _ in range(3))
        by_index, by_along = (depth, 1) if rows else (1, across)
        self._start += [
            f"mov.u32 {tile_at}, {name};",
            f"mad.lo.s32 {read}, {index}, {by_index * width}, {tile_at};",
            f"mad.lo.s32 {store}, {along}, {by_along * width}, {read};",
        ]
        for number, load in enumerate(tile.loads):
            reading[load.one.position] = (
                read, number * by_along * width, len(tile.loads) * by_along * width,
            )  # fmt: skip
        kind = first.one.opcode.split(".")[-1]
        value = [
            change.new(kind if kind[0] == "f" else "b" + kind[1:])
            for _ in range(depth // tile.reuse)
        ]
        opcode = first.one.opcode
        lines = [
            f"{opcode} {each}, [{pointer}+{number * tile.reuse * tile.apart}];"
            for number, each in enumerate(value)
        ]
        lines += [
            f"st.shared.{kind} [{store}+{number * tile.reuse * by_along * width}], {each};"
            for number, each in enumerate(value)
        ]
        return [*lines, f"add.s64 {pointer}, {pointer}, {depth * tile.apart};"]

    def _sum(self, base: str, offset: int, *terms: Sequence[tuple[str, int]]) -> str:
        """A pointer: a parameter and multiples of thread and block numbers."""
        change = self._change
        pointer = change.new("b64")
        self._start += [
            f"ld.param.u64 {pointer}, [{base}];",
            f"cvta.to.global.u64 {pointer}, {pointer};",
        ]
        for register, factor in (each for group in terms for each in group):
            if factor:
                wide = change.new("b64")
                self._start += [
                    f"mul.wide.s32 {wide}, {register}, {factor};",
                    f"add.s64 {pointer}, {pointer}, {wide};",
                ]
        if offset:
            self._start.append(f"add.s64 {pointer}, {pointer}, {offset};")
        return pointer

    def _linear(self, axes: Sequence[int], shape: Sequence[int]) -> str:
        """The number of a thread along some axes, the first fastest."""
        number = self._change.new("b32")
        self._start.append(f"mov.u32 {number}, 0;")
        for axis in reversed(axes):
            self._start.append(
                f"mad.lo.s32 {number}, {number}, {shape[axis]}, {self._thread[axis]};"
            )
        return number

    def _split(self) -> tuple[list[Instruction], list[Instruction]]:
        """What a copy of the old body holds, and what steps once for each tile: without loads from
        tiles, what computes nothing but their addresses, and the branch back."""
        staged = {load.one.position for tile in self._tiles for load in tile.loads}
        body = self._inside[:-1]
        inside = {one.position for one in self._inside}
        outside = {
            name
            for one in self._analysis.function.body.instructions
            if one.position not in inside
            for name in reads(one)
        }
        needed: set[int] = set()
        wanted = set(outside)
        grown = True
        while grown:  # text order makes two passes of it, but for what a round hands to the next
            grown = False
            for one in reversed(body):
                if one.position not in needed and wanted & set(writes(one)):
                    needed.add(one.position)
                    grown = True
                    if one.position not in staged:
                        wanted |= set(reads(one))
        steps: list[Instruction] = []
        kept: list[Instruction] = []
        for one in body:
            if one.position not in needed:
                continue
            alone = one.base == "add" and isinstance(one.operands[2], Immediate)
            own = alone and one.operands[0] == one.operands[1]
            used = any(
                set(writes(one)) & set(reads(other))
                for other in body
                if other is not one and other.position in needed and other.position not in staged
            )
            (steps if own and not used else kept).append(one)
        return kept, steps

    def _copy(
        self,
        kept: Sequence[Instruction],
        reading: Mapping[int, tuple[str, int, int]],
        copy: int,
    ) -> Iterator[str]:
        """The old body once more, loads from tiles in the place of the others."""
        for one in kept:
            text = self._change.text_of(one)
            if one.position in reading:
                register, start, step = reading[one.position]
                result = operands_of(text)[0]
                kind = one.opcode.split(".")[-1]
                yield f"ld.shared.{kind} {result}, [{register}+{start + copy * step}];"
            else:
                yield self._change.guard_of(one) + text
