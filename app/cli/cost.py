"""``wattcast cost``: what an application of several kernels costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli.inputs import AsJson, fail, read_json
from wattcast.app.cli.output import Answer, line, plain_table, predictor, show, warnings
from wattcast.models.estimate import quantity


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
    from wattcast.predictor.cost import cost as run
    from wattcast.predictor.messages.cost import CostRequest

    if (price_per_kwh is None) != (currency is None):
        fail("give --price-per-kwh and --currency together")
    body = read_json(file)
    if not isinstance(body, dict):
        fail(f"{file}: expected a JSON object, as POST /cost takes it")
    if price_per_kwh is not None:
        body["tariff"] = {"price_per_kwh": price_per_kwh, "currency": currency}
    if grams_co2_per_kwh is not None:
        body["grams_co2_per_kwh"] = grams_co2_per_kwh
    answer = run(predictor(), CostRequest.model_validate(body))
    show(answer, as_json, _report)


def _report(out: Console, answer: Answer) -> None:
    table = plain_table("kernel")
    for column in ("launches", "each", "together", "share"):
        table.add_column(column, justify="right")
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
    line(
        out,
        f"{quantity(energy['joules'], 'J')} ({interval}), {answer['kwh']:.6g} kWh on the board of "
        f"{answer['gpu']} in {quantity(answer['time']['seconds'], 's')}",
    )
    if (price := answer["price"]) is not None:
        told = f"{price['amount']:.6g} {price['currency']} ({price['low']:.4g} .. "
        line(out, f"{told}{price['high']:.4g})")
    if (co2 := answer["co2"]) is not None:
        told = f"{co2['grams']:.6g} g CO2 ({co2['low']:.4g} .. {co2['high']:.4g})"
        line(out, told)
    warnings(out, answer["warnings"])
