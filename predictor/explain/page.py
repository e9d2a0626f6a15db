"""Explanations as pictures and as a page of their own, from the same data as JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from wattcast.predictor.explain.pictures import Chart, ChartKind, draw, svg

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


def chart_of(explanation: Mapping[str, Any], prediction: Mapping[str, Any]) -> Chart:
    """What to draw of an explanation; ``prediction`` is the answer that it explains."""
    target, method = explanation["target"], explanation["method"]
    unit_name, unit = QUANTITIES[target]
    shap = method == "shap"
    parts = [part for part in explanation["contributions"] if part[unit_name]]
    start, start_name = ("base", "base") if shap else ("intercept", "intercept")
    end, end_name = ("prediction", "prediction") if shap else ("local_prediction", "linear model")
    fit = "" if shap else f", fits the model with R² {explanation['r_squared']:.2f}"
    return Chart(
        title=f"{target.capitalize()} of {kernel_of(prediction)} on {prediction['gpu']}",
        subtitle=f"{method.upper()} on the {explanation['model']['family']} model{fit}",
        quantity=target,
        unit=unit,
        start=(start_name, explanation[f"{start}_{unit_name}"]),
        bars=[(label(part), part[unit_name]) for part in parts],
        end=(end_name, explanation[f"{end}_{unit_name}"]),
    )


def kernel_of(prediction: Mapping[str, Any]) -> str:
    """The kernel's name for people."""
    kernel = prediction["kernel"]
    return "measured work" if kernel is None else str(kernel["demangled"])


def label(part: Mapping[str, Any]) -> str:
    """A part's name, with its value where it has one."""
    if "condition" in part:
        return str(part["condition"])
    if part.get("binding_seconds") is not None or part["value"] is None:
        return str(part["feature"])
    return f"{part['feature']} = {part['value']:.6g}" if "watts" in part else str(part["feature"])


def page(explanation: Mapping[str, Any], prediction: Mapping[str, Any], kind: ChartKind) -> str:
    """The explanation as HTML: the picture, then what each part means. Runs no script."""
    chart = chart_of(explanation, prediction)
    unit_name, unit = QUANTITIES[explanation["target"]]
    rows = "\n".join(_row(part, unit_name, unit) for part in explanation["contributions"])
    joules = "<th>Energy</th>" if unit_name == "watts" else ""
    return Template((_FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(chart.title),
        style=STYLE,
        sentence=escape(sentence(explanation)),
        picture=svg(draw(chart, kind)),
        target=escape(explanation["target"].capitalize()),
        joules=joules,
        rows=rows,
    )


def sentence(explanation: Mapping[str, Any]) -> str:
    """What is predicted, and what the explanation's parts begin with or come to."""
    unit_name, unit = QUANTITIES[explanation["target"]]
    predicted = f"{explanation[f'prediction_{unit_name}']:.4g} {unit}"
    if explanation["method"] == "shap":
        base = f"{explanation[f'base_{unit_name}']:.4g} {unit}"
        return f"The prediction is {predicted}: a base of {base}, plus what each part adds."
    local = f"{explanation[f'local_prediction_{unit_name}']:.4g} {unit}"
    told = f"The prediction is {predicted}; the local linear model gives {local}."
    if (agreed := explanation["stability"]) is not None:
        told += (
            f" Over {agreed['seeds']} seeds the {agreed['top']} strongest parts agree in "
            f"{agreed['selection']:.0%} of cases, their signs in {agreed['sign_agreement']:.0%}."
        )
    return told


def _row(part: Mapping[str, Any], unit_name: str, unit: str) -> str:
    cells = [
        f"<td>{escape(label(part))}</td>",
        f'<td class="number">{part[unit_name]:+.4g} {unit}</td>',
    ]
    if "joules" in part:
        told = "" if part["joules"] is None else f"{part['joules']:+.4g} J"
        cells.append(f'<td class="number">{told}</td>')
    cells.append(f"<td>{escape(part['meaning'])}</td>")
    return f"<tr>{''.join(cells)}</tr>"
