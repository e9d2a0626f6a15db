"""What goes into ``POST /applications`` beside the trace, and what comes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from wattcast.predictor import messages as shared
from wattcast.predictor.messages.cost import Amount, Carbon, Price, Tariff
from wattcast.predictor.messages.predict import Energy, Power, Trust

How = Literal["code", "code, other launch", "name", "copy"]
"""How the power of a launch is known.

``code``: from its PTX; ``code, other launch``: from that of the same kernel launched otherwise;
``name``: from launch, name and data type alone; ``copy``: no kernel but a copy or memset."""


class ApplicationRequest(shared.Message):
    """What holds for every launch of a trace."""

    gpu: shared.Name | None = Field(
        None, description="GPU id or alias. Default: by the name that the trace tells."
    )
    gpus: dict[str, shared.Name] = Field(
        default_factory=dict[str, shared.Name],
        max_length=64,
        description="GPU by the number of its device in the trace, where they differ.",
    )
    clocks: shared.Clocks | None = Field(
        None, description="Clocks the boards ran at. Default: the GPU's own; traces tell none."
    )
    model: shared.ModelChoice = "auto"
    board: shared.Board = None
    tariff: Tariff | None = Field(None, description="Without it, the price is null.")
    grams_co2_per_kwh: Amount | None = Field(None, description="Without it, CO2 is null.")
    most_slowdown: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = Field(
        1.05, description="How many times as long the kernels may take at the clock advised."
    )
    advice: Annotated[int, Field(strict=True, ge=0, le=20)] = Field(
        3, description="Kernels with code that get advice, those of the most energy first."
    )
    launches: bool = Field(False, description="Adds a row for every launch.")


class Covered(BaseModel):
    """Launches whose power is known in one way."""

    how: How
    launches: int
    seconds: float = Field(description="Sum over launches.")
    time_share: float = Field(description="Of all launches' time, 0 to 1.")
    joules: float


class KernelRow(BaseModel):
    """All launches of one kernel on one GPU."""

    name: str
    device: int
    how: How = Field(description="Of most of its time.")
    family: str | None = Field(description="By its name; null with code.")
    data_type: str | None = Field(description="By its name; null with code or where not told.")
    launches: int
    seconds: float
    joules: float
    low: float
    high: float
    energy_share: float = Field(description="Of all energy, gaps included.")
    watts: float = Field(description="Mean over its time, if it ran alone.")
    trust: Trust
    why: str = Field(description="What the power rests on.")
    code: str | None = Field(description="File that its code was found in.")
    advice: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="As `GET /predictions/{id}/advice`."
    )


class Row(BaseModel):
    """Launches of one operator, stream or step; the name is null for those of none."""

    name: str | None
    launches: int
    seconds: float = Field(description="Sum over launches.")
    joules: float
    energy_share: float


class StreamRow(Row):
    """Launches of one stream."""

    device: int


class Gaps(BaseModel):
    """Time in which nothing ran, at the board's idle power."""

    seconds: float
    joules: float
    low: float
    high: float
    energy_share: float


class Timeline(BaseModel):
    """Mean power over stretches of time; they keep the joules."""

    start_seconds: list[float] = Field(description="From the first launch of the trace.")
    seconds: list[float]
    watts: list[float]
    busy: list[float] = Field(description="Share of the stretch in which something ran.")


class DeviceAnswer(BaseModel):
    """One GPU of the trace."""

    device: int
    gpu: str
    name: str = Field(description="As the trace calls it; may be empty.")
    launches: int
    span_seconds: float = Field(description="From its first launch to the end of its last.")
    busy_seconds: float = Field(description="In which something ran.")
    shared_seconds: float = Field(description="In which more than one launch ran.")
    limited_seconds: float = Field(description="In which several together reached the limit.")
    idle_watts: float
    standing_watts: float = Field(description="With clocks up and nothing to do.")
    limit_watts: float
    mean_watts: float
    energy: Energy
    gaps: Gaps
    timeline: Timeline


class ClockPoint(BaseModel):
    """The mix of kernels at one core clock. Ratios to the clocks of the trace."""

    core_mhz: float
    memory_mhz: float
    time: float
    energy: float


class MixClock(BaseModel):
    """The best clock for the kernels that have code, all launched as they were."""

    device: int
    step: str | None = Field(description="Of the launches of one step; null: of all.")
    covers: float = Field(description="Share of the launches' time that has code.")
    points: list[ClockPoint]
    best: ClockPoint | None = Field(description="Least energy within the slowdown; null: none.")
    power_limit_watts: float | None = Field(
        description="A power limit that leaves the mix about this clock: its highest power "
        "there; null where the board cannot be set to it."
    )


class LaunchColumns(BaseModel):
    """One entry for each launch, in order of start; ``stream`` and ``kernel`` are places in these
    lists of the answer."""

    start_seconds: list[float]
    seconds: list[float]
    joules: list[float]
    device: list[int]
    stream: list[int]
    kernel: list[int]


class ChangeSums(BaseModel):
    """One of two traces as a whole."""

    joules: float
    seconds: float = Field(description="From the first launch to the end of the last.")
    launches: int
    gap_joules: float


class ChangeRow(BaseModel):
    """Launches of one name in both traces; zeros where one has none."""

    name: str | None
    old_launches: int
    old_seconds: float
    old_joules: float
    new_launches: int
    new_seconds: float
    new_joules: float
    joules: float = Field(description="New less old.")


class ApplicationChanges(BaseModel):
    """What changed since an older trace; differences are new less old."""

    old: ChangeSums
    new: ChangeSums
    joules: float
    seconds: float
    kernels: list[ChangeRow] = Field(description="By how much their joules changed.")
    operators: list[ChangeRow]


class ApplicationAnswer(BaseModel):
    """Answer of ``POST /applications``."""

    source: str
    launches: int
    untimed: int = Field(description="Launches that the trace gives no time; they are left out.")
    coverage: list[Covered]
    energy: Energy
    power: Power = Field(description="Mean over all boards' spans, of all boards together.")
    span_seconds: float = Field(description="From the first launch to the end of the last.")
    kwh: float
    price: Price | None
    co2: Carbon | None
    trust: Trust
    covers: Literal["gpu_boards"] = Field(description="Host, cooling and network are not included.")
    devices: list[DeviceAnswer]
    kernels: list[KernelRow] = Field(description="By energy, the largest first.")
    operators: list[Row]
    streams: list[StreamRow]
    steps: list[Row]
    clocks: list[MixClock]
    launch_columns: LaunchColumns | None = None
    changes: ApplicationChanges | None = Field(
        None, description="Where an older trace was given as `against`."
    )
    warnings: list[shared.WarningLine]
