"""Application kernels stay inside their buffers and compute what they are named for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.features.whole_runs import run_whole
from tests.measure.measuring import module
from tests.reference.machine import run as interpret
from wattcast.features.launch import Launch
from wattcast.measure.catalogue import APPLICATIONS, micro, workload_of
from wattcast.measure.driver import fillings
from wattcast.measure.workload import Board, Buffer, Workload

Array = npt.NDArray[Any]
TYPES = {"u8": "u1", "u32": "u4", "u64": "u8", "f16": "f2", "f32": "f4", "f64": "f8"}

SIZES = {
    2**20: 4096, 2**18: 4096, 2**16: 1024, 2**14: 512, 2**13: 256, 1024: 64, 512: 64, 2048: 128,
    256: 2, 128: 32, 64: 16, 4096: 128,
}  # fmt: skip
"""Small stand-ins for the sizes of the first launches."""
ROWS = {  # kernels whose size is a number of blocks or of rows
    "triangular_solve": 2, "cholesky_batched": 2, "fft_radix2": 2, "walsh_hadamard": 2,
    "needleman_tile": 2, "binomial_tree": 2, "bitonic_sort": 2, "softmax": 2, "layer_norm": 2,
    "gemm_matrix_2x2": 128,
}  # fmt: skip


def run(
    shape: Workload, *, products: bool = False
) -> tuple[list[Any], list[Array | None], set[str]]:
    """Arguments before, buffers after, and codes of diagnostics of a launch run whole."""
    before: list[Any] = []
    arguments: dict[str, int | float] = {}
    buffers: dict[int, Array] = {}
    ptx, kernel = shape.ptx, shape.kernel
    for at, given in enumerate(shape.arguments):
        if isinstance(given, Buffer):
            # Far apart, so that whatever runs over an end hits nothing.
            base = (at + 1) << 32
            data = np.zeros(given.elements, TYPES[given.element])
            for offset, part in fillings(given, "uniform", base, at):
                start = offset // data.itemsize
                data[start : start + len(part)] = part
            buffers[base] = data
            arguments[str(at)] = base
            before.append(data.copy())
        else:
            arguments[str(at)] = given.value
            before.append(given.value)
    launch = Launch(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    result, contents = run_whole(module(ptx).kernel(kernel), module(ptx), launch, buffers)
    if products and "mma." in ptx:  # the engine does not follow what matrix units give
        names = [parameter.name for parameter in module(ptx).kernel(kernel).parameters]
        block, dynamic = shape.block, shape.dynamic_shared_bytes
        held = [one if isinstance(one, np.ndarray) else np.int32(one) for one in before]
        values = dict(zip(names, held, strict=True))
        found = interpret(ptx, kernel, shape.grid, block, values, dynamic).memory
        return before, [found.get(name) for name in names], {d.code for d in result.diagnostics}
    after = [
        contents[(at + 1) << 32].view(TYPES[given.element]) if isinstance(given, Buffer) else None
        for at, given in enumerate(shape.arguments)
    ]
    return before, after, {d.code for d in result.diagnostics}


def square(data: Array) -> Array:
    edge = round(len(data) ** 0.5)
    return data.reshape(edge, edge)


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    rows = x.reshape(-1, 1024)
    deviation = np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    return np.asarray((rows - rows.mean(1, keepdims=True)) / deviation * gain + bias)


def softmax(rows: Array) -> Array:
    weights = np.exp(rows - rows.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def triangular(a: Array, b: Array) -> Array:
    lower = np.tril(a.reshape(-1, 64, 64)) + 2 * np.eye(64)
    return np.linalg.solve(lower, b.reshape(-1, 64, 1))


def cholesky(a: Array) -> Array:
    m = a.reshape(-1, 32, 32).transpose(0, 2, 1)
    lower = np.tril(m, -1)
    diagonal = m[:, range(32), range(32)][:, :, None] * np.eye(32) + 64 * np.eye(32)
    return np.linalg.cholesky(lower + lower.transpose(0, 2, 1) + diagonal)


def spmv(lengths: Array, cols: Array, values: Array, x: Array, width: int) -> Array:
    entries = (values * x[cols]).reshape(-1, width)
    return np.asarray(np.where(np.arange(width) < lengths[:, None], entries, 0).sum(1))


def fourier(data: Array) -> Array:
    points = data.reshape(-1, 1024, 2)
    found = np.fft.fft(points[..., 0] + 1j * points[..., 1])
    return np.stack([found.real, found.imag], -1)


def ranks(keys: Array, shift: int) -> Array:
    digits = ((keys >> shift) & 15).reshape(-1, 32)
    return np.stack([(digits[:, :k] == digits[:, k : k + 1]).sum(1) for k in range(32)], 1)


def walsh(x: Array) -> Array:
    matrix = np.ones((1, 1))
    for _ in range(10):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x.reshape(-1, 1024) @ matrix


def cosine(image: Array) -> Array:
    k = np.arange(8)
    basis = np.cos((2 * k[None] + 1) * k[:, None] * np.pi / 16) * 0.5
    basis[0] = 0.35355339
    edge = len(image) // 8
    tiles = image.reshape(edge, 8, edge, 8).transpose(0, 2, 1, 3)
    return (basis @ tiles @ basis.T).transpose(0, 2, 1, 3).reshape(image.shape)


def attention(q: Array, k: Array, v: Array) -> Array:
    return softmax(q.reshape(-1, 32) @ k.reshape(-1, 32).T * 0.17677670) @ v.reshape(-1, 32)


def scores(q: Array, k: Array) -> Array:
    return np.asarray(0.125 * q.reshape(-1, 64).astype("f4") @ k.reshape(-1, 64).T.astype("f4"))


def running(x: Array, block: int) -> Array:
    return np.cumsum(x.reshape(-1, block), 1)


def product(a: Array, b: Array, *_: Any) -> Array:
    return np.asarray(square(a).astype("f8") @ square(b).astype("f8"))


EXPECTED: dict[str, tuple[int, Callable[..., Any]]] = {
    **{f"gemm_{kind}": (2, product) for kind in
       ("naive", "tiled", "tiled_f64", "register", "matrix", "matrix_2x2")},
    "gemv_warp": (2, lambda a, x, *_: square(a) @ x),
    "gemv_transposed": (2, lambda a, x, *_: square(a).T @ x),
    "axpy": (2, lambda x, y, z, a, n: a * x + y),
    "triad_f64": (2, lambda x, y, z, a, n: x + a * y),
    "rank_one": (3, lambda a, x, y, *_: square(a) + np.outer(x, y)),
    "triangular_solve": (2, lambda a, b, _: triangular(a, b)),
    "transpose_naive": (1, lambda a, *_: square(a).T),
    "transpose_tiled": (1, lambda a, *_: square(a).T),
    "spmv_csr_scalar": (4, lambda r, c, v, x, y, d, n: spmv(r, c, v, x, d)),
    "spmv_csr_vector": (4, lambda r, c, v, x, y, d, n: spmv(r, c, v, x, d)),
    "spmv_ell": (3, lambda c, v, x, y, d, n: (v * x[c]).reshape(d, n).sum(0)),
    "spmv_coo": (4, lambda r, c, v, x, y, n: np.bincount(r, v * x[c], len(y))),
    "fft_radix2": (1, lambda a, _: fourier(a)),
    "walsh_hadamard": (1, lambda a, _: walsh(a)),
    "dct_8x8": (1, lambda a, *_: cosine(square(a))),
    "floyd_warshall_step": (
        1, lambda a, o, k, n: np.minimum(square(a), np.add.outer(square(a)[:, k], square(a)[k]))),
    "bitonic_sort": (1, lambda k, _: np.sort(k.reshape(-1, 1024), 1)),
    "radix_rank": (1, lambda k, o, shift, n: ranks(k, shift)),
    "scan_block": (1, lambda x, _: running(x, 256)),
    "scan_warps": (1, lambda x, _: running(x, 256)),
    "dot_shuffle": (2, lambda a, b, *_: np.array([a @ b])),
    "histogram_shared": (1, lambda x, *_: np.bincount(x % 256, minlength=256)),
    "histogram_global": (1, lambda x, *_: np.bincount(x % 4096, minlength=4096)),
    "grey": (1, lambda c, *_: 0.299 * (c & 255) + 0.587 * (c >> 8 & 255) + 0.114 * (c >> 16 & 255)),
    "kmeans_sum": (2, lambda p, c, *_: np.bincount(c, p, 1024)),
    "softmax": (1, lambda x, *_: softmax(x.reshape(-1, 1024))),
    "layer_norm": (3, lambda x, g, b, *_: layer_norm(x, g, b)),
    "gelu": (1, lambda x, *_: 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x**3)))),
    "swiglu": (2, lambda g, x, *_: g / (1 + np.exp(-g)) * x),
    "embedding": (2, lambda t, table, *_: table.reshape(-1, 256)[t]),
    "attention_scores": (2, lambda q, k, *_: scores(q, k)),
    "attention_scores_matrix": (2, lambda q, k, *_: scores(q, k)),
    "attention_tile": (3, lambda q, k, v, *_: attention(q, k, v)),
    "max_pool": (1, lambda x, o, n: x.reshape(n, 2, n, 2).max((1, 3))),
}  # fmt: skip
"""Number of the argument that holds the result, and what it should hold."""


@pytest.mark.parametrize("kernel", APPLICATIONS)
def test_an_application_stays_in_its_buffers_and_is_right(kernel: str) -> None:
    one = APPLICATIONS[kernel]
    assert not isinstance(one.launches, str)
    size, threads = one.launches[0]
    before, after, codes = run(
        workload_of(kernel, ROWS.get(kernel, SIZES[size]), threads), products=True
    )
    assert not codes
    if kernel == "cholesky_batched":
        found = after[1]
        assert found is not None
        lower = np.tril(found.reshape(-1, 32, 32).transpose(0, 2, 1))
        np.testing.assert_allclose(lower, cholesky(before[0]), atol=1e-4)
        return
    if kernel in EXPECTED:
        at, reference = EXPECTED[kernel]
        found = after[at]
        assert found is not None
        wanted = np.asarray(reference(*before)).reshape(-1)
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
    else:
        assert any(
            isinstance(old, np.ndarray) and new is not None and not np.array_equal(old, new)
            for old, new in zip(before, after, strict=True)
        ), "nothing was written"


def smallest() -> list[Workload]:
    """Of every microbenchmark kernel the configuration with the least threads and data."""
    board = Board(
        sm_count=2, compute_capability=(9, 0), l2_bytes=2**18, memory_bytes=2**22,
        max_threads_per_sm=2048, core_mhz=1e-3,
    )  # fmt: skip
    found: dict[str, Workload] = {}
    for one in sorted(micro(board), key=lambda one: -math.prod(one.block) * one.grid[0]):
        found[one.kernel] = one
    return list(found.values())


@pytest.mark.parametrize("one", smallest(), ids=lambda one: one.kernel)
def test_a_microbenchmark_stays_in_its_buffers(one: Workload) -> None:
    before, after, codes = run(one)
    assert not codes
    if one.kernel.startswith("chase"):
        ring, reached = one.arguments[1], after[0]
        assert isinstance(ring, Buffer)
        assert ring.stride_bytes is not None
        assert reached is not None
        assert reached[0] % ring.stride_bytes == 0
        assert reached[0] < ring.bytes
    elif before and "mma." not in one.ptx:
        assert any(
            isinstance(old, np.ndarray) and not np.array_equal(old, new)
            for old, new in zip(before, after, strict=True)
            if new is not None
        ), "nothing was written"
