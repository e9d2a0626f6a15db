"""Power, time and energy of a CUDA kernel from its PTX or CUDA source, in one call.

    >>> import wattcast
    >>> answer = wattcast.predict(Path("kernel.ptx"), gpu="tesla-v100", grid=4096, block=256)
    >>> answer.power.watts, answer.time.seconds, answer.energy.joules

``predict_many`` asks about many launches of one kernel; ``compare`` about several GPUs, or how new
code differs from old; ``explain`` what each feature adds, for shap's plots; ``vector`` for the
features a model sees, ``analyze`` for the analysis itself, ``application`` for the energy of all
kernels in a trace, ``advise`` and ``fusion`` for what to
change, ``rank_triton`` for the configurations of a Triton kernel. Code is PTX text, the path of a
file, or an object with ``.asm["ptx"]`` (a compiled Triton kernel). Nothing is stored; GPU profiles
and models of ``WATTCAST_HOME`` count, and models that were promoted in the database of a service
there (or of ``WATTCAST_DATABASE_URL``), unless ``registry=False`` or ``WATTCAST_REGISTRY=off``.
Every error is a ``wattcast.features.errors.WattcastError`` or, for an argument of the wrong kind,
a ``pydantic.ValidationError``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

import numpy as np
from pydantic import BaseModel
from pydantic_core import to_json

from wattcast.features.analysis import KernelAnalysis, Mode
from wattcast.features.errors import MissingExtraError
from wattcast.predictor import Predictor, parts
from wattcast.predictor import predict as _prediction

if TYPE_CHECKING:  # and below where needed: they are a tenth of the time to import everything
    import shap

    from wattcast.predictor.messages import ModelChoice, TimeModelChoice
    from wattcast.predictor.messages.advise import AdviceAnswer
    from wattcast.predictor.messages.application import ApplicationAnswer
    from wattcast.predictor.messages.batch import BatchAnswer
    from wattcast.predictor.messages.compare import CompareAnswer
    from wattcast.predictor.messages.features import FeaturesAnswer
    from wattcast.predictor.messages.predict import PredictAnswer
    from wattcast.predictor.triton import Grid

__all__ = [
    "advise",
    "analyze",
    "application",
    "compare",
    "explain",
    "fusion",
    "predict",
    "predict_many",
    "rank_triton",
    "vector",
]

CUDA_SUFFIXES = (".cu", ".cuh")

Message = TypeVar("Message", bound=BaseModel)


class Compiled(Protocol):
    """A compiled kernel that tells its PTX, as Triton's do."""

    @property
    def asm(self) -> Mapping[str, Any]: ...


Code = str | Path | Compiled
"""PTX text, the path of a file, or a compiled kernel."""

Dimensions = int | Sequence[int]
"""Blocks of a grid or threads of a block: one number, or up to three."""


class LaunchOptions(TypedDict, total=False):
    """Of a launch, beside its code, grid and block; every function takes them.

    ``cuda`` is CUDA source, or the path of a file, in the place of PTX. ``loops`` gives executions
    of loop bodies, by label or one number for all; ``arguments`` the kernel's arguments by position
    or name (numbers, or hints such as ``{"elements": 4096}``).
    """

    cuda: str | Path | None
    kernel: str | None
    loops: float | Mapping[str, float] | None
    dynamic_shared_bytes: int
    registers_per_thread: int | None
    static_shared_bytes: int | None
    arguments: Mapping[str, Any] | None
    analysis: Mode


def predict(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    clocks: Mapping[str, float] | None = None,
    power_limit_watts: float | None = None,
    time_model: TimeModelChoice = "auto",
    model: ModelChoice = "auto",
    known: Sequence[Mapping[str, Any]] = (),
    work: Mapping[str, Any] | None = None,
    explain: bool = False,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> PredictAnswer:
    """Watts, seconds and joules of one launch on one GPU, as ``POST /predict`` answers.

    ``ptx`` is the text or path of a file; a path that ends in ``.cu`` is CUDA source. ``clocks``
    are ``{"core_mhz": ..., "memory_mhz": ...}``; ``known`` are measured launches of the same
    kernel, ``work`` is what a profiler counted instead of PTX; both as ``POST /predict`` takes
    them. ``explain`` adds SHAP contributions in watts. ``board`` is the label of one of several
    boards of this GPU; ``registry=False`` leaves promoted models out.
    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError or
    ModelError, ClockError for clocks the GPU does not run at, and StoreError where the database of
    promoted models is there but cannot be read.
    """
    more: dict[str, Any] = {"clocks": clocks, "power_limit_watts": power_limit_watts}
    more |= {"time_model": time_model, "model": model, "known": known, "work": work}
    more |= {"explain": "shap" if explain else None, "board": board, "gpu": gpu}
    answer = _answered(registry, **more, **_kernel(ptx, grid, block, **launch))
    return _predicted(answer)


def predict_many(
    ptx: Code | None = None,
    *,
    gpu: str,
    launches: Sequence[Mapping[str, Any]],
    cuda: str | Path | None = None,
    registry: bool = True,
    **options: Any,
) -> BatchAnswer:
    """Many launches of one kernel, as ``POST /predict/batch`` answers: symbolic unless
    ``analysis`` says otherwise.

    ``launches`` are ``{"grid": ..., "block": ..., "arguments": {...}}``; ``options`` are the other
    members of the request (``kernel``, ``loops``, ``clocks``, ``model``...). A launch that cannot
    run has a ``problem`` in its place. Raises what ``predict`` does for what all launches share.
    """
    from wattcast.predictor import batch
    from wattcast.predictor.messages.batch import BatchAnswer, BatchRequest

    body = {**_source(ptx, cuda), "gpu": gpu, "launches": list(launches), **options}
    answer = batch.predict_many(_predictor(registry), BatchRequest.model_validate(body))
    return _typed(BatchAnswer, answer)


def rank_triton(
    kernels: Any,
    *,
    gpu: str,
    grid: Grid,
    arguments: Mapping[str, Any] | None = None,
    configs: Sequence[Any] | None = None,
    signature: Mapping[str, str] | None = None,
    constexprs: Mapping[str, Any] | None = None,
    kernel: str | None = None,
    by: Literal["energy", "time"] = "energy",
    registry: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Configurations of a Triton kernel in the order of their predicted joules or seconds.

    ``kernels`` is a ``@triton.jit`` or autotuned function, which is compiled for ``gpu`` with each
    of ``configs`` (``triton.Config`` or mappings; default: of ``@triton.autotune``); or compiled
    kernels; or the ``Path`` of a folder as TRITON_CACHE_DIR, of which ``kernel`` names one. Only
    the first needs Triton (the extra ``triton``), none a GPU. ``grid`` are programs, or a function
    of constants and metadata as Triton's grids are. ``arguments`` are by name (by position
    in a cache): numbers, and hints such as ``{"elements": 4096}`` for pointers; ``signature`` are
    their types where no number tells them. ``options`` are other members of a prediction's
    request, such as ``clocks``.

    The answer holds ``configurations`` with ``rank``, ``configuration``, ``joules``, ``seconds``
    and ``watts``, and ``refused`` ones with their reasons. Raises DataError where none can be
    predicted, MissingExtraError without Triton, and as ``predict`` does.
    """
    from wattcast.predictor import rank, triton

    predictor = _predictor(registry)
    given = dict(arguments or {})
    if isinstance(kernels, Path):
        found: Any = triton.read_cache(kernels, kernel)
    elif isinstance(kernels, Sequence):
        found = [triton.compiled(each) for each in kernels]
    elif hasattr(kernels, "asm"):
        found = [triton.compiled(kernels)]
    else:
        profile = predictor.gpus.load(gpu)
        found = triton.compile_configurations(
            kernels, profile, configs, signature or {}, constexprs or {}, given
        )
    asked = triton.candidates(found, grid, given, {"gpu": gpu, **options})
    return rank.ranked(predictor, asked, by)


@overload
def compare(
    ptx: Code | None = None,
    new: None = None,
    *,
    gpus: Sequence[str],
    grid: Dimensions,
    block: Dimensions,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> list[PredictAnswer]: ...


@overload
def compare(
    ptx: Code,
    new: Code,
    *,
    gpus: Sequence[str],
    grid: Dimensions,
    block: Dimensions,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> CompareAnswer: ...


def compare(
    ptx: Code | None = None,
    new: Code | None = None,
    *,
    gpus: Sequence[str],
    grid: Dimensions,
    block: Dimensions,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> list[PredictAnswer] | CompareAnswer:
    """``predict`` for several GPUs, in their order; with ``new``, old code beside new code.

    Without ``model`` each GPU's own default answers; ``physical`` where ``new`` is given, which
    sees what the code does. Raises as ``predict`` does.
    """
    if new is None:
        asked = _kernel(ptx, grid, block, **launch)
        more = {"gpus": list(gpus), "model": model or "auto", "board": board}
        answer = _answered(registry, **more, **asked)
        return [_predicted(one) for one in answer["predictions"]]
    from wattcast.predictor import compare as comparison
    from wattcast.predictor.messages.compare import CompareAnswer, CompareRequest

    sides = {
        side: _kernel(code, grid, block, **launch) for side, code in (("old", ptx), ("new", new))
    }
    request = CompareRequest.model_validate(
        {**sides, "gpus": list(gpus), "model": model or "physical", "board": board}
    )
    return _typed(CompareAnswer, comparison.compare(_predictor(registry), request))


def explain(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    target: Literal["power", "time"] = "power",
    model: ModelChoice = "auto",
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> shap.Explanation:
    """What each feature adds to the watts (or, ``target="time"``, each part to the seconds).

    The answer is shap's own class: ``shap.plots.waterfall(wattcast.explain(...))`` draws it. Its
    values and base value add up to the prediction. Raises as ``predict`` does, and ServiceError
    where there is nothing to explain; needs the extra ``explain``.
    """
    try:
        import shap
    except ImportError as error:
        raise MissingExtraError("shap", "explain") from error
    from wattcast.predictor.explain import explained
    from wattcast.predictor.messages.predict import PredictRequest

    predictor = _predictor(registry)
    more = {"gpu": gpu, "model": model, "board": board}
    asked = {**more, **_kernel(ptx, grid, block, **launch)}
    answer = _prediction.predict(predictor, PredictRequest.model_validate(asked))
    found = explained(predictor, answer, "shap", target)
    unit = "watts" if target == "power" else "seconds"
    parts = found["contributions"]
    values = [math.nan if part["value"] is None else part["value"] for part in parts]
    return shap.Explanation(
        values=np.array([part[unit] for part in parts]),
        base_values=found[f"base_{unit}"],
        data=np.array(values, dtype=np.float64),
        feature_names=[part["feature"] for part in parts],
    )


def vector(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    schema: str = "alavani2023",
    **launch: Unpack[LaunchOptions],
) -> FeaturesAnswer:
    """The feature vector of a launch, as ``POST /features`` answers.

    Raises as ``predict`` does, and SchemaError.
    """
    from wattcast.predictor.features import features
    from wattcast.predictor.messages.features import FeaturesAnswer, FeaturesRequest

    asked = {"gpu": gpu, "schema": schema, **_kernel(ptx, grid, block, **launch)}
    return _typed(FeaturesAnswer, features(_predictor(), FeaturesRequest.model_validate(asked)))


def analyze(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    **launch: Unpack[LaunchOptions],
) -> KernelAnalysis:
    """The analysis of a launch: loops, accesses, mix, registers, occupancy, activity.

    Raises as ``predict`` does.
    """
    from wattcast.predictor.messages.analyze import AnalyzeRequest

    asked = {"gpu": gpu, **_kernel(ptx, grid, block, **launch)}
    request = AnalyzeRequest.model_validate(asked)
    predictor = _predictor()
    profile = predictor.gpus.load(gpu)
    source = predictor.sources.read(request, profile)
    return parts.analysed(predictor, request, source, profile, ptxas=True)


def advise(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions,
    block: Dimensions,
    clocks: Mapping[str, float] | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> AdviceAnswer:
    """What to change about a launch and what that would gain, as the service's advice.

    Raises as ``predict`` does, and AnalysisError where the kernel cannot be analysed.
    """
    from wattcast.predictor import advise as advice
    from wattcast.predictor.messages.advise import AdviceAnswer
    from wattcast.predictor.messages.predict import PredictRequest

    asked = {"gpu": gpu, "clocks": clocks, **_kernel(ptx, grid, block, **launch)}
    found = advice.advise(_predictor(registry), PredictRequest.model_validate(asked))
    return _typed(AdviceAnswer, found)


def fusion(
    launches: Sequence[Mapping[str, Any]], *, gpu: str, registry: bool = True
) -> list[dict[str, Any]]:
    """Elementwise passes worth fusing with the product of matrices before them.

    ``launches``, in the order in which they run, hold the arguments of ``predict``: ``ptx``,
    ``grid``, ``block``, ``arguments``... Each answer tells ``kernels``, the ``bytes`` of device
    memory spared and ``gain`` in seconds and joules. Raises as ``advise`` does.
    """
    from wattcast.predictor import advise as advice
    from wattcast.predictor.messages.predict import PredictRequest

    asked = [{"gpu": gpu, **_kernel(**{"ptx": None, **one})} for one in launches]
    requests = [PredictRequest.model_validate(each) for each in asked]
    return advice.fusions(_predictor(registry), requests)


def application(
    trace: str | Path,
    *,
    gpu: str | None = None,
    code: Sequence[str | Path] = (),
    registry: bool = True,
    **options: Any,
) -> ApplicationAnswer:
    """Energy of a whole application from its trace, as ``POST /applications`` answers.

    ``trace`` is the path of a SQLite export of Nsight Systems or of a JSON trace of the PyTorch
    profiler (also gzipped). ``code`` are folders and files that hold PTX of its kernels: Triton's
    and inductor's caches, PTX files, binaries. ``gpu`` is needed where the trace does not name a
    known one; ``options`` are other members of the request (``gpus``, ``clocks``, ``tariff``,
    ``grams_co2_per_kwh``, ``launches``...).
    Raises DataError for a file that is no such trace, GpuError, ClockError and ModelError.
    """
    from wattcast.predictor.application import application as run
    from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    request = ApplicationRequest.model_validate({"gpu": gpu, **options})
    found = library([Path(each) for each in code])
    answer = run(_predictor(registry), read_trace(Path(trace)), request, found)
    return _typed(ApplicationAnswer, answer)


@cache
def _predictor(registry: bool = True) -> Predictor:
    # Here: pydantic-settings and the registry take a third of the time to import everything.
    from wattcast.app.services.models.promoted import alone
    from wattcast.app.settings import Settings

    return alone(Settings(), registry=registry)


def _answered(registry: bool, **body: Any) -> dict[str, Any]:
    from wattcast.predictor.messages.predict import PredictRequest

    return _prediction.predict(_predictor(registry), PredictRequest.model_validate(body))


def _predicted(answer: dict[str, Any]) -> PredictAnswer:
    from wattcast.predictor.messages.predict import PredictAnswer

    return _typed(PredictAnswer, answer)


def _typed(kind: type[Message], answer: dict[str, Any]) -> Message:
    return kind.model_validate_json(to_json(answer, inf_nan_mode="null"))


def _kernel(
    ptx: Code | None, grid: Dimensions, block: Dimensions, **launch: Unpack[LaunchOptions]
) -> dict[str, Any]:
    """The part of a request's body that tells code and launch."""
    given: dict[str, Any] = dict(launch)
    if unknown := given.keys() - LaunchOptions.__annotations__.keys():
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
    loops, arguments = given.pop("loops", None), given.pop("arguments", None)
    return {
        **_source(ptx, given.pop("cuda", None)),
        "launch": {
            "grid": grid if isinstance(grid, int) else list(grid),
            "block": block if isinstance(block, int) else list(block),
            "dynamic_shared_bytes": given.pop("dynamic_shared_bytes", 0),
            "arguments": dict(arguments or {}),
        },
        "loops": {"default": loops} if isinstance(loops, int | float) else dict(loops or {}),
        **given,
    }


def _source(ptx: Code | None, cuda: str | Path | None) -> dict[str, str]:
    """``ptx`` or ``cuda`` as requests hold it; a first argument ``kernel.cu`` is CUDA source."""
    if isinstance(ptx, Path) and ptx.suffix in CUDA_SUFFIXES and cuda is None:
        ptx, cuda = None, ptx
    return {
        name: _text(given) for name, given in (("ptx", ptx), ("cuda", cuda)) if given is not None
    }


def _text(given: Code) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Path):
        return given.read_text(encoding="utf-8-sig")
    return str(given.asm["ptx"])
