"""Warnings: everything guessed, assumed or unknown, all the way to the answer."""

from __future__ import annotations

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
