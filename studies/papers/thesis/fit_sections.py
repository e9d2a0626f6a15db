"""Parts of the thesis that print numbers of fits: its regressions, tuning, and what it compares."""

from __future__ import annotations

from studies.pages.page import Section, Table
from studies.papers.thesis.data import beside_median, by_size, median_filled, rows_of
from studies.papers.thesis.model_sections import FOLDS_NOTE, SCORES, TITLES
from studies.papers.thesis.networks import Network
from studies.papers.thesis.regressors import tune
from studies.papers.thesis.rows import (
    latency_lines,
    repeated_launches,
    table_6_2,
    throughputs,
)
from studies.papers.thesis.study import Study
from wattcast.features.errors import MissingExtraError
from wattcast.training.data.cleaning import MODEL_INPUTS


def regressions_section(study: Study) -> Section:
    """Tables 3.3, 4.4 and 4.5."""
    lines, fitted = latency_lines(study.root), []
    for one in throughputs(study.root):
        a, b, c = one.forms["exponential"].numbers
        fitted.append(
            [
                one.gpu,
                one.memory,
                str(one.points),
                *(f"{grown.r_squared:.4f}" for grown in one.forms.values()),
                f"{a:.1f}, {b:.4f}, {c:.5g}",
                f"{one.printed.a:g}, {one.printed.b:g}, {one.printed.c:g}",
            ]
        )
    bounds = ["-" if one.below_threads is None else str(one.below_threads) for one in lines.found]
    return Section(
        "Regressions of chapters 3 and 4 (Tables 3.3 to 4.5)",
        (
            "Fitted to the published rows by the functions that onboarding uses. The rows hold "
            "what the thesis' regressions gave; its measured points are not public, so Table 3.4 "
            "and the R² of Table 4.4 (.98 and .95 of the exponential) cannot be repeated.",
            Table(
                ("below threads", "slope", "constant", "printed slope", "printed constant"),
                [
                    [bound, f"{one.slope:.4g}", f"{one.constant:.2f}",
                     f"{told.slope:.4g}", f"{told.constant:.2f}"]
                    for bound, one, told in zip(bounds, lines.found, lines.printed, strict=False)
                ],
                f"Table 3.3 (Tesla K20): {lines.same} of {lines.rows} rows have its value to four "
                "digits (the others mix in stores); the lines through them.",
            ),
            Table(
                (
                    *("GPU", "memory", "points", "R² linear", "logarithmic", "exponential"),
                    *("a, b, c", "profile (Table 4.5)"),
                ),
                fitted,
                "Tables 4.4 and 4.5. M60's shared exponent is ten times that of the print.",
            ),
        ),
    )  # fmt: skip


def compared_section(study: Study) -> Section:
    """Tables 5.5 and 6.2."""
    found = table_6_2()
    repeats = repeated_launches(study.k20)
    return Section(
        "Spread of measurements, and time beside power (Tables 5.5 and 6.2)",
        (
            Table(
                ("program", "launches", "rows", "mean W", "standard deviation W"),
                [
                    [one.program, str(one.launches), str(one.rows), f"{one.mean_watts:.1f}",
                     f"{one.deviation_watts:.2f}"]
                    for one in repeats
                ],
                "Table 5.5 gives the spread of the samples of five programs (.14 to 1.78 W); its "
                "samples are not public. Equal launches that are in Tesla K20's rows more than "
                "once.",
            ),
            f"Table 6.2 prints {found.rows} kernels chosen for times that are off by more than "
            f"15 % ({found.beyond_15} are). Recomputed: time {found.time_percent:.1f} %, power "
            f"{found.power_percent:.1f} %. Two of its kernels (mergeSort) share one pair of "
            "times, and the matrix product has 5,825.05 us and 95.6 W where Table 6.1 has "
            "5,689.25 us and 83.2 W of the same launch.",
        ),
    )  # fmt: skip


def tuning_section(study: Study) -> Section:
    """Table 5.7 by nested cross-validation."""
    rows = []
    for model in study.models:
        study.effort.progress(f"tesla-k20: {model} tuned")
        found = tune(study.k20, model, study.effort)
        rows.append(
            [
                model,
                *(beside_median(found.judged, "random", name) for name in SCORES),
                *(beside_median(found.judged, "grouped", name) for name in SCORES),
                found.printed,
                found.chosen["random"],
                found.chosen["grouped"],
            ]
        )
    return Section(
        "Parameters found (Table 5.7)",
        (
            "Each regressor tuned on the training rows of every fold (three inner folds of the "
            "same protocol), Tesla K20, one assignment. " + FOLDS_NOTE,
            Table(
                (
                    "model",
                    *(f"rows left out: {title}" for title in TITLES),
                    *(f"kernels left out: {title}" for title in TITLES),
                    *("printed", "chosen, rows left out", "chosen, kernels left out"),
                ),
                rows,
                "In brackets the median of the training rows. Chosen: by all rows.",
            ),
        ),
    )


def pictures_section(study: Study) -> Section:
    """Figures 5.5 and 5.11: correlations of the features, losses of the networks."""
    names = list(MODEL_INPUTS)
    found = study.k20[names].corr().fillna(0.0).to_numpy(float)
    shown = (1, 10, 20, 40, 60)
    losses = []
    for size, frame in by_size(study.k20).items():
        rows = rows_of(frame)
        filled = median_filled(rows.vectors)
        low, high = filled.min(axis=0), filled.max(axis=0)
        vectors = (filled - low) / (high - low + (high == low))
        for schedule in ("exponential", "inverse time"):
            network = Network((64, 64, 128), schedule, shown[-1])
            network.fit(vectors, rows.watts)
            losses.append([size, schedule, *(f"{network.losses[at - 1]:.4f}" for at in shown)])
    return Section(
        "Correlations and losses (Figures 5.5 and 5.11)",
        (
            Table(
                ("", *names),
                [
                    [name, *(f"{one:.2f}" for one in row)]
                    for name, row in zip(names, found, strict=True)
                ],
                "Pearson's coefficient, Tesla K20 (Figure 5.5).",
            ),
            Table(
                ("data", "schedule", *(f"epoch {at}" for at in shown)),
                losses,
                "Training loss of the networks (Figure 5.11).",
            ),
        ),
    )


def autoencoder_section(study: Study) -> Section:
    """The rows of Table 5.6 with a variational autoencoder."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "sequence") from error
    from studies.papers.thesis.autoencoder import PRINTED_R2, judge_autoencoder

    rows = []
    for (size, frame), epochs in zip(by_size(study.k20).items(), (100, 50), strict=True):
        study.effort.progress(f"autoencoder, {size} data")
        judged = judge_autoencoder(frame, epochs, study.effort)
        rows.append(
            [size, beside_median(judged, "random", "r2"), f"{PRINTED_R2[size]:.3f}",
             beside_median(judged, "grouped", "r2")]
        )  # fmt: skip
    return Section(
        "A variational autoencoder's features (Table 5.6)",
        (
            Table(
                ("data", "rows left out: R²", "printed", "kernels left out: R²"),
                rows,
                "Fifteen latent features of all static columns, then the 64, 64, 128 network. In "
                "brackets the median of the training rows.",
            ),
        ),
    )
