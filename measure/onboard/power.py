"""The physical power model of one GPU from its microbenchmarks; watts back into joules an event.

    P = P_idle + (P_limit - P_idle) sum_j w_j x_j       x: wattcast.models.power.physical.regressors

Weights are non-negative least squares on relative residuals. Activities are counts over the
MEASURED time: energies of events do not follow the time model's errors. What no microbenchmark
works keeps the pooled weight, and so does the split of terms that no measurement tells apart: base,
memory clock and clock, and the two of device memory, at a single pair of clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, isinf

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wattcast.features.errors import DataError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.measure.recording import Configuration, Recording
from wattcast.measure.workload import Pattern, executed
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.power import physical
from wattcast.models.power.activities import UnitActivities, unit_activities
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import predicted_seconds

Floats = NDArray[np.float64]

LEAST_ACTIVITY = 0.02
"""A unit no row works harder than this has no weight of its own."""

STATIC = ("base", "memory_clock", "clock")
DRAM = ("dram", "dram_core")
UNITS = (*(name for name in physical.CORE_UNITS), *physical.SHARED_WEIGHTS)

CURVES = tuple(
    physical.VoltageCurve(floor=floor, slope=slope)
    for floor, slope in product((0.5, 0.6, 0.7, 0.8, 0.9), (0.0, 0.3, 0.5, 0.7, 0.9, 1.1))
)
"""Curves tried where several core clocks were measured (those of ``physical_rows.py``)."""


@dataclass(frozen=True)
class PowerRow:
    """One configuration as the fit and the validation take it.

    ``activities`` are over the measured time, ``served`` over the predicted one, as the model is
    served. Seconds are of one launch.
    """

    key: str
    role: str
    family: str
    pattern: Pattern
    clocks: ClockPair
    watts: float | None
    measured_seconds: float
    predicted_seconds: float
    activities: UnitActivities
    served: UnitActivities


@dataclass
class Rows:
    """Rows of a recording, and why some configurations have none."""

    rows: list[PowerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def micro(self) -> list[PowerRow]:
        """Those that weights are fitted on."""
        return [
            row
            for row in self.rows
            if row.role == "micro" and row.pattern == "uniform" and row.watts is not None
        ]

    @property
    def applications(self) -> list[PowerRow]:
        """Those that a fit is judged by."""
        return [row for row in self.rows if row.role == "application"]


def power_rows(recording: Recording, gpu: GpuProfile) -> Rows:
    """Activities of everything measured that is not there for its time alone."""
    found = Rows()
    for one in recording.configurations:
        if one.workload.timed_only:
            continue
        try:
            row = _row(recording, one, gpu)
        except WattcastError as error:
            found.notes.append(f"{one.key}: not analysed: {error}")
            continue
        if row is None:
            found.notes.append(f"{one.key}: no time, or no PTX")
            continue
        if row.watts is None:
            found.notes.append(f"{one.key}: no power: {', '.join(one.result.unresolved)}")
        found.rows.append(row)
    return found


def _row(recording: Recording, one: Configuration, gpu: GpuProfile) -> PowerRow | None:
    workload, result = recording.workload(one), one.result
    if workload is None or result.time_seconds is None:
        return None
    default = default_clocks(gpu)
    clocks = ClockPair(result.core_mhz or default.core_mhz, result.memory_mhz or default.memory_mhz)
    analysis = executed(workload, gpu, one.pattern)
    activity, more = analysis.activity, beside(analysis.extras)
    seconds = predicted_seconds(activity, gpu, clocks, more=more)
    activities = unit_activities(activity, gpu, clocks, result.time_seconds, more=more)
    held = not {"clocks_moved", "not_stable"} & set(result.unresolved)
    return PowerRow(
        key=one.key,
        role=workload.role,
        family=workload.family,
        pattern=one.pattern,
        clocks=clocks,
        watts=result.power_watts if held else None,
        measured_seconds=result.time_seconds,
        predicted_seconds=seconds,
        activities=activities,
        served=unit_activities(activity, gpu, clocks, seconds, more=more),
    )


UNRESOLVED_SHARE = 0.2
"""Standard error over weight from which an energy is told as not resolved. FP16 of a GTX 1080 Ti
draws 0.1 W of 50: of 200 fits to powers 0.2 % off by chance, 27 had an error below a half, none
below a quarter. Energies that are found have 0.08 at most (simulated boards, docs/measuring.md)."""


@dataclass(frozen=True)
class FittedPower:
    """Parameters, how far each energy can be trusted, and what was not measured.
    ``error_share``: standard error of a term's weight over it, from the residuals; infinite for a
    unit that was worked and found to need nothing."""

    parameters: physical.PhysicalParameters
    error_share: Mapping[str, float]
    residual_percent: float
    notes: tuple[str, ...] = ()

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Terms whose energy is more error than finding: a unit so slow, say, that what it does
        in a second is lost beside the rest."""
        return tuple(name for name, error in self.error_share.items() if error > UNRESOLVED_SHARE)


def fit_power(
    rows: Sequence[PowerRow],
    gpu: GpuProfile,
    idle_watts: float,
    pooled: physical.PhysicalParameters,
    limit_watts: float | None = None,
) -> FittedPower:
    """Fit the weights on rows with power. Raises DataError for too few of them."""
    known = [row for row in rows if row.watts is not None]
    if len(known) < 3:
        raise DataError(f"{len(known)} measured powers: too few to fit a power model")
    clocks = sorted({row.clocks for row in known})
    # Clocks that differ by a step of the driver's are one pair.
    core = {round(pair.core_mhz / (0.02 * clocks[-1].core_mhz)) for pair in clocks}
    memory = {round(pair.memory_mhz / (0.02 * clocks[-1].memory_mhz)) for pair in clocks}
    reference = ClockPair(
        float(np.median([row.clocks.core_mhz for row in known]))
        if len(core) == 1
        else max(pair.core_mhz for pair in clocks),
        max(pair.memory_mhz for pair in clocks),
    )
    several = len(core) > 1
    limit = limit_watts or gpu.tdp_watts
    fits = [
        _Fit(known, reference, curve, idle_watts, limit, pooled, several, len(memory) > 1)
        for curve in (CURVES if several else (pooled.voltage,))
    ]
    best = min(fits, key=lambda fit: fit.error)
    notes = list(best.notes)
    if not several:
        notes.append(
            "measured at one core clock: voltage, and the split of what a board draws for running "
            "at all, are those of the pooled model"
        )
    fitted = FittedPower(best.parameters(gpu.id), best.error_share(), best.error * 100)
    for name in fitted.unresolved:
        error = fitted.error_share[name]
        found = "found as 0" if isinf(error) else f"standard error {error:.0%} of it"
        notes.append(f"{name}: the sensor does not resolve its energy ({found})")
    return replace(fitted, notes=tuple(notes))


@dataclass
class _Fit:
    """One voltage curve's weights."""

    rows: Sequence[PowerRow]
    reference: ClockPair
    voltage: physical.VoltageCurve
    idle: float
    limit: float
    pooled: physical.PhysicalParameters
    several_core: bool
    several_memory: bool
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watts = np.array([row.watts for row in self.rows], dtype=np.float64)
        self.terms = [
            physical.regressors(row.activities, row.clocks, self.reference, self.voltage)
            for row in self.rows
        ]
        self.groups = self._groups()
        self._solve()

    def _groups(self) -> dict[str, dict[str, float]]:
        """Columns of the fit: each the terms it stands for, with their shares."""
        if self.several_core:
            # Where memory's clock did not change its part is one with the constant.
            static = STATIC if self.several_memory else ("base", "clock")
            groups = {name: {name: 1.0} for name in (*static, *DRAM)}
        else:
            groups = {"static": self._shares(STATIC), "dram": self._shares(DRAM)}
        groups |= {unit: {unit: 1.0} for unit in UNITS}
        kept = {}
        for name, parts in groups.items():
            if name not in STATIC and name != "static":
                most = max(max(terms[part] for part in parts) for terms in self.terms)
                if most < LEAST_ACTIVITY:
                    self.notes.append(f"{name}: no microbenchmark works it; pooled weight")
                    continue
            kept[name] = parts
        return kept

    def _shares(self, names: Sequence[str]) -> dict[str, float]:
        weights = {name: self.pooled.weight(name) for name in names}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def _solve(self) -> None:
        scale = self.limit - self.idle
        columns = [
            [sum(share * terms[name] for name, share in parts.items()) for terms in self.terms]
            for parts in self.groups.values()
        ]
        design = np.array(columns).T * (scale / self.watts)[:, np.newaxis]
        fixed = np.array([self._unmeasured(terms) for terms in self.terms])
        target = (self.watts - self.idle - scale * fixed) / self.watts
        solution, _ = nnls(design, target)
        self.design, self.solution = design, solution
        self.residuals = target - design @ solution
        self.error = float(np.mean(np.abs(self.residuals)))

    def _unmeasured(self, terms: Mapping[str, float]) -> float:
        """What units without a column add by their pooled weights."""
        measured = {name for parts in self.groups.values() for name in parts}
        rest = set(UNITS) | set(DRAM)
        return sum(self.pooled.weight(name) * terms[name] for name in rest - measured)

    def error_share(self) -> dict[str, float]:
        """Standard error over weight of the columns above 0, and of units at 0."""
        used = self.solution > 0
        count = len(self.watts) - int(used.sum())
        if count < 1:
            return {}
        variance = float(self.residuals @ self.residuals) / count
        covariance = variance * np.linalg.pinv(self.design[:, used].T @ self.design[:, used])
        errors = np.sqrt(np.diag(covariance)) / self.solution[used]
        names = np.array(list(self.groups))
        found = dict(zip(map(str, names[used]), map(float, errors), strict=True))
        return found | {str(name): inf for name in names[~used] if name in UNITS}

    def parameters(self, gpu_id: str) -> physical.PhysicalParameters:
        weights = {
            name: self.pooled.weight(name) if name not in STATIC else 0.0
            for name in physical.WEIGHTS
        }
        own: dict[str, float] = {}
        for value, parts in zip(self.solution, self.groups.values(), strict=True):
            for name, share in parts.items():
                target = own if name in physical.SHARED_WEIGHTS else weights
                target[name] = round(float(value) * share, 8)
        return physical.PhysicalParameters(
            gpu=gpu_id,
            idle_watts=round(self.idle, 4),
            limit_watts=self.limit,
            highest_watts=float(self.watts.max()),
            reference_core_mhz=self.reference.core_mhz,
            reference_memory_mhz=self.reference.memory_mhz,
            voltage=self.voltage,
            weights=weights,
            own_weights=own,
        )


def predicted_watts(parameters: physical.PhysicalParameters, row: PowerRow) -> float:
    """Watts of a row, from activities as served."""
    return physical.predicted_power(parameters, row.served, row.clocks).watts


def picojoules(parameters: physical.PhysicalParameters, gpu: GpuProfile) -> dict[str, float]:
    """Energy of one event at the reference clocks in pJ, and ``active_watts``.

    Events are those of ``wattcast.models.power.physical.events_per_second``.
    """
    scale = parameters.limit_watts - parameters.idle_watts
    energies = {
        name: scale
        * (
            sum(parameters.weight(part) for part in DRAM)
            if name == "dram"
            else parameters.weight(name)
        )
        / rate
        * 1e12
        for name, rate in physical.events_per_second(gpu, parameters.reference).items()
        if rate
    }
    return {
        **energies,
        "active_watts": scale * sum(parameters.weight(name) for name in STATIC),
    }
