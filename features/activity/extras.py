"""Facts of a launch that schema ``activity1`` has no field for: tensor work by kind, atomics that
meet at an address. The default time model needs them.

Launch totals like those of ``Activity``. What the analysis at hand cannot know is ``None``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from wattcast.features.activity.counts import (
    Floats,
    Integers,
    body_of,
    factor_passes,
    wmma_factors,
)
from wattcast.features.activity.instructions import measure_store_headers, stores_of
from wattcast.features.activity.waiting import (
    NO_COPIES,
    Copies,
    Waiting,
    measure_copies,
    measure_waiting,
)
from wattcast.features.attached import attached
from wattcast.features.cfg import BasicBlock, build_cfg
from wattcast.features.counts import Atomics, Counts
from wattcast.features.dataflow import block_sources, flow
from wattcast.features.fifth import product_shape
from wattcast.features.isa import OpcodeFacts, classify
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.loops import natural_loops
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx.ir import (
    Address,
    Body,
    Immediate,
    Instruction,
    Module,
    Operand,
    Register,
)
from wattcast.features.wide_loads import joined_loads

# Register reads of FP32 multiply-adds: what the register file must deliver to them.
#
# From Volta on a scheduler's registers lie in two banks (Z. Jia et al., arXiv:1804.06826, 2018),
# and each delivers one register of a warp a cycle (1024 bits: R. Huerta et al., "Analyzing Modern
# NVIDIA GPU Cores", arXiv:2503.20481, 2025, section 5.3). A multiply-add of three different
# registers needs 1.5 cycles of them at best: more than its slot where a scheduler has 32 FP32
# lanes, less than its pipe where it has 16. On an RTX A4000 such multiply-adds, two registers in
# one bank, ran at 55 % of the peak, and at 95 % with their factors held (NVIDIA developer forums,
# "How to understand register bank on RTX A4000", thread 266769). What saves reads: one operand may
# be an immediate or a kernel parameter, and a factor that the next instruction of the warp uses
# again is held beside the pipe (``.reuse`` in machine code).


class Product(NamedTuple):
    """A multiply-add as the machine executes it."""

    factors: tuple[Operand, ...]
    addend: Operand


@attached
def _reads(body: Body) -> Floats:
    """Registers read by each multiply-add of FP32, by position; 0 for other instructions."""
    found = np.zeros(len(body.instructions))
    products = _products(body)
    if not products:
        return found
    constant = _constants(body)
    for position, one in products.items():
        operands = (*one.factors, one.addend)
        names = {part.name for part in operands if type(part) is Register}
        fixed = sum(type(part) is Immediate for part in operands) + len(names & constant)
        found[position] = len(names - constant) + max(0, fixed - 1)
    for block in build_cfg(body).blocks:
        if (found[block.start : block.end] > 2).any():  # fewer reads limit nothing
            _hold(body, block, products, constant, found)
    return found


_OPERANDS = {"mul": 2, "neg": 1, "fma": 3, "mad": 3, "add": 2, "sub": 2}
"""Fewest operands beside the destination."""


def _products(body: Body) -> dict[int, Product]:
    """Multiply-adds by position: one instruction, or a product in the sum that takes it in."""
    kept = machine_code(body).instructions
    taken: dict[str, Instruction] = {}
    found = {}
    for one in body.instructions:
        facts = classify(one.opcode)
        if facts.type != "f32" or facts.pipe != "fma":
            continue
        operands = one.operands[1:]
        if len(operands) < _OPERANDS.get(facts.entry, 0):  # tolerated, and reported by the reader
            continue
        if facts.entry in ("mul", "neg") and not kept[one.position]:
            taken[getattr(one.operands[0], "name", "")] = one
        elif facts.entry in ("fma", "mad"):
            factors, addend = operands[:2], operands[2]
            found[one.position] = Product(
                tuple(_signless(each, taken) for each in factors), _signless(addend, taken)
            )
        elif facts.entry in ("add", "sub"):
            for factor, addend in (operands[:2], operands[1::-1]):
                product = taken.get(getattr(factor, "name", ""))
                if product is not None and classify(product.opcode).entry == "mul":
                    found[one.position] = Product(product.operands[1:3], _signless(addend, taken))
                    break
    return found


def _signless(operand: Operand, taken: Mapping[str, Instruction]) -> Operand:
    """The operand whose negative this one is, where its sign is part of the instruction."""
    sign = taken.get(getattr(operand, "name", ""))
    return sign.operands[1] if sign and classify(sign.opcode).entry == "neg" else operand


def _constants(body: Body) -> frozenset[str]:
    """Registers that hold a kernel parameter or a literal and nothing else."""
    writers = Counter(name for names in flow(body).writes for name in names)
    found: set[str] = set()
    for one in body.instructions:
        literal = one.opcode.startswith("mov.") and type([*one.operands, None][-1]) is Immediate
        if literal or one.opcode.startswith("ld.param"):
            found.update(name for name in flow(body).writes[one.position] if writers[name] == 1)
    return frozenset(found)


def _hold(
    body: Body,
    block: BasicBlock,
    products: Mapping[int, Product],
    constant: frozenset[str],
    found: Floats,
) -> None:
    """Take off the reads of factors that are held.

    Multiply-adds at the same depth of a block do not wait for each other: ptxas puts those with a
    common factor in a row, and it is read once for all of them. One factor of each is so.
    """
    depth: dict[int, int] = {}
    shared: Counter[tuple[str, int]] = Counter()
    users: dict[int, list[tuple[str, int]]] = {}
    for one, sources in block_sources(body, block):
        position = one.position
        depth[position] = level = 1 + max((depth[source] for source in sources), default=0)
        if found[position] > 2:
            names = {each.name for each in products[position].factors if type(each) is Register}
            users[position] = [(name, level) for name in names - constant]
            shared.update(users[position])
    for position, keys in users.items():
        found[position] -= 1.0 - 1.0 / max((shared[key] for key in keys), default=1)


TensorKind = Literal["f16", "tf32", "f64", "f8", "f4", "s8", "s4", "b1"]
"""What the inputs of a matrix instruction are: f16 and bf16 (``f16``); e4m3, e5m2 and the 6-bit
floats, which run at their rate (``f8``); e2m1 with block scales (``f4``); signed or not (``s8``,
``s4``); single bits (``b1``)."""

WARPGROUP_WARPS = 4
"""Warps that execute one wgmma together (PTX ISA, Asynchronous Warpgroup Level Matrix
Instructions)."""
QUAD_PAIRS = 4
"""Products that a warp makes in one mma.m8n8k4 of f16, one for each pair of quads (PTX ISA,
Matrix Fragments for mma.m8n8k4 with .f16)."""

_KINDS: Mapping[str, TensorKind] = {
    "f16": "f16", "bf16": "f16", "tf32": "tf32", "f64": "f64", "e4m3": "f8", "e5m2": "f8",
    "e2m3": "f8", "e3m2": "f8", "e2m1": "f4", "s8": "s8", "u8": "s8", "s4": "s4", "u4": "s4",
    "b1": "b1",
}  # fmt: skip
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_PRODUCTS = ("mma", "mma.sp", "wmma.mma", "wgmma.mma_async", "wgmma.mma_async.sp")


@dataclass(frozen=True, slots=True)
class TensorWork:
    """Multiply-adds of matrix instructions with inputs of one kind.

    As many as the shape says, m n k. Of sparse ones half have a zero as a factor, which the
    hardware skips: they run twice as fast.
    """

    kind: TensorKind
    sparse: bool
    multiply_adds: float


@dataclass(frozen=True)
class Extras:
    """Facts beside ``activity1``.

    ``tensor`` is sorted by kind, without instructions whose shape nothing tells (a tcgen05.mma with
    a computed descriptor). ``waiting``: the dependent chains of a warp.
    ``l1_cycles_per_sector``: cycles of L1 for each sector loaded from global memory; the
    symbolic analysis does not know. ``register_reads``: those of FP32 multiply-adds, by warps.
    ``from_registers``: of ``tensor``, what mma and wmma multiply. ``feed_passes``: passes of
    shared memory that feed asynchronous products (wgmma, tcgen05) and bring what is copied for
    them. ``copies``: waits for asynchronous copies. ``busy_blocks``: blocks that touch global
    memory, where the launch has any. ``constant_passes``: words that loads from constant memory
    ask for, each of a warp's distinct ones alone, and ``constant_requests`` those loads, by
    warps: only where the address changes from one time to the next; else it is an operand or is
    loaded once. ``pieces``: pieces of device memory, each side by side, that the blocks that run
    together touch, for each sector. ``store_headers``: what stores send to L2 beyond whole
    lines, in sectors.
    """

    tensor: tuple[TensorWork, ...]
    atomics: Atomics
    waiting: Waiting | None = None
    l1_cycles_per_sector: float | None = None
    register_reads: float = 0.0
    from_registers: tuple[TensorWork, ...] = ()
    feed_passes: float = 0.0
    copies: Copies = NO_COPIES
    busy_blocks: float | None = None
    constant_passes: float = 0.0
    constant_requests: float = 0.0
    pieces: float = 0.0
    store_headers: float = 0.0


def measure_extras(
    module: Module, functions: Mapping[str, Counts], launch: Launch, atomics: Atomics,
    shared_bytes: int = 0, busy_blocks: float = 0.0, pieces: float = 0.0,
) -> Extras:  # fmt: skip
    """Add up what the analysis counted; ``functions`` maps names to counts by position,
    ``shared_bytes`` are those of a block, ``busy_blocks`` touch global memory, in so
    many ``pieces`` a sector."""
    tensor: dict[tuple[TensorKind, bool], float] = {}
    from_registers: dict[tuple[TensorKind, bool], float] = {}
    executed = (
        (name, one, float(counts.active_lanes[one.position]))
        for name, counts in functions.items()
        for one in _products_of(body_of(module, name))
        if counts.warp_executions[one.position]
    )
    for name, one, lanes in executed:
        facts, work = classify(one.opcode), tensor_work(one.opcode)
        if facts.entry.startswith("tcgen05"):  # each thread that asks for one gets one
            work, lanes = _fifth(body_of(module, name), one), lanes * WARP_SIZE
        if work is not None:
            key, done = (work.kind, work.sparse), work.multiply_adds * lanes / WARP_SIZE
            tensor[key] = tensor.get(key, 0.0) + done
            if facts.entry.startswith(("mma", "wmma")):
                from_registers[key] = from_registers.get(key, 0.0) + done
    return Extras(
        _sorted_work(tensor),
        atomics,
        measure_waiting(module, functions, launch.warps_per_block),
        _l1_cycles_per_sector(module, functions, launch),
        sum(float(c.warp_executions @ _reads(body_of(module, f))) for f, c in functions.items()),
        _sorted_work(from_registers),
        _feed_passes(module, functions) if tensor != from_registers else 0.0,
        measure_copies(module, functions, launch.blocks, launch.warps_per_block, shared_bytes),
        min(busy_blocks, launch.blocks) or launch.blocks,
        *_constant_use(module, functions),
        pieces,
        measure_store_headers(module, functions),
    )


def _constant_use(module: Module, functions: Mapping[str, Counts]) -> tuple[float, float]:
    """``constant_passes`` and ``constant_requests``."""
    passes = requests = 0.0
    for name, counts in functions.items():
        body = body_of(module, name)
        at = _changing_constants(body)
        if at.size:
            loads = joined_loads(body).loads[at]
            asked = counts.warp_executions[at]
            passes += float((counts.constant_transactions[at] / loads).sum())
            requests += float((asked / loads).sum())
    return passes, requests


@attached
def _changing_constants(body: Body) -> Integers:
    """Positions of loads from constant memory whose address is computed in their innermost loop,
    or in no loop at all."""
    loads = [
        one
        for one in body.instructions
        if one.opcode.startswith("ld.const")
        and any(isinstance(o, Address) and isinstance(o.base, Register) for o in one.operands)
    ]
    if not loads:
        return np.zeros(0, dtype=np.intp)
    cfg = build_cfg(body)
    forest, written = natural_loops(cfg), flow(body).writes
    found = []
    for one in loads:
        loop = forest.innermost[cfg.block_of[one.position]]
        inside = [cfg.blocks[n] for n in forest.loops[loop].blocks] if loop >= 0 else [*cfg.blocks]
        bases = {o.base.name for o in one.operands
                 if isinstance(o, Address) and isinstance(o.base, Register)}  # fmt: skip
        if any(
            not bases.isdisjoint(written[at]) for block in inside
            for at in range(block.start, block.end)
        ):  # fmt: skip
            found.append(one.position)
    return np.array(found, dtype=np.intp)


def _sorted_work(work: Mapping[tuple[TensorKind, bool], float]) -> tuple[TensorWork, ...]:
    order = get_args(TensorKind)
    ordered = sorted(work, key=lambda key: (order.index(key[0]), key[1]))
    return tuple(TensorWork(kind, sparse, work[kind, sparse]) for kind, sparse in ordered)


def _feed_passes(module: Module, functions: Mapping[str, Counts]) -> float:
    """Passes of shared memory that asynchronous products and bulk copies take."""
    found = 0.0
    for name, counts in functions.items():
        for position in _fed_by(body_of(module, name)):
            found += float(counts.shared_transactions[position])
    return found


@attached
def _fed_by(body: Body) -> tuple[int, ...]:
    names = ("wgmma.mma_async", "tcgen05.mma", "cp.async.bulk")
    return tuple(one.position for one in body.instructions if one.opcode.startswith(names))


def _l1_cycles_per_sector(
    module: Module, functions: Mapping[str, Counts], launch: Launch
) -> float | None:
    cycles = sectors = 0.0
    for name, counts in functions.items():
        loads = ~stores_of(body_of(module, name)) & (counts.l1_millicycles > 0)
        cycles += float(counts.l1_millicycles[loads].sum()) / 1000
        sectors += float(counts.sectors[loads].sum())
        function = module.function(name)
        told = launch.by_name([each.name for each in function.parameters] if function else ())
        for one, lead in wmma_factors(body_of(module, name)):
            if isinstance(lead, str):
                given = told.get(lead)
                lead = given if isinstance(given, int) else 0
            cycles += float(counts.requests[one.position]) * factor_passes(one, lead)
            sectors += float(counts.sectors[one.position])
    return cycles / sectors if cycles else None


def tensor_work(opcode: str) -> TensorWork | None:
    """Multiply-adds of one warp's execution of a matrix instruction, from its name.

    A wgmma is shared by the warps of its group. ``None`` if the name does not tell.
    """
    facts = classify(opcode)
    words = opcode.split(".")
    shape = next((match for word in words if (match := _SHAPE.fullmatch(word))), None)
    kind = _kind(facts, words)
    if facts.entry not in _PRODUCTS or shape is None or kind is None:
        return None
    m, n, k = (int(number) for number in shape.groups())
    products = 1.0
    if facts.entry.startswith("wgmma"):
        products /= WARPGROUP_WARPS
    elif facts.entry == "mma" and (m, n, k) == (8, 8, 4) and kind == "f16":
        products *= QUAD_PAIRS
    sparse = any(word.partition("::")[0] == "sp" for word in words)
    return TensorWork(kind, sparse, m * n * k * products)


_FIFTH: Mapping[str, TensorKind] = {
    "kind::f16": "f16", "kind::tf32": "tf32", "kind::f8f6f4": "f8", "kind::i8": "s8",
    "kind::mxf8f6f4": "f8", "kind::mxf4": "f4", "kind::mxf4nvf4": "f4",
}  # fmt: skip


def _fifth(body: Body, one: Instruction) -> TensorWork | None:
    """Multiply-adds of a tcgen05.mma; ``None`` where the text does not tell its descriptor."""
    shape = product_shape(body, one)
    if shape is None:
        return None
    kind = next(_FIFTH[part] for part in one.modifiers if part in _FIFTH)
    return TensorWork(kind, "sp" in one.modifiers, shape[0] * shape[1] * shape[2])


def _kind(facts: OpcodeFacts, words: list[str]) -> TensorKind | None:
    """The kind of the first factor: the second type, but for wmma of f16, which names none."""
    if len(facts.types) == 2 and facts.entry == "wmma.mma":
        return "f16"
    if len(facts.types) < 3:
        return None
    kind = _KINDS.get(facts.types[1])
    return "f8" if kind == "f4" and "kind::f8f6f4" in words else kind


@attached
def _products_of(body: Body) -> tuple[Instruction, ...]:
    return tuple(filter(is_product, body.instructions))


def is_product(one: Instruction) -> bool:
    """Whether it is a matrix instruction that multiplies."""
    facts = classify(one.opcode)
    return facts.pipe == "tensor" and facts.category == "compute"
