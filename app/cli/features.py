"""``wattcast features`` and ``wattcast schemas``: what a model would see of a launch."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from wattcast.app.cli.inputs import AsJson, KernelOptions, with_options
from wattcast.app.cli.output import Answer, predictor, rows, show, warnings


@with_options
def features(
    launch: KernelOptions,
    schema: Annotated[
        str, typer.Option(help="Feature schema; wattcast schemas lists them.")
    ] = "alavani2023",
    as_json: AsJson = False,
) -> None:
    """Print the feature vector that a model sees."""
    from wattcast.predictor.features import features as run
    from wattcast.predictor.messages.features import FeaturesRequest

    body = {**launch.body(), "schema": schema}
    answer = run(predictor(), FeaturesRequest.model_validate(body))
    show(answer, as_json, _report)


def _report(out: Console, answer: Answer) -> None:
    rows(out, answer["features"], ("name", "value", "unit"))
    warnings(out, answer["warnings"])


def schemas(as_json: AsJson = False) -> None:
    """List the feature schemas and the GPUs each one supports."""
    from wattcast.predictor.catalog import schema_summaries

    columns = ("id", "version", "title", "gpus")
    show(schema_summaries(), as_json, lambda out, found: rows(out, found, columns))
