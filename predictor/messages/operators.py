"""A library operator in the place of a kernel's code: a matrix product, attention, experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages import compare, dvfs, predict, sweep

MOST = 2**24
"""Largest extent taken: a row of 2^24 values is 32 MB."""

Extent = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Few = Annotated[int, Field(strict=True, ge=1, le=65_536)]
None_ = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**46)]
Member = Annotated[str, StringConstraints(max_length=32)]
Value = (
    Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(strict=True)]
    | Annotated[str, StringConstraints(max_length=32)]
)
Format = Literal["bfloat16", "float16", "fp8", "fp8_block", "nvfp4"]
CacheFormat = Literal["bfloat16", "float16", "fp8"]
ExpertFormat = Literal[
    "bfloat16", "float16", "fp8", "fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "int4_wo"
]

ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "e4m3": "fp8"}
"""Other names of formats; float16 is answered as bfloat16, whose rates and sizes it has."""


def with_formats(given: Any) -> Any:
    """A request whose formats go by their own names."""
    if not isinstance(given, dict):
        return given
    return {
        key: ALIASES.get(value, value)
        if key in ("dtype", "kv_dtype") and isinstance(value, str)
        else value
        for key, value in given.items()
    }


class _Operator(shared.Message):
    @model_validator(mode="before")
    @classmethod
    def _formats_by_any_name(cls, given: Any) -> Any:
        return with_formats(given)


class Gemm(_Operator):
    """C[m, n] = A[m, k] x B[k, n], the output in bfloat16; B is the weights."""

    name: Literal["gemm"]
    m: Extent
    """Rows: tokens."""
    n: Extent
    """Columns of the result."""
    k: Extent
    """Length of the sums."""
    dtype: Format = "bfloat16"
    """Of the operands: `fp8_block` has scales for blocks, `nvfp4` for 16 values."""


class BatchedGemm(Gemm):
    """``batch`` products of their own operands. None was measured: answered from single ones."""

    name: Literal["batched_gemm"]  # type: ignore[assignment]  # the tag of the union
    batch: Few


class Attention(_Operator):
    """Attention of one layer over a paged key-value cache."""

    name: Literal["attention"]
    phase: Literal["prefill", "decode"]
    batch: Few = 1
    """Sequences."""
    new_tokens: Extent = 1
    """Of each sequence; 1 in decode."""
    cached_tokens: None_ = 0
    """Of each sequence, in the cache already."""
    heads: Few
    kv_heads: Few | None = None
    """Default: as many as `heads`."""
    head_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = 128
    window: None_ = 0
    """Tokens that a query sees at most; 0: all."""
    causal: bool = True
    dtype: CacheFormat = "bfloat16"
    kv_dtype: CacheFormat = "bfloat16"
    """Of the cache."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.phase == "decode" and self.new_tokens != 1:
            raise ValueError("decode has one new token a sequence; use phase prefill for more")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads, {self.heads}, is no multiple of kv_heads, {self.kv_heads}")
        return self


class Moe(_Operator):
    """The grouped products of a layer of experts, on one of the GPUs that share it."""

    name: Literal["moe"]
    tokens: Extent
    hidden: Few
    """Width of the layer."""
    inner: Few
    """Width inside an expert."""
    topk: Annotated[int, Field(strict=True, ge=1, le=64)]
    """Experts of a token."""
    experts: Annotated[int, Field(strict=True, ge=1, le=4096)]
    tensor_parallel: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    expert_parallel: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] = "power_law_1.01"
    """Tokens over experts: evenly, or by a power law of that exponent; the GPU answered for is then
    the fullest one."""
    gated: bool = True
    """Three matrices an expert (SwiGLU), else two."""
    dtype: ExpertFormat = "bfloat16"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.topk > self.experts:
            raise ValueError(f"topk, {self.topk}, is more than experts, {self.experts}")
        if self.experts % self.expert_parallel:
            raise ValueError("experts is no multiple of expert_parallel")
        if self.inner % self.tensor_parallel:
            raise ValueError("inner is no multiple of tensor_parallel")
        return self


class Quantize(_Operator):
    """An m x k matrix in bfloat16 scaled to fp8."""

    name: Literal["quantize"]
    m: Extent
    k: Extent


class LinearAttention(_Operator):
    """One kernel of a linear attention layer: a gated delta rule (``gdn``) or Mamba 2."""

    name: Literal["linear_attention"]
    kind: Literal["gdn", "mamba2"] = "gdn"
    stage: Literal["convolution", "recurrence"] = "recurrence"
    batch: Few = 1
    new_tokens: Extent = 1
    """Of each sequence; 1 in generation."""
    heads: Few
    """Of values."""
    key_heads: Few
    """Of keys (Mamba 2: groups)."""
    head_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = 128
    key_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = 128
    """Elements of a key (Mamba 2: of the state)."""


class Stream(_Operator):
    """A pass over memory, by its bytes: answered as the measured pass that scales to fp8 is."""

    name: Literal["norm", "activation", "softmax", "rope", "embedding", "elementwise"]
    read_bytes: Bytes
    write_bytes: Bytes

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.read_bytes + self.write_bytes == 0:
            raise ValueError("read_bytes and write_bytes are both 0")
        return self


Operator = Annotated[
    Gemm | BatchedGemm | Attention | Moe | Quantize | LinearAttention | Stream,
    Field(discriminator="name"),
]


class OperatorOptions(shared.Message):
    """How operators are answered."""

    framework: Literal["vllm", "trtllm"] | None = None
    """Whose kernels. Default: vllm, or trtllm where nothing else was measured."""
    power_limit_watts: shared.PowerLimit = None


class OnGpus(shared.GpuOrGpus, OperatorOptions):
    """What runs on one GPU or several. Exactly one of ``gpu`` and ``gpus`` is given."""


class OperatorRequest(OnGpus, shared.Asks[predict.PredictAnswer | predict.PredictAnswers]):
    """An operator on one GPU or several."""

    operator: Operator
    explain: Literal["shap"] | None = None
    """Adds each feature's share of the power to the answer."""


class OperatorBatchRequest(OperatorOptions, shared.Asks[sweep.BatchAnswer]):
    """Many operators on one GPU."""

    operators: Annotated[list[Operator], Field(min_length=1, max_length=sweep.MOST_LAUNCHES)]
    gpu: shared.Name


class OperatorSweepRequest(OnGpus, shared.Asks["OperatorSweepAnswer"]):
    """An operator with every combination of some of its values, on one GPU or several."""

    operator: Annotated[dict[Member, Value], Field(max_length=32)]
    """As in POST /predict; what `vary` names may be left out."""
    vary: Annotated[
        dict[Member, Annotated[list[Value], Field(min_length=1, max_length=sweep.MOST_POINTS)]],
        Field(max_length=16),
    ] = Field(
        default_factory=dict[str, list[int | bool | str]],
        examples=[{"m": [1, 64, 4096], "dtype": ["bfloat16", "fp8"]}],
    )
    """Members of the operator with the values to try: every combination of them."""


class OperatorDvfsRequest(OperatorOptions, shared.Asks[dvfs.DvfsAnswer]):
    """Body of ``POST /dvfs`` for an operator: no clocks are modelled, only power limits."""

    operator: Operator
    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    power_limit_watts: dvfs.LimitsAsked = None  # type: ignore[assignment]
    """Default: nine from half the board's limit to the limit."""
    constraints: dvfs.ConstraintsRequest = dvfs.ConstraintsRequest()

    @model_validator(mode="before")
    @classmethod
    def _no_clocks(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.keys() & {"clocks", "reference"}:
            raise ValueError("no clocks are modelled for operators; give power_limit_watts")
        return given


class ComparedOperator(shared.Message):
    """One side of a comparison."""

    operator: Operator


class OperatorCompareRequest(OnGpus, shared.Asks[compare.CompareAnswer]):
    """Two operators, or one in two shapes or formats, beside each other."""

    old: ComparedOperator
    new: ComparedOperator
    limits: compare.Limits = compare.Limits()


class OperatorPoint(sweep.BatchPrediction):
    """One combination on one GPU; without a prediction where it has a ``problem``."""

    gpu: str
    values: dict[str, int | bool | str]
    """Of the members varied."""
    joules_per_flop: float | None = None
    pareto: bool = False
    """None takes less time and energy a FLOP."""
    apart: str | None = None
    """Why it is not ranked with other GPUs' points."""

    def note(self) -> str:
        """What is special about it."""
        return self.problem.detail if self.problem else "pareto" if self.pareto else ""

    def __str__(self) -> str:
        return " ".join((self.gpu, *(f"{name}={value}" for name, value in self.values.items())))


class OperatorSweepAnswer(shared.Reported):
    """Answer of ``POST /sweep`` for an operator. Combinations differ in their work, so they are
    ranked by what a FLOP takes."""

    operator: dict[str, int | bool | str]
    """As asked."""
    points: list[OperatorPoint]
    """In the order of GPUs and of `vary`."""
    best: dict[str, int]
    """By objective, as for a kernel but for a FLOP: the place in `points`."""
    failed: int
    """How many points have a problem."""
    warnings: list[shared.WarningLine]
    """The first of each code."""

    def report(self) -> reports.Report:
        """The points, the thriftiest for a FLOP first, and the best of them."""

        def picojoules(point: OperatorPoint) -> str:
            return f"{point.joules_per_flop * 1e12:.3g}" if point.joules_per_flop else ""

        columns = [
            reports.Column("point", str),
            *reports.costs(),
            reports.Column("pJ a FLOP", picojoules, figures=True),
            reports.Column("", OperatorPoint.note),
        ]
        ordered = sorted(self.points, key=lambda point: point.joules_per_flop or float("inf"))
        best = (f"{reports.words(name)}: {self.points[at]}" for name, at in self.best.items())
        title = reports.Title(str(self.operator["name"]), "ranked by what a FLOP takes")
        return [
            title,
            reports.Table(columns, ordered),
            *map(reports.Line, best),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each point; what was varied are columns."""
        for point in self.points:
            plain = point.data()
            yield {**plain.pop("values"), **plain}
