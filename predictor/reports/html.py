"""Reports as HTML: cards of notebooks, and pages of their own. All text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log
from typing import Any

from wattcast.models.intervals import quantity
from wattcast.predictor import reports

_FAINT = "opacity:.72"
_RULE = "1px solid rgba(128,128,128,.35)"
_CARD = (
    f"border:{_RULE};border-radius:8px;padding:12px 16px;max-width:760px;"
    "font:14px/1.45 system-ui,sans-serif;color:inherit;background:transparent"
)
_CELL = f"text-align:left;padding:2px 14px 2px 0;border-bottom:{_RULE}"
_FIGURE = f"text-align:right;padding:2px 14px 2px 0;border-bottom:{_RULE};white-space:nowrap"
_STYLES = {"": "margin:6px 0 0", "faint": f"margin:6px 0 0;{_FAINT}", "bold": "font-weight:600"}
CARD_ROWS, CARD_WARNINGS = 20, 5
"""Rows of a table, and warnings, that a card shows; ``to_frame`` has all."""


def card(report: reports.Report) -> str:
    """The report as a card of a notebook: HTML on its own, readable on light and dark ground."""
    return f'<div class="wattcast" style="{_CARD}">{"".join(map(_html, report))}</div>'


def _html(block: reports.Block) -> str:
    match block:
        case reports.Title(name, rest):
            bold = f'<b style="overflow-wrap:anywhere">{escape(name)}</b>'
            return f'<div>{bold} <span style="{_FAINT}">{escape(rest)}</span></div>'
        case reports.Line(told, style):
            return f'<div style="{_STYLES.get(style, _STYLES[""])}">{escape(told)}</div>'
        case reports.Quantities(named):
            known = [part for _, part in named if part is not None]
            widest = max(map(_factor, known), default=1.0)
            tiles = "".join(_tile(name, part, widest) for name, part in named)
            style = "display:flex;flex-wrap:wrap;gap:8px 28px;margin-top:8px"
            return f'<div style="{style}">{tiles}</div>'
        case reports.Shares():
            return _shares(block)
        case reports.Table():
            return _card_table(block)
        case reports.Folded(title, lines):
            return _folded(f"{title.rstrip(':')}: {len(lines)}", lines)
        case reports.Code(title, code):
            style = "margin:4px 0;background:rgba(128,128,128,.12);padding:6px;overflow-x:auto"
            inner = f'<pre style="{style}">{escape(code.rstrip())}</pre>'
            return f"<details><summary>{escape(title)}</summary>{inner}</details>"
        case reports.Warnings(listed):
            notes = [f"⚠ {each.code}: {each.detail}" for each in listed]
            folded = notes[CARD_WARNINGS:]
            shown = "".join(_html(reports.Line(each)) for each in notes[:CARD_WARNINGS])
            return shown + _folded(f"{len(folded)} more warnings", folded)
        case reports.Picture(svg):
            return svg


def _folded(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    inner = "".join(_html(reports.Line(each)) for each in lines)
    return f'<details style="margin-top:6px"><summary>{escape(title)}</summary>{inner}</details>'


def _card_table(table: reports.Table) -> str:
    if not table.rows:
        return ""
    short = reports.Table(table.columns, table.rows, "", min(table.most, CARD_ROWS), table.more)
    styles = [_FIGURE if column.figures else _CELL for column in table.columns]
    rest = (
        _html(reports.Line(f"and {short.hidden} more; .to_frame() has all", "faint"))
        if short.hidden
        else ""
    )
    title = _html(reports.Line(table.title, "bold")) if table.title else ""
    style = "border-collapse:collapse;color:inherit;background:transparent;font-size:13px"
    inner = table_element(short, styles, f' style="{style}"')
    return f'{title}<div style="overflow-x:auto;margin-top:8px">{inner}</div>{rest}'


def table_element(table: reports.Table, styles: Sequence[str] = (), attributes: str = "") -> str:
    """The table as HTML; ``styles`` are those of its columns."""
    of = [f' style="{style}"' for style in styles] or [""] * len(table.columns)
    head = "".join(
        f'<th scope="col"{style}>{escape(column.heading)}</th>'
        for column, style in zip(table.columns, of, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{s}>{escape(cell)}</td>" for cell, s in zip(row, of, strict=True))
        + "</tr>"
        for row in table.cells()
    )
    return (
        f"<table{attributes}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def page(title: str, report: reports.Report, style: str) -> str:
    """The report as a page of its own, under a style sheet; it runs and loads nothing."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for block in report:
        match block:
            case reports.Title(name, rest):
                parts.append(f"<h2>{escape(f'{name} {rest}'.rstrip())}</h2>")
            case reports.Line(told):
                parts.append(f"<p>{escape(told)}</p>")
            case reports.Table():
                heading = f"<h2>{escape(block.title)}</h2>" if block.title else ""
                parts += [heading, table_element(block)] if block.rows else []
            case reports.Folded(heading, lines):
                parts.append(_listed(heading.rstrip(":").capitalize(), lines))
            case reports.Warnings(listed):
                notes = [f"{note.code}: {note.detail}" for note in listed]
                parts.append(_listed("Warnings", notes))
            case _:
                parts.append(_html(block))
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _listed(heading: str, lines: Sequence[str]) -> str:
    points = "".join(f"<li>{escape(each)}</li>" for each in lines)
    return f"<h2>{escape(heading)}</h2><ul>{points}</ul>" if points else ""


def _factor(part: Any) -> float:
    """How many times its value a quantity may be, or the other way round."""
    value = getattr(part, reports.unit_of(part))
    if not 0 < part.low <= value <= part.high:
        return 1.0
    return float(max(value / part.low, part.high / value))


def _tile(name: str, part: Any, widest: float) -> str:
    head = f'<div style="{_FAINT}">{escape(name)}</div>'
    if part is None:
        return f"<div>{head}<div>not predicted</div></div>"
    rest = f"{reports.interval_of(part)}, {part.level:.0%}, {reports.words(part.basis)}"
    value = escape(reports.value_of(part))
    return (
        f'<div style="min-width:150px">{head}'
        f'<div style="font-size:22px">{value}</div>{_interval(part, widest)}'
        f'<div style="{_FAINT}">{escape(rest)}</div></div>'
    )


def _interval(part: Any, widest: float) -> str:
    """A line from low to high with a mark at the value, in the middle of a logarithmic axis. All
    axes are as long as the widest interval, so that lengths compare."""
    value = getattr(part, reports.unit_of(part))
    if widest <= 1.0 or not 0 < part.low <= value <= part.high:
        return ""
    left, right = (50 + 50 * log(end / value) / log(widest) for end in (part.low, part.high))
    return (
        '<svg viewBox="0 0 100 8" width="140" height="11" role="img" '
        f'aria-label="interval" preserveAspectRatio="none"><rect x="{left:.1f}" y="3" '
        f'width="{max(1.0, right - left):.1f}" height="2" fill="{reports.PALETTE[0]}"/>'
        f'<rect x="49" y="0" width="2" height="8" fill="{reports.PALETTE[1]}"/></svg>'
    )


def _shares(block: reports.Shares) -> str:
    """A bar cut into parts, and what each is, the largest first."""
    ordered = sorted(((n, v) for n, v in block.parts.items() if v > 0), key=lambda part: -part[1])
    total = sum(value for _, value in ordered)
    if not total:
        return ""
    bar = legend = ""
    for number, (name, value) in enumerate(ordered):
        colour = reports.PALETTE[min(number, len(reports.PALETTE) - 1)]
        told = escape(f"{name} {quantity(value, block.unit)}")
        bar += (
            f'<span title="{told}" style="display:inline-block;height:12px;'
            f'width:{100 * value / total:.2f}%;background:{colour}"></span>'
        )
        legend += (
            f'<span style="margin-right:12px;white-space:nowrap"><span style="color:{colour}">'
            f"&#9632;</span> {told}</span> "
        )
    return (
        '<div style="margin-top:10px;display:flex;border-radius:3px;overflow:hidden">'
        f'{bar}</div><div style="margin-top:2px">{legend}</div>'
    )
