"""``wattcast features`` and ``wattcast schemas``: what a model would see of a launch."""

from __future__ import annotations

from wattcast.app.cli.inputs import AsJson, KernelOptions
from wattcast.app.cli.output import predictor, rows, show


def features(
    launch: KernelOptions,
    schema: str = "alavani2023",
    as_json: AsJson = False,
) -> None:
    """Print the feature vector that a model sees.

    Args:
        schema: Feature schema; wattcast schemas lists them.
    """
    from wattcast.predictor.features import features as run
    from wattcast.predictor.messages.features import FeaturesRequest

    body = {**launch.body(), "schema": schema}
    answer = run(predictor(), FeaturesRequest.model_validate(body))
    show(answer, as_json)


def schemas(as_json: AsJson = False) -> None:
    """List the feature schemas and the GPUs each one supports."""
    from wattcast.predictor.catalog import schema_summaries

    columns = ("id", "version", "title", "gpus")
    found = schema_summaries()
    show(found, as_json, lambda: rows(found, columns))
