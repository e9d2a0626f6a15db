"""The thesis' power study reproduced: features, what the models make of them, counters."""

from __future__ import annotations

from collections.abc import Mapping

from studies.pages.page import Section, Table
from studies.papers.thesis.data import PROTOCOLS, beside_median
from studies.papers.thesis.features import (
    LIMIT,
    THESIS,
    TOLERANCE,
    Selection,
    agreement,
    printed_ranking,
    rankings,
    select_features,
)
from studies.papers.thesis.study import Study
from wattcast.training.data.cleaning import MODEL_INPUTS


def selection_section(study: Study) -> Section:
    """Section 5.5."""
    found = select_features(study.k20, study.effort)
    return Section(
        "Feature engineering (5.5)",
        (
            "Tesla K20, as the thesis goes: totals per SM dropped for average latencies, then one "
            f"of every two features whose Pearson, then Kendall coefficient is {LIMIT} or more, "
            "then what the random forest can do without (its error out of fold grows by no more "
            f"than {TOLERANCE:.1%}). {_outcome(found)}",
            Table(
                (
                    *("after step", "features", "rows left out: R²", "rows left out: MAE W"),
                    *("kernels left out: R²", "kernels left out: MAE W"),
                ),
                [
                    [
                        step,
                        str(len(features)),
                        *(
                            beside_median(found.judged[step], protocol, name)
                            for protocol in PROTOCOLS
                            for name in ("r2", "mae_watts")
                        ),
                    ]
                    for step, features in found.steps.items()
                ],
                "XGBoost on what each step leaves; in brackets the median of the training rows. "
                "Trees do not mind correlated features: no step changes much.",
            ),
            Table(
                ("dropped", "goes with", "coefficient", "by"),
                [
                    [each.feature, each.kept, f"{each.value:.2f}", kind]
                    for kind, dropped in (("Pearson", found.pearson), ("Kendall", found.kendall))
                    for each in dropped
                ],
            ),
            Table(
                ("feature", "with", "coefficient", "ours", "printed"),
                [
                    [each.one, each.other, each.kind.capitalize(), f"{ours:.2f}", f"{each.value}"]
                    for each, ours in found.correlations
                ],
                "Coefficients that the thesis prints. Its column waves in the K20 file is "
                "ceil(blocks / SMs), so that waves and grid_size say the same.",
            ),
            _shap_agreement(found),
        ),
    )


def _outcome(found: Selection) -> str:
    ours, theirs = set(found.steps["forest"]), set(found.steps[THESIS])
    if ours == theirs:
        return "What is left are the thesis' 15 features."
    extra, missing = sorted(ours - theirs), sorted(theirs - ours)
    said = [f"beyond the thesis' 15: {', '.join(extra)}"] if extra else []
    said += [f"of the thesis' 15 not left: {', '.join(missing)}"] if missing else []
    return f"What is left: {len(ours)} features; {'; '.join(said)}."


def _shap_agreement(found: Selection) -> str:
    by_shap = sorted(found.ranking, key=lambda each: -each.shap)
    forest = [each.feature for each in found.ranking]
    shap = [each.feature for each in by_shap]
    top = len(set(forest[:4]) & set(shap[:4]))
    last = len(set(forest[-2:]) & set(shap[-2:]))
    return (
        "The thesis finds the same four features on top and the same two at the end by both; "
        f"here {top} of the first four and {last} of the last two are the same."
    )


def ranking_section(study: Study) -> Section:
    """The rankings of Table 5.10."""
    found = rankings(study.tables)
    return Section(
        "Importance of features (Table 5.10)",
        (
            "The thesis prints one ranking for each library and calls it consistent across its "
            "three GPUs. Ours, fitted on all rows of each; Spearman's rank correlation with the "
            "printed one, and between GPUs.",
            Table(
                ("rank", *(f"{model}, {gpu}" for model in found for gpu in found[model])),
                [
                    [
                        str(at + 1),
                        *(ranked[at] for by_gpu in found.values() for ranked in by_gpu.values()),
                    ]
                    for at in range(len(MODEL_INPUTS))
                ],
            ),
            Table(
                ("model", *(f"{gpu} with printed" for gpu in study.tables), "between GPUs, least"),
                [[model, *_agreements(model, by_gpu)] for model, by_gpu in found.items()],
                "Rank correlations: 1 is the same order, 0 none.",
            ),
        ),
    )


def _agreements(model: str, by_gpu: Mapping[str, tuple[str, ...]]) -> list[str]:
    told, ranked = printed_ranking(model), list(by_gpu.values())
    pairs = [agreement(a, b) for at, a in enumerate(ranked) for b in ranked[at + 1 :]]
    least = f"{min(pairs):.2f}" if pairs else "-"
    return [*(f"{agreement(each, told):.2f}" for each in ranked), least]
