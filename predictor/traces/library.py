"""Kernels of libraries in traces: products, attention and memory-bound operators, as what they are.

The PyTorch profiler with ``record_shapes`` tells sizes and types of the tensors of each operator
(``Input Dims``, ``Input type``: pytorch/kineto; PyTorch, torch/csrc/profiler). The kernel that
does its work is told by its name; its power is that of the operator's model at these sizes, its
time the measured one. Operators by the signatures of PyTorch's ``native_functions.yaml`` and of
FlashAttention (flash_attn_interface.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, hypot, log, prod
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from wattcast.features import errors, gpus
from wattcast.models.intervals import BASIS_ORDER, Basis, Estimate
from wattcast.models.operators import LAUNCH_SECONDS
from wattcast.predictor import Predictor, language_model
from wattcast.predictor.messages.operators import Operator
from wattcast.predictor.parts.operators import OPERATOR, checked_format
from wattcast.predictor.traces.trace import Kind

# Power of a kernel that nobody has the code of: from its launch, its name and its data type.
#
#     P = standing + SHARE (limit - standing) min(1, threads / (256 SMs))
#
# ``SHARE`` and the interval are those of kernel families left out in turn on nine boards, each
# board left out too: ``python -m studies unknown-kernels`` prints them. Families of names
# (elementwise, reductions...) did not predict power better than one share for all there, so a name
# decides only for products of libraries and copies. Products of libraries were measured in 16 bits
# and less alone (``BY_TIME``); ``PRODUCT_SHARE`` is of kernels that stand in for all others.
# Data types do not tell those apart: kernels that keep the FP64 pipes full drew less than those of
# FP32, but none of them was a product.

SHARE = 0.25
"""Median over boards and families of what a kernel moves of what its board may: the same study."""

LOW, HIGH = 0.42, 1.62
"""Measured over predicted power that held 90 % of families left out with their boards: the same
study. Those of eight boards held 90 % of the ninth's, on average (K20 68 %, V100 74 %)."""

PRODUCT_SHARE, PRODUCT_LOW = 0.48, 0.50
"""The same of what stands in for products of libraries: matrix products and convolutions by hand,
and kernels that keep the FP32 pipes full, boards left out. The upper end of a product is the
board's limit, which a large BF16 product reaches on an A100 (He 2024, ``TENSOR_PICOJOULES`` in
models/power/physical.py)."""

LEAST_MATRIX_UNITS = 8.0
"""Compute capability from which operators were measured: Ampere's."""

LEVEL = 0.9

FULL_THREADS = 256
"""Threads of an SM from which it counts as full. Of none, 256, 1024 and 2048 the errors left out
are 42, 39, 38 and 36 % (the same study of revision 7a90c5a6); more would call products with many
registers half empty."""

Family = Literal[
    "matrix product", "convolution", "attention", "elementwise", "reduction", "normalisation",
    "memory", "communication", "random numbers", "sort", "copy", "other",
]  # fmt: skip

FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))  # type: ignore[misc]
    for family, pattern in (
        ("communication", r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|cross_device"),
        (
            "attention",
            r"(?<!cache_)flash(?!infer)|flashinfer::\w*(?:prefill|decode)|fmha|attention"
            r"|attn|sdpa",
        ),
        ("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|implicit|scudnn"),
        (
            "matrix product",
            r"^(?!triton_(?:poi|per|red|for)_).*(?:(?<!fb)gemm|gemv|matmul|cutlass|addbm?m|"
            r"addmm|_b?mm(?:_|$)|cublas|nvjet|marlin|fused_moe_kernel)",
        ),
        ("normalisation", r"norm|softmax|bn_[bf]w"),
        ("reduction", r"reduc|scan|cumsum|argmax|_sum_|_mean_|dot_kernel|nrm2|asum"),
        ("sort", r"sort|topk|histogram|unique"),
        ("memory", r"embedding"),
        ("random numbers", r"random|philox|curand|distribution|dropout|sobol"),
        (
            "memory",
            r"copy|cache|cat(?:array|_)|fill|gather|scatter|index|embed|transpose|perm|"
            r"pad|pool|nchw",
        ),
        ("elementwise", r"elementwise|pointwise|_poi_|vector|add|mul|relu|gelu|adam|sgd"),
    )
)
"""By the words that cuBLAS, cuDNN, PyTorch, NCCL and Triton's inductor put into names. The first
that is met counts."""

DATA_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8(?!kv)|float8|nvjet_(?:sm\d+_)?q", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?t", re.IGNORECASE)),
    ("fp16", re.compile(r"fp?16|half|h(?:gemm|884|1688|16816)|nvjet_(?:sm\d+_)?h", re.IGNORECASE)),
    ("int8", re.compile(r"int8|s8s8|i8i8|imma|igemm", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|tensorop_s1688gemm", re.IGNORECASE)),
    ("fp64", re.compile(r"double|dgemm|f64|fp64", re.IGNORECASE)),
    ("fp32", re.compile(r"float|sgemm|f32|fp32|scudnn", re.IGNORECASE)),
)
STREAMING = ("elementwise", "normalisation", "memory")
PASSES = (*STREAMING, "reduction")
PRODUCT_FAMILIES = ("matrix product", "convolution", "attention")


class Unknown(NamedTuple):
    """An answer from the outside of a kernel. ``why`` says what it rests on."""

    power: Estimate
    family: Family
    data_type: str | None
    why: str


def family_of(name: str) -> Family:
    """What kind of work a name speaks of."""
    return next((family for family, words in FAMILIES if words.search(name)), "other")


def data_type_of(name: str) -> str | None:
    """The narrowest data type that a name speaks of."""
    return next((kind for kind, words in DATA_TYPES if words.search(name)), None)


def capability(gpu: gpus.GpuProfile) -> float:
    """Compute capability as a number."""
    return float(gpu.compute_capability)


def unknown_power(
    kind: Kind,
    gpu: gpus.GpuProfile,
    standing_watts: float,
    idle_watts: float,
    board_width: float,
    limit_watts: float = 0.0,
) -> Unknown:
    """Watts of a launch without code on a board of this kind.

    ``standing_watts`` is what the board draws with its clocks up and nothing to do, ``limit_watts``
    the most it was measured at, where that is above its limit; ``board_width`` the half width, in
    logarithms, of what is known of the board itself (0 for one that was measured).
    """
    limit = gpu.tdp_watts
    least, highest = idle_watts * exp(-board_width), max(limit, limit_watts)
    basis: Basis = "uncalibrated" if board_width else "extrapolated"

    def within(value: float, low: float, high: float) -> Estimate:
        below = value * exp(-hypot(log(value / low), board_width))
        above = value * exp(hypot(log(high / value), board_width))
        ends = min(value, max(below, least)), max(value, min(above, highest))
        return Estimate(value, *ends, LEVEL, basis)

    data_type = data_type_of(kind.name)
    full = 1.0
    if kind.what == "kernel":
        threads = prod(kind.grid) * prod(kind.block)
        full = min(1.0, threads / (FULL_THREADS * gpu.sm_count)) if threads else 1.0
    usual = standing_watts + SHARE * full * (limit - standing_watts)
    if kind.what != "kernel":
        across = not kind.name.endswith(("DtoD", "Memset"))
        if across:
            why = "a copy over the bus: the board with its clocks up; nobody published more"
            return Unknown(within(standing_watts, idle_watts, usual), "copy", None, why)
        why = "memory is written at the rate of an ordinary kernel"
        return Unknown(within(usual, LOW * usual, HIGH * usual), "copy", None, why)
    family = family_of(kind.name)
    if family in PRODUCT_FAMILIES:
        value = standing_watts + PRODUCT_SHARE * full * (limit - standing_watts)
        why = "a library's product, of which none was measured: as products by hand and full pipes"
        high = max(standing_watts + full * (highest - standing_watts), HIGH * value)
        return Unknown(within(value, PRODUCT_LOW * value, high), family, data_type, why)
    why = f"as kernels that were left out in turn: {full:.0%} of the board has threads"
    return Unknown(within(usual, LOW * usual, HIGH * usual), family, data_type, why)


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

STREAMS = {
    f"aten::{name}": kind
    for kind, names in (
        ("elementwise", "add add_ sub mul mul_ div div_ pow neg where exp rsqrt sigmoid copy_"),
        ("activation", "gelu silu relu relu_ gelu_backward silu_backward threshold_backward"),
        ("softmax", "_softmax _softmax_backward_data _log_softmax"),
        ("norm", "native_layer_norm _fused_rms_norm cudnn_batch_norm"),
    )
    for name in names.split()
}
"""Operators of ``aten`` that read their tensors once and write one as large as the largest."""

WIDTHS = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "int": 4, "long int": 8,
          "bool": 1, "unsigned char": 1, "c10::Float8_e4m3fn": 1}  # fmt: skip
"""Bytes of an element."""

TYPES = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "c10::Float8_e4m3fn": "fp8"}
"""Types that models of operators know; products in FP32 and TF32 were not measured."""

BESIDE = re.compile(r"splitk_?reduce|combine|prepare|backward|bwd|bprop", re.IGNORECASE)
"""Kernels named after an operator that do not do its work, or another."""

ONE_ROW = re.compile(r'"[mn]": 1,')
"""Products of a matrix and a vector: the only ones that kernels named ``gemv`` do."""

AGREES = 3.0
"""A kernel that lasts less than the operator's model tells by this factor, or longer, is not the
call that was measured. Times of boards left out lie within it (cards of ``pooled``)."""

MOST_ASKED = 20_000
"""Different operators of a board that are answered, those of the most time first."""

MOST_SIZE = 2**31
"""An extent is less; operators of a request are smaller still."""


class Served(NamedTuple):
    """A kind of launch with the time it took: seconds of all its launches, and their number."""

    kind: Kind
    seconds: float
    launches: int

    @property
    def mean_seconds(self) -> float:
        """Of one launch."""
        return self.seconds / self.launches


def operator_called(name: str, told: Mapping[str, Any]) -> str:
    """The operator of an event of the host as the text of a request's ``operator``; empty where
    it is none that is known, or its sizes are not told."""
    heads, first = ATTENTION.get(name), PRODUCTS.get(name, 0)
    dims, types = told.get("Input Dims"), told.get("Input type")
    if (stream := STREAMS.get(name)) is not None:
        return _stream(stream, name, dims, types)
    if (heads is None and name not in PRODUCTS) or not (
        isinstance(dims, list) and isinstance(types, list) and len(types) > first
    ):
        return ""
    tensors = dims[first : first + 2]
    if not all(map(_extents, tensors)):
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


def _extents(tensor: Any) -> bool:
    return isinstance(tensor, list) and all(type(n) is int and 0 <= n < MOST_SIZE for n in tensor)


def _stream(stream: str, name: str, dims: Any, types: Any) -> str:
    """The bytes that an operator of ``STREAMS`` moves, as ``operator_called`` tells them."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return ""
    sizes = [
        prod(each) * WIDTHS[kind]
        for each, kind in zip(dims, types, strict=False)
        if isinstance(kind, str) and kind in WIDTHS and _extents(each) and each
    ]
    if not sizes:
        return ""
    read, written = sum(sizes), max(sizes)
    if name == "aten::copy_":  # writes its first tensor and does not read it
        read, written = sum(sizes[1:]), sizes[0]
    return json.dumps({"name": stream, "read_bytes": read, "write_bytes": written})


def library_calls(
    predictor: Predictor, gpu: gpus.GpuProfile, served: Mapping[int, Served]
) -> dict[int, language_model.Call]:
    """Calls of operators that some kinds of launches are, by their numbers; ``served`` begins with
    what takes the most time. Models were fitted on matrix units of Ampere and later ones."""
    if capability(gpu) < LEAST_MATRIX_UNITS:
        return {}
    asked: dict[str, list[int]] = {}
    for number, one in served.items():
        if len(asked) < MOST_ASKED or one.kind.operator in asked:
            asked.setdefault(one.kind.operator, []).append(number)
    operators: dict[str, Operator] = {}
    for text in asked:
        errors.checkpoint()
        try:
            operators[text] = OPERATOR.validate_json(text)
        except ValidationError:
            continue
    try:
        calls = language_model.operator_calls(predictor, gpu, [*operators.values()])
    except errors.ModelError:
        return {}
    found = {}
    for text, call in zip(operators, calls, strict=True):
        if "_bytes" in text:  # answered as another pass over as many bytes
            call = call._replace(basis=max(call.basis, "extrapolated", key=BASIS_ORDER.index))
        for number in asked[text]:
            ratio = (served[number].mean_seconds + LAUNCH_SECONDS) / call.seconds
            if 1 / AGREES < ratio < AGREES:
                found[number] = call
    return found


def does_the_work(kind: Kind) -> bool:
    """Whether a kernel's name is that of a library's kernel for the operator that called it."""
    if not kind.operator or kind.what != "kernel" or BESIDE.search(kind.name):
        return False
    family = family_of(kind.name)
    if "_bytes" in kind.operator:
        return family in STREAMING
    if '"attention"' in kind.operator:
        return family == "attention"
    able = "gemv" not in kind.name or ONE_ROW.search(kind.operator) is not None
    return able and family == "matrix product"


# --- launches whose sizes nobody told ------------------------------------------------------------


class Like(NamedTuple):
    """Operators of any size: ``of`` names the values that are the size, ``bytes`` those that are as
    many times its square. Ends are measured over predicted watts that held 90 % of shape groups on
    the worse of H200 and B200, where the size was told by the time alone (``python -m studies
    library-kernels``)."""

    shapes: Sequence[Mapping[str, Any]]
    of: Sequence[str]
    low: float
    high: float
    bytes: Mapping[str, int] = {}

    def sized(self, shape: Mapping[str, Any], size: int) -> dict[str, Any]:
        """One of the shapes as a request's ``operator``."""
        squares = {name: times * size * size for name, times in self.bytes.items()}
        return {**shape, **dict.fromkeys(self.of, size), **squares}


_ATTENTION = [
    {"name": "attention", "batch": batch, "heads": heads, "kv_heads": kv_heads, "head_size": size}
    for batch, heads, kv_heads, size in product((1, 8, 64), (4, 16, 64), (1, 4), (64, 128))
]
_NEW, _CACHED = ["new_tokens"], ["cached_tokens"]
BY_TIME: Mapping[str, Like] = {
    "product": Like([{"name": "gemm"}], "mnk", 0.58, 2.42),
    "row": Like([{"name": "gemm", "m": 1}], "nk", 0.58, 2.42),
    "prefill": Like([one | {"phase": "prefill"} for one in _ATTENTION], _NEW, 0.51, 1.45),
    "decode": Like([one | {"phase": "decode"} for one in _ATTENTION], _CACHED, 0.62, 2.22),
    "pass": Like([{"name": "elementwise"}], (), LOW, 1.67, {"read_bytes": 2, "write_bytes": 1}),
}
"""A kernel of which a trace tells name and time draws what operators of its kind do at the sizes
that take as long: of several shapes the geometric mean. A pass moves at most what its time lets
through: its lower end is that of any kernel (``LOW``)."""

SIZES = [round(2 ** (step / 2)) for step in range(8, 33)]
MATRIX_TYPES = ("bf16", "fp16", "fp8", "tf32")
"""Formats of matrix units. A convolution in one of them is a product whose first factor is put
together on the way (implicit GEMM: NVIDIA cuDNN, Convolution Algorithms); one that names none may
be in FP32."""

DECODES = re.compile(r"decode|splitkv|paged|generation|mqa", re.IGNORECASE)


def like(kind: Kind) -> tuple[str, str] | None:
    """The operator of ``BY_TIME`` that does work as a kernel's, and its format, by its name."""
    family, data_type = family_of(kind.name), data_type_of(kind.name)
    beside = BESIDE.search(kind.name)
    if kind.what != "kernel":
        return None
    if family in PASSES or (beside and beside[0].lower() in ("combine", "prepare")):
        return "pass", ""
    if "reduce" in kind.name.lower() and family == "matrix product":
        return "pass", ""
    if data_type not in MATRIX_TYPES and (data_type or family == "convolution"):
        return None
    dtype = "fp8" if data_type == "fp8" else "bfloat16"
    if family in ("matrix product", "convolution"):
        return "row" if "gemv" in kind.name else "product", dtype
    if family == "attention":
        return "decode" if DECODES.search(kind.name) else "prefill", "bfloat16"
    return None


def calls_by_time(
    predictor: Predictor, gpu: gpus.GpuProfile, served: Mapping[int, Served]
) -> dict[int, language_model.Call]:
    """Calls of operators that launches without sizes are taken for, by their numbers."""
    if capability(gpu) < LEAST_MATRIX_UNITS:
        return {}
    alike: dict[tuple[str, str], list[int]] = {}
    for number, one in served.items():
        if (found := like(one.kind)) is not None:
            alike.setdefault(found, []).append(number)
    told: dict[int, language_model.Call] = {}
    for (name, dtype), numbers in alike.items():
        each = [served[number].mean_seconds for number in numbers]
        told.update(zip(numbers, at_times(predictor, gpu, name, dtype, each), strict=False))
    return told


def at_times(
    predictor: Predictor, gpu: gpus.GpuProfile, name: str, dtype: str, seconds: Sequence[float]
) -> list[language_model.Call]:
    """Calls of ``BY_TIME`` at the sizes that take so long; the smallest and the largest size for
    what lasts shorter or longer. Empty where nothing tells them."""
    one = BY_TIME[name]
    format_ = {"dtype": dtype} if dtype else {}
    shapes = [one.sized(shape, size) | format_ for shape in one.shapes for size in SIZES]
    try:
        checked_format(dtype, gpu)
        operators = [OPERATOR.validate_python(shape) for shape in shapes]
        calls = language_model.operator_calls(predictor, gpu, operators)
    except (errors.LaunchError, errors.ModelError):
        return []
    told = np.log([(call.seconds, call.watts) for call in calls]).reshape(-1, len(SIZES), 2)
    wanted = np.log(np.maximum(seconds, 1e-9))
    each = [np.interp(wanted, np.maximum.accumulate(row[:, 0]), row[:, 1]) for row in told]
    nearest = np.abs(wanted[:, None] - told[:, :, 0].mean(axis=0)).argmin(axis=1)
    found = []
    for at, watts in zip(nearest.tolist(), np.exp(np.mean(each, axis=0)).tolist(), strict=True):
        call = calls[at]
        ends = one.low, one.high
        if call.basis == "uncalibrated":  # what is not known of the board beside it
            low, high = (
                hypot(*map(log, pair)) for pair in zip(call.power_width, ends, strict=True)
            )
            ends = exp(-low), exp(high)
        basis = max(call.basis, "extrapolated", key=BASIS_ORDER.index)
        found.append(call._replace(watts=watts, basis=basis, power_width=ends))
    return found
