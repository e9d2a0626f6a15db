"""What mode ``new_gpu`` is worth on real boards: each measured GPU taken for one nobody measured.

    python -m training.retrain.study

A GPU starts from weights of the other GPUs and its datasheet; its own measured programs are the
uploads, one or eight launches of each at any clocks. The table of docs/retraining.md: error on
programs left out beside the default's and the median's, and the gate's word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.cards import ModelCard
from models.power.physical import POOLED, parameters_for
from models.store import ArtifactStore
from training.evaluation.rows import Indices, Rows
from training.physical.choice import cached_choice
from training.physical.fit import Averaged, Fits, pooled_parameters
from training.physical.rows import GpuRows, all_rows
from training.physical.transfer import watts_of
from training.retrain.gate import BASELINE
from training.retrain.inputs import Order, Uploads
from training.retrain.new_gpu import COLUMNS, FAMILY, Start, calibrate_power

LAUNCHES = (1, 8)
"""Launches uploaded of each program."""

NOW = "default"


@dataclass(frozen=True)
class Line:
    """Errors are means over programs left out of |ln(predicted / measured)|."""

    gpu: str
    programs: int
    launches: int
    way: str
    error: float
    default_error: float
    median_error: float
    promoted: bool

    def markdown(self) -> str:
        """A row of the table."""
        cells = (
            *(self.gpu, self.programs, self.launches, self.way),
            *(f"{each:.3f}" for each in (self.error, self.default_error, self.median_error)),
            "promoted" if self.promoted else "candidate",
        )
        return f"| {' | '.join(map(str, cells))} |"


def study() -> Iterator[Line]:
    """Every GPU of the physical data, with few launches and with more."""
    fits = Fits(all_rows())
    settings = cached_choice(fits).best
    card = ArtifactStore().find(POOLED, "power", FAMILY, "activity1").card
    for gpu_id in fits.tables:
        for each in LAUNCHES:
            yield _line(fits, settings, card, gpu_id, each)


def _line(fits: Fits, settings: Averaged, card: ModelCard, gpu_id: str, each: int) -> Line:
    table = fits.tables[gpu_id]
    others = [other for other in fits.tables if other != gpu_id]
    pooled = pooled_parameters(fits, settings, others, frozenset())
    parameters = parameters_for(table.gpu, pooled)
    rows = _drawn(table, each)
    uploads = Uploads(
        Rows.of(
            np.column_stack([table.activities[rows], table.clocks_mhz[rows]]),
            table.watts[rows],
            table.programs[rows],
        ),
        np.ones(len(rows), dtype=np.bool_),
        ("study",),
        card.sources[:1],
    )
    order = Order(
        gpu=gpu_id,
        board="",
        schema=card.feature_schema,
        features=COLUMNS,
        families=(FAMILY,),
        mode="new_gpu",
        version=1,
    )
    now = {NOW: watts_of(parameters, table)[rows]}
    with tempfile.TemporaryDirectory() as folder:
        start = Start(parameters, card, pooled=True)
        made = calibrate_power(order, uploads, start, Path(folder), opponents=now)
    against = {one.opponent: one for one in made.verdict.comparisons}
    return Line(
        gpu_id,
        len(np.unique(table.programs[rows])),
        len(rows),
        str(made.judged.hyperparameters["way"]),
        against[NOW].candidate_error,
        against[NOW].opponent_error,
        against[BASELINE].opponent_error,
        made.verdict.promoted,
    )


def _drawn(table: GpuRows, each: int) -> Indices:
    """Some scored rows of every program, the same every time."""
    random = np.random.default_rng(0)
    scored = np.flatnonzero(table.scored)
    programs = np.unique(table.programs[scored])
    own: Sequence[Indices] = [scored[table.programs[scored] == program] for program in programs]
    return np.concatenate([random.permutation(rows)[:each] for rows in own])


def main() -> None:
    """Print the table."""
    print("| GPU | programs | launches | way | error | default | median | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in study():
        print(line.markdown(), flush=True)


if __name__ == "__main__":
    main()
