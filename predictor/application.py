"""Energy of a whole application from its trace: measured durations, our power.

read the trace -> power of each kind of launch -> launches share their board -> sums
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import exp, hypot, log
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import GpuError, WattcastError, refused
from wattcast.features.gpus import GpuProfile
from wattcast.models import choice, clocks
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, Z80, Z90
from wattcast.predictor import Predictor, cost, dvfs, parts, traces
from wattcast.predictor.advise import advise
from wattcast.predictor.messages import Energy, KernelName, Power, Time, predict
from wattcast.predictor.messages import application as messages
from wattcast.predictor.messages.advise import Advice
from wattcast.predictor.messages.dvfs import DvfsAnswer
from wattcast.predictor.parts.trust import ORDER
from wattcast.predictor.traces.code import Library
from wattcast.predictor.traces.library import Served
from wattcast.predictor.traces.mixes import Followed, mixes
from wattcast.predictor.traces.powers import BoardPowers, Device, KindPower
from wattcast.predictor.traces.totals import Floats, Launches, gaps_of, notes_of
from wattcast.predictor.traces.trace import NONE, Integers, Trace, shared_board, timeline

MOST_POINTS = 4000
"""Stretches of a device's power over time."""

MOST_ROWS = 2000
"""Kernels, operators, streams and steps that are listed; what is beyond is one row."""

SURE = 0.9
"""Share of the energy that has the mark of the total, or a better one."""

REST = "all others"

ROW_FIELDS = set(messages.KernelRow.model_fields)
"""What every row gives."""


def application(
    predictor: Predictor,
    trace: Trace,
    request: messages.ApplicationRequest,
    code: Library | None = None,
    progress: traces.Progress = lambda what, done: None,
) -> messages.ApplicationAnswer:
    """The energy of all launches of a trace. The same trace, code and request give the same answer.

    Raises GpuError where a GPU is neither given nor known by its name in the trace, ClockError for
    clocks it does not run at, and ModelError.
    """
    found = list(_devices(predictor, trace, request, code or Library(), progress))
    origin, last = int(trace.start.min()), int(trace.end.max())
    launches = Launches.of(trace, found)
    whole = _Whole(launches, found, launches.total(found))
    total, span = whole.total, (last - origin) * 1e-9
    rows, places = whole.kernels(predictor, request)
    progress("answered", len(trace))
    streams = whole.streams()
    per_second = [each / span if span else 0.0 for each in (total.joules, total.low, total.high)]
    return messages.ApplicationAnswer(
        source=trace.source,
        launches=len(trace),
        untimed=trace.untimed,
        coverage=whole.coverage(),
        energy=total,
        power=Power(
            watts=per_second[0],
            low=per_second[1],
            high=per_second[2],
            level=total.level,
            basis=total.basis,
        ),
        span_seconds=span,
        **cost.priced(total, request.tariff, request.grams_co2_per_kwh),
        trust=whole.trust(),
        covers="gpu_boards",
        devices=[whole.device(device, origin) for device in found],
        kernels=rows,
        operators=whole.rows(trace.operators, trace.operator),
        streams=streams,
        steps=whole.rows(trace.steps, trace.step, in_order=True),
        clocks=[mix for device in found for mix in mixes(device, trace, request)],
        launch_columns=_columns(launches, places, streams, origin) if request.launches else None,
        warnings=parts.plain_warnings(
            trace.notes,
            *(device.powers.notes for device in found),
            notes_of(trace, request, found, code),
        ),
    )


def dvfs_of_trace(
    predictor: Predictor, trace: Trace, request: messages.TraceClocks, code: Library
) -> DvfsAnswer:
    """Time, power and energy of all that a trace ran, gaps included, at core clocks up to its own
    or under power limits.

    Gaps last as long as they did. The longest time is that of kernels that all go with the clock,
    the shortest that of kernels none of which does. Raises what ``application`` raises,
    ServiceError for several kinds of boards, and ConstraintError.
    """
    told = parts.members(request, "gpu", "clocks", "model", "board")
    options = messages.ApplicationRequest.model_validate(told)
    found = list(_devices(predictor, trace, options, code, lambda what, done: None))
    gpu, powers = found[0].gpu, found[0].powers
    if any(device.gpu.id != gpu.id for device in found):
        raise refused("clocks are chosen for one kind of board; the trace has several", "trace")
    follows = [Followed(device, trace) for device in found]
    total = Launches.of(trace, found).total(found)
    span = int(trace.end.max() - trace.start.min()) * 1e-9
    idle = sum(device.board.idle_joules for device in found)
    one_in_ten = dvfs.TYPICAL_ONE_IN_TEN
    if _told(follows, ("code", "code, other launch")) >= SURE:
        one_in_ten = dvfs.one_in_ten_of(predictor, gpu)
    elif _told(follows, ("code", "code, other launch", "operator")) < SURE:
        one_in_ten **= EXTRAPOLATED_WIDENING  # nobody measured how what names alone tell follows
    busy = [device.board.span_seconds - device.board.idle_seconds for device in found]
    mhz: list[float] = follows[0].core_mhz.tolist()
    limits: tuple[float | None, ...] = (None,)
    if request.power_limit_watts is not None or not follows[0].listed:
        mhz = mhz[-1:]
        limits = dvfs.tried_limits(request.power_limit_watts, gpu, powers.limit_watts)
        limits = tuple(clocks.checked_limit(limit, gpu) for limit in limits)

    def at(core_mhz: float, limit: float | None) -> dvfs.At:
        held = [f.at(core_mhz) if limit is None else f.under(limit) for f in follows]
        seconds, most = (
            span + max(own * (each[n] - 1.0) for own, each in zip(busy, held, strict=True))
            for n in (0, 2)
        )
        joules = idle + sum(each[1] for each in held)
        moved = core_mhz < mhz[-1] or (limit or powers.limit_watts) < powers.limit_watts
        # Ends of the trace's own energy, and what one kernel in ten exceeds, carried to one in 20.
        more = log(one_in_ten) * Z90 / Z80 * moved
        ends = [joules * (end / total.joules) for end in (total.low, total.high)]
        if moved:
            ends[0] = joules * exp(-hypot(log(joules / max(ends[0], 1e-30)), more))
            ends[1] = joules * exp(hypot(log(ends[1] / joules), more))
        sure: dict[str, Any] = {"level": total.level, "basis": total.basis}
        costs = {
            "time": Time(seconds=seconds, low=span, high=most, **sure),
            "power": Power(
                watts=joules / seconds, low=ends[0] / seconds, high=ends[1] / seconds, **sure
            ),
            "energy": Energy(joules=joules, low=ends[0], high=ends[1], **sure),
        }
        key = dvfs.Operating(core_mhz, powers.clocks.memory_mhz, limit or powers.limit_watts)
        runs_at = core_mhz if limit is None else None
        return dvfs.At(
            choice.Point(key, seconds, joules / seconds), costs, runs_at, None, extrapolated=False
        )

    points = [at(core, limit) for core in mhz for limit in limits]
    return DvfsAnswer(
        gpu=gpu.id,
        kernel=KernelName(mangled="trace", demangled=f"{len(trace):,} launches"),
        model=None,
        **dvfs.choice(points, at(mhz[-1], None), request.constraints, one_in_ten),
        assumptions=None,
        warnings=parts.plain_warnings(
            trace.notes, powers.notes, notes_of(trace, options, found, code)
        ),
    )


def _told(follows: Sequence[Followed], hows: Collection[str]) -> float:
    """Share of the launches' energy that is told in some ways."""
    joules = sum(float(each.joules.sum()) for each in follows)
    return sum(float(each.joules[np.isin(each.hows, [*hows])].sum()) for each in follows) / (
        joules or 1.0
    )


MOST_SENT = 1 << 28
"""Characters that a gzipped trace in the body of a request unpacks to."""


def dvfs_of_sent_trace(predictor: Predictor, request: messages.TraceDvfsRequest) -> DvfsAnswer:
    """``dvfs_of_trace`` of the file in the request. Raises what ``read_trace`` raises too."""
    with NamedTemporaryFile(prefix="wattcast-trace-") as file:
        file.write(request.trace)
        file.flush()
        trace = traces.read_trace(Path(file.name), name="trace", most_characters=MOST_SENT)
    return dvfs_of_trace(predictor, trace, request, Library())


def _devices(
    predictor: Predictor,
    trace: Trace,
    request: messages.ApplicationRequest,
    code: Library,
    progress: traces.Progress,
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
    predictor: Predictor, trace: Trace, request: messages.ApplicationRequest, number: int
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


class _Whole(NamedTuple):
    """All launches of a trace on their devices, and the energy of everything."""

    launches: Launches
    found: Sequence[Device]
    total: Energy

    def share(self, joules: float) -> float:
        """Of the energy of everything."""
        return joules / self.total.joules if self.total.joules else 0.0

    def trust(self) -> predict.Trust:
        """The best mark that ``SURE`` of the energy has, or a better one."""
        sums: dict[str, float] = dict.fromkeys(ORDER, 0.0)
        worst: dict[str, tuple[float, str]] = {}
        for device in self.found:
            by_kind = self.launches.by_kind(device, self.launches.joules)
            reasons: dict[tuple[str, str], float] = {}
            for kind, power in device.kinds.items():
                key = power.trust.mark, power.trust.why
                reasons[key] = reasons.get(key, 0.0) + float(by_kind[kind])
            board = "estimated board" if device.powers.estimated else "measured board"
            reasons[board, "gaps"] = device.board.idle_joules
            for (mark, why), part in reasons.items():
                sums[mark] += part
                worst[mark] = max(worst.get(mark, (-1.0, "")), (part, why))
        held, whole = 0.0, self.total.joules
        for mark in ORDER:
            held += sums[mark]
            if held >= SURE * whole and mark in worst:
                share = sums[mark] / whole if whole else 1.0
                why = f"{share:.0%} of the energy; most of it: {worst[mark][1]}"
                return predict.Trust(mark=mark, why=why)
        return predict.Trust(mark="guess", why="no launch has an answer")

    def coverage(self) -> list[messages.Covered]:
        """How much is told in which way."""
        launches = self.launches
        hows: dict[messages.How, Floats] = {}
        for device in self.found:
            weights = None, launches.seconds, launches.joules
            columns = np.array([launches.by_kind(device, each) for each in weights])
            for kind, power in device.kinds.items():
                hows[power.how] = hows.get(power.how, np.zeros(3)) + columns[:, kind]
        whole = float(launches.seconds.sum())
        return [
            messages.Covered(
                how=how,
                launches=int(count),
                seconds=seconds,
                time_share=seconds / whole if whole else 0.0,
                joules=joules,
                energy_share=self.share(joules),
            )
            for how in get_args(messages.How)
            if how in hows
            for count, seconds, joules in [hows[how].tolist()]
        ]

    def device(self, device: Device, origin: int) -> messages.DeviceAnswer:
        """What one board takes."""
        board, powers, gap = device.board, device.powers, gaps_of(device)
        told = self.launches.trace.devices[device.number]
        own, joules, span = self.launches.total([device]), board.total_joules, board.span_seconds
        return messages.DeviceAnswer(
            device=told.id,
            gpu=device.gpu.id,
            name=told.name,
            launches=len(device.at),
            span_seconds=span,
            busy_seconds=span - board.idle_seconds,
            **parts.members(board, "shared_seconds", "limited_seconds"),
            **parts.members(powers, "idle_watts", "standing_watts", "limit_watts"),
            mean_watts=joules / span if span else 0.0,
            energy=Energy(
                joules=joules,
                low=min(own.low, joules),
                high=max(own.high, joules),
                level=own.level,
                basis=own.basis,
            ),
            gaps=messages.Gaps(**gap, energy_share=self.share(gap["joules"])),
            timeline=timeline(board, origin, MOST_POINTS),
        )

    def kernels(
        self, predictor: Predictor, request: messages.ApplicationRequest
    ) -> tuple[list[messages.KernelRow], Integers]:
        """Rows by energy, and the row of each launch."""
        launches, trace = self.launches, self.launches.trace
        names: dict[tuple[int, str], int] = {}
        row_of = np.full((len(trace.devices), len(trace.kinds)), NONE, dtype=np.int64)
        kinds_of: dict[int, list[int]] = {}
        lasted = {}
        for device in self.found:
            for kind in sorted(device.kinds):
                key = device.number, trace.kinds[kind].name
                row_of[device.number, kind] = names.setdefault(key, len(names))
            for kind in device.kinds:
                kinds_of.setdefault(int(row_of[device.number, kind]), []).append(kind)
            lasted[device.number] = device, launches.by_kind(device, launches.seconds).tolist()
        row, joules = row_of[trace.device, trace.kind], launches.joules
        size, keys, left, rows = len(names), list(names), request.advice, []
        weights = {
            "launches": None,
            "seconds": launches.seconds,
            "joules": joules,
            "low": joules * launches.below,
            "high": joules * launches.above,
        }
        columns = {name: np.bincount(row, each, minlength=size) for name, each in weights.items()}
        order = np.lexsort((np.arange(size), -columns["joules"]))
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
                messages.KernelRow.model_construct(  # not checked anew
                    ROW_FIELDS,  # one set for all rows
                    name=name,
                    device=trace.devices[at].id,
                    **parts.members(power, "how", "family", "data_type", "trust", "why"),
                    **{key: column[number].item() for key, column in columns.items()},
                    energy_share=self.share(float(columns["joules"][number])),
                    watts=sum(watts) / lasting if lasting else power.estimate.value,
                    code=None if power.code is None else power.code.file,
                    advice=advised,
                )
            )
        place = np.empty(size, dtype=np.int64)
        place[order] = np.arange(size)
        return rows, place[row]

    def rows(
        self,
        names: Sequence[str],
        column: Integers,
        which: NDArray[np.bool_] | None = None,
        *,
        in_order: bool = False,
    ) -> list[messages.Row]:
        """Sums by name, ``None`` for launches of none: by energy, or in the order of the names; of
        the launches ``which``, else of all."""
        some: Any = slice(None) if which is None else which
        size = len(names) + 1
        at = np.where(column == NONE, len(names), column)[some]
        weights = None, self.launches.seconds[some], self.launches.joules[some]
        launches, times, energies = (np.bincount(at, each, minlength=size) for each in weights)
        order = range(size) if in_order else np.lexsort((np.arange(size), -energies)).tolist()
        rows = [
            messages.Row(
                name=names[number] if number < len(names) else None,
                launches=int(launches[number]),
                seconds=float(times[number]),
                joules=float(energies[number]),
                energy_share=self.share(float(energies[number])),
            )
            for number in order
            if launches[number]
        ]
        if len(rows) <= MOST_ROWS:
            return rows
        kept, rest = rows[: MOST_ROWS - 1], rows[MOST_ROWS - 1 :]
        summed = ("launches", "seconds", "joules", "energy_share")
        sums = {name: sum(getattr(row, name) for row in rest) for name in summed}
        return [*kept, messages.Row(name=REST, **sums)]

    def streams(self) -> list[messages.StreamRow]:
        """Sums by device and stream."""
        trace = self.launches.trace
        return [
            messages.StreamRow(**dict(row), device=device.id)
            for number, device in enumerate(trace.devices)
            for row in self.rows(trace.streams, trace.stream, trace.device == number)
        ]


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


def _columns(
    launches: Launches, places: Integers, streams: Sequence[messages.StreamRow], origin: int
) -> messages.LaunchColumns:
    """Times to the nanosecond, which makes them short as text."""
    trace = launches.trace
    ids = np.array([device.id for device in trace.devices])
    row_of = {(row.device, row.name): at for at, row in enumerate(streams)}
    rows = np.array(
        [
            [row_of.get((device, name), row_of.get((device, REST), NONE)) for name in trace.streams]
            for device in ids.tolist()
        ]
    )
    return messages.LaunchColumns(
        start_seconds=np.round((trace.start - origin) * 1e-9, 9).tolist(),
        seconds=np.round((trace.end - trace.start) * 1e-9, 9).tolist(),
        joules=launches.joules.tolist(),
        device=ids[trace.device].tolist(),
        stream=rows[trace.device, trace.stream].tolist(),
        kernel=places.tolist(),
    )
