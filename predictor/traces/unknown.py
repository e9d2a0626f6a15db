"""Power of a kernel that nobody has the code of: from its launch, its name and its data type.

    P = standing + SHARE (limit - standing) min(1, threads / (256 SMs))

``SHARE`` and the interval are those of kernel families left out in turn on nine boards, each board
left out too: ``python -m studies unknown-kernels`` prints them. Families of names (elementwise,
reductions...) did not predict power better than one share for all there, so a name decides only
for products of libraries and copies. Products of libraries were measured in half precision alone
(``HALF_SHARE``); ``PRODUCT_SHARE`` is of kernels that stand in for all others. Data types do not
tell those apart: kernels that keep the FP64 pipes full drew less than those of FP32, but none of
them was a product.
"""

from __future__ import annotations

import re
from math import exp, hypot, log, prod
from typing import Literal, NamedTuple

from wattcast.features.gpus import GpuProfile
from wattcast.models.estimate import Basis, Estimate
from wattcast.predictor.traces.trace import Kind

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

HALF_SHARE, HALF_LOW, HALF_SECONDS = 0.96, 0.44, 2e-5
"""Share of its limit that a board draws in a half-precision product of matrix units that lasts so
long, and the lower end of the interval, whose upper one is the limit: median and 5 % of cuBLAS'
products on H200 and B200 (``python -m studies library-kernels``). Shorter ones scatter from idling
to the limit, and so do attention and experts: no constant tells them."""

LEAST_MATRIX_UNITS = 8.0
"""Compute capability from which that holds, Ampere's: none was measured on older matrix units."""

LEVEL = 0.9

FULL_THREADS = 256
"""Threads of an SM from which it counts as full. Of none, 256, 1024 and 2048 the errors left out
are 42, 39, 38 and 36 %; more would call products with many registers half empty."""

Family = Literal[
    "matrix product", "convolution", "attention", "elementwise", "reduction", "normalisation",
    "memory", "communication", "random numbers", "sort", "copy", "other",
]  # fmt: skip

FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))  # type: ignore[misc]
    for family, pattern in (
        ("communication", r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter"),
        ("attention", r"flash|fmha|attention|attn"),
        ("convolution", r"conv|cudnn.*(?:fprop|dgrad|wgrad)|fprop|dgrad|wgrad|winograd|implicit"),
        ("matrix product", r"gemm|gemv|matmul|cutlass|_mm_|cublas|s\d{3,5}(?:cudnn|gemm)|nvjet"),
        ("normalisation", r"norm|softmax"),
        ("reduction", r"reduc|scan|cumsum|argmax|_sum_|_mean_|dot_kernel|nrm2|asum"),
        ("sort", r"sort|topk|histogram|unique"),
        ("random numbers", r"random|philox|curand|distribution|dropout|sobol"),
        ("memory", r"copy|cat(?:array|_)|fill|gather|scatter|index|embedding|transpose|pad|nchw"),
        ("elementwise", r"elementwise|pointwise|_poi_|vector|add|mul|relu|gelu|adam|sgd"),
    )
)
"""By the words that cuBLAS, cuDNN, PyTorch, NCCL and Triton's inductor put into names. The first
that is met counts."""

DATA_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_(?:sm\d+_)?t", re.IGNORECASE)),
    ("fp8", re.compile(r"e4m3|e5m2|fp8|float8|nvjet_(?:sm\d+_)?q", re.IGNORECASE)),
    ("fp16", re.compile(r"f16|half|h(?:gemm|884|1688|16816)|nvjet_(?:sm\d+_)?h", re.IGNORECASE)),
    ("int8", re.compile(r"int8|s8s8|i8i8|imma|igemm", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
    ("fp64", re.compile(r"double|dgemm|f64|fp64", re.IGNORECASE)),
    ("fp32", re.compile(r"float|sgemm|f32|fp32|scudnn", re.IGNORECASE)),
)
PRODUCTS = ("matrix product", "convolution", "attention")


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


def capability(gpu: GpuProfile) -> float:
    """Compute capability as a number."""
    return float(gpu.compute_capability)


def unknown_power(
    kind: Kind,
    gpu: GpuProfile,
    standing_watts: float,
    idle_watts: float,
    board_width: float,
    limit_watts: float = 0.0,
    seconds: float = 0.0,
) -> Unknown:
    """Watts of a launch without code on a board of this kind.

    ``standing_watts`` is what the board draws with its clocks up and nothing to do, ``limit_watts``
    the most it was measured at, where that is above its limit; ``board_width`` the half width, in
    logarithms, of what is known of the board itself (0 for one that was measured);
    ``seconds`` what one launch lasts.
    """
    limit = gpu.tdp_watts
    least, highest = idle_watts * exp(-board_width), max(limit, limit_watts)
    basis: Basis = "uncalibrated" if board_width else "extrapolated"

    def within(value: float, low: float, high: float) -> Estimate:
        ends = (
            exp(-hypot(log(value / low), board_width)),
            exp(hypot(log(high / value), board_width)),
        )
        return Estimate(
            value,
            min(value, max(value * ends[0], least)),
            max(value, min(value * ends[1], highest)),
            LEVEL,
            basis,
        )

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
    half = family == "matrix product" and data_type in ("bf16", "fp16") and "gemv" not in kind.name
    if half and full == 1.0 and seconds >= HALF_SECONDS and capability(gpu) >= LEAST_MATRIX_UNITS:
        why = "a half-precision product of 20 us or more, as measured on H200 and B200"
        value = max(HALF_SHARE * limit, standing_watts)
        return Unknown(within(value, HALF_LOW * limit, highest), family, data_type, why)
    if family in PRODUCTS:
        value = standing_watts + PRODUCT_SHARE * full * (limit - standing_watts)
        why = "a library's product, of which none was measured: as products by hand and full pipes"
        high = max(standing_watts + full * (highest - standing_watts), HIGH * value)
        return Unknown(within(value, PRODUCT_LOW * value, high), family, data_type, why)
    why = f"as kernels that were left out in turn: {full:.0%} of the board has threads"
    return Unknown(within(usual, LOW * usual, HIGH * usual), family, data_type, why)
