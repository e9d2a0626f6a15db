"""``python -m studies power``: what a few measured launches of a kernel are worth to the trees.

Kernels left out but for those launches (``known``). With ``--checkpoints`` of a training, its
predictions are read instead of fitted again. What the models must hold, for docs/accuracy.md, is
here too: scores are those of the shipped cards, over the seeded assignments each card states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies import parser_of
from studies.card_tables import table as markdown
from studies.evaluation import known_folds
from studies.fitting.out_of_fold import ASSIGNMENTS, Fit
from studies.fitting.trees.pooled import FAMILY as EXTRA_TREES
from studies.fitting.trees.pooled import LaunchedTable, shipped_fit
from studies.fitting.trees.tables import SOURCE, SOURCES
from wattcast.models.cards import ModelCard, ScoreName, Spread
from wattcast.models.power import BOOSTED_FAMILIES as TREE_FAMILIES
from wattcast.models.power.anchoring import anchored, launch_coordinates, width_of
from wattcast.training.engine import Checkpoints
from wattcast.training.evaluation.scores import Floats, Rows, point_scores, spread_of

Line = list[str]


def card_lines(cards: Sequence[ModelCard]) -> list[Line]:
    """Random and grouped scores of every tree model, beside the bounds of its GPU."""
    lines = []
    for card in cards:
        if card.family not in TREE_FAMILIES or card.board is not None:
            continue
        for scores in card.scores:
            r2, mae = scores.model["r2"], scores.model["mae_watts"]
            baseline = scores.baseline["mae_watts"]
            wanted, held = "better than the median", mae.mean < baseline.mean
            thesis = card.source == SOURCE
            if thesis and scores.protocol == "random" and scores.table == "as_published":
                wanted, held = _random_verdict(card.gpu, r2, mae)
            elif thesis and scores.protocol == "grouped":
                wanted = f"MAE ≤ {BOUNDS[card.gpu].grouped_mae_watts} W"
                held = mae.mean <= BOUNDS[card.gpu].grouped_mae_watts
            lines.append(
                [
                    f"{card.gpu}, {card.source}",
                    f"{scores.protocol}, {scores.table.replace('_', ' ')}, × {scores.assignments}",
                    card.family,
                    _spread(r2, 3),
                    _spread(mae, 2),
                    f"{scores.baseline['r2'].mean:.2f}, {baseline.mean:.2f}",
                    wanted,
                    _yes(held),
                ]
            )
    return lines


def known_lines(seeds: Sequence[int], checkpoints: Checkpoints) -> list[Line]:
    """Scores with measured launches of the kernel."""
    lines = []
    for source, (_, files) in SOURCES.items():
        for gpu in files:
            found = known_scores(*shipped_fit(gpu, source, checkpoints), seeds)
            bound = KNOWN_R2.get(gpu) if source == SOURCE else None
            r2 = found.anchored["r2"]
            lines.append(
                [
                    f"{gpu}, {source}",
                    f"known, {SHOTS} launches, × {len(seeds)}",
                    f"{EXTRA_TREES}, anchored",
                    _spread(r2, 3),
                    _spread(found.anchored["mae_watts"], 2),
                    f"{found.own_median['r2'].mean:.2f}, {found.own_median['mae_watts'].mean:.2f}"
                    f" (not anchored {found.alone['mae_watts'].mean:.2f}; 90 % interval holds "
                    f"{found.coverage:.2f})",
                    "-" if bound is None else f"R² ≥ {bound}",
                    "-" if bound is None else _yes(r2.mean >= bound),
                ]
            )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("power", __doc__)
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--checkpoints", type=Path, help="folder of a training's kept predictions")
    options = parser.parse_args(arguments)
    seeds, checkpoints = range(options.assignments), Checkpoints(options.checkpoints)
    titles = ["GPU", "folds", "model", "R²", "MAE W", "baseline R², MAE W", "must", "held"]
    print(markdown(titles, known_lines(seeds, checkpoints)), flush=True)
    return 0


def _random_verdict(gpu: str, r2: Spread, mae: Spread) -> tuple[str, bool]:
    bound = BOUNDS[gpu]
    wanted = f"R² ≥ {bound.random_r2}, MAE ≤ {bound.random_mae_watts} W"
    return wanted, r2.mean >= bound.random_r2 and mae.mean <= bound.random_mae_watts


def _spread(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def _yes(held: bool | np.bool_) -> str:
    return "yes" if held else "no"


# --- What the power models must hold on the published rows, leaving idle_po --------------------


class Bound(NamedTuple):
    """What the boosted models of a GPU must hold, in watts but for R2."""

    random_r2: float
    random_mae_watts: float
    grouped_mae_watts: float


BOUNDS: Mapping[str, Bound] = {
    "tesla-k20": Bound(0.925, 2.6, 11.8),
    "tesla-m60": Bound(0.945, 1.8, 11.4),
    "tesla-v100": Bound(0.925, 3.6, 23.5),
}
KNOWN_R2: Mapping[str, float] = {"tesla-k20": 0.70, "tesla-m60": 0.78}
"""Least R2 with three measured launches of the kernel."""


# --- How a few measured launches of a kernel help: the extra trees, anchore --------------------


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
        inside.append(np.mean((low <= measured[tested]) & (measured[tested] <= high)))
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
    for fold in known_folds(rows, seed, shots):
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
