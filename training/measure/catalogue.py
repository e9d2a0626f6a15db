"""What is measured on a GPU: ``micro`` and ``applications``, both catalogues (workload.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from wattcast.training.measure import micro as simple
from wattcast.training.measure import micro_energy as energy
from wattcast.training.measure.applications import APPLICATIONS
from wattcast.training.measure.build import capability, source_text
from wattcast.training.measure.shapes import Application
from wattcast.training.measure.workload import Board, Workload


def micro(board: Board) -> Sequence[Workload]:
    """All microbenchmarks for a board, those for time first."""
    make = simple.Maker(board)
    parts = (
        simple.latencies, simple.chases, simple.throughputs, simple.launches,
        energy.streams, energy.events, energy.shared, energy.atomics, energy.matrices,
    )  # fmt: skip
    return [one for part in parts for one in part(make)]


def applications(board: Board) -> Sequence[Workload]:
    """The application kernels: all at their smallest launch, then all at the next...

    Launches are the same on every board, so that recordings compare; those whose data do not
    fit into a quarter of the memory are left out. Stopped early, a campaign has seen every kernel.
    """
    deepest = max(len(one.launches) for one in APPLICATIONS)
    made = [
        _application(one, at)
        for at in range(deepest)
        for one in APPLICATIONS
        if at < len(one.launches)
    ]
    return [one for one in made if one.buffer_bytes <= board.memory_bytes // 4]


def _application(one: Application, at: int) -> Workload:
    size, threads = one.launches[at]
    shape = one.shape(size, threads)
    return Workload(
        id=f"{one.kernel}.n{size}.t{threads}",
        role="application",
        family=one.kernel,
        kernel=one.kernel,
        ptx=simple.ptx_text(one.module),
        grid=shape.grid,
        block=shape.block,
        dynamic_shared_bytes=shape.dynamic_shared_bytes,
        arguments=shape.arguments,
        minimum_capability=_capability(one.module),
        description=one.about,
    )


@lru_cache(maxsize=32)
def _capability(module: str) -> tuple[int, int]:
    return capability(source_text(simple.FOLDER / f"{module}.cu"))
