"""Launches of fixture kernels small enough to play whole, and GPUs small enough for them to matter.

Caches hold what those of real GPUs hold for each resident thread (16 to 64 bytes of L1, 32 to 50
of L2), and data are larger than L2.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fixtures.kernels.data import Buffer, Shape
from tests.fixtures.kernels.launches.table import (
    doubles,
    f32,
    floats,
    i32,
    i64,
    integers,
    u64,
    zeros,
)


class Scale(NamedTuple):
    """A small GPU: ``threads_per_sm`` are resident, sizes are bytes."""

    name: str
    sm_count: int
    threads_per_sm: int
    l1_bytes: int
    l2_bytes: int


SCALES = (
    Scale("large L1", 5, 256, 16384, 43008),
    Scale("small L1", 7, 256, 6144, 30720),
    Scale("tiny", 3, 128, 4096, 18432),
)


def _matmul(grid: tuple[int, int], block: tuple[int, int], m: int, n: int, k: int) -> Shape:
    return Shape(
        grid,
        block,
        {
            "c": zeros("float32", m, n), "a": floats(m, k), "b": floats(k, n),
            "m": i32(m), "n": i32(n), "k": i32(k),
        },
    )  # fmt: skip


def _transpose(width: int, height: int) -> Shape:
    return Shape(
        (width // 32, height // 32),
        (32, 8),
        {
            "out": zeros("float32", width, height), "in": floats(height, width),
            "width": i32(width), "height": i32(height),
        },
    )  # fmt: skip


def _spmv(grid: int, block: int, rows: int, longest: int) -> Shape:
    return Shape(
        (grid,),
        (block,),
        {
            "y": zeros("float32", rows),
            "offsets": Buffer("int32", (rows + 1,), "offsets", 0, longest),
            "columns": integers(rows * longest, high=rows),
            "values": floats(rows * longest),
            "x": floats(rows),
            "rows": i32(rows),
        },
    )


def _gather(grid: int, n: int, table: int) -> Shape:
    return Shape(
        (grid,),
        (64,),
        {
            "out": zeros("float32", n), "table": floats(table),
            "index": integers(n, high=table), "n": i32(n),
        },
    )  # fmt: skip


def _softmax(grid: int, rows: int, columns: int) -> Shape:
    return Shape(
        (grid,),
        (32, rows // grid),
        {
            "out": zeros("float32", rows, columns), "in": floats(rows, columns, low=-4, high=4),
            "rows": i32(rows), "columns": i32(columns),
        },
    )  # fmt: skip


CASES: dict[str, tuple[str, Shape]] = {
    "copy": (
        "copy",
        Shape((128,), (64,), {"out": zeros("float32", 8192), "in": floats(8192), "n": i32(8190)}),
    ),
    "saxpy": (
        "saxpy",
        Shape((128,), (64,),
              {"n": i32(8192), "a": f32(2.5), "x": floats(8192), "y": floats(8192)}),
    ),
    "strided": (
        "strided",
        Shape((48,), (96,), {"out": zeros("float32", 4608), "in": floats(4608 * 9),
                             "n": i32(4608), "stride": i32(9)}),
    ),
    "gather, large table": ("gather", _gather(120, 7680, 20000)),
    "gather, small table": ("gather", _gather(160, 10240, 2048)),
    "matmul_naive, square": ("matmul_naive", _matmul((8, 8), (8, 8), 64, 64, 64)),
    "matmul_naive, wide blocks": ("matmul_naive", _matmul((2, 16), (32, 4), 64, 64, 64)),
    "matmul_naive, deep": ("matmul_naive", _matmul((4, 4), (8, 8), 32, 32, 192)),
    "matmul_naive, flat": ("matmul_naive", _matmul((6, 6), (16, 16), 96, 96, 24)),
    "matmul_tiled": (
        "matmul_tiled",
        Shape((8, 8), (8, 8), {"c": zeros("float32", 64, 64), "a": floats(64, 64),
                               "b": floats(64, 64), "n": i32(64)}),
    ),
    "transpose_direct": ("transpose_direct", _transpose(128, 128)),
    "transpose_padded": ("transpose_padded", _transpose(128, 128)),
    "stencil2d": (
        "stencil2d",
        Shape((8, 16), (16, 8), {"out": zeros("float32", 128, 128), "in": floats(128, 128),
                                 "width": i32(128), "height": i32(128)}),
    ),
    "stencil3d": (
        "stencil3d",
        Shape((2, 8), (16, 4), {"out": zeros("float32", 8, 32, 32), "in": floats(8, 32, 32),
                                "nx": i32(32), "ny": i32(32), "nz": i32(8)}),
    ),
    "reduce_shuffle": (
        "reduce_shuffle",
        Shape((32,), (64,), {"out": zeros("float32", 32), "in": floats(16384), "n": i32(16384)}),
    ),
    "spmv_scalar": ("spmv_scalar", _spmv(32, 64, 2048, 16)),
    "spmv_warp": ("spmv_warp", _spmv(64, 64, 128, 160)),
    "softmax": ("softmax", _softmax(64, 256, 64)),
    "softmax, long rows": ("softmax", _softmax(16, 32, 512)),
    "layer_norm": (
        "layer_norm",
        Shape((64,), (32,), {"out": zeros("float32", 64, 64, 4), "in": floats(64, 64, 4),
                             "weight": floats(64, 4), "columns4": i32(64)}),
    ),
    "histogram": (
        "histogram",
        Shape((64,), (64,), {"bins": zeros("uint32", 64),
                             "data": integers(65536, high=256, dtype="uint8"), "n": i32(65536)}),
    ),
    "nbody": (
        "nbody",
        Shape((5,), (64,), {"acceleration": zeros("float32", 320, 4), "body": floats(320, 4),
                            "n": i32(320)}),
    ),
    "unrolled": (
        "unrolled",
        Shape((32,), (64,), {"out": zeros("float32", 2048), "in": floats(11, 2048),
                             "length": i32(11), "n": i32(2048)}),
    ),
    "dp4a": (
        "dp4a",
        Shape((32,), (64,), {"out": zeros("int32", 2048),
                             "a": integers(2048, 8, low=-(2**31), high=2**31),
                             "b": integers(8, low=-(2**31), high=2**31),
                             "length": i32(8), "n": i32(2048)}),
    ),
    "wide_index": (
        "wide_index",
        Shape((32,), (64,), {"out": zeros("float64", 64 * 64), "in": doubles(64, 80),
                             "rows": i64(64), "columns": i64(64), "pitch": u64(640)}),
    ),
    "bitonic": (
        "bitonic",
        Shape((128,), (64,), {"data": integers(8192, low=-1000, high=1000)}),
    ),
}  # fmt: skip
