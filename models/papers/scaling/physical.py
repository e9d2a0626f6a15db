"""The physical scaling model of one GPU: time, power and energy at any clock pair.

    model = PhysicalScaling(parameters)            # of one GPU
    model.scales(use, [ClockPair(900, 3505)])      # against the reference pair
    -> [Scale(time=1.31, power=0.62, energy=0.81)]

``use`` is what a profiler counted at one clock pair (``use.py``); the reference defaults to the
highest pair of the campaign the parameters were fitted on. Forms: ``timing.py`` and ``power.py``;
energy is always time x power. docs/frequency.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field, model_validator

from wattcast.features.checked import Frozen, Strict
from wattcast.features.errors import ClockError, ModelError
from wattcast.models.clocks import ABOVE, BELOW, ClockPair, checked
from wattcast.models.papers.scaling.use import UNITS, CounterKind, Floats, KernelUse, UseTable

# Relative time of a kernel at other clocks, from what it used at one pair.
#
#     T^p = d^p ((1/m)^p + (fill/c)^p) / (1 + fill^p) + u^p k^p + r^p (a k + (1 - a)/m)^p
#     k = (1 - fixed)/c + fixed,        t = T(c, m) / T(1, 1)
#
# c and m are core and memory clock over those of the counters. d is the use of device memory over
# the use at which it binds, u the p-norm of the core units' uses over theirs, and r what neither
# explains: latency, r^p = max(1 - d^p - u^p, floor). So the counters of the run itself say how much
# of its time each clock governs. a, the core's share of the latency, is logistic in log(u/d): a
# kernel that keeps the core busier waits for the core. ``fill``: what the path from device memory
# into L2, on the core clock, adds where memory would deliver more. ``fixed``: the share of core
# time that no clock shortens.
#
# The form extends t = ||(u_dram/m, u_core/c, tau/c)||_4 (docs/frequency.md says what each term
# brings). T is homogeneous of degree -1 but for ``fixed``, and falls in both
# clocks: time never increases when a clock rises, and never changes by more than the clocks do.

_SOFTENING = 0.02
"""Use below which the ratio of core to memory use tells nothing; keeps its logarithm finite."""


class TimeParameters(Strict):
    """Parameters of ``relative_time`` for one GPU and one kind of counters.

    ``capacities``: use of each core unit at which it limits the kernel. ``order``: p.
    ``latency_bias`` and ``latency_slope``: of the core's share of latency.
    """

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


# Power of a kernel at other clocks, from what it used at one pair.
#
#     P = board + leak_c s + clock_c s^2 c + leak_m s_m + clock_m s_m^2 m
#         + duty (s^2 sum_j w_j u_j + s_m^2 w_dram u_dram) / t
#
# c, m: clocks over the nominal pair; s, s_m: voltages over those there (Guerreiro et al., HPCA
# 2018); u: uses, t: relative time, so that u/t is work per second. All watts are >= 0. ``duty`` is
# T / (T + gap): a campaign repeats a kernel in a loop and reads the board's average, so that a
# kernel of 40 us seems to draw little; ``gap`` is the campaign's idle time between two launches.
# With ``gap_seconds`` 0 the kernel runs back to back.

# --- voltage of a clock domain over its clock: what power rises with, besides the clock itself


class VoltageKnots(Strict):
    """Relative voltage at some clocks: 1 at the nominal clock, never falling as the clock rises.

    Straight lines between the knots; beyond them the voltage of the last one.
    """

    mhz: tuple[float, ...] = Field(min_length=1)
    relative: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sound(self) -> VoltageKnots:
        if len(self.mhz) != len(self.relative):
            raise ValueError("a voltage for every clock")
        if (np.diff(self.mhz) <= 0).any():
            raise ValueError("clocks must ascend")
        if min(self.relative) <= 0 or (np.diff(self.relative) < 0).any():
            raise ValueError("voltages must be above 0 and never fall")
        return self

    def at(self, mhz: Floats) -> Floats:
        """Relative voltage at each clock, in the shape of ``mhz``."""
        return np.interp(mhz, self.mhz, self.relative)


# --- power of a kernel at other clocks, from what it used at one pair -------------------------


STATIC_WATTS = (
    "board_watts",
    "core_leakage_watts",
    "core_clock_watts",
    "memory_leakage_watts",
    "memory_clock_watts",
)
"""What a board draws whatever runs on it, by what moves it."""


class PowerParameters(Strict):
    """Parameters of ``power_watts`` for one GPU and one kind of counters.

    Watts at the nominal pair; ``unit_watts`` and ``dram_watts`` at a use of 1.
    """

    board_watts: float = Field(ge=0)
    core_leakage_watts: float = Field(ge=0)
    core_clock_watts: float = Field(ge=0)
    memory_leakage_watts: float = Field(ge=0)
    memory_clock_watts: float = Field(ge=0)
    unit_watts: dict[str, float] = Field(min_length=1)
    dram_watts: float = Field(ge=0)
    gap_seconds: float = Field(ge=0)
    core_voltage: VoltageKnots
    memory_voltage: VoltageKnots

    @model_validator(mode="after")
    def _sound(self) -> PowerParameters:
        if any(watts < 0 for watts in self.unit_watts.values()):
            raise ValueError("a unit's watts are negative")
        return self

    @property
    def watts(self) -> Floats:
        """All watts in the order of ``power_terms``, ``[6 + k]``."""
        fixed = [getattr(self, name) for name in (*STATIC_WATTS, "dram_watts")]
        return np.array([*fixed, *self.unit_watts.values()])


def power_watts(
    parameters: PowerParameters,
    use: UseTable,
    nominal: ClockPair,
    core_mhz: Floats,
    memory_mhz: Floats,
    time: Floats,
) -> Floats:
    """Board watts, ``[n]``, at clocks ``[n]``; ``time`` is relative to the counters' clocks.

    The uses are at the nominal pair. Where their seconds are unknown (NaN), the kernel is taken
    to be long against the campaign's gap.
    """
    terms = power_terms(
        use.select(tuple(parameters.unit_watts)),
        use.dram,
        core_mhz / nominal.core_mhz,
        memory_mhz / nominal.memory_mhz,
        parameters.core_voltage.at(core_mhz),
        parameters.memory_voltage.at(memory_mhz),
        duty(parameters.gap_seconds, use.seconds * time) / time,
    )
    # Not a matrix product: its last bits depend on the row, and equal rows must give equal watts.
    return np.asarray(np.sum(terms * parameters.watts, axis=1))


def power_terms(
    units: Floats,
    dram: Floats,
    core: Floats,
    memory: Floats,
    core_voltage: Floats,
    memory_voltage: Floats,
    work_rate: Floats,
) -> Floats:
    """What each of ``PowerParameters.watts`` is multiplied by, ``[n, 6 + k]``.

    Clocks and voltages over the nominal ones; ``work_rate`` is duty over relative time.
    """
    core_work = core_voltage**2 * work_rate
    return np.column_stack(
        [
            np.ones_like(core),
            core_voltage,
            core_voltage**2 * core,
            memory_voltage,
            memory_voltage**2 * memory,
            memory_voltage**2 * work_rate * dram,
            core_work[:, None] * units,
        ]
    )


def duty(gap_seconds: float, seconds: Floats) -> Floats:
    """Share of a campaign's loop in which the kernel runs, ``[n]``; 1 where seconds are NaN."""
    known = np.where(np.isnan(seconds), np.inf, seconds)
    return np.asarray(1 / (1 + gap_seconds / known))


class Scale(NamedTuple):
    """Time, power and energy over those at the reference pair; ``None`` where nobody measured."""

    time: float
    power: float | None

    @property
    def energy(self) -> float | None:
        """Time x power."""
        return None if self.power is None else self.time * self.power


class ScalingParameters(Frozen):
    """Everything the physical model knows of one GPU by one campaign.

    ``nominal`` is the pair the campaign counted at and voltages are 1 at, ``reference`` the pair
    that scales refer to unless told otherwise; ``core_range_mhz`` and ``memory_range_mhz`` span
    the clocks fitted on. ``time_source`` says whether times were measured, or told from how
    power follows the clocks. Without ``power`` the campaign measured none.
    """

    gpu: str
    campaign: str
    counters: CounterKind
    nominal: ClockPair
    reference: ClockPair
    core_range_mhz: tuple[float, float]
    memory_range_mhz: tuple[float, float]
    time_source: str = Field(pattern="^(measured|power)$")
    time: TimeParameters
    power: PowerParameters | None

    @model_validator(mode="after")
    def _sound(self) -> ScalingParameters:
        known = UNITS[self.counters]
        used = set(self.time.capacities) | set(self.power.unit_watts if self.power else ())
        if not used <= set(known):
            raise ValueError(f"{self.counters} counters do not include {sorted(used - set(known))}")
        for pair in (self.nominal, self.reference):
            checked(pair)
        return self

    @property
    def domains(self) -> int:
        """Clock domains the campaign moved: 1 (core) or 2 (core and memory)."""
        return 1 if self.memory_range_mhz[0] == self.memory_range_mhz[1] else 2

    def extrapolates(self, clocks: ClockPair) -> bool:
        """Whether a pair lies outside the clocks fitted on.

        Raises ClockError beyond half the lowest or 1.2 times the highest.
        """
        outside = False
        for name, mhz, (low, high) in (
            ("core_mhz", clocks.core_mhz, self.core_range_mhz),
            ("memory_mhz", clocks.memory_mhz, self.memory_range_mhz),
        ):
            least, most = low * BELOW, high * ABOVE
            if not least <= mhz <= most:
                raise ClockError(
                    f"{name} is {mhz:g}; the frequency model of {self.gpu} by {self.campaign} is "
                    f"asked from {least:g} to {most:g} MHz",
                    field=name,
                )
            outside = outside or not low <= mhz <= high
        return outside


class PhysicalScaling:
    """Scales of kernels on one GPU by the physical model."""

    def __init__(self, parameters: ScalingParameters) -> None:
        self.parameters = parameters

    def scales(
        self,
        use: KernelUse,
        clocks: Sequence[ClockPair],
        reference: ClockPair | None = None,
    ) -> list[Scale]:
        """Time, power and energy at each pair over those at ``reference``, there exactly 1.

        Raises ModelError for counters of another kind, ClockError
        for clocks far outside those fitted on.
        """
        pairs = [reference or self.parameters.reference, *clocks]
        self.check(use, pairs)
        table = UseTable.of([use]).take(np.zeros(len(pairs), dtype=np.int64))
        core, memory = (np.array([pair[at] for pair in pairs], dtype=np.float64) for at in (0, 1))
        time = self.times(table, use.clocks, core, memory)
        power = self.watts(table, use.clocks, core, memory, time)
        return [
            Scale(
                # The form keeps these bounds; rounding may not.
                float(np.clip(time[at] / time[0], *time_bounds(pairs[at], pairs[0]))),
                None if power is None else float(power[at] / power[0]),
            )
            for at in range(1, len(pairs))
        ]

    def times(
        self, use: UseTable, counted_at: ClockPair, core_mhz: Floats, memory_mhz: Floats
    ) -> Floats:
        """Time over that at the counters' clocks, ``[n]``; one row of ``use`` for each pair."""
        return relative_time(
            self.parameters.time,
            use,
            core_mhz / counted_at.core_mhz,
            memory_mhz / counted_at.memory_mhz,
        )

    def watts(
        self,
        use: UseTable,
        counted_at: ClockPair,
        core_mhz: Floats,
        memory_mhz: Floats,
        time: Floats,
    ) -> Floats | None:
        """Board watts, ``[n]``, given ``times``; ``None`` where the campaign measured none."""
        parameters = self.parameters.power
        if parameters is None:
            return None
        nominal = self.parameters.nominal
        at_nominal = self.at_nominal(use, counted_at)
        return power_watts(parameters, at_nominal, nominal, core_mhz, memory_mhz, time)

    def at_nominal(self, use: UseTable, counted_at: ClockPair) -> UseTable:
        """The same work per second as uses of the nominal clocks: what watts belong to."""
        nominal = self.parameters.nominal
        return UseTable(
            use.units,
            use.core * (counted_at.core_mhz / nominal.core_mhz),
            use.dram * (counted_at.memory_mhz / nominal.memory_mhz),
            use.seconds,
        )

    def check(self, use: KernelUse, pairs: Sequence[ClockPair]) -> None:
        """Raises ModelError for counters of another kind, ClockError for clocks far outside."""
        if use.kind != self.parameters.counters:
            raise ModelError(
                f"the frequency model of {self.parameters.gpu} takes {self.parameters.counters} "
                f"counters, not {use.kind}",
                gpu=self.parameters.gpu,
            )
        for pair in pairs:
            self.parameters.extrapolates(checked(pair))


def time_bounds(clocks: ClockPair, reference: ClockPair) -> tuple[float, float]:
    """Least and most time scale that clocks allow: 1 and the larger clock ratio, if both fall.

    Both ends never rise with a clock, so that cutting a prediction to them keeps its order.
    """
    ratios = [r / c for r, c in zip(reference, clocks, strict=True)]
    return min(1.0, *ratios), max(1.0, *ratios)
