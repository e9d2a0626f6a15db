"""What ``wattcast rank`` and ``wattcast.rank_triton`` answer: configurations in predicted order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages import Answer, Reported
from wattcast.predictor.messages.compare import ComparedCode

MOST_VARIANTS = 256


class RankRequest(shared.Conditions):
    """Variants of a kernel, each with its code and launch, on one GPU."""

    variants: list[ComparedCode] = Field(min_length=1, max_length=MOST_VARIANTS)
    gpu: shared.Name
    """GPU id or alias."""
    by: Literal["energy", "time"] = "energy"
    """What is ranked by."""


class RankedConfiguration(Answer):
    """One configuration with its prediction, and what was measured of it."""

    rank: int
    """1 is predicted best."""
    configuration: dict[str, Any]
    grid: Any
    block: Any
    gpu: str
    kernel: str
    joules: float
    seconds: float
    watts: float
    joules_low: float | None = None
    """Of the interval of the energy."""
    joules_high: float | None = None
    seconds_low: float | None = None
    """Of the interval of the time."""
    seconds_high: float | None = None
    measured_seconds: float | None
    measured_joules: float | None
    valid: bool
    """It ran and computed the right result, as far as is known."""
    apart: str | None
    """Why it is not ranked with the others; null: it is."""


class RefusedConfiguration(Answer):
    """A configuration that cannot be compiled or launched, and why."""

    configuration: dict[str, Any]
    reason: str


class Judged(Answer):
    """What the predicted order would have saved, by the measurements there are."""

    k: int
    configurations: int
    runs_saved: int
    loss: float
    near: float
    runs_needed: int
    runs_needed_random: float
    rank_correlation: float


class RankAnswer(Reported):
    """Configurations by predicted ``objective``, and those that are refused."""

    objective: Literal["energy", "time"]
    kernel: str
    gpu: str
    configurations: list[RankedConfiguration]
    refused: list[RefusedConfiguration]
    judged: Judged | None
    """Null unless two that are predicted were measured."""

    def report(self, most: int = reports.MOST_ROWS) -> reports.Report:
        """The order, what was refused, and what the order would have saved."""
        columns = [
            reports.word("rank", "rank"),
            reports.Column("configuration", lambda row: named(row.configuration)),
            reports.amount("energy", "joules", "J"),
            reports.amount("time", "seconds", "s"),
            reports.amount("power", "watts", "W"),
            reports.amount("measured energy", "measured_joules", "J"),
            reports.amount("measured time", "measured_seconds", "s"),
        ]
        blocks: list[reports.Block] = [
            reports.Title(self.kernel, f"on {self.gpu}"),
            reports.Table(columns, self.configurations, most=most),
        ]
        if self.refused:
            first = self.refused[0].reason
            blocks.append(reports.Line(f"{len(self.refused)} refused, the first: {first}"))
        if (judged := self.judged) is None:
            blocks.append(reports.Line(f"no measured {self.objective} to judge the order by"))
            return blocks
        return [
            *blocks,
            reports.Line(
                f"measuring these {judged.k} of {judged.configurations} would have saved "
                f"{judged.runs_saved} runs and found one {judged.loss:.1%} above the best"
            ),
            reports.Line(
                f"one within {judged.near:.0%} of the best is at rank {judged.runs_needed}; "
                "without a prediction it takes "
                f"{judged.runs_needed_random:.1f} runs on average; rank correlation "
                f"{judged.rank_correlation:.2f}"
            ),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each configuration; its constants and options are columns."""
        for each in self.configurations:
            rest = each.model_dump(exclude={"configuration"}, exclude_none=True)
            yield {**each.configuration, **rest, **each.configuration}


def named(configuration: Mapping[str, Any]) -> str:
    """A configuration as text: TILE=16, UNROLL=4."""
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
