"""Formulas and restrictions: a small language, bounded in text, in numbers and in work.

    read("block_x * work <= 1024").holds({"block_x": column, "work": column}, rows)

Its words are Python's: ``+ - * / // %``, comparisons, ``in`` a list, ``and or not``, and ``ceil``,
``min``, ``max``, ``abs`` and ``round`` of one number. It means what Python means by them, for all
values of a column at once. Columns hold float64 numbers, texts, or fractions (exact, and slower).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
Bools = NDArray[np.bool_]

MOST_CHARACTERS = 2_000
"""Characters of an expression: Python's parser gives up at 3,000 signs in a row (CPython 3.11)."""

MOST_DEPTH = 64
"""Expressions inside each other."""

MOST_NUMBER = 2.0**53 - 1
"""Size of every number on the way: below it, float64 holds each whole number."""

MOST_BITS = 64
"""Of the numerator and the denominator of every fraction on the way."""

_WORDS = "+ - * / // %, comparisons, in, and, or, not, ceil, min, max, abs and round"


class ExpressionError(ValueError):
    """A text that is no expression of this language; the message says why."""


@dataclass(frozen=True)
class Expression:
    """An expression that was read. ``size`` counts its parts: the work of one row."""

    body: ast.expr
    size: int

    @cached_property
    def names(self) -> frozenset[str]:
        """The names it asks for, other than those of functions."""
        found = {each.id for each in ast.walk(self.body) if isinstance(each, ast.Name)}
        return frozenset(found - _CALLS.keys())

    def of(self, columns: Mapping[str, Column], rows: int, *, exact: bool = False) -> Column:
        """What it comes to in each row; ``columns`` holds its names, ``rows`` long each.
        ``exact``: numbers are fractions, in the columns too.

        Raises TypeError for values that do not go together, ZeroDivisionError, and ArithmeticError
        for a number that becomes too large.
        """
        asked = {name: columns[name] for name in self.names}
        every = _Rows(asked, rows, exact)
        return every.whole(every.of(self.body))

    def holds(self, columns: Mapping[str, Column], rows: int) -> Bools:
        """Whether it is true in each row. Raises what ``of`` raises."""
        return _truth(self.of(columns, rows))


def read(text: str, most_characters: int = MOST_CHARACTERS) -> Expression:
    """Read an expression. Raises ExpressionError."""
    if len(text) > most_characters:
        raise ExpressionError(f"it has more than {most_characters:,} characters")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError("it is no expression") from error
    return Expression(body, _checked(body, 0))


def column(values: Sequence[int | float | str]) -> Column:
    """Values as a column. Raises TypeError where numbers and texts are mixed."""
    texts = sum(isinstance(value, str) for value in values)
    if texts not in (0, len(values)):
        raise TypeError("numbers and texts are mixed")
    return np.array(values) if texts else np.array([float(value) for value in values])


def _checked(node: ast.expr, depth: int) -> int:
    """Parts of an expression, all of which are understood. Raises ExpressionError."""
    if depth > MOST_DEPTH:
        raise ExpressionError(f"it is nested too deeply: more than {MOST_DEPTH} inside each other")
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            pass
        case ast.BinOp(left=left, op=how, right=right) if type(how) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=hows, comparators=others) if all(
            type(how) in _COMPARED for how in hows[:-1]
        ):
            parts = [left, *others[:-1], *_listed(hows[-1], others[-1])]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CALLS:
            parts = _arguments(given)
            if not parts or (name not in _OF_SEVERAL and len(parts) > 1):
                raise ExpressionError(f"{name} does not take {len(parts)} numbers")
        case _:
            raise ExpressionError(f"{ast.unparse(node)[:80]} is not understood: only {_WORDS} are")
    return 1 + sum(_checked(part, depth + 1) for part in parts)


def _listed(how: ast.cmpop, other: ast.expr) -> list[ast.expr]:
    """What a comparison is with: one value, or those of a list. Raises ExpressionError."""
    if type(how) in _COMPARED:
        return [other]
    if not isinstance(how, ast.In | ast.NotIn) or not isinstance(other, _LISTS):
        raise ExpressionError(f"{ast.unparse(other)[:80]} is not understood: `in` needs a list")
    return other.elts


def _arguments(given: list[ast.expr]) -> list[ast.expr]:
    """Arguments of a function: several, or one list of them."""
    return given[0].elts if len(given) == 1 and isinstance(given[0], _LISTS) else given


@dataclass(frozen=True)
class _Rows:
    """Rows of columns that expressions are evaluated for; an entry alone stands for all rows."""

    columns: Mapping[str, Column]
    count: int
    exact: bool

    def some(self, which: Bools) -> _Rows:
        kept = {name: each[which] for name, each in self.columns.items()}
        return _Rows(kept, int(which.sum()), self.exact)

    def whole(self, found: Column) -> Column:
        return found if len(found) == self.count else np.repeat(found, self.count)

    def of(self, node: ast.expr) -> Column:
        match node:
            case ast.Constant(value=str() as text):
                return np.array([text])
            case ast.Constant(value=value):
                number = Fraction(value) if self.exact else float(value)  # type: ignore[arg-type]
                return _bounded(np.array([number]))
            case ast.Name(id=name):
                return self.columns[name]
            case ast.BinOp(left=left, op=how, right=right):
                one, other = _numbers(self.of(left)), _numbers(self.of(right))
                if isinstance(how, ast.Div | ast.FloorDiv | ast.Mod) and not np.all(other != 0):
                    raise ZeroDivisionError("division by zero")
                return _bounded(_BINARY[type(how)](one, other))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~_truth(self.of(operand))
            case ast.UnaryOp(operand=operand):
                return -_numbers(self.of(operand))
            case ast.Call(func=ast.Name(id=name), args=given):
                parts = [_numbers(self.of(part)) for part in _arguments(given)]
                return reduce(_CALLS[name], parts) if len(parts) > 1 else _alone(name, parts[0])
            case ast.BoolOp(op=how, values=values):
                return self.in_turn(values, isinstance(how, ast.And))
        assert isinstance(node, ast.Compare)
        return self.compared(node)

    def in_turn(self, parts: Sequence[ast.expr], every: bool) -> Bools:
        """``and`` or ``or``: a part is evaluated where those before it do not decide."""
        found, rows, left = np.full(self.count, every), np.arange(self.count), self
        for part in parts:
            if not left.count:
                break
            held = left.whole(_truth(left.of(part)))
            found[rows] = held
            going_on = held if every else ~held
            rows, left = rows[going_on], left.some(going_on)
        return found

    def compared(self, node: ast.Compare) -> Bools:
        found, rows, left = np.ones(self.count, bool), np.arange(self.count), self
        one = self.whole(self.of(node.left))
        for how, part in zip(node.ops, node.comparators, strict=True):
            if not left.count:
                break
            if type(how) in _COMPARED:
                other = left.whole(left.of(part))
                held = _compared(type(how), one, other)
            else:
                each = [_compared(ast.Eq, one, left.of(value)) for value in _listed(how, part)]
                held = reduce(operator.or_, each, np.zeros(left.count, bool))
                held, other = (held if isinstance(how, ast.In) else ~held), one
            found[rows] = held
            rows, left, one = rows[held], left.some(held), other[held]
        return found


def _compared(how: type[ast.cmpop], one: Column, other: Column) -> Bools:
    if (one.dtype.kind == "U") != (other.dtype.kind == "U"):
        if how not in (ast.Eq, ast.NotEq):
            raise TypeError("a text and a number have no order")
        return np.full(len(one), how is ast.NotEq)
    return np.asarray(_COMPARED[how](one, other), dtype=bool)


def _alone(name: str, numbers: Column) -> Column:
    if name in _OF_SEVERAL:
        return numbers
    return _bounded(_CALLS[name](numbers))


def _numbers(found: Column) -> Column:
    if found.dtype.kind == "U":
        raise TypeError("numbers are expected, not texts")
    return found.astype(float) if found.dtype.kind == "b" else found


def _truth(found: Column) -> Bools:
    if found.dtype.kind == "b":
        return found
    return np.asarray(found != ("" if found.dtype.kind == "U" else 0), dtype=bool)


def _bounded(found: Column) -> Column:
    if found.dtype == object:
        good = all(
            max(each.numerator.bit_length(), each.denominator.bit_length()) <= MOST_BITS
            for each in found
        )
    else:
        good = bool((np.abs(found) <= MOST_NUMBER).all())
    if not good:
        raise ArithmeticError("it comes to a number too large")
    return found


def _each(exact: Callable[[Any], Any], many: Callable[[Any], Any]) -> Callable[[Column], Column]:
    return lambda found: (
        np.array([exact(each) for each in found], dtype=object)
        if found.dtype == object
        else many(found)
    )


_LISTS = (ast.List, ast.Tuple, ast.Set)
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "ceil": _each(ceil, np.ceil), "round": _each(round, np.rint), "abs": np.abs,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_OF_SEVERAL = ("min", "max")
