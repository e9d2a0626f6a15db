"""What goes in and out: request and answer shapes, for HTTP, CLI and Python alike.

The answers' models document and validate; the service builds plain dictionaries of the same
shape, which serialise faster.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from features.analysis import Mode
from features.launch import Launch, PointerHint
from models.estimate import Basis

MAX_INTEGER = 2**63 - 1
"""Largest integer taken from JSON: every limit of a GPU lies far below."""

MAX_TRIPS = 1e15
"""Most executions of a loop body: beyond 10^15 cycles a kernel runs for weeks on any GPU."""

Dimension = Annotated[int, Field(strict=True, ge=-MAX_INTEGER, le=MAX_INTEGER)]
Dimensions = Annotated[list[Dimension], Field(min_length=1, max_length=3)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TripCount = Annotated[float, Field(ge=0, le=MAX_TRIPS, allow_inf_nan=False)]
ArgumentNumber = Annotated[int, Field(strict=True, ge=-(2**63), le=2**64 - 1)]
FiniteNumber = Annotated[float, Field(strict=True, allow_inf_nan=False)]
ModelChoice = Literal["auto", "xgboost", "catboost", "average"]

EXAMPLE_PTX = """\
.version 7.0
.target sm_70
.address_size 64
.visible .entry scale_by_two(.param .u64 scale_by_two_param_0)
{
 .reg .b32 %r<5>;
 .reg .f32 %f<3>;
 .reg .b64 %rd<5>;
 ld.param.u64 %rd1, [scale_by_two_param_0];
 cvta.to.global.u64 %rd2, %rd1;
 mov.u32 %r1, %ntid.x;
 mov.u32 %r2, %ctaid.x;
 mov.u32 %r3, %tid.x;
 mad.lo.s32 %r4, %r2, %r1, %r3;
 mul.wide.s32 %rd3, %r4, 4;
 add.s64 %rd4, %rd2, %rd3;
 ld.global.f32 %f1, [%rd4];
 add.f32 %f2, %f1, %f1;
 st.global.f32 [%rd4], %f2;
 ret;
}
"""

EXAMPLE_CUDA = """\
__global__ void scale(float* values, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= factor;
}
"""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PointerArgument(_Message):
    """What a pointer argument points to."""

    elements: Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)] | None = Field(
        None, description="Elements of the buffer; else as many as threads are launched."
    )
    values: Literal["uniform", "zeros", "sorted", "index"] = Field(
        "uniform",
        description="Pseudo-random in [low, high), zeros, ascending, or whole numbers below "
        "`elements`.",
    )
    low: FiniteNumber = 0.0
    high: FiniteNumber = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> PointerArgument:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, above high, {self.high:g}")
        return self


class LaunchRequest(_Message):
    """How the kernel is started; missing dimensions are 1."""

    grid: Dimension | Dimensions = Field(
        description="Blocks, 1 to 3 dimensions.", examples=[[4096]]
    )
    block: Dimension | Dimensions = Field(
        description="Threads per block, 1 to 3 dimensions.", examples=[[256]]
    )
    dynamic_shared_bytes: Dimension = Field(0, description="Dynamic shared memory per block.")
    arguments: dict[str, ArgumentNumber | FiniteNumber | PointerArgument] = Field(
        default_factory=dict,
        max_length=4096,
        description="Kernel arguments by position, PTX parameter name or, for CUDA source, C "
        "name: numbers, and hints about what a pointer points to.",
        examples=[{"3": 1048576, "0": {"elements": 1048576, "values": "uniform"}}],
    )

    def launch(self) -> Launch:
        """The launch. Raises LaunchError for an impossible dimension."""
        hints = {
            name: PointerHint(value.elements, value.values, value.low, value.high)
            if isinstance(value, PointerArgument)
            else value
            for name, value in self.arguments.items()
        }
        return Launch.of(self.grid, self.block, self.dynamic_shared_bytes, hints)


class KernelRequest(_Message):
    """A kernel and how it is launched: common to /predict, /features and /analyze.

    Exactly one of ``ptx`` and ``cuda`` is given.
    """

    ptx: str | None = Field(None, min_length=1, description="PTX text; or give `cuda`.")
    cuda: str | None = Field(
        None,
        min_length=1,
        description="CUDA C++ source, compiled for the GPU's compute capability; or give `ptx`.",
    )
    kernel: str | None = Field(
        None,
        min_length=1,
        max_length=65_536,
        description="Mangled or demangled name; needed if there are several kernels.",
    )
    launch: LaunchRequest
    loops: dict[str, TripCount] = Field(
        default_factory=dict,
        max_length=4096,
        description="Executions of loop bodies by label, source line or `default`.",
    )
    registers_per_thread: int | None = Field(
        None, strict=True, ge=1, le=255, description="As the compiler reports; else estimated."
    )
    static_shared_bytes: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=2**31 - 1,
        description="Static shared memory per block; else taken from the PTX declarations.",
    )
    analysis: Mode = Field(
        "auto",
        description="How trip counts and activity are found out. `symbolic` never runs the "
        "kernel, `executed` runs sampled blocks; `auto` does so only for what it needs.",
    )
    analysis_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Time cap of the executed analysis; what it cuts short is extrapolated.",
    )

    @model_validator(mode="after")
    def _one_kind_of_source(self) -> KernelRequest:
        if (self.ptx is None) == (self.cuda is None):
            raise ValueError("give exactly one of ptx and cuda")
        return self


class PredictRequest(KernelRequest):
    """Body of ``POST /predict``. Exactly one of ``gpu`` and ``gpus`` is given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "ptx": EXAMPLE_PTX,
                    "kernel": "scale_by_two",
                    "gpu": "tesla-v100",
                    "launch": {"grid": [4096], "block": [256]},
                    "loops": {"default": 64},
                    "registers_per_thread": 24,
                    "model": "auto",
                    "explain": "shap",
                },
                {
                    "cuda": EXAMPLE_CUDA,
                    "gpu": "tesla-v100",
                    "launch": {
                        "grid": [4096],
                        "block": [256],
                        "arguments": {"n": 1048576, "values": {"elements": 1048576}},
                    },
                },
            ]
        }
    )

    gpu: Name | None = Field(None, description="GPU id or alias; see GET /gpus.")
    gpus: Annotated[list[Name], Field(min_length=1)] | None = Field(
        None, description="Several GPUs; the answer then holds one prediction for each."
    )
    model: ModelChoice = Field(
        "auto", description="Power model: `auto` is the one best on unseen kernels."
    )
    explain: Literal["shap"] | None = Field(
        None, description="Adds each feature's share of the power to the answer."
    )

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> PredictRequest:
        if (self.gpu is None) == (self.gpus is None):
            raise ValueError("give either gpu or gpus")
        return self


class FeaturesRequest(KernelRequest):
    """Body of ``POST /features``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "ptx": EXAMPLE_PTX,
                    "gpu": "tesla-k20",
                    "launch": {"grid": [64], "block": [256]},
                    "schema": "powerquant2026",
                },
                {
                    "ptx": EXAMPLE_PTX,
                    "gpu": "tesla-v100",
                    "launch": {
                        "grid": [4096],
                        "block": [256],
                        "arguments": {"0": {"elements": 1048576}},
                    },
                    "schema": "activity1",
                },
            ]
        },
    )

    gpu: Name = Field(description="GPU id or alias; see GET /gpus.")
    schema_id: Name = Field(
        "alavani2023", alias="schema", description="Feature schema; see GET /schemas."
    )


class AnalyzeRequest(KernelRequest):
    """Body of ``POST /analyze``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "ptx": EXAMPLE_PTX,
                    "gpu": "tesla-v100",
                    "launch": {"grid": [4096], "block": [256]},
                    "registers_per_thread": 12,
                    "analysis": "executed",
                },
                {
                    "cuda": EXAMPLE_CUDA,
                    "gpu": "tesla-v100",
                    "launch": {"grid": [4096], "block": [256], "arguments": {"n": 1048576}},
                },
            ]
        },
    )

    gpu: Name = Field(description="GPU id or alias; see GET /gpus.")


# --- answers ----------------------------------------------------------------------------


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
    """How the time came about: waves of blocks and the terms of the cycles, at one clock."""

    family: Literal["scheduling"]
    core_mhz: float
    waves: float
    wave_cycles: float
    cycles: dict[str, float]


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


class Contribution(BaseModel):
    """One feature's share: watts it adds to (or takes from) the base value."""

    feature: str
    value: float | None = Field(description="The feature's value; null is missing.")
    watts: float


class LocalContribution(Contribution):
    """One feature's weight in the local linear model, for the range ``condition``."""

    condition: str


class ShapExplanation(BaseModel):
    """Exact TreeSHAP: ``base_watts`` plus all contributions is ``prediction_watts``."""

    method: Literal["shap"]
    target: Literal["power"]
    model: ModelReference
    prediction_watts: float
    base_watts: float
    contributions: list[Contribution] = Field(description="Largest first.")


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
    contributions: list[LocalContribution] = Field(description="Largest first.")


class PredictAnswer(BaseModel):
    """Answer of ``POST /predict`` for one GPU."""

    id: UUID = Field(description="For GET /explain and GET /predictions/{id}.")
    gpu: str
    kernel: KernelName
    compiled: Compiled | None = Field(None, description="Null where the request brought PTX.")
    power: Power | None = Field(description="Null where the GPU has no power model.")
    time: Time | None = Field(description="Null where no time model applies.")
    energy: Energy | None
    model: ModelReference | None
    time_model: TimeModel | None
    features: dict[str, float | None] = Field(
        description="The power model's schema; null: missing."
    )
    schema_id: str | None = Field(alias="schema", description="Feature schema of ``features``.")
    occupancy: Occupancy
    registers: Registers
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
