"""Answers for people: tables and lines on a terminal, from the same data that HTTP answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float, unit: str) -> str:
    """Three significant digits with an SI prefix: ``1.93e-5, "s"`` -> ``19.3 µs``."""
    if value == 0:
        return f"0 {unit}"
    scale, prefix = next(
        ((s, p) for s, p in _PREFIXES if abs(value) >= s), (_PREFIXES[-1][0], _PREFIXES[-1][1])
    )
    return f"{value / scale:.3g} {prefix}{unit}"


def prediction(console: Console, answer: Mapping[str, Any]) -> None:
    """One prediction: power, time, energy with intervals, then what they rest on."""
    console.print(
        Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", (answer["gpu"], "bold"))
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", "prediction", "interval", "level", "basis"):
        table.add_column(heading, justify="left")
    for name, key, unit in (
        ("power", "watts", "W"),
        ("time", "seconds", "s"),
        ("energy", "joules", "J"),
    ):
        part = answer[name]
        if part is None:
            table.add_row(name, "none", "", "", "")
        else:
            table.add_row(
                name,
                quantity(part[key], unit),
                f"{quantity(part['low'], unit)} .. {quantity(part['high'], unit)}",
                f"{part['level']:.0%}",
                part["basis"].replace("_", " "),
            )
    console.print(table)
    _basis(console, answer)
    if explanation := answer.get("explanation"):
        contributions(console, explanation)
    warnings(console, answer["warnings"])


def _basis(console: Console, answer: Mapping[str, Any]) -> None:
    model, occupancy, registers = answer["model"], answer["occupancy"], answer["registers"]
    if model is not None:
        console.print(
            f"power model {model['family']} version {model['version']} on {model['schema']}",
            highlight=False,
        )
    spread = (
        ""
        if registers["low"] == registers["high"]
        else (f" ({registers['low']} to {registers['high']})")
    )
    console.print(
        f"occupancy {occupancy['occupancy']:.0%}, limited by {occupancy['limiter']}; "
        f"{registers['value']} registers per thread{spread}, {registers['how']}",
        highlight=False,
    )
    for trip in answer["trip_counts"]:
        console.print(
            f"loop {trip['loop'] or '?'} (line {trip['line']}): {trip['trips']:g} trips, "
            f"{trip['how']}",
            highlight=False,
        )


def contributions(console: Console, explanation: Mapping[str, Any], most: int = 6) -> None:
    """The features that move the prediction most, in watts."""
    console.print(f"base {explanation['base_watts']:.2f} W", highlight=False)
    for part in explanation["contributions"][:most]:
        shown = "missing" if part["value"] is None else f"{part['value']:g}"
        console.print(f"  {part['watts']:+8.2f} W  {part['feature']} = {shown}", highlight=False)
    rest = explanation["contributions"][most:]
    if rest:
        total = sum(part["watts"] for part in rest)
        console.print(f"  {total:+8.2f} W  {len(rest)} other features", highlight=False)


def warnings(console: Console, found: Iterable[Mapping[str, Any]]) -> None:
    """One line per warning."""
    for warning in found:
        where = f" (line {warning['line']})" if warning["line"] is not None else ""
        console.print(
            Text.assemble(("warning ", "yellow"), f"{warning['code']}: {warning['detail']}{where}")
        )


def rows(console: Console, found: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """A plain table of some members of each row."""
    names = list(columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in found:
        table.add_row(*(_cell(row[name]) for name in names))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
