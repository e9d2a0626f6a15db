"""Explanations as pictures and as a page of their own, from the same data as JSON."""

from __future__ import annotations

import base64
import hashlib
from operator import itemgetter
from pathlib import Path
from typing import Any

from wattcast.models.intervals import quantity
from wattcast.predictor.explain.pictures import Chart, ChartKind, draw, png, svg
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.reports import Column, Line, Picture, Report, Table, html

_FOLDER = Path(__file__).parent
STYLE = (_FOLDER / "page.css").read_text(encoding="utf-8")

POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs and loads nothing; the hash is that of its one style sheet."""

QUANTITIES = {"power": ("watts", "W"), "time": ("seconds", "s")}
"""Member that holds the amount of each part, and its unit."""

BAR = 20
"""Characters of the longest bar."""


def chart_of(explanation: messages.Explanation, prediction: PredictAnswer) -> Chart:
    """What to draw of an explanation; ``prediction`` is the answer that it explains."""
    amount, unit = QUANTITIES[explanation.target]
    if isinstance(explanation, messages.ShapAnswer | messages.TimeShapAnswer):
        start, end, end_name, fit = "base", "prediction", "prediction", ""
    else:
        start, end, end_name = "intercept", "local_prediction", "linear model"
        fit = f", fits the model with R² {explanation.r_squared:.2f}"
    return Chart(
        title=f"{explanation.target.capitalize()} of {prediction.name} on {prediction.gpu}",
        subtitle=f"{explanation.method.upper()} on the {explanation.model.family} model{fit}",
        quantity=explanation.target,
        unit=unit,
        start=(start, getattr(explanation, f"{start}_{amount}")),
        bars=[
            (label(part), getattr(part, amount))
            for part in explanation.contributions
            if getattr(part, amount)
        ],
        end=(end_name, getattr(explanation, f"{end}_{amount}")),
    )


def drawn(
    explanation: messages.Explanation, prediction: PredictAnswer, form: str, kind: ChartKind
) -> bytes:
    """The explanation as ``html``, ``svg`` or ``png``."""
    if form == "html":
        return page(explanation, prediction, kind).encode()
    drawing = draw(chart_of(explanation, prediction), kind)
    return svg(drawing).encode() if form == "svg" else png(drawing)


def label(part: Any) -> str:
    """A part's name, with its value where it has one."""
    if hasattr(part, "condition"):
        return str(part.condition)
    if not hasattr(part, "watts") or part.value is None:
        return str(part.feature)
    return f"{part.feature} = {part.value:.6g}"


def report(explanation: messages.Explanation, prediction: PredictAnswer, most: int) -> Report:
    """What is predicted, then the base, the ``most`` largest parts and the prediction, each with
    what it is."""
    amount, unit = QUANTITIES[explanation.target]
    chart = chart_of(explanation, prediction)
    parts = [part for part in explanation.contributions if getattr(part, amount)]
    longest = max((abs(getattr(part, amount)) for part in parts), default=1.0)

    def signed(value: float) -> str:
        return f"{'+' if value > 0 else ''}{quantity(value, unit)}"

    def row(part: Any) -> tuple[str, ...]:
        value = getattr(part, amount)
        bar = "█" * max(1, round(BAR * abs(value) / longest))
        joules = "" if getattr(part, "joules", None) is None else f"{part.joules:+.4g} J"
        return signed(value), bar, label(part), joules, part.meaning

    rows = [(quantity(chart.start[1], unit), "", chart.start[0], "", ""), *map(row, parts[:most])]
    if rest := parts[most:]:
        total = sum(getattr(part, amount) for part in rest)
        rows.append((signed(total), "", f"{len(rest)} more", "", ""))
    rows.append((quantity(chart.end[1], unit), "", chart.end[0], "", ""))
    headings = [explanation.target, "", "part", "energy", "what it is"]
    columns = [
        Column(heading, itemgetter(n), figures=n in (0, 3))
        for n, heading in enumerate(headings)
        if n != 3 or any(each[3] for each in rows)
    ]
    return [Line(chart.subtitle), Line(sentence(explanation)), Table(columns, rows, most=len(rows))]


def page(explanation: messages.Explanation, prediction: PredictAnswer, kind: ChartKind) -> str:
    """The explanation as HTML: the picture, then what each part means. Runs no script."""
    chart = chart_of(explanation, prediction)
    blocks = list(report(explanation, prediction, len(explanation.contributions)))
    blocks.insert(2, Picture(svg(draw(chart, kind))))
    return html.page(chart.title, blocks, STYLE)


def sentence(explanation: messages.Explanation) -> str:
    """What is predicted, and what the explanation's parts begin with or come to."""
    amount, unit = QUANTITIES[explanation.target]

    def told(name: str) -> str:
        return f"{getattr(explanation, f'{name}_{amount}'):.4g} {unit}"

    if isinstance(explanation, messages.ShapAnswer | messages.TimeShapAnswer):
        base = told("base")
        return (
            f"The prediction is {told('prediction')}: a base of {base}, plus what each part adds."
        )
    local = told("local_prediction")
    text = f"The prediction is {told('prediction')}; the local linear model gives {local}."
    if (agreed := explanation.stability) is not None:
        text += (
            f" Over {agreed.seeds} seeds the {agreed.top} strongest parts agree in "
            f"{agreed.selection:.0%} of cases, their signs in {agreed.sign_agreement:.0%}."
        )
    return text
