"""What goes into ``POST /dvfs`` and what comes out: a kernel at many clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor import reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_PAIRS = 4096
"""Clock pairs of one request: every pair of the largest grid of a profile is 828."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LimitsAsked = (
    shared.PowerLimit | Annotated[list[Positive], Field(min_length=1, max_length=MOST_PAIRS)]
)
Steps = Annotated[
    tuple[shared.Megahertz, shared.Megahertz, shared.Megahertz],
    Field(description="Lowest, highest and step, in MHz.", examples=[[700, 1380, 85]]),
]


class ClockRange(shared.Message):
    """Every core clock of one range with every memory clock of another."""

    core: Steps
    memory: Steps | None = None
    """Default: only the GPU's default clock."""


class ConstraintsRequest(shared.Message):
    """What an operating point must keep to."""

    max_slowdown: Annotated[
        Positive | None,
        Field(description="Longest time relative to the reference; 1.1 is 10 % longer."),
    ] = None
    max_power_watts: Positive | None = None
    deadline_seconds: Positive | None = None


class DvfsRequest(shared.KernelTiming, shared.Asks["DvfsAnswer"]):
    """Body of ``POST /dvfs``."""

    model_config = shared.examples("DvfsRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    clocks: shared.Clocks | list[shared.Clocks] | ClockRange | Literal["grid"] | None = None
    """One pair, a list of pairs, a range, or `grid`: every pair the GPU's profile lists. The
    default clocks alone where not given."""
    reference: shared.Clocks | None = None
    """Clock pair that ratios refer to. Default: the GPU's highest."""
    power_limit_watts: shared.PowerLimit | Annotated[list[Positive], Field(min_length=1)] = None
    constraints: ConstraintsRequest = ConstraintsRequest()
    model: shared.ScalingChoice = "physical"
    """A power model, or what scales time and power of the reference by the code alone: `tokens`
    (counted work) or `sequence` (an LSTM). Both at the clocks they were fitted at, without
    `power_limit_watts`."""
    board: shared.Board = None

    @model_validator(mode="after")
    def _no_limits_from_code(self) -> DvfsRequest:
        if self.model in shared.CODE_MODELS and self.power_limit_watts is not None:
            raise ValueError(f"model {self.model} knows no power limits")
        return self

    @model_validator(mode="after")
    def _some_clocks(self) -> DvfsRequest:
        if isinstance(self.clocks, list) and not 0 < len(self.clocks) <= MOST_PAIRS:
            raise ValueError(f"clocks: 1 to {MOST_PAIRS} pairs are taken, not {len(self.clocks)}")
        return self


# --- answer --------------------------------------------------------------------------------


class Scale(shared.Answer):
    """Each quantity over that at the reference pair; 1 exactly there."""

    time: float
    power: float
    energy: float


class OperatingLimit(shared.ClocksAnswer):
    """A clock pair and a power limit."""

    power_limit_watts: float


class OperatingPoint(OperatingLimit):
    """The kernel at one clock pair, under one power limit."""

    runs_at_core_mhz: float | None
    """Below `core_mhz` where the power limit binds; null where each part of the work has its own.
    """
    scale: Scale
    speedup: float
    """1 / scale.time."""
    energy_saved_percent: float
    """100 (1 - scale.energy)."""
    time: shared.Time
    power: shared.Power
    energy: shared.Energy
    edp_joule_seconds: float
    regime: Literal["compute", "memory", "latency", "launch"] | None
    pareto: bool
    """No other point is both faster and uses less energy."""
    feasible: bool
    """It satisfies all constraints."""
    extrapolated: bool
    """The GPU's profile does not list this pair, or an operator's shape is beyond measured ones."""

    def __str__(self) -> str:
        return f"{reports.megahertz(self, unit=False)}, {self.power_limit_watts:g} W"


class Reference(OperatingLimit):
    """The pair that factors refer to, with absolute values."""

    time: shared.Time
    power: shared.Power
    energy: shared.Energy


class BestPair(shared.ClocksAnswer):
    """The feasible point best by one objective, beside the reference."""

    time_penalty_percent: float
    energy_saved_percent: float


class BestPoint(BestPair, OperatingLimit):
    """The same with its power limit."""


class Proposal(shared.ClocksAnswer):
    """What to run at: the point of least energy, where what it is expected to save exceeds what it
    is expected to cost by the model's error; else the reference."""

    power_limit_watts: float | None = None
    stay: bool
    """No point is proposed: stay at the reference."""
    energy_saved_percent: float
    """Expected at the point of least energy, proposed or not."""
    cost_percent: float
    """What that point costs more than the reference in one kernel of ten that the model never saw;
    below 0 it saves there too."""
    why: str
    """The same for people."""


class Best(shared.Answer):
    """The best feasible point by each objective."""

    min_energy: BestPoint
    min_edp: BestPoint
    min_ed2p: BestPoint
    max_performance: BestPoint
    min_power: BestPoint


class Assumptions(shared.Answer):
    """What the answer rests on."""

    trip_counts_guessed: bool
    activity: Literal["executed", "symbolic"]
    occupancy: shared.Occupancy
    registers: shared.Registers
    trip_counts: list[shared.LoopTrips]
    voltage_curve: Literal["fitted", "typical"]
    """`fitted` to this GPU's measurements, or `typical` of other GPUs."""
    one_memory_clock: bool
    """Only the core clock of this GPU can be set."""
    time_model: str


class DvfsAnswer(shared.Reported):
    """Answer of ``POST /dvfs``. Points are sorted by core clock, memory clock and limit."""

    gpu: str
    kernel: shared.KernelName
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    model: shared.ModelReference | None
    """Null for a language model or a trace, of which several tell."""
    reference: Reference
    points: list[OperatingPoint]
    pareto: list[OperatingLimit]
    """The Pareto set, the fastest first."""
    best: Best
    proposal: Proposal
    assumptions: Assumptions | None
    """Null where the answer rests on no code, or on that of many kernels."""
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Every pair beside the reference, then the best ones."""
        base = self.reference
        best = (
            f"{reports.words(name)}: {reports.megahertz(each)} under "
            f"{each.power_limit_watts:g} W, {reports.saved(each)}"
            for name, each in self.best
        )
        columns = [
            CLOCKS,
            reports.amount("limit", "power_limit_watts", "W"),
            reports.Column("runs at", _runs_at, figures=True),
            *reports.costs(),
            *map(scale_column, ("time", "power", "energy")),
            reports.Column("", marks),
        ]
        return [
            reports.Title(self.kernel.demangled, f"on {self.gpu}"),
            reports.Line(
                f"reference {reports.megahertz(base)}: {', '.join(reports.figures(base))}"
            ),
            reports.Table(columns, self.points, most=MOST_PAIRS),
            *map(reports.Line, best),
            reports.Line(f"proposal: {self.proposal.why}"),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each clock pair and limit."""
        return ({"gpu": self.gpu, **point.data()} for point in self.points)

    def plot(self) -> Figure:
        """Time against energy, with the Pareto set; raises MissingExtraError without matplotlib."""
        from wattcast.predictor import plots

        points = [(str(each), each.time, each.energy, each.pareto) for each in self.points]
        return plots.of_points(points, f"{self.kernel.demangled} on {self.gpu}")


def _runs_at(point: OperatingPoint) -> str:
    return "-" if point.runs_at_core_mhz is None else f"{point.runs_at_core_mhz:g}"


CLOCKS = reports.Column(
    "core/memory MHz", lambda point: reports.megahertz(point, unit=False), figures=True
)


def scale_column(name: str) -> reports.Column:
    """A quantity over that at the reference."""

    def cell(point: Any) -> str:
        value = getattr(point.scale, name)
        return "-" if value is None else f"{value:.3f}"

    return reports.Column(f"x {name}", cell, figures=True)


def marks(point: Any) -> str:
    """What is special about a point."""
    told = {
        "pareto": point.pareto,
        "extrapolated": point.extrapolated,
        "infeasible": not point.feasible,
    }
    return ", ".join(name for name, holds in told.items() if holds)


# What goes into ``POST /dvfs`` with counters instead of code, and what comes out.


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
    time_seconds: Positive | None = None
    """Time of the launch, needed with counts unless `profile` tells it."""
    power_watts: Positive | None = None
    """Measured power of the board there; points then tell watts and joules."""

    @model_validator(mode="after")
    def _one_form(self) -> MeasuredCounters:
        if (self.values is None) == (self.profile is None):
            raise ValueError("give `values` or `profile`")
        return self


class KnownPoint(shared.Message):
    """The same kernel measured at another clock pair."""

    clocks: shared.Clocks
    time_seconds: Positive | None = None
    power_watts: Positive | None = None

    @model_validator(mode="after")
    def _measured(self) -> KnownPoint:
        if self.time_seconds is None and self.power_watts is None:
            raise ValueError("a known point needs time_seconds, power_watts or both")
        return self


class CountedRequest(shared.Message, shared.Asks["CountedAnswer"]):
    """Body of ``POST /dvfs`` for a kernel that was profiled at one clock pair."""

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    counters: MeasuredCounters
    known: list[KnownPoint] = Field([], max_length=100)
    """Measurements at other pairs. Each quantity needs its value in `counters` too."""
    clocks: shared.Clocks | list[shared.Clocks] | ClockRange | Literal["grid"] | None = "grid"
    """As with code; every pair of the GPU's profile by default."""
    reference: shared.Clocks | None = None
    """Pair that ratios refer to. Default: the highest of the campaign."""
    constraints: ConstraintsRequest = ConstraintsRequest()
    campaign: shared.Name | None = None
    """Model by its `source` in GET /models; chosen by counters and clocks."""

    @model_validator(mode="after")
    def _measured_too(self) -> CountedRequest:
        for name in ("time_seconds", "power_watts"):
            known = any(getattr(point, name) is not None for point in self.known)
            if known and getattr(self.counters, name) is None and self.counters.profile is None:
                raise ValueError(f"known {name} needs counters.{name} to compare with")
        return self


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
    best: dict[str, BestPair]
    """By objective, as with code; `max_performance` alone without power."""
    proposal: Proposal | None
    """Null without power."""
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Scales with their intervals, then the best pairs."""
        uses = ", ".join(f"{unit} {share:.0%}" for unit, share in self.uses.items())
        columns = [CLOCKS]
        for name in ("time", "power"):
            columns += [scale_column(name), _interval(name)]
        columns += [scale_column("energy"), reports.Column("", marks)]
        counted = f"{self.model.counters} counters at {reports.megahertz(self.counted_at)}"
        return [
            reports.Title(self.kernel or "kernel", f"on {self.gpu}"),
            reports.Line(f"{counted}, busy {uses}"),
            reports.Line(
                f"scales against {reports.megahertz(self.reference)}, by {self.model.campaign}"
            ),
            reports.Table(columns, self.points, most=MOST_PAIRS),
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


DvfsAnswers = DvfsAnswer | CountedAnswer
