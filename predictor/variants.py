"""Variants of a CUDA source: its macros with other values, and the launch that goes with each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import ceil, prod

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
    try:
        if len(formula) > MOST_FORMULA:
            raise ValueError(f"it has more than {MOST_FORMULA} characters")
        value = _value(ast.parse(formula.strip(), mode="eval").body, known)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError) as error:
        why = "it is no formula" if isinstance(error, SyntaxError) else error
        raise LaunchError(f"{field} {formula!r}: {why}", field=field) from None
    if value.denominator != 1:
        told = f"is {float(value):g} here, not whole: ceil({formula}) rounds up"
        raise LaunchError(f"{field} {formula!r} {told}", field=field)
    if value < 1:
        raise LaunchError(f"{field} {formula!r} is {value} here, not 1 or more", field=field)
    return int(value)


def _value(node: ast.expr, known: Mapping[str, float]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            found = Fraction(number)
        case ast.Name(id=name):
            if name not in known:
                raise ValueError(f"{name} is no macro and no argument that is a number")
            found = Fraction(known[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand, known)
        case ast.BinOp(left=left, op=op, right=right):
            found = _operation(op, _value(left, known), _value(right, known))
        case ast.Call(func=ast.Name(id="ceil"), args=[one], keywords=[]):
            found = Fraction(ceil(_value(one, known)))
        case ast.Call(func=ast.Name(id="min" | "max" as which), args=[_, *_] as many, keywords=[]):
            chosen = min if which == "min" else max
            found = chosen(_value(one, known) for one in many)
        case _:
            raise ValueError("only + - * / // % ( ) ceil min max, names and whole numbers are read")
    if max(found.numerator.bit_length(), found.denominator.bit_length()) > _MOST_BITS:
        raise ValueError("it comes to a number too large")
    return found


def _operation(op: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() | ast.FloorDiv() | ast.Mod() if right == 0:
            raise ValueError("it divides by 0")
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
    raise ValueError("only + - * / // % ( ) ceil min max, names and whole numbers are read")
