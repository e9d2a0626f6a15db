"""Power, time and energy of a CUDA kernel from its PTX or CUDA source, in one call.

    >>> import wattcast
    >>> answer = wattcast.predict("kernel.ptx", gpu="tesla-v100", grid=4096, block=256)
    >>> answer.power.watts, answer.time.seconds, answer.energy.joules

``predict_many`` asks about many launches of one kernel; ``compare`` about several GPUs, or how new
code differs from old; ``sweep`` about launch shapes, ``dvfs`` about clocks; ``hotspots`` where the
energy goes, ``advise`` and ``fusion`` what to change; ``explain`` what each feature adds, for
shap's plots; ``vector`` for the features a model sees, ``analyze`` for the analysis itself;
``rank_triton`` for the configurations of a Triton kernel, ``estimate`` for its launches;
``application`` for the energy of all kernels in a trace; ``gpus`` lists what can be asked about.

Code is PTX or CUDA text, the path of a file, or a kernel of Triton, torch's inductor, Numba or CuPy
(``app/python/code.py`` tells which objects). Answers are the service's messages: a notebook shows
them as cards, ``to_frame()`` makes them pandas tables, and ``plot()`` draws them. Nothing is
stored; GPU profiles and models of ``WATTCAST_HOME`` count, and models that were promoted in the
database of a service there (or of ``WATTCAST_DATABASE_URL``), unless ``registry=False`` or
``WATTCAST_REGISTRY=off``.
Every error is a ``wattcast.features.errors.WattcastError`` or, for an argument of the wrong kind,
a ``pydantic.ValidationError``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from wattcast.app.python.asked import predictor as _predictor
from wattcast.app.python.asked import typed as _typed
from wattcast.app.python.choices import dvfs, estimate, gpus, rank_triton, sweep
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import MissingExtraError
from wattcast.predictor import parts
from wattcast.predictor import predict as _prediction

if TYPE_CHECKING:  # and below where needed: they are a tenth of the time to import everything
    import shap

    from wattcast.app.python.answers import AdviceList, Hotspots, Prediction, Predictions
    from wattcast.app.python.code import Code, Dimensions, LaunchOptions
    from wattcast.app.python.many import Application, Batch, CodeComparison
    from wattcast.predictor.messages import ModelChoice, TimeModelChoice
    from wattcast.predictor.messages.features import FeaturesAnswer
    from wattcast.predictor.triton import Grid

__all__ = [
    "advise",
    "analyze",
    "application",
    "compare",
    "dvfs",
    "estimate",
    "explain",
    "fusion",
    "gpus",
    "hotspots",
    "predict",
    "predict_many",
    "rank_triton",
    "sweep",
    "vector",
]


def predict(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    clocks: Mapping[str, float] | None = None,
    power_limit_watts: float | None = None,
    time_model: TimeModelChoice = "auto",
    model: ModelChoice = "auto",
    known: Sequence[Mapping[str, Any]] = (),
    work: Mapping[str, Any] | None = None,
    explain: bool = False,
    details: bool = False,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> Prediction:
    """Watts, seconds and joules of one launch on one GPU, as ``POST /predict`` answers.

    ``ptx`` is PTX or CUDA text, the path of a file, or a compiled kernel. A kernel of Triton tells
    ``block``, shared memory and names itself, and its ``grid`` counts programs. ``clocks`` are
    ``{"core_mhz": ..., "memory_mhz": ...}``; ``known`` are measured launches of the same kernel,
    ``work`` is what a profiler counted instead of PTX; both as ``POST /predict`` takes them.
    ``explain`` adds SHAP contributions in watts, ``details`` how near each unit comes to its peak.
    ``board`` is the label of one of several boards of this GPU; ``registry=False`` leaves promoted
    models out.
    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError or
    ModelError, ClockError for clocks the GPU does not run at, and StoreError where the database of
    promoted models is there but cannot be read.
    """
    more: dict[str, Any] = {"clocks": clocks, "power_limit_watts": power_limit_watts}
    more |= {"time_model": time_model, "model": model, "known": known, "work": work}
    more |= {"explain": "shap" if explain else None, "details": details}
    more |= {"board": board, "gpu": gpu}
    from wattcast.app.python.answers import Prediction
    from wattcast.app.python.code import file_name

    request = _request(**more, **_kernel(ptx, grid, block, **launch))
    answer = _prediction.predict(_predictor(registry), request)
    file = file_name(ptx, launch.get("cuda"))
    return Prediction.of(answer, request, registry, file)


def predict_many(
    ptx: Code | None = None,
    *,
    gpu: str,
    launches: Sequence[Mapping[str, Any]],
    cuda: str | Path | None = None,
    registry: bool = True,
    **options: Any,
) -> Batch:
    """Many launches of one kernel, as ``POST /predict/batch`` answers: symbolic unless
    ``analysis`` says otherwise.

    ``launches`` are ``{"grid": ..., "block": ..., "arguments": {...}}``; ``options`` are the other
    members of the request (``kernel``, ``loops``, ``clocks``, ``model``...). A launch that cannot
    run has a ``problem`` in its place. Raises what ``predict`` does for what all launches share.
    """
    from wattcast.app.python.code import sources
    from wattcast.app.python.many import Batch
    from wattcast.predictor import batch
    from wattcast.predictor.messages.batch import BatchRequest

    code = {one.member: one.text for one in sources(ptx, cuda)}
    body = {**code, "gpu": gpu, "launches": list(launches), **options}
    answer = batch.predict_many(_predictor(registry), BatchRequest.model_validate(body))
    return _typed(Batch, answer)


@overload
def compare(
    ptx: Code | None = None,
    new: None = None,
    *,
    gpus: Sequence[str],
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> Predictions: ...


@overload
def compare(
    ptx: Code,
    new: Code,
    *,
    gpus: Sequence[str],
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> CodeComparison: ...


def compare(
    ptx: Code | None = None,
    new: Code | None = None,
    *,
    gpus: Sequence[str],
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    model: ModelChoice | None = None,
    board: str | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> Predictions | CodeComparison:
    """``predict`` for several GPUs, in their order; with ``new``, old code beside new code.

    Without ``model`` each GPU's own default answers; ``physical`` where ``new`` is given, which
    sees what the code does. Raises as ``predict`` does.
    """
    from wattcast.app.python.answers import Prediction, Predictions
    from wattcast.app.python.many import CodeComparison
    from wattcast.predictor import compare as comparison
    from wattcast.predictor.messages.compare import CompareRequest

    if new is None:
        more = {"gpus": list(gpus), "model": model or "auto", "board": board}
        asked = _request(**more, **_kernel(ptx, grid, block, **launch))
        answer = _prediction.predict(_predictor(registry), asked)
        return Predictions(Prediction.of(one, asked, registry) for one in answer["predictions"])

    sides = {
        side: _kernel(code, grid, block, **launch) for side, code in (("old", ptx), ("new", new))
    }
    request = CompareRequest.model_validate(
        {**sides, "gpus": list(gpus), "model": model or "physical", "board": board}
    )
    return _typed(CodeComparison, comparison.compare(_predictor(registry), request))


def explain(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
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

    predictor = _predictor(registry)
    more = {"gpu": gpu, "model": model, "board": board}
    asked = {**more, **_kernel(ptx, grid, block, **launch)}
    answer = _prediction.predict(predictor, _request(**asked))
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
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
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
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
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
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    clocks: Mapping[str, float] | None = None,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> AdviceList:
    """What to change about a launch and what that would gain, as the service's advice.

    Raises as ``predict`` does, and AnalysisError where the kernel cannot be analysed.
    """
    from wattcast.app.python.answers import AdviceList
    from wattcast.predictor import advise as advice

    asked = {"gpu": gpu, "clocks": clocks, **_kernel(ptx, grid, block, **launch)}
    return _typed(AdviceList, advice.advise(_predictor(registry), _request(**asked)))


def hotspots(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    clocks: Mapping[str, float] | None = None,
    model: ModelChoice = "auto",
    rows: int = 200,
    registry: bool = True,
    **launch: Unpack[LaunchOptions],
) -> Hotspots:
    """Where a launch spends its energy and time, by basic block, PTX line and source line: the
    ``rows`` costliest of each.

    Raises as ``predict`` does, AnalysisError where the kernel cannot be analysed, and ServiceError
    where its energy cannot be predicted.
    """
    answer = predict(
        ptx, gpu=gpu, grid=grid, block=block, clocks=clocks, model=model, registry=registry,
        **launch,
    )  # fmt: skip
    return answer.hotspots(rows)


def fusion(
    launches: Sequence[Mapping[str, Any]], *, gpu: str, registry: bool = True
) -> list[dict[str, Any]]:
    """Elementwise passes worth fusing with the product of matrices before them.

    ``launches``, in the order in which they run, hold the arguments of ``predict``: ``ptx``,
    ``grid``, ``block``, ``arguments``... Each answer tells ``kernels``, the ``bytes`` of device
    memory spared and ``gain`` in seconds and joules. Raises as ``advise`` does.
    """
    from wattcast.predictor import advise as advice

    defaults = {"ptx": None, "block": None}
    asked = [{"gpu": gpu, **_kernel(**{**defaults, **one})} for one in launches]
    requests = [_request(**each) for each in asked]
    return advice.fusions(_predictor(registry), requests)


def application(
    trace: str | Path,
    *,
    gpu: str | None = None,
    code: Sequence[str | Path] = (),
    registry: bool = True,
    **options: Any,
) -> Application:
    """Energy of a whole application from its trace, as ``POST /applications`` answers.

    ``trace`` is the path of a SQLite export of Nsight Systems or of a JSON trace of the PyTorch
    profiler (also gzipped). ``code`` are folders and files that hold PTX of its kernels: Triton's
    and inductor's caches, PTX files, binaries. ``gpu`` is needed where the trace does not name a
    known one; ``options`` are other members of the request (``gpus``, ``clocks``, ``tariff``,
    ``grams_co2_per_kwh``, ``launches``...).
    Raises DataError for a file that is no such trace, GpuError, ClockError and ModelError.
    """
    from wattcast.app.python.many import Application
    from wattcast.predictor.application import application as run
    from wattcast.predictor.messages.application import ApplicationRequest
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    request = ApplicationRequest.model_validate({"gpu": gpu, **options})
    found = library([Path(each) for each in code])
    answer = run(_predictor(registry), read_trace(Path(trace)), request, found)
    return _typed(Application, answer)


def _request(**body: Any) -> Any:
    from wattcast.predictor.messages.predict import PredictRequest

    return PredictRequest.model_validate(body)


def _kernel(
    ptx: Code | None,
    grid: Dimensions | Grid,
    block: Dimensions | None,
    **launch: Unpack[LaunchOptions],
) -> dict[str, Any]:
    """The part of a request's body that tells code and launch."""
    from wattcast.app.python.code import request_of

    return request_of(ptx, grid, block, **launch)
