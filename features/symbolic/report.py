"""From the walk's journal to the result: totals per instruction, loop, access and branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from wattcast.features.counts import Counts
from wattcast.features.loops import calls_in, tested_first
from wattcast.features.symbolic import results
from wattcast.features.symbolic.arith import (
    Amount,
    Each,
    Layout,
    Missing,
    Number,
    by_launch,
    listed,
    most,
    ratio,
)
from wattcast.features.symbolic.counting import Guarded, Rounds, Split, Touched, Visit
from wattcast.features.symbolic.plan import Shape
from wattcast.features.symbolic.scheme import UNADDRESSED, Scheme
from wattcast.features.symbolic.walk import Walker
from wattcast.features.values import Node, describe

_texts: WeakKeyDictionary[Node, str] = WeakKeyDictionary()


def text(node: Node) -> str:
    """``describe``, worked out once per node."""
    known = _texts.get(node)
    if known is None:
        known = _texts[node] = describe(node)
    return known


class _Totals(NamedTuple):
    """The journal added up; lists are by launch. ``unproven``: the first thing that is not known,
    in the order of the text."""

    counts: list[Counts]
    accesses: list[tuple[results.AccessInfo, ...]]
    branches: list[tuple[results.BranchInfo, ...]]
    rounds: dict[int, list[Rounds]]
    unproven: str | None


def summarise(
    walker: Walker, sampled: Sequence[results.SampledBlocks]
) -> list[results.SymbolicResult]:
    """Add up the journal of the kernel, for every launch walked."""
    kernel = _totals(walker)
    loops = _loops(walker, kernel.rounds)
    cfg, forest = walker.scheme.cfg, walker.scheme.forest
    calls = bool(calls_in(walker.scheme.function))
    diagnostics = (*cfg.diagnostics, *forest.diagnostics)
    rows = zip(kernel.counts, loops, kernel.accesses, kernel.branches, sampled, strict=True)
    return [
        results.SymbolicResult(
            {counts.function: counts}, trips, accesses, branches, sampling, diagnostics,
            "what the functions do that it calls is not proven" if calls
            else kernel.unproven if kernel.unproven or sampling.exact
            else "what its blocks do is not proven: they differ by place in several ways",
            not calls,
        )
        for counts, trips, accesses, branches, sampling in rows
    ]  # fmt: skip


def _column(amount: Amount) -> Any:
    """A total as what goes into rows of launches."""
    return np.array(amount.values)[:, None] if isinstance(amount, Each) else amount


def _table(amounts: list[Amount], launches: int) -> results.Floats:
    """Totals by instruction as rows of launches."""
    if launches == 1:
        return np.array([amounts], dtype=np.float64)
    plain = np.array([0.0 if isinstance(one, Each) else one for one in amounts])
    found = np.repeat(plain[None], launches, axis=0)
    for place, one in enumerate(amounts):
        if isinstance(one, Each):
            found[:, place] = one.values
    return found


def _totals(walker: Walker) -> _Totals:
    scheme, journal, watch = walker.scheme, walker.journal, walker.watch
    body = scheme.cfg.body
    count = len(body.instructions)
    warps, lanes = (np.zeros((walker.layout.count, count)) for _ in range(2))
    known = np.ones(count, dtype=np.bool_)
    guarded: dict[int, Amount] = {}
    touched: dict[int, list[Touched]] = {}
    rounds: dict[int, list[Rounds]] = {}
    splits: dict[int, list[Split]] = {}
    by_block: dict[int, list[Amount]] = {}
    doubtful: set[int] = set()
    for entry in journal:
        if isinstance(entry, Visit):
            held = by_block.setdefault(entry.block, [0.0, 0.0])
            held[0] += entry.warps
            held[1] += entry.lanes
            if not entry.known:
                doubtful.add(entry.block)
        elif isinstance(entry, Guarded):
            guarded[entry.position] = guarded.get(entry.position, 0.0) + entry.lanes
            if not entry.known:
                known[entry.position] = False
        elif isinstance(entry, Touched):
            touched.setdefault(entry.position, []).append(entry)
        elif isinstance(entry, Rounds):
            rounds.setdefault(entry.loop, []).append(entry)
        else:
            splits.setdefault(entry.position, []).append(entry)
    for index, (block_warps, block_lanes) in by_block.items():
        block = scheme.cfg.blocks[index]
        warps[:, block.start : block.end] = _column(block_warps)
        lanes[:, block.start : block.end] = _column(block_lanes)
        if index in doubtful:
            known[block.start : block.end] = False
    for position, total in guarded.items():
        lanes[:, position : position + 1] = _column(total)
    late = range(watch.doubtful_from, len(scheme.cfg.blocks))
    for index in (*late, *watch.doubtful):
        block = scheme.cfg.blocks[index]
        known[block.start : block.end] = False
    lost: list[tuple[str, int, Missing]] = []
    loops = scheme.forest.loops
    for loop, entries in rounds.items():
        what = f"the trip count of the loop {loops[loop].label or ''}".rstrip()
        lost += [(what, loops[loop].line, e.reason) for e in entries if e.reason is not None]
    branches = _branches(scheme, splits, lanes, known, lost)
    counts, accesses = _accesses(walker, touched, warps, lanes, known, lost)
    if not lost and not known.all():
        one = body.instructions[int(known.argmin())]
        order = Missing("lanes of a warp may come apart", 0)
        lost = [("how often warps run the instruction", one.line, order)]
    return _Totals(counts, accesses, branches, rounds, _first(lost))


def _first(lost: list[tuple[str, int, Missing]]) -> str | None:
    """What is not proven first, in one line."""
    if not lost:
        return None
    what, line, why = min(lost, key=lambda one: one[1])
    where = f", line {why.line}" if why.line not in (0, line) else ""
    return f"{what} in line {line} of the PTX is not proven ({why.reason}{where})"


def _branches(
    scheme: Scheme, splits: dict[int, list[Split]], lanes: results.Floats, known: results.Flags,
    lost: list[tuple[str, int, Missing]],
) -> list[tuple[results.BranchInfo, ...]]:  # fmt: skip
    launches = len(lanes)
    infos: list[list[results.BranchInfo]] = [[] for _ in range(launches)]
    for block, ending in enumerate(scheme.endings):
        entries = splits.get(ending.position)
        if not entries or ending.condition is None:
            continue
        one = scheme.cfg.body.instructions[scheme.cfg.blocks[block].end - 1]
        yes = sum(e.taken_lanes for e in entries)
        yes_warps = sum(e.taken_warps for e in entries)
        no_warps = sum(e.other_warps for e in entries)
        if one.base in ("bra", "ret", "exit"):
            lanes[:, one.position : one.position + 1] = _column(yes)  # active where it is taken
        known[one.position] &= not any(entry.reason for entry in entries)
        top = most(yes_warps, no_warps, 1e-300)
        reason = next((e.reason for e in entries if e.reason is not None), None)
        if reason is not None:
            lost.append(("which way the branch goes", one.line, reason))
        shares = yes_warps / top, no_warps / top
        for infos_of, row in zip(infos, by_launch(shares, launches), strict=True):
            infos_of.append(results.BranchInfo(one.position, row[0], row[1], reason is None))
    return [tuple(found) for found in infos]


def _accesses(
    walker: Walker,
    touched: dict[int, list[Touched]],
    warps: results.Floats,
    lanes: results.Floats,
    known: results.Flags,
    lost: list[tuple[str, int, Missing]],
) -> tuple[list[Counts], list[tuple[results.AccessInfo, ...]]]:
    scheme, layout = walker.scheme, walker.layout
    body, launches = scheme.cfg.body, layout.count
    nothing: list[Amount] = [0.0] * len(body.instructions)
    requests, sectors, shared_requests, transactions, constants, l1_millicycles = (
        nothing.copy() for _ in range(6)
    )
    tensors = (one.opcode.startswith(UNADDRESSED) for one in body.instructions)
    sure = (known & ~np.fromiter(tensors, np.bool_, known.size)).tolist()
    infos: list[list[results.AccessInfo]] = [[] for _ in range(launches)]
    for accesses in scheme.accesses:
        for number, access in enumerate(accesses):
            entries = touched.get(access.position)
            if not entries:
                continue
            one = body.instructions[access.position]
            position = access.position
            part = 1 if number and accesses[number - 1].position == position else 0
            mine = [entry for entry in entries if entry.part == part]
            if not mine:
                continue
            asked: Amount = 0.0
            got: Amount = 0.0
            moved: Amount = 0.0
            reason: Missing | None = None
            for entry in mine:
                asked += entry.requests
                got += entry.sectors
                moved += entry.transactions
                l1_millicycles[position] += entry.l1_millicycles
                reason = reason or entry.reason
            (shared_requests if access.space == "shared" else requests)[position] += asked
            sectors[position] += got
            (constants if access.space == "const" else transactions)[position] += moved
            if access.space == "tex":
                reason = Missing("what a texture unit fetches is not followed", 0)
            if reason is not None:
                lost.append(("the address", one.line, reason))
            affine = reason is None and bool(known[position])
            if not affine:
                sure[position] = False
            stride = _one_of([(entry.stride, entry.requests) for entry in mine], layout)
            address = text(access.address) + (f" + {access.offset}" if access.offset else "")
            for infos_of, row in zip(infos, by_launch((stride,), launches), strict=True):
                infos_of.append(results.AccessInfo(position, affine, row[0], address))
    amounts = {
        "requests": requests, "sectors": sectors, "shared_requests": shared_requests,
        "shared_transactions": transactions, "constant_transactions": constants,
        "l1_millicycles": l1_millicycles,
    }  # fmt: skip
    tables = {name: _table(one, launches) for name, one in amounts.items()}
    certain = np.array(sure, dtype=np.bool_)
    counts = [
        Counts(
            scheme.function.name, warps[launch], lanes[launch], counts_known=known,
            access_known=certain, **{name: rows[launch] for name, rows in tables.items()},
        )
        for launch in range(launches)
    ]  # fmt: skip
    return counts, [tuple(found) for found in infos]


def _one_of(found: list[tuple[Number | None, Amount]], layout: Layout) -> Any:
    """The number that all have who asked for something, else ``None``; of each launch."""
    launches = layout.count
    if len(found) == 1:
        number, asked = found[0]
        if not isinstance(asked, Each):
            return number if asked else None
        if all(asked.values):
            return number
    columns = [(listed(number, launches), listed(asked, launches)) for number, asked in found]
    every = []
    for launch in range(launches):
        said = {numbers[launch] for numbers, asked in columns if asked[launch]}
        every.append(said.pop() if len(said) == 1 else None)
    return Each(layout, every) if launches > 1 else every[0]


def _loops(walker: Walker, rounds: dict[int, list[Rounds]]) -> list[tuple[results.TripInfo, ...]]:
    scheme, shape, launches = walker.scheme, walker.shape, walker.layout.count
    infos: list[list[results.TripInfo]] = [[] for _ in range(launches)]
    for loop in scheme.forest.loops:
        entries = rounds.get(loop.index, [])
        lanes = sum(e.entries for e in entries)
        headers = sum(e.headers for e in entries)
        how: results.How = "constant" if _constant(shape, loop.index) else "inferred"
        if any(e.reason is not None for e in entries):
            how = "assumed"
        mean = ratio(headers, lanes)
        columns = most(0.0, mean - tested_first(scheme.cfg, loop)), mean, lanes
        for infos_of, row in zip(infos, by_launch(columns, launches), strict=True):
            count, average, entered = row
            infos_of.append(results.TripInfo(loop.index, how, count, average, entered))
    return [tuple(found) for found in infos]


def _constant(shape: Shape, loop: int) -> bool:
    """The exit tests are made of constants and this loop's own counters only."""
    return bool(shape.conditions[loop]) and all(
        node in shape.plain and not node.loops & ~(1 << loop) for node in shape.conditions[loop]
    )
