"""The PTX of a kernel with a change made, so that it is analysed and predicted like any other.

A change is made line by line. It counts what the changed source would: the same instructions in
the same places as often. Where a source would also compute its results otherwise (another order of
a sum), the text here need not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from wattcast.features.ptx.ir import Function, Instruction, Module

_PREFIX = "%wc"
_GUARD = re.compile(r"^@!?%[\w$.]+\s+")


class NotRewritableError(Exception):
    """The text does not have one instruction a line, or says what no rule here follows."""


class Rewriting:
    """Changes to the text of one function of a module."""

    def __init__(self, module: Module, function: Function) -> None:
        self._first = function.body.instructions[0].line
        self._lines = module.text.splitlines()
        self._before: dict[int, list[str]] = {}
        self._after: dict[int, list[str]] = {}
        self._instead: dict[int, list[str]] = {}
        self._declared: list[str] = []

    def text_of(self, one: Instruction) -> str:
        """The instruction as it stands, without its guard. Raises NotRewritableError."""
        line = self._lines[one.line - 1].partition("//")[0].strip()
        if line.count(";") != 1 or not line.endswith(";") or line.startswith("{"):
            raise NotRewritableError(f"line {one.line}: not one instruction")
        return _GUARD.sub("", line)

    def guard_of(self, one: Instruction) -> str:
        """Its guard with a blank after it, or nothing."""
        self.text_of(one)
        found = _GUARD.match(self._lines[one.line - 1].strip())
        return "" if found is None else found[0]

    def new(self, kind: str) -> str:
        """A register of its own, of a type (``b32``)."""
        name = f"{_PREFIX}{len(self._declared)}"
        self._declared.append(f".reg .{kind} {name};")
        return name

    def declare(self, line: str) -> None:
        """A variable of the kernel."""
        self._declared.append(line)

    def replace(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines in the place of an instruction; its guard stays with each."""
        guard = self.guard_of(one)
        self._instead[one.line] = [guard + line for line in lines]

    def swap(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines in the place of an instruction and its guard."""
        self.text_of(one)
        self._instead[one.line] = list(lines)

    def before(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines before an instruction, behind its label."""
        self.before_line(one.line, lines)

    def before_line(self, number: int, lines: Iterable[str]) -> None:
        """Put lines before a line of the text (a label's)."""
        self._before.setdefault(number, []).extend(lines)

    def after(self, one: Instruction, lines: Iterable[str]) -> None:
        """Put lines after an instruction."""
        self.text_of(one)
        self._after.setdefault(one.line, []).extend(lines)

    def text(self) -> str:
        """The whole module with the changes made."""
        out: list[str] = []
        for number, line in enumerate(self._lines, 1):
            if number == self._first:
                out += self._declared
            out += self._before.get(number, ())
            out += self._instead.get(number, (line,))
            out += self._after.get(number, ())
        return "\n".join(out) + "\n"


def operands_of(text: str) -> list[str]:
    """Operands of one instruction's text as written: ``add.s32 %r1, %r2, 3;`` -> three."""
    inside = " ".join(text.strip().rstrip(";").split()).partition(" ")[2]
    found, depth, start = [], 0, 0
    for at, char in enumerate(inside):
        depth += char in "[{("
        depth -= char in "]})"
        if char == "," and not depth:
            found.append(inside[start:at].strip())
            start = at + 1
    return [*found, inside[start:].strip()]
