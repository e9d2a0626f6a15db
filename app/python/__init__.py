"""Power, time and energy of a CUDA kernel from its PTX or CUDA source, in one call.

    >>> import wattcast
    >>> answer = wattcast.predict("kernel.ptx", gpu="tesla-v100", grid=4096, block=256)
    >>> answer.power.watts, answer.time.seconds, answer.energy.joules

``predict_many`` asks about many launches of one kernel; ``compare`` about several GPUs, or how new
code differs from old; ``sweep`` about launch shapes, ``dvfs`` about clocks; ``hotspots`` where the
energy goes, ``advise`` and ``fusion`` what to change; ``explain`` what each feature adds, for
shap's plots; ``vector`` for the features a model sees, ``analyze`` for the analysis itself;
``rank_triton`` for the configurations of a Triton kernel, ``estimate`` for its launches;
``application`` for the energy of all kernels in a trace; ``fleet`` for which jobs go on which
boards; ``operator`` and ``language_model`` for
that of library kernels and whole models; ``gpus`` lists what can be asked about.

Code is PTX or CUDA text, the path of a file, or a kernel of Triton, torch's inductor, Numba or CuPy
(``app/python/code.py`` tells which objects). Answers are the service's messages: a notebook shows
them as cards, ``to_frame()`` makes them pandas tables, and ``plot()`` draws them. Nothing is
stored; GPU profiles and models of ``WATTCAST_HOME`` count, and models that were promoted in the
database of a service there (or of ``WATTCAST_DATABASE_URL``), unless ``registry=False`` or
``WATTCAST_REGISTRY=off``.
Every error is a ``wattcast.features.errors.WattcastError``; for an argument of the wrong kind its
``RequestError``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from wattcast.app.python.answers import Prediction, Predictions
from wattcast.app.python.answers import estimate as estimate
from wattcast.app.python.answers import gpus as gpus
from wattcast.app.python.answers import rank_triton as rank_triton
from wattcast.app.python.code import Blocks, Code, Threads, file_name, request_of, sources
from wattcast.app.python.predictors import checked as _checked
from wattcast.app.python.predictors import predictor as _predictor
from wattcast.app.python.predictors import takes as _takes
from wattcast.features import analysis, errors
from wattcast.predictor import Predictor, messages, parts
from wattcast.predictor.answering import answer
from wattcast.predictor.messages import compare as comparing
from wattcast.predictor.messages.advise import AdviceAnswer, Fusion
from wattcast.predictor.messages.analyze import AnalyzeRequest, FeaturesAnswer, FeaturesRequest
from wattcast.predictor.messages.dvfs import CountedRequest, DvfsAnswers, DvfsRequest
from wattcast.predictor.messages.explain import HotspotsAnswer
from wattcast.predictor.messages.language_model import (
    LanguageModelDvfsRequest,
    LanguageModelRequest,
)
from wattcast.predictor.messages.operators import OperatorDvfsRequest, OperatorRequest
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest
from wattcast.predictor.messages.sweep import BatchAnswer, BatchRequest, SweepAnswer, SweepRequest
from wattcast.predictor.predict import predict as _predict
from wattcast.predictor.predict import predict_one as _predict_one

if TYPE_CHECKING:  # and below where needed: they are a tenth of the time to import everything
    import shap

    from wattcast.predictor.messages.application import ApplicationAnswer
    from wattcast.predictor.messages.fleet import FleetAnswer
    from wattcast.predictor.messages.language_model import LanguageModelAnswer

Request = TypeVar("Request", bound=messages.Message)


@_takes(PredictRequest)
def predict(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Blocks,
    block: Threads = None,
    explain: bool = False,
    registry: bool = True,
    **options: Any,
) -> Prediction:
    """Watts, seconds and joules of one launch on one GPU, as ``POST /predict`` answers.

    ``ptx`` is PTX or CUDA text, the path of a file, or a compiled kernel. A kernel of Triton tells
    ``block``, shared memory and name itself, and its ``grid`` counts programs. ``explain`` adds
    SHAP contributions in watts; ``registry=False`` leaves promoted models out.
    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError or
    ModelError, ClockError for clocks the GPU does not run at, and StoreError where the database of
    promoted models is there but cannot be read.
    """

    shap = "shap" if explain else None
    request = _request(PredictRequest, ptx, grid, block, gpu=gpu, explain=shap, **options)
    file = file_name(ptx, options.get("cuda"))
    return Prediction.of(_predict_one(_predictor(registry), request), request, registry, file)


def operator(
    name: str,
    *,
    gpu: str,
    framework: str | None = None,
    power_limit_watts: float | None = None,
    explain: bool = False,
    registry: bool = True,
    **shape: Any,
) -> Prediction:
    """Watts, seconds and joules of one call of a library operator, as ``POST /predict`` answers.

    ``name`` and ``shape`` are the members of ``operator`` there: ``operator("gemm", m=4096, n=4096,
    k=4096, dtype="bf16", gpu="h100")``. Its ``sweep`` and ``compare`` ask for other shapes. Raises
    GpuError, ClockError for a limit the board cannot be
    set to, LaunchError where operands do not fit in its memory, and ModelError.
    """
    more = {"framework": framework, "power_limit_watts": power_limit_watts}
    request = _checked(OperatorRequest,
        {"operator": {"name": name, **shape}, "gpu": gpu, **more,
         "explain": "shap" if explain else None}
    )  # fmt: skip
    found = answer(_predictor(registry), request)
    assert isinstance(found, PredictAnswer)  # one GPU was asked
    return Prediction.of(found, request, registry)


def operators(
    calls: Sequence[Mapping[str, Any]],
    *,
    gpu: str,
    framework: str | None = None,
    power_limit_watts: float | None = None,
    registry: bool = True,
) -> list[dict[str, Any]]:
    """Answers to many calls of operators at once, as plain data in the order asked.

    Ten thousand take about a second. A call that has no answer raises as ``operator`` does.
    """
    from wattcast.predictor.operators import predicted
    from wattcast.predictor.parts.operators import Asked

    opened = _predictor(registry)
    more = {"framework": framework, "power_limit_watts": power_limit_watts, "gpu": gpu}
    requests = [_checked(OperatorRequest, {"operator": dict(c), **more}) for c in calls]
    profile = opened.gpus.load(gpu)
    found = [*predicted(opened, [Asked(one.operator, profile, one) for one in requests])]
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found  # type: ignore[return-value]  # errors are raised above


def language_model(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    gpu: str,
    batch: int = 1,
    prompt: int = 1024,
    generate: int = 256,
    registry: bool = True,
    **options: Any,
) -> LanguageModelAnswer:
    """Time and energy of a language model before it runs, as ``POST /language-models`` answers.

    ``config`` holds the fields of a Hugging Face ``config.json``, or is such a file or its folder.
    ``options`` are the other members of the request: ``dtype``, ``kv_dtype``, ``tensor_parallel``,
    ``power_limit_watts``, ``train``, ``overhead_share``, ``batches``, ``power_limits_watts``.
    Raises ModelConfigError (its ``field`` in the context), LaunchError for what does not fit in
    memory, and GpuError.
    """
    if not isinstance(config, Mapping):
        from wattcast.app.python.code import read_config

        config = read_config(Path(config))
    more = {"batch": batch, "prompt": prompt, "generate": generate, **options}
    request = _checked(LanguageModelRequest, {"config": config, "gpu": gpu, **more})
    return answer(_predictor(registry), request)


@_takes(BatchRequest)
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

    ``launches`` are ``{"grid": ..., "block": ..., "arguments": {...}}``. A launch that cannot run
    has a ``problem`` in its place. Raises what ``predict`` does for what all launches share.
    """
    code = {each.member: each.text for each in sources(ptx, cuda)}
    body = {**code, "gpu": gpu, "launches": list(launches), **options}
    return answer(_predictor(registry), _checked(BatchRequest, body))


@overload
def compare(
    ptx: Code | None = None,
    new: None = None,
    *,
    gpus: Sequence[str],
    grid: Blocks,
    block: Threads = None,
    **options: Any,
) -> Predictions: ...


@overload
def compare(
    ptx: Code,
    new: Code,
    *,
    gpus: Sequence[str],
    grid: Blocks,
    block: Threads = None,
    **options: Any,
) -> comparing.CompareAnswer: ...


@_takes(comparing.CompareRequest, comparing.ComparedCode)
def compare(
    ptx: Code | None = None,
    new: Code | None = None,
    *,
    gpus: Sequence[str],
    grid: Blocks,
    block: Threads = None,
    model: messages.ModelChoice | None = None,
    registry: bool = True,
    **options: Any,
) -> Predictions | comparing.CompareAnswer:
    """``predict`` for several GPUs, in their order; with ``new``, old code beside new code.

    Without ``model`` each GPU's own default answers; ``physical`` where ``new`` is given, which
    sees what the code does. Raises as ``predict`` does.
    """
    if new is None:
        several = {"gpus": list(gpus), "model": model or "auto", **options}
        request = _request(PredictRequest, ptx, grid, block, **several)
        answers = _predict(_predictor(registry), request)
        assert isinstance(answers, PredictAnswers)
        return Predictions(Prediction.of(each, request, registry) for each in answers.predictions)

    beside = {
        name: options.pop(name) for name in comparing.CompareRequest.model_fields if name in options
    }
    sides = {
        side: request_of(code, grid, block, **options)
        for side, code in (("old", ptx), ("new", new))
    }
    body = {**sides, "gpus": list(gpus), "model": model or "physical", **beside}
    return answer(_predictor(registry), _checked(comparing.CompareRequest, body))


@_takes(comparing.JudgeRequest, comparing.ComparedCode)
def judge(
    reference: Code,
    candidate: Code,
    *,
    gpu: str,
    grid: Blocks,
    block: Threads = None,
    new: Mapping[str, Any] | None = None,
    registry: bool = True,
    **options: Any,
) -> comparing.JudgeAnswer:
    """Whether a candidate takes less time and energy than its reference, as ``POST /judge``
    answers; ``new`` is what of the candidate's launch differs: ``{"block": 128}``.

    Raises as ``predict`` does, and AnalysisError for code that is not known to end.
    """
    beside = {
        name: options.pop(name) for name in comparing.JudgeRequest.model_fields if name in options
    }
    launch = {"grid": grid, "block": block, **options}
    sides = {
        "reference": request_of(reference, **launch),
        "candidate": request_of(candidate, **{**launch, **(new or {})}),
    }
    body = {**sides, "gpu": gpu, **beside}
    return answer(_predictor(registry), _checked(comparing.JudgeRequest, body))


@_takes(PredictRequest)
def explain(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Blocks,
    block: Threads = None,
    target: Literal["power", "time"] = "power",
    registry: bool = True,
    **options: Any,
) -> shap.Explanation:
    """What each feature adds to the watts (or, ``target="time"``, each part to the seconds).

    The answer is shap's own class: ``shap.plots.waterfall(wattcast.explain(...))`` draws it. Its
    values and base value add up to the prediction. Raises as ``predict`` does, and ServiceError
    where there is nothing to explain; needs the extra ``explain``.
    """
    try:
        import shap
    except ImportError as error:
        raise errors.MissingExtraError("shap", "explain") from error
    from wattcast.predictor.explain import explained

    launch = {"gpu": gpu, "registry": registry, **options}
    predictor, request = _asked(PredictRequest, ptx, grid, block, **launch)
    answer = explained(predictor, _predict_one(predictor, request), "shap", target).data()
    unit = "watts" if target == "power" else "seconds"
    contributions = answer["contributions"]
    values = [math.nan if part["value"] is None else part["value"] for part in contributions]
    return shap.Explanation(
        values=np.array([part[unit] for part in contributions]),
        base_values=answer[f"base_{unit}"],
        data=np.array(values, dtype=np.float64),
        feature_names=[part["feature"] for part in contributions],
    )


@_takes(FeaturesRequest)
def vector(
    ptx: Code | None = None, *, gpu: str, grid: Blocks, block: Threads = None, **options: Any
) -> FeaturesAnswer:
    """The feature vector of a launch, as ``POST /features`` answers.

    Raises as ``predict`` does, and SchemaError.
    """
    return answer(*_asked(FeaturesRequest, ptx, grid, block, gpu=gpu, **options))


@_takes(AnalyzeRequest)
def analyze(
    ptx: Code | None = None, *, gpu: str, grid: Blocks, block: Threads = None, **options: Any
) -> analysis.KernelAnalysis:
    """The analysis of a launch: loops, accesses, mix, registers, occupancy, activity.

    Raises as ``predict`` does.
    """
    predictor, request = _asked(AnalyzeRequest, ptx, grid, block, gpu=gpu, **options)
    profile = predictor.gpus.load(gpu)
    source = predictor.sources.read(request, profile)
    return parts.analysed(predictor, request, source, profile, ptxas=True)


@_takes(PredictRequest)
def advise(
    ptx: Code | None = None, *, gpu: str, grid: Blocks, block: Threads = None, **options: Any
) -> AdviceAnswer:
    """What to change about a launch and what that would gain, as the service's advice.

    Raises as ``predict`` does, and AnalysisError where the kernel cannot be analysed.
    """
    from wattcast.predictor import advise as advice

    return advice.advise(*_asked(PredictRequest, ptx, grid, block, gpu=gpu, **options))


@_takes(PredictRequest)
def hotspots(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Blocks,
    block: Threads = None,
    rows: int = 200,
    registry: bool = True,
    **options: Any,
) -> HotspotsAnswer:
    """Where a launch spends its energy and time, by basic block, PTX line and source line: the
    ``rows`` costliest of each.

    Raises as ``predict`` does, AnalysisError where the kernel cannot be analysed, and ServiceError
    where its energy cannot be predicted.
    """
    answer = predict(ptx, gpu=gpu, grid=grid, block=block, registry=registry, **options)
    return answer.hotspots(rows)


@_takes(SweepRequest)
def sweep(
    ptx: Code | None = None,
    *,
    gpu: str | Sequence[str],
    grid: Blocks,
    block: Threads = None,
    registry: bool = True,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> SweepAnswer:
    """A kernel at many launch shapes, as ``POST /sweep`` answers; ``grid`` and ``block`` are the
    reference, and every shape does its work.

    ``gpu`` is one or several; ``blocks``, ``grids`` and ``registers`` are what to try (default:
    common blocks). ``defines`` are macros of CUDA source with the values to try, such as
    ``{"TILE": [8, 16, 32]}``: each combination is compiled, and launched as ``grid_formula`` and
    ``block_formula`` tell, such as ``["ceil(n / TILE)"]``. ``options`` are members of the request
    as a mapping. Raises as ``predict`` does, ServiceError for too many shapes, and ConstraintError
    where no shape keeps to the constraints.
    """
    boards = {"gpu": gpu} if isinstance(gpu, str) else {"gpus": list(gpu)}
    given = {**boards, **(options or {}), **others}
    return answer(_predictor(registry), _request(SweepRequest, ptx, grid, block, **given))


@_takes(CountedRequest, LanguageModelDvfsRequest, DvfsRequest)
def dvfs(
    ptx: Code | None = None,
    *,
    gpu: str | None = None,
    grid: Blocks | None = None,
    block: Threads = None,
    clocks: Any = "grid",
    operator: Mapping[str, Any] | None = None,
    language_model: Mapping[str, Any] | None = None,
    counters: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    trace: str | os.PathLike[str] | None = None,
    code: Sequence[str | os.PathLike[str]] = (),
    registry: bool = True,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> DvfsAnswers:
    """A kernel at many clocks and power limits, as ``POST /dvfs`` answers.

    ``clocks`` are a pair ``{"core_mhz": ..., "memory_mhz": ...}``, a list of pairs, a range, or
    ``"grid"``: all that the GPU lists. ``operator={"name": "gemm", "m": 4096, ...}`` in the place
    of code and launch is answered under power limits: ``power_limit_watts``, or nine from half the
    board's limit; so is ``language_model={"config": ..., "batch": 8}``, whose config may be a path.
    ``counters`` are a profiler's file, or values by name or members of the request as a mapping.
    ``trace`` is a file as ``application`` takes it, with its ``code``; ``clocks`` are then those it
    ran at. ``options`` are members of the request as a mapping.
    Raises as ``predict`` does, what the other sources' functions raise, and ConstraintError where
    no pair keeps to the constraints.
    """
    given = {"gpu": gpu, "clocks": clocks, **(options or {}), **others}
    sources = {"operator": operator, "language_model": language_model, "counters": counters}
    if not any(each is not None for each in (*sources.values(), trace)):
        return answer(_predictor(registry), _request(DvfsRequest, ptx, grid, block, **given))
    given |= {"ptx": ptx, "grid": grid, "block": block, **sources}
    given = {name: each for name, each in given.items() if each not in (None, "grid")}
    return _clocked(given, trace, code, _predictor(registry))


def _clocked(
    given: dict[str, Any],
    trace: str | os.PathLike[str] | None,
    code: Sequence[str | os.PathLike[str]],
    use: Predictor,
) -> DvfsAnswers:
    """``dvfs`` of anything but code."""
    from wattcast.app.python.code import read_config
    from wattcast.predictor.application import dvfs_of_trace
    from wattcast.predictor.messages.application import TraceClocks
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    if trace is not None:
        request = _checked(TraceClocks, given)
        found = library([Path(each) for each in code])
        return dvfs_of_trace(use, read_trace(Path(trace)), request, found)
    if (counters := given.get("counters")) is not None:
        if not isinstance(counters, Mapping):
            counters = {"profile": Path(counters).read_text("utf-8-sig")}
        elif not {"values", "profile"} & counters.keys():
            counters = {"values": counters}
        given["counters"] = counters
        return answer(use, _checked(CountedRequest, given))
    if (work := given.get("language_model")) is not None:
        config = work.get("config")
        if isinstance(config, str | os.PathLike):
            given["language_model"] = {**work, "config": read_config(Path(config))}
        return answer(use, _checked(LanguageModelDvfsRequest, given))
    return answer(use, _checked(OperatorDvfsRequest, given))


def fleet(
    jobs: str | os.PathLike[str] | Sequence[Mapping[str, Any]],
    *,
    boards: Mapping[str, int] | None = None,
    registry: bool = True,
    **options: Any,
) -> FleetAnswer:
    """Which jobs go on which boards, at which power limits, as ``POST /fleet`` answers.

    ``jobs`` is a TOML file, or a list of jobs: a ``name``, ``runs``, and a ``kernel`` (its ``file``
    or ``ptx`` or ``cuda``, and ``launch``), an ``operator`` or a ``model`` (whose ``config`` may be
    a path). ``boards`` is ``{"h100-sxm5": 8}``; ``options`` are ``power_cap_watts``,
    ``makespan_seconds`` and ``limits``.
    Raises ConstraintError where no placement keeps to them, and what predictions raise for a job
    that runs on none of the boards.
    """
    from wattcast.app.python.code import placed_jobs, read_jobs
    from wattcast.predictor.messages.fleet import FleetRequest

    if isinstance(jobs, str | os.PathLike):
        body = read_jobs(Path(jobs))
    else:
        body = {"jobs": placed_jobs(jobs)}
    more = {**options, **({} if boards is None else {"boards": dict(boards)})}
    return answer(_predictor(registry), _checked(FleetRequest, {**body, **more}))


def fusion(
    launches: Sequence[Mapping[str, Any]], *, gpu: str, registry: bool = True
) -> list[Fusion]:
    """Elementwise passes worth fusing with the product of matrices or the pass before them.

    ``launches``, in the order in which they run, hold the arguments of ``predict``: ``ptx``,
    ``grid``, ``block``, ``arguments``... Each answer tells ``kernels``, the ``bytes`` of device
    memory spared and ``gain`` in seconds and joules. Raises as ``advise`` does.
    """
    from wattcast.predictor import advise as advice

    requests = []
    for each in launches:
        options = {"gpu": gpu, "ptx": None, "block": None, **each}
        code, grid, block = (options.pop(name) for name in ("ptx", "grid", "block"))
        requests.append(_request(PredictRequest, code, grid, block, **options))
    return advice.fusions(_predictor(registry), requests)


def application(
    trace: str | Path,
    *,
    gpu: str | None = None,
    code: Sequence[str | Path] = (),
    energy: str | Path | None = None,
    registry: bool = True,
    **options: Any,
) -> ApplicationAnswer:
    """Energy of a whole application from its trace, as ``POST /applications`` answers.

    ``trace`` is the path of a SQLite export of Nsight Systems or of a JSON trace of the PyTorch
    profiler (also gzipped). ``code`` are folders and files that hold PTX of its kernels: Triton's
    and inductor's caches, PTX files, binaries. ``energy`` is a log of DCGM or Slurm whose joules
    stand beside the predicted ones (``measured``). ``gpu`` is needed where the trace does not name
    a known one; ``options`` are other members of the request (``gpus``, ``clocks``, ``tariff``,
    ``grams_co2_per_kwh``, ``launches``...).
    Raises DataError for a file that is no such trace, GpuError, ClockError and ModelError.
    """
    from wattcast.predictor.application import application as run
    from wattcast.predictor.messages.application import ApplicationRequest
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    request = _checked(ApplicationRequest, {"gpu": gpu, **options})
    found = library([Path(each) for each in code])
    answer = run(_predictor(registry), read_trace(Path(trace)), request, found)
    if energy is None:
        return answer
    from wattcast.predictor.traces.energy import compared

    return compared(answer, Path(energy).read_text("utf-8", "replace"))


def _request(kind: type[Request], *launched: Any, **options: Any) -> Request:
    """A request about code and its launch, as ``request_of`` takes them."""

    return _checked(kind, request_of(*launched, **options))


def _asked(
    kind: type[Request], *launched: Any, registry: bool = True, **options: Any
) -> tuple[Predictor, Request]:
    """Whom to ask, and what."""
    return _predictor(registry), _request(kind, *launched, **options)
