"""What goes into ``POST /predict/batch`` and what comes out: one kernel, many launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from wattcast.features.analysis import Mode
from wattcast.features.errors import WattcastError
from wattcast.predictor import messages as shared
from wattcast.predictor import reports

MOST_LAUNCHES = 10_000
"""Launches of one request."""


class BatchRequest(shared.Conditions, shared.TimingChoice, shared.KernelCode):
    """Body of ``POST /predict/batch``."""

    model_config = shared.examples("BatchRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    launches: Annotated[list[shared.LaunchRequest], Field(min_length=1, max_length=MOST_LAUNCHES)]
    analysis: Mode = "symbolic"
    """How trip counts and activity are found out. `symbolic` takes about a millisecond a launch;
    `auto` and `executed` run sampled blocks of each one."""
    model: shared.ModelChoice = "auto"


class LaunchProblem(shared.Answer):
    """Why a launch has no prediction."""

    kind: str
    """Type of the problem, as `GET /problems` lists them."""
    detail: str
    field: str | None
    """Part of the launch that is wrong."""

    @classmethod
    def of(cls, error: WattcastError) -> LaunchProblem:
        """What an error says."""
        return cls(kind=error.slug, detail=error.detail, field=error.about)


class BatchPrediction(shared.Answer):
    """One launch. Its numbers are those of ``POST /predict`` for the same ``analysis``."""

    power: shared.Power | None = None
    time: shared.Time | None = None
    energy: shared.Energy | None = None
    regime: Literal["compute", "memory", "latency", "launch"] | None = None
    occupancy: float | None = None
    waves: float | None = None
    coverage: shared.Coverage | None = None
    warnings: list[str] = Field(default_factory=list)
    """Codes; the answer explains each once."""
    problem: LaunchProblem | None = None
    """Why this launch cannot be predicted; the others are."""


class BatchAnswer(shared.Reported):
    """Answer of ``POST /predict/batch``. Nothing of it is stored."""

    gpu: str
    kernel: shared.KernelName | None
    """Null for operators."""
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    clocks: shared.ClocksAnswer
    model: shared.ModelReference | None
    time_model: str | None
    analysis: Mode | None
    """Null for operators."""
    predictions: list[BatchPrediction]
    """One for each launch, in the order of the request."""
    failed: int
    """How many of them have a problem instead."""
    needs: list[shared.Need]
    """Arguments that launches lack, each once."""
    warnings: list[shared.WarningLine]
    """The first of each code."""

    def report(self) -> reports.Report:
        """A row for each launch."""
        columns = [
            reports.Column("launch", lambda row: str(row[0])),
            reports.Column("problem", lambda row: row[1].problem.detail if row[1].problem else ""),
            *(
                reports.Column(c.heading, lambda row, c=c: c.cell(row[1]), True)  # type: ignore[misc]
                for c in reports.costs()
            ),
        ]
        rows = list(enumerate(self.predictions))
        name = self.kernel.demangled if self.kernel else "operators"
        title = reports.Title(name, f"{len(rows)} launches on {self.gpu}")
        return [title, reports.Table(columns, rows), reports.Warnings(self.warnings)]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each launch, in the order asked; those that cannot run have a ``problem``."""
        names = {"time", "power", "energy", "regime", "occupancy", "waves"}
        for each in self.predictions:
            problem = each.problem.detail if each.problem else None
            yield {**each.model_dump(include=names, exclude_none=True), "problem": problem}
