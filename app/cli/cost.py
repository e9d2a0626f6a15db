"""``wattcast cost``: what an application of several kernels costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli.inputs import AsJson, fail, read_json
from wattcast.app.cli.output import predictor, show


def cost(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    price_per_kwh: float | None = None,
    currency: str | None = None,
    grams_co2_per_kwh: float | None = None,
    as_json: AsJson = False,
) -> None:
    """Add up the energy, price and CO2 of a whole application.

    Args:
        file: JSON file, as POST /cost takes it; - reads standard input.
        price_per_kwh: Electricity price per kWh. No default.
        currency: Currency of the price, e.g. EUR.
        grams_co2_per_kwh: Carbon intensity of the grid, g CO2 per kWh. No default.
    """
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
    show(answer, as_json)
