"""What goes into ``POST /applications`` beside the trace, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, Discriminator, Field, RootModel, Tag
from pydantic_core import to_json

from wattcast.models.intervals import quantity
from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages import advise, cost, dvfs, language_model, operators, predict

How = Literal["code", "code, other launch", "operator", "operator, by time", "name", "copy"]
"""How the power of a launch is known.

``code``: from its PTX; ``code, other launch``: from that of the same kernel launched otherwise;
``operator``: a library's product or attention at the sizes that the trace tells; ``operator, by
time``: at the size that takes as long as the launch; ``name``: from launch, name and data type
alone; ``copy``: no kernel but a copy or memset."""


class ApplicationRequest(shared.Message):
    """What holds for every launch of a trace."""

    gpu: shared.Name | None = None
    """GPU id or alias. Default: by the name that the trace tells."""
    gpus: dict[str, shared.Name] = Field(default_factory=dict[str, shared.Name], max_length=64)
    """GPU by the number of its device in the trace, where they differ."""
    clocks: shared.Clocks | None = None
    """Clocks the boards ran at. Default: the GPU's own; traces tell none."""
    model: shared.ModelChoice = "auto"
    board: shared.Board = None
    tariff: cost.Tariff | None = None
    """Without it, the price is null."""
    grams_co2_per_kwh: cost.Amount | None = None
    """Without it, CO2 is null."""
    most_slowdown: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.05
    """How many times as long the kernels may take at the clock advised."""
    advice: Annotated[int, Field(strict=True, ge=0, le=20)] = 3
    """Kernels with code that get advice, those of the most energy first."""
    launches: bool = False
    """Adds a row for every launch."""


class Covered(shared.Answer):
    """Launches whose power is known in one way."""

    how: How
    launches: int
    seconds: float
    """Sum over launches."""
    time_share: float
    """Of all launches' time, 0 to 1."""
    joules: float
    energy_share: float
    """Of all energy, gaps included."""


class KernelRow(shared.Answer):
    """All launches of one kernel on one GPU."""

    name: str
    device: int
    how: How
    """Of most of its time."""
    family: str | None
    """By its name; null with code."""
    data_type: str | None
    """By its name; null with code or where not told."""
    launches: int
    seconds: float
    joules: float
    low: float
    high: float
    energy_share: float
    """Of all energy, gaps included."""
    watts: float
    """Mean over its time, if it ran alone."""
    trust: predict.Trust
    why: str
    """What the power rests on."""
    code: str | None
    """File that its code was found in."""
    advice: list[advise.Advice] = Field(default_factory=list[advise.Advice])
    """As `GET /predictions/{id}/advice`."""


class Row(shared.Answer):
    """Launches of one operator, stream or step; the name is null for those of none."""

    name: str | None
    launches: int
    seconds: float
    """Sum over launches."""
    joules: float
    energy_share: float


class StreamRow(Row):
    """Launches of one stream."""

    device: int


class Gaps(shared.Answer):
    """Time in which nothing ran, at the board's idle power."""

    seconds: float
    joules: float
    low: float
    high: float
    energy_share: float


class Timeline(shared.Answer):
    """Mean power over stretches of time; they keep the joules."""

    start_seconds: list[float]
    """From the first launch of the trace."""
    seconds: list[float]
    watts: list[float]
    busy: list[float]
    """Share of the stretch in which something ran."""

    def picture(self, label: str, top: float, span: float) -> reports.Picture:
        """Watts over time as an SVG, from 0 to ``top`` watts over ``span`` seconds."""
        points = []
        for start, length, watts in zip(self.start_seconds, self.seconds, self.watts, strict=True):
            height = HEIGHT * (1 - watts / top)
            points += [
                f"{WIDTH * start / span:.1f},{height:.1f}",
                f"{WIDTH * (start + length) / span:.1f},{height:.1f}",
            ]
        return reports.Picture(
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{escape(label)}">'
            f'<polyline points="{" ".join(points)}" fill="none" stroke="#0060c0"/>'
            f'<text x="0" y="{HEIGHT + 15}" font-size="12">{escape(label)}, '
            f"{quantity(span, 's')}</text></svg>"
        )


WIDTH, HEIGHT = 820, 180
"""Of the picture of power over time, in pixels."""


class DeviceAnswer(shared.Answer):
    """One GPU of the trace."""

    device: int
    gpu: str
    name: str
    """As the trace calls it; may be empty."""
    launches: int
    span_seconds: float
    """From its first launch to the end of its last."""
    busy_seconds: float
    """In which something ran."""
    shared_seconds: float
    """In which more than one launch ran."""
    limited_seconds: float
    """In which several together reached the limit."""
    idle_watts: float
    standing_watts: float
    """With clocks up and nothing to do."""
    limit_watts: float
    mean_watts: float
    energy: shared.Energy
    gaps: Gaps
    timeline: Timeline

    def report(self) -> reports.Report:
        """Its energy, and its power over time."""
        gaps, span = self.gaps, self.span_seconds or 1.0
        top = max([self.limit_watts, *self.timeline.watts])
        label = f"Power of GPU {self.device} over time, 0 to {top:.0f} W"
        return [
            reports.Line(
                f"GPU {self.device} {self.gpu}: {reports.value_of(self.energy)}, mean "
                f"{quantity(self.mean_watts, 'W')}, busy {self.busy_seconds / span:.1%} of the "
                f"time; gaps {quantity(gaps.seconds, 's')}, {quantity(gaps.joules, 'J')} at "
                f"{quantity(self.idle_watts, 'W')}"
            ),
            self.timeline.picture(label, top, span),
        ]


class ClockPoint(shared.Answer):
    """The mix of kernels at one core clock. Ratios to the clocks of the trace."""

    core_mhz: float
    memory_mhz: float
    time: float
    energy: float


class MixClock(shared.Answer):
    """The best clock for the kernels that have code, all launched as they were."""

    device: int
    step: str | None
    """Of the launches of one step; null: of all."""
    covers: float
    """Share of the launches' time that has code."""
    points: list[ClockPoint]
    best: ClockPoint | None
    """Least energy within the slowdown; null: none."""
    power_limit_watts: float | None
    """A power limit that leaves the mix about this clock: its highest power there; null where the
    board cannot be set to it."""


class LaunchColumns(shared.Answer):
    """One entry for each launch, in order of start; ``stream`` and ``kernel`` are places in these
    lists of the answer."""

    start_seconds: list[float]
    seconds: list[float]
    joules: list[float]
    device: list[int]
    stream: list[int]
    kernel: list[int]


MOST_NAME = 70
"""Characters of a kernel's name that are shown."""


def _short(row: Any) -> str:
    name = "(none)" if row.name is None else str(row.name)
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 3] + "..."


SUMS = (
    reports.count("launches", "launches"),
    reports.amount("time", "seconds", "s"),
    reports.amount("energy", "joules", "J"),
    reports.share("share", "energy_share"),
)


class ChangeSums(shared.Answer):
    """One of two traces as a whole."""

    joules: float
    seconds: float
    """From the first launch to the end of the last."""
    launches: int
    gap_joules: float


class ChangeRow(shared.Answer):
    """Launches of one name in both traces; zeros where one has none."""

    name: str | None
    old_launches: int
    old_seconds: float
    old_joules: float
    new_launches: int
    new_seconds: float
    new_joules: float
    joules: float
    """New less old."""


class ApplicationChanges(shared.Answer):
    """What changed since an older trace; differences are new less old."""

    old: ChangeSums
    new: ChangeSums
    joules: float
    seconds: float
    kernels: list[ChangeRow]
    """By how much their joules changed."""
    operators: list[ChangeRow]

    def report(self, most: int) -> reports.Report:
        """Both traces, and the kernels that changed most."""
        joules = f"{quantity(self.old.joules, 'J')} -> {quantity(self.new.joules, 'J')}"
        seconds = f"{quantity(self.old.seconds, 's')} -> {quantity(self.new.seconds, 's')}"
        columns = [
            reports.Column("kernel", _short),
            reports.amount("energy before", "old_joules", "J"),
            reports.amount("now", "new_joules", "J"),
            reports.amount("change", "joules", "J"),
            reports.count("launches before", "old_launches"),
            reports.count("now", "new_launches"),
        ]
        return [
            reports.Title("Against the older trace"),
            reports.Line(f"{joules}, {seconds}"),
            reports.Table(columns, self.kernels, most=most),
        ]


class MeasuredEnergy(shared.Answer):
    """What a log of DCGM or Slurm says, beside the prediction."""

    source: Literal["dcgm", "slurm"]
    joules: float
    """Of the GPUs of the trace; mean power times the trace's span where the log has no times."""
    seconds: float | None
    """That the log covers."""
    ratio: float
    """Predicted over measured."""
    inside: bool
    """Of the prediction's interval."""
    note: str | None
    """What keeps the two from being the same."""

    def __str__(self) -> str:
        where = "inside" if self.inside else "outside"
        told = f"measured ({self.source}): {quantity(self.joules, 'J')}, {where} the interval; "
        told += f"predicted / measured {self.ratio:.3f}"
        return told + (f" ({self.note})" if self.note else "")


class ApplicationAnswer(shared.Reported):
    """Answer of ``POST /applications``."""

    source: str
    launches: int
    untimed: int
    """Launches that the trace gives no time; they are left out."""
    coverage: list[Covered]
    energy: shared.Energy
    power: shared.Power
    """Mean over all boards' spans, of all boards together."""
    span_seconds: float
    """From the first launch to the end of the last."""
    kwh: float
    price: cost.Price | None
    co2: cost.Carbon | None
    trust: predict.Trust
    covers: Literal["gpu_boards"]
    """Host, cooling and network are not included."""
    devices: list[DeviceAnswer]
    kernels: list[KernelRow]
    """By energy, the largest first."""
    operators: list[Row]
    streams: list[StreamRow]
    steps: list[Row]
    clocks: list[MixClock]
    launch_columns: LaunchColumns | None = None
    changes: ApplicationChanges | None = None
    """Where an older trace was given as `against`."""
    measured: MeasuredEnergy | None = None
    """Where a log was given as `energy`."""
    warnings: list[shared.WarningLine]

    def report(self, most: int = 10) -> reports.Report:
        """Coverage first, then the total, each GPU, kernels, operators, streams, steps, and what
        to do; ``most`` rows of each."""
        ways = ", ".join(
            f"{each.time_share:.1%} ({each.energy_share:.1%} of the energy) {HOWS[each.how]}"
            for each in self.coverage
        )
        interval = (
            f"({reports.interval_of(self.energy)}, {self.energy.level:.0%}), {self.kwh:.4g} kWh"
        )
        mean = f"{quantity(self.span_seconds, 's')}: mean {reports.value_of(self.power)}"
        columns = [reports.Column("kernel", _short), reports.word("known by", "how"), *SUMS]
        columns += [
            reports.amount("power", "watts", "W"),
            reports.Column("trust", lambda row: row.trust.mark),
        ]
        blocks: list[reports.Block] = [
            reports.Line(f"coverage of the time of {self.launches:,} launches: {ways}"),
            reports.Line(f"{reports.value_of(self.energy)} {interval} on the boards in {mean}"),
            *([reports.Line(str(self.measured))] if self.measured else []),
            reports.Line(f"trust: {self.trust.mark} ({self.trust.why})"),
            *cost.priced(self.price, self.co2),
            *(block for device in self.devices for block in device.report()),
            reports.Table(columns, self.kernels, most=most),
        ]
        streams = self.streams if len(self.streams) > 1 else []
        for name, rows in (("operator", self.operators), ("step", self.steps), ("stream", streams)):
            if any(row.name is not None for row in rows):
                blocks.append(reports.Table([reports.Column(name, _short), *SUMS], rows, most=most))
        blocks += [
            reports.Folded("to do:", self.to_do(), most=100),
            reports.Warnings(self.warnings),
        ]
        return [*blocks, *(self.changes.report(most) if self.changes else ())]

    def to_do(self) -> list[str]:
        """Advice as sentences, what saves most first within each kernel."""
        lines = []
        whole: dict[int, float] = {}
        for mix in self.clocks:
            if (best := mix.best) is None:
                continue
            if mix.step is None:
                whole[mix.device] = best.core_mhz
            elif best.core_mhz == whole.get(mix.device):
                continue  # a step with the clock of all of them needs no line
            where = f"GPU {mix.device}" + ("" if mix.step is None else f", {mix.step[:40]}")
            limit = ""
            if mix.power_limit_watts is not None:
                limit = f"; a power limit of about {mix.power_limit_watts:.0f} W comes to the same"
            lines.append(
                f"{where}: at {best.core_mhz:g} MHz the kernels with code ({mix.covers:.0%} of the "
                f"time) need {1 - best.energy:.1%} less energy and {best.time - 1:.1%} more "
                f"time{limit}"
            )
        for row in self.kernels:
            for advice in row.advice:
                percent = advice.gain.energy_percent
                lines.append(f"{row.name[:80]}: {advice.remedy} ({percent:.0f} % less energy)")
        return lines

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each kernel, the costliest first."""
        return (row.data() for row in self.kernels)

    def table(self) -> str:
        """Kernels as CSV; a gap row for each GPU, so that joules add up to the total."""
        rows = [{**row.data(), "trust": row.trust.mark} for row in self.kernels]
        gaps = ({**each.gaps.data(), "name": "(gaps)", "device": each.device}
                for each in self.devices)  # fmt: skip
        return reports.comma_separated(CSV_COLUMNS, [*rows, *gaps])

    def chrome(self, own: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Power over time as counter tracks of Chrome's trace format ("Trace Event Format", JSON
        object with ``ph`` C; microseconds), one for each GPU, beside the input's ``own`` events or,
        without any, the launches that the answer has. Perfetto opens it. Times count from the first
        launch."""
        events = [dict(each) for each in own]
        for device in self.devices:
            of, line = {"pid": device.device, "tid": 0}, device.timeline
            label = {"name": f"GPU {device.device} {device.gpu}"}
            if not own:
                events.append({"ph": "M", "name": "process_name", **of, "args": label})
            ends = [
                start + own for start, own in zip(line.start_seconds, line.seconds, strict=True)
            ]
            for at, watts in zip(
                [*line.start_seconds, *ends[-1:]], [*line.watts, 0.0], strict=True
            ):
                event = {"ph": "C", "name": "power", "ts": at * 1e6, "args": {"watts": watts}}
                events.append({**event, **of})
        if (launches := self.launch_columns) and not own:
            columns = (getattr(launches, name)[:MOST_EVENTS] for name in LaunchColumns.model_fields)
            for start, seconds, joules, device_id, stream, kernel in zip(*columns, strict=True):
                event = {"ph": "X", "name": self.kernels[kernel].name, "ts": start * 1e6}
                event |= {"dur": seconds * 1e6, "pid": device_id, "tid": stream + 1}
                events.append({**event, "args": {"joules": joules}})
        return to_json({"displayTimeUnit": "ns", "traceEvents": events}, inf_nan_mode="null")


MOST_EVENTS = 200_000
"""Launches in ``chrome``, or events of its input: about 30 MB, which a browser opens in seconds."""

HOWS = {
    "code": "by their code",
    "code, other launch": "by their code, launched otherwise",
    "operator": "by the operator that launched them",
    "operator, by time": "by an operator of their kind that takes as long",
    "name": "from launch and name alone",
    "copy": "copies",
}
CSV_COLUMNS = (
    *("name", "device", "how", "family", "data_type", "launches", "seconds", "joules", "low"),
    *("high", "energy_share", "watts", "trust", "code"),
)


# ``POST /dvfs``: a trace, and all that may be asked about.


class TraceClocks(shared.Message):
    """At which core clocks, up to those it ran at, or power limits an application is asked for."""

    gpu: shared.Name | None = None
    """GPU id or alias. Default: by the name that the trace tells."""
    clocks: shared.Clocks | None = None
    """Clocks the boards ran at. Default: the GPU's own; traces tell none."""
    model: shared.ModelChoice = "auto"
    board: shared.Board = None
    power_limit_watts: dvfs.LimitsAsked = None
    """In the place of clocks. Where the GPU lists no clocks, nine from half the limit on."""
    constraints: dvfs.ConstraintsRequest = dvfs.ConstraintsRequest()


class TraceDvfsRequest(TraceClocks, shared.Asks[dvfs.DvfsAnswer]):
    """Body of ``POST /dvfs`` for a whole application."""

    trace: Base64Bytes = Field(min_length=1)
    """The file that `POST /applications` takes, in base64."""


SOURCES = ("counters", "trace", "language_model", "operator")


def _source(given: Any) -> str:
    """Tells what stands in the place of code."""
    told = given.get if isinstance(given, dict) else partial(getattr, given)
    return next((name for name in SOURCES if told(name, None) is not None), "kernel")


class DvfsBody(
    RootModel[
        Annotated[
            Annotated[dvfs.DvfsRequest, Tag("kernel")]
            | Annotated[operators.OperatorDvfsRequest, Tag("operator")]
            | Annotated[language_model.LanguageModelDvfsRequest, Tag("language_model")]
            | Annotated[TraceDvfsRequest, Tag("trace")]
            | Annotated[dvfs.CountedRequest, Tag("counters")],
            Discriminator(_source),
        ]
    ]
):
    """A kernel's code and launch or its counters, an operator, a language model, or a trace."""
