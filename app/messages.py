"""What goes in: request shapes, for HTTP, CLI and Python alike."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from wattcast.features.analysis import Mode
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch, PointerHint
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.time.measured_work import Runtime

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
ModelChoice = Literal["auto", "xgboost", "catboost", "average", "extratrees", "physical"]
TimeModelChoice = Literal[
    "auto",
    "bottleneck",
    "scheduling",
    "delay",
    "queueing",
    "queueing-cases",
    "roofline",
    "volkov",
]
Count = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Megahertz = Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]

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
    """A kernel and how it is launched: common to all calls about kernels.

    Exactly one of its ``sources`` is given.
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
    def _one_kind_of_source(self) -> Self:
        given = [name for name in self.sources() if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {' and '.join(self.sources())}")
        return self

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """What a kernel may come as."""
        return ("ptx", "cuda")


class WorkRequest(_Message):
    """What a profiler counted of one launch, over all its threads: instead of its PTX."""

    dram_bytes: Count = Field(description="Read and written between L2 and device memory.")
    int_ops: Count = Field(description="Thread-level integer instructions.")
    flops_sp: Count = Field(0.0, description="Single precision; a fused multiply-add is two.")
    flops_dp: Count = Field(0.0, description="Double precision.")
    runtime: Runtime = Field("unknown", description="How the kernel was made, where known.")


class Clocks(_Message):
    """A core and a memory clock; one that is not given is the GPU's default."""

    core_mhz: Megahertz | None = None
    memory_mhz: Megahertz | None = Field(None, description="As NVML reports it.")

    def pair(self, gpu: GpuProfile) -> ClockPair:
        """The pair, completed by the GPU's default clocks."""
        default = default_clocks(gpu)
        return ClockPair(self.core_mhz or default.core_mhz, self.memory_mhz or default.memory_mhz)


class KnownRequest(_Message):
    """A measured launch of the same kernel on the same GPU."""

    launch: LaunchRequest
    time_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Corrects the predicted time; give it, `power_watts` or both."
    )
    power_watts: Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)] | None = Field(
        None, description="Mean power of the board while it ran; corrects the predicted power."
    )
    clocks: Clocks | None = Field(
        None, description="What it was measured at; the request's clocks where not given."
    )

    @model_validator(mode="after")
    def _measured(self) -> KnownRequest:
        if self.time_seconds is None and self.power_watts is None:
            raise ValueError("a known launch tells time_seconds, power_watts or both")
        return self


class KernelTiming(KernelRequest):
    """A kernel whose time is asked for, and by which model."""

    time_model: TimeModelChoice = Field(
        "auto",
        description="Time model: `auto` is `bottleneck`, corrected where measurements of the GPU "
        "were promoted; a model that is named answers as it is.",
    )


_OF_A_KERNEL = (
    "kernel",
    "loops",
    "analysis",
    "analysis_seconds",
    "registers_per_thread",
    "static_shared_bytes",
    "time_model",
    "known",
)
"""Members of a request that only a kernel's code gives a meaning."""


def _default(name: str) -> object:
    return PredictRequest.model_fields[name].get_default(call_default_factory=True)


class PredictRequest(KernelTiming):
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

    work: WorkRequest | None = Field(
        None, description="Measured work of the launch; or give `ptx` or `cuda`."
    )
    known: Annotated[list[KnownRequest], Field(max_length=64)] = Field(
        default_factory=list[KnownRequest],
        description="Measured launches of this kernel: they correct the predicted time and power, "
        "the more the more alike they are.",
    )
    gpu: Name | None = Field(None, description="GPU id or alias; see GET /gpus.")
    gpus: Annotated[list[Name], Field(min_length=1)] | None = Field(
        None, description="Several GPUs; the answer then holds one prediction for each."
    )
    clocks: Clocks | None = Field(
        None, description="Clocks to predict for; the GPU's default ones where not given."
    )
    model: ModelChoice = Field(
        "auto",
        description="Power model: `auto` is the promoted one, else the one that, by its card, does "
        "best on kernels left out of training.",
    )
    board: str | None = Field(
        None,
        max_length=64,
        description="Which of several boards of this GPU, as uploads of measurements label them: "
        "its own champion answers where there is one.",
    )
    explain: Literal["shap"] | None = Field(
        None, description="Adds each feature's share of the power to the answer."
    )

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """What a kernel may come as."""
        return ("ptx", "cuda", "work")

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> PredictRequest:
        if (self.gpu is None) == (self.gpus is None):
            raise ValueError("give either gpu or gpus")
        if self.known and self.gpus is not None:
            raise ValueError("known launches are those of one gpu, not of several")
        return self

    @model_validator(mode="after")
    def _work_stands_alone(self) -> PredictRequest:
        if self.work is None:
            return self
        given = [name for name in _OF_A_KERNEL if getattr(self, name) != _default(name)]
        if self.launch.arguments:
            given.append("launch.arguments")
        if given:
            raise ValueError(f"{', '.join(given)}: measured work knows no kernel")
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
