"""Operands: text between an opcode and its semicolon -> ``Operand`` objects.

Nearly all operands of a kernel are repeated (registers, zero, addresses), so each text is
read once and the object shared: a ``Names`` is the dictionary of what was read so far.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from wattcast.features.errors import checkpoint
from wattcast.features.ptx import ir
from wattcast.features.ptx.lexing import NAME, number

_LONG = 10_000
"""Characters beyond which a text is read with an eye on the clock."""

MOST_NESTING = 6
"""Brackets within brackets in one operand; PTX itself needs three."""

WARP_SZ = 32
"""PTX ISA 9.0, 4.5.3: ``WARP_SZ`` is a predefined integer constant, 32 on every target."""

# PTX ISA 9.0, chapter 10 "Special Registers".
_TRIPLES = (
    "tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
    "cluster_nctaid",
)  # fmt: skip
_SINGLES = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "cluster_ctarank",
    "cluster_nctarank", "is_explicit_cluster", "clock", "clock_hi", "clock64", "globaltimer",
    "globaltimer_lo", "globaltimer_hi", "total_smem_size", "aggr_smem_size",
    "dynamic_smem_size", "current_graph_exec", "reserved_smem_offset_begin",
    "reserved_smem_offset_end", "reserved_smem_offset_cap",
)  # fmt: skip
SPECIAL_REGISTERS = frozenset(
    [f"%{name}{axis}" for name in _TRIPLES for axis in ("", ".x", ".y", ".z", ".w")]
    + [f"%{name}" for name in _SINGLES]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
    + [f"%pm{number}{width}" for number in range(8) for width in ("", "_64")]
    + [f"%envreg{number}" for number in range(32)]
    + [f"%reserved_smem_offset_{number}" for number in range(2)]
)
_NAME = re.compile(NAME)
_SELECTED = re.compile(rf"({NAME})\.(?:[xyzwrgba]|[bh][0-3]+)")
_OFFSET = re.compile(rf"({NAME}(?:\.[xyzw])?)\s*+(?:([+-])\s*+(-?[0-9a-fA-FxXU]++))?")
_ADDRESS = re.compile(rf"\[\s*+({NAME})\s*+(?:([+-])\s*+(-?[0-9a-fA-FxXU]++)\s*+)?\]")
_BRACKET = re.compile(r"[,{}\[\]()]")
_CLOSING = {"{": "}", "[": "]", "(": ")"}
# What a statement looks like that lost the semicolon before it.
_NEXT_STATEMENT = re.compile(
    r"(?<!\s)[^\S\n]*+\n\s*+(?:@!?\s*+[A-Za-z0-9_$%]++\s++)?"
    r"(?:[a-z][a-z0-9_]*+\.[a-z0-9_.:]++|ret|exit|trap|\.[a-z0-9]++)(?=\s|\Z)"
)


Ranges = tuple[tuple[int, str], ...]
"""Lengths of the declarations of one prefix, each with the suffix of its renaming."""


class Names(dict[str, ir.Operand]):
    """Operands read so far, by their text, in one scope of one function.

    ``bare`` maps a declared or renamed register to its object; ``ranges`` maps the prefix of
    a parametrised declaration (``t<4>``) to its lengths, the innermost block's first.
    """

    __slots__ = ("bare", "complain", "ranges")

    def __init__(
        self,
        bare: dict[str, ir.Register],
        ranges: dict[str, Ranges],
        complain: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self.bare = bare
        self.ranges = ranges
        self.complain = complain

    def __missing__(self, text: str) -> ir.Operand:
        """Read a simple operand; KeyError tells the caller to take ``read`` instead."""
        operand: ir.Operand | None
        if text[:1] == "%" and text[1:].isalnum() and text.isascii():
            if self.bare or self.ranges or text in SPECIAL_REGISTERS:
                operand = self.name(text)
            else:
                operand = tuple.__new__(ir.Register, (text,))
        elif "\n" in text:
            operand = None  # perhaps two statements
        elif text[:1].isspace() or text[-1:].isspace():
            operand = self[text.strip()]
        else:
            operand = self._simple(text)
        if operand is None:
            raise KeyError(text)
        self[text] = operand
        return operand

    def _simple(self, text: str) -> ir.Operand | None:
        if _NAME.fullmatch(text):
            return self.name(text)
        match = _ADDRESS.fullmatch(text)
        if match:
            base, sign, digits = match.groups()
            offset = _offset(sign, digits)
            if offset is None:
                return None
            name = self.get(base)
            if name is None:
                name = self[base] = self.name(base)
            if isinstance(name, (ir.Register, ir.Symbol)):
                return ir.Address(name, offset)
            return None
        literal = number(text)
        if literal is not None:
            return literal
        return ir.Special(text) if text in SPECIAL_REGISTERS else None

    def name(self, text: str) -> ir.Register | ir.Special | ir.Symbol | ir.Immediate:
        """What a bare word stands for: register, special register, constant or symbol."""
        if self.bare and (known := self.bare.get(text)) is not None:
            return known
        if self.ranges:
            # A prefix may itself end in digits, so every split of the last ten is tried.
            for cut in range(len(text) - 1, max(0, len(text) - 11), -1):
                if not text[cut:].isdecimal():
                    break
                for length, suffix in self.ranges.get(text[:cut], ()):
                    if int(text[cut:]) < length:
                        return ir.Register(text + suffix)
        if text[0] == "%":
            return ir.Special(text) if text in SPECIAL_REGISTERS else ir.Register(text)
        if text == "WARP_SZ":
            return ir.Immediate(WARP_SZ, text)
        return ir.Symbol(text)

    def read(self, text: str) -> tuple[ir.Operand, ...]:
        """All operands of a statement. Raises UnreadableError for unbalanced brackets."""
        if _NEXT_STATEMENT.search(text):
            raise UnreadableError("a semicolon is missing in this statement")
        return tuple([self._one(piece, 0) for piece in split(text)])

    def _one(self, text: str, nesting: int) -> ir.Operand:
        known = self.get(text)
        if known is not None:
            return known
        bare = text.strip()
        operand = self._simple(bare) or self._compound(bare, nesting)
        if operand is None:
            self.complain("unknown_operand", f"operand {ir.excerpt(text)!r} is not understood")
            return ir.Opaque(bare)
        self[text] = operand
        return operand

    def _compound(self, text: str, nesting: int) -> ir.Operand | None:
        if not text or nesting >= MOST_NESTING:
            return None
        first, last = text[0], text[-1]
        if first == "!":
            return ir.Negated(self._one(text[1:], nesting + 1))
        if _CLOSING.get(first) == last and _closes_at_end(text):
            inside = text[1:-1]
            parts = split(inside) if inside.strip() else []
            if first == "[":
                return self._address(parts, nesting)
            elements = tuple([self._one(part, nesting + 1) for part in parts])
            return ir.Vector(elements) if first == "{" else ir.Group(elements)
        if "|" in text:
            one, _, other = text.partition("|")
            return ir.Pair(self._one(one, nesting + 1), self._one(other, nesting + 1))
        match = _OFFSET.fullmatch(text)
        if match and match.group(2):
            offset = _offset(match.group(2), match.group(3))
            name = self.name(match.group(1))
            if offset is not None and isinstance(name, ir.Symbol):
                return ir.Symbol(name.name, offset)
        match = _SELECTED.fullmatch(text)
        if match:
            name = self.name(match.group(1))
            if isinstance(name, ir.Register):
                self.complain("selector_ignored", f"{text!r} is read as the whole register")
                return name
        return None

    def _address(self, parts: list[str], nesting: int) -> ir.Operand | None:
        if not parts:
            return None
        base: ir.Register | ir.Symbol | None
        literal = number(parts[0].strip())
        if literal is not None:
            if not isinstance(literal.value, int):
                return None
            base, offset = None, literal.value
        else:
            match = _OFFSET.fullmatch(parts[0].strip())
            found = _offset(match.group(2), match.group(3)) if match else None
            if match is None or found is None:
                return None
            name = self.name(match.group(1))
            if not isinstance(name, (ir.Register, ir.Symbol)):
                return None
            base, offset = name, found
        coordinates: list[ir.Operand] = []
        for part in parts[1:]:
            operand = self._one(part, nesting + 1)
            if isinstance(operand, ir.Vector):
                coordinates.extend(operand.elements)
            else:
                coordinates.append(operand)
        return ir.Address(base, offset, tuple(coordinates))


class UnreadableError(Exception):
    """Operands that cannot be told apart; the caller knows where they stand."""


def _offset(sign: str | None, digits: str | None) -> int | None:
    if digits is None:
        return 0
    if digits[0] in "123456789" and len(digits) < 19 and digits.isdecimal():
        return -int(digits) if sign == "-" else int(digits)
    literal = number(digits)
    if literal is None or not isinstance(literal.value, int):
        return None
    return -literal.value if sign == "-" else literal.value


def _closes_at_end(text: str) -> bool:
    """Whether the first bracket is closed by the last one (``{a}{b}`` is not)."""
    depth = 0
    for match in _BRACKET.finditer(text):
        char = match.group()
        if char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
            if depth == 0:
                return match.end() == len(text)
    return False


def split(text: str) -> list[str]:
    """Cut at the commas outside brackets. Raises UnreadableError for unbalanced brackets."""
    pieces: list[str] = []
    start = 0
    for comma in commas(text):
        pieces.append(text[start:comma])
        start = comma + 1
    pieces.append(text[start:])
    return pieces


def commas(text: str) -> Iterator[int]:
    """Where the commas outside brackets are. Raises UnreadableError for unbalanced brackets."""
    open_brackets: list[str] = []
    long = len(text) > _LONG
    for match in _BRACKET.finditer(text):
        if long:
            checkpoint()
        char = match.group()
        if char == ",":
            if not open_brackets:
                yield match.start()
        elif char in _CLOSING:
            open_brackets.append(_CLOSING[char])
        elif not open_brackets or open_brackets.pop() != char:
            raise UnreadableError(f"{char!r} without its opening bracket")
    if open_brackets:
        raise UnreadableError(f"a {open_brackets[-1]!r} is missing")


# Nested blocks of a body: which register or label a name means, made unique.
#
# PTX lets a block ``{ }`` declare its own registers and labels (inline assembly does).
# The first to use a name in a function keeps it; a later block's own gets ``@<block>``.
# Registers are declared before use, so they are renamed as they are read; labels may be
# used before they stand, so they are renamed at the end, if any name was used twice.

_DIGITS = "0123456789"


class Scopes:
    """The blocks of one body. ``names`` reads operands as the present block means them."""

    def __init__(self, complain: Callable[[str, str], None]) -> None:
        self._bare: dict[str, ir.Register] = {}
        self._ranges: dict[str, Ranges] = {}
        self._complain = complain
        self.names = Names(self._bare, self._ranges, complain)
        self._count = 0
        self._current = 0
        self._stack: list[tuple[int, Names, list[tuple[str, ir.Register | None]], _RangeUndo]] = []
        self._undo_bare: list[tuple[str, ir.Register | None]] = []
        self._undo_ranges: _RangeUndo = []
        self._owner: dict[str, int] = {}  # register name or prefix< -> first scope
        # Names without their trailing digits -> first scope, of ranges and of single names.
        self._range_stems: dict[str, int] = {}
        self._stems: dict[str, int] = {}
        self._events: list[tuple[int, int]] = []  # (instruction, scope entered or returned to)
        self._parents = [-1]
        self._labels: list[ir.Label] = []
        self._label_scopes: list[int] = []
        self._tables: list[tuple[str, int, tuple[str, ...]]] = []

    @property
    def depth(self) -> int:
        """Blocks that are open now."""
        return len(self._stack)

    def enter(self, instruction: int) -> None:
        """``{``: a block begins before this instruction."""
        self._stack.append((self._current, self.names, self._undo_bare, self._undo_ranges))
        self._undo_bare, self._undo_ranges = [], []
        self._count += 1
        self._parents.append(self._current)
        self._current = self._count
        self._events.append((instruction, self._current))

    def leave(self, instruction: int) -> None:
        """``}``: the innermost block ends before this instruction."""
        for name, before in reversed(self._undo_bare):
            if before is None:
                del self._bare[name]
            else:
                self._bare[name] = before
        for prefix, former in reversed(self._undo_ranges):
            if former is None:
                del self._ranges[prefix]
            else:
                self._ranges[prefix] = former
        self._current, self.names, self._undo_bare, self._undo_ranges = self._stack.pop()
        self._events.append((instruction, self._current))

    def declare(self, register: ir.RegisterDeclaration) -> ir.RegisterDeclaration:
        """Note a declaration of the present block; returned with its unique name."""
        _, name, length = register
        is_range = length != 1
        stem = name.rstrip(_DIGITS)
        suffix = ""
        here = self._current
        if (
            self._owner.setdefault(name, here) != here
            or self._range_stems.get(stem, here) != here
            or (is_range and self._stems.get(stem, here) != here)
        ):
            suffix = f"@{here}"
        (self._range_stems if is_range else self._stems).setdefault(stem, here)
        if name[0] == "%" and not suffix and not self._stack:
            return register
        # What was read so far may have meant another register of the same name.
        if not self._stack or self.names is self._stack[-1][1]:
            self.names = Names(self._bare, self._ranges, self._complain)
        if is_range:
            outer = self._ranges.get(name)
            self._undo_ranges.append((name, outer))
            if outer and outer[0][1] == suffix:  # declared twice in one block
                length = max(length, outer[0][0])
                outer = outer[1:]
            self._ranges[name] = ((length, suffix), *(outer or ()))
        else:
            self._undo_bare.append((name, self._bare.get(name)))
            self._bare[name] = ir.Register(name + suffix)
        return register._replace(name=name + suffix)

    def label(self, name: str, line: int, target: int) -> int:
        """A label before instruction ``target``; its number."""
        self._labels.append(ir.Label(name, line, target))
        self._label_scopes.append(self._current)
        return len(self._labels) - 1

    def take_back_label(self) -> str:
        """Remove the last label; its name."""
        self._label_scopes.pop()
        return self._labels.pop().name

    def table(self, name: str, targets: tuple[str, ...]) -> None:
        """A ``.branchtargets`` or ``.calltargets`` list."""
        self._tables.append((name, self._current, targets))

    def finish(
        self, instructions: list[ir.Instruction]
    ) -> tuple[list[ir.Instruction], list[ir.Label], dict[str, tuple[str, ...]]]:
        """Rename the labels that several blocks share, where they stand and are used."""
        first: dict[str, int] = {}
        renamed: dict[int, dict[str, str]] = {}
        places = [(n.name, s) for n, s in zip(self._labels, self._label_scopes, strict=True)]
        places += [(name, scope) for name, scope, _ in self._tables]
        # The outermost block keeps the plain name, wherever in the text it uses it.
        for name, scope in sorted(places, key=lambda place: place[1]):
            if first.setdefault(name, scope) != scope:
                renamed.setdefault(scope, {})[name] = f"{name}@{scope}"
        if not renamed:
            return instructions, self._labels, {name: to for name, _, to in self._tables}
        # A block that owns the plain name hides an outer block's renamed one.
        for name, scope in first.items():
            renamed.setdefault(scope, {})[name] = name
        return self._rename(instructions, renamed)

    def _rename(
        self, instructions: list[ir.Instruction], renamed: dict[int, dict[str, str]]
    ) -> tuple[list[ir.Instruction], list[ir.Label], dict[str, tuple[str, ...]]]:
        known = dict(renamed.get(0, {}))
        out: list[ir.Instruction] = []
        undo: list[list[tuple[str, str | None]]] = []
        tables: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
        for name, scope, targets in self._tables:
            tables.setdefault(scope, []).append((name, targets))
        unique: dict[str, tuple[str, ...]] = {}

        def settle(scope: int) -> None:
            for name, targets in tables.pop(scope, ()):
                unique[known.get(name, name)] = tuple(known.get(to, to) for to in targets)

        settle(0)
        start, present = 0, 0
        for stop, scope in [*self._events, (len(instructions), 0)]:
            out.extend(
                one._replace(operands=_all(known, one.operands)) for one in instructions[start:stop]
            )
            start = stop
            if scope > present and self._parents[scope] == present:
                changes = renamed.get(scope, {})
                undo.append([(name, known.get(name)) for name in changes])
                known.update(changes)
                settle(scope)
            elif undo:
                for name, before in undo.pop():
                    if before is None:
                        del known[name]
                    else:
                        known[name] = before
            present = scope
        labels = [
            label._replace(name=renamed.get(scope, {}).get(label.name, label.name))
            for label, scope in zip(self._labels, self._label_scopes, strict=True)
        ]
        return out, labels, unique


_RangeUndo = list[tuple[str, Ranges | None]]


def _substitute(names: dict[str, str], operand: ir.Operand) -> ir.Operand:
    """The operand with its symbols renamed; nesting is bounded by the operand reader."""
    if isinstance(operand, ir.Symbol):
        return operand._replace(name=names.get(operand.name, operand.name))
    if isinstance(operand, (ir.Vector, ir.Group)):
        return operand._replace(elements=_all(names, operand.elements))
    if isinstance(operand, ir.Pair):
        return ir.Pair(_substitute(names, operand.first), _substitute(names, operand.second))
    if isinstance(operand, ir.Negated):
        return ir.Negated(_substitute(names, operand.operand))
    if isinstance(operand, ir.Address) and isinstance(operand.base, ir.Symbol):
        base = operand.base._replace(name=names.get(operand.base.name, operand.base.name))
        return operand._replace(base=base)
    return operand


def _all(names: dict[str, str], operands: Iterable[ir.Operand]) -> tuple[ir.Operand, ...]:
    return tuple(_substitute(names, one) for one in operands)
