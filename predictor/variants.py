"""Variants of a CUDA source: its macros with other values, and the launch that goes with each."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, prod
from numbers import Real
from typing import Any

from wattcast.features.errors import LaunchError, ServiceError

Value = int | str
Variant = tuple[tuple[str, Value], ...]
"""Macros with a value each, in the order given."""

MOST_VARIANTS = 64
"""Variants of one sweep: each is compiled, which takes 0.1 to 2 s (``python -m benchmarks``)."""

MOST_FORMULA = 200
"""Characters of a formula, and bits of what it comes to (twice those of any grid)."""
_MOST_BITS = 64


def variants(defines: Mapping[str, Sequence[Value]], gpus: int = 1) -> Iterator[Variant]:
    """Every combination of values, for so many GPUs. Raises ServiceError for too many."""
    count = gpus * prod(len(values) for values in defines.values())
    if count > MOST_VARIANTS:
        raise ServiceError(
            "validation",
            f"{count} variants are asked for; at most {MOST_VARIANTS} are compiled",
            field="defines",
        )
    for values in product(*defines.values()):
        yield tuple(zip(defines, values, strict=True))


def with_macros(source: str, variant: Variant) -> str:
    """The source with each macro defined ahead of it; lines keep their numbers.

    Definitions of the same names in the source are taken out: they would win. Raises ServiceError
    for a macro that the source does not use.
    """
    for name, _ in variant:
        if not re.search(rf"\b{name}\b", source):
            raise ServiceError(
                "validation", f"the source does not use {name}", field=f"defines.{name}"
            )
        own = rf"^[ \t]*#[ \t]*define[ \t]+{name}\b(?!\()(?:[^\n\\]|\\\n|\\.)*"
        source = re.sub(own, lambda found: "\n" * found[0].count("\n"), source, flags=re.MULTILINE)
    lines = [f"#define {name} {value}" for name, value in variant]
    return "\n".join([*lines, "#line 1", source])


def dimensions(field: str, formulas: Sequence[str], known: Mapping[str, float]) -> list[int]:
    """What formulas come to, a whole number of 1 or more each.

    They may hold numbers, names in ``known``, ``+ - * / // %``, parentheses, and ``ceil``, ``min``
    and ``max``. ``/`` does not round. Raises LaunchError for anything else.
    """
    return [_whole(field, formula, known) for formula in formulas]


def _whole(field: str, formula: str, known: Mapping[str, float]) -> int:
    def leaf(node: ast.expr) -> Rule:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return lambda row: Fraction(number)
            case ast.Name(id=name) if name in known:
                return lambda row: Fraction(row[name])
            case ast.Name(id=name):
                raise ValueError(f"{name} is no macro and no argument that is a number")
        raise TypeError

    try:
        if len(formula) > MOST_FORMULA:
            raise ValueError(f"it has more than {MOST_FORMULA} characters")
        value = rule(ast.parse(formula.strip(), mode="eval").body, leaf)(known)
        if not isinstance(value, Fraction | int) or isinstance(value, bool):
            raise TypeError
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
            raise ValueError("it comes to a number too large")
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError) as error:
        why: object = error
        if isinstance(error, SyntaxError):
            why = "it is no formula"
        elif isinstance(error, TypeError):
            why = "only + - * / // % ( ) ceil min max, names and whole numbers are read"
        elif isinstance(error, ZeroDivisionError):
            why = "it divides by 0"
        raise LaunchError(f"{field} {formula!r}: {why}", field=field) from None
    if value.denominator != 1:
        told = f"is {float(value):g} here, not whole: ceil({formula}) rounds up"
        raise LaunchError(f"{field} {formula!r} {told}", field=field)
    if value < 1:
        raise LaunchError(f"{field} {formula!r} is {value} here, not 1 or more", field=field)
    return int(value)


def _of_numbers(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same of numbers alone: a text times a number, or a text that is a format, would be as
    long as somebody likes."""

    def acted(one: Any, other: Any) -> Any:
        if isinstance(one, Real) and isinstance(other, Real):
            return act(one, other)
        raise TypeError("numbers are expected")

    return acted


_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: _of_numbers(operator.mul),
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: _of_numbers(operator.mod),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "ceil": ceil, "min": min, "max": max, "abs": abs, "round": round
}  # fmt: skip

Rule = Callable[[Mapping[str, Any]], Any]
"""What an expression comes to with these values of its names."""


def rule(node: ast.expr, leaf: Callable[[ast.expr], Rule]) -> Rule:
    """An expression of Python as a function of its names, of arithmetic, comparisons and logic
    alone.

    ``leaf`` says what names and constants are, and refuses every other kind of expression. Raises
    what it raises; the function raises TypeError for values that do not go together, and
    ZeroDivisionError.
    """

    def read(node: ast.expr) -> Rule:
        return rule(node, leaf)

    match node:
        case ast.BinOp(left=left, op=how, right=right) if type(how) in _BINARY:
            one, other, act = read(left), read(right), _BINARY[type(how)]
            return lambda row: act(one(row), other(row))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            one = read(operand)
            return lambda row: not one(row)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            one = read(operand)
            return lambda row: -one(row)
        case ast.BoolOp(op=how, values=parts):
            each, joined = [read(part) for part in parts], all if type(how) is ast.And else any
            return lambda row: joined(part(row) for part in each)
        case ast.Compare(left=left, ops=hows, comparators=others) if all(
            type(how) in _BINARY for how in hows
        ):
            terms = [read(part) for part in (left, *others)]
            acts = [_BINARY[type(how)] for how in hows]
            pairs = list(zip(acts, terms, terms[1:], strict=False))
            return lambda row: all(act(a(row), b(row)) for act, a, b in pairs)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _CALLS:
            call, each = _CALLS[name], [read(part) for part in parts]
            return lambda row: call(*(part(row) for part in each))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            each = [read(part) for part in parts]
            return lambda row: [part(row) for part in each]
    return leaf(node)
