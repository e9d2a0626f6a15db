"""Measured energy of a traced application, out of the logs of DCGM and Slurm.

What is read: tables of ``dcgmi dmon -e 155,156``, CSV of dcgm-exporter's fields over time, and
``sacct --parsable2 --format JobID,ElapsedRaw,ConsumedEnergyRaw``.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from math import isfinite
from typing import Literal, NamedTuple

from wattcast.features.errors import DataError
from wattcast.predictor.messages.application import ApplicationAnswer, MeasuredEnergy

MOST_BYTES = 1 << 25
"""Largest log: three days of eight GPUs, each second."""

POWER = ("POWER", "DCGM_FI_DEV_POWER_USAGE")
"""Watts: field 155 as ``dcgmi dmon`` heads it, and by its name (dcgm_fields.h)."""

COUNTER = ("TOTEC", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
"""Millijoules since the driver was loaded: field 156."""

CLOCKS = ("timestamp", "time")
"""Heads of a column of times, in any case: seconds, milliseconds or ISO 8601."""

UNKNOWN = (2**32 - 2, 2**64 - 2)
"""Slurm's NO_VAL and NO_VAL64 (slurm.h): no energy was gathered."""

Source = Literal["dcgm", "slurm"]


class EnergyLog(NamedTuple):
    """What a log tells: joules, or mean watts where it has no times; ``seconds`` where it has;
    of how many GPUs."""

    source: Source
    joules: float | None
    watts: float | None
    seconds: float | None
    gpus: int = 1


@dataclass
class _Gpu:
    watts: list[float] = field(default_factory=list[float])
    counter: list[float] = field(default_factory=list[float])
    times: list[float] = field(default_factory=list[float])


def read_energy(text: str, devices: Collection[int] = ()) -> EnergyLog:
    """A log; of several GPUs the sum over those among ``devices``, or all if none of them is.
    Raises DataError for text that is none, or holds no energy."""
    lines = text.splitlines()
    head = next((line for line in lines if line.strip()), "")
    if "ConsumedEnergyRaw" in head:
        return _slurm(lines)
    rows = _dmon(lines) if head.startswith("#") else _csv(lines)
    gpus: dict[str, _Gpu] = {}
    for name, row in rows:
        gpu = gpus.setdefault(name, _Gpu())
        at, watts, counter = row
        if watts is not None:
            gpu.watts.append(watts)
            gpu.times += [] if at is None else [at]
        if counter is not None:
            gpu.counter.append(counter / 1e3)
    wanted = [gpu for name, gpu in gpus.items() if name in map(str, devices)] or [*gpus.values()]
    return _sum(wanted)


def compared(answer: ApplicationAnswer, text: str) -> ApplicationAnswer:
    """The answer with what a log says beside it. Raises DataError."""
    log = read_energy(text, [device.device for device in answer.devices])
    joules = log.joules if log.joules is not None else (log.watts or 0.0) * answer.span_seconds
    if not joules > 0:
        raise DataError("the log tells 0 J: was its energy gathered?")
    told = answer.energy
    note = "whole nodes, not their GPUs alone" if log.source == "slurm" else None
    span = answer.span_seconds
    if log.seconds is not None and abs(log.seconds - span) > 0.1 * span:
        longer = f"the log covers {log.seconds:.4g} s, the trace {span:.4g} s"
        note = longer if note is None else f"{note}; {longer}"
    measured = MeasuredEnergy(
        source=log.source,
        joules=joules,
        seconds=log.seconds,
        ratio=told.joules / joules,
        inside=told.low <= joules <= told.high,
        note=note,
    )
    return answer.model_copy(update={"measured": measured})


MOST_APART = 0.1
"""Share by which a log may be longer or shorter than its launches: DCGM samples once a second, so
the two ends of a log of ten are so unsure."""


def mean_watts(log: EnergyLog, busy_seconds: float | None) -> float:
    """What a log says that one board drew while launches of one kernel ran for ``busy_seconds``.
    Raises DataError where it does not tell that: it counts more than the board or the launches."""
    if log.source == "slurm":
        raise DataError("Slurm counts whole nodes; a kernel needs a log of its board, by DCGM")
    if log.gpus > 1:
        raise DataError(f"the log holds {log.gpus} GPUs; keep the rows of the one that ran it")
    seconds = log.seconds or busy_seconds
    apart = abs(log.seconds / busy_seconds - 1.0) if log.seconds and busy_seconds else 0.0
    if apart >= MOST_APART:
        told = f"the log covers {log.seconds:.4g} s, time_seconds x repeats {busy_seconds:.4g} s"
        raise DataError(f"{told}: keep the rows during which the launches ran")
    if log.watts is not None:
        return log.watts
    if not seconds:
        raise DataError("the log has no times: give time_seconds and repeats, the launches in it")
    return (log.joules or 0.0) / seconds


def _number(cell: str | None) -> float | None:
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if isfinite(value) and 0 <= value < 1e18 else None


_Row = tuple[str, tuple[float | None, float | None, float | None]]


def _dmon(lines: list[str]) -> Iterator[_Row]:
    names: list[str] = []
    for line in lines:
        words = line.split()
        if words and words[0].startswith("#"):
            names = words[1:]
        elif len(words) == len(names) + 2 and words[0] == "GPU":
            row = dict(zip(names, map(_number, words[2:]), strict=True))
            yield words[1], (None, row.get(POWER[0]), row.get(COUNTER[0]))


def _csv(lines: list[str]) -> Iterator[_Row]:
    try:
        for row in csv.DictReader(lines, strict=True):
            lower = {(name or "").lower(): cell for name, cell in row.items() if name}
            at = next((_time(lower[name]) for name in CLOCKS if name in lower), None)
            yield (
                str(lower.get("gpu") or "0"),
                (at, _number(row.get(POWER[1])), _number(row.get(COUNTER[1]))),
            )
    except csv.Error as error:
        raise DataError(f"the log is not CSV: {error}") from error


def _time(cell: str | None) -> float | None:
    number = _number(cell)
    if number is not None:
        return number / 1e3 if number > 1e11 else number  # 1e11 s are 3,000 years
    try:
        return datetime.fromisoformat((cell or "").strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _sum(gpus: list[_Gpu]) -> EnergyLog:
    joules, watts, seconds = 0.0, 0.0, [0.0]
    counted = timed = bool(gpus)
    for gpu in gpus:
        pairs = [*zip(gpu.times, gpu.watts, strict=False)]
        counted &= len(gpu.counter) > 1
        timed &= len(pairs) == len(gpu.watts) > 1
        watts += sum(gpu.watts) / max(len(gpu.watts), 1)
        seconds.append(max(gpu.times, default=0.0) - min(gpu.times, default=0.0))
    if not all(gpu.watts or len(gpu.counter) > 1 for gpu in gpus) or not gpus:
        raise DataError(
            "no energy in the log: dcgmi dmon -e 155,156, CSV of dcgm-exporter's fields or "
            "sacct --parsable2 with ConsumedEnergyRaw is wanted"
        )
    spans = max(seconds) or None
    if counted:
        steps = (max(b - a, 0.0) for gpu in gpus for a, b in pairwise(gpu.counter))
        return EnergyLog("dcgm", sum(steps), None, spans, len(gpus))
    if timed:
        for gpu in gpus:
            samples = sorted(zip(gpu.times, gpu.watts, strict=True))
            joules += sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(samples))
        return EnergyLog("dcgm", joules, None, spans, len(gpus))
    return EnergyLog("dcgm", None, watts, None, len(gpus))


def _slurm(lines: list[str]) -> EnergyLog:
    """The row of the job, or of its steps the one of the most: each counts its whole nodes."""
    jobs: dict[str, list[dict[str, str]]] = {}
    try:
        for row in csv.DictReader(lines, delimiter="|", strict=True):
            jobs.setdefault((row.get("JobID") or "").partition(".")[0], []).append(row)
    except csv.Error as error:
        raise DataError(f"the log is not what sacct --parsable2 prints: {error}") from error
    if len(jobs) != 1:
        raise DataError(f"the log holds {len(jobs)} jobs; one is wanted: sacct --jobs ID")
    (rows,) = jobs.values()
    told = [(_number(row.get("ConsumedEnergyRaw")), row) for row in rows]
    known = [(joules, row) for joules, row in told if joules and joules not in UNKNOWN]
    whole = [one for one in known if "." not in (one[1].get("JobID") or "")]
    if not known:
        raise DataError("the log tells no ConsumedEnergyRaw: does AcctGatherEnergyType gather it?")
    joules, row = max(whole or known, key=lambda one: one[0])
    return EnergyLog("slurm", joules, None, _number(row.get("ElapsedRaw")))
