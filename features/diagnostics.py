"""Warnings: everything guessed, assumed or unknown, all the way to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CUT_SHORT = "execution_cut_short"
"""Code of what tells that the executed analysis reached its cap."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One warning with a stable ``code`` (snake_case) and its place in the PTX.

    ``line`` and ``column`` are 1-based; ``None`` where the warning has no place.
    """

    code: str
    detail: str
    line: int | None = None
    column: int | None = None


MOST_DIAGNOSTICS = 200
"""Warnings kept per body, module or pass; the rest are counted in a last one."""


def bounded(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The first of them, and one more that counts the rest: hostile text yields any number."""
    if len(found) <= MOST_DIAGNOSTICS:
        return tuple(found)
    left_out = len(found) - MOST_DIAGNOSTICS
    rest = Diagnostic("more_diagnostics", f"{left_out} further warnings are not listed")
    return (*found[:MOST_DIAGNOSTICS], rest)
