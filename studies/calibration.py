"""How well calibration does: every GPU in turn is new, with N measured launches.

python -m studies calibration
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from studies.evaluation import evaluate
from wattcast.features.errors import WattcastError
from wattcast.training.calibrate import COLUMNS, Calibrator
from wattcast.training.card_tables import table
from wattcast.training.evaluation.protocols import ASSIGNMENTS
from wattcast.training.power_rows import POWER_FILES, power_rows

SHOTS = (5, 10, 20, 50)
"""Numbers of measured launches that are reported."""

_TITLES = (
    "new GPU",
    "measured",
    "MAE W",
    "own median of these",
    "draws worse than that",
    "own median of all rows",
    "median of other GPUs too",
    "nearest",
    "R2",
)


def study(
    seeds: Sequence[int], shots: Sequence[int] = SHOTS, progress: Callable[[str], None] = print
) -> str:
    """Leave-one-GPU-out with N-shot on all power files, as a Markdown table."""
    pooled = power_rows(POWER_FILES, columns=COLUMNS)
    assert pooled.gpus is not None
    calibrator = Calibrator()
    lines = []
    for count in shots:
        progress(f"{count} measured launches of each GPU")
        found = evaluate(pooled, calibrator, "new_gpu", seeds, shots=count)
        for source in POWER_FILES:
            rows = np.flatnonzero(pooled.gpus == source)
            one = found.take(rows)
            watts = one.rows.watts
            ours = np.nanmean(np.abs(one.predicted_watts - watts), axis=1)
            own = np.nanmean(np.abs(one.others["own_median_watts"] - watts), axis=1)
            lines.append(
                [
                    source,
                    str(count),
                    f"{ours.mean():.1f} ± {ours.std():.1f}",
                    f"{own.mean():.1f} ± {own.std():.1f}",
                    f"{np.mean(ours > own):.0%}",
                    f"{np.abs(watts - np.median(watts)).mean():.1f}",
                    f"{one.baseline_scores()['mae_watts'].mean:.1f}",
                    f"{one.other_scores()['nearest_watts']['mae_watts'].mean:.1f}",
                    f"{one.scores()['r2'].mean:.2f}",
                ]
            )
    chosen = ", ".join(f"{way} {count}" for way, count in sorted(calibrator.chosen.items()))
    return f"{table(_TITLES, lines)}\nchosen: {chosen}\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies calibration", description=__doc__)
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    options = parser.parse_args(arguments)
    try:
        print(study(range(options.assignments), progress=lambda line: print(line, file=sys.stderr)))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
