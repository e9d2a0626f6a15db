"""``wattcast operator``: power, time and energy of a library operator, by its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.inputs import OWN, OnGpus, Options, ask, body_of, fail, read_json, scalars
from wattcast.predictor.messages import operators as messages
from wattcast.predictor.messages.compare import CompareAnswer
from wattcast.predictor.messages.dvfs import DvfsAnswer
from wattcast.predictor.messages.language_model import LanguageModelAnswer, LanguageModelRequest
from wattcast.predictor.messages.operators import OperatorSweepAnswer
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers
from wattcast.predictor.messages.sweep import BatchAnswer

SHORT = {"batched-gemm": "batched_gemm", "linear-attention": "linear_attention"}


class OperatorOptions(Options):
    """Under which power limit, and by whose kernels."""

    panel = OWN
    members = scalars(messages.OperatorOptions)


def operator(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    on: OnGpus,
    how: OperatorOptions,
    constraints: inputs.Constraints,
    shape: Annotated[list[str] | None, typer.Argument(metavar="--FIELD VALUE ...")] = None,
    vary: list[str] | None = None,
    new: list[str] | None = None,
    explain: bool = False,
    power_limits: str | None = None,
) -> (
    PredictAnswer | PredictAnswers | BatchAnswer | DvfsAnswer | CompareAnswer | OperatorSweepAnswer
):
    """Predict a matrix product, attention or experts by shape alone.

    Args:
        name: gemm, batched_gemm, attention, moe, quantize, linear_attention; or norm, activation,
            softmax, rope, embedding, elementwise. Or a .json file with a list of operators as
            POST /predict/batch takes them.
        shape: Its shape, as POST /predict names it: --m 4096 --n 4096 --k 4096 --dtype bf16;
            --phase decode --batch 8 --cached-tokens 4096 --heads 32 --kv-heads 8; --read-bytes 1e9
            --write-bytes 1e9.
        vary: Member with values to try: m=1024,2048. Repeatable: all combinations.
        new: Member with another value, to compare with: dtype=fp8. Repeatable.
        explain: Also print SHAP contributions.
        power_limits: Power limits to choose from under the constraints, as in POST /dvfs:
            300,400 or 300..700; default are nine from half the board's limit.
    """
    if sum(map(bool, (vary, new, explain, power_limits, name.endswith(".json")))) > 1:
        fail("give one of --vary, --new, --explain, --power-limits and a file")
    if constraints.body() and not power_limits:
        fail("constraints choose among --power-limits; give some, or default")
    asked = {"name": SHORT.get(name, name), **_fields([*(shape or ()), *context.args])}
    body = body_of(on, how)
    if name.endswith(".json"):
        return ask(messages.OperatorBatchRequest, body, operators=read_json(Path(name)))
    if power_limits:
        chosen = {"operator": asked}
        if power_limits != "default":
            chosen["power_limit_watts"] = inputs.NUMBERS.of("--power-limits", power_limits)
        return ask(messages.OperatorDvfsRequest, body, constraints, chosen)
    if vary:
        varied = dict(map(_varied, vary))
        return ask(messages.OperatorSweepRequest, body, operator=asked, vary=varied)
    if new:
        changed = {**asked, **{key: values[0] for key, values in map(_varied, new)}}
        sides = {"old": {"operator": asked}, "new": {"operator": changed}}
        return ask(messages.OperatorCompareRequest, body, sides)
    told = {"operator": asked, "explain": "shap" if explain else None}
    return ask(messages.OperatorRequest, body, told)


def _varied(text: str) -> tuple[str, list[int | bool | str]]:
    """``m=1024,2048`` as a member and its values."""
    name, _, values = text.partition("=")
    if not name or not all(values.split(",")):
        fail(f"{text!r}: expected NAME=VALUE,VALUE, as in m=1024,2048")
    return name.replace("-", "_"), [_value(value) for value in values.split(",")]


def _fields(words: list[str]) -> dict[str, Any]:
    """``--kv-heads 8`` as ``{"kv_heads": 8}``."""
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if not word.startswith("--"):
            fail(f"{word!r} follows no option; give a shape as --m 4096")
        key, _, value = word[2:].partition("=")
        if not value:
            value = next(left, "")
        if not value or value.startswith("--"):
            fail(f"--{key} has no value")
        found[key.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> int | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return text
    return int(number) if abs(number) < 1e15 and number == int(number) else text


# ``wattcast model``: time and energy of a language model, from its ``config.json``.


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
    told = inputs.read_json(config / "config.json" if config.is_dir() else config)
    return ask(LanguageModelRequest, on, work, config=told)
