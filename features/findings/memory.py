"""Findings about memory: accesses that do not coalesce, bank conflicts, local memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from wattcast.features.activity.counts import WORD_BYTES
from wattcast.features.findings.finding import Difference, Evidence, Finding, Place, place
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES

WORTH_TELLING = 1.25
"""Sectors or passes over the least possible from which an access is told: below, alignment and
ragged edges explain it."""


class _Alike:
    """Instructions of which the same is to be told, and what mending all of them changes."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.difference = Difference()


def uncoalesced(evidence: Evidence) -> Iterator[Finding]:
    """Global accesses that touch more sectors than their lanes' bytes fill.

    Mended, the lanes' data lie side by side. Device memory then moves no more than passes L2, and
    no more than before: what caches made of a stride is not counted twice.
    """
    groups: dict[str, _Alike] = {}
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            sectors = float(events.global_sectors[at])
            executed = float(events.warp_executions[at])
            if not sectors or facts.category not in ("load", "store") or not facts.bytes_per_lane:
                continue
            lanes = float(events.active_lanes[at]) / executed
            least = max(1.0, ceil(lanes * facts.bytes_per_lane / SECTOR_BYTES)) * executed
            if sectors < WORTH_TELLING * least:
                continue
            told = (
                f"{one.opcode} touches {sectors / executed:.1f} sectors of {SECTOR_BYTES} bytes a "
                f"warp; its lanes' data fill {least / executed:.0f}"
            )
            alike = groups.setdefault(told, _Alike())
            alike.places.append(place(function, one))
            kind, way = ("load", "read") if facts.category == "load" else ("store", "write")
            add = alike.difference.add
            add(f"global_{kind}_sectors", least - sectors)
            add("l2_sectors", min(0.0, least - float(events.l2_sectors[at])))
            add(f"dram_{way}_sectors", min(0.0, least - float(events.dram_sectors[at])))
    for told, alike in groups.items():
        yield Finding(
            "uncoalesced_access",
            tuple(alike.places),
            told,
            "let neighbouring threads access neighbouring elements: change the layout or which "
            "index is threadIdx.x, or go through shared memory",
            alike.difference.applied(evidence.activity),
        )


def bank_conflicts(evidence: Evidence) -> Iterator[Finding]:
    """Shared accesses that take more passes than their width needs."""
    counted = evidence.analysis.counts.functions(evidence.analysis.counts.factors())
    groups: dict[str, _Alike] = {}
    for function, _ in evidence.functions():
        counts = counted[function.name]
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            requests = float(counts.shared_requests[at])
            passes = float(counts.shared_transactions[at])
            if not requests or facts.category == "atomic":
                continue
            least = requests * max(1, facts.bytes_per_lane // WORD_BYTES)
            if passes < WORTH_TELLING * least:
                continue
            told = (
                f"{one.opcode} takes {passes / requests:.1f} passes of shared memory a warp; "
                f"without conflicts {least / requests:.0f}"
            )
            alike = groups.setdefault(told, _Alike())
            alike.places.append(place(function, one))
            alike.difference.add("shared_transactions", least - passes)
    for told, alike in groups.items():
        yield Finding(
            "bank_conflicts",
            tuple(alike.places),
            told,
            "pad the rows of the array by a word, or permute its columns (XOR with the row)",
            alike.difference.applied(evidence.activity),
        )


def local_memory(evidence: Evidence) -> Iterator[Finding]:
    """Loads and stores of local memory in the PTX: arrays with computed indices, and spills."""
    difference = Difference()
    places, requests = [], 0.0
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            passes = float(events.load_store_passes[at])
            if facts.space != "local" or not passes:
                continue
            executed = float(events.warp_executions[at])
            difference.instructions(one.opcode, -executed)
            difference.add("lsu_requests", -passes)
            words = max(1, facts.bytes_per_lane // WORD_BYTES)
            sectors = passes * words * (WARP_SIZE * WORD_BYTES // SECTOR_BYTES)
            difference.add("local_sectors", -sectors)
            if facts.category == "load":
                difference.loads -= passes
            places.append(place(function, one))
            requests += passes
    if places:
        yield Finding(
            "local_memory",
            tuple(places),
            f"{len(places)} instructions go to local memory, {requests:.4g} requests of warps: "
            "spilled registers, or an array whose index is not known when compiled",
            "unroll the loop around a small array, split it into scalars, or allow more registers",
            difference.applied(evidence.activity),
        )
