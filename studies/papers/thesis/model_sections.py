"""The thesis' power study reproduced: models and their errors, ours beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from studies.pages.page import Block, Section, Table
from studies.papers.thesis.data import (
    LEFT_OUT,
    PROTOCOLS,
    Judged,
    Scores,
    beside_median,
    printed,
    text,
)
from studies.papers.thesis.regressors import RUNS, repeated_runs
from studies.papers.thesis.rows import error_by_dwarf, rows_by_dwarf
from studies.papers.thesis.study import K20, Study
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.evaluation.scores import Protocol

SCORES: tuple[ScoreName, ...] = ("r2", "rmse_watts", "mae_watts")
TITLES = ("R²", "RMSE W", "MAE W")

FOLDS_NOTE = (
    "*Rows left out* is what the thesis reports: other launches of the same kernel are in "
    "training. *Kernels left out* is what a user's own kernel gets."
)


_TITLES_BESIDE = (
    "GPU",
    *(f"rows left out: {title}" for title in TITLES),
    *(f"printed {title}" for title in TITLES),
    *(f"kernels left out: {title}" for title in TITLES),
)


def _printed_cells(told: Scores | None) -> list[str]:
    if told is None:
        return ["-"] * len(SCORES)
    return [f"{told.r2:.3f}", f"{told.rmse_watts:.2f}", f"{told.mae_watts:.2f}"]


def regressors_section(study: Study) -> Section:
    """Tables 5.7 and 5.8, and the multi-linear regression of section 5.7."""
    tables: list[Block] = []
    for gpu, judged in study.regressors.items():
        told = printed().table_5_8[gpu]
        rows = [[name, *_model_cells(each, told.get(name))] for name, each in judged.items()]
        rows.append(["multi-linear", *_model_cells(study.linear[gpu], None)])
        first = next(iter(judged.values()))
        for label, by_protocol in _baselines(first).items():
            rows.append(
                [
                    label,
                    *(text(by_protocol["random"][name], name) for name in SCORES),
                    *_printed_cells(None),
                    *(text(by_protocol["grouped"][name], name) for name in SCORES),
                ]
            )
        count, groups = len(first.random.rows), len(np.unique(first.random.rows.groups))
        caption = f"{gpu}: {count} rows of {groups} kernel groups."
        tables.append(Table(("model", *_TITLES_BESIDE[1:]), rows, caption))
    best = _best(study.regressors)
    return Section(
        "Eight regressors (5.7, Tables 5.7 and 5.8)",
        (
            "Parameters of Table 5.7 on the 15 selected features. " + FOLDS_NOTE + " The last two "
            "lines know nothing: the median of the training rows, and the training row with the "
            "nearest features.",
            *tables,
            "The thesis prints R² -0.19 for the multi-linear regression on Tesla K20 (5.7): as "
            "here, worse than a constant.",
            best,
        ),
    )


def _model_cells(judged: Judged, told: Scores | None) -> list[str]:
    return [
        *(text(judged.scores("random")[name], name) for name in SCORES),
        *_printed_cells(told),
        *(text(judged.scores("grouped")[name], name) for name in SCORES),
    ]


def _baselines(judged: Judged) -> dict[str, dict[Protocol, Mapping[ScoreName, Spread]]]:
    return {
        "median watt": {protocol: judged.median(protocol) for protocol in PROTOCOLS},
        "nearest row": {
            protocol: judged.by(protocol).other_scores()["nearest_watts"] for protocol in PROTOCOLS
        },
    }


def _best(judged: Mapping[str, Mapping[str, Judged]]) -> str:
    """Which regressor errs least by either protocol: a sentence for every GPU."""

    def least(models: Mapping[str, Judged], protocol: Protocol) -> str:
        errors = {name: each.scores(protocol)["mae_watts"].mean for name, each in models.items()}
        name = min(errors, key=lambda model: errors[model])
        return f"{name} ({errors[name]:.2f} W)"

    said = [
        f"{gpu}: {least(models, 'random')} with rows left out, {least(models, 'grouped')} with "
        "kernels left out"
        for gpu, models in judged.items()
    ]
    return "Least mean absolute error: " + "; ".join(said) + "."


def repeated_section(study: Study) -> Section:
    """Table 5.9."""
    names: tuple[ScoreName, ...] = (*SCORES, "mape_percent")
    titles = (*TITLES, "MAPE %")
    rows: list[Sequence[str]] = []
    for gpu, found in repeated_runs(study.tables, study.effort).items():
        told = printed().table_5_9[gpu]
        spreads = (told.r2, told.rmse_watts, told.mae_watts, told.mape_percent)
        printed_cells = [
            text(Spread(mean=value, std=std), name)
            for (value, std), name in zip(spreads, names, strict=True)
        ]
        rows.append([gpu, "printed, rows left out", *printed_cells])
        for protocol, said in LEFT_OUT.items():
            scores = found.by_fold[protocol]
            rows.append(
                [gpu, f"mean of folds, {said} left out", *(text(scores[n], n) for n in names)]
            )
        for protocol, said in LEFT_OUT.items():
            cells = [beside_median(found.judged, protocol, name) for name in names]
            rows.append([gpu, f"pooled, {said} left out", *cells])
    return Section(
        f"{RUNS} runs of XGBoost (Table 5.9)",
        (
            "Folds dealt anew in each run. The thesis averages scores over the folds of a run; "
            "everything else here scores the pooled predictions of all folds. With kernels left "
            "out the two differ, since a fold has few kernels and a variance of its own. The "
            "spread is small where kernels are known: it says that rows of a kernel resemble each "
            "other, not that the model is robust.",
            Table(("GPU", "scores", *titles), rows, "In brackets the median of the training rows."),
        ),
    )


def dwarfs_section(study: Study) -> Section:
    """Table 5.12."""
    judged, table_5_12 = study.regressors[K20], printed().table_5_12
    errors, members = error_by_dwarf(judged, study.k20), rows_by_dwarf(study.k20)
    told = {name: judged for name in table_5_12 if name in judged}
    printed_dwarfs = next(iter(table_5_12.values()))
    sections: list[Block] = []
    for at, said in ((0, "rows"), (1, "kernels")):
        rows = []
        for dwarf, by_model in errors.items():
            cells = [
                f"{by_model[model][at]:.2f} ({table_5_12[model][dwarf]:.2f})"
                if dwarf in table_5_12[model]
                else f"{by_model[model][at]:.2f}"
                for model in told
            ]
            median = np.mean([each[2] for each in by_model.values()])
            rows.append([dwarf, str(int(members[dwarf].rows.sum())), *cells, f"{median:.2f}"])
        caption = f"Mean absolute error in W, {said} left out; in brackets Table 5.12 as printed."
        sections.append(Table(("dwarf", "rows", *told, "median watt"), rows, caption))
    return Section(
        "Error by parallel dwarf (5.8.3, Table 5.12)",
        (
            "Tesla K20. The thesis chose benchmarks for each dwarf and does not say which, nor "
            "whether their launches were in training; its errors of .05 to .5 W suggest that they "
            "were. Here every classified program counts (studies/papers/thesis/dwarfs.toml): "
            + "; ".join(
                f"{name}: {', '.join(found.benchmarks)}"
                for name, found in members.items()
                if name in printed_dwarfs
            )
            + ".",
            *sections,
        ),
    )
