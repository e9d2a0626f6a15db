"""How a few measured launches of a kernel help: the extra trees, anchored, on kernels left out.

The folds leave whole kernel groups out; of each kernel some launches, drawn by the seed, are
known to the answer and the others are tested (protocol ``known`` of ``evaluation.splits``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.evaluation import coverage, folds_of
from studies.power.pooled import LaunchedTable
from wattcast.models.cards import ScoreName, Spread
from wattcast.models.power.anchoring import anchored, launch_coordinates, width_of
from wattcast.training.evaluation.scores import point_scores, spread_of
from wattcast.training.evaluation.splits import Fit, Floats, Rows

SHOTS = 3


@dataclass(frozen=True)
class KnownScores:
    """Scores over the seeded assignments: anchored, without the measurements, and of the known
    launches' median; ``coverage`` is the share of rows inside the anchored 90 % interval, whose
    width these kernels told, too (``studies intervals`` leaves them out of it)."""

    anchored: dict[ScoreName, Spread]
    alone: dict[ScoreName, Spread]
    own_median: dict[ScoreName, Spread]
    coverage: float


def known_scores(
    table: LaunchedTable, fit: Fit, seeds: Sequence[int], *, shots: int = SHOTS
) -> KnownScores:
    """Scores on the served table with ``shots`` known launches of every kernel."""
    rows = table.launched[table.served]
    each = [predicted(rows, table, fit, seed, shots) for seed in seeds]
    measured = rows.watts

    def scored(at: int) -> dict[ScoreName, Spread]:
        found = []
        for predictions in each:
            tested = ~np.isnan(predictions[0])
            groups = rows.groups[tested]
            found.append(point_scores(measured[tested], predictions[at][tested], groups))
        return spread_of(found)

    inside, width = [], width_of(table.gpu, table.source)
    for watts, _, _, deviation in each:
        tested = ~np.isnan(watts)
        factor = np.exp(width.deviations * deviation[tested])
        low, high = watts[tested] / factor, watts[tested] * factor
        inside.append(coverage(measured[tested], low, high))
    return KnownScores(scored(0), scored(1), scored(2), float(np.mean(inside)))


def predicted(
    rows: Rows, table: LaunchedTable, fit: Fit, seed: int, shots: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Anchored and plain watts, the known launches' median, and ln deviations, each ``[n]``."""
    names = [one.name for one in table.launched_features]
    threads = rows.vectors[:, names.index("launched_threads")]
    block = rows.vectors[:, names.index("block_size")]
    out = tuple(np.full(len(rows), np.nan) for _ in range(4))
    nothing = rows.take(np.empty(0, dtype=np.int64))
    for fold in folds_of(rows, "known", seed, shots=shots):
        left_out = np.setdiff1d(np.arange(len(rows)), fold.train)
        alone = np.full(len(rows), np.nan)
        # All rows of the fold at once, as the grouped protocol asks: what was kept is found again.
        alone[left_out] = fit(rows.take(fold.train))(nothing, rows.take(left_out).hidden())
        places = np.full((len(rows), 3), np.nan)
        places[left_out] = launch_coordinates(
            threads[left_out] / block[left_out], block[left_out], alone[left_out]
        )
        for known, test in fold.cases:
            found = anchored(
                alone[known], rows.watts[known], places[known], places[test], alone[test]
            )
            values = (found.watts, alone[test], np.median(rows.watts[known]), found.log_deviation)
            for array, value in zip(out, values, strict=True):
                array[test] = value
    return out[0], out[1], out[2], out[3]
