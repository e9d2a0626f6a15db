"""Kernels of libraries in traces: products and attention, answered as the operators they are.

The PyTorch profiler with ``record_shapes`` tells sizes and types of the tensors of each operator
(``Input Dims``, ``Input type``: pytorch/kineto; PyTorch, torch/csrc/profiler). The kernel that
does its work is told by its name; its power is that of the operator's model at these sizes, its
time the measured one. Operators by the signatures of PyTorch's ``native_functions.yaml`` and of
FlashAttention (flash_attn_interface.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from wattcast.features.effort import checkpoint
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.operators import LAUNCH_SECONDS
from wattcast.predictor.language_model import Call, operator_calls
from wattcast.predictor.messages.operators import Operator
from wattcast.predictor.traces.trace import Kind
from wattcast.predictor.traces.unknown import LEAST_MATRIX_UNITS, capability, family_of

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

PRODUCTS = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0,
    "aten::addmm": 1, "aten::baddbmm": 1, "aten::_addmm_activation": 1,
}  # fmt: skip
"""Place of the first factor among the tensors; the other follows it."""

ATTENTION = {
    "aten::_flash_attention_forward": 2, "aten::_efficient_attention_forward": 2,
    "flash_attn::_flash_attn_forward": 2, "FlashAttnFunc": 2,
    "aten::_scaled_dot_product_flash_attention": 1, "aten::_cudnn_attention_forward": 1,
    "aten::_scaled_dot_product_efficient_attention": 1,
    "aten::_scaled_dot_product_cudnn_attention": 1,
}  # fmt: skip
"""Which of the four extents of a query is the heads; the other one is the tokens."""

TYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "c10::Float8_e4m3fn": "fp8"}
"""Types that models of operators know; products in FP32 and TF32 were not measured."""

BESIDE = re.compile(r"splitk_?reduce|combine|gemv|backward|bwd", re.IGNORECASE)
"""Kernels named after an operator that do not do its work, or another."""

AGREES = 3.0
"""A kernel that lasts less than the operator's model tells by this factor, or longer, is not the
call that was measured. Times of boards left out lie within it (cards of ``pooled``)."""

MOST_ASKED = 20_000
"""Different operators of a board that are answered, those of the most time first."""

MOST_SIZE = 2**31
"""An extent is less; operators of a request are smaller still."""

_OPERATOR: TypeAdapter[Operator] = TypeAdapter(Operator)


class Lasting(NamedTuple):
    """A kind of launch with the seconds of one of them."""

    kind: Kind
    seconds: float


def operator_called(name: str, told: Mapping[str, Any]) -> str:
    """The operator of an event of the host as the text of a request's ``operator``; empty where
    it is none that is known, or its sizes are not told."""
    heads, first = ATTENTION.get(name), PRODUCTS.get(name, 0)
    dims, types = told.get("Input Dims"), told.get("Input type")
    if (heads is None and name not in PRODUCTS) or not (
        isinstance(dims, list) and isinstance(types, list) and len(types) > first
    ):
        return ""
    tensors = dims[first : first + 2]
    if not all(
        isinstance(t, list) and all(type(n) is int and 0 <= n < MOST_SIZE for n in t)
        for t in tensors
    ):
        return ""
    dtype = TYPES.get(types[first]) if isinstance(types[first], str) else None
    match tensors:
        case _ if dtype is None:
            return ""
        case [[m, k], [inner, n]] if heads is None and inner == k:
            asked = {"name": "gemm", "m": m, "n": n, "k": k}
        case [[batch, m, k], [_, inner, n]] if heads is None and inner == k:
            asked = {"name": "batched_gemm", "batch": batch, "m": m, "n": n, "k": k}
        case [[batch, *_, size] as query, [_, *_, _] as keys] if (
            heads is not None and len(query) == len(keys) == 4
        ):
            new, kept = query[3 - heads], keys[3 - heads]
            asked = {
                "name": "attention", "phase": "decode" if new == 1 else "prefill", "batch": batch,
                "new_tokens": new, "cached_tokens": max(kept - new, 0), "heads": query[heads],
                "kv_heads": keys[heads], "head_size": size, "kv_dtype": dtype,
            }  # fmt: skip
        case _:
            return ""
    return json.dumps({**asked, "dtype": dtype})


def library_calls(
    predictor: Predictor, gpu: GpuProfile, served: Mapping[int, Lasting]
) -> dict[int, Call]:
    """Calls of operators that some kinds of launches are, by their numbers; ``served`` begins with
    what takes the most time. Models were fitted on matrix units of Ampere and later ones."""
    if capability(gpu) < LEAST_MATRIX_UNITS:
        return {}
    asked: dict[str, list[int]] = {}
    for number, (kind, _) in served.items():
        if len(asked) < MOST_ASKED or kind.operator in asked:
            asked.setdefault(kind.operator, []).append(number)
    operators: dict[str, Operator] = {}
    for text in asked:
        checkpoint()
        try:
            operators[text] = _OPERATOR.validate_json(text)
        except ValidationError:
            continue
    try:
        calls = operator_calls(predictor, gpu, [*operators.values()])
    except ModelError:
        return {}
    found = {}
    for text, call in zip(operators, calls, strict=True):
        for number in asked[text]:
            ratio = (served[number].seconds + LAUNCH_SECONDS) / call.seconds
            if 1 / AGREES < ratio < AGREES:
                found[number] = call
    return found


def does_the_work(kind: Kind) -> bool:
    """Whether a kernel's name is that of a library's kernel for the operator that called it."""
    if not kind.operator or kind.what != "kernel" or BESIDE.search(kind.name):
        return False
    attention = '"attention"' in kind.operator
    return family_of(kind.name) == ("attention" if attention else "matrix product")
