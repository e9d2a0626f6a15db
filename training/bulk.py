"""Feature vectors of thousands of kernels, on any engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattcast.features.analysis import analyse
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.training.engine import Engine


@dataclass(frozen=True)
class KernelTask:
    """One launch whose features are wanted: PTX text, GPU and feature schema by their ids.

    ``kernel`` is its name, ``None`` for the only one. Plain data, so that it can travel.
    """

    ptx: str
    gpu: str
    schema: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kernel: str | None = None
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True)
class Extracted:
    """All fields of the schema in its order, or why there are none."""

    values: tuple[float, ...] | None
    problem: str | None = None


def extract(task: KernelTask) -> Extracted:
    """The vector of one launch. What is wrong with the kernel becomes ``problem``."""
    try:
        module = read_module(task.ptx)
        launch = Launch(task.grid, task.block, task.dynamic_shared_bytes)
        analysis = analyse(module, module.kernel(task.kernel), launch, load_gpu(task.gpu))
        return Extracted(tuple(analysis.vector(task.schema).values.values()))
    except WattcastError as error:
        return Extracted(None, str(error))


def extract_all(engine: Engine, tasks: Sequence[KernelTask]) -> list[Extracted]:
    """Vectors of many launches, in the order of the tasks."""
    found: list[Extracted] = [Extracted(None, "not run")] * len(tasks)
    for at, one in engine.map(extract, tasks):
        found[at] = one
    return found
