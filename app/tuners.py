"""Wattcast inside other people's tuners: Kernel Tuner's strategies and filters, Triton's autotuner,
choices of PyTorch's inductor, Helion's autotuner.

Of each only what its release hands to a callable is asked (Kernel Tuner 1.5, Triton 3.9, PyTorch
2.14, Helion 1.5); none of their modules is imported before it calls.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from wattcast.app.python import code, predictors
from wattcast.features.cuda import CompileError
from wattcast.features.errors import DataError, MissingExtraError, WattcastError
from wattcast.models.search import GAIN
from wattcast.predictor import Predictor, rank, triton, tuning_files
from wattcast.predictor.forecasts import Forecast, forecast, forecasts
from wattcast.predictor.tune import OBJECTIVES, Objective, Tuning

_OBJECTIVES: Mapping[str, Objective] = {
    "time": "time", "energy": "energy", "nvml_energy": "energy", "ps_energy": "energy",
    "pmt_energy": "energy",
}  # fmt: skip
"""Kernel Tuner's names of what can be predicted."""

AXES = ("grid_div_x", "grid_div_y", "grid_div_z")


class KernelTunerStrategy:
    """Give it to ``kernel_tuner.tune_kernel`` as ``strategy``: measures what predictions and the
    measurements so far make most promising, until one more is not worth it.

    ``gpu`` is the board that is tuned. Code, launch and tunable parameters are Kernel Tuner's own;
    ``arguments`` say more of them where that is known (``{"1": {"elements": 4096}}``). ``gain`` is
    the expected gain, as a share, below which it stops; ``strategy_options`` may hold
    ``max_fevals`` and ``time_limit`` as for all strategies. At most ``predictions`` are made before
    the first measurement; of a larger space the rest is told from them. ``keep`` is a file that
    remembers predictions, which ``workers`` processes make (default: the cores there are), or those
    of the Dask scheduler at ``dask``.

    Raises DataError for an objective that is no time or energy, and where no configuration can be
    predicted.
    """

    def __init__(
        self,
        gpu: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        gain: float = GAIN,
        predictions: int = 500,
        keep: Path | None = None,
        workers: int | None = None,
        dask: str | None = None,
        registry: bool = True,
        **options: Any,
    ) -> None:
        self._workers, self._dask, self._predictions = workers, dask, predictions
        self._gpu, self._arguments, self._gain = gpu, dict(arguments or {}), gain
        self._keep, self._registry, self._options = keep, registry, options

    def tune(self, searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
        """What Kernel Tuner calls; the results of all runs, in their order."""
        from kernel_tuner.strategies.common import CostFunc
        from kernel_tuner.util import StopCriterionReached

        objective = _objective(tuning_options.objective)
        if tuning_options.objective_higher_is_better[0]:
            raise DataError(f"{objective} is made least, not most")
        names = list(searchspace.tune_params)
        space = [dict(zip(names, row, strict=True)) for row in searchspace.list]
        problem = self._problem(runner, names)

        def predict(some: Sequence[Mapping[str, tuning_files.Value]]) -> Iterable[Forecast]:
            asked = [tuning_files.Configuration(row, None, None) for row in some]
            return forecasts(predictors.predictor(self._registry), problem, asked, self._keep, crew)

        tuning = Tuning((), objective, None, space, predict)
        with predictors.crew(self._workers, self._dask, self._registry) as crew:
            tuning.study(self._predictions, self._gain)
        crew = None
        cost = CostFunc(searchspace, tuning_options, runner, snap=False)
        try:
            while not tuning.finished(self._gain):
                proposed = tuning.propose()
                if not proposed:
                    break
                parameters = proposed[0]
                value = cost([parameters[name] for name in names], check_restrictions=False)
                good = isinstance(value, int | float) and 0 < value < 1e19
                # Kernel Tuner's times are milliseconds.
                found = float(value) * (1e-3 if objective == "time" else 1.0) if good else None
                seconds, joules = (found, None) if objective == "time" else (None, found)
                tuning.tell(parameters, seconds, joules)
        except StopCriterionReached:
            pass
        return list(cost.results)

    def _problem(self, runner: Any, names: Sequence[str]) -> rank.TuningProblem:
        options = runner.kernel_options
        source = runner.kernel_source
        size = options.problem_size
        sizes = (size,) if isinstance(size, int) else tuple(size)
        if not all(isinstance(each, int) for each in sizes):
            raise DataError("a problem size that is computed from parameters is not known ahead")
        block_names = tuple(options.block_size_names or ())[:3]
        divisors = tuple(
            _divisors(options.get(axis), (name,) if name in names else ())
            for axis, name in zip(AXES, block_names, strict=False)
        )
        request = {
            "cuda": source.get_kernel_string(),
            "kernel": source.kernel_name,
            "gpu": self._gpu,
            "launch": {"arguments": {**_known_arguments(options.arguments), **self._arguments}},
            **self._options,
        }
        return rank.TuningProblem(sizes, divisors, block_names, request)


def _objective(given: Any) -> Objective:
    names = [given] if isinstance(given, str) else list(given)
    if len(names) != 1 or names[0] not in _OBJECTIVES:
        raise DataError(
            f"objective {', '.join(map(str, names))}: expected one of {', '.join(_OBJECTIVES)}"
        )
    return _OBJECTIVES[names[0]]


def _divisors(given: Any, usual: tuple[str, ...]) -> tuple[str, ...]:
    if given is None:
        return usual
    found = [given] if isinstance(given, str | int) else list(given) if given else []
    if not all(isinstance(each, str | int) for each in found):
        raise DataError("grid divisors that are functions are not known ahead")
    return tuple(str(each) for each in found)


def _known_arguments(given: Sequence[Any] | None) -> dict[str, Any]:
    """Numbers as they are, arrays by their size. NumPy's, CuPy's and Torch's know both."""
    found = {str(place): code.argument(each) for place, each in enumerate(given or ())}
    return {place: each for place, each in found.items() if isinstance(each, int | float | dict)}


def predicted_best(
    space: Sequence[Forecast], share: float, objective: Objective = "time"
) -> Callable[[Mapping[str, tuning_files.Value]], bool]:
    """A restriction for Kernel Tuner: keeps the ``share`` of configurations that are predicted
    best, and none that cannot be predicted. ``space`` is what ``predictor.forecasts`` makes.

    Raises DataError for a share outside 0 to 1, and where none can be predicted.
    """
    if not 0 < share <= 1:
        raise DataError(f"share {share}: expected more than 0 and at most 1")
    tuning = Tuning(space, objective)
    order = tuning.search.predicted.argsort(kind="stable")
    kept = {int(place) for place in order[: max(1, round(share * order.size))]}

    def keeps(parameters: Mapping[str, tuning_files.Value]) -> bool:
        return tuning.place(parameters) in kept

    return keeps


def triton_prune(
    gpu: str,
    keep: int | float = 5,
    *,
    by: Objective = "time",
    kernel: Any = None,
    registry: bool = True,
    **options: Any,
) -> Callable[..., list[Any]]:
    """What ``@triton.autotune`` takes as ``early_config_prune`` in ``prune_configs_by``: compiles
    every configuration for ``gpu``, which need not be there, and lets those through that are
    predicted best.

    ``keep`` is how many, or a share of them if it is a ``float`` up to 1, as Triton's ``top_k``.
    One that cannot be predicted is let through as well, with a warning. Types, sizes and the grid
    are those of the launch. Triton does not tell the function which kernel it is asked for: it is
    looked up in the autotuner that calls; pass ``kernel`` to call it otherwise. ``options`` are
    more fields of a prediction (``clocks``).

    Raises DataError for a ``keep`` that is none; when it is called, for a kernel that is not found,
    and GpuError for an unknown GPU.
    """
    _checked(keep)
    asked = _Asked(gpu, registry, options)

    def prune(configs: Sequence[Any], named_args: Mapping[str, Any], **given: Any) -> list[Any]:
        tuned, launch = _asked_for(kernel, "triton_prune"), {**named_args, **given}
        rows = asked.forecasts([asked.request(tuned, config, launch) for config in configs])
        return _kept(configs, rows, keep, by)

    return prune


def _checked(keep: float) -> None:
    """Raises DataError for a ``keep`` that is none."""
    share = isinstance(keep, float)
    if isinstance(keep, bool) or not (0 < keep <= 1 if share else keep >= 1):
        raise DataError(f"keep {keep!r}: expected how many, or a share above 0 and up to 1.0")


def _kept(
    configs: Sequence[Any], rows: Sequence[Forecast | None], keep: float, by: Objective
) -> list[Any]:
    """Those predicted best, the best first, then those that cannot be predicted, with a warning;
    ``None`` is for what nobody meant to predict."""
    told = [row for row in rows if row is not None and row.problem is not None]
    if told:
        warnings.warn(
            f"{len(told)} of {len(rows)} configurations cannot be predicted and are kept, the "
            f"first: {told[0].parameters}: {told[0].problem}",
            stacklevel=3,
        )
    known = {
        at: OBJECTIVES[by][1](row.seconds, row.joules) or 0.0
        for at, row in enumerate(rows)
        if row is not None and row.problem is None
    }
    order = sorted(known, key=known.__getitem__)
    share = isinstance(keep, float)
    best = order[: max(1, int(keep * len(order))) if share else int(keep)]
    return [configs[at] for at in best + [at for at in range(len(rows)) if at not in known]]


def triton_model(
    gpu: str, *, by: Objective = "time", kernel: Any = None, registry: bool = True, **options: Any
) -> Callable[..., float]:
    """What ``@triton.autotune`` takes as ``perf_model`` beside ``top_k`` in ``prune_configs_by``:
    predicted seconds of one configuration (``by``: joules, or joules times seconds) on ``gpu``,
    which need not be there; infinite where it cannot be predicted. The rest as ``triton_prune``.
    """

    def model(**given: Any) -> float:
        tuned = _asked_for(kernel, "triton_model")
        asked = _Asked(gpu, registry, options)
        (row,) = asked.forecasts([asked.request(tuned, {}, given)])
        value = None if row.problem else OBJECTIVES[by][1](row.seconds, row.joules)
        return inf if value is None else value

    return model


def _asked_for(kernel: Any, name: str) -> Any:
    """The kernel under its autotuner: the one given, or that of the autotuner whose
    ``prune_configs`` is two frames up (triton/runtime/autotuner.py). Raises DataError."""
    found: Any = sys._getframe(2).f_locals.get("self") if kernel is None else kernel
    if kernel is None and not hasattr(found, "fn"):
        raise DataError(f"no autotuner calls this: pass {name}(..., kernel=the_kernel)")
    while hasattr(found, "configs"):
        found = found.fn
    return found


class _Asked(NamedTuple):
    """The board, whether models of the registry answer for it, and more fields of predictions."""

    gpu: str
    registry: bool
    options: Mapping[str, Any]

    def request(self, kernel: Any, config: Any, given: Mapping[str, Any]) -> _Request:
        """What to ask of one configuration. Raises GpuError and MissingExtraError."""
        profile = predictors.predictor(self.registry).gpus.load(self.gpu)
        # Under heuristics or an autotuner, as a kernel with this configuration alone.
        alone = SimpleNamespace(fn=kernel, configs=[config])
        grid = given.get("grid", 1)
        try:
            ((configuration, request),) = triton.launched(alone, profile, grid, (), given)
            if isinstance(request, CompileError):
                raise request
        except MissingExtraError:
            raise
        except WattcastError as error:
            return Forecast({"config": str(config)}, problem=error.detail, kind=error.slug)
        asked = {**self.options, "gpu": self.gpu, **request}
        return dict(configuration.parameters), asked

    def forecasts(self, asked: Sequence[_Request]) -> list[Forecast]:
        """Those of several configurations, in their order."""
        with predictors.crew(registry=self.registry, variants=len(asked)) as crew:
            crew = crew or rank.alone(predictors.predictor(self.registry))
            told = dict(crew.map(partial(_forecast, crew.predictor), asked))
        return [told[at] for at in range(len(asked))]


_Request = Forecast | tuple[dict[str, Any], dict[str, Any]]
"""Parameters and a prediction's request, or why there is none."""


def _forecast(make: Callable[[], Predictor], asked: _Request) -> Forecast:
    if isinstance(asked, Forecast):
        return asked
    parameters, request = asked
    return replace(forecast(make(), request), parameters=parameters)


# --- PyTorch's inductor, Helion ------------------------------------------------------------------


def inductor_prune(
    gpu: str,
    keep: float = 5,
    *,
    by: Objective = "time",
    registry: bool = True,
    **options: Any,
) -> Callable[[Sequence[Any]], list[Any]]:
    """What ``torch._inductor.select_algorithm.add_preprocessing_fn`` takes: of the choices for one
    operator (``max_autotune``), Triton's templates are compiled for ``gpu`` and those let through
    that are predicted best. Kernels of libraries are let through and measured beside them.
    ``keep``, ``by`` and ``options`` as for ``triton_prune``; of PyTorch 2.7 on.

    Raises DataError for a ``keep`` that is none; when it is called, GpuError for an unknown GPU.
    """
    _checked(keep)

    def prune(choices: Sequence[Any]) -> list[Any]:
        asked = _Asked(gpu, registry, options)
        known = {
            at: _inductor_request(choice.bmreq, asked)
            for at, choice in enumerate(choices)
            if hasattr(getattr(choice, "bmreq", None), "module_cache_key")
        }
        rows = dict(zip(known, asked.forecasts([*known.values()]), strict=True))
        return _kept(choices, [rows.get(at) for at in range(len(choices))], keep, by)

    return prune


def _inductor_request(asked: Any, of: _Asked) -> _Request:
    """What to ask of a ``TritonBenchmarkRequest`` (torch/_inductor/autotune_process.py): the
    module with the kernel, metadata of its arrays, and numbers, of which the last are the grid."""
    from torch._inductor.codecache import PyCodeCache

    module = PyCodeCache.load_by_key_path(asked.module_cache_key, asked.module_path)
    tuned = getattr(module, asked.kernel_name)
    numbers = list(asked.extra_args)
    own = len(numbers) - len(tuned.inductor_meta.get("extra_launcher_args", ()))
    arrays = [
        SimpleNamespace(dtype=each.dtype, shape=each.sizes)
        for each in (*asked.input_tensor_meta, asked.output_tensor_meta)
    ]
    named = dict(zip(tuned.fn.arg_names, [*arrays, *numbers[:own]], strict=False))
    config = {"num_warps": asked.num_warps, "num_stages": asked.num_stages}
    given = {**named, "grid": tuple(int(each) for each in numbers[own:]) or 1}
    return of.request(tuned.fn, config, given)


def helion_autotuner(
    gpu: str,
    keep: int = 1,
    *,
    tried: int = 50,
    by: Objective = "time",
    registry: bool = True,
    **options: Any,
) -> Callable[..., Any]:
    """What ``@helion.kernel`` takes as ``autotuner_fn``: predicts ``tried`` random configurations
    of Helion's own space, its default among them, on ``gpu``. The best is taken unmeasured; with
    ``keep`` above 1 Helion measures so many of the best (its ``FiniteSearch``). The rest as
    ``triton_prune``.

    Raises DataError for a ``keep`` that is none, and, when Helion asks, where no configuration can
    be predicted.
    """
    _checked(keep)

    def autotuner(bound: Any, args: Sequence[Any], **_: Any) -> Any:
        def autotune(*, skip_cache: bool = False) -> Any:
            configs = bound.config_spec.create_config_generation().random_population(tried)
            asked = _Asked(gpu, registry, options)
            rows = [_helion_forecast(bound, each, args, asked) for each in configs]
            known = [at for at, row in enumerate(rows) if row.problem is None]
            if not known:
                raise DataError(f"no configuration can be predicted: {rows[0].problem}")
            best = _kept([configs[at] for at in known], [rows[at] for at in known], keep, by)
            if len(best) == 1:
                return best[0]
            from helion.autotuner import FiniteSearch

            return FiniteSearch(bound, args, best).autotune(skip_cache=skip_cache)

        return SimpleNamespace(autotune=autotune)

    return autotuner


def _helion_forecast(bound: Any, config: Any, args: Sequence[Any], asked: _Asked) -> Forecast:
    """The forecast of all launches of a configuration. Helion's generated function hands them to
    its keyword ``_launcher``, which here launches nothing."""
    rows: list[Forecast] = []

    def launch(
        kernel: Any, grid: Any, *given: Any, num_warps: int, num_stages: int, **_: Any
    ) -> None:
        named = {**dict(zip(kernel.arg_names, given, strict=False)), "grid": grid}
        chosen = {"num_warps": num_warps, "num_stages": num_stages}
        rows.extend(asked.forecasts([asked.request(kernel, chosen, named)]))

    try:
        bound.compile_config(config, allow_print=False)(*args, _launcher=launch)
    except WattcastError:
        raise
    except Exception as error:  # Helion's and PyTorch's, of whatever kind
        return Forecast({"config": str(config)}, problem=f"Helion does not compile it: {error}")
    told = next((row for row in rows if row.problem is not None), None)
    if told is not None or not rows:
        return told or Forecast({"config": str(config)}, problem="it launches nothing")
    seconds, joules = sum(row.seconds for row in rows), sum(row.joules for row in rows)
    return replace(rows[0], seconds=seconds, joules=joules)
