"""Register reads of FP32 multiply-adds: what the register file must deliver to them.

From Volta on a scheduler's registers lie in two banks (Z. Jia et al., arXiv:1804.06826, 2018), and
each delivers one register of a warp a cycle (1024 bits: R. Huerta et al., "Analyzing Modern NVIDIA
GPU Cores", arXiv:2503.20481, 2025, section 5.3). A multiply-add of three different registers needs
1.5 cycles of them at best: more than its slot where a scheduler has 32 FP32 lanes, less than its
pipe where it has 16. On an RTX A4000 such multiply-adds, two registers in one bank, ran at 55 % of
the peak, and at 95 % with their factors held (NVIDIA developer forums, "How to understand register
bank on RTX A4000", thread 266769). What saves reads: one operand may be an immediate or a kernel
parameter, and a factor that the next instruction of the warp uses again is held beside the pipe
(``.reuse`` in machine code).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from wattcast.features.activity.counts import Floats, body_of
from wattcast.features.attached import attached
from wattcast.features.cfg import BasicBlock, build_cfg
from wattcast.features.counts import Counts
from wattcast.features.dataflow import block_sources, flow
from wattcast.features.isa import classify
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx.ir import Body, Immediate, Instruction, Module, Operand, Register


class Product(NamedTuple):
    """A multiply-add as the machine executes it."""

    factors: tuple[Operand, ...]
    addend: Operand


def measure_register_reads(module: Module, functions: Mapping[str, Counts]) -> float:
    """Registers of a warp that FP32 multiply-adds read from the register file; launch total."""
    return sum(
        float(counts.warp_executions @ _reads(body_of(module, name)))
        for name, counts in functions.items()
    )


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
