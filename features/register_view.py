"""A body as the machine sees it: what of the PTX takes registers, and which.

Parameters, constants and addresses of variables take none; an offset that is only added to a
base is part of that addition; predicates have registers of their own. ``features.statics``
counts the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from wattcast.features.cfg import BRANCHES, RETURNS, ControlFlowGraph
from wattcast.features.dataflow import flow
from wattcast.features.errors import checkpoint
from wattcast.features.ptx import ir

_CONSTANT_SPECIALS = ("%ntid", "%nctaid", "%warpsize", "WARP_SZ", "%envreg")
"""Special registers that are read from the constant bank."""

_WIDE_OFFSETS = ("mul.wide", "cvt.s64.s32", "cvt.u64.u32", "cvt.u64.u16", "shl.b64")
_ADDS = frozenset({"add", "sub", "mad", "shl"})

_LOADS = frozenset({"ld", "ldu", "tex", "tld4", "suld", "ldmatrix"})
_STORES = frozenset({"st", "sust", "stmatrix"})
_WAITED_FOR = _LOADS | {"atom", "shfl"}
_ORDERED = frozenset(
    {"bar", "barrier", "membar", "fence", "call", "atom", "red", "cp", "mbarrier", "wgmma"}
)  # fmt: skip
_ENDS = RETURNS | BRANCHES
_WORDS = {"b64": 2, "u64": 2, "s64": 2, "f64": 2, "f32x2": 2, "b128": 4, "pred": 0}
"""32-bit words of a type; all others take one."""


class Kind(NamedTuple):
    """What the rules ask of an opcode, worked out once per opcode."""

    base: str
    role: Literal["plain", "load", "store", "ordered", "end"]
    waited_for: bool
    space: Literal["shared", "global"]
    read_only: bool
    temporaries: int
    source: Literal["parameter", "mov", "cvta", "offset", "other"]


@lru_cache(maxsize=4096)
def kind_of(opcode: str) -> Kind:
    base = opcode.partition(".")[0]
    role: Literal["plain", "load", "store", "ordered", "end"] = "plain"
    source: Literal["parameter", "mov", "cvta", "offset", "other"] = "other"
    if opcode.startswith("ld.param"):
        source = "parameter"
    elif base in _LOADS:
        role = "load"
    elif base in _STORES:
        role = "store"
    elif base in _ORDERED:
        role = "ordered"
    elif base in _ENDS:
        role = "end"
    elif base == "mov":
        source = "mov"
    elif base == "cvta":
        source = "cvta"
    elif opcode.startswith(_WIDE_OFFSETS):
        source = "offset"
    return Kind(
        base=base,
        role=role,
        waited_for=base in _WAITED_FOR and source != "parameter",
        space="shared" if ".shared" in opcode else "global",
        read_only=".nc" in opcode,
        temporaries=_temporaries(base, opcode),
        source=source,
    )


_TEMPORARIES = {
    ("div", "f32"): 7, ("div", "f64"): 15, ("rcp", "f32"): 7, ("rcp", "f64"): 5,
    ("sqrt", "f32"): 4, ("sqrt", "f64"): 11, ("rsqrt", "f64"): 5,
    ("div", "s32"): 5, ("rem", "s32"): 5, ("div", "u32"): 3, ("rem", "u32"): 3,
    ("div", "s64"): 13, ("rem", "s64"): 13, ("div", "u64"): 10, ("rem", "u64"): 10,
}  # fmt: skip
"""Registers besides the operands of an instruction that becomes a sequence or a call.

Measured: what ptxas 12.9 reports for a kernel of two loads, the instruction and a store
(sm_70 to sm_90), less ``RESERVED`` and the words alive at the instruction.
"""


def _temporaries(base: str, opcode: str) -> int:
    kind = opcode.rpartition(".")[2]
    if kind != "f64" and (".approx" in opcode or ".full" in opcode):
        return 0
    return _TEMPORARIES.get((base, kind), 0)


# --- the body as the machine sees it -----------------------------------------------------------


class _Operands(NamedTuple):
    """Registers of one instruction; ``bases`` are those that address memory."""

    kind: Kind
    reads: Sequence[str]
    writes: Sequence[str]
    bases: Sequence[str]


def _operands(body: ir.Body) -> list[_Operands]:
    """Those of every instruction of a body."""
    known = flow(body)
    return [
        _Operands(
            kind_of(one.opcode),
            read,
            written,
            [
                operand.base.name
                for operand in one.operands
                if isinstance(operand, ir.Address)
                and isinstance(operand.base, ir.Register)
                and not operand.coordinates
            ],
        )
        for one, read, written in zip(body.instructions, known.reads, known.writes, strict=True)
    ]


class Step(NamedTuple):
    """One machine instruction: register numbers it reads and writes.

    ``kills``: it surely ends what its target held (no guard).
    """

    kind: Kind
    reads: Sequence[int]
    writes: Sequence[int]
    kills: bool
    temporaries: int


class View(NamedTuple):
    """Steps of every block; ``words`` gives the 32-bit words of every register number."""

    steps: list[list[Step]]
    words: list[int]

    def of(self, registers: Sequence[int]) -> Words:
        """The words of some registers, by their place among them."""
        words = [self.words[register] for register in registers]
        return Words(
            bit_set(place for place, size in enumerate(words) if size),
            bit_set(place for place, size in enumerate(words) if size == 2),
            bit_set(place for place, size in enumerate(words) if size == 4),
        )


class Words(NamedTuple):
    """Bit ``n`` of ``data``, ``wide`` and ``quad`` tells that the register at place ``n`` has any
    words (is no predicate), 2 and 4 words."""

    data: int
    wide: int
    quad: int

    def total(self, registers: int) -> int:
        """Words of a set of registers, given as bits."""
        wide, quad = registers & self.wide, registers & self.quad
        return (registers & self.data).bit_count() + wide.bit_count() + 3 * quad.bit_count()


def machine_view(body: ir.Body, cfg: ControlFlowGraph) -> View:
    """What the rules above leave of a body, block by block."""
    instructions = body.instructions
    operands = _operands(body)
    seen: set[str] = set()
    repeated: set[str] = set()
    for _, _, written, _ in operands:
        for name in written:
            if name in seen:
                repeated.add(name)
            else:
                seen.add(name)
    single = seen - repeated
    free = _free(instructions, operands, single)
    offsets = _offsets(instructions, operands, single, free)
    numbers = _Numbers(body.registers)
    numbers.update(dict.fromkeys(free, -1))
    for name, index in offsets.items():
        numbers[name] = numbers[index]
    dropped = free | offsets.keys()
    steps: list[list[Step]] = []
    for block in cfg.blocks:
        checkpoint()
        of_block: list[Step] = []
        for position in range(block.start, block.end):
            kind, read, written, bases = operands[position]
            if written and written[0] in dropped:
                continue
            extra = kind.temporaries
            for name in bases:
                if name in free:
                    extra += 2  # an address must lie in registers, even a constant one
            of_block.append(
                Step(
                    kind,
                    [number for name in read if (number := numbers[name]) >= 0],
                    [numbers[name] for name in written],
                    instructions[position].predicate is None,
                    extra,
                )
            )
        steps.append(of_block)
    return View(steps, numbers.words)


class _Numbers(dict[str, int]):
    """Number of every register, given out when first asked for."""

    def __init__(self, declarations: Sequence[ir.RegisterDeclaration]) -> None:
        super().__init__()
        self.words: list[int] = []
        self._declared = {
            item.name: _WORDS.get(item.type.removeprefix("."), 1) for item in declarations
        }

    def __missing__(self, name: str) -> int:
        words = self._declared.get(name)
        if words is None:
            stem, mark, scope = name.partition("@")
            words = self._declared.get(stem.rstrip("0123456789") + mark + scope, 1)
        number = self[name] = len(self.words)
        self.words.append(words)
        return number


def _free(
    instructions: Sequence[ir.Instruction], operands: Sequence[_Operands], single: set[str]
) -> set[str]:
    """Registers whose value needs none: parameters, constants, addresses of variables."""
    free: set[str] = set()
    for instruction, (kind, read, written, _) in zip(instructions, operands, strict=True):
        source = kind.source
        if source in ("other", "offset") or len(written) != 1 or written[0] not in single:
            continue
        if instruction.predicate is not None:
            continue
        if source == "parameter":
            free.add(written[0])
        elif read:
            if free.issuperset(read):
                free.add(written[0])
        elif source == "mov":
            value = instruction.operands[-1]
            if not isinstance(value, ir.Special) or value.name.startswith(_CONSTANT_SPECIALS):
                free.add(written[0])
    return free


def _offsets(
    instructions: Sequence[ir.Instruction],
    operands: Sequence[_Operands],
    single: set[str],
    free: set[str],
) -> dict[str, str]:
    """Widened indices that are only ever added to something: name -> the index behind it."""
    found: dict[str, str] = {}
    for instruction, (kind, read, written, _) in zip(instructions, operands, strict=True):
        if (
            kind.source == "offset"
            and len(read) == 1
            and len(written) == 1
            and written[0] in single
            and instruction.predicate is None
            and read[0] in single
            and read[0] not in free
        ):
            found[written[0]] = found.get(read[0], read[0])
    if found:
        for kind, read, _, _ in operands:
            if kind.base not in _ADDS:
                for name in read:
                    found.pop(name, None)
    # What was widened twice may now rest on a name that keeps its register: still right.
    return found


def bit_set(registers: Iterable[int]) -> int:
    """Bits of register numbers."""
    found = list(registers)
    bits = bytearray(max(found, default=0) // 8 + 1)
    for register in found:
        bits[register >> 3] |= 1 << (register & 7)
    return int.from_bytes(bits, "little")
