"""What is measured on a GPU: ``micro`` and ``applications``, both catalogues (workload.py)."""

from __future__ import annotations

from collections.abc import Sequence

from training.measure import micro as simple
from training.measure import micro_energy as energy
from training.measure.workload import Board, Workload


def micro(board: Board) -> Sequence[Workload]:
    """All microbenchmarks for a board, those for time first."""
    make = simple.Maker(board)
    parts = (
        simple.latencies, simple.chases, simple.throughputs, simple.launches,
        energy.streams, energy.events, energy.shared, energy.atomics, energy.matrices,
    )  # fmt: skip
    return [one for part in parts for one in part(make)]
