"""Launches of fixture kernels small enough to play whole, and GPUs small enough for them to matter.

Caches hold what those of real GPUs hold for each resident thread (16 to 64 bytes of L1, 32 to 50
of L2), and data are larger than L2.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fixtures.kernels.data import Shape
from tests.fixtures.kernels.manifest import launched


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


CASES: dict[str, tuple[str, Shape]] = {
    what: (what.split(",")[0], launched(what.split(",")[0], *numbers))
    for what, numbers in (
        ("copy", (128, 64, 8192)),
        ("saxpy", (128, 64, 8192)),
        ("strided", (48, 96, 4608, 9)),
        ("gather, large table", (120, 64, 7680, 20000)),
        ("gather, small table", (160, 64, 10240, 2048)),
        ("matmul_naive, square", ((8, 8), (8, 8), 64, 64, 64)),
        ("matmul_naive, wide blocks", ((2, 16), (32, 4), 64, 64, 64)),
        ("matmul_naive, deep", ((4, 4), (8, 8), 32, 32, 192)),
        ("matmul_naive, flat", ((6, 6), (16, 16), 96, 96, 24)),
        ("matmul_tiled", (64,)),
        ("transpose_direct", ((4, 4), 128, 128)),
        ("transpose_padded", ((4, 4), 128, 128)),
        ("stencil2d", (128, 128)),
        ("stencil3d", ((2, 8), (16, 4), 32, 32, 8)),
        ("reduce_shuffle", (32, 64, 16384)),
        ("spmv_scalar", (32, 64, 2048, 16)),
        ("spmv_warp", (64, 64, 128, 160)),
        ("softmax", (64, 4, 256, 64)),
        ("softmax, long rows", (16, 2, 32, 512)),
        ("layer_norm", (64, 32, 64)),
        ("histogram", (64, 64, 65536)),
        ("nbody", (5, 64, 320)),
        ("unrolled", (32, 64, 11, 2048)),
        ("dp4a", (32, 64, 8, 2048)),
        ("wide_index", (32, 64, 64, 64, 640)),
        ("bitonic", (128, 64)),
    )
}
