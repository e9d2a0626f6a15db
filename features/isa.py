"""What a PTX opcode is, whatever the GPU: the facts of ``isa.toml``, looked up and completed.

``classify("ld.global.v4.f32")`` tells a load from global memory of 16 bytes per lane on the
load/store unit. An opcode the table does not know is ``known=False`` and category
``unknown``: callers report it, nothing raises.

Source: NVIDIA, Parallel Thread Execution ISA 8.x and 9.x, chapter 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import ConfigDict, Field, StringConstraints

from wattcast.features.checked import PositiveInt, Strict, Text, checked, defect, read_toml

KnownCategory = Literal[
    "compute", "move", "convert", "load", "store", "atomic", "copy", "texture", "surface",
    "barrier", "control", "special",
]  # fmt: skip
Category = Literal[KnownCategory, "unknown"]
KnownPipe = Literal[
    "fma", "fp32", "fp64", "fp16", "int", "sfu", "tensor", "lsu", "texture", "control", "sync",
    "none",
]  # fmt: skip
Pipe = Literal[KnownPipe, "unknown"]
Space = Literal["generic", "global", "shared", "local", "param", "const", "tensor"]
Kind = Literal["f32", "f64", "f16", "int"]

TABLE = Path(__file__).with_name("isa.toml")

# Categories that move data between registers (or shared memory) and a memory.
_ACCESSES = frozenset({"load", "store", "atomic", "copy", "texture", "surface"})


class OpcodeFacts(NamedTuple):
    """What one opcode does on one lane, apart from any GPU.

    ``entry`` is the table entry that matched (``ld`` for ``ld.global.f32``), ``section`` its
    place in the PTX ISA. ``type`` is the first type suffix (the result's; ``None`` if there
    is none), ``types`` all of them, ``bits`` the width of ``type``.
    ``space`` is the memory accessed (of a copy: the destination, with ``source_space`` the
    source); ``None`` if the opcode accesses none.
    ``bytes_per_lane`` is what one lane of a warp moves; 0 for what moves nothing and for
    copies whose size is an operand (``cp.async.ca``, bulk copies).
    ``flops_per_lane`` counts floating-point operations (fma 2; matrix operations 2*m*n*k over
    the lanes that share them; integer 0). ``sass_expansion`` is the typical number of machine
    instructions (docs/activity.md).
    """

    opcode: str
    known: bool
    category: Category
    pipe: Pipe
    space: Space | None = None
    source_space: Space | None = None
    bytes_per_lane: int = 0
    type: str | None = None
    types: tuple[str, ...] = ()
    bits: int = 0
    sass_expansion: float = 1.0
    flops_per_lane: float = 0.0
    entry: str = ""
    section: str = ""

    @property
    def opcode_class(self) -> str:
        """The category with its memory space: ``global_load``, ``shared_store``, ``compute``."""
        return f"{self.space}_{self.category}" if self.space else self.category

    @property
    def accesses_memory(self) -> bool:
        """Whether it moves data to or from a memory (prefetches and barriers do not)."""
        return self.category in _ACCESSES


class Group(Strict):
    """Opcodes that are alike (an opcode may hold dots: ``cp.async.bulk``).

    ``pipe`` is a pipe or the name of a rule, ``space`` the memory where the opcode names none.
    """

    section: Text
    category: KnownCategory
    pipe: str
    space: Space | None = None
    flops: Annotated[float, Field(ge=0, strict=True)] = 0.0
    opcodes: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.]*$")], ...],
        Field(min_length=1),
    ]


class Expansion(Strict):
    """One rule of the PTX-to-machine weights; ``None`` matches everything, and ``modifiers`` must
    all be among the opcode's."""

    weight: Annotated[float, Field(ge=0, strict=True)]
    opcodes: frozenset[str] | None = None
    category: KnownCategory | None = None
    space: Space | None = None
    kind: Kind | None = None
    bits: PositiveInt | None = None
    modifiers: frozenset[str] = frozenset()


class IsaTable(Strict):
    """The whole table. ``pipe_rules`` choose a pipe by the kind of arithmetic."""

    model_config = ConfigDict(ignored_types=(cached_property,))

    pipes: frozenset[KnownPipe]
    type_bits: Mapping[str, PositiveInt]
    pipe_rules: Mapping[str, Annotated[Mapping[Kind, KnownPipe], Field(min_length=4)]]
    groups: Mapping[str, Group]
    expansion: tuple[Expansion, ...]

    @cached_property
    def entries(self) -> Mapping[str, Group]:
        """Every opcode's group."""
        return {opcode: group for group in self.groups.values() for opcode in group.opcodes}

    def problems(self) -> Iterator[tuple[str, str]]:
        """What does not agree between the sections: the key, and what is wrong there."""
        for name, rule in self.pipe_rules.items():
            for kind, pipe in rule.items():
                if pipe not in self.pipes:
                    yield f"pipe_rules.{name}.{kind}", f"{pipe!r} is not in pipes"
        seen: set[str] = set()
        for name, group in self.groups.items():
            if group.pipe not in self.pipes and group.pipe not in self.pipe_rules:
                yield f"groups.{name}.pipe", f"{group.pipe!r} is no pipe and no rule"
            for opcode in group.opcodes:
                if opcode in seen:
                    yield f"groups.{name}.opcodes", f"{opcode!r} is listed twice"
                seen.add(opcode)
        for index, expansion in enumerate(self.expansion):
            for opcode in sorted((expansion.opcodes or frozenset()) - seen):
                yield f"expansion.{index}.opcodes", f"{opcode!r} is no opcode of the table"


def load_isa(path: Path = TABLE) -> IsaTable:
    """Read and check an ISA table. Raises DataError naming the file and the keys at fault."""
    table = checked(IsaTable, read_toml(path), path.name)
    problems = list(table.problems())
    if problems:
        raise defect(path.name, problems)
    return table


@lru_cache(maxsize=1)
def isa() -> IsaTable:
    """The table that comes with Wattcast."""
    return load_isa()


@lru_cache(maxsize=65536)
def classify(opcode: str) -> OpcodeFacts:
    """The facts of an opcode as written (``ld.global.nc.v4.f32``, no predicate, no operands).

    Never raises: what the table does not know is category and pipe ``unknown``.
    """
    table = isa()
    parts = opcode.split(".")
    plain = [part.partition("::")[0] for part in parts]
    prefixes = (".".join(plain[:length]) for length in range(len(parts), 0, -1))
    name = next((prefix for prefix in prefixes if prefix in table.entries), None)
    if name is None:
        return OpcodeFacts(opcode, known=False, category="unknown", pipe="unknown")
    entry = table.entries[name]
    modifiers = parts[name.count(".") + 1 :]
    types = tuple(part for part in modifiers if part in table.type_bits)
    # In their order; ``shared::cluster`` is shared, ``param::func`` param.
    heads = (_SPACE_NAMES.get(part.partition("::")[0].partition("[")[0]) for part in modifiers)
    named = [space for space in heads if space is not None]
    spaces: list[Space | None] = [*named, entry.space] if entry.space else [None]
    space = spaces[0]
    facts = OpcodeFacts(
        opcode,
        known=True,
        category=entry.category,
        pipe=_pipe(table, entry, types),
        space=space,
        source_space=named[1] if entry.category == "copy" and len(named) > 1 else None,
        type=types[0] if types else None,
        types=types,
        bits=table.type_bits[types[0]] if types else 0,
        entry=name,
        section=entry.section,
    )
    return facts._replace(
        bytes_per_lane=_bytes(facts, modifiers) if facts.accesses_memory else 0,
        flops_per_lane=_flops(facts, entry, modifiers),
        sass_expansion=_expansion(table, facts),
    )


_SPACE_NAMES: Mapping[str, Space] = {
    "global": "global", "shared": "shared", "local": "local", "param": "param", "const": "const",
}  # fmt: skip


def kind_of(type_name: str | None) -> Kind:
    """Kind of arithmetic of a PTX type: f32, f64, f16 (16 bits and fewer) or int."""
    name = type_name or ""
    if name in ("f32", "f32x2", "tf32"):
        return "f32"
    if name == "f64":
        return "f64"
    if name.startswith(("f16", "bf16", "e2m", "e3m", "e4m", "e5m", "ue")):
        return "f16"
    return "int"


def _pipe(table: IsaTable, entry: Group, types: tuple[str, ...]) -> Pipe:
    rule = table.pipe_rules.get(entry.pipe)
    if rule is None:
        return entry.pipe  # type: ignore[return-value]
    kinds = [kind_of(name) for name in types] or ["int"]
    if entry.pipe == "conversion":
        # CUDA C++ Programming Guide, "Arithmetic Instructions": conversions with a 64-bit
        # side run at the fp64 rate; integer to float and back at the special-function rate.
        for kind in ("f64", "f32"):
            if kind in kinds and ("int" in kinds or kind == "f64"):
                return rule[kind]
        if "f16" in kinds:
            return rule["f32"] if "int" in kinds else rule["f16"]
        return "fp32" if "f32" in kinds else rule["int"]
    # Operations that compare floats decide by the type compared, the last one written
    # (`set.lt.u32.f32`); all others have one kind, or widen to the first.
    return rule[kinds[-1] if entry.pipe == "comparison" else kinds[0]]


_SHAPE = re.compile(r"m(\d+)n(\d+)(?:k(\d+))?")
_TENSOR_MEMORY_SHAPE = re.compile(r"(\d+)x(\d+)b(?:x(\d+))?")


def _number(modifiers: list[str], pattern: str, default: int = 1) -> int:
    for part in modifiers:
        match = re.fullmatch(pattern, part)
        if match:
            return int(match[1])
    return default


def _shape(modifiers: list[str]) -> tuple[int, int, int] | None:
    for part in modifiers:
        match = _SHAPE.fullmatch(part)
        if match:
            return int(match[1]), int(match[2]), int(match[3] or 1)
    return None


TILES = frozenset({"wmma.load", "wmma.store"})
"""Instructions that move a matrix tile, whose layout in memory is told (PTX ISA 9.0, 9.7.14.4)."""


def tile_lines(facts: OpcodeFacts) -> tuple[int, int]:
    """Lines of a tile of ``TILES``, and elements that lie side by side in each."""
    parts = facts.opcode.split(".")
    m, n, k = _shape(parts) or (0, 0, 0)
    rows, columns = {"a": (m, k), "b": (k, n)}.get(parts[2], (m, n))
    return (rows, columns) if "row" in parts else (columns, rows)


def _bytes(facts: OpcodeFacts, modifiers: list[str]) -> int:
    """Bytes one lane moves; the 32 lanes of a warp share a matrix fragment equally."""
    shape = _shape(modifiers)
    if facts.entry in ("ldmatrix", "stmatrix"):
        # `.m8n8.x4` of b16: four 8x8 matrices of 16 bits; `.m16n16`/`.m16n8` of 8 bits.
        rows, columns, _ = shape or (8, 8, 1)
        bits = 16 if (rows, columns) == (8, 8) else 8
        return rows * columns * bits * _number(modifiers, r"x(\d+)") // 8 // 32
    if facts.entry in TILES:
        m, n, k = shape or (0, 0, 0)
        elements = {"a": m * k, "b": k * n}.get(modifiers[0] if modifiers else "", m * n)
        return elements * facts.bits // 8 // 32
    if facts.space == "tensor":
        for part in modifiers:
            match = _TENSOR_MEMORY_SHAPE.fullmatch(part)
            if match:
                lanes, bits, twice = int(match[1]), int(match[2]), int(match[3] or 1)
                return lanes * bits * twice * _number(modifiers, r"x(\d+)") // 8 // 32
        return 0
    if facts.category == "copy":
        # `.cg` copies 16 bytes always, `.ca` what its operand says (PTX ISA, cp.async).
        return 16 if facts.entry == "cp.async" and "cg" in modifiers else 0
    return facts.bits * _number(modifiers, r"v(\d)") // 8


def _flops(facts: OpcodeFacts, entry: Group, modifiers: list[str]) -> float:
    if facts.pipe == "tensor":
        shape = _shape(modifiers)
        # Inputs decide: integer and 1-bit matrices do no floating-point work.
        inputs = facts.types[1] if len(facts.types) > 1 else facts.type
        if shape is None or facts.type in ("s32",) or kind_of(inputs) == "int":
            return 0.0
        m, n, k = shape
        lanes = 128 if facts.entry.startswith("wgmma") else 32
        return 2 * m * n * k / lanes
    if not entry.flops or facts.type is None or kind_of(facts.type) == "int":
        return 0.0
    return entry.flops * (2 if facts.type.endswith("x2") else 1)


def _expansion(table: IsaTable, facts: OpcodeFacts) -> float:
    kind, modifiers = kind_of(facts.type), frozenset(facts.opcode.split("."))
    for rule in table.expansion:
        if (
            (rule.opcodes is None or facts.entry in rule.opcodes)
            and rule.category in (None, facts.category)
            and rule.space in (None, facts.space)
            and rule.kind in (None, kind)
            and rule.bits in (None, facts.bits)
            and rule.modifiers <= modifiers
        ):
            return rule.weight
    return 1.0
