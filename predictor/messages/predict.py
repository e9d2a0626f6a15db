"""Body and answer of ``POST /predict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, model_validator

from wattcast.features.launch import L2State
from wattcast.models.intervals import quantity
from wattcast.models.speed import Measure, Unit
from wattcast.models.time.measured_work import Runtime
from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages.explain import ShapExplanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class WorkRequest(shared.Message):
    """What a profiler counted of one launch, over all its threads: instead of its PTX."""

    dram_bytes: shared.Count
    """Read and written between L2 and device memory."""
    int_ops: shared.Count
    """Thread-level integer instructions."""
    flops_sp: shared.Count = 0.0
    """Single precision; a fused multiply-add is two."""
    flops_dp: shared.Count = 0.0
    """Double precision."""
    runtime: Runtime = "unknown"
    """How the kernel was compiled, if known."""


_OF_A_KERNEL = (
    "kernel",
    "loops",
    "analysis",
    "analysis_seconds",
    "analysis_effort",
    "registers_per_thread",
    "static_shared_bytes",
    "time_model",
    "known",
    "details",
)


"""Members of a request that only a kernel's code gives a meaning."""


def _default(name: str) -> object:
    return PredictRequest.model_fields[name].get_default(call_default_factory=True)


class MeasuredToo(shared.KernelTiming):
    """A kernel of which something was measured."""

    work: WorkRequest | None = None
    """Measured work of the launch; or give `ptx` or `cuda`."""
    known: Annotated[list[shared.KnownRequest], Field(max_length=64)] = Field(
        default_factory=list[shared.KnownRequest]
    )
    """Measured launches of this kernel. They correct the predicted time and power, and more so the
    more similar they are."""


class PredictRequest(
    shared.Conditions, shared.OwnOrLike, MeasuredToo, shared.Asks["PredictAnswer | PredictAnswers"]
):
    """Body of ``POST /predict``. Exactly one of ``gpu`` and ``gpus`` is given."""

    model_config = shared.examples("PredictRequest")

    model: shared.ModelChoice = "auto"
    """Power model: `auto` is the promoted one, else the one that, by its card, does best on kernels
    left out of training."""
    explain: Literal["shap"] | None = None
    """Adds each feature's share of the power to the answer."""
    details: bool = False
    """Adds `speed_of_light`: how near each unit comes to its peak."""

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """What a kernel may come as."""
        return ("ptx", "cuda", "work")

    @model_validator(mode="after")
    def _known_of_one_gpu(self) -> PredictRequest:
        if self.known and self.gpus is not None:
            raise ValueError("known launches are those of one gpu, not of several")
        return self

    @model_validator(mode="after")
    def _work_stands_alone(self) -> PredictRequest:
        if self.work is None:
            return self
        given = [name for name in _OF_A_KERNEL if getattr(self, name) != _default(name)]
        if self.launch.arguments:
            given.append("launch.arguments")
        if given:
            raise ValueError(
                f"{', '.join(given)}: not allowed with measured work, which has no kernel"
            )
        return self


class Trust(shared.Answer):
    """What an answer is worth, by one rule (docs/method.md)."""

    mark: Literal["measured here", "measured board", "estimated board", "guess"]
    why: str


class Apart(shared.Answer):
    """A GPU whose answer is not to be ranked with the others."""

    gpu: str
    why: str


class UnitSpeed(shared.Answer):
    """How near one unit of the GPU comes to its peak."""

    unit: Unit
    name: str
    """What people call it."""
    share: float
    """Of its slots that are taken, 0 to 1."""
    achieved: float
    """What it does for the launch a second: bytes that DRAM, L2 and L1 move and that lanes ask of
    shared memory, operations of active lanes (a multiply-add is two), warp instructions issued. At
    most `share` x `peak`."""
    peak: float
    """What the hardware does at most, at these clocks."""
    measure: Measure
    """Unit of `achieved` and `peak`."""


class RooflinePoint(shared.Answer):
    """A launch under the roof of one precision."""

    precision: Unit
    operations: float
    """A multiply-add is two."""
    intensity: float | None
    """Operations for each byte of device memory; null if it moves none."""
    achieved: float
    """Operations a second."""
    peak: float
    """The flat roof: operations a second at most."""

    def under(self, dram_peak: float) -> str:
        """Where it lies, with a device memory of so many bytes a second."""
        measure = "op" if self.precision == "int" else "FLOP"
        achieved = quantity(self.achieved, f"{measure}/s")
        if self.intensity is None:
            roof, where = self.peak, "no device memory is moved"
        else:
            ridge = self.peak / dram_peak
            roof = min(self.peak, self.intensity * dram_peak)
            side = "memory" if self.intensity < ridge else "compute"
            where = (
                f"{self.intensity:.3g} {measure} for each byte of device memory, under the "
                f"{side} roof (ridge {ridge:.3g})"
            )
        return (
            f"roofline {self.precision}: {where}; {achieved} of {quantity(roof, f'{measure}/s')}, "
            f"{self.achieved / roof:.1%}"
        )


BAR = 20
"""Characters of a bar at 100 %."""
MEASURES = {"byte/s": "B/s", "flop/s": "FLOP/s", "operation/s": "op/s", "instruction/s": "inst/s"}


class Roofline(shared.Answer):
    """Peaks of arithmetic and of device memory, and where the launch lies under them."""

    dram_bytes: float
    dram_peak: float
    """The slanted roof: bytes a second at most."""
    points: list[RooflinePoint]
    """By precision; of integer work where there is no floating-point work."""


class SpeedOfLight(shared.Answer):
    """How near a launch comes to what the hardware can do."""

    bound: str | None
    """`time_model.bound`."""
    seconds: float
    """What shares refer to: the predicted time. Where measured launches or another time model tell
    less than the counts take at peak rates, what they take."""
    units: list[UnitSpeed]
    """Units the GPU has, memory first."""
    roofline: Roofline

    def report(self) -> reports.Report:
        """Shares of the units that are used, and the points under the roofline."""
        used = [unit for unit in self.units if unit.share > 0]
        columns = [
            reports.word("unit", "name"),
            reports.share("share", "share"),
            reports.Column("of its peak", lambda unit: "█" * round(BAR * unit.share) or "▏"),
            reports.Column(
                "achieved", lambda unit: quantity(unit.achieved, MEASURES[unit.measure]), True
            ),
            reports.Column("peak", lambda unit: quantity(unit.peak, MEASURES[unit.measure]), True),
        ]
        idle = [unit.name for unit in self.units if not unit.share]
        bound = self.bound or "what this time model does not tell"
        return [
            reports.Line(f"speed of light: bound by {bound}"),
            reports.Table(columns, used),
            *([reports.Line(f"idle: {', '.join(idle)}")] if idle else []),
            *(reports.Line(point.under(self.roofline.dram_peak)) for point in self.roofline.points),
        ]


class OperatorFigures(shared.Answer):
    """What an operator does, and how near it comes to the board's peaks."""

    asked: dict[str, Any]
    """The operator as asked, with its defaults."""
    framework: str
    """Whose kernels were measured."""
    bound: Literal["compute", "memory"]
    """The longer side of the roofline."""
    roofline_seconds: float
    """The least it takes at peak rates."""
    flops: float
    """A multiply-add is two."""
    flops_per_second: float
    peak_flops_per_second: float
    """Of the format, as the vendor prints it."""
    bytes: float
    """Weights or cache, and activations, each moved once."""
    bytes_per_second: float
    """What device memory has to supply: bytes beyond the L2 cache, over the time; a repeated call
    finds the rest there."""
    peak_bytes_per_second: float
    joules_per_flop: float | None
    peak_joules_per_flop: float
    """At peak rate and the board's power limit."""
    sustained_watts: float | None
    """What the board draws when such calls follow each other without a pause: for sums of
    operators. `power` is what NVML read while the call was repeated for at most a second, which is
    less for calls below 0.1 ms and after a pause. Null where no model tells it."""

    def lines(self) -> list[reports.Block]:
        """Its rates beside the board's peaks."""
        work = f"{quantity(self.flops_per_second, 'FLOP/s')} of "
        work += quantity(self.peak_flops_per_second, "FLOP/s")
        moved = f"{quantity(self.bytes_per_second, 'B/s')} of "
        moved += quantity(self.peak_bytes_per_second, "B/s")
        lines: list[reports.Block] = [reports.Line(f"{work}, {moved}; bound by {self.bound}")]
        if self.joules_per_flop is not None:
            lines.append(
                reports.Line(
                    f"{self.joules_per_flop * 1e12:.3g} pJ a FLOP; "
                    f"{self.peak_joules_per_flop * 1e12:.3g} pJ at peak rate and the power limit"
                )
            )
        if self.sustained_watts is not None:
            sustained = quantity(self.sustained_watts, "W")
            lines.append(reports.Line(f"without a pause between calls: {sustained}"))
        return [*lines, reports.Line(f"kernels of {self.framework}")]


class PredictAnswer(shared.Reported):
    """Answer of ``POST /predict`` for one GPU."""

    id: UUID
    """For GET /explain and GET /predictions/{id}."""
    gpu: str
    kernel: shared.KernelName | None
    """Null for measured work."""
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    clocks: shared.ClocksAnswer
    """Those the board runs at, under its power limit."""
    l2: L2State | None = None
    """State of L2 at the start of the launch. Null for measured work."""
    power_limit_watts: float | None = None
    """Null if no model tells the power."""
    power: shared.Power | None
    """Null if no model can answer; see the warnings."""
    time: shared.Time | None
    """Null if no time model applies."""
    energy: shared.Energy | None
    model: shared.ModelReference | None
    components: dict[str, float] | None = None
    """Watts by component of the GPU (physical models); they sum to the power."""
    time_model: shared.TimeModel | None
    features: dict[str, float | None]
    """The power model's schema; null: missing."""
    schema_id: str | None = Field(alias="schema")
    """Feature schema of ``features``."""
    occupancy: shared.Occupancy | None
    """Null for measured work."""
    waves: float | None = None
    """Rounds in which the blocks of the grid pass through the GPU; left out for measured work."""
    registers: shared.Registers | None
    """Null for measured work."""
    trip_counts: list[shared.LoopTrips]
    needs: list[shared.Need] = Field(default_factory=list)
    """Arguments to give first, the most important one first."""
    trust: Trust | None = None
    """Null if no model tells the power."""
    coverage: shared.Coverage | None = None
    """Null where nothing rests on counts of activity."""
    warnings: list[shared.WarningLine]
    explanation: ShapExplanation | None = None
    """Where `explain` was asked for; left out otherwise."""
    operator: OperatorFigures | None = None
    """Of a library operator; left out for a kernel."""
    speed_of_light: SpeedOfLight | None = None
    """Where `details` were asked for; left out otherwise."""

    @property
    def name(self) -> str:
        """The kernel's name for people."""
        if self.operator is not None:
            return str(self.operator.asked["name"])
        return "measured work" if self.kernel is None else self.kernel.demangled

    @property
    def bound(self) -> str | None:
        """What limits the launch, in words."""
        return (self.time_model.bound or self.time_model.regime) if self.time_model else None

    def report(self) -> reports.Report:
        """Power, time and energy, and what they rest on."""
        cold = ", L2 cold at the start" if self.l2 == "cold" else ""
        named = [("power", self.power), ("time", self.time), ("energy", self.energy)]
        blocks: list[reports.Block] = [
            reports.Title(self.name, f"on {self.gpu}"),
            *(reports.Line(str(need), "urgent") for need in self.needs),
            reports.Quantities(named),
            reports.Line(f"at {reports.megahertz(self.clocks)}{cold}"),
        ]
        if self.trust is not None:
            blocks.append(reports.Line(f"trust: {self.trust.mark} ({self.trust.why})"))
        if (model := self.model) is not None:
            version = f"{model.family} version {model.version}"
            blocks.append(reports.Line(f"power model {version} on {model.schema_id}"))
        if self.time_model is not None:
            bound = f", bound by {self.bound}" if self.bound else ""
            blocks.append(reports.Line(f"time model {self.time_model.family}{bound}"))
        if self.components is not None:
            blocks.append(reports.Shares("power by component", self.components, "W"))
        if self.occupancy is not None:
            occupancy = f"occupancy {self.occupancy.occupancy:.0%}"
            blocks.append(
                reports.Line(f"{occupancy}, limited by {self.occupancy.limiter}; {self.registers}")
            )
        blocks += [
            reports.Line(
                f"loop {trip.loop or '?'} (line {trip.line}): {trip.trips:g} trips, {trip.how}"
            )
            for trip in self.trip_counts
        ]
        if self.operator is not None:
            blocks += self.operator.lines()
        if self.explanation is not None:
            blocks += self.explanation.lines()
        blocks.append(reports.Warnings(self.warnings))
        return [*blocks, *(self.speed_of_light.report() if self.speed_of_light else ())]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """One row."""
        plain = self.model_dump(include={"clocks", "power", "time", "energy"})
        yield {
            "gpu": self.gpu,
            "kernel": self.name,
            **plain.pop("clocks"),
            "power_limit_watts": self.power_limit_watts,
            **plain,
            "trust": self.trust.mark if self.trust else None,
            "bound": self.bound,
            "model": self.model.family if self.model else None,
            "occupancy": self.occupancy.occupancy if self.occupancy else None,
            "waves": self.waves,
            "registers_per_thread": self.registers.value if self.registers else None,
            **{f"{name}_watts": watts for name, watts in (self.components or {}).items()},
        }

    def plot(self) -> Figure:
        """Power by component, and the intervals. A matplotlib figure; raises MissingExtraError
        without matplotlib (the extra ``notebook``)."""
        from wattcast.predictor import plots

        return plots.of_prediction(self)


class PredictAnswers(shared.Reported):
    """Answer of ``POST /predict`` for several GPUs, in the order asked."""

    predictions: list[PredictAnswer]
    apart: list[Apart] = Field(default_factory=list)
    """GPUs that are not to be ranked with the others, and why."""

    def report(self) -> reports.Report:
        """One after the other."""
        return [block for each in self.predictions for block in each.report()]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each GPU."""
        for each in self.predictions:
            yield from each.rows()
