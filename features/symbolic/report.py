"""From the walk's journal to the result: totals per instruction, loop, access and branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.ptx.ir import Instruction
from wattcast.features.symbolic import results
from wattcast.features.symbolic.arith import Missing
from wattcast.features.symbolic.journal import Guarded, Rounds, Split, Touched, Visit
from wattcast.features.symbolic.plan import Shape
from wattcast.features.symbolic.scheme import Scheme
from wattcast.features.symbolic.walk import Walker
from wattcast.features.trips import TripCount
from wattcast.features.values import Node, describe

_texts: WeakKeyDictionary[Node, str] = WeakKeyDictionary()


def text(node: Node) -> str:
    """``describe``, worked out once per node."""
    known = _texts.get(node)
    if known is None:
        known = _texts[node] = describe(node)
    return known


def _source_line(one: Instruction) -> int | None:
    return one.location.line if one.location else None


class _Totals(NamedTuple):
    """One function's journal, added up."""

    counts: results.SymbolicCounts
    accesses: tuple[results.AccessInfo, ...]
    branches: tuple[results.BranchInfo, ...]
    rounds: dict[int, list[Rounds]]


def summarise(
    walker: Walker,
    called: Mapping[str, Walker],
    given: tuple[TripCount, ...],
    sampling: results.SampledBlocks,
    diagnostics: list[Diagnostic],
    complete: bool,
) -> results.SymbolicResult:
    """Add up the journals of the kernel and of the functions it calls."""
    scheme = walker.scheme
    kernel = _totals(walker)
    loops = _loops(scheme, walker.shape, kernel.rounds, given)
    others = {name: _totals(other) for name, other in called.items()}
    warnings = _warnings(loops, kernel.branches, kernel.accesses)
    for name, other in called.items():
        trips = tuple(other.loops.trip(loop.index) for loop in other.scheme.forest.loops)
        inner = _loops(other.scheme, other.shape, others[name].rounds, trips)
        warnings += _warnings(inner, others[name].branches, others[name].accesses)
    everything = [kernel.counts, *(other.counts for other in others.values())]
    return results.SymbolicResult(
        functions={counts.function: counts for counts in everything},
        loops=loops,
        accesses=kernel.accesses,
        branches=kernel.branches,
        sampling=sampling,
        diagnostics=(*diagnostics, *warnings),
        complete=complete,
        relative_standard_error=_standard_error(walker, sampling),
    )


def _standard_error(walker: Walker, sampling: results.SampledBlocks) -> float:
    """Relative standard error of the kernel's warp executions, from one sampled block to others."""
    if sampling.drawn is None:
        return 0.0
    blocks = walker.scheme.cfg.blocks
    every = [
        (blocks[entry.block].end - blocks[entry.block].start, entry.by_warp)
        for entry in walker.journal
        if isinstance(entry, Visit) and entry.by_warp is not None
    ]
    if not every:
        return 0.0
    executed = np.array([size for size, _ in every]) @ np.array([each for _, each in every])
    per_block = np.reshape(executed, (len(sampling.blocks), -1)).sum(axis=1)
    total = sampling.drawn.total(per_block)
    return sampling.drawn.standard_error(per_block) / total if total else 0.0


def _totals(walker: Walker) -> _Totals:
    scheme, journal, watch = walker.scheme, walker.journal, walker.watch
    body = scheme.cfg.body
    count = len(body.instructions)
    warps, lanes = np.zeros(count), np.zeros(count)
    known = np.ones(count, dtype=np.bool_)
    guarded: dict[int, float] = {}
    touched: dict[int, list[Touched]] = {}
    rounds: dict[int, list[Rounds]] = {}
    splits: dict[int, list[Split]] = {}
    by_block: dict[int, list[float]] = {}
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
        warps[block.start : block.end] = block_warps
        lanes[block.start : block.end] = block_lanes
        if index in doubtful:
            known[block.start : block.end] = False
    for position, total in guarded.items():
        lanes[position] = total
    late = range(watch.doubtful_from, len(scheme.cfg.blocks))
    for index in (*late, *watch.doubtful):
        block = scheme.cfg.blocks[index]
        known[block.start : block.end] = False
    branches = _branches(scheme, splits, lanes, known)
    counts, accesses = _accesses(scheme, touched, warps, lanes, known)
    return _Totals(counts, accesses, branches, rounds)


def _branches(
    scheme: Scheme, splits: dict[int, list[Split]], lanes: results.Floats, known: results.Flags
) -> tuple[results.BranchInfo, ...]:
    found = []
    for block, ending in enumerate(scheme.endings):
        entries = splits.get(ending.position)
        if not entries or ending.condition is None:
            continue
        one = scheme.cfg.body.instructions[scheme.cfg.blocks[block].end - 1]
        yes, no = sum(e.taken_lanes for e in entries), sum(e.other_lanes for e in entries)
        yes_warps = sum(e.taken_warps for e in entries)
        no_warps = sum(e.other_warps for e in entries)
        if one.base in ("bra", "ret", "exit"):
            lanes[one.position] = yes  # a guarded branch is active where it is taken
            known[one.position] &= not any(entry.reason for entry in entries)
        whole = max(yes + no, 1e-300)
        most = max(yes_warps, no_warps, 1e-300)
        reason = next((e.reason for e in entries if e.reason is not None), None)
        condition = text(ending.condition)
        found.append(
            results.BranchInfo(
                one.position, one.line, _source_line(one),
                f"not {condition}" if ending.negated else condition,
                yes / whole, yes_warps / most, no_warps / most, reason is None,
                reason.reason if reason else None, (reason.line or None) if reason else None,
            )
        )  # fmt: skip
    return tuple(found)


def _accesses(
    scheme: Scheme,
    touched: dict[int, list[Touched]],
    warps: results.Floats,
    lanes: results.Floats,
    known: results.Flags,
) -> tuple[results.SymbolicCounts, tuple[results.AccessInfo, ...]]:
    body = scheme.cfg.body
    requests, sectors, shared_requests, transactions, constants, l1_millicycles = (
        [0.0] * len(body.instructions) for _ in range(6)
    )
    sure = known.tolist()
    infos = []
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
            asked = got = moved = 0.0
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
            affine = reason is None and bool(known[position])
            if not affine:
                sure[position] = False
            strides = {entry.stride for entry in mine if entry.requests}
            steps = {entry.per_iteration for entry in mine if entry.requests}
            infos.append(
                results.AccessInfo(
                    position, one.opcode, one.line, _source_line(one), access.space, affine,
                    strides.pop() if len(strides) == 1 else None,
                    steps.pop() if len(steps) == 1 else None,
                    asked, got / asked if asked else 0.0, moved / asked if asked else 0.0,
                    text(access.address) + (f" + {access.offset}" if access.offset else ""),
                    reason.reason if reason else None, (reason.line or None) if reason else None,
                )
            )  # fmt: skip
    counts = results.SymbolicCounts(
        scheme.function.name, warps, lanes, np.array(requests), np.array(sectors),
        np.array(shared_requests), np.array(transactions), known,
        np.array(sure, dtype=np.bool_), np.array(constants), np.array(l1_millicycles),
    )  # fmt: skip
    return counts, tuple(infos)


def _loops(
    scheme: Scheme, shape: Shape, rounds: dict[int, list[Rounds]], given: tuple[TripCount, ...]
) -> tuple[results.TripInfo, ...]:
    found = []
    for loop in scheme.forest.loops:
        entries = rounds.get(loop.index, [])
        conditions = shape.conditions[loop.index]
        expression = " and ".join(text(node) for node in conditions[:3])
        lanes = sum(e.entries for e in entries)
        headers = sum(e.headers for e in entries)
        reason = next((e.reason for e in entries if e.reason is not None), None)
        latches = {latch for latch, _ in loop.back_edges}
        first = any(e.source == loop.header for e in shape.exits[loop.index])
        first = first and loop.header not in latches
        known = given[loop.index]
        how: results.How
        if reason is not None:
            stand_in = known.how == "given" and any(e.how == "unknown" for e in entries)
            how = "given" if stand_in else "assumed"
        else:
            how = "constant" if _constant(shape, loop.index) else "inferred"
        mean = headers / lanes if lanes else 0.0
        if any(e.how == "unknown" for e in entries):
            mean = known.count + (1 if first else 0)
        found.append(
            results.TripInfo(
                loop.index, loop.label, loop.line, loop.location.line if loop.location else None,
                how, max(0.0, mean - (1 if first else 0)), mean,
                min((e.lowest for e in entries), default=0),
                max((e.highest for e in entries), default=0),
                lanes, expression,
                reason.reason if reason else None, (reason.line or None) if reason else None,
            )
        )  # fmt: skip
    return tuple(found)


def _constant(shape: Shape, loop: int) -> bool:
    """The exit tests are made of constants and this loop's own counters only."""
    return bool(shape.conditions[loop]) and all(
        node in shape.plain and not node.loops & ~(1 << loop) for node in shape.conditions[loop]
    )


def _warnings(
    loops: tuple[results.TripInfo, ...],
    branches: tuple[results.BranchInfo, ...],
    accesses: tuple[results.AccessInfo, ...],
) -> list[Diagnostic]:
    found = []
    for loop in loops:
        if loop.how == "assumed" and loop.entries:
            where = loop.label or f"line {loop.line}"
            found.append(
                Diagnostic(
                    "trip_count_assumed",
                    f"no trip count can be inferred for the loop at {where} ({loop.reason}"
                    + (f", line {loop.reason_line}" if loop.reason_line else "")
                    + f"); {loop.count:g} is assumed",
                    loop.line,
                )
            )
    found += [
        Diagnostic(
            "branch_assumed",
            f"which way this branch goes is not known ({branch.reason}"
            + (f", line {branch.reason_line}" if branch.reason_line else "")
            + "); every warp is taken to go both ways, half of the lanes each",
            branch.line,
        )
        for branch in branches
        if not branch.known
    ]
    for access in accesses:
        if access.reason is not None:
            guess = "one transaction per request" if access.space in ("shared", "const") else (
                "a sector for every lane"
            )  # fmt: skip
            found.append(
                Diagnostic(
                    "access_assumed",
                    f"{access.opcode}: the addresses are not known ({access.reason}"
                    + (f", line {access.reason_line}" if access.reason_line else "")
                    + f"); {guess} is assumed",
                    access.line,
                )
            )
    return found
