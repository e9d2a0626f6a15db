"""Energy of a whole application from its trace: measured durations, our power.

read the trace -> power of each kind of launch -> launches share their board -> sums
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import GpuError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.predictor import parts
from wattcast.predictor.advise import advise
from wattcast.predictor.cost import priced
from wattcast.predictor.messages import Energy, Power
from wattcast.predictor.messages.advise import Advice
from wattcast.predictor.messages.application import (
    ApplicationAnswer,
    Covered,
    DeviceAnswer,
    Gaps,
    How,
    KernelRow,
    LaunchColumns,
    Row,
    StreamRow,
)
from wattcast.predictor.messages.predict import Trust
from wattcast.predictor.parts.trust import ORDER
from wattcast.predictor.traces.code import Library
from wattcast.predictor.traces.mixes import mixes
from wattcast.predictor.traces.powers import BoardPowers, Device, KindPower, Served
from wattcast.predictor.traces.totals import gaps_of, notes_of, relative_ends, total_of
from wattcast.predictor.traces.trace import NONE, Integers, Trace, shared_board, timeline

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.application import ApplicationRequest
    from wattcast.predictor.traces import Progress

Floats = NDArray[np.float64]

MOST_POINTS = 4000
"""Stretches of a device's power over time."""

MOST_ROWS = 2000
"""Kernels, operators, streams and steps that are listed; what is beyond is one row."""

SURE = 0.9
"""Share of the energy that has the mark of the total, or a better one."""

REST = "all others"

ROW_FIELDS = set(KernelRow.model_fields)
"""What every row gives."""


def application(
    predictor: Predictor,
    trace: Trace,
    request: ApplicationRequest,
    code: Library | None = None,
    progress: Progress = lambda what, done: None,
) -> ApplicationAnswer:
    """The energy of all launches of a trace. The same trace, code and request give the same answer.

    Raises GpuError where a GPU is neither given nor known by its name in the trace, ClockError for
    clocks it does not run at, and ModelError.
    """
    found = list(_devices(predictor, trace, request, code or Library(), progress))
    joules = np.zeros(len(trace))
    for device in found:
        joules[device.at] = device.board.joules
    origin, last = int(trace.start.min()), int(trace.end.max())
    seconds = (trace.end - trace.start).astype(np.float64) * 1e-9
    below, above = relative_ends(trace, found)
    gaps = [gaps_of(device) for device in found]
    total = total_of(joules, below, above, trace, found, gaps)
    span = (last - origin) * 1e-9
    rows, places = _kernels(predictor, trace, request, found, joules, seconds, below, above, total)
    progress("answered", len(trace))
    streams = _streams(trace, joules, seconds, total)
    per_second = [each / span if span else 0.0 for each in (total.joules, total.low, total.high)]
    return ApplicationAnswer(
        source=trace.source,
        launches=len(trace),
        untimed=trace.untimed,
        coverage=_coverage(trace, found, joules, seconds, total),
        energy=total,
        power=Power(
            watts=per_second[0],
            low=per_second[1],
            high=per_second[2],
            level=total.level,
            basis=total.basis,
        ),
        span_seconds=span,
        **priced(total, request.tariff, request.grams_co2_per_kwh),
        trust=_trust(trace, found, joules, total),
        covers="gpu_boards",
        devices=[
            _device_answer(trace, device, gap, joules, below, above, total, origin)
            for device, gap in zip(found, gaps, strict=True)
        ],
        kernels=rows,
        operators=_rows(trace.operators, trace.operator, joules, seconds, total),
        streams=streams,
        steps=_rows(trace.steps, trace.step, joules, seconds, total, in_order=True),
        clocks=[mix for device in found for mix in mixes(device, trace, request)],
        launch_columns=_columns(trace, joules, places, streams, origin)
        if request.launches
        else None,
        warnings=parts.plain_warnings(
            trace.notes,
            *(device.powers.notes for device in found),
            notes_of(trace, request, found, code),
        ),
    )


def _devices(
    predictor: Predictor,
    trace: Trace,
    request: ApplicationRequest,
    code: Library,
    progress: Progress,
) -> Iterator[Device]:
    ends = np.array([trace.start.min(), trace.end.max()], dtype=np.int64)
    known: dict[str, tuple[BoardPowers, dict[int, KindPower]]] = {}
    gpus = [_gpu(predictor, trace, request, number) for number in range(len(trace.devices))]
    lasts = (trace.end - trace.start).astype(np.float64) * 1e-9
    for gpu in dict.fromkeys(gpu.id for gpu in gpus):
        numbers = [number for number, one in enumerate(gpus) if one.id == gpu]
        mine = np.isin(trace.device, numbers)
        launches = np.bincount(trace.kind[mine], minlength=len(trace.kinds))
        seconds = np.bincount(trace.kind[mine], lasts[mine], minlength=len(trace.kinds))
        powers = BoardPowers(predictor, request, gpus[numbers[0]], code)
        served = [
            (int(kind), Served(trace.kinds[kind], float(seconds[kind]), int(launches[kind])))
            for kind in np.flatnonzero(launches)
        ]
        known[gpu] = powers, powers.all(served, progress)
    for number, profile in enumerate(gpus):
        powers, kinds = known[profile.id]
        at = np.flatnonzero(trace.device == number)
        watts, standing = np.zeros(len(trace.kinds)), np.zeros(len(trace.kinds))
        for kind, power in kinds.items():
            watts[kind], standing[kind] = power.estimate.value, power.standing_watts
        kind_at = trace.kind[at]
        board = shared_board(
            trace.start[at],
            trace.end[at],
            standing[kind_at],
            (watts - standing)[kind_at],
            powers.idle_watts,
            powers.limit_watts,
            ends,
        )
        yield Device(number, profile, powers, kinds, at, board)


def _gpu(
    predictor: Predictor, trace: Trace, request: ApplicationRequest, number: int
) -> GpuProfile:
    device = trace.devices[number]
    named = request.gpus.get(str(device.id)) or request.gpu
    if named is None and not device.name:
        raise GpuError(
            f"the trace does not name its GPU {device.id}: give gpu (--gpu); `wattcast gpus list` "
            "and GET /gpus list all"
        )
    try:
        return predictor.gpus.load(named or device.name.partition(" MIG ")[0])
    except GpuError as error:
        if named is not None:
            raise
        detail = f"the GPU of the trace is not known by its name: {error.detail}; give gpu (--gpu)"
        raise GpuError(detail, **error.context) from error


def _trust(trace: Trace, found: Sequence[Device], joules: Floats, total: Energy) -> Trust:
    """The best mark that ``SURE`` of the energy has, or a better one."""
    sums: dict[str, float] = dict.fromkeys(ORDER, 0.0)
    worst: dict[str, tuple[float, str]] = {}
    for device in found:
        by_kind = np.bincount(trace.kind[device.at], joules[device.at], minlength=len(trace.kinds))
        reasons: dict[tuple[str, str], float] = {}
        for kind, power in device.kinds.items():
            key = power.trust.mark, power.trust.why
            reasons[key] = reasons.get(key, 0.0) + float(by_kind[kind])
        board = "estimated board" if device.powers.estimated else "measured board"
        reasons[board, "gaps"] = device.board.idle_joules
        for (mark, why), part in reasons.items():
            sums[mark] += part
            worst[mark] = max(worst.get(mark, (-1.0, "")), (part, why))
    held = 0.0
    for mark in ORDER:
        held += sums[mark]
        if held >= SURE * total.joules and mark in worst:
            share = sums[mark] / total.joules if total.joules else 1.0
            return Trust(mark=mark, why=f"{share:.0%} of the energy; most of it: {worst[mark][1]}")
    return Trust(mark="guess", why="no launch has an answer")


def _coverage(
    trace: Trace, found: Sequence[Device], joules: Floats, seconds: Floats, total: Energy
) -> list[Covered]:
    hows: dict[How, list[float]] = {}
    for device in found:
        kinds = trace.kind[device.at]
        size = len(trace.kinds)
        launches = np.bincount(kinds, minlength=size)
        times = np.bincount(kinds, seconds[device.at], minlength=size)
        energies = np.bincount(kinds, joules[device.at], minlength=size)
        for kind, power in device.kinds.items():
            sums = hows.setdefault(power.how, [0, 0.0, 0.0])
            for place, column in enumerate((launches, times, energies)):
                sums[place] += column[kind]
    whole = float(seconds.sum())
    order: tuple[How, ...] = ("code", "code, other launch", "operator", "name", "copy")
    return [
        Covered(
            how=how,
            launches=int(hows[how][0]),
            seconds=float(hows[how][1]),
            time_share=float(hows[how][1]) / whole if whole else 0.0,
            joules=float(hows[how][2]),
            energy_share=_share(float(hows[how][2]), total),
        )
        for how in order
        if how in hows
    ]


def _device_answer(
    trace: Trace,
    device: Device,
    gap: Mapping[str, float],
    joules: Floats,
    below: Floats,
    above: Floats,
    total: Energy,
    origin: int,
) -> DeviceAnswer:
    board, powers = device.board, device.powers
    told = trace.devices[device.number]
    own = total_of(joules, below, above, trace, [device], [gap])
    joules_of = board.total_joules
    span = board.span_seconds
    return DeviceAnswer(
        device=told.id,
        gpu=device.gpu.id,
        name=told.name,
        launches=len(device.at),
        span_seconds=span,
        busy_seconds=span - board.idle_seconds,
        shared_seconds=board.shared_seconds,
        limited_seconds=board.limited_seconds,
        idle_watts=powers.idle_watts,
        standing_watts=powers.standing_watts,
        limit_watts=powers.limit_watts,
        mean_watts=board.total_joules / span if span else 0.0,
        energy=Energy(
            joules=joules_of,
            low=min(own.low, joules_of),
            high=max(own.high, joules_of),
            level=own.level,
            basis=own.basis,
        ),
        gaps=Gaps(**gap, energy_share=_share(gap["joules"], total)),
        timeline=timeline(board, origin, MOST_POINTS),
    )


def _kernels(
    predictor: Predictor,
    trace: Trace,
    request: ApplicationRequest,
    found: Sequence[Device],
    joules: Floats,
    seconds: Floats,
    below: Floats,
    above: Floats,
    total: Energy,
) -> tuple[list[KernelRow], Integers]:
    """Rows by energy, and the row of each launch."""
    names: dict[tuple[int, str], int] = {}
    row_of = np.full((len(trace.devices), len(trace.kinds)), NONE, dtype=np.int64)
    for device in found:
        for kind in sorted(device.kinds):
            key = device.number, trace.kinds[kind].name
            row_of[device.number, kind] = names.setdefault(key, len(names))
    row = row_of[trace.device, trace.kind]
    size = len(names)
    columns = {
        "launches": np.bincount(row, minlength=size),
        "seconds": np.bincount(row, seconds, minlength=size),
        "joules": np.bincount(row, joules, minlength=size),
        "low": np.bincount(row, joules * below, minlength=size),
        "high": np.bincount(row, joules * above, minlength=size),
    }
    order = np.lexsort((np.arange(size), -columns["joules"]))
    rows = []
    left = request.advice
    keys = list(names)
    kinds_of: list[list[int]] = [[] for _ in keys]
    lasted = {}
    for device in found:
        times = np.bincount(trace.kind[device.at], seconds[device.at], minlength=len(trace.kinds))
        lasted[device.number] = device, times.tolist()
        for kind in device.kinds:
            kinds_of[row_of[device.number, kind]].append(kind)
    for number in order.tolist():
        at, name = keys[number]
        (device, each), mine = lasted[at], kinds_of[number]
        main = max(mine, key=lambda kind: (each[kind], -kind))
        power = device.kinds[main]
        lasting = float(columns["seconds"][number])
        watts = [device.kinds[kind].estimate.value * each[kind] for kind in mine]
        advised: list[Advice] = []
        if left > 0 and power.request is not None:
            left -= 1
            advised = _advice(predictor, power)
        rows.append(
            KernelRow.model_construct(  # not checked anew, and one set of names for all rows
                ROW_FIELDS,
                name=name,
                device=trace.devices[at].id,
                how=power.how,
                family=power.family,
                data_type=power.data_type,
                **{key: column[number].item() for key, column in columns.items()},
                energy_share=_share(float(columns["joules"][number]), total),
                watts=sum(watts) / lasting if lasting else power.estimate.value,
                trust=power.trust,
                why=power.why,
                code=None if power.code is None else power.code.file,
                advice=advised,
            )
        )
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size)
    return rows, place[row]


def _advice(predictor: Predictor, power: KindPower) -> list[Advice]:
    assert power.request is not None
    try:
        suggestions = advise(predictor, power.request).advice
    except WattcastError:
        return []
    if power.trust.mark == "guess":
        # What is assumed of the arguments goes by the launch: another launch would do other work.
        suggestions = [each for each in suggestions if "launch" not in (each.request or {})]
    return suggestions[:3]


def _rows(
    names: Sequence[str],
    column: Integers,
    joules: Floats,
    seconds: Floats,
    total: Energy,
    *,
    in_order: bool = False,
) -> list[Row]:
    """Sums by name, ``None`` for launches of none: by energy, or in the order of the names."""
    at = np.where(column == NONE, len(names), column)
    size = len(names) + 1
    launches = np.bincount(at, minlength=size)
    times = np.bincount(at, seconds, minlength=size)
    energies = np.bincount(at, joules, minlength=size)
    order = range(size) if in_order else np.lexsort((np.arange(size), -energies)).tolist()
    rows = [
        Row(
            name=names[number] if number < len(names) else None,
            launches=int(launches[number]),
            seconds=float(times[number]),
            joules=float(energies[number]),
            energy_share=_share(float(energies[number]), total),
        )
        for number in order
        if launches[number]
    ]
    if len(rows) <= MOST_ROWS:
        return rows
    return [*rows[: MOST_ROWS - 1], _summed(rows[MOST_ROWS - 1 :])]


def _summed(rows: Sequence[Row]) -> Row:
    columns = ("launches", "seconds", "joules", "energy_share")
    return Row(name=REST, **{name: sum(getattr(row, name) for row in rows) for name in columns})


def _streams(trace: Trace, joules: Floats, seconds: Floats, total: Energy) -> list[StreamRow]:
    rows = []
    for number, device in enumerate(trace.devices):
        mine = trace.device == number
        found = _rows(trace.streams, trace.stream[mine], joules[mine], seconds[mine], total)
        rows += [StreamRow(**dict(row), device=device.id) for row in found]
    return rows


def _columns(
    trace: Trace,
    joules: Floats,
    places: Integers,
    streams: Sequence[StreamRow],
    origin: int,
) -> LaunchColumns:
    """Times to the nanosecond, which makes them short as text."""
    ids = np.array([device.id for device in trace.devices])
    row_of = {(row.device, row.name): at for at, row in enumerate(streams)}
    rows = np.array(
        [
            [row_of.get((device, name), row_of.get((device, REST), NONE)) for name in trace.streams]
            for device in ids.tolist()
        ]
    )
    return LaunchColumns(
        start_seconds=np.round((trace.start - origin) * 1e-9, 9).tolist(),
        seconds=np.round((trace.end - trace.start) * 1e-9, 9).tolist(),
        joules=joules.tolist(),
        device=ids[trace.device].tolist(),
        stream=rows[trace.device, trace.stream].tolist(),
        kernel=places.tolist(),
    )


def _share(joules: float, total: Energy) -> float:
    return joules / total.joules if total.joules else 0.0
