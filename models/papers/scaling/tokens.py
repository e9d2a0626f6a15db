"""PTX instructions as the tokens of Guerreiro et al.: nine digits for what an instruction is and
how far back its nearest operand was written.

    tokens(body.instructions) -> (Token(opcode=54, space=6, type=12, ...), ...)
    token.code -> "054612200"          token.name -> "ld.param.u64"

J. Guerreiro et al., GPU Static Modeling Using PTX and Deep Structured Learning, IEEE Access 2019,
section III-B, and the tables of their tool (github.com/hpc-ulisboa/gpuPTXModel, ``assembly_info``,
BSD-3-Clause). Models were fitted on what that tool printed, so its habits are kept: guarded
instructions and returns are not coded, commas count as operands, an address with an offset is no
register, and producer 2 is a load of a parameter (its authors meant shared memory).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wattcast.features.ptx import ir

_OPCODES = (
    "add sub mul mad mul24 mad24 sad div rem abs neg min max popc clz bfind fns brev bfe bfi dp4a "
    "dp2a add.cc addc sub.cc subc mad.cc madc testp copysign fma rcp sqrt rsqrt sin cos lg2 ex2 "
    "selp slct set setp and or xor not cnot lop3 shf shl shr mov shfl prmt ld ldu st prefetch "
    "prefetchu isspacep cvta cvt suld sust sured suq bra call ret exit bar bar.warp.sync membar "
    "atom red vote match.sync activemask vadd vadd2 vadd4 vsub vsub2 vsub4 vmad vavrg2 vavrg4 "
    "vabsdiff vabsdiff2 vabsdiff4 vmin vmin2 vmin4 vmax vmax2 vmax4 vshl vshr vset vset2 "
    "vset4"
)
OPCODES = tuple(_OPCODES.split())
SPACES = ("reg", "sreg", "const", "global", "local", "param", "shared", "tex")
_TYPES = "b8 b16 b32 b64 s8 s16 s32 s64 u8 u16 u32 u64 f16x2 f16 f32 f64 pred"
TYPES = tuple(_TYPES.split())
"""In the order of ``ptx_isa.txt``, ``ptx_state_spaces.txt`` and ``ptx_instruction_types.txt``;
spaces and types count from 1, and 0 is none."""

REMEMBERED = 9
"""Operands written last among which a producer is looked for (their ``buffer_max_size``)."""

FIELDS = ("opcode", "space", "type", "operands", "distance", "producer")
WIDTHS = (3, 1, 2, 1, 1, 1)
"""Digits of each field in a code."""


class Token(NamedTuple):
    """One instruction. ``distance``: operands written since its nearest one was, 0 for none
    remembered; ``producer``: that was computed (0), loaded (1) or loaded from a parameter (2)."""

    opcode: int
    space: int
    type: int
    operands: int
    distance: int = 0
    producer: int = 0

    @property
    def code(self) -> str:
        """Nine digits."""
        return "".join(f"{value:0{width}d}" for value, width in zip(self, WIDTHS, strict=True))

    @property
    def name(self) -> str:
        """Opcode, state space and type, such as ``ld.global.f32``."""
        space = SPACES[self.space - 1 : self.space] if self.space else ()
        kind = TYPES[self.type - 1 : self.type] if self.type else ()
        return ".".join((OPCODES[self.opcode], *space, *kind))

    @classmethod
    def of_code(cls, code: str) -> Token:
        """The token of nine digits. Raises ValueError for anything else."""
        if len(code) != sum(WIDTHS) or not code.isdecimal():
            raise ValueError(f"{code!r} is no code of a token: nine digits")
        digits = iter(code)
        return cls(*(int("".join(next(digits) for _ in range(width))) for width in WIDTHS))


def named(opcode: str, operands: int = 0) -> Token | None:
    """The token of a dotted opcode, without dependence; ``None`` where the tables have none."""
    first, *rest = opcode.split(".")
    if first not in OPCODES:
        return None
    space = next((SPACES.index(part) + 1 for part in rest[:-1] if part in SPACES), 0)
    kind = TYPES.index(rest[-1]) + 1 if rest and rest[-1] in TYPES else 0
    return Token(OPCODES.index(first), space, kind, operands)


def tokens(instructions: Iterable[ir.Instruction]) -> tuple[Token | None, ...]:
    """The token of each instruction, in order; ``None`` for those that are not coded."""
    written: list[tuple[str, int]] = []
    return tuple(_token(each, written) for each in instructions)


def _token(instruction: ir.Instruction, written: list[tuple[str, int]]) -> Token | None:
    if instruction.predicate is not None or instruction.base in ("ret", "exit"):
        return None
    texts = [tuple(_texts(operand)) for operand in instruction.operands]
    found = named(instruction.opcode, max(1, sum(map(len, texts))))
    if found is None:
        return None
    made: tuple[str, ...] = ()
    read, producer = texts, 0
    if instruction.base != "st":
        read, made = texts[1:], texts[0][:1] if texts else ()
    if instruction.base == "ld":
        made, producer = texts[0], 2 if found.space == SPACES.index("param") + 1 else 1
    names = {text for operand in read for text in operand}
    near = next((at for at, (name, _) in enumerate(written) if name in names), None)
    if near is not None:
        found = found._replace(distance=near + 1, producer=written[near][1])
    for each in made:
        written.insert(0, (each, producer))
    del written[REMEMBERED:]
    return found


def _texts(operand: ir.Operand) -> Iterator[str]:
    """What an operand is called, a text for each part that a comma parts from the next."""
    match operand:
        case ir.Vector(elements) | ir.Group(elements):
            for each in elements:
                yield from _texts(each)
        case ir.Pair(first, second):
            yield "|".join((*_texts(first), *_texts(second)))
        case ir.Address(base, 0, ()) if base is not None:
            yield base.name
        case ir.Register(name) | ir.Special(name) | ir.Symbol(name, 0):
            yield name
        case ir.Immediate(_, text):
            yield text
        case _:
            yield repr(operand)
