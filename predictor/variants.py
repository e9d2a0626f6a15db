"""Variants of a CUDA source: its macros with other values, and the launch that goes with each."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, prod
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
    def leaf(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return Fraction(number)
            case ast.Name(id=name) if name in known:
                return Fraction(known[name])
            case ast.Name(id=name):
                raise ValueError(f"{name} is no macro and no argument that is a number")
        raise TypeError

    try:
        if len(formula) > MOST_FORMULA:
            raise ValueError(f"it has more than {MOST_FORMULA} characters")
        value = evaluated(ast.parse(formula.strip(), mode="eval").body, leaf)
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


_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "ceil": ceil, "min": min, "max": max, "abs": abs, "round": round
}  # fmt: skip


def evaluated(node: ast.expr, leaf: Callable[[ast.expr], Any]) -> Any:
    """What an expression of Python comes to, of arithmetic, comparisons and logic alone.

    ``leaf`` says what names and constants are, and refuses every other kind of expression. Raises
    what it raises, TypeError for values that do not go together, and ZeroDivisionError.
    """
    match node:
        case ast.BinOp(left=left, op=how, right=right) if type(how) in _BINARY:
            return _BINARY[type(how)](evaluated(left, leaf), evaluated(right, leaf))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not evaluated(operand, leaf)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluated(operand, leaf)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(evaluated(part, leaf) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(evaluated(part, leaf) for part in parts)
        case ast.Compare(left=left, ops=hows, comparators=others) if all(
            type(how) in _BINARY for how in hows
        ):
            terms = [evaluated(each, leaf) for each in (left, *others)]
            pairs = zip(hows, terms, terms[1:], strict=False)
            return all(_BINARY[type(how)](a, b) for how, a, b in pairs)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _CALLS:
            return _CALLS[name](*(evaluated(part, leaf) for part in parts))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [evaluated(part, leaf) for part in parts]
    return leaf(node)
