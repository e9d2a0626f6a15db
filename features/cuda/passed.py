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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from wattcast.features.cuda.source import closing_of, host_functions, parts_of


class Passed(NamedTuple):
    """A whole number and the line of the source that passes it."""

    value: int
    line: int


MOST_LAUNCHES, MOST_PASSED = 64, 64
"""Launches of a source and arguments of one that are read: what has more was made by machine."""
MOST_EXPRESSION = 200
MOST_LIST = 4096
"""Characters of an expression (two lines of code) and of the list of a launch (64 names)."""
MOST_SHIFT = 62
"""Bits of a value: sums of two fit 64."""
MOST_VALUES = 1000
"""Expressions of a source that are worked out: some tens of milliseconds."""

_LAUNCH = re.compile(r"\b(\w+)\s*(?:<[^<>;{}]{0,200}>\s*)?<<<")
_OPENING = re.compile(r"[ \n\t]*\(")
_NAME = r"[A-Za-z_]\w*"
_CHANGED = re.compile(
    rf"(?<![\w.>\]])({_NAME})\s*(?:=(?!=)(?=([^;,{{}}]{{0,{MOST_EXPRESSION}}}))|[-+*/%&|^]=|<<=|>>="
    rf"|\+\+|--|\[)|(?:\+\+|--|(?<!&)&)\s*({_NAME})"
)
_STREAMED = re.compile(rf"[;{{}}]\s*[\w.:]+((?:\s*>>\s*{_NAME})+)\s*;")
_DEFINED = re.compile(
    rf"^[ \t]*#[ \t]*define[ \t]+({_NAME})[ \t]+([^\n\\]{{1,{MOST_EXPRESSION}}})$", re.M
)
_CONSTANT = re.compile(
    rf"\bconst(?:expr)?\b[^;=(){{}}]{{0,80}}?\b({_NAME})\s*=\s*([^;,{{}}]{{1,{MOST_EXPRESSION}}})[;,]"
)
_CALL = re.compile(rf"\b({_NAME})\s*(?:<[^<>;{{}}]{{0,200}}>\s*)?\(")
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
    text, places = host_functions(source)
    if ">>>" not in text:
        return {}
    host = _Host([text[start:end] for start, end in places], "\n".join((text, *headers)))
    found: dict[str, list[dict[int, Passed]]] = {}
    left = MOST_LAUNCHES
    for (start, end), function in zip(places, host.functions, strict=True):
        launches = list(islice(_LAUNCH.finditer(text, start, end), left))
        left -= len(launches)
        for launch in launches:
            given = _list(text, text.find(">>>", launch.end(), end) + len(">>>"))
            line = text.count("\n", 0, launch.start()) + 1
            values = ((at, host.value(each, function)) for at, each in enumerate(given))
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


class _Function:
    """What names mean in a function: assigned once and changed nowhere; ``parameters`` are those
    that it does not change, by position; ``hidden`` what means nothing outside."""

    def __init__(self, text: str) -> None:
        head, _, self.body = text.partition("{")
        self.known: dict[str, int | None] = {}
        named = re.search(rf"({_NAME})\s*\(", head)
        self.name = named[1] if named else ""
        each = _list(head, named.end() - 1) if named else []
        last = ((re.findall(_NAME, one.partition("=")[0]) or [""])[-1] for one in each)
        own: dict[str, list[str]] = {}
        for name, meaning, touched in _CHANGED.findall(self.body):
            own.setdefault(name or touched, []).append(meaning)
        for name in re.findall(_NAME, " ".join(_STREAMED.findall(self.body))):
            own.setdefault(name, []).append("")
        self.hidden = {*own, *re.findall(_NAME, head)}
        self.parameters = {name: at for at, name in enumerate(last) if name not in own}
        self.meanings = {name: told[0] for name, told in own.items() if len(told) == 1}


class _Host:
    """The host code of a source: its functions, the constants of the file, and who calls whom."""

    def __init__(self, functions: Sequence[str], text: str) -> None:
        self.functions = [_Function(each) for each in functions]
        self.left = MOST_VALUES
        told: dict[str, set[str]] = {}
        for pattern in (_DEFINED, _CONSTANT):
            for name, meaning in pattern.findall(text):
                told.setdefault(name, set()).add(meaning.strip())
        self.constants = {name: each.pop() for name, each in told.items() if len(each) == 1}
        self.calls: dict[str, list[tuple[_Function, int]]] = {}
        for function in self.functions:
            for call in _CALL.finditer(function.body):
                self.calls.setdefault(call[1], []).append((function, call.end() - 1))

    def value(self, text: str, function: _Function) -> int | None:
        """The whole number that an expression in a function means, if it is certain."""
        plain = _SUFFIX.sub(r"\1", _CAST.sub("", text)).strip()
        self.left -= 1
        if self.left < 0 or len(plain) > MOST_EXPRESSION:
            return None
        try:
            tree = ast.parse(plain, mode="eval").body
            return _folded(tree, lambda name: self._named(name, function))
        except (SyntaxError, ValueError, MemoryError, RecursionError, ZeroDivisionError):
            return None

    def _named(self, name: str, function: _Function) -> int | None:
        """Of a name; of one that means itself nothing."""
        if name not in function.known:
            function.known[name] = None
            if name in function.parameters:
                function.known[name] = self._called(function, function.parameters[name])
            elif (meaning := function.meanings.get(name)) is not None:
                function.known[name] = self.value(meaning, function)
            elif name not in function.hidden:
                function.known[name] = self.value(self.constants.get(name, ""), function)
        return function.known[name]

    def _called(self, function: _Function, position: int) -> int | None:
        """What all calls of a function pass as one parameter."""
        told: set[int | None] = set()
        for caller, at in self.calls.get(function.name, [])[: MOST_LAUNCHES + 1]:
            given = _list(caller.body, at)
            known = position < len(given) and len(told) <= MOST_LAUNCHES
            told.add(self.value(given[position], caller) if known else None)
        return told.pop() if len(told) == 1 else None


def _folded(node: ast.expr, value_of: Callable[[str], int | None]) -> int | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return value_of(name)
        case ast.BinOp(left=left, op=rule, right=right) if type(rule) in _RULES:
            one, other = (_folded(each, value_of) for each in (left, right))
            if one is None or other is None:
                return None
            if isinstance(rule, ast.LShift | ast.RShift) and other > MOST_SHIFT:
                return None
            value = _RULES[type(rule)](one, other)
            # Quotients of negative numbers are rounded otherwise in C++; no size is one.
            return value if 0 <= value < 1 << MOST_SHIFT else None
    return None


def _list(text: str, start: int) -> list[str]:
    """What parentheses at ``start`` hold, or behind blanks, between its commas."""
    opening = _OPENING.match(text, start)
    end = closing_of(text, opening.end() - 1, MOST_LIST) if opening else None
    if opening is None or end is None:
        return []
    return (parts_of(text[opening.end() : end], angles=False) or [])[:MOST_PASSED]
