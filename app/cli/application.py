"""``wattcast app``: energy of a whole application from its trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli.inputs import AsJson, Board, CoreMhz, MemoryMhz, PowerModel, fail, progress
from wattcast.app.cli.output import (
    Answer,
    console,
    line,
    plain_table,
    predictor,
    print_json,
    warnings,
)
from wattcast.models.estimate import quantity

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.application import ApplicationRequest

MOST_NAME = 70
TOLD_EVERY, ANALYSED_EVERY = 500_000, 50
"""Launches or events read, and launches analysed, between two lines of progress."""


def app(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="SQLite export of Nsight Systems, or JSON (.gz) trace of the PyTorch profiler.",
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="GPU id or alias; or DEVICE=GPU for one device of the trace. Repeatable. "
            "Default: by the name in the trace."
        ),
    ] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder or file with PTX of the kernels: Triton's or inductor's cache, .ptx "
            "files, binaries. Repeatable."
        ),
    ] = None,
    price_per_kwh: Annotated[
        float | None, typer.Option("--price-per-kwh", "--price", help="Electricity price per kWh.")
    ] = None,
    currency: Annotated[str | None, typer.Option(help="Currency of the price, e.g. EUR.")] = None,
    grams_co2_per_kwh: Annotated[
        float | None,
        typer.Option("--grams-co2-per-kwh", "--co2", help="Carbon intensity, g CO2 per kWh."),
    ] = None,
    core_mhz: CoreMhz = None,
    memory_mhz: MemoryMhz = None,
    model: PowerModel = "auto",
    board: Board = None,
    max_slowdown: Annotated[
        float, typer.Option(help="How many times as long kernels may take at the clock advised.")
    ] = 1.05,
    top: Annotated[int, typer.Option(min=1, help="Kernels, operators and steps shown.")] = 10,
    launches: Annotated[bool, typer.Option(help="With --json: a row for every launch.")] = False,
    against: Annotated[
        Path | None, typer.Option(help="An older trace: shows what changed since.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file of the kernels to write.")] = None,
    html: Annotated[Path | None, typer.Option(help="HTML report to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add up the energy of all kernels in a trace.

    Durations are those measured in the trace, power is predicted.
    """
    from wattcast.predictor.messages.application import ApplicationRequest
    from wattcast.predictor.traces import report
    from wattcast.predictor.traces.changes import changes

    if price_per_kwh is None and currency is not None:
        fail("give --price with --currency")
    common = [one for one in gpu or () if "=" not in one]
    if len(common) > 1:
        fail("give one --gpu, or --gpu DEVICE=GPU for each device of the trace")
    body: dict[str, Any] = {
        "gpu": common[0] if common else None,
        "gpus": dict(one.split("=", 1) for one in gpu or () if "=" in one),
        "model": model,
        "board": board,
        "most_slowdown": max_slowdown,
        "launches": launches,
        "grams_co2_per_kwh": grams_co2_per_kwh,
    }
    if price_per_kwh is not None:
        body["tariff"] = {"price_per_kwh": price_per_kwh, "currency": currency or "units"}
    if core_mhz is not None or memory_mhz is not None:
        body["clocks"] = {"core_mhz": core_mhz, "memory_mhz": memory_mhz}
    request = ApplicationRequest.model_validate(body)
    use = predictor()
    answer = _answer(use, trace, request, code or [])
    compared = None
    if against is not None:
        compared = changes(_answer(use, against, request, code or []), answer)
        answer["changes"] = compared
    for path, made in ((csv, report.table), (html, lambda found: report.page(found, trace.name))):
        if path is not None:
            _write(path, made(answer))
    if as_json:
        print_json(answer)
        return
    out = console()
    _report(out, answer, top)
    if compared is not None:
        _changes(out, compared, top)


def _answer(
    use: Predictor, path: Path, request: ApplicationRequest, code: list[Path]
) -> dict[str, Any]:
    from wattcast.predictor.application import application as run
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    told: dict[str, int] = {}

    def tell(what: str, count: int) -> None:
        if count >= told.get(what, 0) + (ANALYSED_EVERY if "analysed" in what else TOLD_EVERY):
            told[what] = count
            progress(f"{path.name}: {count:,} {what}")

    return run(use, read_trace(path, tell), request, library(code), tell)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _report(out: Console, answer: Answer, top: int) -> None:
    from wattcast.predictor.traces import report

    line(out, report.covered(answer))
    energy = answer["energy"]
    line(
        out,
        f"{quantity(energy['joules'], 'J')} ({quantity(energy['low'], 'J')} .. "
        f"{quantity(energy['high'], 'J')}, {energy['level']:.0%}), {answer['kwh']:.4g} kWh on the "
        f"boards in {quantity(answer['span_seconds'], 's')}: mean "
        f"{quantity(answer['power']['watts'], 'W')}",
    )
    line(out, f"trust: {answer['trust']['mark']} ({answer['trust']['why']})")
    if (price := answer["price"]) is not None:
        told = f"{price['amount']:.4g} {price['currency']} ({price['low']:.3g} .. "
        line(out, f"{told}{price['high']:.3g})")
    if (co2 := answer["co2"]) is not None:
        line(out, f"{co2['grams']:.4g} g CO2 ({co2['low']:.3g} .. {co2['high']:.3g})")
    for device in answer["devices"]:
        gaps = device["gaps"]
        line(
            out,
            f"GPU {device['device']} {device['gpu']}: {quantity(device['energy']['joules'], 'J')}, "
            f"busy {device['busy_seconds'] / (device['span_seconds'] or 1.0):.1%} of the time; "
            f"gaps {quantity(gaps['joules'], 'J')} at {quantity(device['idle_watts'], 'W')}",
        )
    table = plain_table("kernel", "known by")
    for column in ("launches", "time", "energy", "share", "power"):
        table.add_column(column, justify="right")
    for row in answer["kernels"][:top]:
        table.add_row(
            Text(_short(row["name"])),
            row["how"],
            f"{row['launches']:,}",
            quantity(row["seconds"], "s"),
            quantity(row["joules"], "J"),
            f"{row['energy_share']:.1%}",
            quantity(row["watts"], "W"),
        )
    out.print(table)
    for name in ("operators", "steps"):
        _rows(out, name[:-1], answer[name], top)
    if len(answer["streams"]) > 1:
        _rows(out, "stream", answer["streams"], top)
    for told in report.to_do(answer):
        line(out, told)
    warnings(out, answer["warnings"])


def _rows(out: Console, heading: str, rows: list[dict[str, Any]], top: int) -> None:
    if not any(row["name"] is not None for row in rows):
        return
    table = plain_table(heading)
    for column in ("launches", "time", "energy", "share"):
        table.add_column(column, justify="right")
    for row in rows[:top]:
        table.add_row(
            Text("(none)" if row["name"] is None else _short(row["name"])),
            f"{row['launches']:,}",
            quantity(row["seconds"], "s"),
            quantity(row["joules"], "J"),
            f"{row['energy_share']:.1%}",
        )
    out.print(table)


def _changes(out: Console, found: Answer, top: int) -> None:
    old, new = found["old"], found["new"]
    line(
        out,
        f"against the older trace: {quantity(old['joules'], 'J')} -> "
        f"{quantity(new['joules'], 'J')}, {quantity(old['seconds'], 's')} -> "
        f"{quantity(new['seconds'], 's')}",
    )
    table = plain_table("kernel")
    for column in ("energy before", "now", "launches before", "now"):
        table.add_column(column, justify="right")
    for row in found["kernels"][:top]:
        table.add_row(
            Text(_short(row["name"])),
            quantity(row["old_joules"], "J"),
            quantity(row["new_joules"], "J"),
            f"{row['old_launches']:,}",
            f"{row['new_launches']:,}",
        )
    out.print(table)


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 3] + "..."
