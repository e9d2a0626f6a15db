"""Targets beside what was reached: met, or missed by how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from studies.pages.page import Section, Table

Sense = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a number, in percent unless ``unit`` says otherwise (empty: a plain number).

    ``stretch``: one that was to be tried for, not promised.
    """

    name: str
    found: float
    bound: float
    sense: Sense = "at most"
    stretch: bool = False
    unit: str = "%"

    @property
    def short(self) -> float:
        """What is missing to the bound, in points; 0 where it is met."""
        gap = self.found - self.bound
        return max(0.0, gap if self.sense == "at most" else -gap)

    @property
    def met(self) -> bool:
        """Whether the bound holds. What is not a number meets nothing."""
        return self.found <= self.bound if self.sense == "at most" else self.found >= self.bound

    @property
    def verdict(self) -> str:
        """``met``, or by how much not."""
        return "met" if self.met else f"missed by {self.short:.{self._digits}f}"

    @property
    def limit(self) -> str:
        """The bound in words, with its unit."""
        return f"{self.sense} {self.bound:g}{self._suffix}"

    @property
    def reached(self) -> str:
        """What was found, with its unit."""
        return f"{self.found:.{self._digits}f}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return f" {self.unit}" if self.unit else ""

    @property
    def _digits(self) -> int:
        return 2 if self.unit else 3


def target_table(targets: Iterable[Target], caption: str = "") -> Table:
    """All targets with what was reached."""
    rows = [
        [
            target.name,
            f"{target.limit}{' (stretch)' if target.stretch else ''}",
            f"{target.found:.2f}",
            target.verdict,
        ]
        for target in targets
    ]
    return Table(("target", "bound", "reached, %", "verdict"), rows, caption)


def target_lines(targets: Iterable[Target]) -> list[str]:
    """The same for a terminal, a line each."""
    return [
        f"{target.verdict:<16} {target.name}: {target.reached} ({target.limit}"
        f"{', stretch' if target.stretch else ''})"
        for target in targets
    ]


class Chapter(NamedTuple):
    """Sections of a page, and the targets they show."""

    sections: Sequence[Section]
    targets: Sequence[Target] = ()
