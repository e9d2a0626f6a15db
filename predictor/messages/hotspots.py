"""What ``GET /predictions/{id}/hotspots`` answers: where a launch spends energy and time."""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel, Field

from wattcast.predictor.messages import ClocksAnswer, KernelName, ModelReference, WarningLine


class Cost(BaseModel):
    """Joules and seconds of a part of the launch, and its shares of the whole."""

    joules: float
    seconds: float
    energy_share: float = Field(description="0 to 1.")
    time_share: float = Field(description="0 to 1.")


class Hotspot(Cost):
    """One place in the code."""

    rank: int = Field(description="1 costs the most energy.")
    line: int = Field(description="Line in the PTX, or in the source for `source_lines`.")
    warp_executions: float = Field(description="Warp instructions executed at this place.")
    machine_instructions: float = Field(description="The same after expansion to machine code.")
    active_lane_fraction: float = Field(description="Share of active lanes, 0 to 1.")
    components: dict[str, float] = Field(
        description="Joules by component of the GPU, largest first."
    )
    unit_cycles: dict[str, float] = Field(
        default_factory=dict,
        description="Core cycles that it takes of each unit at its peak, on all SMs alike.",
    )


class BlockHotspot(Hotspot):
    """A basic block."""

    function: str
    block: int
    label: str | None
    last_line: int = Field(description="Its last line in the PTX.")
    source_line: int | None


class LineHotspot(Hotspot):
    """A line of the PTX."""

    source_line: int | None
    text: str


class SourceHotspot(Hotspot):
    """A line of the source, as ``.loc`` tells it."""

    file: str | None


class Rest(BaseModel):
    """What is not listed, summed up."""

    rows: int
    joules: float
    seconds: float


class Blocks(BaseModel):
    """Basic blocks, the costliest first."""

    rows: list[BlockHotspot]
    rest: Rest


class Lines(BaseModel):
    """PTX lines, the costliest first."""

    rows: list[LineHotspot]
    rest: Rest


class SourceLines(BaseModel):
    """Source lines, the costliest first; empty where the PTX has no line information."""

    rows: list[SourceHotspot]
    rest: Rest


class HotspotsAnswer(BaseModel):
    """Each of ``blocks`` and ``lines`` sums, with ``start`` and its ``rest``, to the launch."""

    prediction_id: UUID
    gpu: str
    kernel: KernelName
    clocks: ClocksAnswer
    seconds: float = Field(description="Predicted, of the launch.")
    joules: float = Field(description="Predicted, of the launch.")
    shares_by: ModelReference = Field(description="The physical model that gives the shares.")
    cycles: float = Field(description="The same seconds in core cycles.")
    unit_cycles: dict[str, float] = Field(
        description="Those of each unit that the instructions take at its peak, on all SMs alike: "
        "over `cycles` its share in `speed_of_light` of the prediction."
    )
    start: Cost = Field(
        description="Starting the launch and its blocks; belongs to no instruction."
    )
    blocks: Blocks
    lines: Lines
    source_lines: SourceLines
    warnings: list[WarningLine]
