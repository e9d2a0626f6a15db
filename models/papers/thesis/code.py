"""A kernel as the scheduler sees it: blocks of operations, each with its unit and latency key.

What is independent of launch and GPU is worked out once per kernel (``KernelCode``); a GPU then
only fills in numbers. ``code.toml`` says which unit (section 4.1 of the thesis: SP, SFU, DPU, LSU,
WS) and which row of its Table 3.2 an opcode is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.dataflow import block_edges
from wattcast.features.effort import checkpoint
from wattcast.features.isa import OpcodeFacts, classify, kind_of
from wattcast.features.loops import LoopForest
from wattcast.features.ptx.ir import Body
from wattcast.models.papers.thesis.algorithms import Operation

MISC = "misc"
GLOBAL_LOAD = "global_load"
GLOBAL_STORE = "global_store"

DEFAULT_ACCESS_BYTES = 4
"""access_sz where the opcode does not tell the bytes (cp.async and bulk copies): the size the
authors' tool uses for every access (docs/schemas.md)."""


MOST_EXECUTIONS = 1e18
"""Executions of a block beyond which more make no difference: at one cycle each they take 30
years. It keeps the times of deep nests finite."""


class Charge(NamedTuple):
    """What one opcode costs: the unit it occupies and the latency it is charged.

    ``latency`` is a key of ``GpuProfile.latency_cycles``, or MISC, GLOBAL_LOAD, GLOBAL_STORE;
    ``measured`` is False where no table holds a latency for the opcode (it is MISC then).
    The counts are per execution and thread.
    """

    resource: str
    latency: str
    measured: bool
    global_accesses: int = 0
    global_bytes: int = 0
    shared_accesses: int = 0
    shared_bytes: int = 0


class _Tables(Strict):
    free: frozenset[str]
    known_misc: frozenset[str]
    units: Mapping[str, str]
    rows: Mapping[Literal["float", "int", "any"], Mapping[str, str]]


_FILE = Path(__file__).with_suffix(".toml")


@cache
def _tables() -> _Tables:
    return checked(_Tables, read_toml(_FILE), _FILE.name)


@lru_cache(maxsize=65536)
def charge(opcode: str) -> Charge | None:
    """Unit, latency key and memory accesses of an opcode; ``None`` if it costs nothing."""
    facts = classify(opcode)
    if facts.entry in _tables().free:
        return None
    if facts.category in ("load", "store", "atomic", "copy"):
        return _memory_charge(facts)
    resource = _tables().units[facts.pipe]
    if facts.category == "texture":
        return Charge(resource, GLOBAL_LOAD, measured=False)
    if facts.category == "surface":
        stores = facts.entry != "suld"
        return Charge(resource, GLOBAL_STORE if stores else GLOBAL_LOAD, measured=False)
    rows = _tables().rows["int" if kind_of(facts.type) == "int" else "float"]
    key = rows.get(facts.entry) or _tables().rows["any"].get(facts.entry)
    if key is None:
        return Charge(resource, MISC, measured=facts.entry in _tables().known_misc)
    return Charge(resource, key, measured=True)


def _memory_charge(facts: OpcodeFacts) -> Charge:
    size = facts.bytes_per_lane or DEFAULT_ACCESS_BYTES
    if facts.space in ("param", "const") and facts.category == "load":
        # The machine reads both from the constant bank as an operand: a move, not a load
        # (docs/activity.md weights a parameter load 0.15 instructions).
        return Charge("SP", "mov", measured=facts.space == "param")
    if facts.space == "param":
        return Charge("SP", "mov", measured=True)
    on_global = facts.space in ("global", "generic") or facts.source_space == "global"
    on_shared = facts.space == "shared" or facts.source_space == "shared"
    stores = facts.category == "store" or facts.entry == "red"
    if on_global or facts.space == "local":
        # Local memory lies in global memory; it is no access of the kernel's data, so it is
        # not counted in nGM.
        latency = GLOBAL_STORE if stores else GLOBAL_LOAD
    elif on_shared:
        latency = "st.shared" if stores else "ld.shared"
    else:
        latency = MISC
    return Charge(
        "LSU",
        latency,
        measured=latency != MISC and facts.category in ("load", "store"),
        global_accesses=int(on_global),
        global_bytes=size * on_global,
        shared_accesses=int(on_shared),
        shared_bytes=size * on_shared,
    )


@dataclass(frozen=True, slots=True)
class BlockCode:
    """One basic block: a charge and the predecessors (indices into ``charges``) per operation.

    ``memory`` sums the charges' global accesses and bytes, shared accesses and bytes.
    """

    charges: tuple[Charge, ...]
    predecessors: tuple[tuple[int, ...], ...]
    memory: tuple[int, int, int, int]

    @classmethod
    def of(
        cls, charges: tuple[Charge, ...], predecessors: tuple[tuple[int, ...], ...]
    ) -> BlockCode:
        """A block with its memory accesses summed."""
        memory = (
            sum(charge.global_accesses for charge in charges),
            sum(charge.global_bytes for charge in charges),
            sum(charge.shared_accesses for charge in charges),
            sum(charge.shared_bytes for charge in charges),
        )
        return cls(charges, predecessors, memory)


@dataclass(frozen=True, eq=False)
class KernelCode:
    """A kernel without launch and GPU.

    ``loop_of[b]`` is the innermost loop that holds block b (index in the LoopForest) or -1,
    ``loop_parents`` the loop around each loop or -1, ``loop_lines`` their PTX lines; ``order``
    the blocks reachable, topologically without back edges. ``unmeasured`` are opcodes no table
    holds a latency for, ``calls`` the lines of calls.
    """

    blocks: tuple[BlockCode, ...]
    successors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    loop_of: tuple[int, ...]
    loop_parents: tuple[int, ...]
    loop_lines: tuple[int, ...]
    unmeasured: tuple[str, ...]
    calls: tuple[int, ...]
    # By GPU constants, filled by models/papers/thesis/scheduling.py.
    operations: dict[object, tuple[tuple[Operation, ...], ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    delays: dict[object, tuple[float, ...]] = field(default_factory=dict, init=False, repr=False)
    orders: dict[object, tuple[tuple[int, ...], ...]] = field(
        default_factory=dict, init=False, repr=False
    )

    @classmethod
    def of(cls, body: Body, cfg: ControlFlowGraph, loops: LoopForest) -> KernelCode:
        """Work out a kernel's code from its body, control flow graph and natural loops."""
        successors = tuple(tuple(block.successors) for block in cfg.blocks)
        loop_of = [-1] * len(cfg.blocks)
        for loop in loops.loops:
            for member in loop.own_blocks:
                loop_of[member] = loop.index
        unmeasured: dict[str, None] = {}
        calls: list[int] = []
        blocks = []
        for number, block in enumerate(cfg.blocks):
            if number not in cfg.reachable:
                blocks.append(BlockCode.of((), ()))
                continue
            checkpoint()
            charges: list[Charge] = []
            at: dict[int, int] = {}
            before: list[list[int]] = []
            for position in range(block.start, block.end):
                instruction = body.instructions[position]
                cost = charge(instruction.opcode)
                if cost is None:
                    continue
                if not cost.measured:
                    unmeasured[instruction.opcode] = None
                if instruction.base == "call":
                    calls.append(instruction.line)
                at[position] = len(charges)
                charges.append(cost)
                before.append([])
            for source, target in block_edges(body, block):
                if source in at and target in at:
                    before[at[target]].append(at[source])
            blocks.append(BlockCode.of(tuple(charges), tuple(tuple(part) for part in before)))
        return cls(
            blocks=tuple(blocks),
            successors=successors,
            order=cfg.reverse_post_order,
            loop_of=tuple(loop_of),
            loop_parents=tuple(-1 if loop.parent is None else loop.parent for loop in loops.loops),
            loop_lines=tuple(loop.line for loop in loops.loops),
            unmeasured=tuple(unmeasured),
            calls=tuple(calls),
        )

    def multipliers(self, trips: Sequence[float]) -> tuple[float, ...]:
        """How often each block runs: the product of the trips of the loops that hold it.

        At most MOST_EXECUTIONS. ``trips`` has one count per loop of the LoopForest.
        """
        known = tuple(float(count) for count in trips)
        parents = self.loop_parents
        if len(known) != len(parents):
            raise ValueError(f"{len(known)} trip counts for {len(parents)} loops")
        of_loop: list[float | None] = [None] * len(parents)
        for loop in range(len(parents)):
            # Down from the outermost loop not yet worked out; no order of the loops is relied on.
            inside = []
            at = loop
            while at >= 0 and of_loop[at] is None:
                inside.append(at)
                at = parents[at]
            around = (of_loop[at] or 0.0) if at >= 0 else 1.0
            for at in reversed(inside):
                around = of_loop[at] = min(known[at] * around, MOST_EXECUTIONS)
        return tuple((of_loop[loop] or 0.0) if loop >= 0 else 1.0 for loop in self.loop_of)
