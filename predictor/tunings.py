"""One step of a search in a tuning space, for callers that keep what was found themselves.

The request brings the space, what was predicted and what was measured; a few more configurations
are predicted, and the answer tells where the search stands. Nothing is remembered between two
steps but what makes them faster: the same question gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from wattcast.features.errors import DataError, refused
from wattcast.models.processes import LEARNED_FROM
from wattcast.predictor import Predictor, parts, rank, tuning_files
from wattcast.predictor.forecasts import Forecast, forecasts
from wattcast.predictor.messages import tunings as messages
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.tune import FIRST, OBJECTIVES, Key, Tuning, key_of

MOST_MEASURED, MOST_RELATED = 300, 3_000_000
"""Measured configurations of one request, and those times all of the space: every proposal relates
each measured one to all. 100 of 20,000 take 3 s of one core, 300 would take 16 s."""

MOST_CELLS = 400_000
"""Configurations times parameters of one request: each is some 300 bytes while it is answered."""

_OF_A_LAUNCH = set(PredictRequest.model_fields) - {"analysis_seconds"}
"""Members of the request that the prediction of each configuration takes over."""


def tunings(predictor: Predictor, request: messages.TuningsRequest) -> messages.TuningsAnswer:
    """A step of a search: what was predicted, and what to measure next.

    A configuration that cannot be compiled or launched is refused in its row.

    Raises DataError for a space, rows or measurements that do not fit, GpuError, KernelError,
    ModelError, CompilerMissingError and ServiceError for what all configurations share, and
    GivenUpError where the request's clock runs out.
    """
    with parts.asked_seconds(predictor, request):
        return _tunings(predictor.without_store(), request)


def _tunings(predictor: Predictor, request: messages.TuningsRequest) -> messages.TuningsAnswer:
    gpu = predictor.gpus.load(request.gpu)
    found = _space(predictor, request)
    count, wide = len(found.configurations), len(found.configurations[0].parameters)
    most = min(messages.MOST_CONFIGURATIONS, MOST_CELLS // wide)
    if count > most:
        raise DataError(
            f"the space has {count:,} configurations of {wide} parameters; at most {most:,} are "
            "taken: restrict it"
        )
    space = {key_of(one.parameters): one for one in found.configurations}
    rows = _predicted(space, request)
    given = list(_measured(request))
    measured = [
        (key_of(one.parameters), one)
        for one in (*found.configurations, *given)
        if _is_measured(one)
    ]
    of = {key for key, _ in measured}
    for key, one in measured:
        if key not in space:
            raise DataError(f"measured: the space has no configuration {dict(one.parameters)}")
    most = min(MOST_MEASURED, MOST_RELATED // len(space))
    if len(of) > most:
        raise DataError(
            f"{len(of):,} configurations are measured; at most {most} of so many are taken"
        )
    every = [one.parameters for one in space.values()]
    tuning = Tuning(rows.values(), request.objective, request.most_seconds, every)
    problem = _problem(request, found)
    made: list[Forecast] = []

    def predict(wanted: Iterable[Mapping[str, tuning_files.Value]]) -> None:
        left = request.predictions - len(made)
        chosen = {key_of(one): None for one in wanted}
        fresh = [space[key] for key in chosen if key not in rows][:left]
        for one in fresh:
            _check(problem, one)
        for row in forecasts(predictor, problem, fresh):
            tuning.add(row)
            made.append(row)
            rows[key_of(row.parameters)] = row

    told_of: list[tuning_files.Configuration] = []

    def tell() -> None:
        for _, one in measured[len(told_of) :]:
            tuning.tell(one.parameters, one.time_seconds, one.energy_joules)
            told_of.append(one)

    predict(one.parameters for _, one in measured)
    known = len(tuning.rows) >= LEARNED_FROM  # so many tell of the others
    if request.outlook and known and len(rows) < len(space) and len(made) < request.predictions:
        tell()
        predict(tuning.propose(request.following))
    if len(rows) < FIRST or not tuning.rows:
        predict(tuning.to_predict(request.predictions - len(made)))
    stands: dict[str, Any] = {"best": None, "next": [], "finished": False}
    enough = len(rows) == len(space)
    many = FIRST <= len(rows) < len(space)
    if (request.outlook or many) and (tuning.rows or enough):
        tell()
        if many and len(made) < request.predictions:
            predict(tuning.to_predict(request.predictions - len(made)))
        told = tuning.answer(request.following, request.gain)
        if request.outlook:
            stands = {"best": told.best, "next": told.next, "finished": told.finished}
        stands["finished"] &= len(rows) == len(space) or len(tuning.rows) >= LEARNED_FROM
        enough = enough or _enough(tuning, len(rows), told.next, request.gain)
    refused = len(rows) - len(tuning.rows)
    failed = {key for key, one in measured if not one.valid}
    ran = {key for key, one in measured if one.valid}
    return messages.TuningsAnswer(
        gpu=gpu.id,
        objective=request.objective,
        unit=OBJECTIVES[request.objective][0],
        configurations=len(space),
        predicted=len(tuning.rows),
        waiting=len(space) - len(rows),
        enough=enough,
        refused=refused,
        measured=len(ran),
        failed=len(failed - ran),
        forecasts=[_forecast_row(row) for row in made],
        measurements=[_measured_row(one) for one in given],
        **stands,
        columns=_columns(space, rows, tuning, ran, failed) if request.outlook else None,
    )


def _enough(tuning: Tuning, known: int, following: list[messages.Candidate], gain: float) -> bool:
    """Whether what waits would change little: neither proposed nor expected to gain as much."""
    if known < FIRST or any(row.emulated for row in following):
        return False
    return bool(tuning.search.promise()[len(tuning.rows) :].max(initial=0.0) < gain)


def _space(predictor: Predictor, request: messages.TuningsRequest) -> tuning_files.TuningRun:
    """The space, kept for the next step: large ones take a second to be read."""
    text = request.space or json.dumps(
        {"tune_params": request.tune_params, "restrictions": request.restrictions}
    )
    key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return predictor.spaces.get_or_make(key, lambda: tuning_files.read_tuning(text))


def _problem(request: messages.TuningsRequest, found: tuning_files.TuningRun) -> rank.TuningProblem:
    size = tuple(request.problem_size or found.problem_size or ())
    if not 1 <= len(size) <= 3:
        raise refused(
            "problem_size: the space does not tell it; give 1 to 3 whole numbers", "problem_size"
        )
    divisors = [tuple(names) for names in request.grid_divisors or ()]
    divisors += [(name,) for name in rank.BLOCK_NAMES[len(divisors) :]]
    one = request.model_dump(include=_OF_A_LAUNCH, exclude_defaults=True)
    if request.cuda is not None:
        one["kernel"] = request.kernel or found.kernel
    return rank.TuningProblem(size, tuple(divisors), request={**one, "model": request.model})


def _check(problem: rank.TuningProblem, one: tuning_files.Configuration) -> None:
    """Raises DataError for a configuration that is no request at all: a block of 'x' threads."""
    try:
        PredictRequest.model_validate(rank.request_of(problem, one))
    except (ValueError, OverflowError) as error:
        why = str(error).replace("\n", " ")[:300]
        raise DataError(f"configuration {dict(one.parameters)}: {why}") from error


def _predicted(
    space: Mapping[Key, tuning_files.Configuration], request: messages.TuningsRequest
) -> dict[Key, Forecast]:
    rows: dict[Key, Forecast] = {}
    for number, row in enumerate(request.predicted):
        key = key_of(row.configuration)
        if key not in space:
            raise DataError(f"predicted[{number}]: the space has no {row.configuration}")
        if key in rows:
            raise DataError(f"predicted[{number}]: {row.configuration} was given before")
        parameters = space[key].parameters
        rows[key] = Forecast(parameters, row.seconds or 0.0, row.joules or 0.0, row.problem)
    return rows


def _measured(request: messages.TuningsRequest) -> Iterable[tuning_files.Configuration]:
    """Measurements of the request: those of a file first."""
    if request.results is not None:
        yield from filter(_is_measured, tuning_files.read_tuning(request.results).configurations)
    for row in request.measured:
        yield tuning_files.Configuration(row.configuration, row.seconds, row.joules, not row.failed)


def _is_measured(one: tuning_files.Configuration) -> bool:
    return not one.valid or one.time_seconds is not None or one.energy_joules is not None


def _forecast_row(row: Forecast) -> messages.PredictedRow:
    seconds, joules = (row.seconds, row.joules) if row.problem is None else (None, None)
    configuration = dict(row.parameters)
    return messages.PredictedRow.model_construct(
        configuration=configuration, problem=row.problem, seconds=seconds, joules=joules
    )


def _measured_row(run: tuning_files.Configuration) -> messages.MeasuredRow:
    return messages.MeasuredRow.model_construct(
        configuration=dict(run.parameters),
        failed=not run.valid,
        seconds=run.time_seconds,
        joules=run.energy_joules,
    )


def _columns(
    space: Mapping[Key, tuning_files.Configuration],
    rows: Mapping[Key, Forecast],
    tuning: Tuning,
    ran: set[Key],
    failed: set[Key],
) -> messages.TuningColumns:
    names = list(next(iter(space.values())).parameters)
    parameters = {name: [one.parameters[name] for one in space.values()] for name in names}
    search = tuning.search if tuning.rows else None
    outlook = search.outlook() if search is not None else None
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for key, one in space.items():
        row = rows.get(key)
        place = tuning.place(one.parameters) if search is not None else None
        values: tuple[float | None, ...] = (None,) * 5
        if search is not None and outlook is not None and place is not None:
            taken = sorted(search.measured.get(place, ()))
            values = (
                *(float(each[place]) for each in (search.predicted, outlook.value)),
                *(float(each[place]) for each in (outlook.low, outlook.high)),
                taken[len(taken) // 2] if taken else None,
            )
        if key in ran:
            status = "measured"
        elif key in failed:
            status = "failed"
        elif row is None:
            status = "waiting" if place is None else "emulated"
        else:
            status = "predicted" if row.problem is None else "refused"
        for name, value in zip(_COLUMNS, (status, *values), strict=True):
            columns[name].append(value)
    return messages.TuningColumns(parameters=parameters, **columns)


_COLUMNS = ("status", "predicted", "expected", "low", "high", "measured")
