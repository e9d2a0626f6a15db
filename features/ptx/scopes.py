"""Nested blocks of a body: which register or label a name means, made unique.

PTX lets a block ``{ }`` declare its own registers and labels (inline assembly does).
The first to use a name in a function keeps it; a later block's own gets ``@<block>``.
Registers are declared before use, so they are renamed as they are read; labels may be
used before they stand, so they are renamed at the end, if any name was used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wattcast.features.ptx import ir
from wattcast.features.ptx.operands import Names, Ranges

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
