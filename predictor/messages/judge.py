"""What goes into ``POST /judge`` and what comes out: is a candidate better than a reference?"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from wattcast.models.estimate import quantity
from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages.compare import ComparedCode, with_common

MOST_REASONS = 3
UNITS = ("time", "seconds"), ("power", "watts"), ("energy", "joules")

Saving = Annotated[float, Field(gt=-1e6, lt=100, allow_inf_nan=False)]
Speedup = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class JudgeRequest(shared.Conditions):
    """Body of ``POST /judge``. What both sides have in common may stand beside them, as in
    ``POST /compare``."""

    model_config = shared.examples("JudgeRequest")

    reference: ComparedCode
    candidate: ComparedCode
    gpu: shared.Name
    min_speedup: Speedup | None = None
    """Refuse a candidate that is less than so many times as fast: 1.05."""
    min_saving: Saving | None = None
    """Refuse a candidate that saves less than so many percent of the energy."""

    @model_validator(mode="before")
    @classmethod
    def _common_members(cls, given: Any) -> Any:
        return with_common(given, "reference", "candidate")


class Ratio(shared.Answer):
    """Candidate over reference; below 1 the candidate takes less."""

    ratio: float
    low: float
    high: float
    level: float
    """Nominal coverage of [low, high], 0 to 1."""
    less: float
    """Probability that the candidate takes less, 0 to 1."""


class Judged(shared.Answer):
    """One side, and what bounds its time."""

    kernel: shared.KernelName
    seconds: float
    watts: float
    joules: float
    bound: str | None
    written_bytes: float
    """Distinct bytes of device memory that it writes, in sectors of 32."""


class Reason(shared.Answer):
    """A unit of the GPU whose work changes most, and the line that takes most of it."""

    unit: str
    reference_seconds: float
    """At the unit's peak."""
    candidate_seconds: float
    side: Literal["reference", "candidate"]
    """Whose code the line is of."""
    line: int | None
    """Line in the PTX."""
    source_line: int | None
    text: str
    """The line, without control characters."""

    def __str__(self) -> str:
        before, after = (
            quantity(each, "s") for each in (self.reference_seconds, self.candidate_seconds)
        )
        where = "" if self.line is None else f"; {self.side}, line {self.line}: {self.text!r}"
        return f"{self.unit}: {before} → {after} at its peak{where}"


class Flag(shared.Answer):
    """Why the candidate may not do the reference's work."""

    code: Literal["above_speed_of_light", "writes_less", "other_result_size"]
    detail: str


class JudgeAnswer(shared.Reported):
    """Answer of ``POST /judge``. Text out of the code stands in ``text`` and in names alone."""

    gpu: str
    accepted: bool
    """Both thresholds are kept, and no flag is raised."""
    time: Ratio
    energy: Ratio
    reference: Judged
    candidate: Judged
    reasons: Annotated[list[Reason], Field(max_length=MOST_REASONS)]
    flags: list[Flag]
    narrower: list[str]
    """What to give or do for a surer answer."""

    def report(self) -> reports.Report:
        """The verdict, ratios, reasons and flags."""
        blocks: list[reports.Block] = [
            reports.Title("accepted" if self.accepted else "refused", f"on {self.gpu}")
        ]
        for name, one in (("time", self.time), ("energy", self.energy)):
            blocks.append(
                reports.Line(
                    f"{name} x {one.ratio:.3f} ({one.low:.3f} .. {one.high:.3f}, "
                    f"{one.level:.0%}); less with a probability of {one.less:.0%}"
                )
            )
        bounds = self.reference.bound, self.candidate.bound
        blocks.append(reports.Line("bound by {} → {}".format(*(each or "?" for each in bounds))))
        blocks += [reports.Line(f"{each.code}: {each.detail}", "urgent") for each in self.flags]
        return [*blocks, *map(reports.Line, map(str, self.reasons)),
                *(reports.Line(f"narrower: {each}") for each in self.narrower)]  # fmt: skip
