"""Calls of operators as columns, and the model that tells them: for answers and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter

from wattcast.features import errors, gpus, operators
from wattcast.features.gpus.sections import PeakName
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.models.clocks import ClockPair
from wattcast.models.operators import POOLED, OperatorModel, Told
from wattcast.models.power.activities import work_activities
from wattcast.models.time.measured_work import Work
from wattcast.predictor import Predictor
from wattcast.predictor.messages import operators as messages

OPERATOR: TypeAdapter[messages.Operator] = TypeAdapter(messages.Operator)
"""Reads an operator by its name."""


class Asked(NamedTuple):
    """One call on one GPU."""

    operator: messages.Operator
    gpu: gpus.GpuProfile
    options: messages.OperatorOptions


def model_of(
    predictor: Predictor, kind: str, gpu: gpus.GpuProfile, recurs: bool = False
) -> OperatorModel:
    """The GPU's own model where it has the operator, else that of a measured board of the same
    compute capability, else the pooled one; of a recurrence (``recurs``) where its trees tell it
    from the convolution. Raises ModelError."""
    known = predictor.operators
    for find in (known.of, lambda _: known.near(gpu, kind), lambda _: known.of(POOLED)):
        model = find(gpu.id)
        facts = model and model.card.operators.get(kind)
        if model and facts and not (recurs and "stage" not in facts.time.inputs):
            return model
    raise errors.ModelError(f"no model tells {kind} on {gpu.id}", gpu=gpu.id)


def power_model(
    predictor: Predictor, kind: str, gpu: gpus.GpuProfile, model: OperatorModel
) -> OperatorModel:
    """The model that tells the watts beside one that tells the time: itself, else that of a board
    of the same compute capability, else the pooled one; itself where none knows any."""
    if model.has_power(kind):
        return model
    known = predictor.operators
    able = (known.near(gpu, kind, "power"), known.of(POOLED))
    return next((one for one in able if one is not None and one.has_power(kind)), model)


def with_passes(
    predictor: Predictor,
    gpu: gpus.GpuProfile,
    operators: Sequence[messages.Operator],
    power: OperatorModel,
    told: Told,
) -> Told:
    """Watts of passes over memory on a board whose operators' watts nobody measured: those of its
    physical model, as of a copy by hand. The pooled trees told 389 and 289 W of what draws 224 to
    242 W on an A100 and 204 to 209 on an A40 (copies in ``modern/fma_sweep_power.csv``). Raises
    ModelError where no physical model passes its checks."""
    rows = [n for n, one in enumerate(operators) if isinstance(one, messages.Stream)]
    if not rows or not power.pooled:
        return told
    model, clocks = predictor.power.physical(gpu), ClockPair(gpu.core_mhz, gpu.memory_mhz)
    launch = Launch((gpu.sm_count, 1, 1), (WARP_SIZE, 1, 1))
    beyond = predictor.operators.board(gpu).l2_bytes
    watts, steady = told.watts.copy(), told.sustained_watts.copy()
    for row in rows:
        moved = float(told.quantities.moved_bytes[row] + told.quantities.weight_bytes[row])
        work = Work(launch, dram_bytes=max(moved - beyond, 0.0), int_ops=0.0)
        activities = work_activities(work, gpu, clocks, float(told.seconds[row]))
        watts[row] = steady[row] = model.of_activities(activities, clocks).breakdown.watts
    return told._replace(watts=watts, sustained_watts=steady)


UNITS: dict[str, PeakName] = {
    "bfloat16": "tensor_bf16", "fp8": "tensor_fp8", "fp8_block": "tensor_fp8",
    "w4a8_mxfp4_mxfp8": "tensor_fp4", "nvfp4": "tensor_fp4",
}  # fmt: skip
"""The units that multiply a format, by what a GPU's profile calls their peak; those of FP4 take
the mx formats too (PTX ISA, mma kind mxf8f6f4). float16, and 4-bit weights widened to it, are
multiplied on every GPU, as FP32 where matrix units are missing."""


def checked_format(dtype: str | None, gpu: gpus.GpuProfile) -> None:
    """Raises LaunchError for a format that the GPU cannot multiply."""
    if dtype in UNITS and not gpu.peak(UNITS[dtype]):
        able = ["float16", *(name for name in UNITS if gpu.peak(UNITS[name]))]
        told = f"{gpu.id} has no units that multiply {dtype}; it has {', '.join(able)}"
        raise errors.LaunchError(told, field="dtype")


def kind_of(operator: messages.Operator) -> str:
    """The operator as models tell them apart."""
    if isinstance(operator, messages.Attention):
        return operator.phase
    if isinstance(operator, messages.LinearAttention):
        return operator.kind
    if isinstance(operator, messages.Stream):
        return "quantize"
    return "gemm" if isinstance(operator, messages.Gemm) else operator.name


def recurs(operator: messages.Operator) -> bool:
    """Whether it is the recurrence of linear attention: of Mamba 2 one board's was measured."""
    return isinstance(operator, messages.LinearAttention) and operator.stage == "recurrence"


def values_of(operator: messages.Operator) -> dict[str, float]:
    """The columns of ``wattcast.features.operators`` of one call."""
    format_ = vars(operator).get("dtype", "bfloat16")
    math, weight = operators.FORMATS["bfloat16" if format_ == "float16" else format_]
    found = {
        "math_bits": math,
        "weight_bits": weight,
        "block_scaled": float(format_ in ("fp8_block", "w4a8_mxfp4_mxfp8", "nvfp4")),
    }
    match operator:
        case messages.Gemm():
            batch = operator.batch if isinstance(operator, messages.BatchedGemm) else 1
            found |= {"rows": operator.m, "columns": operator.n, "depth": operator.k,
                      "batch": batch}  # fmt: skip
        case messages.Attention():
            cache = "fp8" if operator.kv_dtype == "fp8" else "bfloat16"
            found |= {
                "batch": operator.batch, "new": operator.new_tokens,
                "cached": operator.cached_tokens, "heads": operator.heads,
                "kv_heads": operator.kv_heads or operator.heads,
                "head_size": operator.head_size, "window": operator.window,
                "causal": float(operator.causal), "weight_bits": operators.FORMATS[cache][1],
            }  # fmt: skip
        case messages.Moe():
            names = ("tokens", "hidden", "inner", "topk", "experts", "tensor_parallel",
                     "expert_parallel")  # fmt: skip
            found |= {name: getattr(operator, name) for name in names}
            found |= {
                "inner_alignment": float(
                    operators.inner_alignment(operator.inner, operator.tensor_parallel)
                ),
                "distribution": operators.DISTRIBUTIONS[operator.distribution],
                "gated": float(operator.gated),
            }
        case messages.LinearAttention():
            found |= {
                "batch": operator.batch, "new": operator.new_tokens, "heads": operator.heads,
                "key_heads": operator.key_heads, "key_size": operator.key_size,
                "head_size": operator.head_size, "stage": float(operator.stage == "recurrence"),
            }  # fmt: skip
        case messages.Quantize():
            found |= {"rows": operator.m, "columns": operator.k, "weight_bits": 8.0}
        case messages.Stream():  # as many bytes as a matrix of 4096 columns to be scaled to fp8
            rows = max((operator.read_bytes + operator.write_bytes) / (3 * 4096), 1 / 32)
            found |= {"rows": rows, "columns": 4096.0, "weight_bits": 8.0}
    return found


def columns(kind: str, model: OperatorModel, asked: Sequence[Asked]) -> dict[str, operators.Floats]:
    """Columns ``[n]`` of calls of one operator."""
    each = [
        values_of(one.operator)
        | {"framework": float(framework_of(kind, model, one.options) == "trtllm")}
        for one in asked
    ]
    return {name: np.array([one[name] for one in each], dtype=np.float64) for name in each[0]}


def framework_of(kind: str, model: OperatorModel, options: messages.OperatorOptions) -> str:
    """Whose kernels answer: those asked for, else the first that were measured."""
    return options.framework or model.card.operators[kind].frameworks[0]
