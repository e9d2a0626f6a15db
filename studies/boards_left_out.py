"""What mode ``new_gpu`` is worth on real boards: each measured GPU taken for one nobody measured.

    python -m studies boards

A GPU starts from weights of the other GPUs and its datasheet; its own measured programs are the
uploads, one or eight launches of each at any clocks. The tables of docs/retraining.md, of power and
of time: error on programs left out beside the default's and the median's, and the gate's word.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from studies.data.activity_tables import (
    ACTIVITY_GPUS,
    TABLE_CONSTANTS,
    read_activity_table,
)
from studies.power.physical_artifacts import watts_of
from studies.power.physical_fit import Averaged, Fits, cached_choice, pooled_parameters
from studies.power.physical_rows import GpuRows, all_rows
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard
from wattcast.models.power.physical import POOLED, parameters_for
from wattcast.models.store import ArtifactStore
from wattcast.models.time.bottleneck import (
    combined_seconds,
    launch_seconds,
    regime,
    resource_seconds,
)
from wattcast.models.time.calibration import FAMILY as TIME
from wattcast.models.time.calibration import FEATURES, features_of
from wattcast.training.evaluation.splits import Indices, Rows
from wattcast.training.retrain.gate import BASELINE
from wattcast.training.retrain.inputs import Order, Uploads
from wattcast.training.retrain.launch_time import DEFAULT, calibrate_time
from wattcast.training.retrain.new_gpu import COLUMNS, FAMILY, Start, calibrate_power

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
    for gpu_id in fits.varied:
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
    scored = np.flatnonzero(table.scored)
    return scored[_of_each(table.programs[scored], each)]


def _of_each(programs: ArrayLike, each: int) -> Indices:
    """Positions of up to ``each`` rows of every program."""
    random, named = np.random.default_rng(0), np.asarray(programs)
    own = [np.flatnonzero(named == program) for program in np.unique(named)]
    return np.concatenate([random.permutation(rows)[:each] for rows in own])


def time_study() -> Iterator[Line]:
    """The same of times: every board whose programs were timed, by activities of the tables."""
    card = ArtifactStore().find(POOLED, "power", FAMILY, "activity1").card
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
    uploads = Uploads(
        Rows.of(
            np.array(vectors),
            np.array([row.time_seconds for row in rows]),
            [row.program for row in rows],
        ),
        np.ones(len(rows), dtype=np.bool_),
        ("study",),
        card.sources[:1],
    )
    order = Order(gpu_id, "", card.feature_schema, FEATURES, (TIME,), "new_gpu", 1)
    with tempfile.TemporaryDirectory() as folder:
        made = calibrate_time(
            order, gpu, uploads, Path(folder), opponents={DEFAULT: np.array(default)}
        )
    against = {one.opponent: one for one in made.verdict.comparisons}
    return Line(
        gpu_id,
        len({row.program for row in rows}),
        len(rows),
        str(made.judged.hyperparameters["way"]),
        against[DEFAULT].candidate_error,
        against[DEFAULT].opponent_error,
        against[BASELINE].opponent_error,
        made.verdict.promoted,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies boards", description=__doc__)
    parser.parse_args(arguments)
    for title, lines in (("Power", study()), ("Time", time_study())):
        print(
            f"{title}\n\n| GPU | programs | launches | way | error | default | median | verdict |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for line in lines:
            print(line.markdown(), flush=True)
    return 0
