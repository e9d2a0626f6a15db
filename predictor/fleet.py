"""Jobs on a fleet of boards: which runs where, at which power limits, with what joules.

job, board, limit -> prediction of a run -> integer program (models/placement.py) -> sums

Predictions are those of ``dvfs`` and ``language_model`` under each limit. Half widths of sums are
joined as those of traces are (``traces/totals.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from wattcast.features import errors
from wattcast.features.gpus import GpuProfile
from wattcast.models.intervals import BASIS_ORDER, quantity
from wattcast.models.placement import (
    Floats,
    Place,
    Placement,
    Program,
    cheapest,
    least_power,
    shortest,
)
from wattcast.predictor import Predictor, language_model, parts, reports
from wattcast.predictor.dvfs import dvfs, dvfs_of_operator
from wattcast.predictor.messages import Energy, Interval, Power, Time, operators
from wattcast.predictor.messages.dvfs import DvfsRequest
from wattcast.predictor.messages.fleet import (
    BoardsAtLimit,
    FleetAnswer,
    FleetJob,
    FleetRequest,
    JobEnd,
    JobPlace,
)
from wattcast.predictor.messages.language_model import LanguageModelRequest
from wattcast.predictor.traces import totals

SOLVER_SECONDS = 60.0
"""When the search for a placement is given up; what it may do is counted (``models/placement``)."""

SHARED: Mapping[str, float] = MappingProxyType(
    {
        **{str(told): share for told, share in totals.SHARED.items()},
        "operator": language_model.SHARED[False],
        "operator, board never measured": language_model.SHARED[True],
        "time": 1.0,
    }
)
"""What errors have in common (``totals.half_width``): of power as in a trace, of operators as in a
language model. Times of code are predicted here, not measured: all of it, an assumption, since no
sum of them was measured."""


class _Run(NamedTuple):
    """One run of a job on a board under a limit."""

    time: Time
    power: Power
    energy: Energy


@dataclass(frozen=True)
class _Told:
    """What is predicted: runs ``[job][place]``, ``None`` where a job cannot run."""

    gpus: Sequence[GpuProfile]
    places: Sequence[Place]
    runs: Sequence[Sequence[_Run | None]]
    notes: Sequence[errors.Diagnostic]


def fleet(predictor: Predictor, request: FleetRequest) -> FleetAnswer:
    """Jobs placed on boards. The same request gives the same answer.

    Raises ConstraintError where no placement keeps to the constraints, telling which one breaks;
    GpuError; what ``dvfs``, ``dvfs_of_operator`` and ``language_model`` raise for a job that runs
    on none of its boards; GivenUpError; and MissingExtraError without scipy.
    """
    boards: dict[str, int] = {}
    for name, count in request.boards.items():
        gpu = predictor.gpus.load(name)
        boards[gpu.id] = boards.get(gpu.id, 0) + count
    told = _predicted(predictor, request, [predictor.gpus.load(each) for each in boards])
    program = _program(predictor, request, told, list(boards.values()))
    sought = shortest if program.due.max() == inf else cheapest
    with errors.giving_up(SOLVER_SECONDS) as clock:
        found = sought(program, clock.until)
        if found is None:
            raise _refusal(request, program, clock.until)
    return _answer(request, told, program, found, "makespan" if sought is shortest else "energy")


def _limits(gpu: GpuProfile, count: int) -> list[float]:
    own = gpu.tdp_watts
    lowest, most = gpu.limit_range_watts or (0.0, own)
    high = min(own, most)
    low = min(max(own / 2, lowest), high) if count > 1 else high
    return sorted({float(round(each)) for each in np.linspace(high, low, count)})


def _predicted(predictor: Predictor, request: FleetRequest, gpus: Sequence[GpuProfile]) -> _Told:
    """Every job under every limit of every board it may run on."""
    limits = [_limits(gpu, request.limits) for gpu in gpus]
    places = [Place(kind, limit) for kind, each in enumerate(limits) for limit in each]
    runs: list[list[_Run | None]] = []
    notes = []
    for number, job in enumerate(request.jobs):
        allowed = {predictor.gpus.load(name).id for name in job.boards} or {g.id for g in gpus}
        if strange := allowed - {gpu.id for gpu in gpus}:
            names = ", ".join(sorted(strange))
            raise errors.refused(f"jobs[{number}].boards: {names} is not in the fleet", "boards")
        row: list[_Run | None] = []
        first: errors.WattcastError | None = None
        for gpu, each in zip(gpus, limits, strict=True):
            errors.checkpoint()
            found: list[_Run | None] = [None] * len(each)
            if gpu.id in allowed:
                try:
                    found = [*_runs(predictor, job, gpu, each)]
                except errors.GivenUpError:
                    raise
                except errors.WattcastError as error:
                    first = first or error
                    detail = f"{job.name} is not placed on {gpu.id}: {error.detail}"
                    notes.append(errors.Diagnostic("board_left_out", detail))
            row += found
        if first is not None and not any(row):
            with parts.about(f"jobs[{number}] ({job.name})"):
                raise first
        runs.append(row)
    return _Told(gpus, places, runs, notes)


def _runs(
    predictor: Predictor, job: FleetJob, gpu: GpuProfile, limits: Sequence[float]
) -> list[_Run]:
    """One run under each limit."""
    asked: dict[str, Any] = {"gpu": gpu.id, "power_limit_watts": list(limits)}
    if job.model is not None:
        given = job.model.model_dump(exclude_unset=True)
        requests = (
            LanguageModelRequest.model_validate({**given, **asked, "power_limit_watts": limit})
            for limit in limits
        )
        answers = (language_model.language_model(predictor, each) for each in requests)
        return [_Run(each.time, each.power, each.energy) for each in answers]
    if job.operator is not None:
        asked["operator"] = job.operator
        answer = dvfs_of_operator(predictor, operators.OperatorDvfsRequest.model_validate(asked))
    else:
        assert job.kernel is not None
        given = job.kernel.model_dump(exclude_unset=True)
        answer = dvfs(predictor, DvfsRequest.model_validate({**given, **asked}))
    return [_Run(point.time, point.power, point.energy) for point in answer.points]


def _program(
    predictor: Predictor, request: FleetRequest, told: _Told, boards: Sequence[int]
) -> Program:
    """Units are runs, or whole jobs where a job's runs stay together."""

    def column(name: str, member: str) -> Floats:
        rows = [
            [
                getattr(getattr(run, name), member) * (job.runs if job.together else 1)
                if run is not None
                else inf
                for run in row
            ]
            for job, row in zip(request.jobs, told.runs, strict=True)
        ]
        return np.array(rows, dtype=np.float64)

    return Program(
        units=[1 if job.together else job.runs for job in request.jobs],
        seconds=column("time", "seconds"),
        joules=column("energy", "joules"),
        deadlines=np.array([job.deadline_seconds or inf for job in request.jobs]),
        places=told.places,
        boards=boards,
        idle_watts=[
            min(predictor.power.physical(gpu).parameters.idle_watts, _limits(gpu, 1)[0])
            for gpu in told.gpus
        ],
        power_cap_watts=request.power_cap_watts or inf,
        makespan_seconds=request.makespan_seconds or inf,
    )


def _refusal(request: FleetRequest, program: Program, until: float) -> errors.ConstraintError:
    """Which of the constraints no placement keeps to."""
    for number, job in enumerate(request.jobs):
        least, due = float(program.seconds[number].min()), float(program.due[number])
        if least > due:
            name = "makespan_seconds" if program.deadlines[number] > due else "deadline_seconds"
            what = "all its runs, which stay together, take" if job.together else "a run takes"
            detail = (
                f"{name} of {quantity(due, 's')} is too short for {job.name}: {what} at least "
                f"{quantity(least, 's')}"
            )
            return errors.ConstraintError(detail, field=name)
    timeless = replace(program, deadlines=program.deadlines * inf, makespan_seconds=inf)
    for each, why in ((timeless, "whatever the time"), (program, "to be done in time")):
        needs = least_power(each, until)
        if needs is not None and needs > program.power_cap_watts:
            detail = (
                f"power_cap_watts of {quantity(program.power_cap_watts, 'W')} is too low: the "
                f"fleet takes {quantity(needs, 'W')} or more {why}"
            )
            return errors.ConstraintError(detail, field="power_cap_watts")
    free = shortest(replace(program, makespan_seconds=inf), until)
    if free is not None:
        detail = (
            f"makespan_seconds of {quantity(program.makespan_seconds, 's')} is too short: the "
            f"shortest placement found takes {quantity(free.makespan_seconds, 's')}"
        )
        return errors.ConstraintError(detail, field="makespan_seconds")
    names = ", ".join(job.name for job in request.jobs if job.deadline_seconds)
    detail = f"deadline_seconds: no placement was found that is in time with all of {names}"
    return errors.ConstraintError(detail, field="deadline_seconds")


# --- the answer ----------------------------------------------------------------------------------


def _answer(
    request: FleetRequest, told: _Told, program: Program, found: Placement, sought: Any
) -> FleetAnswer:
    joules = _finite(program.joules) * found.units
    seconds = _finite(program.seconds) * found.units
    idle = np.array(program.idle_watts)
    kinds = np.array([place.kind for place in told.places])
    limits = np.array([place.limit_watts for place in told.places])
    waits = np.array(program.boards) * found.makespan_seconds
    np.subtract.at(waits, kinds, seconds.sum(axis=0))
    energy, makespan = _sums(request, told, program, found, float(joules.sum()))
    reached = energy.joules if sought == "energy" else makespan.seconds
    return FleetAnswer(
        sought=sought,
        energy=energy,
        makespan=makespan,
        power_watts=float(
            np.dot(program.boards, idle) + np.dot(found.boards, limits - idle[kinds])
        ),
        waiting_joules=float(np.dot(np.maximum(waits, 0.0), idle)),
        gap_percent=100 * max(reached / found.bound - 1, 0.0) if found.bound > 0 else 0.0,
        boards=[
            BoardsAtLimit(
                gpu=told.gpus[place.kind].id,
                power_limit_watts=place.limit_watts,
                boards=int(found.boards[at]),
                busy_seconds=float(seconds[:, at].sum()),
                joules=float(joules[:, at].sum()),
            )
            for at, place in enumerate(told.places)
            if joules[:, at].any()
        ],
        places=[
            JobPlace.from_attributes(
                run,
                job=job.name,
                gpu=told.gpus[told.places[at].kind].id,
                power_limit_watts=told.places[at].limit_watts,
                runs=int(found.units[number, at]) * (job.runs if job.together else 1),
                joules=float(joules[number, at]),
            )
            for number, job in enumerate(request.jobs)
            for at, run in enumerate(told.runs[number])
            if run is not None and found.units[number, at]
        ],
        jobs=[
            JobEnd(job=job.name, seconds=float(end), deadline_seconds=job.deadline_seconds)
            for job, end in zip(request.jobs, found.ends, strict=True)
        ],
        warnings=parts.plain_warnings(told.notes),
    )


_Own = dict[tuple[str, str], dict[str, Floats]]


def _halves(
    request: FleetRequest, told: _Told, found: Placement, places: Sequence[int], *, energy: bool
) -> _Own:
    """Half widths of the joules, or the seconds, of all runs at some places, below and above: by
    kind of board and what errs, and by job."""
    own: _Own = {}
    for at in places:
        gpu = told.gpus[told.places[at].kind].id
        for job, row, units in zip(request.jobs, told.runs, found.units, strict=True):
            if (run := row[at]) is None or not units[at]:
                continue
            runs = int(units[at]) * (job.runs if job.together else 1)
            unknown = ", board never measured" * (run.power.basis == "uncalibrated")
            errs: dict[str, Interval] = {"time": run.time}
            if job.kernel is None:
                errs = {f"operator{unknown}": run.energy if energy else run.time}
            elif energy:
                errs[f"code{unknown}"] = run.power
            for source, part in errs.items():
                value = float(getattr(part, reports.unit_of(part)))
                size = runs * (run.energy.joules if energy else run.time.seconds)
                mine = own.setdefault((gpu, source), {})
                ends = np.array([1 - part.low / value, part.high / value - 1])
                mine[job.name] = mine.get(job.name, np.zeros(2)) + size * ends
    return own


def _widths(own: _Own) -> tuple[float, float]:
    """Half widths of the sum, below and above."""
    guesses = {gpu for gpu, source in own if source.endswith("never measured")}
    low, high = (totals.half_width(own, {}, guesses, side, SHARED) for side in (0, 1))
    return low, high


def _sums(
    request: FleetRequest, told: _Told, program: Program, found: Placement, joules: float
) -> tuple[Energy, Time]:
    """Energy of all runs, and the makespan: each of its ends is that of the place where it is the
    latest."""
    used = [
        run
        for row, units in zip(told.runs, found.units, strict=True)
        for run, count in zip(row, units, strict=True)
        if run is not None and count
    ]
    how: dict[str, Any] = {
        "level": min(run.energy.level for run in used),
        "basis": max((run.energy.basis for run in used), key=BASIS_ORDER.index),
    }
    below, above = _widths(_halves(request, told, found, range(len(told.places)), energy=True))
    energy = Energy(joules=joules, low=max(joules - below, 0.0), high=joules + above, **how)
    loads, lows, highs = [], [], []
    for at, boards in enumerate(found.boards.tolist()):
        total = float(np.dot(found.units[:, at], _finite(program.seconds[:, at])))
        if total:
            below, above = _widths(_halves(request, told, found, [at], energy=False))
            loads.append(total / boards)
            lows.append(max(total - below, 0.0) / boards)
            highs.append((total + above) / boards)
    scale = found.makespan_seconds / max(loads)
    return energy, Time(
        seconds=found.makespan_seconds, low=scale * max(lows), high=scale * max(highs), **how
    )


def _finite(values: Floats) -> Floats:
    """The same with 0 for what cannot be."""
    return np.where(np.isfinite(values), values, 0.0)
