"""A library operator in the place of a kernel's code: a matrix product, attention, experts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, RootModel, Tag, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor.messages.predict import PredictRequest

MOST = 2**24
"""Largest extent taken: a row of 2^24 values is 32 MB."""

Extent = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Few = Annotated[int, Field(strict=True, ge=1, le=65_536)]
None_ = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**46)]
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
    m: Extent = Field(description="Rows: tokens.")
    n: Extent = Field(description="Columns of the result.")
    k: Extent = Field(description="Length of the sums.")
    dtype: Format = Field(
        "bfloat16",
        description="Of the operands: `fp8_block` has scales for blocks, `nvfp4` for 16 values.",
    )


class BatchedGemm(Gemm):
    """``batch`` products of their own operands. None was measured: answered from single ones."""

    name: Literal["batched_gemm"]  # type: ignore[assignment]  # the tag of the union
    batch: Few


class Attention(_Operator):
    """Attention of one layer over a paged key-value cache."""

    name: Literal["attention"]
    phase: Literal["prefill", "decode"]
    batch: Few = Field(1, description="Sequences.")
    new_tokens: Extent = Field(1, description="Of each sequence; 1 in decode.")
    cached_tokens: None_ = Field(0, description="Of each sequence, in the cache already.")
    heads: Few
    kv_heads: Few | None = Field(None, description="Default: as many as `heads`.")
    head_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = 128
    window: None_ = Field(0, description="Tokens that a query sees at most; 0: all.")
    causal: bool = True
    dtype: CacheFormat = "bfloat16"
    kv_dtype: CacheFormat = Field("bfloat16", description="Of the cache.")

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
    hidden: Few = Field(description="Width of the layer.")
    inner: Few = Field(description="Width inside an expert.")
    topk: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(description="Experts of a token.")
    experts: Annotated[int, Field(strict=True, ge=1, le=4096)]
    tensor_parallel: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    expert_parallel: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] = Field(
        "power_law_1.01",
        description="Tokens over experts: evenly, or by a power law of that exponent; the GPU "
        "answered for is then the fullest one.",
    )
    gated: bool = Field(True, description="Three matrices an expert (SwiGLU), else two.")
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
    new_tokens: Extent = Field(1, description="Of each sequence; 1 in generation.")
    heads: Few = Field(description="Of values.")
    key_heads: Few = Field(description="Of keys (Mamba 2: groups).")
    head_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = 128
    key_size: Annotated[int, Field(strict=True, ge=8, le=1024)] = Field(
        128, description="Elements of a key (Mamba 2: of the state)."
    )


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

    framework: Literal["vllm", "trtllm"] | None = Field(
        None,
        description="Whose kernels. Default: vllm, or trtllm where nothing else was measured.",
    )
    power_limit_watts: shared.PowerLimit = None


class OperatorRequest(OperatorOptions):
    """An operator on one GPU or several. Exactly one of ``gpu`` and ``gpus`` is given."""

    operator: Operator
    gpu: shared.Name | None = Field(None, description="GPU id or alias; see GET /gpus.")
    gpus: Annotated[list[shared.Name], Field(min_length=1)] | None = Field(
        None, description="Several GPUs; the answer then has one prediction for each."
    )
    explain: Literal["shap"] | None = Field(
        None, description="Adds each feature's share of the power to the answer."
    )

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> Self:
        if (self.gpu is None) == (self.gpus is None):
            raise ValueError("give either gpu or gpus")
        return self


def _form(given: Any) -> str:
    told = given.get("operator") if isinstance(given, dict) else getattr(given, "operator", None)
    return "kernel" if told is None else "operator"


class PredictBody(
    RootModel[
        Annotated[
            Annotated[PredictRequest, Tag("kernel")] | Annotated[OperatorRequest, Tag("operator")],
            Discriminator(_form),
        ]
    ]
):
    """A kernel's code and launch, or an operator."""

    model_config = shared.examples("PredictRequest")
