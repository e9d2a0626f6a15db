"""Markdown tables; the scores of model cards as such, for the README and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wattcast.models.cards import ModelCard, ProtocolScores, ScoreName, Spread


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line for every row; ends with a newline."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


_COLUMNS: tuple[tuple[ScoreName, str, int], ...] = (
    ("r2", "R²", 3),
    ("rmse_watts", "RMSE W", 2),
    ("mae_watts", "MAE W", 2),
    ("mape_percent", "MAPE %", 1),
    ("kernel_macro_mape_percent", "MAPE per kernel %", 1),
)
_SUMMARY: tuple[tuple[ScoreName, int], ...] = (("r2", 2), ("mae_watts", 1))
_TABLES = {
    "as_published": "as published",
    "as_recomputed": "as recomputed (served)",
    "measured": "uploads",
}


def score_table(cards: Iterable[ModelCard]) -> str:
    """Random and grouped scores of every card, mean ± spread, beside the median-watt baseline."""
    titles = ["GPU", "model", "rows", "folds"] + [title for _, title, _ in _COLUMNS]
    lines = [
        [
            _gpu(card),
            card.family,
            _TABLES[scores.table],
            f"{scores.protocol}, {scores.folds} × {scores.assignments}",
            *(_cell(scores, name, digits) for name, _, digits in _COLUMNS),
        ]
        for card in cards
        for scores in sorted(card.scores, key=lambda one: (one.protocol != "random", one.table))
    ]
    note = (
        "\nMean ± standard deviation over seeded fold assignments; in brackets the median power "
        "of the training rows as the prediction, on the same folds. `random`: other launches of "
        "the kernel are in training. `grouped`: the kernel is not.\n"
    )
    return table(titles, lines) + note


def summary_table(cards: Iterable[ModelCard]) -> str:
    """One line per card, as the README quotes it: served scores, random beside grouped."""
    titles = ["GPU", "model", "kernel seen: R²", "MAE W", "kernel not seen: R²", "MAE W"]
    lines = []
    for card in cards:
        # A physical model has one table; of two, the recomputed one is what is served.
        served = {s.protocol: s for s in sorted(card.scores, key=lambda one: one.table)}
        cells = [
            _cell(served[protocol], name, digits)
            for protocol in ("random", "grouped")
            for name, digits in _SUMMARY
        ]
        lines.append([_gpu(card), card.family, *cells])
    return table(titles, lines)


def interval_table(cards: Iterable[ModelCard]) -> str:
    """Width and empirical coverage of the 90 % intervals of every card."""
    titles = ["GPU", "model", "basis", "interval", "rows inside", "mean per kernel", "mean width W"]
    lines = []
    for card in cards:
        intervals = card.intervals
        for basis, width in (
            ("seen kernel", intervals.seen_kernel),
            ("unseen kernel", intervals.unseen_kernel),
            ("extrapolated", intervals.extrapolated),
        ):
            measured = ["-"] * 3
            if width.coverage is not None:
                measured = [
                    f"{width.coverage.rows:.2f}",
                    f"{width.coverage.kernels:.2f}",
                    f"{width.coverage.mean_width_watts:.1f}",
                ]
            lines.append([_gpu(card), card.family, basis, str(width), *measured])
    return table(titles, lines)


def feature_table(card: ModelCard) -> str:
    """Per feature of one card: training range and share of rows the serving rule reproduces."""
    titles = ["feature", "minimum", "maximum", "reproduced", "as published", "by"]
    lines = [
        [
            feature.name,
            f"{feature.minimum:.6g}",
            f"{feature.maximum:.6g}",
            _share(feature.reproduced_share),
            _share(feature.reproduced_share_published),
            feature.reproduced_note,
        ]
        for feature in card.features
    ]
    return table(titles, lines)


def _gpu(card: ModelCard) -> str:
    """The GPU; with the source where a GPU of that name was measured twice."""
    return f"{card.gpu} ({card.source})" if card.source == "powerquant" else card.gpu


def _cell(scores: ProtocolScores, name: ScoreName, digits: int) -> str:
    def text(value: Spread) -> str:
        return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"

    return f"{text(scores.model[name])} ({scores.baseline[name].mean:.{digits}f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
