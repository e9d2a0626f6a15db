"""Answers of ``GET /explain``, for power and for time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pydantic import Field

from wattcast.models.intervals import quantity
from wattcast.predictor import messages, reports

if TYPE_CHECKING:
    import pandas as pd


class _Explained(messages.Answer):
    """What a part of an explanation is."""

    feature: str
    value: float | None
    """The feature's value; null is missing."""
    meaning: str
    """What it is, in one sentence."""
    changeable: bool
    """Whether the programmer can change it."""


class Contribution(_Explained):
    """One feature's share: watts it adds to (or takes from) the base value."""

    watts: float
    joules: float | None
    """Watts over the predicted time; null without one."""


class LocalContribution(Contribution):
    """One feature's weight in the local linear model, for the range ``condition``."""

    condition: str
    spread: float | None = None
    """Standard deviation of the weight over the seeds, in watts."""


class ShapExplanation(messages.Answer):
    """Exact SHAP: ``base_watts`` plus all contributions is ``prediction_watts``."""

    method: Literal["shap"]
    target: Literal["power"]
    model: messages.ModelReference
    prediction_watts: float
    base_watts: float
    contributions: list[Contribution]
    """Largest first."""

    def lines(self, most: int = 6) -> list[reports.Block]:
        """The features that move the prediction most, in watts."""
        of_features = self.model.family != "physical"  # components have watts and no value
        lines: list[reports.Block] = [reports.Line(f"base {self.base_watts:.2f} W")]
        for part in self.contributions[:most]:
            value = "missing" if part.value is None else f"{part.value:g}"
            named = f"{part.feature} = {value}" if of_features else part.feature
            lines.append(reports.Line(f"  {part.watts:+8.2f} W  {named}"))
        if rest := self.contributions[most:]:
            total = sum(part.watts for part in rest)
            lines.append(reports.Line(f"  {total:+8.2f} W  {len(rest)} other features"))
        return lines


class LimeStability(messages.Answer):
    """How far other seeds say the same."""

    seeds: int
    top: int
    """Features that count as the strongest."""
    selection: float
    """Share of the strongest features that two seeds have in common, mean over all pairs (variables
    stability index)."""
    sign_agreement: float
    """Share of seeds that give a strong feature its usual sign, mean over features."""


class LimeExplanation(messages.Answer):
    """LIME: intercept plus all contributions is ``local_prediction_watts``, an approximation."""

    method: Literal["lime"]
    target: Literal["power"]
    model: messages.ModelReference
    prediction_watts: float
    """The model's own answer."""
    intercept_watts: float
    local_prediction_watts: float
    r_squared: float
    """How well the local linear model fits."""
    samples: int
    seed: int
    stability: LimeStability | None = None
    """Null unless several seeds are asked for."""
    contributions: list[LocalContribution]
    """Largest first."""


class ShapAnswer(ShapExplanation):
    """Answer of ``GET /explain?method=shap``."""

    prediction_id: UUID


class LimeAnswer(LimeExplanation):
    """Answer of ``GET /explain?method=lime``."""

    prediction_id: UUID


class TimeModelReference(messages.Answer):
    """The time model that answered; it has no artifact."""

    family: str


class TimeContribution(_Explained):
    """What a part of the time model adds to the time."""

    seconds: float


class TimeShare(TimeContribution):
    """A part's Shapley value."""

    binding_seconds: float | None
    """Seconds that the launch would lose first were this part faster (its value times the
    derivative of the time); these sum to the time too. Null where the model tells no derivative."""


class LocalTimeContribution(TimeContribution):
    """A part's weight in the local linear model."""

    condition: str
    spread: float | None = None


class TimeShapAnswer(messages.Answer):
    """Exact Shapley values: ``base_seconds`` plus all contributions is ``prediction_seconds``."""

    prediction_id: UUID
    method: Literal["shap"]
    target: Literal["time"]
    model: TimeModelReference
    prediction_seconds: float
    base_seconds: float
    """0 if there is no work."""
    contributions: list[TimeShare]
    """Largest first."""


class TimeLimeAnswer(messages.Answer):
    """LIME: intercept plus all contributions is ``local_prediction_seconds``."""

    prediction_id: UUID
    method: Literal["lime"]
    target: Literal["time"]
    model: TimeModelReference
    prediction_seconds: float
    intercept_seconds: float
    local_prediction_seconds: float
    r_squared: float
    samples: int
    seed: int
    stability: LimeStability | None = None
    contributions: list[LocalTimeContribution]
    """Largest first."""


Explanation = ShapAnswer | LimeAnswer | TimeShapAnswer | TimeLimeAnswer
"""Answers of ``GET /explain``."""


# What ``GET /predictions/{id}/hotspots`` answers: where a launch spends energy and time.


class Cost(messages.Answer):
    """Joules and seconds of a part of the launch, and its shares of the whole."""

    joules: float
    seconds: float
    energy_share: float
    """0 to 1."""
    time_share: float
    """0 to 1."""


class Hotspot(Cost):
    """One place in the code."""

    rank: int
    """1 costs the most energy."""
    line: int
    """Line in the PTX, or in the source for `source_lines`."""
    warp_executions: float
    """Warp instructions executed at this place."""
    machine_instructions: float
    """The same after expansion to machine code."""
    active_lane_fraction: float
    """Share of active lanes, 0 to 1."""
    components: dict[str, float]
    """Joules by component of the GPU, largest first."""
    unit_cycles: dict[str, float] = Field(default_factory=dict)
    """Core cycles that it takes of each unit at its peak, on all SMs alike."""

    @property
    def mostly(self) -> str:
        """The component that takes most, beside those drawn for the time alone."""
        return next((name for name in self.components if name not in STANDING), "")


STANDING = ("idle", "clock")
"""Components that a line draws for the time it takes, whatever it does."""


class BlockHotspot(Hotspot):
    """A basic block."""

    function: str
    block: int
    label: str | None
    last_line: int
    """Its last line in the PTX."""
    source_line: int | None

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.label or self.block}, from line {self.line}"


class LineHotspot(Hotspot):
    """A line of the PTX."""

    source_line: int | None
    text: str

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return reports.short(f"{self.line}: {self.text}")


class SourceHotspot(Hotspot):
    """A line of the source, as ``.loc`` tells it."""

    file: str | None
    text: str | None = None
    """The line, where the reader has its file; left out otherwise."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return reports.short(f"{self.file or 'source'}:{self.line}  {self.text or ''}".rstrip())


class Rest(messages.Answer):
    """What is not listed, summed up."""

    rows: int
    joules: float
    seconds: float


class Blocks(messages.Answer):
    """Basic blocks, the costliest first."""

    rows: list[BlockHotspot]
    rest: Rest


class Lines(messages.Answer):
    """PTX lines, the costliest first."""

    rows: list[LineHotspot]
    rest: Rest


class SourceLines(messages.Answer):
    """Source lines, the costliest first; empty where the PTX has no line information."""

    rows: list[SourceHotspot]
    rest: Rest


class HotspotsAnswer(messages.Reported):
    """Each of ``blocks`` and ``lines`` sums, with ``start`` and its ``rest``, to the launch."""

    prediction_id: UUID
    gpu: str
    kernel: messages.KernelName
    clocks: messages.ClocksAnswer
    seconds: float
    """Predicted, of the launch."""
    joules: float
    """Predicted, of the launch."""
    shares_by: messages.ModelReference
    """The physical model that gives the shares."""
    cycles: float
    """The same seconds in core cycles."""
    unit_cycles: dict[str, float]
    """Those of each unit that the instructions take at its peak, on all SMs alike: over `cycles`
    its share in `speed_of_light` of the prediction."""
    start: Cost
    """Starting the launch and its blocks; belongs to no instruction."""
    blocks: Blocks
    lines: Lines
    source_lines: SourceLines
    warnings: list[messages.WarningLine]

    def report(self) -> reports.Report:
        """The costliest blocks, PTX lines and source lines."""
        start = f"starting the launch {self.start.energy_share:.1%} of the energy"
        return [
            reports.Title(self.kernel.demangled, f"on {self.gpu}"),
            reports.Line(f"{quantity(self.joules, 'J')} in {quantity(self.seconds, 's')}; {start}"),
            *(
                reports.Table(
                    [
                        reports.share("energy", "energy_share"),
                        reports.share("time", "time_share"),
                        reports.word("beside idle", "mostly"),
                        reports.word(heading, "place"),
                    ],
                    ranking.rows,
                    most=len(ranking.rows),
                    more=ranking.rest.rows,
                )
                for heading, ranking in self._rankings()
            ),
            reports.Warnings(self.warnings),
        ]

    def resources(self) -> reports.Report:
        """Core cycles that lines take of each unit: of PTX, and of the source where it is known."""
        units = list(self.unit_cycles)
        whole = f"{quantity(self.seconds, 's')} are {self.cycles:,.0f} core cycles; below, those "
        blocks: list[reports.Block] = [
            reports.Line(
                f"{whole}that each line takes of each unit at its peak, spread over all SMs"
            )
        ]
        shares = {unit: f"{cycles / self.cycles:.1%}" for unit, cycles in self.unit_cycles.items()}
        for heading, ranking in self._rankings()[1:]:
            rows = [
                ("all", {unit: _cycles(cycles) for unit, cycles in self.unit_cycles.items()}),
                ("share of the time", shares),
                *(
                    (row.place, {unit: _cycles(part) for unit, part in row.unit_cycles.items()})
                    for row in ranking.rows
                ),
            ]
            columns = [
                reports.Column(unit, lambda row, unit=unit: row[1].get(unit, "-"), figures=True)  # type: ignore[misc]
                for unit in units
            ]
            blocks.append(
                reports.Table([*columns, reports.Column(heading, lambda row: row[0])], rows)
            )
        return blocks

    def _rankings(self) -> list[tuple[str, Blocks | Lines | SourceLines]]:
        named: list[tuple[str, Blocks | Lines | SourceLines]] = [
            ("block", self.blocks), ("PTX line", self.lines), ("source line", self.source_lines),
        ]  # fmt: skip
        return [(heading, ranking) for heading, ranking in named if ranking.rows]

    def rows(self, by: Ranking = "lines") -> Iterator[Mapping[str, Any]]:
        """A row for each PTX line, source line or basic block, the costliest first."""
        return (row.model_dump() for row in getattr(self, by).rows)

    def to_frame(self, by: Ranking = "lines") -> pd.DataFrame:
        """The same as a pandas table. Raises MissingExtraError without pandas."""
        return reports.frame(self.rows(by))


Ranking = Literal["lines", "source_lines", "blocks"]


def _cycles(cycles: float) -> str:
    return f"{cycles:,.0f}" if cycles >= 100 else f"{cycles:.3g}"
