"""What ``POST /retrain`` takes and jobs answer."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mode = Literal["full", "continue", "new_gpu"]
Target = Literal["power", "time"]


class RetrainOptions(BaseModel):
    """How to retrain. The measurements come beside it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    gpu: str = Field(min_length=1, max_length=64, examples=["tesla-k20"])
    board: str | None = Field(
        None,
        max_length=64,
        description="Rows of this board alone count, and the champion is its own; empty: rows "
        "without a label, and the GPU's general champion. Unset: the one the rows name.",
    )
    targets: list[Target] = Field(
        default=["power"],
        min_length=1,
        max_length=2,
        description="What to retrain. `time` corrects the default time model by rows with "
        "`time_seconds`; of `mode` and `families` it takes no notice.",
    )
    families: list[Literal["xgboost", "catboost"]] = Field(
        default=[],
        max_length=2,
        description="Of two families the average is judged. Unset: both, or those of the champion "
        "that is continued.",
    )
    mode: Mode = Field(
        "full",
        description="`full` fits anew on the rows of the packaged model (where WATTCAST_DATA has "
        "them) and the uploads; `continue` adds trees to the champion, fitted on the uploads; "
        "`new_gpu` draws the physical model (of other GPUs, where this one has none) to the "
        "uploads, and takes no families.",
    )
    schema_id: str | None = Field(
        None,
        alias="schema",
        max_length=64,
        description="Feature schema; unset: that of the packaged models, where the rows have it. "
        "Mode `new_gpu` and target `time` look at `activity1`.",
    )
    promote: bool = Field(
        True, description="False: even a better model stays a candidate, to be promoted by hand."
    )

    @model_validator(mode="after")
    def _sound(self) -> RetrainOptions:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("targets: one is named twice")
        if self.families and (self.mode == "new_gpu" or "power" not in self.targets):
            raise ValueError("families: not allowed with mode new_gpu or target time")
        return self


class RetrainRequest(RetrainOptions):
    """A retraining on batches that were uploaded before."""

    batches: list[UUID] = Field(min_length=1, max_length=1000)


class JobAnswer(BaseModel):
    """A job as it stands."""

    id: UUID
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    stage: str
    progress: float = Field(ge=0, le=1)
    attempts: int = Field(description="Number of starts: more than one if workers died.")
    created: str
    started: str | None
    finished: str | None
    cancel_requested: bool
    request: dict[str, Any]
    result: dict[str, Any] | None = Field(
        description="Of a retraining: whether it was promoted, the versions made, the verdict with "
        "its reasons, and the scores; `also` holds the same of a second target."
    )
    error: dict[str, Any] | None = Field(description="`kind` is the slug of a problem type.")
