"""What comes out: answer shapes, for HTTP, CLI and Python alike.

The models document and validate; the service builds plain dictionaries of the same shape, which
serialise faster.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from wattcast.models.estimate import Basis


class _Interval(BaseModel):
    low: float = Field(description="Lower end of the interval.")
    high: float = Field(description="Upper end of the interval.")
    level: float = Field(description="Nominal coverage of [low, high], 0 to 1.")
    basis: Basis = Field(description="What the interval rests on.")


class Power(_Interval):
    """Mean power while the kernel runs."""

    watts: float


class Time(_Interval):
    """Duration of the launch."""

    seconds: float


class Energy(_Interval):
    """Power times time of the same answer."""

    joules: float


class KernelName(BaseModel):
    """A kernel under both its names."""

    mangled: str
    demangled: str


class Compiled(BaseModel):
    """How the PTX came about, where the request brought CUDA source."""

    compiler: str = Field(description="`nvrtc`, or `nvcc` for a file with host code.")
    target: int = Field(description="Compute capability compiled for; 70 is 7.0.")
    source_sha256: str = Field(description="SHA-256 of the CUDA source, UTF-8.")


class TimeModel(BaseModel):
    """How the time came about."""

    family: str
    regime: Literal["compute", "memory", "latency", "launch"] | None = Field(
        description="What bounds the launch; null where the model does not tell."
    )
    parts: dict[str, float] = Field(
        description="Seconds of the model's own terms: bounds of which the largest counts "
        "(bottleneck, roofline, volkov), or summands (the others). `launch` comes on top, and so "
        "do `calibration` and `known`, what measurements correct."
    )
    model: ModelReference | None = Field(
        None, description="The correction by launches measured on the GPU or board, if one serves."
    )


class ClocksAnswer(BaseModel):
    """The clocks predicted for, in MHz."""

    core_mhz: float
    memory_mhz: float


class MemberReference(BaseModel):
    """One model of an average."""

    family: str
    version: int


class ModelReference(BaseModel):
    """The artifact that predicted the power; ``card`` is the path of its model card."""

    family: str
    version: int
    schema_id: str = Field(alias="schema")
    source: str
    gpu: str
    target: str
    members: list[MemberReference]
    card: str


class Occupancy(BaseModel):
    """Theoretical occupancy (0 to 1] of one SM and the resource that limits it."""

    occupancy: float
    resident_blocks_per_sm: int
    resident_warps_per_sm: int
    limiter: str


class Registers(BaseModel):
    """Registers per thread; ``how`` they are known. Estimates have ``low`` < ``high``."""

    value: int
    low: int
    high: int
    how: str


class LoopTrips(BaseModel):
    """Executions of one loop's body and how they are known."""

    loop: str | None = Field(description="Label of the loop's header block.")
    trips: float
    how: str
    line: int = Field(description="Line in the PTX.")
    source_line: int | None = Field(description="Line in the CUDA source, where PTX tells it.")


class WarningLine(BaseModel):
    """Something guessed, assumed or unknown; ``code`` is stable."""

    model_config = ConfigDict(title="Warning")

    code: str
    detail: str
    line: int | None = Field(None, description="Line in the PTX.")
    column: int | None = None
    source_line: int | None = Field(None, description="Line in the CUDA source of the request.")


class _Explained(BaseModel):
    """What a part of an explanation is."""

    feature: str
    value: float | None = Field(description="The feature's value; null is missing.")
    meaning: str = Field(description="What it is, in a sentence for people.")
    changeable: bool = Field(description="Whether the programmer can change it.")


class Contribution(_Explained):
    """One feature's share: watts it adds to (or takes from) the base value."""

    watts: float
    joules: float | None = Field(description="Watts over the predicted time; null without one.")


class LocalContribution(Contribution):
    """One feature's weight in the local linear model, for the range ``condition``."""

    condition: str
    spread: float | None = Field(
        None, description="Standard deviation of the weight over the seeds, in watts."
    )


class ShapExplanation(BaseModel):
    """Exact SHAP: ``base_watts`` plus all contributions is ``prediction_watts``."""

    method: Literal["shap"]
    target: Literal["power"]
    model: ModelReference
    prediction_watts: float
    base_watts: float
    contributions: list[Contribution] = Field(description="Largest first.")


class LimeStability(BaseModel):
    """How far other seeds say the same."""

    seeds: int
    top: int = Field(description="Features that count as the strongest.")
    selection: float = Field(
        description="Share of the strongest features that two seeds have in common, mean over all "
        "pairs (variables stability index)."
    )
    sign_agreement: float = Field(
        description="Share of seeds that give a strong feature its usual sign, mean over features."
    )


class LimeExplanation(BaseModel):
    """LIME: intercept plus all contributions is ``local_prediction_watts``, an approximation."""

    method: Literal["lime"]
    target: Literal["power"]
    model: ModelReference
    prediction_watts: float = Field(description="The model's own answer.")
    intercept_watts: float
    local_prediction_watts: float
    r_squared: float = Field(description="How well the local linear model fits.")
    samples: int
    seed: int
    stability: LimeStability | None = Field(
        None, description="Null unless several seeds are asked for."
    )
    contributions: list[LocalContribution] = Field(description="Largest first.")


class PredictAnswer(BaseModel):
    """Answer of ``POST /predict`` for one GPU."""

    id: UUID = Field(description="For GET /explain and GET /predictions/{id}.")
    gpu: str
    kernel: KernelName | None = Field(description="Null for measured work.")
    compiled: Compiled | None = Field(None, description="Null where the request brought PTX.")
    clocks: ClocksAnswer
    power: Power | None = Field(description="Null where no model can answer; see the warnings.")
    time: Time | None = Field(description="Null where no time model applies.")
    energy: Energy | None
    model: ModelReference | None
    components: dict[str, float] | None = Field(
        None, description="Watts by component of the GPU (physical models); they sum to the power."
    )
    time_model: TimeModel | None
    features: dict[str, float | None] = Field(
        description="The power model's schema; null: missing."
    )
    schema_id: str | None = Field(alias="schema", description="Feature schema of ``features``.")
    occupancy: Occupancy | None = Field(description="Null for measured work.")
    registers: Registers | None = Field(description="Null for measured work.")
    trip_counts: list[LoopTrips]
    warnings: list[WarningLine]
    explanation: ShapExplanation | None = None


class PredictAnswers(BaseModel):
    """Answer of ``POST /predict`` for several GPUs, in the order asked."""

    predictions: list[PredictAnswer]


class FeatureValue(BaseModel):
    """One field of a vector; ``value`` null is missing."""

    name: str
    value: float | None
    unit: str
    source: str
    description: str
    model_input: bool


class FeaturesAnswer(BaseModel):
    """Answer of ``POST /features``: the vector in the schema's order."""

    schema_id: str = Field(alias="schema")
    gpu: str
    kernel: KernelName
    compiled: Compiled | None = Field(None, description="Null where the request brought PTX.")
    features: list[FeatureValue]
    occupancy: Occupancy
    registers: Registers
    trip_counts: list[LoopTrips]
    warnings: list[WarningLine]


class ShapAnswer(ShapExplanation):
    """Answer of ``GET /explain?method=shap``."""

    prediction_id: UUID


class LimeAnswer(LimeExplanation):
    """Answer of ``GET /explain?method=lime``."""

    prediction_id: UUID
