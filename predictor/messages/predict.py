"""Body and answer of ``POST /predict``."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from wattcast.models.speed import Measure, Unit
from wattcast.models.time.measured_work import Runtime
from wattcast.predictor import messages as shared
from wattcast.predictor.messages.explain import ShapExplanation


class WorkRequest(shared.Message):
    """What a profiler counted of one launch, over all its threads: instead of its PTX."""

    dram_bytes: shared.Count = Field(description="Read and written between L2 and device memory.")
    int_ops: shared.Count = Field(description="Thread-level integer instructions.")
    flops_sp: shared.Count = Field(
        0.0, description="Single precision; a fused multiply-add is two."
    )
    flops_dp: shared.Count = Field(0.0, description="Double precision.")
    runtime: Runtime = Field("unknown", description="How the kernel was compiled, if known.")


_OF_A_KERNEL = (
    "kernel",
    "loops",
    "analysis",
    "analysis_seconds",
    "analysis_effort",
    "registers_per_thread",
    "static_shared_bytes",
    "time_model",
    "known",
    "details",
)


"""Members of a request that only a kernel's code gives a meaning."""


def _default(name: str) -> object:
    return PredictRequest.model_fields[name].get_default(call_default_factory=True)


class PredictRequest(shared.KernelTiming):
    """Body of ``POST /predict``. Exactly one of ``gpu`` and ``gpus`` is given."""

    model_config = shared.examples("PredictRequest")

    work: WorkRequest | None = Field(
        None, description="Measured work of the launch; or give `ptx` or `cuda`."
    )
    known: Annotated[list[shared.KnownRequest], Field(max_length=64)] = Field(
        default_factory=list[shared.KnownRequest],
        description="Measured launches of this kernel. They correct the predicted time and power, "
        "and more so the more similar they are.",
    )
    gpu: shared.Name | None = Field(None, description="GPU id or alias; see GET /gpus.")
    gpus: Annotated[list[shared.Name], Field(min_length=1)] | None = Field(
        None, description="Several GPUs; the answer then has one prediction for each."
    )
    clocks: shared.Clocks | None = Field(
        None, description="Clocks to predict for. Default: the GPU's own."
    )
    power_limit_watts: shared.PowerLimit = None
    model: shared.ModelChoice = Field(
        "auto",
        description="Power model: `auto` is the promoted one, else the one that, by its card, does "
        "best on kernels left out of training.",
    )
    board: shared.Board = None
    explain: Literal["shap"] | None = Field(
        None, description="Adds each feature's share of the power to the answer."
    )
    details: bool = Field(
        False, description="Adds `speed_of_light`: how near each unit comes to its peak."
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
            raise ValueError(
                f"{', '.join(given)}: not allowed with measured work, which has no kernel"
            )
        return self


class Power(shared.Interval):
    """Mean power while the kernel runs."""

    watts: float


class Time(shared.Interval):
    """Duration of the launch."""

    seconds: float


class Energy(shared.Interval):
    """Power times time of the same answer."""

    joules: float


class Trust(BaseModel):
    """What an answer is worth, by one rule (docs/method.md)."""

    mark: Literal["measured here", "measured board", "estimated board", "guess"]
    why: str


class Apart(BaseModel):
    """A GPU whose answer is not to be ranked with the others."""

    gpu: str
    why: str


class UnitSpeed(BaseModel):
    """How near one unit of the GPU comes to its peak."""

    unit: Unit
    name: str = Field(description="What people call it.")
    share: float = Field(description="Of its slots that are taken, 0 to 1.")
    achieved: float = Field(
        description="What it does for the launch a second: bytes that DRAM, L2 and L1 move and "
        "that lanes ask of shared memory, operations of active lanes (a multiply-add is two), "
        "warp instructions issued. At most `share` x `peak`."
    )
    peak: float = Field(description="What the hardware does at most, at these clocks.")
    measure: Measure = Field(description="Unit of `achieved` and `peak`.")


class RooflinePoint(BaseModel):
    """A launch under the roof of one precision."""

    precision: Unit
    operations: float = Field(description="A multiply-add is two.")
    intensity: float | None = Field(
        description="Operations for each byte of device memory; null if it moves none."
    )
    achieved: float = Field(description="Operations a second.")
    peak: float = Field(description="The flat roof: operations a second at most.")


class Roofline(BaseModel):
    """Peaks of arithmetic and of device memory, and where the launch lies under them."""

    dram_bytes: float
    dram_peak: float = Field(description="The slanted roof: bytes a second at most.")
    points: list[RooflinePoint] = Field(
        description="By precision; of integer work where there is no floating-point work."
    )


class SpeedOfLight(BaseModel):
    """How near a launch comes to what the hardware can do."""

    bound: str | None = Field(description="`time_model.bound`.")
    seconds: float = Field(
        description="What shares refer to: the predicted time. Where measured launches or another "
        "time model tell less than the counts take at peak rates, what they take."
    )
    units: list[UnitSpeed] = Field(description="Units the GPU has, memory first.")
    roofline: Roofline


class PredictAnswer(BaseModel):
    """Answer of ``POST /predict`` for one GPU."""

    id: UUID = Field(description="For GET /explain and GET /predictions/{id}.")
    gpu: str
    kernel: shared.KernelName | None = Field(description="Null for measured work.")
    compiled: shared.Compiled | None = Field(None, description="Null if the request had PTX.")
    clocks: shared.ClocksAnswer = Field(
        description="Those the board runs at, under its power limit."
    )
    power_limit_watts: float | None = Field(None, description="Null if no model tells the power.")
    power: Power | None = Field(description="Null if no model can answer; see the warnings.")
    time: Time | None = Field(description="Null if no time model applies.")
    energy: Energy | None
    model: shared.ModelReference | None
    components: dict[str, float] | None = Field(
        None, description="Watts by component of the GPU (physical models); they sum to the power."
    )
    time_model: shared.TimeModel | None
    features: dict[str, float | None] = Field(
        description="The power model's schema; null: missing."
    )
    schema_id: str | None = Field(alias="schema", description="Feature schema of ``features``.")
    occupancy: shared.Occupancy | None = Field(description="Null for measured work.")
    registers: shared.Registers | None = Field(description="Null for measured work.")
    trip_counts: list[shared.LoopTrips]
    needs: list[shared.Need] = Field(
        default_factory=list, description="Arguments to give first, the most important one first."
    )
    trust: Trust | None = Field(None, description="Null if no model tells the power.")
    coverage: shared.Coverage | None = Field(
        None, description="Null where nothing rests on counts of activity."
    )
    warnings: list[shared.WarningLine]
    explanation: ShapExplanation | None = None
    speed_of_light: SpeedOfLight | None = Field(
        None, description="Where `details` were asked for; left out otherwise."
    )


class PredictAnswers(BaseModel):
    """Answer of ``POST /predict`` for several GPUs, in the order asked."""

    predictions: list[PredictAnswer]
    apart: list[Apart] = Field(
        default_factory=list, description="GPUs that are not to be ranked with the others, and why."
    )
