"""Time from measured work: cross-validation, artifact with card, and the tables of docs/work.md.

    python -m studies work  trains, writes the artifact, prints the tables
    python -m studies work --table FILE        the same from another table of launches
    python -m studies work --score FILE  scores the packaged model on a table of launches
    python -m studies work --nested            hyperparameters chosen inside each fold

Equal data, seeds and library versions give equal files, byte for byte (SOURCE_DATE_EPOCH sets the
card's date).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies.data.launches import (
    GPU,
    groups_of,
    read_launches,
)
from studies.time.work_artifact import ASSIGNMENTS, Trained, train
from studies.time.work_choice import nested_scores
from studies.time.work_folds import (
    MODEL,
    OTHERS,
    WorkTable,
    fitted_constants,
)
from studies.time.work_known import known_table, pairs_of, repeats_table
from studies.time.work_transfer import transfer_table
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import load_gpu
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.models.time.calibration import (
    TimeCard,
    TimeIntervals,
    TimeScores,
    TimeWidth,
)
from wattcast.models.time.measured_work import work_schema
from wattcast.models.time.work_model import work_time_model
from wattcast.training.card_tables import table as markdown
from wattcast.training.evaluation.scores import time_scores

Floats = NDArray[np.float64]
Progress = Callable[[str], None]


def score_table(scores: Sequence[TimeScores]) -> str:
    """Scores of every protocol, mean ± spread over assignments, beside the other ways."""
    titles = ["left out", "way", "median APE %", "within 25 %", "within 2x", "per program APE %",
              "per program within 2x"]  # fmt: skip
    lines = []
    for one in scores:
        for way in (MODEL, *OTHERS):
            found = one.model if way == MODEL else one.others[way]
            ape, macro = found["median_ape_percent"], found["program_median_ape_percent"]
            shares = [
                found[name]
                for name in ("within_25_percent_share", "within_factor_2_share",
                             "program_within_factor_2_share")
            ]  # fmt: skip
            cells = [f"{100 * share.mean:.1f} ± {100 * share.std:.1f} %" for share in shares]
            lines.append(
                [
                    _LEFT_OUT[one.protocol],
                    way,
                    f"{ape.mean:.1f} ± {ape.std:.1f}",
                    cells[0],
                    cells[1],
                    f"{macro.mean:.1f} ± {macro.std:.1f}",
                    cells[2],
                ]
            )
    return markdown(titles, lines)


_LEFT_OUT: Mapping[str, str] = {
    "program": "program",
    "port": "program and its ports",
    "random": "launch (random)",
}


def interval_table(intervals: TimeIntervals) -> str:
    """Widths and what they hold."""
    titles = ["basis", "interval", "launches inside", "mean over programs with ports"]
    lines = []
    for basis in ("unseen_kernel", "extrapolated", "uncalibrated"):
        width: TimeWidth = getattr(intervals, basis)
        held = [
            "-" if share is None else f"{share:.2f}" for share in (width.launches, width.groups)
        ]
        lines.append([basis, f"×{width.low_factor:.2f} to ×{width.high_factor:.2f}", *held])
    return markdown(titles, lines)


def report(trained: Trained) -> str:
    """All tables of docs/work.md."""
    card, launches = trained.card, trained.launches
    predicted = trained.left_out["port"].predicted[MODEL][0]
    table = WorkTable.of(launches)
    refitted = fitted_constants(table.units, table.seconds, table.weights)
    served = work_schema().constants
    constants = markdown(
        ["constant", "served", "fitted to this table"],
        [
            *([name, f"{value:.4g}", f"{refitted.factors[name]:.4g}"]
              for name, value in served.factors.items()),
            ["norm", f"{served.norm:.4g}", f"{refitted.norm:.4g}"],
        ],
    )  # fmt: skip
    parts = [
        score_table(card.scores),
        interval_table(card.intervals),
        transfer_table(card.intervals),
        known_table(pairs_of(launches, predicted, card.intervals)),
        repeats_table(launches),
        constants,
    ]
    return "\n".join(parts)


def score_packaged(path: Path) -> str:
    """How the packaged model does on a table of launches, those it was trained on among them."""
    launches = read_launches(path)
    model = work_time_model(ArtifactStore(kind=TimeCard), GPU)
    gpu, clocks = load_gpu(GPU), model.measured_clocks
    predicted = np.array([model.predict(one.work, gpu, clocks).estimate.value for one in launches])
    measured = np.array([launch.seconds for launch in launches])
    scores = time_scores(measured, predicted, groups_of(launches, lambda one: one.program))
    return markdown(
        ["launches", *scores],
        [[str(len(launches)), *(f"{value:.4g}" for value in scores.values())]],
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies work")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--table", type=Path, help="launches to train on")
    parser.add_argument("--score", type=Path, help="launches to score the packaged model on")
    parser.add_argument("--nested", action="store_true", help="choose inside each fold; no files")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    options = parser.parse_args(arguments)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if options.score:
            print(score_packaged(options.score))
        elif options.nested:
            table = WorkTable.of(read_launches(options.table))
            print(nested_scores(table, progress))
        else:
            trained = train(options.out, options.table, options.assignments, progress)
            print(report(trained))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
