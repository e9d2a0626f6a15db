"""Launches that the budget study asks about: fixtures, public programs, and some that run long."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.execution import launch_of
from studies.end_to_end import Program
from tests.fixtures.kernels.data import FixtureKernel, Shape, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.features.launch import Argument, Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.predictor.messages import LaunchRequest

LONG_RUNNING = Path(__file__).with_name("long_running.sm_80.ptx")
"""From ``long_running.cu`` by NVRTC 12.9."""
KI, MI = 1024, 1024**2


class Asked(NamedTuple):
    """One launch of a kernel of ``ptx``."""

    name: str
    ptx: Path
    kernel: str
    launch: Launch

    def module(self) -> Module:
        """The text, read once while its launches follow each other."""
        return _module(self.ptx)


@lru_cache(maxsize=1)
def _module(path: Path) -> Module:
    return read_module(path.read_text(encoding="utf-8"))


def of_fixtures() -> Iterator[Asked]:
    """Every fixture: its two larger small shapes, and the large one."""
    for kernel in KERNELS:
        for number, shape in enumerate((*kernel.shapes[1:], kernel.large)):
            yield _fixture(f"{kernel.name}/{number}", kernel, shape)


def of_programs(programs: tuple[Program, ...]) -> Iterator[Asked]:
    """The public programs."""
    for one in programs:
        launch = LaunchRequest.model_validate(one.launch).launch()
        yield Asked(f"public/{one.name}", one.ptx, one.kernel, launch)


def _fixture(name: str, kernel: FixtureKernel, shape: Shape) -> Asked:
    ptx = ptx_path(kernel.source, targets(kernel.source)[-1])
    return Asked(name, ptx, kernel.entry, launch_of(shape))


def _own(
    kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *given: Argument,
    name: str = "",
) -> Asked:  # fmt: skip
    arguments = {str(index): value for index, value in enumerate(given)}
    return Asked(
        f"long/{name or kernel}", LONG_RUNNING, kernel, Launch.of(grid, block, 0, arguments)
    )


def _larger(
    fixture: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *given: Argument,
    dynamic_shared_bytes: int = 0,
) -> Asked:  # fmt: skip
    kernel = next(each for each in KERNELS if each.name == fixture)
    arguments = {str(index): value for index, value in enumerate(given)}
    launch = Launch.of(grid, block, dynamic_shared_bytes, arguments)
    ptx = ptx_path(kernel.source, targets(kernel.source)[-1])
    return Asked(f"long/{fixture}", ptx, kernel.entry, launch)


def _of(elements: int, low: float = -1.0, high: float = 1.0, values: str = "uniform") -> Argument:
    return PointerHint(elements, values, low, high)


def long_running() -> Iterator[Asked]:
    """Launches of much work: what a kernel of the field does, at the size it has there."""
    square = _of(16 * MI)
    word = 2**32 - 1
    yield _larger("matmul_naive", (256, 256), (16, 16), square, square, square, 4096, 4096, 4096)
    yield _larger("matmul_tiled", (512, 512), (8, 8), square, square, square, 4096)
    yield _own("sgemm", (64, 64), 256, square, square, square, 4096)
    yield _larger("wmma_matmul", 8192, 256, square, square, square, 4096, 4096, 4096)
    yield _larger("wmma_shared", 65536, 32, _of(16 * MI), _of(MI), _of(MI), 65536)
    yield _larger("mma_inline", 65536, 32, _of(8 * MI), _of(2**32), _of(32 * KI), 4096)
    yield _larger("histogram", 2048, 256, _of(64, values="zeros"), _of(64 * MI, 0, 64), 64 * MI)
    yield _own(
        "histogram_bytes", 480, 256, _of(256, values="zeros"), _of(64 * MI, 0, word), 64 * MI
    )
    yield _larger("nbody", 256, 256, _of(256 * KI), _of(256 * KI), 65536)
    yield _own("stencil_steps", 4096, 256, _of(MI), _of(MI), 1000)
    yield _own("stencil_steps", 256, 256, _of(64 * KI), _of(64 * KI), 100_000, name="stencil_100k")
    yield _own(
        "dedisperse", (98, 512), 256, _of(12_800_000), _of(1536 * 33_192),
        _of(1536, 0, 1024, "sorted"), 1536, 25_000, 33_192,
    )  # fmt: skip
    yield _own("sliding_max", 4096, 256, _of(MI), _of(MI + 4096), 4096, MI)
    yield _own("causal_scores", 4096, 128, _of(512 * KI), _of(256 * KI), _of(256 * KI), 64)
    yield _own("lower_triangle", 64, 256, _of(16 * KI), _of(256 * MI), 16 * KI)
    yield _larger("triangular", 128, 256, _of(32 * KI), _of(KI * MI), _of(32 * KI), 32 * KI)
    yield _larger("triangular_pairs", 4096, 256, _of(MI), _of(512), 512)
    rows = MI
    offsets = _of(rows + 1, 0, 256 * rows, "sorted")
    yield _larger(
        "spmv_scalar", 4096, 256, _of(rows), offsets, _of(256 * rows, 0, rows), _of(256 * rows),
        _of(rows), rows,
    )  # fmt: skip
    yield _larger(
        "spmv_warp", 131_072, 256, _of(rows), offsets, _of(256 * rows, 0, rows), _of(256 * rows),
        _of(rows), rows,
    )  # fmt: skip
    yield _own("ell", 4096, 256, _of(MI), _of(512 * MI), _of(512 * MI, 0, MI), _of(MI), MI, 512)
    yield _own("rounds", 4096, 256, _of(MI), 12345, 1_000_000)
    yield _own("chase", 16, 64, _of(KI), _of(16 * MI, 0, 16 * MI), 100_000)
    yield _own("phases", 432, 256, _of(256 * MI), _of(256 * MI), 256 * MI, 20_000)
    yield _own("until_done", 4096, 256, _of(MI), _of(MI, 0, word), 65536)
    yield _own("rows_of_lengths", 4096, 256, _of(MI), _of(MI, 0, 1000), _of(1000 * MI), MI)
    yield _own("convolve", (256, 256), (16, 16), _of(16 * MI), _of(17 * MI), _of(31 * 31), 4096, 31)
    yield _own("wavefront", 1024, 256, _of(256 * KI), _of(256 * KI, 0, 4), _of(2 * MI, 0, 4), 2048)
    yield _larger("virtual_machine", 4096, 256, _of(MI), _of(4 * KI, 0, 12), _of(MI), 4 * KI, MI)
    yield _larger("collatz", 4096, 256, _of(MI), _of(MI, 1, 10**9), MI)
    yield _larger("mandelbrot", (256, 256), (16, 16), _of(16 * MI), 4096, 4096, 10_000)
    yield _larger("random_walk", 4096, 256, _of(MI), _of(MI, 0, word), 100_000)
    yield _larger("grid_stride", 216, 256, _of(256 * MI), _of(256 * MI), _of(256 * MI), 256 * MI)
    yield _larger("reduce_shuffle", 216, 256, _of(216), _of(512 * MI), 512 * MI)
    yield _larger("dot_fp64", 1024, 64, _of(1024), _of(256 * MI), _of(256 * MI), 256 * MI)
    yield _larger("softmax", 16384, (32, 8), _of(1024 * MI), _of(1024 * MI), 128 * KI, 8 * KI)
    yield _larger("layer_norm", 65536, 128, _of(2**31), _of(2**31), _of(32 * KI), 8 * KI)
    yield _larger("dp4a", 4096, 256, _of(MI), _of(4096 * MI), _of(4 * KI), 4 * KI, MI)
    yield _larger("device_calls", 4096, 256, _of(MI), _of(MI), 100_000, MI)
    yield _larger("loop_shuffle", 8192, 256, _of(2 * MI), _of(2 * MI), 10_000)
    yield _larger("async_copy", 4096, 64, _of(256 * KI), _of(2**32), 4 * KI)
    yield _larger("unrolled", 4096, 256, _of(MI), _of(4096 * MI), 4 * KI, MI)
