"""Reads what profilers print: Nsight Compute's and nvprof's CSV, DCGM's tables.

    read_profile(text, "matmul") -> Profile("matmul", {"smsp__inst_executed.sum": 1.2e9, ...})

Metrics nobody asked for are left out; the mean of several launches of a kernel is taken.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wattcast.features.errors import DataError
from wattcast.models.papers.scaling.counters import DCGM, KINDS

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
