"""Variants of a CUDA source: its macros with other values, and the launch that goes with each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np

from wattcast.features.errors import LaunchError, refused
from wattcast.predictor import expressions
from wattcast.predictor.expressions import ExpressionError

Value = int | str
Variant = tuple[tuple[str, Value], ...]
"""Macros with a value each, in the order given."""

MOST_VARIANTS = 64
"""Variants of one sweep: each is compiled, which takes 0.1 to 2 s (``python -m benchmarks``)."""

MOST_FORMULA = 200
"""Characters of a formula."""


def variants(defines: Mapping[str, Sequence[Value]], gpus: int = 1) -> Iterator[Variant]:
    """Every combination of values, for so many GPUs. Raises ServiceError for too many."""
    count = gpus * prod(len(values) for values in defines.values())
    if count > MOST_VARIANTS:
        raise refused(
            f"{count} variants are asked for; at most {MOST_VARIANTS} are compiled", "defines"
        )
    for values in product(*defines.values()):
        yield tuple(zip(defines, values, strict=True))


def with_macros(source: str, variant: Variant) -> str:
    """The source with each macro defined ahead of it; lines keep their numbers.

    Raises ServiceError for a macro that the source does not use.
    """
    for name, _ in variant:
        if not re.search(rf"\b{name}\b", source):
            raise refused(f"the source does not use {name}", f"defines.{name}")
    lines = [f"#define {name} {value}" for name, value in variant]
    return "\n".join([*lines, "#line 1", undefined(source, [name for name, _ in variant])])


def undefined(source: str, names: Iterable[str]) -> str:
    """The source without its own definitions of these macros, which would win over those ahead of
    it: they are taken for defaults. Lines keep their numbers."""
    for name in names:
        own = rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}\b(?!\()(?:[^\n\\]|\\\n|\\.)*"
        source = re.sub(own, lambda found: "\n" * found[0].count("\n"), source, flags=re.MULTILINE)
    return source


def dimensions(field: str, formulas: Sequence[str], known: Mapping[str, float]) -> list[int]:
    """What formulas come to, a whole number of 1 or more each.

    They are expressions (``expressions.py``) of whole numbers and names in ``known``, worked out in
    fractions: ``/`` does not round. Raises LaunchError for anything else.
    """
    return [_whole(field, formula, known) for formula in formulas]


def _whole(field: str, formula: str, known: Mapping[str, float]) -> int:
    try:
        read = expressions.read(formula, MOST_FORMULA)
        for node in ast.walk(read.body):
            if isinstance(node, ast.Constant) and type(node.value) is not int:
                raise ExpressionError(f"{node.value!r} is no whole number")
        for name in sorted(read.names - known.keys()):
            raise ExpressionError(f"{name} is no macro and no argument that is a number")
        columns = {name: np.array([Fraction(known[name])]) for name in read.names}
        (value,) = read.of(columns, 1, exact=True)
        if not isinstance(value, Fraction | int) or isinstance(value, bool):
            raise ExpressionError("it is no number")
    except (ValueError, TypeError, ArithmeticError) as error:
        raise LaunchError(f"{field} {formula!r}: {error}", field=field) from None
    if value.denominator != 1:
        told = f"is {float(value):g} here, not whole: ceil({formula}) rounds up"
        raise LaunchError(f"{field} {formula!r} {told}", field=field)
    if value < 1:
        raise LaunchError(f"{field} {formula!r} is {value} here, not 1 or more", field=field)
    return int(value)
