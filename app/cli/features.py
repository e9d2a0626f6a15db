"""``wattcast features`` and ``wattcast schemas``: what a model would see of a launch."""

from __future__ import annotations

from typing import Any

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Shown, predictor, rows
from wattcast.predictor.messages.features import FeaturesAnswer, FeaturesRequest


def features(
    on: inputs.OnGpu, launch: inputs.KernelOptions, schema: str = "alavani2023"
) -> FeaturesAnswer:
    """Print the feature vector that a model sees.

    Args:
        schema: Feature schema; wattcast schemas lists them.
    """
    from wattcast.predictor.features import features as run

    return run(predictor(), inputs.request(FeaturesRequest, launch, on, schema=schema))


def schemas() -> Shown[Any]:
    """List the feature schemas and the GPUs each one supports."""
    from wattcast.predictor.catalog import schema_summaries

    found = schema_summaries()
    return Shown(found, lambda: rows(found, ("id", "version", "title", "gpus")))
