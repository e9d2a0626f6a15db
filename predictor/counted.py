"""A kernel at many clocks from its hardware counters at one pair: nobody needs its code."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from wattcast.features.errors import ClockError, DataError, Diagnostic, refused
from wattcast.features.gpus import GpuProfile
from wattcast.models.choice import Constraints, Point, best_points, pareto
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling import card, physical, residual
from wattcast.models.papers.scaling.use import DCGM, KINDS, CounterKind, kind_of, use_of
from wattcast.predictor import Predictor, dvfs, parts
from wattcast.predictor.messages import ClocksAnswer
from wattcast.predictor.messages import dvfs as messages

# Reads what profilers print: Nsight Compute's and nvprof's CSV, DCGM's tables.
#
#     read_profile(text, "matmul") -> Profile("matmul", {"smsp__inst_executed.sum": 1.2e9, ...})
#
# Metrics nobody asked for are left out; the mean of several launches of a kernel is taken.

DURATION = "gpu__time_duration.sum"
"""Nsight Compute's time of a launch."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

DMON = {
    "SMACT": "DCGM_FI_PROF_SM_ACTIVE",
    "FP64A": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "FP32A": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "DRAMA": "DCGM_FI_PROF_DRAM_ACTIVE",
}
"""Heads of ``dcgmi dmon``'s columns."""

_SAMPLE = re.compile(r"(?P<name>DCGM_FI_\w+)(\{[^}]*\})?\s+(?P<value>\S+)")
"""A line of dcgm-exporter (Prometheus)."""


class Profile(NamedTuple):
    """Counters of one kernel. ``kernel`` is "" where the tool names none (DCGM)."""

    kernel: str
    values: dict[str, float]
    time_seconds: float | None


class _Reading(NamedTuple):
    kernel: str
    name: str
    value: float


def read_profile(text: str, kernel: str | None = None) -> Profile:
    """The counters that a profiler's output holds of one kernel.

    ``kernel``: its name or a part of it, needed where the output holds several. Raises DataError
    for text of no known tool, without any counter that tells a use, of several kernels of which
    none is named, and for values that are no numbers (with the row).
    """
    lines = text.splitlines()
    found = [each for each in _readings(lines) if each.name in KINDS or each.name == DURATION]
    if not any(each.name in KINDS for each in found):
        raise DataError(
            "no counters found: the output of `ncu --csv`, `nvprof --csv --metrics`, `dcgmi dmon` "
            "or dcgm-exporter is wanted"
        )
    named = sorted({each.kernel for each in found})
    chosen = [name for name in named if kernel is None or kernel == name]
    chosen = chosen or [name for name in named if kernel is not None and kernel in name]
    if len(chosen) != 1:
        told = ", ".join(repr(name) for name in named[:10])
        said = "several kernels" if kernel is None else f"{len(chosen)} kernels by {kernel!r}"
        raise DataError(f"{said}; the profile holds {told}", column="kernel")
    every: dict[str, list[float]] = defaultdict(list)
    for each in found:
        if each.kernel == chosen[0]:
            every[each.name].append(each.value)
    means = {name: sum(values) / len(values) for name, values in every.items()}
    return Profile(chosen[0], means, means.pop(DURATION, None))


def _readings(lines: list[str]) -> Iterator[_Reading]:
    for at, line in enumerate(lines):
        if line.lstrip().startswith("#") and any(head in line.split() for head in DMON):
            yield from _dmon(line.split()[1:], lines[at + 1 :], at + 2)
            return
        if _SAMPLE.match(line) is not None:
            yield from _exported(lines)
            return
        heads = _cells(line)
        for kernel, value in (("Kernel Name", "Metric Value"), ("Kernel", "Avg")):
            if {kernel, "Metric Name", value} <= set(heads):
                yield from _long(heads, kernel, value, lines[at + 1 :], at + 2)
                return
        if "Kernel Name" in heads and KINDS.keys() & set(heads):
            yield from _wide(heads, lines[at + 1 :], at + 2)
            return


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # no CSV: a word too long, a NUL
        return []


def _rows(
    heads: list[str], lines: Iterable[str], first: int
) -> Iterator[tuple[int, dict[str, str]]]:
    for row, line in enumerate(lines, first):
        if len(cells := _cells(line)) == len(heads):
            yield row, dict(zip(heads, cells, strict=True))


def _long(
    heads: list[str], kernel: str, value: str, lines: list[str], first: int
) -> Iterator[_Reading]:
    """A row for each metric: Nsight Compute's details page, and nvprof."""
    for row, cells in _rows(heads, lines, first):
        name = cells["Metric Name"]
        if name in KINDS or name == DURATION:
            number = _number(cells[value], cells.get("Metric Unit", ""), row)
            yield _Reading(cells[kernel], name, number)


def _wide(heads: list[str], lines: list[str], first: int) -> Iterator[_Reading]:
    """A column for each metric, a row of units first: Nsight Compute's raw page."""
    units: dict[str, str] | None = None
    for row, cells in _rows(heads, lines, first):
        if units is None and not cells["Kernel Name"]:
            units = cells
            continue
        for name in heads:
            if name in KINDS or name == DURATION:
                yield _Reading(
                    cells["Kernel Name"],
                    name,
                    _number(cells[name], (units or {}).get(name, ""), row),
                )


def _dmon(heads: list[str], lines: list[str], first: int) -> Iterator[_Reading]:
    for row, line in enumerate(lines, first):
        cells = line.split()
        if line.lstrip().startswith("#") or len(cells) <= len(heads) or "N/A" in cells:
            continue
        # An entity is two words ("GPU 0"); its values follow.
        for head, cell in zip(reversed(heads), reversed(cells), strict=False):
            if head in DMON:
                yield _Reading("", DMON[head], _number(cell, "", row))


def _exported(lines: list[str]) -> Iterator[_Reading]:
    for row, line in enumerate(lines, 1):
        found = _SAMPLE.match(line)
        if found is not None and found["name"] in DCGM:
            yield _Reading("", found["name"], _number(found["value"], "", row))


def _number(text: str, unit: str, row: int) -> float:
    """A value in its base unit: counts, or seconds."""
    try:
        value = float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        raise DataError(f"row {row}: {text!r} is no number", row=row) from None
    short = unit.replace("second", "s")
    if short in _SECONDS:
        return value * _SECONDS[short]
    if len(unit) > 1 and unit[0] in _PREFIXES:
        return value * _PREFIXES[unit[0]]
    return value


class _Counted(NamedTuple):
    """Counters as a request brings them."""

    kernel: str | None
    values: dict[str, float]
    clocks: ClockPair
    time_seconds: float | None
    power_watts: float | None


def dvfs_from_counters(
    predictor: Predictor, request: messages.CountedRequest
) -> messages.CountedAnswer:
    """Scales of time and power at each pair of clocks, and the best pairs.

    Raises DataError for counters that are missing, unknown, impossible or of several kernels,
    ModelError for a GPU or profiler without a frequency model, ClockError for clocks far from
    those fitted on, ConstraintError where no pair keeps to the constraints.
    """
    gpu = predictor.gpus.load(request.gpu)
    with parts.about("counters"):
        counted = _counted(request.counters, gpu)
        kind = kind_of(counted.values)
    campaign = request.campaign or _campaign(gpu.id, kind, counted.clocks)
    model = _served(gpu.id, campaign)
    parameters = model.physical.parameters
    with parts.about("counters"):
        use = use_of(counted.values, gpu, counted.clocks, counted.time_seconds, model.counted_units)
    reference = parameters.reference if request.reference is None else request.reference.pair(gpu)
    pairs = sorted(set(dvfs.wanted_pairs(request.clocks, gpu)))
    if request.clocks in (None, "grid"):
        pairs = [pair for pair in pairs if _within(parameters, pair)] or [counted.clocks]
    known = [point.clocks.pair(gpu) for point in request.known]
    every = [*pairs, counted.clocks, *known]
    told = dict(zip(every, model.scaling.scales(use, every, reference), strict=True))
    scales = _drawn(told, request.known, known, counted, reference)
    constraints = Constraints(**request.constraints.model_dump())
    points = [_absolute(pair, scales, counted) for pair in pairs]
    _check_constraints(constraints, counted)
    measured = parameters.power is not None
    base = _absolute(
        reference, {**scales, reference: physical.Scale(1.0, 1.0 if measured else None)}, counted
    )
    front = pareto(points) if measured else ()
    best = best_points(points, base.time_seconds, constraints)
    return messages.CountedAnswer(
        gpu=gpu.id,
        kernel=counted.kernel,
        model=messages.CountedModel(
            gpu=gpu.id,
            campaign=campaign,
            counters=parameters.counters,
            corrected=list(model.corrected),
            cards=[(card.folder / "card.json").as_posix() for card in model.cards],
        ),
        counted_at=ClocksAnswer.from_attributes(counted.clocks),
        uses={**use.core, "dram": use.dram},
        reference=ClocksAnswer.from_attributes(reference),
        points=[
            messages.CountedPoint(
                **_point(point, scales[point.key], base, counted),
                scale=_scale(scales[point.key], model, point.key, reference),
                pareto=any(point is each for each in front),
                feasible=not constraints.violated(point, base.time_seconds),
                extrapolated=parameters.extrapolates(point.key),
            )
            for point in points
        ],
        pareto=[ClocksAnswer.from_attributes(point.key) for point in front],
        best={
            name: messages.BestPair(**dvfs.best_pair(point, base))
            for name, point in best.items()
            if measured or name == "max_performance"
        },
        proposal=dvfs.proposal(best["min_energy"], base, model.one_in_ten, constraints)
        if measured
        else None,
        warnings=parts.plain_warnings(_notes(model, pairs, told, scales)),
    )


@lru_cache(maxsize=1024)
def _campaign(gpu: str, kind: CounterKind, clocks: ClockPair) -> str:
    """Chosen once: reading all cards takes 16 ms, and packaged ones do not change."""
    return card.campaign_for(card.scaling_store(), gpu, kind, clocks)


@lru_cache(maxsize=32)
def _served(gpu: str, campaign: str) -> card.Served:
    """Opened once, for the same reason."""
    return card.served(card.scaling_store(), gpu, campaign)


def _counted(asked: messages.MeasuredCounters, gpu: GpuProfile) -> _Counted:
    kernel, values, seconds = asked.kernel, asked.values, asked.time_seconds
    if asked.profile is not None:
        profile = read_profile(asked.profile, asked.kernel)
        kernel, values = profile.kernel or asked.kernel, profile.values
        seconds = seconds or profile.time_seconds
    return _Counted(kernel, dict(values or {}), asked.clocks.pair(gpu), seconds, asked.power_watts)


def _drawn(
    told: dict[ClockPair, physical.Scale],
    asked: Sequence[messages.KnownPoint],
    known: Sequence[ClockPair],
    counted: _Counted,
    reference: ClockPair,
) -> dict[ClockPair, physical.Scale]:
    """Scales against the reference, drawn to measurements of the same kernel at other pairs."""
    pairs, found = [reference, *told], []
    for quantity, unit in (("time", "time_seconds"), ("power", "power_watts")):
        start, base = getattr(counted, unit), getattr(told[counted.clocks], quantity)
        at, logs = list[ClockPair](), list[float]()
        for point, pair in zip(asked, known, strict=True):
            value, scale = getattr(point, unit), getattr(told[pair], quantity)
            if value is None or scale is None:
                continue
            if start is None:
                raise DataError(f"known {unit} needs counters.{unit} to compare with", column=unit)
            at.append(pair)
            logs.append(math.log(value / start * base / scale))
        moved = residual.drawn(pairs, at, np.array(logs), counted.clocks)
        found.append(np.exp(moved[1:] - moved[0]).tolist())
    low, high = np.array([physical.time_bounds(pair, reference) for pair in told]).T
    times = np.clip(np.array([scale.time for scale in told.values()]) * found[0], low, high)
    if known:  # no pair is faster than one with higher clocks
        core, memory = np.array([*told]).T
        slower = (core[:, None] <= core) & (memory[:, None] <= memory)
        times = np.where(slower, times, 0.0).max(axis=1)
    return {
        pair: physical.Scale(time, None if scale.power is None else scale.power * more)
        for (pair, scale), time, more in zip(told.items(), times.tolist(), found[1], strict=True)
    }


def _within(parameters: physical.ScalingParameters, pair: ClockPair) -> bool:
    try:
        parameters.extrapolates(pair)
    except ClockError:
        return False
    return True


def _absolute(
    pair: ClockPair, scales: dict[ClockPair, physical.Scale], counted: _Counted
) -> Point[ClockPair]:
    """Seconds and watts at a pair, where the request tells both; else what is in proportion."""
    scale, base = scales[pair], scales[counted.clocks]
    time = (counted.time_seconds or 1.0) * scale.time / base.time
    power = 1.0 if scale.power is None or base.power is None else scale.power / base.power
    return Point(pair, time, (counted.power_watts or 1.0) * power)


def _check_constraints(constraints: Constraints, counted: _Counted) -> None:
    for name, unit in (("max_power_watts", "power_watts"), ("deadline_seconds", "time_seconds")):
        if getattr(constraints, name) is not None and getattr(counted, unit) is None:
            raise refused(
                f"constraints.{name} needs counters.{unit}: scales alone tell no absolute value",
                f"constraints.{name}",
            )


def _point(
    point: Point[ClockPair], scale: physical.Scale, base: Point[ClockPair], counted: _Counted
) -> dict[str, Any]:
    energy = scale.energy
    power_told = counted.power_watts is not None and scale.power is not None
    return dict(
        **point.key._asdict(),
        speedup=base.time_seconds / point.time_seconds,
        energy_saved_percent=None if energy is None else 100 * (1 - energy),
        time_seconds=point.time_seconds if counted.time_seconds is not None else None,
        power_watts=point.power_watts if power_told else None,
        energy_joules=point.energy_joules if power_told and counted.time_seconds else None,
    )


def _scale(
    scale: physical.Scale, model: card.Served, pair: ClockPair, reference: ClockPair
) -> messages.CountedScale:
    """Scales with their ends, by the card's widths. Those of time are not cut to what the clocks
    allow, which measured times pass by a repeat's error, but are just that where nobody measured.
    """
    quantities: tuple[card.Quantity, ...] = ("time", "power")
    found: dict[str, Any] = {"energy": scale.energy}
    for name in quantities:
        value, width = getattr(scale, name), model.width(name)
        low = high = value
        if pair != reference and value is not None:
            low, high = (width.low_factor, width.high_factor) if width else (0.0, math.inf)
            low, high = value * low, value * high
            if name == "time" and width is None:
                low, high = physical.time_bounds(pair, reference)
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return messages.CountedScale(**found, level=model.cards[0].intervals.level)


def _notes(
    model: card.Served,
    pairs: Sequence[ClockPair],
    told: dict[ClockPair, physical.Scale],
    scales: dict[ClockPair, physical.Scale],
) -> Iterator[Diagnostic]:
    parameters = model.physical.parameters
    campaign = f"the campaign {parameters.campaign}"
    if parameters.time_source == "power":
        detail = f"{campaign} measured no time: how time follows the clocks was told from power"
        yield Diagnostic("time_from_power", detail)
    if parameters.power is None:
        yield Diagnostic("time_only", f"{campaign} measured no power: only time is told")
    if parameters.domains == 1:
        yield Diagnostic("one_memory_clock", f"{campaign} moved the core clock alone")
    if any(parameters.extrapolates(pair) for pair in pairs):
        low, high = parameters.core_range_mhz
        fitted = f"the model was fitted on {low:g} to {high:g} MHz core"
        yield Diagnostic("clocks_extrapolated", f"{fitted}; other pairs are extrapolated")
    if any(told[pair] != scales[pair] for pair in pairs):
        time = [100 * (scales[pair].time / told[pair].time - 1) for pair in pairs]
        power = [
            100 * (after / before - 1)
            for pair in pairs
            if (after := scales[pair].power) and (before := told[pair].power)
        ]
        moved = (
            f"{name} by {min(each):+.1f} to {max(each):+.1f} %"
            for name, each in (("time", time), ("power", power))
            if each
        )
        detail = f"scales from counters were drawn to the known points: {', '.join(moved)}"
        yield Diagnostic("known_points_applied", detail)
