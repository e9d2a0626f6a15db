"""Parts of the thesis that print numbers of fits: its regressions, tuning, and what it compares."""

from __future__ import annotations

from studies.pages.page import Section, Table
from studies.papers.thesis.rows import latency_lines, throughputs
from studies.papers.thesis.study import Study


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
