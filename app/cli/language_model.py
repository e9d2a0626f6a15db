"""``wattcast model``: time and energy of a language model, from its ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor
from wattcast.predictor.messages.language_model import LanguageModelAnswer, LanguageModelRequest


class WorkOptions(inputs.Options):
    """What the model is asked to do, and in which formats."""

    panel = "Work"
    members = inputs.scalars(LanguageModelRequest, without=("gpu",)) | inputs.fields(
        LanguageModelRequest, "batches", "power_limits_watts"
    )


def model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG")], on: inputs.OnGpu, work: WorkOptions
) -> LanguageModelAnswer:
    """Forecast the energy of a language model: inference or training.

    Args:
        config: config.json of a Hugging Face model, or the folder it is in.
    """
    from wattcast.predictor.language_model import language_model

    told = inputs.read_json(config / "config.json" if config.is_dir() else config)
    return language_model(predictor(), inputs.request(LanguageModelRequest, on, work, config=told))
