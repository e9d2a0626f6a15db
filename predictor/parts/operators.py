"""Calls of operators as columns, and the model that tells them: for answers and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

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
        watts[row] = steady[row] = model.of_activities(activities, clocks).estimate.value
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


_ATTENTION = {"batch": "batch", "new": "new_tokens", "cached": "cached_tokens", "heads": "heads",
              "head_size": "head_size", "window": "window", "causal": "causal"}  # fmt: skip
_LINEAR = {"batch": "batch", "new": "new_tokens", "heads": "heads", "key_heads": "key_heads",
           "key_size": "key_size", "head_size": "head_size"}  # fmt: skip
_EXPERTS = ("tokens", "hidden", "inner", "topk", "experts", "tensor_parallel", "expert_parallel",
            "gated")  # fmt: skip
MEMBERS: dict[str, dict[str, str]] = {
    "gemm": {"rows": "m", "columns": "n", "depth": "k"},
    "prefill": _ATTENTION, "decode": _ATTENTION, "moe": {name: name for name in _EXPERTS},
    "gdn": _LINEAR, "mamba2": _LINEAR,
}  # fmt: skip
"""Columns that hold a member of a call as it is given."""


def columns(kind: str, model: OperatorModel, asked: Sequence[Asked]) -> dict[str, operators.Floats]:
    """The columns of ``wattcast.features.operators``, ``[n]``, of calls of one operator."""
    calls: list[Any] = [one.operator for one in asked]
    formats = [vars(one).get("dtype", "bfloat16") for one in calls]
    bits = [operators.FORMATS["bfloat16" if one == "float16" else one] for one in formats]
    found: dict[str, Any] = dict(zip(("math_bits", "weight_bits"), np.array(bits).T, strict=True))
    found["block_scaled"] = [one in ("fp8_block", "w4a8_mxfp4_mxfp8", "nvfp4") for one in formats]
    if members := MEMBERS.get(kind):
        given = np.array([*map(attrgetter(*members.values()), calls)], dtype=np.float64).T
        found |= zip(members, given, strict=True)
    match kind:
        case "gemm":
            found["batch"] = [vars(one).get("batch", 1) for one in calls]
        case "prefill" | "decode":
            found["kv_heads"] = [one.kv_heads or one.heads for one in calls]
            caches = ["fp8" if one.kv_dtype == "fp8" else "bfloat16" for one in calls]
            found["weight_bits"] = [operators.FORMATS[one][1] for one in caches]
        case "moe":
            found["inner_alignment"] = operators.inner_alignment(found)
            found["tuned"] = operators.tuned_tiles(model.card.gpu, found)
            found["distribution"] = [operators.DISTRIBUTIONS[one.distribution] for one in calls]
        case "quantize":
            found["rows"], found["columns"] = np.array([*map(_matrix, calls)]).T
            found["weight_bits"] = [8.0] * len(calls)
        case _:
            found["stage"] = [one.stage == "recurrence" for one in calls]
    found["framework"] = [framework_of(kind, model, one.options) == "trtllm" for one in asked]
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def _matrix(operator: messages.Quantize | messages.Stream) -> tuple[float, float]:
    """Rows and columns scaled to fp8: of a pass, as many bytes as a matrix of 4096 columns has."""
    if isinstance(operator, messages.Quantize):
        return operator.m, operator.k
    return max((operator.read_bytes + operator.write_bytes) / (3 * 4096), 1 / 32), 4096.0


def framework_of(kind: str, model: OperatorModel, options: messages.OperatorOptions) -> str:
    """Whose kernels answer: those asked for, else the first that were measured."""
    return options.framework or model.card.operators[kind].frameworks[0]
