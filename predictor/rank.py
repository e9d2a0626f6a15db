"""Kernel Tuner's configurations in the order that predictions put them, before any is run.

Tunable parameters become macros of CUDA source, as Kernel Tuner makes them; of PTX, which knows
no macros any more, they choose the launch alone. Blocks are the parameters ``block_size_x``,
``_y`` and ``_z``, grids the problem size over the product of the divisors, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import tee
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from wattcast.features.checked import read_toml
from wattcast.features.cuda import CompileError
from wattcast.features.errors import DataError, KernelError, LaunchError, PtxError, TooComplexError
from wattcast.predictor import Predictor, parts, predict, variants
from wattcast.predictor.messages import tunings as messages
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.parts.trust import Ranked, incomparable
from wattcast.predictor.tuning_files import Configuration, TuningRun, Value

# How much a prediction saves as a pre-filter: runs that a top-k choice would not have needed.

Floats = NDArray[np.float64]

NEAR = 0.05
"""How far above the best measured value still counts as found, relative."""


def preselection(predicted: Sequence[float], measured: Sequence[float], k: int) -> messages.Judged:
    """What measuring the ``k`` configurations that are predicted best would have come to; less is
    better in both.

    ``loss``: their best measured value over that of all, less 1. ``runs_needed``: the least k that
    holds one within ``NEAR`` of the best, ``runs_needed_random``: how many draws without a
    prediction that takes on average. ``rank_correlation`` is Spearman's, 1 where the order is the
    same. Raises DataError for fewer than two configurations, or values that are not above 0.
    """
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if guess.shape != truth.shape or guess.size < 2:
        raise DataError("a ranking needs at least two configurations that were measured")
    if not (np.isfinite(truth).all() and (truth > 0).all() and np.isfinite(guess).all()):
        raise DataError("measured values must be finite and above 0")
    chosen = max(1, min(k, guess.size))
    order = np.argsort(guess, kind="stable")
    best = float(truth.min())
    found = np.flatnonzero(truth[order] <= best * (1 + NEAR))
    return messages.Judged(
        configurations=guess.size,
        k=chosen,
        loss=float(truth[order[:chosen]].min()) / best - 1,
        runs_saved=guess.size - chosen,
        near=NEAR,
        runs_needed=int(found[0]) + 1,
        # The mean place of the first of m marked ones among n in random order.
        runs_needed_random=(guess.size + 1) / (found.size + 1),
        rank_correlation=_spearman(guess, truth),
    )


def _spearman(one: Floats, other: Floats) -> float:
    """Pearson's correlation of ranks, ties at their mean; 0 where either does not vary."""
    ranks = np.array([_ranks(one), _ranks(other)])
    if (np.ptp(ranks, axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = (last - (counts - 1) / 2)[inverse]
    return means


Objective = Literal["energy", "time"]

BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
"""Kernel Tuner's default names of the block's dimensions."""


SETTINGS: Mapping[str, str] = read_toml(Path(__file__).with_suffix(".toml"))["settings"]
"""Parameters that are settings of the board, no macros, and the request's members that they are."""


Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[tuple[int, Any]]]
"""One function over many items: results with the index of their item, in the order in which they
are ready, as the engines of ``wattcast.training`` map."""


class Crew(NamedTuple):
    """Workers, so many at once, and what makes the predictor of each: a function that can travel.
    ``elsewhere``: on machines that may have other models or versions."""

    map: Map
    predictor: Callable[[], Predictor]
    workers: int
    elsewhere: bool = False


WORTH = 8
"""Kernels for each worker below which none is started: it takes as long as some to start."""


def alone(predictor: Predictor) -> Crew:
    """The crew that is this process."""
    return Crew(lambda work, items: enumerate(map(work, items)), lambda: predictor, 1)


@dataclass(frozen=True)
class TuningProblem:
    """How a configuration becomes a launch.

    ``divisors`` are the parameters (or numbers) by whose product each axis of ``problem_size`` is
    divided; Kernel Tuner's default are the block's dimensions.
    """

    problem_size: tuple[int, ...]
    divisors: tuple[tuple[str, ...], ...] = (BLOCK_NAMES[:1], BLOCK_NAMES[1:2], BLOCK_NAMES[2:])
    block_names: tuple[str, ...] = BLOCK_NAMES
    request: Mapping[str, Any] = field(default_factory=dict)

    def launch(self, parameters: Mapping[str, Value]) -> dict[str, list[int]]:
        """Grid and block. Raises DataError for a divisor that no parameter has."""
        block = [int(parameters.get(name, 1)) for name in self.block_names]
        grid = []
        for axis, size in enumerate(self.problem_size):
            over = prod(_factor(name, parameters) for name in self.divisors[axis])
            grid.append(-(-size // over))
        return {"grid": grid, "block": block}


def _factor(name: str, parameters: Mapping[str, Value]) -> int:
    if name.isdecimal():
        return max(1, int(name))
    if name in parameters:
        return max(1, int(parameters[name]))
    if name in BLOCK_NAMES:
        return 1  # an axis that is not tuned has blocks of 1
    raise DataError(f"grid divisor {name!r} is not a tunable parameter of the file")


def rank(
    predictor: Predictor,
    run: TuningRun,
    problem: TuningProblem,
    objective: Objective = "energy",
    top: int = 10,
    crew: Crew | None = None,
) -> messages.RankAnswer:
    """Configurations by predicted ``objective``, and how many runs a top-k choice would save.

    Raises DataError where the problem does not fit the file, and as ``ranked`` does.
    """
    asked = ((one, request_of(problem, one)) for one in run.configurations)
    return ranked(predictor, asked, objective, top, crew)


def rank_variants(predictor: Predictor, request: messages.RankRequest) -> messages.RankAnswer:
    """Variants of a kernel's code and launch by what is predicted; ``variant`` is the place in the
    request, from 0. One that cannot be read is refused. Raises as ``ranked`` does, and GpuError."""
    board = request.model_dump(exclude={"variants", "by"})
    places = (Configuration({"variant": at}, None, None) for at in range(len(request.variants)))
    largest = max(request.variants, key=lambda one: one.launch.threads() or 0)
    several = (one.beside(largest) for one in request.variants)
    each = ({**one.model_dump(exclude_unset=True), **board} for one in several)
    gpu = predictor.gpus.load(request.gpu)
    with parts.assembled_ahead(predictor, request.variants, gpu):
        return ranked(predictor, zip(places, each, strict=True), request.by)


def ranked(
    predictor: Predictor,
    asked: Iterable[tuple[Configuration, Mapping[str, Any] | CompileError]],
    objective: Objective = "energy",
    top: int = 10,
    crew: Crew | None = None,
) -> messages.RankAnswer:
    """Configurations with their requests, or why there is none, by predicted ``objective``.

    ``judged`` is ``None`` where fewer than two of those predicted have the objective measured. A
    configuration that cannot be compiled or launched is listed with the reason; raises DataError
    where that is all of them. One whose power another kind of model tells, or extrapolates, comes
    after all others, ``apart`` saying why. Who the ``crew`` is does not change the answer.
    """
    crew, (asked, requests) = crew or alone(predictor), tee(asked)
    answered = partial(_answered, crew.predictor)
    told = dict(crew.map(answered, (request for _, request in requests)))
    predictions: list[tuple[Configuration, Mapping[str, Any], PredictAnswer]] = []
    refused: list[messages.RefusedConfiguration] = []
    for at, (configuration, request) in enumerate(asked):
        if isinstance(answer := told[at], PredictAnswer):
            predictions.append((configuration, cast(Any, request)["launch"], answer))
        else:
            parameters = dict(configuration.parameters)
            refused.append(messages.RefusedConfiguration(configuration=parameters, reason=answer))
    if not predictions:
        why = f": {refused[0].reason}" if refused else ""
        raise DataError(f"none of {len(refused)} configurations can be predicted{why}")
    whys = incomparable([Ranked.of(answer) for *_, answer in predictions])
    rows = [
        _row(*row, apart=why if objective == "energy" else None)
        for row, why in zip(predictions, whys, strict=True)
    ]
    unit = "joules" if objective == "energy" else "seconds"
    rows.sort(key=lambda row: (row.apart is not None, getattr(row, unit)))
    rows = [row.model_copy(update={"rank": rank}) for rank, row in enumerate(rows, 1)]
    known = [row for row in rows if getattr(row, f"measured_{unit}") is not None]
    predicted, measured = (
        [getattr(row, name) for row in known] for name in (unit, f"measured_{unit}")
    )
    return messages.RankAnswer(
        objective=objective,
        kernel=rows[0].kernel,
        gpu=rows[0].gpu,
        configurations=rows,
        refused=refused,
        judged=preselection(predicted, measured, top) if len(known) > 1 else None,
    )


def request_of(problem: TuningProblem, configuration: Configuration) -> dict[str, Any]:
    request = dict(problem.request)
    parameters = dict(configuration.parameters)
    for name, place in SETTINGS.items():
        if name in parameters:
            value, (member, _, part) = parameters.pop(name), place.partition(".")
            request[member] = {**(request.get(member) or {}), part: value} if part else value
    launch = {**request.get("launch", {}), **problem.launch(parameters)}
    if request.get("cuda") is not None:
        request["cuda"] = macros(parameters) + variants.undefined(request["cuda"], parameters)
    return {**request, "launch": launch}


def _answered(
    make: Callable[[], Predictor], request: Mapping[str, Any] | CompileError
) -> PredictAnswer | str:
    """The prediction, or why there is none."""
    try:
        if isinstance(request, CompileError):
            raise request
        answer = predict.predict_one(make(), PredictRequest.model_validate(request))
    except (CompileError, KernelError, LaunchError, PtxError, TooComplexError) as error:
        return error.detail
    if answer.energy is None:
        why = answer.warnings[-1].detail if answer.warnings else "no model answers"
        return f"its energy cannot be predicted: {why}"
    return answer


def macros(parameters: Mapping[str, Value]) -> str:
    """Definitions of the parameters ahead of the source; lines of the source keep their numbers.
    Raises DataError for a name that C would not take, or a text that is more than a line."""
    lines = ["#define kernel_tuner 1"]
    for name, value in parameters.items():
        told = str(int(value)) if isinstance(value, bool) else str(value)
        if not name.isidentifier() or not name.isascii() or "\n" in told or "\\" in told:
            raise DataError(f"parameter {name!r} = {told!r} cannot be a macro")
        lines.append(f"#define {name} {told}")
    return "\n".join([*lines, "#line 1", ""])


def _row(
    configuration: Configuration,
    launch: Mapping[str, Any],
    answer: PredictAnswer,
    *,
    apart: str | None,
) -> messages.RankedConfiguration:
    assert answer.kernel is not None
    assert answer.energy is not None
    assert answer.time is not None
    assert answer.power is not None
    return messages.RankedConfiguration(
        rank=0,
        configuration=dict(configuration.parameters),
        grid=launch["grid"],
        block=launch["block"],
        gpu=answer.gpu,
        kernel=answer.kernel.demangled,
        joules=answer.energy.joules,
        seconds=answer.time.seconds,
        watts=answer.power.watts,
        joules_low=answer.energy.low,
        joules_high=answer.energy.high,
        seconds_low=answer.time.low,
        seconds_high=answer.time.high,
        measured_seconds=configuration.time_seconds,
        measured_joules=configuration.energy_joules,
        valid=configuration.valid,
        apart=apart,
    )
