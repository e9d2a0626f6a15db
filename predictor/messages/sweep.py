"""What goes into ``POST /sweep`` and what comes out: a kernel at many launch shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from wattcast.features.analysis import Mode
from wattcast.features.errors import WattcastError
from wattcast.predictor import messages as shared
from wattcast.predictor import reports, variants
from wattcast.predictor.messages import dvfs, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_POINTS = 1024
"""Shapes of one sweep, over all GPUs."""

Shapes = Annotated[list[shared.Dimension | shared.Dimensions], Field(min_length=1)]
Macro = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
MacroValue = (
    Annotated[int, Field(strict=True)]
    | Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:<>()*+ -]{1,100}$")]
)
Formulas = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=variants.MOST_FORMULA)]],
    Field(min_length=1, max_length=3),
]
RegisterCount = Annotated[int, Field(strict=True, ge=1, le=255)]


class SweepRequest(
    shared.Conditions, shared.GpuOrGpus, shared.KernelTiming, shared.Asks["SweepAnswer"]
):
    """Body of ``POST /sweep``. ``launch`` is the reference: every shape does its work."""

    model_config = shared.examples("SweepRequest")

    blocks: Shapes | None = None
    """Blocks to try. Default: common sizes with as many axes as the launch."""
    grids: Shapes | None = None
    """Grids to try with every block; without them each block gets the smallest grid that covers the
    threads of the launch along every axis."""
    grid_stride: bool = False
    """The kernel loops over what its threads do not cover (a grid-stride loop), so that a grid with
    fewer threads does the same work."""
    registers: Annotated[list[RegisterCount], Field(min_length=1)] | None = None
    """Registers per thread to try, as `-maxrregcount` sets them."""
    include_unproven: bool = False
    """Also predict and rank shapes that are not shown to compute what the launch computes; without
    it they are listed in `left_out`."""
    defines: (
        Annotated[
            dict[Macro, Annotated[list[MacroValue], Field(min_length=1, max_length=64)]],
            Field(min_length=1, max_length=16),
        ]
        | None
    ) = Field(None, examples=[{"TILE": [8, 16, 32], "UNROLL": [1, 4]}])
    """Macros of the CUDA source with the values to try: every combination is compiled, analysed and
    predicted once."""
    grid_formula: Formulas | None = Field(None, examples=[["ceil(n / TILE)", "ceil(n / TILE)"]])
    """The grid of each variant, from its macros and from arguments that are numbers: whole numbers,
    names, `+ - * / // %`, parentheses, `ceil`, `min`, `max`."""
    block_formula: Formulas | None = Field(None, examples=[["TILE", "TILE"]])
    """The block of each variant, likewise."""
    constraints: dvfs.ConstraintsRequest = dvfs.ConstraintsRequest()

    @model_validator(mode="after")
    def _shapes(self) -> SweepRequest:
        if self.registers is not None and self.registers_per_thread is not None:
            raise ValueError("give either registers or registers_per_thread")
        if self.grid_stride and self.grids is None:
            raise ValueError("grid_stride needs grids: give both")
        if self.defines is not None and self.cuda is None:
            raise ValueError("defines needs cuda: PTX knows no macros any more")
        if self.defines is not None and (self.blocks is not None or self.grids is not None):
            raise ValueError("with defines, block_formula and grid_formula give the launches")
        if self.defines is None and (self.grid_formula or self.block_formula):
            raise ValueError("grid_formula and block_formula need defines")
        return self


class Shape(shared.Answer):
    """A launch shape on a GPU."""

    gpu: str
    grid: list[int]
    block: list[int]
    registers_per_thread: int | None
    """As requested by `registers`; null: the kernel's own count."""
    defines: dict[str, int | str] | None
    """Values of the macros; null: the source as it is."""

    def __str__(self) -> str:
        capped = self.registers_per_thread
        registers = "" if capped is None else f", {capped} registers"
        macros = ", ".join(f"{name}={value}" for name, value in (self.defines or {}).items())
        launch = (
            f"{reports.dims(self.grid)} blocks of {reports.dims(self.block)}" if self.grid else ""
        )
        marked = f"{macros}:" if macros and launch else macros
        return " ".join(filter(None, (self.gpu, marked, launch))) + registers


class SweepPoint(Shape):
    """The kernel at one shape."""

    threads: int
    occupancy: float
    limiter: str
    waves: float
    time: shared.Time
    power: shared.Power
    energy: shared.Energy
    edp_joule_seconds: float
    energy_saved_percent: float
    """Against the reference."""
    time_saved_percent: float
    """Against the reference."""
    regime: Literal["compute", "memory", "latency", "launch"] | None
    spills: bool
    """Too few registers: the kernel would spill; the cost is not predicted."""
    pareto: bool
    """In `pareto` of the answer."""
    feasible: bool
    """It satisfies all constraints."""
    apart: str | None
    """Why it is not ranked with the points of other GPUs; null: it is."""
    unproven: str | None
    """Why it is not shown to compute what the launch computes; null: it is."""

    def marks(self) -> str:
        """What is special about it."""
        marks = {
            "pareto": self.pareto,
            "spills": self.spills,
            "not shown the same": self.unproven is not None,
            "breaks a constraint": not self.feasible,
        }
        return ", ".join(name for name, holds in marks.items() if holds)


class InfeasibleShape(Shape):
    """A shape that cannot be launched, or would not do the work, and why. A variant that cannot
    be compiled has no grid and no block."""

    reason: str
    field: str | None


class LeftOut(Shape):
    """A shape that is not shown to compute what the launch computes, and why."""

    reason: str
    line: int | None
    """Of the PTX, where the reason is at one line."""


class BestShape(Shape):
    """The feasible point best by one objective, beside the reference."""

    energy_saved_percent: float
    time_saved_percent: float
    no_difference: bool
    """By this objective the model does not tell it from the reference: less than
    `resolution_percent` lies between them, twice that of EDP and three times of ED2P."""


class BestShapes(shared.Answer):
    """The best feasible point by each objective."""

    min_energy: BestShape
    min_edp: BestShape
    min_ed2p: BestShape
    max_performance: BestShape
    min_power: BestShape


class SweepReference(Shape):
    """The request's own launch on its first GPU that is ranked."""

    time: shared.Time
    power: shared.Power
    energy: shared.Energy


class SweepModel(shared.Answer):
    """What answered for one GPU."""

    gpu: str
    clocks: shared.ClocksAnswer
    model: shared.ModelReference
    time_model: str
    analysis: Literal["symbolic", "executed"]
    """`auto` works shapes out symbolically where that agrees with executing the reference launch,
    else executes every shape."""


class SweepAnswer(shared.Reported):
    """Answer of ``POST /sweep``. Points are in the order of GPUs, blocks, grids, registers."""

    kernel: shared.KernelName
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    models: list[SweepModel]
    reference: SweepReference
    points: list[SweepPoint]
    infeasible: list[InfeasibleShape]
    left_out: list[LeftOut]
    """Shapes that are not shown to compute what the launch computes: not predicted
    (`include_unproven` asks for them)."""
    pareto: list[Shape]
    """The Pareto set of time and energy, the fastest first. Of points that the model does not tell
    apart, the fastest."""
    best: BestShapes
    resolution_percent: float
    """Differences of time or energy below this are not told apart by the model."""
    apart: list[predict.Apart]
    """GPUs with points that are not to be ranked with the others, and why."""
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """What may be another program, the cheapest points beside the reference, the best by each
        objective, the Pareto set, and what was left out or refused."""
        doubts = [each for each in self.warnings if each.code in ANOTHER_PROGRAM]
        others = [each for each in self.warnings if each.code not in ANOTHER_PROGRAM]
        columns = [
            reports.Column("shape", str),
            reports.Column("occupancy", lambda point: f"{point.occupancy:.0%}", figures=True),
            reports.Column("waves", lambda point: f"{point.waves:g}", figures=True),
            *reports.costs(),
            reports.Column(
                "saved", lambda point: f"{point.energy_saved_percent:+.1f} %", figures=True
            ),
            reports.Column("", lambda point: point.marks()),
        ]
        apart = f"no difference (the model tells {self.resolution_percent:g} % apart)"
        best = (
            f"{reports.words(name)}: "
            f"{apart if each.no_difference else f'{each}, {reports.saved(each)}'}"
            for name, each in self.best
        )
        return [
            reports.Title(self.kernel.demangled),
            reports.Warnings(doubts),
            reports.Line(
                f"reference {self.reference}: {', '.join(reports.figures(self.reference))}"
            ),
            reports.Table(columns, sorted(self.points, key=lambda point: point.energy.joules)),
            *map(reports.Line, best),
            reports.Line(f"Pareto set of time and energy: {', then '.join(map(str, self.pareto))}"),
            reports.Folded(
                "not", [f"{each}: {each.reason}" for each in self.infeasible], most=MOST_POINTS
            ),
            reports.Folded(
                "left out",
                [f"{each}: {each.reason}" for each in self.left_out],
                note="--all-shapes predicts shapes that are not shown to compute the same",
            ),
            reports.Warnings(others),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each shape; macros are columns."""
        for point in self.points:
            plain = point.data()
            yield {**(plain.pop("defines") or {}), **plain}

    def plot(self) -> Figure:
        """Time against energy, with the Pareto set; raises MissingExtraError without matplotlib."""
        from wattcast.predictor import plots

        points = [(str(each), each.time, each.energy, each.pareto) for each in self.points]
        return plots.of_points(points, self.kernel.demangled)


ANOTHER_PROGRAM = ("block_size_in_code", "variants_not_compared")
"""Codes of the warnings that shapes may be, or are, other programs: they come first."""


# What goes into ``POST /predict/batch`` and what comes out: one kernel, many launches.

MOST_LAUNCHES = 10_000
"""Launches of one request."""


class BatchRequest(
    shared.Conditions, shared.TimingChoice, shared.KernelCode, shared.Asks["BatchAnswer"]
):
    """Body of ``POST /predict/batch``."""

    model_config = shared.examples("BatchRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    launches: Annotated[list[shared.LaunchRequest], Field(min_length=1, max_length=MOST_LAUNCHES)]
    analysis: Mode = "symbolic"
    """How trip counts and activity are found out. `symbolic` takes about a millisecond a launch,
    and runs what it cannot prove as `auto` does; `executed` runs sampled blocks of each one."""
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
    """One launch. Its numbers are those of ``POST /predict`` for the same ``analysis``, where that
    tells any."""

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
