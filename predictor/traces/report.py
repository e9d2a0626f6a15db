"""An answer about a trace as a page and as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from wattcast.models.estimate import quantity
from wattcast.predictor.explain.page import STYLE

COLUMNS = (
    *("name", "device", "how", "family", "data_type", "launches", "seconds", "joules", "low"),
    *("high", "energy_share", "watts", "trust", "code"),
)
MOST_ROWS = 100
WIDTH, HEIGHT = 820, 180
HOWS = {
    "code": "by their code",
    "code, other launch": "by their code, launched otherwise",
    "name": "from launch and name alone",
    "copy": "copies",
}


def covered(answer: Mapping[str, Any]) -> str:
    """The first line of every report: how the power of the launches' time is known."""
    parts = [f"{one['time_share']:.1%} {HOWS[one['how']]}" for one in answer["coverage"]]
    return f"coverage of the time of {answer['launches']:,} launches: {', '.join(parts)}"


def table(answer: Mapping[str, Any]) -> str:
    """Kernels as CSV; a gap row for each GPU, so that joules add up to the total."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in answer["kernels"]:
        cells = {name: row[name] for name in COLUMNS}
        writer.writerow({**cells, "name": _safe(row["name"]), "trust": row["trust"]["mark"]})
    for device in answer["devices"]:
        gaps = {key: device["gaps"][key] for key in ("seconds", "joules", "low", "high")}
        share = device["gaps"]["energy_share"]
        writer.writerow(
            {"name": "(gaps)", "device": device["device"], "energy_share": share, **gaps}
        )
    return out.getvalue()


def _safe(text: str) -> str:
    """Text that a spreadsheet does not execute."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def page(answer: Mapping[str, Any], title: str) -> str:
    """A page of its own; it runs and loads nothing."""
    energy = answer["energy"]
    total = (
        f"{quantity(energy['joules'], 'J')} ({quantity(energy['low'], 'J')} to "
        f"{quantity(energy['high'], 'J')}) in {quantity(answer['span_seconds'], 's')}, "
        f"{answer['kwh']:.3g} kWh. {answer['trust']['mark']}: {answer['trust']['why']}."
    )
    paid = []
    if (price := answer["price"]) is not None:
        paid.append(f"{price['amount']:.3g} {price['currency']}")
    if (co2 := answer["co2"]) is not None:
        paid.append(f"{co2['grams']:.3g} g CO2")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(covered(answer))}</p>",
        f"<p>{escape(total)} {escape(', '.join(paid))}</p>",
    ]
    for device in answer["devices"]:
        head = f"GPU {device['device']}: {device['gpu']}"
        gaps = device["gaps"]
        parts += [
            f"<h2>{escape(head)}</h2>",
            f"<p>mean {device['mean_watts']:.1f} W; gaps: {quantity(gaps['seconds'], 's')}, "
            f"{quantity(gaps['joules'], 'J')} ({gaps['energy_share']:.1%})</p>",
            picture(device),
        ]
    parts += ["<h2>Kernels by energy</h2>", _kernels(answer["kernels"][:MOST_ROWS])]
    for name in ("operators", "streams", "steps"):
        if answer[name]:
            parts += [f"<h2>{name.capitalize()}</h2>", _rows(answer[name][:MOST_ROWS])]
    if (changed := answer.get("changes")) is not None:
        parts += ["<h2>Against the older trace</h2>", _changes(changed)]
    advised = [row for row in answer["kernels"] if row["advice"]]
    if advised or any(one["best"] for one in answer["clocks"]):
        parts.append("<h2>What to do</h2><ul>")
        parts += [f"<li>{escape(line)}</li>" for line in to_do(answer)]
        parts.append("</ul>")
    parts.append("<h2>Warnings</h2><ul>")
    parts += [
        f"<li>{escape(note['code'])}: {escape(note['detail'])}</li>" for note in answer["warnings"]
    ]
    parts.append("</ul>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def to_do(answer: Mapping[str, Any]) -> list[str]:
    """Advice as sentences, what saves most first within each kernel."""
    lines = []
    whole: dict[int, float] = {}
    for one in answer["clocks"]:
        if (best := one["best"]) is None:
            continue
        if one["step"] is None:
            whole[one["device"]] = best["core_mhz"]
        elif best["core_mhz"] == whole.get(one["device"]):
            continue  # a step with the clock of all of them needs no line
        where = f"GPU {one['device']}" + ("" if one["step"] is None else f", {one['step'][:40]}")
        lines.append(
            f"{where}: at {best['core_mhz']:g} MHz the kernels with code "
            f"({one['covers']:.0%} of the time) need {1 - best['energy']:.1%} less energy and "
            f"{best['time'] - 1:.1%} more time" + _limit(one["power_limit_watts"])
        )
    for row in answer["kernels"]:
        for one in row["advice"]:
            saved = one["gain"]["energy_percent"]
            lines.append(f"{row['name'][:80]}: {one['remedy']} ({saved:.0f} % less energy)")
    return lines


def _limit(watts: float | None) -> str:
    return "" if watts is None else f"; a power limit of about {watts:.0f} W comes to the same"


def picture(device: Mapping[str, Any]) -> str:
    """Power over time as an SVG."""
    line = device["timeline"]
    span = device["span_seconds"] or 1.0
    top = max([device["limit_watts"], *line["watts"]])
    points = []
    for start, length, watts in zip(
        line["start_seconds"], line["seconds"], line["watts"], strict=True
    ):
        height = HEIGHT * (1 - watts / top)
        points += [
            f"{WIDTH * start / span:.1f},{height:.1f}",
            f"{WIDTH * (start + length) / span:.1f},{height:.1f}",
        ]
    label = f"Power of GPU {device['device']} over time, 0 to {top:.0f} W"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20}" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#0060c0"/>'
        f'<text x="0" y="{HEIGHT + 15}" font-size="12">{escape(label)}, '
        f"{quantity(span, 's')}</text></svg>"
    )


def _kernels(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        (
            row["name"][:160],
            row["how"],
            f"{row['launches']:,}",
            quantity(row["seconds"], "s"),
            f"{quantity(row['joules'], 'J')} ({quantity(row['low'], 'J')} to "
            f"{quantity(row['high'], 'J')})",
            f"{row['energy_share']:.1%}",
            f"{row['watts']:.0f} W",
            row["trust"]["mark"],
        )
        for row in rows
    )
    return _table(
        ("kernel", "known by", "launches", "time", "energy", "share", "power", "trust"), cells
    )


def _changes(found: Mapping[str, Any]) -> str:
    old, new = found["old"], found["new"]
    sums = (
        f"{quantity(old['joules'], 'J')} before, {quantity(new['joules'], 'J')} now; "
        f"{quantity(old['seconds'], 's')} before, {quantity(new['seconds'], 's')} now."
    )
    cells = (
        (
            "(none)" if row["name"] is None else row["name"][:160],
            *(f"{row[f'{side}_launches']:,}" for side in ("old", "new")),
            *(quantity(row[f"{side}_joules"], "J") for side in ("old", "new")),
            quantity(row["joules"], "J"),
        )
        for row in found["kernels"]
    )
    titles = ("kernel", "launches before", "now", "energy before", "now", "change")
    return f"<p>{escape(sums)}</p>\n{_table(titles, cells)}"


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        (
            "(none)" if row["name"] is None else row["name"][:160],
            f"{row['launches']:,}",
            quantity(row["seconds"], "s"),
            quantity(row["joules"], "J"),
            f"{row['energy_share']:.1%}",
        )
        for row in rows
    )
    return _table(("name", "launches", "time", "energy", "share"), cells)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
