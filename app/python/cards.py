"""HTML of answers for a notebook: self-contained, readable on light and dark ground, text escaped.

Colours of text are those of the notebook; what is drawn has colours that stand out from white and
from black.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log
from typing import Any

from wattcast.models.estimate import quantity

MOST_ROWS = 20
"""Rows of a table that are shown; ``to_frame`` has all."""

MOST_WARNINGS = 5
"""Warnings shown before the others are folded up."""

UNITS = {"watts": "W", "seconds": "s", "joules": "J"}
"""Symbol by the member that holds a quantity."""

PALETTE = (
    *("#4e79a7", "#d9730d", "#c0504d", "#3c9a8f", "#59a14f", "#b8860b", "#a56ca0"),
    *("#d1607a", "#9c755f", "#808080"),
)
"""Each differs from white and from black by more than 3 : 1 (WCAG 2.2, 1.4.11)."""

_FAINT = "opacity:.72"
_LINE = "1px solid rgba(128,128,128,.35)"
_CARD = (
    f"border:{_LINE};border-radius:8px;padding:12px 16px;max-width:760px;"
    "font:14px/1.45 system-ui,sans-serif;color:inherit;background:transparent"
)
_CELL = f"text-align:left;padding:2px 14px 2px 0;border-bottom:{_LINE}"
_NUMBER = f"text-align:right;padding:2px 14px 2px 0;border-bottom:{_LINE};white-space:nowrap"
_BADGE = "border:1px solid currentColor;border-radius:9px;padding:0 8px;margin-right:6px"


def card(title: str, subtitle: str, *parts: str) -> str:
    """One answer; ``parts`` are HTML."""
    return (
        f'<div class="wattcast" style="{_CARD}"><div><b style="overflow-wrap:anywhere">'
        f'{escape(title)}</b> <span style="{_FAINT}">{escape(subtitle)}</span></div>'
        f"{''.join(parts)}</div>"
    )


def paragraph(text: str, *, faint: bool = False) -> str:
    """A line of text."""
    style = f"margin:6px 0 0;{_FAINT if faint else ''}"
    return f'<div style="{style}">{escape(text)}</div>'


def badges(texts: Iterable[tuple[str, str]]) -> str:
    """Short texts in frames, each with what it means."""
    shown = "".join(
        f'<span style="{_BADGE}" title="{escape(why)}">{escape(text)}</span>' for text, why in texts
    )
    return f'<div style="margin-top:8px">{shown}</div>' if shown else ""


def tiles(found: Sequence[tuple[str, Mapping[str, Any] | None]]) -> str:
    """Quantities beside each other, each with its interval on a logarithmic axis. All axes are as
    long as the widest interval, so that lengths compare."""
    told = [each for _, each in found if each is not None]
    widest = max((_factor(each) for each in told), default=1.0)
    shown = "".join(_tile(name, each, widest) for name, each in found)
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px 28px;margin-top:8px">{shown}</div>'


def _unit(of: Mapping[str, Any]) -> str:
    return next(name for name in UNITS if name in of)


def value_of(of: Mapping[str, Any]) -> str:
    """A quantity with its unit: 1.2 mJ."""
    name = _unit(of)
    return quantity(of[name], UNITS[name])


def _factor(of: Mapping[str, Any]) -> float:
    """How many times its value a quantity may be, or the other way round."""
    value = of[_unit(of)]
    if not 0 < of["low"] <= value <= of["high"]:
        return 1.0
    return float(max(value / of["low"], of["high"] / value))


def _tile(name: str, of: Mapping[str, Any] | None, widest: float) -> str:
    if of is None:
        return f'<div><div style="{_FAINT}">{escape(name)}</div><div>not predicted</div></div>'
    unit = UNITS[_unit(of)]
    low, high = quantity(of["low"], unit), quantity(of["high"], unit)
    basis = str(of["basis"]).replace("_", " ")
    return (
        f'<div style="min-width:150px"><div style="{_FAINT}">{escape(name)}</div>'
        f'<div style="font-size:22px">{escape(value_of(of))}</div>{_interval(of, widest)}'
        f'<div style="{_FAINT}">{escape(low)} .. {escape(high)}, {of["level"]:.0%}, '
        f"{escape(basis)}</div></div>"
    )


def _interval(of: Mapping[str, Any], widest: float) -> str:
    """A line from low to high with a mark at the value, in the middle of the axis."""
    value = of[_unit(of)]
    if widest <= 1.0 or not 0 < of["low"] <= value <= of["high"]:
        return ""
    left, right = (50 + 50 * log(end / value) / log(widest) for end in (of["low"], of["high"]))
    return (
        '<svg viewBox="0 0 100 8" width="140" height="11" role="img" '
        f'aria-label="interval" preserveAspectRatio="none"><rect x="{left:.1f}" y="3" '
        f'width="{max(1.0, right - left):.1f}" height="2" fill="{PALETTE[0]}"/>'
        f'<rect x="49" y="0" width="2" height="8" fill="{PALETTE[1]}"/></svg>'
    )


def shares(parts: Mapping[str, float], unit: str) -> str:
    """A bar cut into parts, and what each is; the parts that are there, the largest first."""
    ordered = sorted(((n, v) for n, v in parts.items() if v > 0), key=lambda part: -part[1])
    total = sum(value for _, value in ordered)
    if not total:
        return ""
    bar = legend = ""
    for number, (name, value) in enumerate(ordered):
        colour = PALETTE[min(number, len(PALETTE) - 1)]
        told = f"{name} {quantity(value, unit)}"
        bar += (
            f'<span title="{escape(told)}" style="display:inline-block;height:12px;'
            f'width:{100 * value / total:.2f}%;background:{colour}"></span>'
        )
        legend += (
            f'<span style="margin-right:12px;white-space:nowrap"><span style="color:{colour}">'
            f"&#9632;</span> {escape(told)}</span> "
        )
    return (
        '<div style="margin-top:10px;display:flex;border-radius:3px;overflow:hidden">'
        f'{bar}</div><div style="margin-top:2px">{legend}</div>'
    )


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1, more: int = 0
) -> str:
    """Rows of text under headings; the first ``words`` columns are text, the others figures.
    ``more`` rows are not shown."""
    if not rows:
        return ""
    styles = [_CELL if at < words else _NUMBER for at in range(len(headings))]
    head = "".join(
        f'<th scope="col" style="{style}">{escape(heading)}</th>'
        for heading, style in zip(headings, styles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{style}">{escape(cell)}</td>'
            for cell, style in zip(row, styles, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    rest = paragraph(f"and {more} more; .to_frame() has all", faint=True) if more > 0 else ""
    return (
        '<div style="overflow-x:auto;margin-top:8px"><table style="border-collapse:collapse;'
        'color:inherit;background:transparent;font-size:13px"><thead>'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{rest}"
    )


def warnings(found: Sequence[Mapping[str, Any]]) -> str:
    """Warnings, the first ones open and the others folded up."""
    lines = [f"⚠ {each['code']}: {each['detail']}" for each in found]
    shown, rest = lines[:MOST_WARNINGS], lines[MOST_WARNINGS:]
    return "".join(map(paragraph, shown)) + folded(f"{len(rest)} more warnings", rest)


def folded(title: str, lines: Sequence[str]) -> str:
    """Lines that open with a click on their title; nothing where there are none."""
    if not lines:
        return ""
    inner = "".join(map(paragraph, lines))
    return f'<details style="margin-top:6px"><summary>{escape(title)}</summary>{inner}</details>'


def snippets(title: str, before: str, after: str) -> str:
    """Code before and after a change, folded up."""
    shown = "".join(
        f'<pre style="margin:4px 0;color:inherit;background:rgba(128,128,128,.12);padding:6px;'
        f'overflow-x:auto">{escape(code.rstrip())}</pre>'
        for code in (before, after)
    )
    return f"<details><summary>{escape(title)}</summary>{shown}</details>"


def dims(sizes: Sequence[int]) -> str:
    """``256x16``; trailing ones are left out."""
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(str(size) for size in kept)


def percent(change: float) -> str:
    """A change with its sign; none is +0.0 %."""
    return f"{round(change, 1) + 0.0:+.1f} %"
