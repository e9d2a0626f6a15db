"""``wattcast model``: time and energy of a language model, from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from pydantic.fields import FieldInfo

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show
from wattcast.predictor.messages.language_model import LanguageModelRequest


class WorkOptions(inputs.Options):
    """What the model is asked to do, and in which formats."""

    panel = "Work"
    members: ClassVar[Mapping[str, FieldInfo]] = inputs.scalars(
        LanguageModelRequest, without=("gpu",)
    )


def model(
    config: Annotated[Path, typer.Argument(metavar="CONFIG")],
    gpu: inputs.Gpu,
    work: WorkOptions,
    batches: str | None = None,
    power_limits: str | None = None,
    *,
    as_json: inputs.AsJson = False,
) -> None:
    """Forecast the energy of a language model: inference or training.

    Args:
        config: config.json of a Hugging Face model, or the folder it is in.
        batches: Also a curve over batch sizes: 1,8,64.
        power_limits: Also a curve over power limits in watts: 300..700.
    """
    from wattcast.predictor.language_model import language_model

    body = {
        "config": inputs.read_json(config / "config.json" if config.is_dir() else config),
        "gpu": gpu,
        **work.of(work.members),
        "batches": _numbers("--batches", batches),
        "power_limits_watts": _numbers("--power-limits", power_limits),
    }
    show(language_model(predictor(), LanguageModelRequest.model_validate(body)), as_json)


def _numbers(option: str, text: str | None) -> list[int]:
    """``1,8,64``; ``300..700`` are nine numbers from the one to the other."""
    if text is None:
        return []
    with inputs.expected(option, text, "whole numbers, as in 1,8,64 or 300..700"):
        if ".." in text:
            low, high = (int(part) for part in text.split(".."))
            return [round(low + (high - low) * step / 8) for step in range(9)]
        return [int(part) for part in text.split(",")]
