"""What each part of the physical scaling model brings: errors without it, programs left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from studies.clocks.scaling_fits import PowerSettings, TimePrior
from studies.clocks.scaling_protocols import PhysicalFit, fit_physical, log_ratios
from studies.clocks.scaling_rows import TITAN_X, Bools, Floats, ScalingRows, scaling_rows
from studies.clocks.scaling_studies import (
    DCGM_CAMPAIGNS,
    NVPROF_CAMPAIGNS,
    scale_scores,
)
from studies.clocks.scaling_trees import CANDIDATES, Library, ResidualRows, inner_errors
from wattcast.models.clocks import ClockPair
from wattcast.training.card_tables import table

Fit = Callable[[Sequence[ScalingRows]], list[PhysicalFit]]
_FIXED = 1e-3
"""Width of a prior that leaves a parameter where it is."""


def _with(**changes: float) -> Fit:
    return lambda parts: fit_physical(parts, TimePrior(**changes))


def _each_alone(parts: Sequence[ScalingRows]) -> list[PhysicalFit]:
    return [fit_physical([part])[0] for part in parts]


VARIANTS: tuple[tuple[str, Fit], ...] = (
    ("as served", fit_physical),
    ("no gap between launches", lambda parts: fit_physical(parts, None, PowerSettings(gap=False))),
    ("no path into L2 on the core clock", _with(fill=1e-3, fill_width=_FIXED)),
    ("order 4", _with(order=4.0, order_width=_FIXED)),
    ("latency all on the core clock", _with(latency_bias=9.0, latency_bias_width=_FIXED)),
    ("latency half and half", _with(latency_bias=0.0, latency_bias_width=_FIXED,
                                    latency_slope=1e-3, latency_slope_width=_FIXED)),
    ("capacities all at the prior", _with(capacity_width=_FIXED, dram_width=_FIXED)),
    ("each campaign fitted alone", _each_alone),
)  # fmt: skip


def parts_table(campaigns: Sequence[str] = NVPROF_CAMPAIGNS) -> str:
    """Mean errors in points of time and power scales, by variant and campaign."""
    parts = [scaling_rows(campaign) for campaign in campaigns]
    lines = []
    for name, fit in VARIANTS:
        cells = []
        for part, (time, power) in zip(parts, _left_out(parts, fit), strict=True):
            cell = f"{scale_scores(time, part.time_scale, part.is_reference).mean_points:.2f}"
            if part.has_power:
                errors = scale_scores(power, part.power_scale, part.is_reference)
                cell += f", {errors.mean_points:.2f}"
            cells.append(cell)
        lines.append([name, *cells])
    return table(["time, power points", *campaigns], lines)


def _left_out(parts: Sequence[ScalingRows], fit: Fit) -> list[tuple[Floats, Floats]]:
    """Time and power scales of every row by a fit that saw none of its program."""
    found = [(np.full(len(part), np.nan), np.full(len(part), np.nan)) for part in parts]
    starts = np.cumsum([0, *[len(part) for part in parts]])
    for program in sorted({str(group) for part in parts for group in part.groups}):
        ratios = log_ratios(parts, fit([part.take(part.groups != program) for part in parts]))
        assert ratios.time is not None, "campaigns with measured times"
        for at, part in enumerate(parts):
            mine = part.groups == program
            found[at][0][mine] = ratios.time.physical[starts[at] : starts[at + 1]][mine]
            if (power := ratios.power[at]) is not None:
                found[at][1][mine] = power.physical[mine]
    return found


LIBRARIES: tuple[Library, ...] = ("xgboost", "catboost")


def library_table() -> str:
    """Mean error in points by library and number of trees; 0 trees is the physical model."""
    titles = ["campaign", "quantity", "library"]
    titles += [f"{one.trees} of depth {one.depth}" for one in CANDIDATES]
    lines = []
    for label, rows, train in _cases():
        for library in LIBRARIES:
            errors = inner_errors(rows, train, CANDIDATES, library)
            lines.append([label, rows.quantity, library, *(f"{error:.2f}" for error in errors)])
    return table(titles, lines)


def _cases() -> Iterator[tuple[str, ResidualRows, Bools]]:
    two_memories = ClockPair(1164.0, 3505.0), (810.0, 3505.0)
    for campaigns, reference, memory in (
        (NVPROF_CAMPAIGNS, None, None),
        (DCGM_CAMPAIGNS, None, None),
        ((TITAN_X,), *two_memories),
        ((TITAN_X,), None, None),
    ):
        parts = [scaling_rows(name, reference=reference, memory_mhz=memory) for name in campaigns]
        train = [~part.real if (~part.real).any() else part.real for part in parts]
        fits = fit_physical([part.take(rows) for part, rows in zip(parts, train, strict=True)])
        ratios = log_ratios(parts, fits)
        if ratios.time is not None:
            yield f"{len(campaigns)} campaigns", ratios.time, np.concatenate(train)
        for part, power, rows in zip(parts, ratios.power, train, strict=True):
            if power is not None:
                label = f"{part.campaign}, {part.reference.core_mhz:g}/"
                yield label + f"{part.reference.memory_mhz:g}", power, rows
