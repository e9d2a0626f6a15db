"""One step of a search in a tuning space, for callers that keep what was found themselves.

The request brings the space, what was predicted and what was measured; a few more configurations
are predicted, and the answer tells where the search stands. Nothing is remembered between two
steps but what makes them faster: the same question gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from wattcast.features.errors import DataError, ServiceError
from wattcast.predictor import parts
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.tunings import MOST_CONFIGURATIONS, MeasuredRow, TuningsRequest
from wattcast.predictor.rank import BLOCK_NAMES, TuningProblem, request_of
from wattcast.predictor.tune import OBJECTIVES, Forecast, Tuning, forecasts
from wattcast.predictor.tune import _key as key_of
from wattcast.predictor.tuning_files import Configuration, TuningRun, Value, read_tuning

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

MOST_MEASURED = 300
"""Measured configurations of one request: every proposal solves equations in all of them, for each
configuration of the space."""

_OF_A_LAUNCH = (
    *("ptx", "cuda", "kernel", "loops", "registers_per_thread", "static_shared_bytes", "analysis"),
    *("analysis_effort", "gpu", "launch", "clocks", "power_limit_watts", "model", "time_model"),
    "board",
)
"""Members of the request that the prediction of each configuration takes over."""

Place = tuple[tuple[str, str], ...]


def tunings(predictor: Predictor, request: TuningsRequest) -> dict[str, Any]:
    """``TuningsAnswer``. A configuration that cannot be compiled or launched is refused in its row.

    Raises DataError for a space, rows or measurements that do not fit, GpuError, KernelError,
    ModelError, CompilerMissingError and ServiceError for what all configurations share, and
    GivenUpError where the request's clock runs out.
    """
    with parts.asked_seconds(predictor, request):
        return _tunings(predictor.without_store(), request)


def _tunings(predictor: Predictor, request: TuningsRequest) -> dict[str, Any]:
    gpu = predictor.gpus.load(request.gpu)
    found = _space(predictor, request)
    space = {key_of(one.parameters): one for one in found.configurations}
    if len(space) > MOST_CONFIGURATIONS:
        raise DataError(
            f"the space has {len(space):,} configurations; at most {MOST_CONFIGURATIONS:,} are "
            "taken: restrict it"
        )
    rows = _predicted(space, request)
    given = list(_measured(request))
    measured = [one for one in (*found.configurations, *given) if _is_measured(one)]
    of = [key_of(one.parameters) for one in measured]
    for key, one in zip(of, measured, strict=True):
        if key not in space:
            raise DataError(f"measured: the space has no configuration {dict(one.parameters)}")
    if len(set(of)) > MOST_MEASURED:
        raise DataError(
            f"{len(set(of)):,} configurations are measured; at most {MOST_MEASURED} are taken"
        )
    problem = _problem(request, found)
    # What was measured says nothing of the others before it is predicted.
    order = [key for key in dict.fromkeys((*of, *space)) if key not in rows]
    fresh = [space[key] for key in order[: request.predictions]]
    for one in fresh:
        _check(problem, one)
    made = list(forecasts(predictor, problem, fresh))
    rows.update({key_of(row.parameters): row for row in made})
    refused = sum(row.problem is not None for row in rows.values())
    stands: dict[str, Any] = {"best": None, "next": [], "finished": False}
    tuning = None
    if len(rows) > refused or len(rows) == len(space):
        ordered = [rows[key] for key in space if key in rows]
        tuning = Tuning(ordered, request.objective, request.most_seconds)
        for key, one in zip(of, measured, strict=True):
            if key in rows:
                tuning.tell(one.parameters, one.time_seconds, one.energy_joules)
        told = tuning.answer(request.following, request.gain)
        stands = {name: told[name] for name in stands}
    failed = {key for key, one in zip(of, measured, strict=True) if not one.valid}
    ran = {key for key, one in zip(of, measured, strict=True) if one.valid}
    return {
        "gpu": gpu.id,
        "objective": request.objective,
        "unit": OBJECTIVES[request.objective][0],
        "configurations": len(space),
        "predicted": len(rows) - refused,
        "waiting": len(space) - len(rows),
        "refused": refused,
        "measured": len(ran),
        "failed": len(failed - ran),
        "forecasts": [_forecast_row(row) for row in made],
        "measurements": [_measured_row(one) for one in given],
        **stands,
        "columns": _columns(space, rows, tuning, ran, failed) if request.columns else None,
    }


def _space(predictor: Predictor, request: TuningsRequest) -> TuningRun:
    """The space, kept for the next step: large ones take a second to be read."""
    text = request.space or json.dumps(
        {"tune_params": request.tune_params, "restrictions": request.restrictions}
    )
    key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return predictor.spaces.get_or_make(key, lambda: read_tuning(text))


def _problem(request: TuningsRequest, found: TuningRun) -> TuningProblem:
    size = tuple(request.problem_size or found.problem_size or ())
    if not 1 <= len(size) <= 3:
        raise ServiceError(
            "validation",
            "problem_size: the space does not tell it; give 1 to 3 whole numbers",
            field="problem_size",
        )
    divisors = [tuple(names) for names in request.grid_divisors or ()]
    divisors += [(name,) for name in BLOCK_NAMES[len(divisors) :]]
    one = request.model_dump(include=set(_OF_A_LAUNCH), exclude_defaults=True)
    if request.cuda is not None:
        one["kernel"] = request.kernel or found.kernel
    return TuningProblem(size, tuple(divisors), request={**one, "model": request.model})


def _check(problem: TuningProblem, one: Configuration) -> None:
    """Raises DataError for a configuration that is no request at all: a block of 'x' threads."""
    try:
        PredictRequest.model_validate(request_of(problem, one))
    except (ValueError, OverflowError) as error:
        why = str(error).replace("\n", " ")[:300]
        raise DataError(f"configuration {dict(one.parameters)}: {why}") from error


def _predicted(
    space: Mapping[Place, Configuration], request: TuningsRequest
) -> dict[Place, Forecast]:
    rows: dict[Place, Forecast] = {}
    for number, row in enumerate(request.predicted):
        key = key_of(row.configuration)
        if key not in space:
            raise DataError(f"predicted[{number}]: the space has no {row.configuration}")
        if key in rows:
            raise DataError(f"predicted[{number}]: {row.configuration} was given before")
        parameters = space[key].parameters
        rows[key] = Forecast(parameters, row.seconds or 0.0, row.joules or 0.0, row.problem)
    return rows


def _measured(request: TuningsRequest) -> Iterable[Configuration]:
    """Measurements of the request: those of a file first."""
    if request.results is not None:
        yield from filter(_is_measured, read_tuning(request.results).configurations)
    for row in request.measured:
        yield Configuration(row.configuration, row.seconds, row.joules, not row.failed)


def _is_measured(one: Configuration) -> bool:
    return not one.valid or one.time_seconds is not None or one.energy_joules is not None


def _forecast_row(row: Forecast) -> dict[str, Any]:
    known = row.problem is None
    return {
        "configuration": dict(row.parameters),
        "seconds": row.seconds if known else None,
        "joules": row.joules if known else None,
        "problem": row.problem,
    }


def _measured_row(one: Configuration) -> dict[str, Any]:
    row = MeasuredRow.model_construct(
        configuration=dict(one.parameters),
        seconds=one.time_seconds,
        joules=one.energy_joules,
        failed=not one.valid,
    )
    return dict(row)


def _columns(
    space: Mapping[Place, Configuration],
    rows: Mapping[Place, Forecast],
    tuning: Tuning | None,
    ran: set[Place],
    failed: set[Place],
) -> dict[str, Any]:
    """``TuningColumns``."""
    names = list(next(iter(space.values())).parameters)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("status", "predicted", "expected", "low", "high", "measured")
    }
    parameters: dict[str, list[Value]] = {name: [] for name in names}
    search = tuning.search if tuning is not None else None
    outlook = search.outlook() if search is not None else None
    for key, one in space.items():
        for name in names:
            parameters[name].append(one.parameters[name])
        row = rows.get(key)
        place = tuning.place(one.parameters) if tuning is not None and row is not None else None
        known: dict[str, Any] = {}
        if search is not None and outlook is not None and place is not None:
            known = {
                "predicted": float(search.predicted[place]),
                "expected": float(outlook.value[place]),
                "low": float(outlook.low[place]),
                "high": float(outlook.high[place]),
            }
            if values := search.measured.get(place):
                known["measured"] = sorted(values)[len(values) // 2]
        if key in ran:
            status = "measured"
        elif key in failed:
            status = "failed"
        elif row is None:
            status = "waiting"
        else:
            status = "predicted" if row.problem is None else "refused"
        columns["status"].append(status)
        for name in ("predicted", "expected", "low", "high", "measured"):
            columns[name].append(known.get(name))
    return {"parameters": parameters, **columns}
