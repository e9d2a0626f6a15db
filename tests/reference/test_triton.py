"""Triton's PTX computes what numpy says its kernels should, on small shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.kernels.data import bfloat16_bits, bfloat16_values
from tests.fixtures.kernels.expected.tensor import _narrow, _widened
from tests.fixtures.triton.build import HERE
from tests.reference.machine import run

Arrays = dict[str, Any]
Made = tuple[tuple[int, ...], Arrays, dict[str, np.ndarray[Any, Any]]]
RANDOM = 20260201


def _random(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(RANDOM + len(shape)).uniform(-1, 1, shape).astype(dtype)


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return bfloat16_bits(values.astype(np.float32))


def gemm(of: Mapping[str, Any], kind: str) -> Made:
    """One tile more than a tile: masks at every edge."""
    m, n, k = of["BLOCK_M"], of["BLOCK_N"], of["BLOCK_K"] + 16
    a, b = _random(m, k), _random(k, n + 1)[:, :n]
    stored: dict[str, Any]
    if kind == "fp8":
        rows, columns = _narrow(a, 4), _narrow(b, 4)
        stored = {"a": rows, "b": np.ascontiguousarray(columns.T)}
        a, b = _widened(rows, 4), _widened(columns, 4)
        out: Any = np.zeros((m, n), np.float16)
    elif kind == "bf16":
        stored = {"a": _bits(a), "b": _bits(b)}
        a, b = bfloat16_values(stored["a"]), bfloat16_values(stored["b"])
        out = np.zeros((m, n), np.uint16)
    else:
        stored = {"a": a.astype(np.float16), "b": b.astype(np.float16)}
        a, b = stored["a"], stored["b"]
        out = np.zeros((m, n), np.float16)
    wanted = a.astype(float) @ b.astype(float)
    sizes = {"m": np.int32(m), "n": np.int32(n), "k": np.int32(k)}
    return (1,), {**stored, "c": out, **sizes}, {"c": wanted}


def attention(of: Mapping[str, Any], kind: str) -> Made:
    tokens = 2 * of["BLOCK_M"]
    q, k, v = (_random(1, tokens, of["DEPTH"], dtype=np.float16) * (one + 1) for one in range(3))
    scale = np.float32(0.18)
    scores = q.astype(float) @ k.astype(float).swapaxes(1, 2) * float(scale)
    if of["CAUSAL"]:
        scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp2(scores - scores.max(2, keepdims=True))
    wanted = weights @ v.astype(float) / weights.sum(2, keepdims=True)
    given = {"q": q, "k": k, "v": v, "o": np.zeros_like(q), "scale": scale}
    return (tokens // of["BLOCK_M"], 1), {**given, "tokens": np.int32(tokens)}, {"o": wanted}


def softmax(of: Mapping[str, Any], kind: str) -> Made:
    x = 4 * _random(2, 1008)
    power = np.exp(x - x.max(1, keepdims=True))
    given = {"x": x, "y": np.zeros_like(x), "columns": np.int32(1008)}
    return (2,), given, {"y": power / power.sum(1, keepdims=True)}


def layer_norm(of: Mapping[str, Any], kind: str) -> Made:
    x, weight, bias = (_random(*size, dtype=np.float16) for size in ((2, 1056), (1056,), (1056,)))
    wide = x.astype(float)
    centred = wide - wide.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    given = {"x": x, "weight": weight, "bias": bias, "y": np.zeros_like(x)}
    numbers = {"columns": np.int32(1056), "epsilon": np.float32(1e-5)}
    return (2,), {**given, **numbers}, {"y": scaled * weight + bias}


def rms_norm(of: Mapping[str, Any], kind: str) -> Made:
    x, weight = _bits(_random(2, 1008)), _bits(_random(1008))
    wide = bfloat16_values(x).astype(float)
    scaled = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    given = {"x": x, "weight": weight, "y": np.zeros_like(x), "columns": np.int32(1008)}
    wanted = scaled * bfloat16_values(weight)
    return (2,), {**given, "epsilon": np.float32(1e-5)}, {"y": wanted}


def rotary(of: Mapping[str, Any], kind: str) -> Made:
    half, heads, tokens = of["HALF"], 16, 2
    x = _random(tokens, heads, 2 * half, dtype=np.float16)
    angle = _random(tokens, half)
    low, high = x[..., :half].astype(float), x[..., half:].astype(float)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    wanted = np.concatenate([low * cos - high * sin, high * cos + low * sin], 2)
    given = {"x": x, "cosine": np.cos(angle), "sine": np.sin(angle), "heads": np.int32(heads)}
    return (tokens, heads), given, {"x": wanted}


def moe_gather(of: Mapping[str, Any], kind: str) -> Made:
    width, top = of["WIDTH"], of["TOP"]
    x, share = _random(6, width, dtype=np.float16), _random(2, top)
    chosen = np.array([[5, 0, 2, 2], [1, 4, 3, 0]], np.int32)
    wanted = (share[..., None] * x[chosen].astype(float)).sum(1)
    given = {"x": x, "weight": share, "chosen": chosen, "y": np.zeros((2, width), np.float16)}
    return (2, width // of["BLOCK"]), given, {"y": wanted}


def gemv_int4(of: Mapping[str, Any], kind: str) -> Made:
    rows, k = of["BLOCK_M"], 2 * of["BLOCK_K"]
    packed = np.random.default_rng(RANDOM).integers(-(2**31), 2**31, (rows, k // 8), np.int32)
    weights = (packed[..., None].astype(np.int64) >> (4 * np.arange(8)) & 15) - 8
    scales, x = _random(rows, dtype=np.float16), _random(k, dtype=np.float16)
    wanted = weights.reshape(rows, k) @ x.astype(float) * scales
    given = {"packed": packed, "scales": scales, "x": x, "y": np.zeros(rows, np.float16)}
    return (1,), {**given, "k": np.int32(k)}, {"y": wanted}


def row_sum(of: Mapping[str, Any], kind: str) -> Made:
    x = _random(2 * of["BLOCK_M"], 512)
    y = np.zeros(len(x), np.float32)
    return (2,), {"x": x, "y": y, "columns": np.int32(512)}, {"y": x.astype(float).sum(1)}


def total_sum(of: Mapping[str, Any], kind: str) -> Made:
    x = _random(2000)
    given = {"x": x, "y": np.zeros(1, np.float32), "n": np.int32(2000)}
    return (2,), given, {"y": x.astype(float).sum(keepdims=True)}


def sort_rows(of: Mapping[str, Any], kind: str) -> Made:
    x = _random(2, of["BLOCK"])
    return (2,), {"x": x, "y": np.zeros_like(x)}, {"y": np.sort(x, 1)}


def fft_rows(of: Mapping[str, Any], kind: str) -> Made:
    points = of["SIDE"] ** 2
    real, imaginary = _random(1, points), _random(1, 1, points)[0]
    root = np.exp(-2j * np.pi * np.arange(points) / points)
    wanted = np.fft.fft(real + 1j * imaginary)
    given = {"real": real, "imaginary": imaginary}
    table = {"table_real": root.real.astype(np.float32), "table_imaginary": root.imag}
    given |= {name: one.astype(np.float32) for name, one in table.items()}
    return (1,), given, {"real": wanted.real, "imaginary": wanted.imag}


def bias_gelu(of: Mapping[str, Any], kind: str) -> Made:
    x, bias = _random(32, 64, dtype=np.float16), _random(64, dtype=np.float16)
    one = x.astype(float) + bias
    given = {"x": x, "bias": bias, "y": np.zeros_like(x), "columns": np.int32(64)}
    return (2,), given, {"y": one / (1 + np.exp(-1.702 * one))}


KERNELS: dict[str, Callable[[Mapping[str, Any], str], Made]] = {
    "gemm_fp16.sm_*/64x32x32x2x5": gemm, "gemm_fp16.sm_*/128x32x32x4x4": gemm,
    "gemm_fp8.sm_*/128x64x64x4x4": gemm, "attention.sm_*/64x32x4x2": attention,
    **{f"{one.__name__}.sm_*": one for one in (
        softmax, layer_norm, rms_norm, rotary, moe_gather, gemv_int4, row_sum, total_sum,
        sort_rows, fft_rows, bias_gelu,
    )},
}  # fmt: skip

FILES = [
    pytest.param(path, pattern, id=str(path.relative_to(HERE / "ptx").with_suffix("")))
    for pattern in KERNELS
    for path in sorted((HERE / "ptx").glob(f"{pattern}.ptx"))
    if "tcgen05." not in path.read_text()  # the reference interpreter has no tensor memory
]


@pytest.mark.parametrize(("path", "pattern"), FILES)
def test_a_triton_kernel_computes_what_numpy_does(path: Path, pattern: str) -> None:
    told = json.loads(path.with_suffix(".json").read_text())
    kind = next((each for each in ("fp8", "bf16") if each in pattern), "fp16")
    grid, arguments, wanted = KERNELS[pattern](told["constants"], kind)
    ptx = path.read_text()
    parameters = ptx[ptx.index(".entry") :].split(")")[0].count(".param")
    ordered = {each: arguments[each] for each in sorted(arguments, key=told["positions"].get)}
    ordered |= {f"scratch_{one}": np.uint64(0) for one in range(parameters - len(ordered))}
    block = (32 * told["num_warps"],)
    result = run(ptx, told["name"], grid, block, ordered, told.get("shared", 0))
    for each, want in wanted.items():
        got = result.memory[each]
        got = bfloat16_values(got) if got.dtype == np.uint16 else got.astype(float)
        # Half an ulp of the stored type, or the roundings of FP32 sums and approximations.
        near = {"float32": 2e-5, "float16": 1e-3, "uint16": 8e-3}[result.memory[each].dtype.name]
        np.testing.assert_allclose(got, want.reshape(got.shape), near, 4 * near)
