"""What ``GET /predictions/{id}/advice`` answers: what to change, and what that would gain."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from wattcast.predictor.messages import ClocksAnswer, KernelName, ModelReference, WarningLine


class Outcome(BaseModel):
    """What a launch takes."""

    seconds: float
    watts: float
    joules: float


class Gain(BaseModel):
    """How much less is taken; negative is more."""

    seconds: float
    watts: float
    joules: float
    time_percent: float
    energy_percent: float


class AdvicePlace(BaseModel):
    """Where in the code."""

    function: str
    line: int = Field(description="Line in the PTX.")
    source_line: int | None
    opcode: str
    text: str = Field(description="The PTX line.")


class ChangedQuantity(BaseModel):
    """A quantity of ``activity1`` that the remedy changes."""

    name: str
    before: float
    after: float


class Advice(BaseModel):
    """One thing to change. ``gain`` is the difference of two predictions of the same models."""

    code: Literal[
        "uncoalesced_access",
        "bank_conflicts",
        "local_memory",
        "fp64_between_fp32",
        "division_in_loop",
        "invariant_in_loop",
        "divergent_branch",
        "shallow_pipeline",
        "small_tile",
        "wide_sums",
        "reread_tiles",
        "narrow_accesses",
        "constant_division",
        "shared_reduction",
        "small_grid",
        "register_spills",
        "occupancy_limiter",
        "tail_effect",
        "launch_shape",
        "lower_clocks",
    ]
    detail: str = Field(description="What was found, with the numbers of this launch.")
    remedy: str = Field(description="What to change.")
    places: list[AdvicePlace]
    activity: list[ChangedQuantity] = Field(
        description="What the remedy changes in the launch's activity; empty if it changes the "
        "request."
    )
    request: dict[str, Any] | None = Field(
        description="Members to change in the request of POST /predict; null where the code alone "
        "is changed."
    )
    changed_ptx: str | None = Field(
        default=None,
        description="The module with the change made in its PTX, where the gain was predicted from "
        "that. It counts what the changed kernel does; it need not compute the same results.",
    )
    after: Outcome
    gain: Gain
    promise: Literal["estimate", "at_least"] = Field(
        default="estimate",
        description="`at_least` where part of what the change saves is not predicted, so that "
        "`gain` is a lower bound.",
    )
    snippet_before: str | None = Field(
        default=None, description="A few lines of CUDA C++ in the form that was found."
    )
    snippet_after: str | None = Field(
        default=None, description="The same lines with the change made."
    )


class AdviceAnswer(BaseModel):
    """Advice by gain in energy, the largest first; each alone, so gains do not add up."""

    prediction_id: UUID | None = None
    gpu: str
    kernel: KernelName
    clocks: ClocksAnswer
    model: ModelReference = Field(description="The power model of both predictions.")
    time_model: Literal["bottleneck"]
    before: Outcome
    advice: list[Advice]
    warnings: list[WarningLine]
