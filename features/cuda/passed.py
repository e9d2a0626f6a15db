"""What a CUDA source passes to its kernels where it launches them, as far as the text says it.

    const int n = 1 << 20;
    scale<<<n / 256, 256>>>(x, n);      passes 1,048,576 as the second argument

No interpreter: a name has a value where its function, or the file, gives it exactly one. One pass
over the text of a function that launches; what is not certain is left out.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from wattcast.features.cuda.source import host_functions


class Passed(NamedTuple):
    """A whole number and the line of the source that passes it."""

    value: int
    line: int


MOST_LAUNCHES, MOST_PASSED = 64, 64
"""Launches of a source and arguments of one that are read."""
MOST_EXPRESSION = 200
MOST_LIST = 4096
"""Characters of an expression and of the list of a launch."""
MOST_SHIFT = 62
"""Bits of a value."""
MOST_NAMES = 8
"""Names behind each other: ``a = b``, ``b = c``..."""

_LAUNCH = re.compile(r"\b(\w+)\s*(?:<[^<>;{}]{0,200}>\s*)?<<<")
_NAME = r"[A-Za-z_]\w*"
_CHANGED = re.compile(
    rf"(?<![\w.>\]])({_NAME})\s*(?:=(?!=)(?=([^;,{{}}]{{0,{MOST_EXPRESSION}}}))|[-+*/%&|^]=|<<=|>>="
    rf"|\+\+|--|\[)|(?:\+\+|--|(?<!&)&)\s*({_NAME})"
)
_DEFINED = re.compile(
    rf"^[ \t]*#[ \t]*define[ \t]+({_NAME})[ \t]+([^\n\\]{{1,{MOST_EXPRESSION}}})$", re.M
)
_CONSTANT = re.compile(
    rf"\bconst(?:expr)?\b[^;=(){{}}]{{0,200}}?\b({_NAME})\s*=\s*([^;,{{}}]{{1,{MOST_EXPRESSION}}})[;,]"
)
_CAST = re.compile(r"\((?:(?:unsigned|signed|const|int|long|short|size_t|u?int\d+_t)\s*)+\)")
_SUFFIX = re.compile(r"\b(\d+|0[xX][0-9a-fA-F]+)[uUlL]+\b")

_RULES: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}


def passed(source: str, headers: Iterable[str] = ()) -> dict[str, dict[int, Passed]]:
    """By kernel the whole numbers that each of its launches passes, by position."""
    text, functions = host_functions(source)
    outside = _constants("\n".join((text, *headers)))
    found: dict[str, list[dict[int, Passed]]] = {}
    left = MOST_LAUNCHES
    for start, end in functions:
        launches = list(islice(_LAUNCH.finditer(text, start, end), left))
        left -= len(launches)
        if not launches:
            continue
        names = _Names(text[start:end], outside)
        for launch in launches:
            given = _list(text, text.find(">>>", launch.end(), end))
            line = text.count("\n", 0, launch.start()) + 1
            values = ((at, names.of(each)) for at, each in enumerate(given))
            told = {at: Passed(value, line) for at, value in values if value is not None}
            found.setdefault(launch[1], []).append(told)
    return {kernel: _agreed(each) for kernel, each in found.items()}


def _agreed(launches: list[dict[int, Passed]]) -> dict[int, Passed]:
    """What all launches of a kernel pass alike."""
    first, *others = launches
    return {
        at: one
        for at, one in first.items()
        if all(at in other and other[at].value == one.value for other in others)
    }


def _constants(text: str) -> dict[str, str]:
    """Macros and constants at any place, of one meaning each."""
    told: dict[str, set[str]] = {}
    for pattern in (_DEFINED, _CONSTANT):
        for name, meaning in pattern.findall(text):
            told.setdefault(name, set()).add(meaning.strip())
    return {name: meanings.pop() for name, meanings in told.items() if len(meanings) == 1}


class _Names:
    """What names mean in a function: assigned once and changed nowhere, else as outside of it.
    Parameters mean nothing, as callers may differ. Values are worked out once."""

    def __init__(self, function: str, outside: Mapping[str, str]) -> None:
        head, _, body = function.partition("{")
        own: dict[str, list[str]] = {}
        for name, meaning, touched in _CHANGED.findall(body):
            own.setdefault(name or touched, []).append(meaning)
        hidden = {*own, *re.findall(_NAME, head)}
        self.meanings = {name: told for name, told in outside.items() if name not in hidden}
        self.meanings |= {name: each[0] for name, each in own.items() if len(each) == 1}
        self.values: dict[str, int | None] = {}

    def value(self, name: str, depth: int) -> int | None:
        """Of a name; of one that means itself nothing."""
        if name not in self.values:
            self.values[name] = None
            self.values[name] = self.of(self.meanings.get(name, ""), depth - 1)
        return self.values[name]

    def of(self, text: str, depth: int = MOST_NAMES) -> int | None:
        """The whole number that an expression means, if it is certain."""
        plain = _SUFFIX.sub(r"\1", _CAST.sub("", text)).strip()
        if not depth or len(plain) > MOST_EXPRESSION:
            return None
        try:
            return self._folded(ast.parse(plain, mode="eval").body, depth)
        except (SyntaxError, ValueError, MemoryError, RecursionError, ZeroDivisionError):
            return None

    def _folded(self, node: ast.expr, depth: int) -> int | None:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.Name(id=name):
                return self.value(name, depth)
            case ast.BinOp(left=left, op=rule, right=right) if type(rule) in _RULES:
                one, other = (self._folded(each, depth) for each in (left, right))
                # Quotients of negative numbers are rounded otherwise in C++; no size is one.
                if one is None or other is None or min(one, other) < 0:
                    return None
                if isinstance(rule, ast.LShift | ast.RShift) and other > MOST_SHIFT:
                    return None
                value = _RULES[type(rule)](one, other)
                return value if value < 1 << MOST_SHIFT else None
        return None


def _list(text: str, start: int) -> list[str]:
    """The arguments behind ``>>>`` at ``start``."""
    found, depth, begin = list[str](), 0, start
    for at in range(start + 3, min(len(text), start + MOST_LIST) if start >= 0 else 0):
        char = text[at]
        if char in "([{":
            depth += 1
            begin = at + 1 if depth == 1 else begin
        elif char in ")]}":
            depth -= 1
        if depth == 0 and char == ";":
            return []
        if (depth == 1 and char == ",") or (depth == 0 and char == ")"):
            found.append(text[begin:at])
            begin = at + 1
        if depth == 0 and char == ")":
            return found[:MOST_PASSED]
    return []
