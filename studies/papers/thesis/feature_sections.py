"""The thesis' power study reproduced: features, what the models make of them, counters."""

from __future__ import annotations

from studies.pages.page import Section, Table
from studies.papers.thesis.data import PROTOCOLS, beside_median
from studies.papers.thesis.features import LIMIT, THESIS, TOLERANCE, Selection, select_features
from studies.papers.thesis.study import Study


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
