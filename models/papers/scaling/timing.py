"""Relative time of a kernel at other clocks, from what it used at one pair.

    T^p = d^p ((1/m)^p + (fill/c)^p) / (1 + fill^p) + u^p k^p + r^p (a k + (1 - a)/m)^p
    k = (1 - fixed)/c + fixed,        t = T(c, m) / T(1, 1)

c and m are core and memory clock over those of the counters. d is the use of device memory over
the use at which it binds, u the p-norm of the core units' uses over theirs, and r what neither
explains: latency, r^p = max(1 - d^p - u^p, floor). So the counters of the run itself say how much
of its time each clock governs. a, the core's share of the latency, is logistic in log(u/d):
a kernel that keeps the core busier waits for the core. ``fill``: what the path from device memory
into L2, on the core clock, adds where memory would deliver more. ``fixed``: the share of core time
that no clock shortens.

The form extends t = ||(u_dram/m, u_core/c, tau/c)||_4 (docs/frequency.md says what each term
brings). T is homogeneous of degree -1 but for ``fixed``, and falls in both
clocks: time never increases when a clock rises, and never changes by more than the clocks do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from wattcast.models.papers.scaling.use import Floats, UseTable

_SOFTENING = 0.02
"""Use below which the ratio of core to memory use tells nothing; keeps its logarithm finite."""


class TimeParameters(BaseModel):
    """Parameters of ``relative_time`` for one GPU and one kind of counters.

    ``capacities``: use of each core unit at which it limits the kernel. ``order``: p.
    ``latency_bias`` and ``latency_slope``: of the core's share of latency.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    capacities: dict[str, float] = Field(min_length=1)
    dram_capacity: float = Field(gt=0)
    order: float = Field(ge=1)
    fill: float = Field(ge=0)
    fixed_share: float = Field(ge=0, lt=1)
    latency_bias: float
    latency_slope: float = Field(ge=0)

    @property
    def form(self) -> TimeForm:
        """The parameters as numbers."""
        capacities = np.array(list(self.capacities.values()))
        return TimeForm(capacities, *(getattr(self, name) for name in TimeForm._fields[1:]))


class TimeForm(NamedTuple):
    """``TimeParameters`` as numbers; ``fill`` and ``fixed_share`` may differ by row, ``[n]``."""

    capacities: Floats
    dram_capacity: float
    order: float
    fill: float | Floats
    fixed_share: float | Floats
    latency_bias: float
    latency_slope: float


LATENCY_FLOOR = 0.02
"""Least r^p: no kernel is so saturated that nothing of it waits."""


def capacity_shares(form: TimeForm, units: Floats, dram: Floats) -> tuple[Floats, Floats]:
    """Uses over capacities: device memory's, and the core's (p-norm over its units), ``[n]``."""
    core = np.sum((units / form.capacities) ** form.order, axis=1) ** (1 / form.order)
    return dram / form.dram_capacity, np.asarray(core)


def core_latency_share(form: TimeForm, dram: Floats, core: Floats) -> Floats:
    """The share of latency on the core clock, ``[n]`` in 0..1, from ``capacity_shares``."""
    ratio = np.log((core + _SOFTENING) / (dram + _SOFTENING))
    return np.asarray(1 / (1 + np.exp(-form.latency_bias - form.latency_slope * ratio)))


def time_by_form(
    form: TimeForm, units: Floats, dram: Floats, core: Floats, memory: Floats
) -> Floats:
    """Relative time, ``[n]``, from the uses of ``form``'s units ``[n, k]`` and of memory."""
    p = form.order
    dram_use, core_use = capacity_shares(form, units, dram)
    served, busy = dram_use**p, core_use**p
    latency = np.maximum(1 - served - busy, LATENCY_FLOOR)
    at_core = core_latency_share(form, dram_use, core_use)
    core_time = (1 - form.fixed_share) / core + form.fixed_share
    delivery = (memory**-p + (form.fill / core) ** p) / (1 + form.fill**p)
    wait = (at_core * core_time + (1 - at_core) / memory) ** p
    total = served * delivery + busy * core_time**p + latency * wait
    return np.asarray((total / (served + busy + latency)) ** (1 / p))


def relative_time(
    parameters: TimeParameters, use: UseTable, core: Floats, memory: Floats
) -> Floats:
    """Time over that at the counters' clocks, ``[n]``; exactly 1 where both clocks are 1.

    ``core`` and ``memory`` ``[n]``: clocks over the counters' clocks.
    """
    units = use.select(tuple(parameters.capacities))
    time = time_by_form(parameters.form, units, use.dram, core, memory)
    return np.where((core == 1.0) & (memory == 1.0), 1.0, time)
