"""Declarations: registers, variables, and the parameters of entries and functions."""

from __future__ import annotations

import re
from math import prod

from wattcast.features.ptx.ir import Parameter, RegisterDeclaration, Variable, excerpt
from wattcast.features.ptx.lexing import NAME
from wattcast.features.ptx.operands import commas, split

# PTX ISA 9.0, 5.2 "Types": sizes in bytes. Opaque texture types are 64-bit handles (5.3).
TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64, 128)},
    **dict.fromkeys(("e4m3", "e5m2", "ue8m0", "e2m1", "e3m2", "e2m3"), 1),
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2", "ue8m0x2"), 2),
    **dict.fromkeys(("f16x2", "bf16x2", "u16x2", "s16x2", "tf32"), 4),
    **dict.fromkeys(("texref", "samplerref", "surfref"), 8),
    "pred": 1,
}
SPACES = frozenset({"shared", "global", "const", "local", "param", "tex", "reg"})
_LINKAGE = frozenset({"extern", "visible", "weak", "common"})

_TOKEN = re.compile(
    rf"\s*+(?:\.([A-Za-z_][A-Za-z0-9_]*+(?:::[A-Za-z0-9_]++)*+)|({NAME})|([0-9]{{1,19}})"
    r"|(\[[^\[\]]*+\])|(<\s*+[0-9]{1,19}\s*+>)|(\((?:[^()]|\([^()]*+\))*+\)))"
)
# What compilers print; anything else takes the general way.
_USUAL_REGISTERS = re.compile(rf"\.reg\s++\.([a-z0-9]++)\s++({NAME})<([0-9]{{1,19}})>\s*+")
_SIZE = re.compile(r"\[\s*+(?:(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,19})U?)?\s*+\]")


MOST_PARAMETERS = 32_764
"""Parameters of a function: they take at most as many bytes (PTX ISA 9.0, 7.1)."""


class DeclarationError(Exception):
    """The text is no declaration; the caller knows where it stands."""


class _Words:
    """What a declaration is made of, gathered in one pass over its words."""

    def __init__(self, text: str) -> None:
        self.directives: list[str] = []
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.align: int | None = None
        self.range: int | None = None
        expects_align = False
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise DeclarationError(
                    f"{text[position:end].split(None, 1)[0]!r} does not belong here"
                )
            position = match.end()
            directive, name, digits, size, length, _ = match.groups()
            if directive is not None:
                expects_align = directive == "align"
                if not expects_align:
                    self.directives.append(directive)
            elif name is not None:
                self.names.append(name)
            elif digits is not None:
                if not expects_align:
                    raise DeclarationError(f"{digits!r} does not belong here")
                self.align, expects_align = int(digits), False
            elif size is not None:
                known = _SIZE.fullmatch(size)
                if known is None:
                    raise DeclarationError(f"{excerpt(size)!r} is not an array size")
                digits = known.group(1) or "0"
                self.sizes.append(int(digits, 16 if digits[:2] in ("0x", "0X") else 10))
            elif length is not None:
                self.range = int(length[1:-1])

    def shape(self) -> tuple[str, int]:
        """Type with its vector part (``v4.f32``), and bytes of one element (0 if unknown)."""
        kind = next((word for word in self.directives if word in TYPE_BYTES), "")
        if not kind:
            others = [
                word
                for word in self.directives
                if word not in SPACES and word not in _LINKAGE and not _is_vector(word)
            ]
            kind = others[-1] if others else ""
        vector = next((word for word in self.directives if _is_vector(word)), None)
        width = TYPE_BYTES.get(kind, 0)
        return (f"{vector}.{kind}", width * int(vector[1:])) if vector else (kind, width)


def _is_vector(word: str) -> bool:
    return word in ("v2", "v4", "v8")


def registers(text: str) -> list[RegisterDeclaration]:
    """``.reg .b32 %r<12>, x`` without its semicolon. Raises DeclarationError."""
    usual = _USUAL_REGISTERS.fullmatch(text)
    if usual is not None and int(usual.group(3)) > 1:
        return [RegisterDeclaration(usual.group(1), usual.group(2), int(usual.group(3)))]
    kind = ""
    found: list[RegisterDeclaration] = []
    for piece in text.split(","):
        words = _Words(piece)
        if words.directives:
            kind = words.shape()[0]
        if len(words.names) != 1 or not kind:
            raise DeclarationError("a register declaration needs a type and names")
        name, length = words.names[0], 1 if words.range is None else words.range
        if words.range == 1:
            name += "0"  # ``%p<1>`` declares just ``%p0``
        found.append(RegisterDeclaration(kind, name, length))
    return found


def register_parameters(text: str) -> list[RegisterDeclaration]:
    """Parameters of a function that are registers (``.func (.reg .f32 r) f (.reg .u32 n)``)."""
    if ".reg" not in text:
        return []
    return [one for piece in text.split(",") if ".reg" in piece for one in registers(piece)]


def variables(text: str, line: int) -> list[Variable]:
    """``.shared .align 4 .b8 buf[64], other = {1}`` without its semicolon.

    Raises DeclarationError, also (as UnreadableError) for unbalanced brackets.
    """
    found: list[Variable] = []
    head: _Words | None = None
    for piece in split(text):
        declarator, equals, initial = piece.partition("=")
        words = _Words(declarator)
        head = head or words
        if len(words.names) != 1:
            raise DeclarationError("a variable declaration needs a space, a type and a name")
        kind, width = head.shape()
        space = next((word for word in head.directives if word in SPACES), "")
        initializer = initial.strip() if equals else None
        sizes = words.sizes
        elements = prod(sizes)
        if elements == 0 and initializer:
            # The first dimension may be left open; the initialiser tells it.
            inner = initializer[1:-1] if initializer[:1] == "{" else initializer
            rest = prod(sizes[1:])
            if sizes and sizes[0] == 0 and inner.strip():
                elements = (1 + sum(1 for _ in commas(inner))) * rest
        found.append(
            Variable(
                name=words.names[0],
                space=space,
                type=kind,
                elements=elements,
                bytes=elements * width,
                align=head.align or width or 1,
                external="extern" in head.directives,
                initializer=initializer,
                line=line,
            )
        )
    return found


def parameters(text: str) -> list[Parameter]:
    """What stands between the parentheses of a header. Raises DeclarationError."""
    if not text.strip():
        return []
    if text.count(",") >= MOST_PARAMETERS:
        raise DeclarationError(f"there are more than {MOST_PARAMETERS:,} parameters")
    found: list[Parameter] = []
    for piece in split(text):
        # ``.ptr .global .align 16`` describes the pointee, not the parameter itself.
        declared, pointer, pointee = piece.partition(".ptr")
        words = _Words(declared)
        names, sizes = words.names, words.sizes
        if pointer:
            target = _Words(pointee)
            names, sizes = names + target.names, sizes + target.sizes
        if len(names) != 1:
            raise DeclarationError("a parameter needs a type and a name")
        kind, width = words.shape()
        elements = prod(sizes)
        found.append(
            Parameter(
                name=names[0],
                type=kind,
                elements=elements,
                bytes=elements * width,
                align=words.align or width or 1,
                is_pointer=bool(pointer),
            )
        )
    return found
