"""What goes into ``POST /predict/batch`` and what comes out: one kernel, many launches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from wattcast.features.analysis import Mode
from wattcast.predictor import messages as shared
from wattcast.predictor.messages.predict import Energy, Power, Time

MOST_LAUNCHES = 10_000
"""Launches of one request."""


class BatchRequest(shared.TimingChoice, shared.KernelCode):
    """Body of ``POST /predict/batch``."""

    model_config = shared.examples("BatchRequest")

    gpu: shared.Name = Field(description="GPU id or alias; see GET /gpus.")
    launches: Annotated[list[shared.LaunchRequest], Field(min_length=1, max_length=MOST_LAUNCHES)]
    analysis: Mode = Field(
        "symbolic",
        description="How trip counts and activity are found out. `symbolic` takes about a "
        "millisecond a launch; `auto` and `executed` run sampled blocks of each one.",
    )
    clocks: shared.Clocks | None = Field(
        None, description="Clocks to predict for. Default: the GPU's own."
    )
    power_limit_watts: shared.PowerLimit = None
    model: shared.ModelChoice = "auto"
    board: shared.Board = None


class LaunchProblem(BaseModel):
    """Why a launch has no prediction."""

    kind: str = Field(description="Type of the problem, as `GET /problems` lists them.")
    detail: str
    field: str | None = Field(description="Part of the launch that is wrong.")


class BatchPrediction(BaseModel):
    """One launch. Its numbers are those of ``POST /predict`` for the same ``analysis``."""

    power: Power | None = None
    time: Time | None = None
    energy: Energy | None = None
    regime: Literal["compute", "memory", "latency", "launch"] | None = None
    occupancy: float | None = None
    waves: float | None = None
    coverage: shared.Coverage | None = None
    warnings: list[str] = Field(
        default_factory=list, description="Codes; the answer explains each once."
    )
    problem: LaunchProblem | None = Field(
        None, description="Why this launch cannot be predicted; the others are."
    )


class BatchAnswer(BaseModel):
    """Answer of ``POST /predict/batch``. Nothing of it is stored."""

    gpu: str
    kernel: shared.KernelName
    compiled: shared.Compiled | None = Field(None, description="Null if the request had PTX.")
    clocks: shared.ClocksAnswer
    model: shared.ModelReference | None
    time_model: str | None
    analysis: Mode
    predictions: list[BatchPrediction] = Field(
        description="One for each launch, in the order of the request."
    )
    failed: int = Field(description="How many of them have a problem instead.")
    needs: list[shared.Need] = Field(description="Arguments that launches lack, each once.")
    warnings: list[shared.WarningLine] = Field(description="The first of each code.")
