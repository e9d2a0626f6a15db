"""Answers for people: tables and lines on a terminal, from the same data that HTTP answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattcast.models.estimate import quantity


def prediction(console: Console, answer: Mapping[str, Any]) -> None:
    """One prediction: power, time, energy with intervals, then what they rest on."""
    kernel = answer["kernel"]
    name = "measured work" if kernel is None else kernel["demangled"]
    console.print(Text.assemble((name, "bold"), " on ", (answer["gpu"], "bold")))
    needs(console, answer)
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
    _line(console, f"at {_mhz(answer['clocks'])}")
    _basis(console, answer)
    if explanation := answer.get("explanation"):
        contributions(console, explanation)
    warnings(console, answer["warnings"])


def needs(console: Console, answer: Mapping[str, Any]) -> None:
    """Arguments to give first, before any number that rests on their absence."""
    for need in answer.get("needs", ()):
        what = "trips" if need["assumes"] == "trips" else "as its value"
        console.print(
            f"give {need['argument']} (argument {need['position']}): it decides the "
            f"{need['decides']}; {need['effect']}. Assumed: {need['assumed']:,.10g} {what}. "
            f"Pass --arg {need['position']}=...",
            style="yellow",
            highlight=False,
            markup=False,
        )


def _basis(console: Console, answer: Mapping[str, Any]) -> None:
    model, occupancy, registers = answer["model"], answer["occupancy"], answer["registers"]
    if model is not None:
        console.print(
            f"power model {model['family']} version {model['version']} on {model['schema']}",
            highlight=False,
        )
    if (timing := answer["time_model"]) is not None:
        bound = f", bound by {timing['regime']}" if timing["regime"] else ""
        _line(console, f"time model {timing['family']}{bound}")
    if (components := answer["components"]) is not None:
        told = ", ".join(
            f"{name} {watts:.1f} W" for name, watts in components.items() if watts >= 0.05
        )
        _line(console, f"power by component: {told}")
    if occupancy is not None:
        told = f"occupancy {occupancy['occupancy']:.0%}, limited by {occupancy['limiter']}"
        _line(console, f"{told}; {_registers(registers)}")
    for trip in answer["trip_counts"]:
        console.print(
            f"loop {trip['loop'] or '?'} (line {trip['line']}): {trip['trips']:g} trips, "
            f"{trip['how']}",
            highlight=False,
        )


def dvfs(console: Console, answer: Mapping[str, Any]) -> None:
    """A kernel at many clocks: every pair beside the reference, then the best ones."""
    console.print(
        Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", (answer["gpu"], "bold"))
    )
    base = answer["reference"]
    _line(
        console,
        f"reference {_mhz(base)}: {quantity(base['time']['seconds'], 's')}, "
        f"{quantity(base['power']['watts'], 'W')}, {quantity(base['energy']['joules'], 'J')}",
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("core/memory MHz", "time", "power", "energy", "x time", "x power", "x energy"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for point in answer["points"]:
        scale = point["scale"]
        table.add_row(
            _mhz(point, unit=False),
            quantity(point["time"]["seconds"], "s"),
            quantity(point["power"]["watts"], "W"),
            quantity(point["energy"]["joules"], "J"),
            *(f"{scale[name]:.3f}" for name in ("time", "power", "energy")),
            _marks(point),
        )
    console.print(table)
    for name, best in answer["best"].items():
        _line(
            console,
            f"{name.replace('_', ' ')}: {_mhz(best)}, {best['time_penalty_percent']:+.1f} % time, "
            f"{-best['energy_saved_percent']:+.1f} % energy",
        )
    warnings(console, answer["warnings"])


def _mhz(pair: Mapping[str, Any], *, unit: bool = True) -> str:
    return f"{pair['core_mhz']:g}/{pair['memory_mhz']:g}" + (" MHz" if unit else "")


def _marks(point: Mapping[str, Any]) -> str:
    marks = ("pareto", point["pareto"]), ("extrapolated", point["extrapolated"])
    told = [name for name, holds in marks if holds]
    return ", ".join(told if point["feasible"] else [*told, "infeasible"])


def analysis(console: Console, answer: Mapping[str, Any], most: int = 12) -> None:
    """An analysis: occupancy, loops, accesses, mix, memory, source lines; ``most`` of each."""
    launch, occupancy, registers = answer["launch"], answer["occupancy"], answer["registers"]
    compiled = answer["compiled"]
    console.print(
        Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", (answer["gpu"], "bold"))
    )
    if compiled is not None:
        target = f"{compiled['target'] // 10}.{compiled['target'] % 10}"
        _line(console, f"compiled by {compiled['compiler']} for compute capability {target}")
    _line(
        console,
        f"grid {_dims(launch['grid'])} of blocks {_dims(launch['block'])}: "
        f"{launch['blocks']:,} blocks, {launch['threads']:,} threads",
    )
    for argument in launch["arguments"]:
        name = argument["c_name"] or argument["ptx_name"]
        _line(console, f"  {argument['position']} {name} ({argument['type']}) = {_given(argument)}")
    limits = ", ".join(f"{name} {blocks}" for name, blocks in occupancy["limits"].items())
    _line(
        console,
        f"occupancy {occupancy['occupancy']:.0%}, limited by {occupancy['limiter']} "
        f"(blocks per SM: {limits}); {occupancy['waves']:g} waves",
    )
    _line(console, f"{_registers(registers)}; shared memory {_shared(launch)}")
    _section(console, "loops", answer["loops"], _LOOP, most)
    _section(console, "memory accesses", answer["accesses"], _ACCESS, most)
    total = sum(answer["mix"].values())
    mix = [
        {"class": name, "warp instructions": count, "share": f"{count / total:.1%}"}
        for name, count in answer["mix"].items()
    ]
    _section(console, "instruction mix", mix, {name: name for name in mix[0]} if mix else {}, most)
    _section(console, "source lines", answer["lines"], _SOURCE_LINE, most)
    _section(console, f"activity, {answer['how']}", answer["activity"], _QUANTITY, most=100)
    if (sampling := answer["sampling"]) is not None:
        cut = "" if sampling["completed"] else ", cut short by the budget"
        _line(
            console,
            f"{sampling['sampled_blocks']} of {sampling['launch_blocks']:,} blocks executed{cut}; "
            f"standard error {sampling['relative_standard_error']:.2%}",
        )
    warnings(console, answer["warnings"])


_LOOP = {
    "loop": "loop",
    "line": "line",
    "source_line": "source line",
    "depth": "depth",
    "trips": "trips",
    "how": "how",
}
_ACCESS = {
    "line": "line",
    "source_line": "source line",
    "opcode": "opcode",
    "requests": "requests",
    "sectors_per_request": "sectors/request",
    "transactions_per_request": "passes/request",
    "stride_bytes": "stride",
    "address": "address",
}
_SOURCE_LINE = {
    "line": "line",
    "warp_instructions_sass": "machine instructions",
    "active_lane_fraction": "active lanes",
    "global_sectors": "global sectors",
    "shared_transactions": "shared passes",
}
_QUANTITY = {"name": "quantity", "value": "value", "unit": "unit"}


def _section(
    console: Console,
    title: str,
    found: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    most: int,
) -> None:
    if not found:
        _line(console, f"{title}: none")
        return
    console.print()
    console.print(Text(title, "bold"))
    shown = [{columns[key]: row[key] for key in columns} for row in found[:most]]
    rows(console, shown, columns.values())
    if len(found) > most:
        _line(console, f"and {len(found) - most} more (--json shows all)")


def _dims(dimensions: list[int]) -> str:
    return " x ".join(str(size) for size in dimensions)


def _given(argument: Mapping[str, Any]) -> str:
    given = argument["given"]
    if given is None:
        return "not given"
    if isinstance(given, Mapping):
        count = "" if given["elements"] is None else f"{given['elements']:,} elements, "
        return f"{count}{given['values']}"
    return f"{given:,}" if isinstance(given, int) else f"{given:g}"


def _shared(launch: Mapping[str, Any]) -> str:
    return (
        f"{launch['static_shared_bytes']:,} bytes static, "
        f"{launch['dynamic_shared_bytes']:,} bytes dynamic per block"
    )


def _registers(registers: Mapping[str, Any]) -> str:
    low, high = registers["low"], registers["high"]
    spread = "" if low == high else f" ({low} to {high})"
    return f"{registers['value']} registers per thread{spread}, {registers['how']}"


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)


def contributions(console: Console, explanation: Mapping[str, Any], most: int = 6) -> None:
    """The features that move the prediction most, in watts."""
    console.print(f"base {explanation['base_watts']:.2f} W", highlight=False)
    components = explanation["model"]["family"] == "physical"  # they have watts and no value
    for part in explanation["contributions"][:most]:
        shown = "missing" if part["value"] is None else f"{part['value']:g}"
        named = part["feature"] if components else f"{part['feature']} = {shown}"
        console.print(f"  {part['watts']:+8.2f} W  {named}", highlight=False)
    rest = explanation["contributions"][most:]
    if rest:
        total = sum(part["watts"] for part in rest)
        console.print(f"  {total:+8.2f} W  {len(rest)} other features", highlight=False)


def warnings(console: Console, found: Iterable[Mapping[str, Any]]) -> None:
    """One line per warning."""
    for warning in found:
        where = ""
        if warning["source_line"] is not None:
            where = f" (source line {warning['source_line']})"
        elif warning["line"] is not None:
            where = f" (line {warning['line']})"
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
    return f"{value:.6g}" if isinstance(value, float) else str(value)
