"""A trace in memory: one row per launch in flat columns, names and shapes once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError, Diagnostic, ServiceError
from wattcast.predictor.messages.application import Timeline

Integers = NDArray[np.int64]

NONE = -1
"""In a column: there is none."""

STEP = re.compile(
    r"(?:profilerstep#|(?:train(?:ing)?[ _]?)?(?:step|iteration|iter|batch)[ _#:=]*)\d+$",
    re.IGNORECASE,
)
"""Ranges that are steps: PyTorch's ``ProfilerStep#3`` (torch.profiler.schedule), and NVTX ranges
such as ``step 3`` or ``iteration_3``."""

MOST_KINDS = 200_000
"""Different launches (kernel, shape, registers, shared memory) of one trace."""

MOST_DEVICES, MOST_STREAMS, MOST_STEPS = 1_024, 10_000, 100_000
"""Of one trace; a step is a range of the host."""

MOST_NAMES = 1 << 26
"""Characters of all different names of a trace."""

MOST_LAUNCHES, MOST_RANGES = 1_000_000, 4_000_000
"""Launches, and ranges of the host, of a trace that others send: some 0.7 GB with their answer."""


class Kind(NamedTuple):
    """Launches that are alike in all but their time. A copy or a memset has no grid.

    ``mangled`` is empty where the trace does not tell it. Bytes are of shared memory per block;
    ``registers`` is 0 where the trace does not tell them; ``operator`` is the library operator that
    launched it (``library.operator_called``), empty where none is known.
    """

    name: str
    mangled: str
    what: Literal["kernel", "copy", "set"]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the trace: its number there, its name and multiprocessors where told."""

    id: int
    name: str = ""
    sm_count: int | None = None


@dataclass(frozen=True)
class Trace:
    """Everything that ran on the GPUs of a trace, in order of its start.

    Columns have one entry for each launch: ``start`` and ``end`` in ns, indices into ``devices``,
    ``streams``, ``kinds``, ``operators`` and ``steps`` (``NONE`` where there is none).
    """

    source: str
    devices: tuple[Device, ...]
    streams: tuple[str, ...]
    kinds: tuple[Kind, ...]
    operators: tuple[str, ...]
    steps: tuple[str, ...]
    start: Integers
    end: Integers
    device: Integers
    stream: Integers
    kind: Integers
    operator: Integers
    step: Integers
    untimed: int = 0
    notes: tuple[Diagnostic, ...] = ()

    def __len__(self) -> int:
        return len(self.start)


MOST_TIME = 1 << 62
"""Nanoseconds beyond which a time is none: 146 years."""


MOST_SIZE = 1 << 31
"""Size of a grid's or a block's side, of registers and of bytes of shared memory."""


def _hold(count: int, most: int | None, what: str) -> None:
    if most is not None and count >= most:
        raise ServiceError("too-large", f"the trace has more than {most:,} {what}")


@dataclass
class Names:
    """Names as numbers, in the order in which they come."""

    most: int = 2 * MOST_KINDS
    known: dict[str, int] = field(default_factory=dict)
    characters: int = 0

    def number(self, name: str) -> int:
        """Raises DataError for names without end."""
        known = self.known.get(name)
        if known is None:
            self.characters += len(name)
            if self.characters > MOST_NAMES or len(self.known) >= self.most:
                raise DataError(
                    f"more than {self.most:,} different names, or {MOST_NAMES:,} characters of them"
                    f" (at {name[:60]!r})"
                )
            known = self.known[name] = len(self.known)
        return known

    def all(self) -> tuple[str, ...]:
        return tuple(self.known)


class Ranges:
    """Ranges on threads of the host: operators, NVTX ranges, calls that launch. At most ``most``
    (``None``: no limit)."""

    def __init__(self, most: int | None = None) -> None:
        self.names, self.called = Names(), Names()
        self._most = most
        self._threads: dict[object, int] = {}
        self.columns = {
            name: array("q") for name in ("thread", "start", "end", "name", "key", "called")
        }

    def thread(self, which: object) -> int:
        """A thread as a number."""
        return self._threads.setdefault(which, len(self._threads))

    def threads_of(self, other: Ranges, at: Integers) -> Integers:
        """The threads of some of the other's ranges, by the numbers they have here."""
        ours = np.array([self.thread(which) for which in other._threads], dtype=np.int64)
        return ours[other.column("thread")[at]]

    def add(
        self, thread: object, start: int, end: int, name: str, key: int = NONE, called: str = ""
    ) -> None:
        """One range in ns; ``key`` is what launches may refer to it by, ``called`` the operator
        that it is. Raises ServiceError ``too-large`` and DataError."""
        _hold(len(self.columns["key"]), self._most, "ranges of the host")
        operator = self.called.number(called) if called else NONE
        row = self.thread(thread), start, end, self.names.number(name), key, operator
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def column(self, name: str) -> Integers:
        """A column as it stands."""
        return np.array(self.columns[name], dtype=np.int64)

    def at(self, name: str, places: Integers) -> Integers:
        """A column at some places, ``NONE`` where a place is."""
        return np.append(self.column(name), NONE)[places]

    def found(self, keys: Integers, *, last: bool = False) -> tuple[NDArray[np.bool_], Integers]:
        """Which of ``keys`` ranges have, and where: of several with one key the first, or the
        last."""
        own = np.append(self.column("key"), NONE)
        order = np.argsort(own, kind="stable")
        at = np.searchsorted(own[order], keys, side="right" if last else "left") - last
        at = np.clip(at, 0, len(own) - 1)
        met = (own[order][at] == keys) & (keys != NONE)
        return met, order[at[met]]

    def innermost(self, thread: Integers, at: Integers) -> Integers:
        """The innermost range that holds each point of its thread, or ``NONE``."""
        found = np.full(len(at), NONE, dtype=np.int64)
        starts, ends = self.column("start"), self.column("end")
        threads = self.column("thread")
        order = np.lexsort((-ends, starts, threads))
        points = np.lexsort((at, thread))
        stack: list[int] = []
        place, count, now = 0, len(order), NONE
        for point in points.tolist():
            mine, moment = int(thread[point]), int(at[point])
            if mine != now:
                stack, now = [], mine
                place = int(np.searchsorted(threads[order], mine))
            while place < count:
                one = int(order[place])
                if threads[one] != mine or starts[one] > moment:
                    break
                while stack and ends[stack[-1]] <= starts[one]:
                    stack.pop()
                stack.append(one)
                place += 1
            while stack and ends[stack[-1]] <= moment:
                stack.pop()
            if stack:
                found[point] = stack[-1]
        return found


class Builder:
    """Collects launches in whatever order a file has them; at most ``most``."""

    def __init__(self, file: str, source: str, most: int | None = None) -> None:
        self.file, self.source, self._most = file, source, most
        self.devices: dict[object, Device] = {}
        self.operators, self.streams, self._named = Names(), Names(MOST_STREAMS), Names()
        self._kinds: dict[Kind, int] = {}
        self._devices: dict[object, int] = {}
        self._columns = {
            name: array("q") for name in ("start", "end", "device", "stream", "kind", "link")
        }
        self.untimed = 0
        self.notes: list[Diagnostic] = []

    def __len__(self) -> int:
        return len(self._columns["start"])

    def add(
        self, kind: Kind, start: int | None, end: int, device: object, stream: str, link: int
    ) -> None:
        """One launch. Times that nobody took are counted and left out (CUPTI: 0, or an end
        before the start). Raises ServiceError ``too-large`` and DataError."""
        _hold(len(self), self._most, "launches")
        timed = start is not None and -MOST_TIME < start <= end < MOST_TIME
        if start is None or not timed or start == end == 0:
            self.untimed += 1
            return
        number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self._kinds)
            self._named.number(kind.name), self._named.number(kind.mangled)
            self._check_kinds(number + 1)
        place = self._devices.setdefault(device, len(self._devices))
        _hold(len(self._devices) - 1, MOST_DEVICES, "devices")
        row = start, end, place, self.streams.number(stream), number, link
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def _check_kinds(self, count: int) -> None:
        if count > MOST_KINDS:
            raise DataError(
                f"{self.file}: more than {MOST_KINDS:,} different launches", file=self.file
            )

    def step(self, steps: list[tuple[int, int, str]], start: int, end: int, name: str) -> None:
        """One more step. Raises ServiceError ``too-large``."""
        _hold(len(steps), MOST_STEPS, "steps")
        steps.append((start, end, name))

    def column(self, name: str) -> Integers:
        """A column in the order of the file."""
        return np.array(self._columns[name], dtype=np.int64)

    def named(self, ranges: Ranges, places: Integers) -> Integers:
        """The names of ranges at some places (``NONE``: none), as numbers of operators."""
        numbers = [self.operators.number(name) for name in ranges.names.all()]
        return np.array([*numbers, NONE], dtype=np.int64)[ranges.at("name", places)]

    def built(
        self,
        operator: Integers,
        launched: Integers,
        steps: Iterable[tuple[int, int, str]],
        called: Integers | None = None,
        operators: Sequence[str] = (),
    ) -> Trace:
        """The trace; ``operator`` and ``launched`` (ns on the host, or ``NONE``) as in ``column``,
        ``called`` as places in ``operators``, which split kinds.

        ``steps`` are ranges (start, end, name). Raises DataError where no kernel was timed.
        """
        if not len(self):
            why = f"; {self.untimed} have no time" if self.untimed else ""
            raise DataError(f"{self.file}: no kernel ran in this trace{why}", file=self.file)
        start, end = self.column("start"), self.column("end")
        names, step = _steps(np.where(launched == NONE, start, launched), sorted(steps))
        # Devices in the order of their numbers, whatever came first.
        keys = sorted(self._devices, key=lambda key: (self._device(key).id, str(key)))
        place = np.empty(len(keys), dtype=np.int64)
        for at, key in enumerate(keys):
            place[self._devices[key]] = at
        order = np.lexsort((self.column("stream"), end, start))
        kinds, kind = list(self._kinds), self.column("kind")
        if operators and called is not None:
            texts = (*operators, "")
            size = len(texts)
            both = kind * size + np.where(called == NONE, size - 1, called)
            pairs, kind = np.unique(both, return_inverse=True)
            self._check_kinds(len(pairs))
            kinds = [kinds[p // size]._replace(operator=texts[p % size]) for p in pairs.tolist()]
        return Trace(
            source=self.source,
            devices=tuple(self._device(key) for key in keys),
            streams=self.streams.all(),
            kinds=tuple(kinds),
            operators=self.operators.all(),
            steps=names,
            start=start[order],
            end=end[order],
            device=place[self.column("device")][order],
            stream=self.column("stream")[order],
            kind=kind[order],
            operator=operator[order],
            step=step[order],
            untimed=self.untimed,
            notes=tuple(self.notes),
        )

    def _device(self, key: object) -> Device:
        return self.devices.get(key) or Device(key if isinstance(key, int) else 0)


def _steps(
    moments: Integers, ranges: list[tuple[int, int, str]]
) -> tuple[tuple[str, ...], Integers]:
    """Names of steps, and which of them each moment lies in: the one that began last."""
    names = Names()
    found = np.full(len(moments), NONE, dtype=np.int64)
    if not ranges:
        return (), found
    numbers = np.array([names.number(name) for _, _, name in ranges], dtype=np.int64)
    starts = np.array([start for start, _, _ in ranges], dtype=np.int64)
    ends = np.array([end for _, end, _ in ranges], dtype=np.int64)
    at = np.searchsorted(starts, moments, side="right") - 1
    inside = (at >= 0) & (moments < ends[np.maximum(at, 0)])
    found[inside] = numbers[at[inside]]
    return names.all(), found


# Kernels that share a board: who draws what while several run, and what gaps draw.
#
# At every moment the board draws its idle power where nothing runs; else what it draws with its
# clocks up (``standing``), once, plus what each running kernel moves on top of that, but no more
# than its limit. So two kernels at once never draw two boards. Each launch gets what it moves and
# its share of the standing power: joules of launches and gaps add up to those of the board.

Floats = NDArray[np.float64]

MICRO = 1_000_000
"""Powers are whole microwatts: sums that go up and down over a million launches stay exact."""

NANO_MICRO = 1e-15
"""Joules of a microwatt for a nanosecond."""


@dataclass(frozen=True)
class Board:
    """What a device draws: watts by segment between ``times`` (ns), joules by launch.

    ``watts`` has one entry less than ``times``. ``active`` counts running launches.
    """

    times: Integers
    watts: Floats
    active: Integers
    joules: Floats
    idle_joules: float
    idle_seconds: float
    shared_seconds: float
    limited_seconds: float

    @property
    def span_seconds(self) -> float:
        """Of the whole trace."""
        return float(self.times[-1] - self.times[0]) * 1e-9

    @property
    def total_joules(self) -> float:
        """Of all launches and gaps."""
        return float(self.joules.sum()) + self.idle_joules


def shared_board(
    start: Integers,
    end: Integers,
    standing_watts: Floats,
    moving_watts: Floats,
    idle_watts: float,
    limit_watts: float,
    ends: Integers,
) -> Board:
    """The board of launches ``[n]`` with the watts of each if it ran alone, in two parts.

    ``ends`` (ns): when the whole trace begins and ends; the board idles where it runs nothing.
    """
    standing = np.round(standing_watts * MICRO).astype(np.int64)
    moving = np.round(moving_watts * MICRO).astype(np.int64)
    times, places = np.unique(np.concatenate([start, end, ends]), return_inverse=True)
    begin, finish = places[: len(start)], places[len(start) : 2 * len(start)]

    def running(of: Integers) -> Integers:
        """The sum over running launches in each segment."""
        change = np.zeros(len(times), dtype=np.int64)
        np.add.at(change, begin, of)
        np.subtract.at(change, finish, of)
        return np.cumsum(change)[:-1]

    length = np.diff(times).astype(np.float64)
    active = running(np.ones(len(start), dtype=np.int64))
    stands, moves = running(standing).astype(np.float64), running(moving).astype(np.float64)
    base = np.where(active > 1, np.minimum(stands, float(standing.max(initial=0))), stands)
    room = np.maximum(limit_watts * MICRO - base, 0.0)
    held = (moves > room) & (moves > 0)
    keeps = np.where(held, room / np.where(moves > 0, moves, 1.0), 1.0)
    share = np.where(stands > 0, base / np.where(stands > 0, stands, 1.0), 1.0)
    idle = round(idle_watts * MICRO)
    watts = np.where(active == 0, float(idle), base + keeps * moves)

    def lost(kept: Floats) -> Floats:
        """Nanoseconds' worth that each launch does not get, exactly 0 where it runs alone."""
        missed = np.concatenate([[0.0], np.cumsum((1.0 - kept) * length)])
        gone: Floats = missed[finish] - missed[begin]
        return gone

    lasts = (end - start).astype(np.float64)
    joules = (moving * (lasts - lost(keeps)) + standing * (lasts - lost(share))) * NANO_MICRO
    gaps = float(length[active == 0].sum())
    return Board(
        times=times,
        watts=watts / MICRO,
        active=active,
        joules=joules,
        idle_joules=idle * gaps * NANO_MICRO,
        idle_seconds=gaps * 1e-9,
        shared_seconds=float(length[active > 1].sum()) * 1e-9,
        limited_seconds=float(length[held & (active > 1)].sum()) * 1e-9,
    )


def timeline(board: Board, origin: int, most: int) -> Timeline:
    """Power over time in at most ``most`` stretches, each with its mean watts: joules are kept.

    Seconds count from ``origin`` (ns).
    """
    span = int(board.times[-1] - board.times[0])
    if len(board.watts) <= most:
        edges = board.times
    else:
        edges = board.times[0] + np.arange(most + 1, dtype=np.int64) * span // most
        edges = np.unique(edges)
    length = np.diff(board.times).astype(np.float64)
    energy = np.concatenate([[0.0], np.cumsum(board.watts * length)])
    busy = np.concatenate([[0.0], np.cumsum(np.where(board.active > 0, length, 0.0))])
    at = (board.times - board.times[0]).astype(np.float64)  # whole: since 1970 a double has 256 ns
    marks = (edges - board.times[0]).astype(np.float64)
    width = np.diff(marks)
    keep = width > 0
    watts = np.diff(np.interp(marks, at, energy))[keep] / width[keep]
    share = np.diff(np.interp(marks, at, busy))[keep] / width[keep]
    return Timeline(
        start_seconds=((edges[:-1] - origin)[keep] * 1e-9).tolist(),
        seconds=(width[keep] * 1e-9).tolist(),
        watts=watts.tolist(),
        busy=np.clip(share, 0.0, 1.0).tolist(),
    )
