"""``wattcast operator``: power, time and energy of a library operator, by its shape."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wattcast.app.cli.inputs import AsJson, Gpus, fail
from wattcast.app.cli.output import predictor, show

SHORT = {"batched-gemm": "batched_gemm", "linear-attention": "linear_attention"}


def operator(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    shape: Annotated[list[str] | None, typer.Argument(metavar="--FIELD VALUE ...")] = None,
    *,
    gpu: Gpus,
    framework: str | None = None,
    power_limit: float | None = None,
    explain: Annotated[bool, typer.Option("--explain")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict a matrix product, attention or experts by shape alone.

    Args:
        name: gemm, batched_gemm, attention, moe, quantize, linear_attention; or norm, activation,
            softmax, rope, embedding, elementwise.
        shape: Its shape, as POST /predict names it: --m 4096 --n 4096 --k 4096 --dtype bf16;
            --phase decode --batch 8 --cached-tokens 4096 --heads 32 --kv-heads 8; --read-bytes 1e9
            --write-bytes 1e9.
        framework: Whose kernels: vllm or trtllm. Default: vllm.
        power_limit: Power limit in watts. Default: the board's own.
        explain: Also print SHAP contributions.
    """
    from wattcast.predictor.messages.operators import OperatorRequest
    from wattcast.predictor.operators import predict_operator

    body: dict[str, Any] = {
        "operator": {"name": SHORT.get(name, name), **_fields([*(shape or ()), *context.args])},
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        "framework": framework,
        "power_limit_watts": power_limit,
        "explain": "shap" if explain else None,
    }
    answer = predict_operator(predictor(), OperatorRequest.model_validate(body))
    show(answer, as_json)


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
