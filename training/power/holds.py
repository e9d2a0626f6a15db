"""``python -m training.power``: what the power models must hold on the published rows, in a table.

Scores of random and grouped folds are those of the shipped cards: out of fold, over the seeded
assignments each card states. Computed here are measured launches of the kernel (``known``), the
width of the intervals beside a constant one, and PowerQuant without its short runs. With
``--checkpoints`` of a training, its predictions are read instead of fitted again.
"""

from __future__ import annotations

import os

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from features.errors import WattcastError
from models.cards import ModelCard, Spread
from models.power.boosted import FAMILIES as TREE_FAMILIES
from models.store import PACKAGED_ARTIFACTS, ArtifactStore
from training.checkpoints import Checkpoints
from training.data.cleaning import clean
from training.evaluation.protocols import ASSIGNMENTS, evaluate
from training.families import get_family
from training.fit import (
    POOLED,
    POWERQUANT_FILES,
    POWERQUANT_SOURCE,
    SOURCE,
    SOURCES,
    boosted_fit,
    peer_tables,
    pooled_fits,
    training_table,
)
from training.markdown import table as markdown
from training.power.anchored import SHOTS, known_scores
from training.power.rows import rows_of


class Bound(NamedTuple):
    """What a GPU must hold: least R2 and most watts of mean absolute error."""

    r2: float
    mae_watts: float


RANDOM: Mapping[str, Bound] = {
    "tesla-k20": Bound(0.925, 2.6),
    "tesla-m60": Bound(0.945, 1.8),
    "tesla-v100": Bound(0.925, 3.6),
}
GROUPED_MAE_WATTS: Mapping[str, float] = {
    "tesla-k20": 11.8,
    "tesla-m60": 11.4,
    "tesla-v100": 23.5,
}
KNOWN_R2: Mapping[str, float] = {"tesla-k20": 0.70, "tesla-m60": 0.78}

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
                bound = RANDOM[card.gpu]
                wanted = f"R² ≥ {bound.r2}, MAE ≤ {bound.mae_watts} W"
                held = r2.mean >= bound.r2 and mae.mean <= bound.mae_watts
            elif thesis and scores.protocol == "grouped":
                wanted = f"MAE ≤ {GROUPED_MAE_WATTS[card.gpu]} W"
                held = mae.mean <= GROUPED_MAE_WATTS[card.gpu]
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
        peers = peer_tables(source)
        for gpu in files:
            own = training_table(gpu, source=source)
            others = [peer for peer in peers if peer.gpu != gpu]
            fit = pooled_fits(own, others, checkpoints)[own.served]
            found = known_scores(own, fit, seeds)
            bound = KNOWN_R2.get(gpu) if source == SOURCE else None
            r2 = found.anchored["r2"]
            lines.append(
                [
                    f"{gpu}, {source}",
                    f"known, {SHOTS} launches, × {len(seeds)}",
                    f"{POOLED}, anchored",
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


def interval_lines(
    cards: Sequence[ModelCard], seeds: Sequence[int], checkpoints: Checkpoints
) -> list[Line]:
    """Coverage by the cards, and the interval score beside that of a constant width."""
    lines = []
    for source, (_, files) in SOURCES.items():
        peers = peer_tables(source)
        for gpu in files:
            own = training_table(gpu, source=source)
            others = [peer for peer in peers if peer.gpu != gpu]
            fit = pooled_fits(own, others, checkpoints)[own.served]
            grouped = evaluate(own.launched[own.served], fit, "grouped", seeds)
            factor, constant = (
                grouped.interval_scores(shape)["interval_score_watts"].mean
                for shape in ("factor", "constant")
            )
            nearest = grouped.other_scores()["nearest_watts"]["mae_watts"].mean
            for card in cards:
                if (card.gpu, card.source, card.family) != (gpu, source, POOLED):
                    continue
                seen, unseen = card.intervals.seen_kernel, card.intervals.unseen_kernel
                assert seen.coverage is not None
                assert unseen.coverage is not None
                rows, kernels = unseen.coverage.rows, unseen.coverage.kernels
                gain = 1 - factor / constant
                lines.append(
                    [
                        f"{gpu}, {source}",
                        f"{seen.coverage.rows:.2f}",
                        f"{rows:.2f}",
                        f"{kernels:.2f}",
                        f"{factor:.1f}",
                        f"{constant:.1f} ({gain:+.0%})",
                        f"{nearest:.1f}",
                        _yes(
                            0.87 <= seen.coverage.rows <= 0.93
                            and kernels >= 0.85
                            and 0.82 <= rows <= 0.97
                            and gain >= 0.10
                        ),
                    ]
                )
    return lines


def short_run_lines(seeds: Sequence[int], checkpoints: Checkpoints) -> list[Line]:
    """Plain XGBoost on PowerQuant's random folds, with and without runs under 100 ms."""
    family = get_family("xgboost")
    lines = []
    for gpu, file in POWERQUANT_FILES.items():
        names = [one.name for one in training_table(gpu, source=POWERQUANT_SOURCE).features]
        frame = clean(file).training_rows
        long = frame[~frame["flag"].str.contains("short_run")].reset_index(drop=True)
        fit = boosted_fit(family, checkpoints)
        for label, chosen in (("all rows", frame), ("without short runs", long)):
            found = evaluate(rows_of(chosen, names), fit, "random", seeds)
            scores, baseline = found.scores(), found.baseline_scores()
            lines.append(
                [
                    gpu,
                    label,
                    str(len(chosen)),
                    _spread(scores["r2"], 3),
                    _spread(scores["mae_watts"], 2),
                    f"{baseline['mae_watts'].mean:.2f}",
                ]
            )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.power", description=__doc__)
    parser.add_argument("--artifacts", type=Path, default=PACKAGED_ARTIFACTS)
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--checkpoints", type=Path, help="folder of a training's kept predictions")
    options = parser.parse_args(arguments)
    seeds, checkpoints = range(options.assignments), Checkpoints(options.checkpoints)
    try:
        cards = ArtifactStore([options.artifacts]).list()
        titles = ["GPU", "folds", "model", "R²", "MAE W", "baseline R², MAE W", "must", "held"]
        print(markdown(titles, card_lines(cards)), flush=True)
        print(markdown(titles, known_lines(seeds, checkpoints)), flush=True)
        titles = [
            "GPU",
            "seen: rows inside",
            "unseen: rows inside",
            "per kernel",
            "interval score W",
            "of constant width",
            "1-NN MAE W",
            "held",
        ]
        print(markdown(titles, interval_lines(cards, seeds, checkpoints)), flush=True)
        titles = ["GPU", "rows", "count", "R²", "MAE W", "median watt MAE W"]
        print(markdown(titles, short_run_lines(seeds, checkpoints)), flush=True)
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _spread(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def _yes(held: bool | np.bool_) -> str:
    return "yes" if held else "no"
