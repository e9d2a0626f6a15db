"""Loads from shared and constant memory that ptxas joins into wider ones.

Loads of one basic block that read neighbouring words through the same register, with no store and
no barrier between them, become one load of 8 or 16 bytes where the address is known to be aligned.
ptxas places the variables itself, so it aligns them as it likes (machine code of ptxas 12.9 for
sm_80: all of the fixture ``wide_shared`` and of tiled matrix products; it knows nothing of
neighbours through different registers). Loads from constant memory become 8 bytes at most (LDC.64).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import attached
from wattcast.features.cfg import build_cfg
from wattcast.features.dataflow import flow
from wattcast.features.isa import OpcodeFacts, classify
from wattcast.features.ptx.ir import Address, Body, Immediate, Instruction, Register, Symbol

Floats = npt.NDArray[np.float64]

WIDEST = 16
"""Bytes of the widest access of a lane (PTX ISA, vectors of ``ld``)."""

WIDEST_OF = {"shared": WIDEST, "const": 8}
"""The same of the machine's loads, by space."""

LEAST_OF_FOUR = 3
"""Words of four that are loaded by one wide load; two of four stay two loads."""

_FENCES = frozenset({"bar", "barrier", "membar", "fence", "call", "atom", "red", "cp"})


class Joined(NamedTuple):
    """By position, ``[n]``: how many ``loads``, itself included, each instruction shares one wide
    load with, and the ``bytes`` that load reads for a lane; 0 where it is joined with no other."""

    loads: Floats
    bytes: npt.NDArray[np.int64]


@attached
def joined_loads(body: Body) -> Joined:
    """Which loads of a function become one; worked out once."""
    size = len(body.instructions)
    found = Joined(np.ones(size), np.zeros(size, dtype=np.int64))
    aligned = _Alignment(body)
    spans = ((space, span) for space in WIDEST_OF for span in _spans(body, space))
    for space, open_loads in spans:
        for base, loads in open_loads.items():
            for width, group in _groups(loads, aligned.of(base), WIDEST_OF[space]):
                found.loads[group] = len(group)
                found.bytes[group] = width
    return found


def _spans(body: Body, space: str) -> Iterator[dict[str, dict[int, tuple[int, int]]]]:
    """Loads that nothing keeps apart: by register, offset to bytes and position."""
    written = flow(body).writes
    for block in build_cfg(body).blocks:
        span: dict[str, dict[int, tuple[int, int]]] = {}
        for one in body.instructions[block.start : block.end]:
            facts = classify(one.opcode)
            stores = facts.category == "store" and facts.space in ("shared", "generic")
            if stores or facts.entry in _FENCES:
                yield span
                span = {}
            where = _narrow_load(one, facts, space)
            if where is not None:
                base, offset = where
                size = facts.bytes_per_lane
                span.setdefault(base, {}).setdefault(offset, (size, one.position))
            for name in written[one.position]:
                if name in span:
                    yield {name: span.pop(name)}
        yield span


def _narrow_load(one: Instruction, facts: OpcodeFacts, space: str) -> tuple[str, int] | None:
    """Register and offset of a load that can be part of a wide one."""
    if facts.entry != "ld" or facts.space != space or one.predicate is not None:
        return None
    if ".volatile" in one.opcode or not 4 <= facts.bytes_per_lane < WIDEST_OF[space]:
        return None
    address = one.operands[-1]
    if type(address) is not Address:
        return None
    return (address.base.name, address.offset) if type(address.base) is Register else None


def _groups(
    loads: dict[int, tuple[int, int]], aligned: int, widest: int
) -> Iterator[tuple[int, list[int]]]:
    """Bytes of a wide load and the positions it serves: the widest first."""
    left = dict(loads)
    for width in (WIDEST, WIDEST // 2):
        if min(aligned, widest) < width:
            continue
        for offset in sorted(left):
            if offset not in left:
                continue
            size = left[offset][0]
            start = offset - offset % width
            window = range(start, start + width, size)
            asked = [at for at in window if left.get(at, (0, 0))[0] == size]
            # Of four words one may go to nobody.
            if len(asked) > 1 and len(asked) >= min(len(window), LEAST_OF_FOUR):
                yield width, [left.pop(at)[1] for at in asked]


class _Alignment:
    """The power of two, up to ``WIDEST``, that a register's value is known to be a multiple of.

    Every register starts as ``WIDEST``, so that what leads back to itself does not change it, and
    falls by what writes it: each at most five times.
    """

    def __init__(self, body: Body) -> None:
        self._body = body

    def of(self, name: str) -> int:
        return self._known.get(name, 1)

    @cached_property
    def _known(self) -> dict[str, int]:
        known = {name: WIDEST for names in flow(self._body).writes for name in names}
        users: dict[str, list[int]] = defaultdict(list)
        for position, names in enumerate(flow(self._body).reads):
            for name in names:
                users[name].append(position)
        waiting = dict.fromkeys(range(len(self._body.instructions)))
        while waiting:
            position = next(iter(waiting))
            del waiting[position]
            found = _result(self._body.instructions[position], known)
            for name in flow(self._body).writes[position]:
                if found < known[name]:
                    known[name] = found
                    waiting.update(dict.fromkeys(users[name]))
        return known


def _result(one: Instruction, known: Mapping[str, int]) -> int:
    """What the result of an instruction is a multiple of."""

    def each(operand: object) -> int:
        if type(operand) is Register:
            return known.get(operand.name, 1)
        if type(operand) is Immediate and isinstance(operand.value, int):
            return min(WIDEST, operand.value & -operand.value) if operand.value else WIDEST
        return WIDEST if type(operand) is Symbol and not operand.offset % WIDEST else 1

    entry = classify(one.opcode).entry
    sources = [each(operand) for operand in one.operands[1:]]
    if len(sources) < _SOURCES.get(entry, 1):  # nothing known, or text that ptxas would refuse
        return 1
    if entry in ("mov", "cvta", "cvt"):
        return sources[0]
    if entry in ("add", "sub", "or"):
        return min(sources)
    if entry == "and":
        return max(sources)
    if entry == "shl":
        by = one.operands[2]
        if isinstance(by, Immediate) and isinstance(by.value, int) and by.value >= 0:
            return min(WIDEST, sources[0] << min(by.value, 64))
        return 1
    if entry in ("mul", "mad") and ".hi" not in one.opcode:
        product = min(WIDEST, sources[0] * sources[1])
        return product if entry == "mul" else min(product, sources[2])
    return 1


_SOURCES = {"add": 2, "sub": 2, "or": 2, "and": 2, "shl": 2, "mul": 2, "mad": 3}
