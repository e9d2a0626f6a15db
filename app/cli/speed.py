"""What ``wattcast predict --details`` and ``hotspots --resources`` print: the speed of light."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from wattcast.app.cli.output import Answer, line, plain_table
from wattcast.models.estimate import quantity

BAR = 20
"""Characters of a bar at 100 %."""

_MEASURES = {"byte/s": "B/s", "flop/s": "FLOP/s", "operation/s": "op/s", "instruction/s": "inst/s"}


def speed_of_light(out: Console, found: Answer) -> None:
    """Shares of the units that are used, and the point under the roofline."""
    out.print()
    line(out, f"speed of light: bound by {found['bound'] or 'what this time model does not tell'}")
    table = plain_table("unit", "share", justify="right")
    table.columns[0].justify = "left"
    table.add_column("of its peak")
    for heading in ("achieved", "peak"):
        table.add_column(heading, justify="right")
    used = [each for each in found["units"] if each["share"] > 0]
    for each in used:
        measure = _MEASURES[each["measure"]]
        table.add_row(
            each["name"],
            f"{each['share']:.1%}",
            Text("█" * round(BAR * each["share"]) or "▏"),
            quantity(each["achieved"], measure),
            quantity(each["peak"], measure),
        )
    out.print(table)
    if idle := [each["name"] for each in found["units"] if not each["share"]]:
        line(out, f"idle: {', '.join(idle)}")
    for point in found["roofline"]["points"]:
        line(out, _roofline(point, found["roofline"]["dram_peak"]))


def _roofline(point: Answer, dram_peak: float) -> str:
    measure = "op" if point["precision"] == "int" else "FLOP"
    achieved = quantity(point["achieved"], f"{measure}/s")
    if point["intensity"] is None:
        roof, where = point["peak"], "no device memory is moved"
    else:
        ridge = point["peak"] / dram_peak
        roof = min(point["peak"], point["intensity"] * dram_peak)
        side = "memory" if point["intensity"] < ridge else "compute"
        where = (
            f"{point['intensity']:.3g} {measure} for each byte of device memory, under the "
            f"{side} roof (ridge {ridge:.3g})"
        )
    return (
        f"roofline {point['precision']}: {where}; {achieved} of {quantity(roof, f'{measure}/s')}, "
        f"{point['achieved'] / roof:.1%}"
    )


def resources(out: Console, answer: Answer) -> None:
    """Core cycles that lines take of each unit: of PTX, and of the source where it is known."""
    line(
        out,
        f"{quantity(answer['seconds'], 's')} are {answer['cycles']:,.0f} core cycles; below, those "
        "that each line takes of each unit at its peak, spread over all SMs",
    )
    units = list(answer["unit_cycles"])
    told = {"lines": "PTX line", "source_lines": "source line"}
    for name, heading in told.items():
        if not answer[name]["rows"]:
            continue
        out.print()
        table = plain_table(*units, justify="right")
        table.add_column(heading)
        table.add_row(*_cells(answer["unit_cycles"], units), "all")
        shares = {unit: part / answer["cycles"] for unit, part in answer["unit_cycles"].items()}
        table.add_row(*(f"{shares[unit]:.1%}" for unit in units), "share of the time")
        for row in answer[name]["rows"]:
            text = row.get("text") or ""
            where = f"{row['line']}: {text}"
            if name == "source_lines":
                where = f"{row['file']}:{row['line']}  {text}".rstrip()
            table.add_row(*_cells(row["unit_cycles"], units), Text(where.expandtabs()))
        out.print(table)


def _cells(cycles: Answer, units: list[str]) -> list[str]:
    return [_cell(cycles[unit]) if unit in cycles else "-" for unit in units]


def _cell(cycles: float) -> str:
    return f"{cycles:,.0f}" if cycles >= 100 else f"{cycles:.3g}"
