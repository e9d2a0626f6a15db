"""What ``POST /retrain`` takes and jobs answer."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator

from wattcast.predictor.messages import Answer, Described

FittedMode = Literal["full", "continue", "new_gpu"]
"""``full`` and ``continue`` are the boosted way, ``new_gpu`` is the calibrated one."""
Mode = Literal["auto", "full", "continue", "new_gpu"]
Target = Literal["power", "time"]


class RetrainRequest(Described):
    """How to retrain, on batches that were uploaded before."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    gpu: str = Field(min_length=1, max_length=64, examples=["tesla-k20"])
    board: str | None = Field(None, max_length=64)
    """Rows of this board alone count, and the champion is its own; empty: rows without a label, and
    the GPU's general champion. Unset: the one the rows name."""
    targets: list[Target] = Field(default=["power"], min_length=1, max_length=2)
    """What to retrain. `time` corrects the default time model by rows with `time_seconds`; of
    `mode` and `families` it takes no notice."""
    families: list[Literal["xgboost", "catboost"]] = Field(default=[], max_length=2)
    """Of two families the average is judged. Unset: both, or those of the champion that is
    continued."""
    mode: Mode = "auto"
    """`auto` starts from the model that answers for the board now: it calibrates a physical model,
    adds trees to an XGBoost or CatBoost model, and fits anew where neither can be done; `dry_run`
    tells which. `full` fits anew on the uploads alone, where no packaged model is to
    be beaten; `continue` adds trees to the champion, fitted on the uploads; `new_gpu` shrinks
    the physical model (of other GPUs, where this one has none) toward the uploads, and takes no
    families."""
    schema_id: str | None = Field(None, alias="schema", max_length=64)
    """Feature schema; unset: that of the packaged models, where the rows have it. Mode `new_gpu`
    and target `time` look at `activity1`."""
    promote: bool = True
    """False: even a better model stays a candidate, to be promoted by hand."""

    batches: list[UUID] = Field(min_length=1, max_length=1000)
    dry_run: bool = False
    """Only tell what would be done, and what each row would be used for. Nothing is trained, queued
    or stored."""

    @model_validator(mode="after")
    def _sound(self) -> RetrainRequest:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("targets: one is named twice")
        if self.families and (self.mode == "new_gpu" or "power" not in self.targets):
            raise ValueError("families: not allowed with mode new_gpu or target time")
        return self


class PlannedKernel(Answer):
    """Launches of one kernel group that would train."""

    kernel: str
    """The kernel group, as rows name it."""
    rows: int
    """Of these batches."""
    earlier_rows: int
    """Of batches that the board's champion was trained on."""
    known: bool
    """The model that is started from learned this kernel from earlier data, so it tells nothing of
    kernels never measured."""
    fold: int | None
    """Left out together with the others of this fold, from 1."""


class LeftOutRow(Answer):
    """A row that would not train."""

    batch: UUID
    row: int
    reason: str


class Plan(Answer):
    """What would be done for one target."""

    target: Target
    mode: FittedMode | None
    """Null for `time`."""
    why: str
    """Why this mode."""
    answers_now: str
    """The model to beat."""
    starts_from: str | None
    """Card of the model started from, if there is one."""
    rows: int
    """Rows that would train, earlier ones among them."""
    kernels: list[PlannedKernel]
    """By kernel group."""
    folds: int
    """Each fold leaves its kernels out once, to judge and to measure intervals."""
    judged_kernels: int
    """Kernel groups on which old and new are compared."""
    left_out: dict[str, int]
    """Rows that would not train, by reason."""
    left_out_rows: list[LeftOutRow]
    """The first 1000 of them."""
    obstacles: list[str]
    """Why nothing could be promoted with these rows. Empty: it is for the comparison to say."""
    notes: list[str]


class PlanAnswer(Answer):
    """Answer of ``POST /retrain`` with ``dry_run``."""

    gpu: str
    board: str | None
    """Null: rows without a label."""
    targets: list[Plan]


class JobAnswer(Described):
    """A job as it stands."""

    id: UUID
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    stage: str
    progress: float = Field(ge=0, le=1)
    attempts: int
    """Number of starts: more than one if workers died."""
    created: str
    started: str | None
    finished: str | None
    cancel_requested: bool
    request: dict[str, Any]
    result: dict[str, Any] | None
    """Of a retraining: mode, whether it was promoted, the versions made, the verdict with its
    reasons, and the scores; `also` holds the same of a second target. `GET /jobs/{id}` adds
    `held_out`, the launches of kernels left out: `kernel`, `measured`, `old` and `new` in watts or
    seconds."""
    error: dict[str, Any] | None
    """`kind` is the slug of a problem type."""
