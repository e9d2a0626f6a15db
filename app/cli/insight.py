"""``wattcast hotspots``, ``wattcast advise`` and ``wattcast cost``: where a launch spends its
energy, what to change, and what an application costs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattcast.app.cli.inputs import (
    AsJson,
    Block,
    CoreMhz,
    Gpu,
    Grid,
    MemoryMhz,
    PowerModel,
    Ptx,
    TimeModel,
    clock_request,
    fail,
)
from wattcast.app.cli.launch import LaunchOptions, with_options
from wattcast.app.cli.output import console, predictor, print_json

Rows = Annotated[int, typer.Option("--rows", min=1, help="Rows shown in each ranking.")]


@with_options
def hotspots(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    rows: Rows = 12,
    *,
    launch: LaunchOptions,
    core_mhz: CoreMhz = None,
    memory_mhz: MemoryMhz = None,
    time_model: TimeModel = "auto",
    model: PowerModel = "auto",
    as_json: AsJson = False,
) -> None:
    """Rank the blocks and lines of a kernel by energy and time."""
    from wattcast.features.errors import ServiceError
    from wattcast.predictor.hotspots import hotspots_of
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict

    body = {
        **launch.request(file, grid, block),
        "gpu": gpu,
        "clocks": clock_request(core_mhz, memory_mhz),
        "time_model": time_model,
        "model": model,
    }
    opened, request = predictor(), PredictRequest.model_validate(body)
    prediction = predict(opened, request)
    if prediction["energy"] is None:
        raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
    answer = hotspots_of(opened, request, prediction, rows)
    if as_json:
        print_json(answer)
        return
    _hotspots(console(), answer)


def _hotspots(out: Console, answer: Mapping[str, Any]) -> None:
    from wattcast.app.cli.tables import warnings
    from wattcast.models.estimate import quantity

    out.print(Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", answer["gpu"]))
    out.print(
        f"{quantity(answer['joules'], 'J')} in {quantity(answer['seconds'], 's')}; starting the "
        f"launch {answer['start']['energy_share']:.1%} of the energy",
        highlight=False,
    )
    columns: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
        "blocks": ("block", lambda row: f"{row['label'] or row['block']}, from line {row['line']}"),
        "lines": ("PTX line", lambda row: f"{row['line']}: {row['text']}".expandtabs()),
        "source_lines": ("source line", lambda row: f"{row['file']}:{row['line']}"),
    }
    for name, (heading, told) in columns.items():
        ranking = answer[name]
        if not ranking["rows"]:
            continue
        out.print()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("energy", "time", "mostly"):
            table.add_column(column, justify="right" if column != "mostly" else "left")
        table.add_column(heading)
        for row in ranking["rows"]:
            table.add_row(
                f"{row['energy_share']:.1%}",
                f"{row['time_share']:.1%}",
                next(iter(row["components"]), ""),
                Text(told(row)),
            )
        out.print(table)
        if ranking["rest"]["rows"]:
            share = ranking["rest"]["joules"] / answer["joules"]
            out.print(f"and {ranking['rest']['rows']} more, {share:.1%} together", highlight=False)
    warnings(out, answer["warnings"])


@with_options
def advise(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    launch: LaunchOptions,
    core_mhz: CoreMhz = None,
    memory_mhz: MemoryMhz = None,
    as_json: AsJson = False,
) -> None:
    """Suggest changes to a launch and estimate what each saves."""
    from wattcast.predictor.advise import advise as run
    from wattcast.predictor.messages.predict import PredictRequest

    body = {
        **launch.request(file, grid, block),
        "gpu": gpu,
        "clocks": clock_request(core_mhz, memory_mhz),
    }
    answer = run(predictor(), PredictRequest.model_validate(body))
    if as_json:
        print_json(answer)
        return
    _advice(console(), answer)


def _advice(out: Console, answer: Mapping[str, Any]) -> None:
    from wattcast.app.cli.tables import warnings
    from wattcast.models.estimate import quantity

    before = answer["before"]
    out.print(Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", answer["gpu"]))
    out.print(
        f"{quantity(before['joules'], 'J')} in {quantity(before['seconds'], 's')}", highlight=False
    )
    if not answer["advice"]:
        out.print("no change found that saves a noticeable amount", highlight=False)
    for each in answer["advice"]:
        gain = each["gain"]
        out.print()
        saved = f"{-gain['energy_percent']:+.1f} % energy, {-gain['time_percent']:+.1f} % time"
        out.print(Text.assemble((each["code"].replace("_", " "), "bold"), f": {saved}"))
        for line in (each["detail"], each["remedy"]):
            out.print(f"  {line}", highlight=False, markup=False)
        for at in each["places"][:4]:
            source = "" if at["source_line"] is None else f" (source line {at['source_line']})"
            told = f"  line {at['line']}{source}: {at['text']}"
            out.print(told, highlight=False, markup=False)
    warnings(out, answer["warnings"])


def cost(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSON file, as POST /cost takes it; - reads standard input."
        ),
    ],
    price_per_kwh: Annotated[
        float | None, typer.Option(help="Electricity price per kWh. No default.")
    ] = None,
    currency: Annotated[str | None, typer.Option(help="Currency of the price, e.g. EUR.")] = None,
    grams_co2_per_kwh: Annotated[
        float | None, typer.Option(help="Carbon intensity of the grid, g CO2 per kWh. No default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add up the energy, price and CO2 of a whole application."""
    import json

    from wattcast.predictor.cost import cost as run
    from wattcast.predictor.messages.cost import CostRequest

    if (price_per_kwh is None) != (currency is None):
        fail("give --price-per-kwh and --currency together", 2)
    try:
        body = json.loads(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes())
    except OSError as error:
        fail(f"{file}: {error.strerror}", 2)
    except ValueError as error:
        fail(f"{file}: not JSON: {error}", 2)
    if not isinstance(body, dict):
        fail(f"{file}: expected a JSON object, as POST /cost takes it", 2)
    if price_per_kwh is not None:
        body["tariff"] = {"price_per_kwh": price_per_kwh, "currency": currency}
    if grams_co2_per_kwh is not None:
        body["grams_co2_per_kwh"] = grams_co2_per_kwh
    answer = run(predictor(), CostRequest.model_validate(body))
    if as_json:
        print_json(answer)
        return
    _cost(console(), answer)


def _cost(out: Console, answer: Mapping[str, Any]) -> None:
    from wattcast.app.cli.tables import warnings
    from wattcast.models.estimate import quantity

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("kernel", "launches", "each", "together", "share"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for row in answer["kernels"]:
        table.add_row(
            Text(row["kernel"]["demangled"]),
            f"{row['launches']:,}",
            quantity(row["energy"]["joules"], "J"),
            quantity(row["joules"], "J"),
            f"{row['energy_share']:.1%}",
        )
    out.print(table)
    energy = answer["energy"]
    interval = f"{quantity(energy['low'], 'J')} .. {quantity(energy['high'], 'J')}"
    out.print(
        f"{quantity(energy['joules'], 'J')} ({interval}), {answer['kwh']:.6g} kWh on the board of "
        f"{answer['gpu']} in {quantity(answer['time']['seconds'], 's')}",
        highlight=False,
    )
    if (price := answer["price"]) is not None:
        told = f"{price['amount']:.6g} {price['currency']} ({price['low']:.4g} .. "
        out.print(f"{told}{price['high']:.4g})", highlight=False, markup=False)
    if (co2 := answer["co2"]) is not None:
        told = f"{co2['grams']:.6g} g CO2 ({co2['low']:.4g} .. {co2['high']:.4g})"
        out.print(told, highlight=False)
    warnings(out, answer["warnings"])
