"""What goes into ``POST /tunings`` and what comes out: a step of a search in a tuning space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from wattcast.features.analysis import Mode
from wattcast.models.intervals import quantity
from wattcast.predictor import messages, reports
from wattcast.predictor import messages as shared
from wattcast.predictor.messages.compare import ComparedCode

# What ``wattcast rank`` and ``wattcast.rank_triton`` answer: configurations in predicted order.

MOST_VARIANTS = 256


class RankRequest(shared.Conditions, shared.Asks["RankAnswer"]):
    """Variants of a kernel, each with its code and launch, on one GPU."""

    variants: list[ComparedCode] = Field(min_length=1, max_length=MOST_VARIANTS)
    gpu: shared.Name
    """GPU id or alias."""
    by: Literal["energy", "time"] = "energy"
    """What is ranked by."""


class RankedConfiguration(messages.Answer):
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


class RefusedConfiguration(messages.Answer):
    """A configuration that cannot be compiled or launched, and why."""

    configuration: dict[str, Any]
    reason: str


class Judged(messages.Answer):
    """What the predicted order would have saved, by the measurements there are."""

    k: int
    configurations: int
    runs_saved: int
    loss: float
    near: float
    runs_needed: int
    runs_needed_random: float
    rank_correlation: float


class RankAnswer(messages.Reported):
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


MOST_CONFIGURATIONS = 20_000
"""Configurations of one request: the largest space of Kernel Tuner's own benchmarks has 17,956
that its restrictions allow (gemm, benchmark_hub)."""

MOST_PREDICTIONS = 16
"""Configurations predicted by one call: 0.2 s each where the source is small and 1.2 s where it is
a large one (the budget of issue 24) keep it within the 30 s that the service gives a request."""

Value = (
    Annotated[bool, Field(strict=True)]
    | shared.ArgumentNumber
    | shared.FiniteNumber
    | Annotated[str, StringConstraints(max_length=200)]
)
Parameters = Annotated[dict[str, Value], Field(min_length=1, max_length=64)]
Quantity = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Divisors = Annotated[
    list[Annotated[list[Annotated[str, StringConstraints(max_length=64)]], Field(max_length=16)]],
    Field(max_length=3),
]


class TuningLaunch(shared.Message):
    """What every launch of the space has in common; its parameters tell grid and block."""

    dynamic_shared_bytes: shared.SharedBytes = 0
    arguments: shared.Arguments = Field(default_factory=dict)


class PredictedRow(shared.Message):
    """A configuration as a call predicted it, or the reason why it cannot be."""

    configuration: Parameters
    seconds: Quantity | None = None
    joules: Quantity | None = None
    problem: Annotated[str, StringConstraints(min_length=1, max_length=10_000)] | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        both = self.seconds is not None and self.joules is not None
        neither = self.seconds is None and self.joules is None
        if not (both if self.problem is None else neither):
            raise ValueError("give seconds and joules, or problem")
        return self


class MeasuredRow(shared.Message):
    """A configuration as it was measured; one measured again has several rows."""

    configuration: Parameters
    seconds: Quantity | None = None
    joules: Quantity | None = None
    failed: bool = False
    """It did not run, or computed something else."""

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if self.failed == (self.seconds is not None or self.joules is not None):
            raise ValueError("give seconds, joules or both; or failed")
        return self


class TuningsRequest(
    shared.Conditions, shared.TimingChoice, shared.KernelCode, shared.Asks["TuningsAnswer"]
):
    """Body of ``POST /tunings``. Tunable parameters are macros of CUDA source; of PTX they choose
    the launch alone."""

    model_config = shared.examples("TuningsRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    launch: TuningLaunch = TuningLaunch()
    analysis: Mode = "auto"
    space: str | None = Field(None, min_length=1)
    """Text of a file: a space of our own, a T1 definition, T4 results or a cache of Kernel Tuner.
    Measurements in it count. Or give `tune_params`."""
    tune_params: (
        Annotated[
            dict[str, Annotated[list[Value], Field(min_length=1)]],
            Field(min_length=1, max_length=64),
        ]
        | None
    ) = Field(None, examples=[{"block_size_x": [64, 128, 256], "work": [1, 2, 4]}])
    """Tunable parameters with their values."""
    restrictions: Annotated[list[str], Field(max_length=256)] = Field(
        default_factory=list, examples=[["block_size_x * work <= 1024"]]
    )
    """Expressions that every configuration satisfies, beside `tune_params`."""
    problem_size: (
        Annotated[
            list[Annotated[int, Field(strict=True, ge=1, le=shared.MAX_INTEGER)]],
            Field(min_length=1, max_length=3),
        ]
        | None
    ) = None
    """Default: as the file tells."""
    grid_divisors: Divisors | None = Field(None, examples=[[["block_size_x", "work"]]])
    """For each axis the parameters (or numbers) by whose product the problem size is divided to
    give the grid. Default: `block_size_x`, `_y` and `_z`."""
    objective: Literal["time", "energy", "edp"] = "energy"
    """Made least."""
    most_seconds: Quantity | None = None
    """Longest time allowed."""
    gain: Annotated[float, Field(ge=0, le=1)] = 0.005
    """The search is finished where one more measurement is expected to gain less, as a share of the
    best."""
    predicted: Annotated[list[PredictedRow], Field(max_length=MOST_CONFIGURATIONS)] = Field(
        default_factory=list[PredictedRow]
    )
    """`forecasts` of earlier calls."""
    predictions: Annotated[int, Field(strict=True, ge=0, le=MOST_PREDICTIONS)] = 8
    """How many more configurations to predict: those measured, those proposed, 200 spread over the
    space, then those that can be expected to gain most."""
    measured: Annotated[list[MeasuredRow], Field(max_length=MOST_CONFIGURATIONS)] = Field(
        default_factory=list[MeasuredRow]
    )
    """In the order they were measured."""
    results: str | None = Field(None, min_length=1)
    """Text of a T4 file, whose measurements count too."""
    following: Annotated[int, Field(strict=True, ge=1, le=20)] = 5
    """How many configurations to propose."""
    outlook: bool = True
    """Without it, the answer has no `best`, `next` and `columns`: a call that only predicts takes
    less time."""

    @model_validator(mode="after")
    def _one_kind_of_space(self) -> Self:
        if (self.space is None) == (self.tune_params is None):
            raise ValueError("give either space or tune_params")
        if self.restrictions and self.tune_params is None:
            raise ValueError("restrictions go with tune_params: a file has its own")
        return self


class Candidate(shared.Answer):
    """A configuration in the unit of the objective."""

    configuration: dict[str, int | float | str | bool]
    predicted: float
    emulated: bool
    """Not predicted yet: told from those that were."""
    expected: float
    """Median, by the prediction and all measurements."""
    low: float
    """Lower end of its 90 % interval."""
    high: float
    """Upper end of its 90 % interval."""
    gain: float
    """Expected of measuring it, as a share of the best."""
    measured: list[float]

    def __str__(self) -> str:
        return named(self.configuration)


class Stands(shared.Answer):
    """Where a search stands."""

    objective: Literal["time", "energy", "edp"]
    unit: Literal["s", "J", "Js"]
    configurations: int
    """Of the space, each once."""
    predicted: int
    measured: int
    failed: int
    best: Candidate | None
    """Of those measured; null: none yet."""
    next: list[Candidate]
    """To be measured next, the most promising first."""
    finished: bool
    """One more measurement is not expected to gain enough."""


class Standing(Stands, shared.Reported):
    """Where a search stands, with what was refused."""

    refused: list[dict[str, Any]]
    """Those that cannot be compiled, launched or predicted, and why."""

    def report(self) -> reports.Report:
        """How far the search is, the best so far, and what to measure next."""
        counts = [f"{self.measured} of {self.configurations} measured"]
        if (others := self.configurations - self.predicted) > 0:
            counts.append(f"{self.predicted} predicted, {others} told from those")
        if self.failed:
            counts.append(f"{self.failed} failed")
        blocks: list[reports.Block] = [reports.Line(", ".join(counts))]
        if self.best is not None:
            middle = sorted(self.best.measured)[len(self.best.measured) // 2]
            value = quantity(middle, self.unit)
            blocks.append(reports.Line(f"best {self.objective}: {value} at {self.best}"))
        if self.finished:
            stop = "one more measurement is not expected to gain enough: stop here"
            return [*blocks, reports.Line(stop)]
        columns = [
            reports.Column("measure next", str),
            reports.amount("expected", "expected", self.unit),
            reports.Column(
                "90 % interval",
                lambda row: " to ".join(quantity(end, self.unit) for end in (row.low, row.high)),
            ),
            reports.Column(
                "expected gain", lambda row: f"{row.gain:.1%}" if self.measured else "-"
            ),
        ]
        return [*blocks, reports.Table(columns, self.next)]


Numbers = list[float | None]
Status = Literal["waiting", "emulated", "predicted", "refused", "measured", "failed"]


class TuningColumns(shared.Answer):
    """All configurations in the order of the space: one entry each in every list."""

    parameters: dict[str, list[int | float | str | bool]]
    status: list[Status]
    predicted: Numbers
    """Null where it waits or was refused; where emulated, told from the others."""
    expected: Numbers
    low: Numbers
    high: Numbers
    measured: Numbers
    """The median of several."""


class TuningsAnswer(Stands):
    """Answer of ``POST /tunings``. Nothing of it is stored."""

    gpu: str
    waiting: int
    """Not predicted yet; once ten are, told from those."""
    enough: bool
    """Predicting more is not expected to change what is measured next."""
    refused: int
    """Those that cannot be compiled, launched or predicted."""
    forecasts: list[PredictedRow]
    """Made by this call: add them to `predicted` of the next."""
    measurements: list[MeasuredRow]
    """Of `results` and `measured`, as `measured` of the next call takes them."""
    columns: TuningColumns | None
