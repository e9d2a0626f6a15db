"""Launches that were measured with their work: gpuFLOPBench's profiles of HeCBench programs.

``time/rtx_3080_launches.csv`` holds up to two launches of every kernel of a program, run with its
own arguments on a GeForce RTX 3080 under Nsight Compute: time, DRAM bytes, floating-point and
integer operations. The profiler holds the core clock at its base and flushes the caches before
each launch (its defaults; the authors' gatherData.py sets nothing else).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError, LaunchError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import Dim3, Launch
from wattcast.features.occupancy import check_launch
from wattcast.models.clocks import ClockPair
from wattcast.models.time.measured_work import Work
from wattcast.training.data.datasets import FIRST_ROW, data_root, number, read_table, text

GPU = "rtx-3080"
GPU_IN_FILE = "geforce-rtx-3080"
CLOCKS = ClockPair(1440.0, 9501.0)
"""Base core clock of the board (features/gpus/rtx-3080.toml): Nsight Compute's default. The data
agree: the best kernel reaches 98 % of the FP32 peak at it, the best stream 98 % of the bandwidth
at the rated memory clock (100.6 % of that at the 9251 MHz of the board's compute state)."""

OPENMP_PREFIX = "__omp_offloading"
"""How LLVM names kernels it makes of OpenMP target regions."""

_PORT = re.compile(r"-(cuda|omp|sycl|hip)$")
_DIMENSIONS = re.compile(r"[0-9]+x[0-9]+x[0-9]+")
_COLUMNS = {
    "gpu": text(choices=(GPU_IN_FILE,)),
    "program": text(),
    "kernel": text(),
    "signature": text(),
    "arguments": text(nullable=True),
    "grid": text(),
    "block": text(),
    "time_ns": number(positive=True),
    "dram_bytes": number(),
    "flops_sp": number(),
    "flops_dp": number(),
    "int_ops": number(),
}


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch: what it did and how long it took. ``arguments`` are the program's."""

    program: str
    kernel: str
    signature: str
    arguments: str
    work: Work
    seconds: float

    @property
    def port_group(self) -> str:
        """The program without the suffix of its port: near-twins share it."""
        return _PORT.sub("", self.program)

    @property
    def same_kernel(self) -> tuple[str, str, str]:
        """What launches of one kernel have in common."""
        return self.program, self.kernel, self.signature

    @property
    def same_launch(self) -> tuple[str, str, str, str, Dim3, Dim3]:
        """What repetitions of one launch have in common."""
        launch = self.work.launch
        return *self.same_kernel, self.arguments, launch.grid, launch.block


def launches_path(root: Path | None = None) -> Path:
    """The table below the data folder."""
    return (root or data_root()) / "time" / "rtx_3080_launches.csv"


def read_launches(path: Path | None = None) -> tuple[MeasuredLaunch, ...]:
    """All launches of the table. Raises DataError naming file, row and column of a defect."""
    path = path or launches_path()
    frame = read_table(path, _COLUMNS)
    gpu = load_gpu(GPU)
    return tuple(
        _launch({str(name): cell for name, cell in row.items()}, line, path.name, gpu)
        for line, row in enumerate(frame.to_dict("records"), start=FIRST_ROW)
    )


def groups_of(
    launches: Sequence[MeasuredLaunch], key: Callable[[MeasuredLaunch], object]
) -> NDArray[np.int64]:
    """Number of each launch's group, ``[n]``, in the order of the groups' sorted names."""
    names = [str(key(launch)) for launch in launches]
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)


def _launch(row: dict[str, object], line: int, file: str, gpu: GpuProfile) -> MeasuredLaunch:
    def dimensions(column: str) -> tuple[int, ...]:
        cell = str(row[column])
        if not _DIMENSIONS.fullmatch(cell):
            raise _defect(file, line, column, f"{cell!r} is not of the form 1x1x1")
        return tuple(int(size) for size in cell.split("x"))

    def value(column: str) -> float:
        return float(str(row[column]))

    grid, block = dimensions("grid"), dimensions("block")
    try:
        launch = Launch.of(grid, block)
        check_launch(gpu, launch, 0, 0)
    except LaunchError as error:
        raise _defect(file, line, error.field, error.detail) from error
    kernel = str(row["kernel"])
    arguments = row["arguments"]
    return MeasuredLaunch(
        program=str(row["program"]),
        kernel=kernel,
        signature=str(row["signature"]),
        arguments=arguments if isinstance(arguments, str) else "",
        work=Work(
            launch=launch,
            dram_bytes=value("dram_bytes"),
            int_ops=value("int_ops"),
            flops_sp=value("flops_sp"),
            flops_dp=value("flops_dp"),
            runtime="openmp" if kernel.startswith(OPENMP_PREFIX) else "cuda",
        ),
        seconds=value("time_ns") * 1e-9,
    )


def _defect(file: str, line: int, column: str, what: str) -> DataError:
    return DataError(
        f"{file}, row {line}, column {column!r}: {what}", file=file, row=line, column=column
    )
