"""What mode ``new_gpu`` is worth on real boards: each measured GPU taken for one nobody measured.

    python -m studies boards

A GPU starts from weights of the other GPUs and its datasheet; its own measured programs are the
uploads, one or eight launches of each at any clocks. The tables of docs/retraining.md, of power and
of time: error on programs left out beside the default's and the median's, and the gate's word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from studies import parser_of
from studies.data.activity_tables import ACTIVITY_GPUS, TABLE_CONSTANTS, read_activity_table
from studies.fitting.physical.artifacts import watts_of
from studies.fitting.physical.fit import Averaged, Fits, cached_choice, pooled_parameters
from studies.fitting.physical.rows import GpuRows, all_rows
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard
from wattcast.models.power import PHYSICAL
from wattcast.models.power.physical import POOLED, parameters_for
from wattcast.models.store import ArtifactStore
from wattcast.models.time.bottleneck import (
    combined_seconds,
    launch_seconds,
    regime,
    resource_seconds,
)
from wattcast.models.time.calibration import features_of
from wattcast.training.calibrated import DEFAULT, calibrate_power, calibrate_time
from wattcast.training.evaluation.scores import Indices, Rows
from wattcast.training.gate import BASELINE, Opponent
from wattcast.training.uploads import Candidate, Order, Uploads

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
    card = ArtifactStore().find(POOLED, "power", PHYSICAL, "activity1").card
    for gpu_id in fits.varied:
        for each in LAUNCHES:
            yield _line(fits, settings, card, gpu_id, each)


def _line(fits: Fits, settings: Averaged, card: ModelCard, gpu_id: str, each: int) -> Line:
    table = fits.tables[gpu_id]
    others = [other for other in fits.tables if other != gpu_id]
    pooled = pooled_parameters(fits, settings, others, frozenset())
    parameters = parameters_for(table.gpu, pooled)
    rows = _drawn(table, each)
    uploads = _uploads(
        np.column_stack([table.activities[rows], table.clocks_mhz[rows]]),
        table.watts[rows],
        table.programs[rows],
        card,
    )
    now = Opponent(NOW, watts_of(parameters, table)[rows])
    with tempfile.TemporaryDirectory() as folder:
        order = Order(gpu_id, "", card.feature_schema, 1)
        made = calibrate_power(order, uploads, parameters, card, Path(folder), opponents=[now])
    return _line_of(made, gpu_id, uploads, NOW)


def _uploads(vectors: ArrayLike, measured: ArrayLike, names: ArrayLike, card: ModelCard) -> Uploads:
    rows = Rows.of(vectors, measured, names)
    return Uploads(rows, np.ones(len(rows), dtype=np.bool_), ("study",), card.sources[:1])


def _line_of(made: Candidate[Any], gpu_id: str, uploads: Uploads, opponent: str) -> Line:
    against = {each.opponent: each for each in made.verdict.comparisons}
    return Line(
        gpu_id,
        len(np.unique(uploads.rows.groups)),
        len(uploads.rows),
        str(made.card.hyperparameters["way"]),
        against[opponent].candidate_error,
        against[opponent].opponent_error,
        against[BASELINE].opponent_error,
        made.verdict.promoted,
    )


def _drawn(table: GpuRows, each: int) -> Indices:
    """Some scored rows of every program, the same every time."""
    scored = np.flatnonzero(table.scored)
    return scored[_of_each(table.programs[scored], each)]


def _of_each(programs: ArrayLike, each: int) -> Indices:
    """Positions of up to ``each`` rows of every program."""
    random, named = np.random.default_rng(0), np.asarray(programs)
    own = [np.flatnonzero(named == program) for program in np.unique(named)]
    return np.concatenate([random.permutation(rows)[:each] for rows in own])


def time_study() -> Iterator[Line]:
    """The same of times: every board whose programs were timed, by activities of the tables."""
    card = ArtifactStore().find(POOLED, "power", PHYSICAL, "activity1").card
    for gpu_id in ACTIVITY_GPUS:
        for each in LAUNCHES:
            yield time_line(card, gpu_id, each)


def time_line(card: ModelCard, gpu_id: str, each: int) -> Line:
    """``each`` launches of every program of one board; the card tells schema and source."""
    gpu = load_gpu(gpu_id)
    programs = [row for row in read_activity_table(gpu_id) if row.kind == "real"]
    rows = [programs[at] for at in _of_each([row.program for row in programs], each)]
    vectors, default = [], []
    for row in rows:
        resources = resource_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)
        start = launch_seconds(row.activity, gpu, TABLE_CONSTANTS)
        default.append(combined_seconds(resources, TABLE_CONSTANTS) + start)
        vectors.append(features_of(regime(resources, start), default[-1], row.clocks))
    seconds, names = [row.time_seconds for row in rows], [row.program for row in rows]
    uploads = _uploads(np.array(vectors), np.array(seconds), names, card)
    with tempfile.TemporaryDirectory() as folder:
        order = Order(gpu_id, "", card.feature_schema, 1)
        default_model = Opponent(DEFAULT, np.array(default))
        made = calibrate_time(order, gpu, uploads, Path(folder), opponents=[default_model])
    return _line_of(made, gpu_id, uploads, DEFAULT)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = parser_of("boards", __doc__)
    parser.parse_args(arguments)
    for title, lines in (("Power", study()), ("Time", time_study())):
        print(
            f"{title}\n\n| GPU | programs | launches | way | error | default | median | verdict |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for line in lines:
            print(line.markdown(), flush=True)
    return 0
