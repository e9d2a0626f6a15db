"""Power, time and energy of a CUDA kernel from its PTX, in one call.

    >>> import wattcast
    >>> answer = wattcast.predict(Path("kernel.ptx"), gpu="tesla-v100", grid=4096, block=256)
    >>> answer.power.watts, answer.time.seconds, answer.energy.joules

``compare`` asks about several GPUs, ``features`` for the vector a model sees, ``analyze`` for
the analysis itself. Nothing is stored; GPU profiles and models of ``WATTCAST_HOME`` count.
Every error is a ``features.errors.WattcastError`` or, for an argument of the wrong kind,
a ``pydantic.ValidationError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from app.messages import (
    FeaturesAnswer,
    FeaturesRequest,
    ModelChoice,
    PredictAnswer,
    PredictRequest,
)
from app.services import Services, parts
from app.services import features as _features
from app.services import prediction as _prediction
from app.settings import Settings
from features.analysis import KernelAnalysis

__all__ = ["analyze", "compare", "features", "predict"]

Dimensions = int | Sequence[int]
"""Blocks of a grid or threads of a block: one number, or up to three."""


def predict(
    ptx: str | Path,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    kernel: str | None = None,
    loops: float | Mapping[str, float] | None = None,
    dynamic_shared_bytes: int = 0,
    registers_per_thread: int | None = None,
    static_shared_bytes: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    model: ModelChoice = "auto",
    explain: bool = False,
) -> PredictAnswer:
    """Watts, seconds and joules of one launch on one GPU, as ``POST /predict`` answers.

    ``ptx`` is the text or the path of a file. ``loops`` gives the executions of loop bodies, by
    label or one number for all. ``explain`` adds SHAP contributions in watts.
    Raises PtxError, KernelError, LaunchError, GpuError or ModelError.
    """
    answer = _answered(
        gpu=gpu,
        model=model,
        explain="shap" if explain else None,
        **_kernel(
            ptx,
            grid,
            block,
            kernel,
            loops,
            dynamic_shared_bytes,
            registers_per_thread,
            static_shared_bytes,
            arguments,
        ),
    )
    return _typed(answer)


def compare(
    ptx: str | Path,
    *,
    gpus: Sequence[str],
    grid: Dimensions,
    block: Dimensions,
    kernel: str | None = None,
    loops: float | Mapping[str, float] | None = None,
    dynamic_shared_bytes: int = 0,
    registers_per_thread: int | None = None,
    static_shared_bytes: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    model: ModelChoice = "auto",
) -> list[PredictAnswer]:
    """``predict`` for several GPUs, in their order. Raises as ``predict`` does."""
    answer = _answered(
        gpus=list(gpus),
        model=model,
        **_kernel(
            ptx,
            grid,
            block,
            kernel,
            loops,
            dynamic_shared_bytes,
            registers_per_thread,
            static_shared_bytes,
            arguments,
        ),
    )
    return [_typed(one) for one in answer["predictions"]]


def features(
    ptx: str | Path,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    schema: str = "alavani2023",
    kernel: str | None = None,
    loops: float | Mapping[str, float] | None = None,
    dynamic_shared_bytes: int = 0,
    registers_per_thread: int | None = None,
    static_shared_bytes: int | None = None,
) -> FeaturesAnswer:
    """The feature vector of a launch, as ``POST /features`` answers.

    Raises PtxError, KernelError, LaunchError, GpuError or SchemaError.
    """
    body = _kernel(
        ptx,
        grid,
        block,
        kernel,
        loops,
        dynamic_shared_bytes,
        registers_per_thread,
        static_shared_bytes,
        None,
    )
    request = FeaturesRequest.model_validate({**body, "gpu": gpu, "schema": schema})
    answer = _features.features(_services(), request)
    return FeaturesAnswer.model_validate_json(to_json(answer, inf_nan_mode="null"))


def analyze(
    ptx: str | Path,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    kernel: str | None = None,
    loops: float | Mapping[str, float] | None = None,
    dynamic_shared_bytes: int = 0,
    registers_per_thread: int | None = None,
    static_shared_bytes: int | None = None,
) -> KernelAnalysis:
    """Loops, trip counts, registers and occupancy of a launch.

    Raises PtxError, KernelError, LaunchError or GpuError.
    """
    body = _kernel(
        ptx,
        grid,
        block,
        kernel,
        loops,
        dynamic_shared_bytes,
        registers_per_thread,
        static_shared_bytes,
        None,
    )
    request = PredictRequest.model_validate({**body, "gpu": gpu})
    services = _services()
    return parts.analysed(request, services.modules.read(request.ptx), services.gpus.load(gpu))


@cache
def _services() -> Services:
    return Services(Settings())


def _answered(**body: Any) -> dict[str, Any]:
    return _prediction.predict(_services(), PredictRequest.model_validate(body))


def _typed(answer: dict[str, Any]) -> PredictAnswer:
    return PredictAnswer.model_validate_json(to_json(answer, inf_nan_mode="null"))


def _kernel(
    ptx: str | Path,
    grid: Dimensions,
    block: Dimensions,
    kernel: str | None,
    loops: float | Mapping[str, float] | None,
    dynamic_shared_bytes: int,
    registers_per_thread: int | None,
    static_shared_bytes: int | None,
    arguments: Mapping[str, Any] | None,
) -> dict[str, Any]:
    by_label = {"default": loops} if isinstance(loops, int | float) else dict(loops or {})
    return {
        "ptx": ptx.read_text(encoding="utf-8-sig") if isinstance(ptx, Path) else ptx,
        "kernel": kernel,
        "launch": {
            "grid": grid if isinstance(grid, int) else list(grid),
            "block": block if isinstance(block, int) else list(block),
            "dynamic_shared_bytes": dynamic_shared_bytes,
            "arguments": dict(arguments or {}),
        },
        "loops": by_label,
        "registers_per_thread": registers_per_thread,
        "static_shared_bytes": static_shared_bytes,
    }
