"""Wattcast inside other people's tuners: Kernel Tuner's strategies and filters, Triton's autotuner.

Kernel Tuner is asked for nothing but what its release 1.5 hands to a strategy; none of its modules
is imported before it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattcast.app.python.asked import crew as _crew
from wattcast.app.python.asked import predictor as _predictor
from wattcast.features.errors import DataError
from wattcast.models.search import GAIN

if TYPE_CHECKING:
    from wattcast.predictor.forecasts import Forecast
    from wattcast.predictor.rank import TuningProblem
    from wattcast.predictor.tune import Objective
    from wattcast.predictor.tuning_files import Value

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
    ``max_fevals`` and ``time_limit`` as for all strategies. ``keep`` is a file that remembers
    predictions, which ``workers`` processes make (default: the cores there are), or those of the
    Dask scheduler at ``dask``.

    Raises DataError for an objective that is no time or energy, and where no configuration can be
    predicted.
    """

    def __init__(
        self,
        gpu: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        gain: float = GAIN,
        keep: Path | None = None,
        workers: int | None = None,
        dask: str | None = None,
        registry: bool = True,
        **options: Any,
    ) -> None:
        self._workers, self._dask = workers, dask
        self._gpu, self._arguments, self._gain = gpu, dict(arguments or {}), gain
        self._keep, self._registry, self._options = keep, registry, options

    def tune(self, searchspace: Any, runner: Any, tuning_options: Any) -> list[dict[str, Any]]:
        """What Kernel Tuner calls; the results of all runs, in their order."""
        from kernel_tuner.strategies.common import CostFunc
        from kernel_tuner.util import StopCriterionReached

        from wattcast.predictor.forecasts import forecasts
        from wattcast.predictor.tune import Tuning
        from wattcast.predictor.tuning_files import Configuration

        objective = _objective(tuning_options.objective)
        if tuning_options.objective_higher_is_better[0]:
            raise DataError(f"{objective} is made least, not most")
        names = list(searchspace.tune_params)
        space = [dict(zip(names, row, strict=True)) for row in searchspace.list]
        problem = self._problem(runner, names)
        asked = [Configuration(row, None, None) for row in space]
        with _crew(self._workers, self._dask, self._registry) as crew:
            made = forecasts(_predictor(self._registry), problem, asked, self._keep, crew)
            tuning = Tuning(made, objective)
        cost = CostFunc(searchspace, tuning_options, runner, snap=False)
        try:
            while not tuning.search.finished(self._gain):
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

    def _problem(self, runner: Any, names: Sequence[str]) -> TuningProblem:
        from wattcast.predictor.rank import TuningProblem

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
        return TuningProblem(sizes, divisors, block_names, request)


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
    found: dict[str, Any] = {}
    for place, each in enumerate(given or ()):
        if hasattr(each, "shape") and len(each.shape):
            elements = 1
            for extent in each.shape:
                elements *= int(extent)
            found[str(place)] = {"elements": elements}
        elif hasattr(each, "item"):
            found[str(place)] = each.item()
        elif isinstance(each, int | float):
            found[str(place)] = each
    return found


def predicted_best(
    space: Sequence[Forecast], share: float, objective: Objective = "time"
) -> Callable[[Mapping[str, Value]], bool]:
    """A restriction for Kernel Tuner: keeps the ``share`` of configurations that are predicted
    best, and none that cannot be predicted. ``space`` is what ``predictor.forecasts`` makes.

    Raises DataError for a share outside 0 to 1, and where none can be predicted.
    """
    from wattcast.predictor.tune import Tuning

    if not 0 < share <= 1:
        raise DataError(f"share {share}: expected more than 0 and at most 1")
    tuning = Tuning(space, objective)
    order = tuning.search.predicted.argsort(kind="stable")
    kept = {int(place) for place in order[: max(1, round(share * order.size))]}

    def keeps(parameters: Mapping[str, Value]) -> bool:
        return tuning.place(parameters) in kept

    return keeps
