"""The power models that are shipped: scores and intervals as their cards have them, and targets.

Cards hold scores of ten seeded fold assignments, made when the models were trained; ``wattcast
train`` makes them anew. Nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from studies.pages.page import Section
from studies.pages.targets import Target
from studies.power.bounds import BOUNDS
from studies.thesis.judged import Judged
from wattcast.models.cards import ModelCard, ScoreName, Table
from wattcast.models.intervals import Coverage
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.card_tables import interval_table, score_table, summary_table
from wattcast.training.evaluation.splits import Protocol
from wattcast.training.power_rows import SCHEMA, SOURCE, THESIS_FILES

PUBLISHED: Table = "as_published"
"""The table that targets are about: columns as the files print them."""


PLAIN = ("xgboost", "catboost")
"""Models of Table 5.7 that the shipped ones must beat on kernels left out."""
SEEN_COVERAGE = (87.0, 93.0)
UNSEEN_COVERAGE = (82.0, 97.0)
UNSEEN_KERNEL_COVERAGE = 85.0
"""Bounds in percent on the share of rows inside the 90 % intervals; the last is the mean over
kernels."""


class Held(NamedTuple):
    """A target, and the same figure of what knows nothing (``nan`` where there is none)."""

    target: Target
    nothing: float = float("nan")


def packaged_cards() -> tuple[ModelCard, ...]:
    """Cards of the power models in this package that pass their checks."""
    return tuple(ArtifactStore([PACKAGED_ARTIFACTS]).list())


def models_section(cards: Sequence[ModelCard]) -> Section:
    """Scores of every shipped model, random beside grouped."""
    return Section(
        "The shipped models",
        (
            "Scores of the cards: *kernel seen* is random folds (other launches of the kernel are "
            "in training), *kernel not seen* grouped ones. In brackets the median of the training "
            "rows. Rows of physical models are other programs and boards than those of the "
            "boosted ones.",
            summary_table(cards),
            "Every protocol and both tables of columns, as published and as recomputed by the "
            "rules that serve.",
            score_table(cards),
        ),
    )


def intervals_section(cards: Sequence[ModelCard]) -> Section:
    """Width and coverage of the intervals."""
    return Section(
        "Their intervals",
        (
            "90 % intervals, measured on data neither fitted nor calibrated on: the share of rows "
            "inside, its mean over kernels, and the mean width. A model that knows nothing of a "
            "kernel says so by its width.",
            interval_table(cards),
        ),
    )


def chosen_cards(
    cards: Iterable[ModelCard], protocol: Protocol = "grouped"
) -> dict[str, ModelCard]:
    """GPU -> the model of the thesis' schema that errs least, by default on kernels left out."""
    found: dict[str, ModelCard] = {}
    for card in cards:
        if (card.feature_schema.id, card.source) != (SCHEMA, SOURCE):
            continue
        best = found.get(card.gpu)
        if best is None or _mae(card, protocol) < _mae(best, protocol):
            found[card.gpu] = card
    return {gpu: found[gpu] for gpu in THESIS_FILES if gpu in found}


def model_targets(
    cards: Sequence[ModelCard], plain: Mapping[str, Mapping[str, Judged]]
) -> list[Held]:
    """Targets of the learned models: random folds, kernels left out, intervals.

    The best model of each protocol stands for it: its name is told with the target.
    ``plain``: GPU -> model -> the Table 5.7 models judged on kernels left out, as the study has
    them; a GPU it lacks gets no such target.
    """
    targets = []
    seen_best = chosen_cards(cards, "random")
    for gpu, card in chosen_cards(cards).items():
        bound, seen = BOUNDS[gpu], seen_best[gpu]
        random = f"{gpu}, {seen.family}, rows left out"
        grouped = f"{gpu}, {card.family}, kernels left out"
        targets += [
            _held(seen, "random", "r2", Target(f"{random}, R²", 0, bound.random_r2, "at least")),
            _held(seen, "random", "mae_watts", Target(f"{random}, MAE", 0, bound.random_mae_watts)),
            _held(
                card, "grouped", "mae_watts", Target(f"{grouped}, MAE", 0, bound.grouped_mae_watts)
            ),
            _held(
                card,
                "grouped",
                "mae_watts",
                Target(f"{grouped}, MAE", 0, bound.stretch_mae_watts, stretch=True),
            ),
        ]
        for model in PLAIN:
            if model in plain.get(gpu, {}):
                own = plain[gpu][model].scores("grouped")["mae_watts"].mean
                dealt = len(plain[gpu][model].grouped.predicted_watts)
                label = f"{grouped}, MAE, against plain {model} ({dealt} fold assignments)"
                targets.append(_held(card, "grouped", "mae_watts", Target(label, 0, round(own, 2))))
        targets += _interval_targets(random, seen, grouped, card)
    return targets


def _held(card: ModelCard, protocol: Protocol, score: ScoreName, bound: Target) -> Held:
    found = card.score(PUBLISHED, protocol)
    unit = "" if score == "r2" else "W"
    target = Target(
        bound.name, found.model[score].mean, bound.bound, bound.sense, bound.stretch, unit
    )
    return Held(target, found.baseline[score].mean)


def _interval_targets(
    random: str, seen_card: ModelCard, grouped: str, unseen_card: ModelCard
) -> list[Held]:
    seen = seen_card.intervals.seen_kernel.coverage
    unseen = unseen_card.intervals.unseen_kernel.coverage
    targets = []
    if seen is not None:
        targets += _between(f"{random}, rows inside the interval", seen, SEEN_COVERAGE)
    if unseen is not None:
        label = f"{grouped}, rows inside the interval"
        targets += _between(label, unseen, UNSEEN_COVERAGE)
        targets.append(
            Held(
                Target(
                    f"{label}, mean per kernel",
                    unseen.kernels * 100,
                    UNSEEN_KERNEL_COVERAGE,
                    "at least",
                )
            )
        )
    return targets


def _between(name: str, coverage: Coverage, bounds: tuple[float, float]) -> list[Held]:
    low, high = bounds
    return [
        Held(Target(name, coverage.rows * 100, low, "at least")),
        Held(Target(name, coverage.rows * 100, high, "at most")),
    ]


def _mae(card: ModelCard, protocol: Protocol) -> float:
    return card.score(PUBLISHED, protocol).model["mae_watts"].mean
