"""What goes into ``POST /dvfs`` with counters instead of code, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, RootModel, Tag, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages import dvfs


class MeasuredCounters(shared.Message):
    """One kernel's hardware counters, taken in one launch at one clock pair."""

    values: dict[str, shared.Count] | None = Field(
        None, examples=[{"DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.31, "DCGM_FI_PROF_DRAM_ACTIVE": 0.62}]
    )
    """By name: nvprof's or Nsight Compute's metrics (counts of one launch), DCGM's profiling fields
    or utilisations `sp int dp sfu cf l2 shared dram` (shares, 0 to 1)."""
    profile: str | None = Field(None, min_length=1)
    """Instead: what `ncu --csv`, `nvprof --csv --metrics`, `dcgmi dmon` or dcgm-exporter printed.
    """
    kernel: str | None = None
    """Its name or a part of it, where `profile` holds several kernels."""
    clocks: shared.Clocks = Field(
        default_factory=lambda: shared.Clocks(core_mhz=None, memory_mhz=None)
    )
    """Clocks they were taken at. Default: the GPU's."""
    time_seconds: dvfs.Positive | None = None
    """Time of the launch, needed with counts unless `profile` tells it."""
    power_watts: dvfs.Positive | None = None
    """Measured power of the board there; points then tell watts and joules."""

    @model_validator(mode="after")
    def _one_form(self) -> MeasuredCounters:
        if (self.values is None) == (self.profile is None):
            raise ValueError("give `values` or `profile`")
        return self


class KnownPoint(shared.Message):
    """The same kernel measured at another clock pair."""

    clocks: shared.Clocks
    time_seconds: dvfs.Positive | None = None
    power_watts: dvfs.Positive | None = None

    @model_validator(mode="after")
    def _measured(self) -> KnownPoint:
        if self.time_seconds is None and self.power_watts is None:
            raise ValueError("a known point needs time_seconds, power_watts or both")
        return self


class CountedRequest(shared.Message):
    """Body of ``POST /dvfs`` for a kernel that was profiled at one clock pair."""

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    counters: MeasuredCounters
    known: list[KnownPoint] = Field([], max_length=100)
    """Measurements at other pairs. Each quantity needs its value in `counters` too."""
    clocks: shared.Clocks | list[shared.Clocks] | dvfs.ClockRange | Literal["grid"] | None = "grid"
    """As with code; every pair of the GPU's profile by default."""
    reference: shared.Clocks | None = None
    """Pair that ratios refer to. Default: the highest of the campaign."""
    constraints: dvfs.ConstraintsRequest = dvfs.ConstraintsRequest()
    campaign: shared.Name | None = None
    """Model by its `source` in GET /models; chosen by counters and clocks."""

    @model_validator(mode="after")
    def _measured_too(self) -> CountedRequest:
        for name in ("time_seconds", "power_watts"):
            known = any(getattr(point, name) is not None for point in self.known)
            if known and getattr(self.counters, name) is None and self.counters.profile is None:
                raise ValueError(f"known {name} needs counters.{name} to compare with")
        return self


def _form(body: object) -> str:
    counted = body.get("counters") if isinstance(body, dict) else getattr(body, "counters", None)
    return "code" if counted is None else "counters"


class DvfsBody(
    RootModel[
        Annotated[
            Annotated[dvfs.DvfsRequest, Tag("code")] | Annotated[CountedRequest, Tag("counters")],
            Discriminator(_form),
        ]
    ]
):
    """A kernel's code and launch, or its counters."""


class CountedScale(shared.Answer):
    """Each quantity over that at the reference pair, with the ends of its interval."""

    time: float
    time_low: float
    time_high: float
    power: float | None
    """Null where nobody measured power."""
    power_low: float | None
    power_high: float | None
    energy: float | None
    level: float
    """Nominal coverage of the intervals, 0 to 1."""


class CountedPoint(shared.ClocksAnswer):
    """The kernel at one clock pair."""

    scale: CountedScale
    speedup: float
    """1 / scale.time."""
    energy_saved_percent: float | None
    time_seconds: float | None
    """Where `counters` tells the time."""
    power_watts: float | None
    """Where `counters` tells the power."""
    energy_joules: float | None
    pareto: bool
    feasible: bool
    extrapolated: bool
    """Outside the clocks the model was fitted on."""


class CountedModel(shared.Answer):
    """The frequency model that answered."""

    gpu: str
    campaign: str
    counters: Literal["nvprof", "utilisation", "dcgm"]
    corrected: list[Literal["time", "power"]]
    """Quantities that trees correct."""
    cards: list[str]
    """Paths of the model cards among the artifacts."""


class CountedAnswer(shared.Reported):
    """Answer of ``POST /dvfs`` to counters. Points are sorted by core clock and memory clock."""

    gpu: str
    kernel: str | None
    model: CountedModel
    counted_at: shared.ClocksAnswer
    uses: dict[str, float]
    """Share of the time each unit is busy, 0 to 1."""
    reference: shared.ClocksAnswer
    points: list[CountedPoint]
    pareto: list[shared.ClocksAnswer]
    """The fastest first; empty without power."""
    best: dict[str, dvfs.BestPair]
    """By objective, as with code; `max_performance` alone without power."""
    proposal: dvfs.Proposal | None
    """Null without power."""
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Scales with their intervals, then the best pairs."""
        uses = ", ".join(f"{unit} {share:.0%}" for unit, share in self.uses.items())
        columns = [dvfs.CLOCKS]
        for name in ("time", "power"):
            columns += [dvfs.scale_column(name), _interval(name)]
        columns += [dvfs.scale_column("energy"), reports.Column("", dvfs.marks)]
        counted = f"{self.model.counters} counters at {reports.megahertz(self.counted_at)}"
        return [
            reports.Title(self.kernel or "kernel", f"on {self.gpu}"),
            reports.Line(f"{counted}, busy {uses}"),
            reports.Line(
                f"scales against {reports.megahertz(self.reference)}, by {self.model.campaign}"
            ),
            reports.Table(columns, self.points, most=dvfs.MOST_PAIRS),
            *(
                reports.Line(
                    f"{reports.words(name)}: {reports.megahertz(best)}, {reports.saved(best)}"
                )
                for name, best in self.best.items()
            ),
            *([reports.Line(f"proposal: {self.proposal.why}")] if self.proposal else []),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each clock pair."""
        return ({"gpu": self.gpu, **point.data()} for point in self.points)


def _interval(name: str) -> reports.Column:
    def cell(point: CountedPoint) -> str:
        low, high = (getattr(point.scale, f"{name}_{end}") for end in ("low", "high"))
        return "" if low is None else f"{low:.2f} .. {high:.2f}"

    return reports.Column("interval", cell, figures=True)


DvfsAnswers = dvfs.DvfsAnswer | CountedAnswer
