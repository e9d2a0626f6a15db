"""``wattcast cost``: what an application of several kernels costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages.cost import CostAnswer, CostRequest, Tariff


class PriceOptions(inputs.Options):
    """What electricity costs."""

    panel = inputs.OWN
    members = inputs.scalars(Tariff, under="tariff") | inputs.fields(
        CostRequest, "grams_co2_per_kwh"
    )


def cost(file: Annotated[Path, typer.Argument(metavar="FILE")], prices: PriceOptions) -> CostAnswer:
    """Add up the energy, price and CO2 of a whole application.

    Args:
        file: JSON file, as POST /cost takes it; - reads standard input.
    """
    from wattcast.predictor.cost import cost as run

    told = prices.body()
    if len(told.get("tariff", {})) == 1:
        inputs.fail("give --price-per-kwh and --currency together")
    body = inputs.read_json(file, dict, "a JSON object, as POST /cost takes it")
    return run(predictor(), CostRequest.model_validate({**body, **told}))
