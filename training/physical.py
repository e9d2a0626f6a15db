"""Fits the physical power model, and tells how far it is off on programs left out.

Rows are programs at many clocks (``training.activity_tables``); activities are taken at the
PREDICTED time, as they are when the model serves. Weights are non-negative least squares on
relative residuals, drawn towards the pooled weights of the other GPUs: fifteen programs do not
tell fifteen weights apart. docs/physical.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from features.gpus import GpuProfile, load_gpu
from models.clocks import ClockPair
from models.power.activities import UnitActivities, unit_activities
from models.power.physical import (
    IDLE_SHARE,
    POOLED,
    WEIGHTS,
    PhysicalParameters,
    VoltageCurve,
    regressors,
)
from models.time.bottleneck import predicted_seconds
from training.activity_tables import (
    ACTIVITY_GPUS,
    TABLE_CONSTANTS,
    MeasuredProgram,
    read_activity_table,
    reference_clocks,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Hyperparameters; the defaults were set once, from the ranges the prototype found good.

    ``micro_weight``: weight of all microbenchmark rows over that of all application rows.
    ``ridge``: pull towards the prior (pooled weights), in units of one program's rows.
    ``pooled_ridge``: the pooled fit's own pull towards 0.
    """

    micro_weight: float = 0.3
    ridge: float = 2.0
    pooled_ridge: float = 0.5


VOLTAGES = tuple(
    VoltageCurve(floor=floor, slope=slope)
    for floor, slope in product((0.5, 0.6, 0.7, 0.8, 0.9), (0.0, 0.3, 0.5, 0.7, 0.9, 1.1))
)
"""Curves tried for each GPU; they span those measured on three boards (dvfs data, Titan X 1.16
over a clock ratio of 1.48, Titan Xp 1.45 over 2.1, Tesla K40c 1.17 over 1.31)."""


@dataclass(frozen=True, eq=False)
class GpuRows:
    """All rows of one GPU as the fit takes them. Arrays are ``[n]``."""

    gpu: GpuProfile
    rows: tuple[MeasuredProgram, ...]
    seconds: Floats
    activities: tuple[UnitActivities, ...]
    watts: Floats
    programs: NDArray[np.str_]
    real: Bools
    idle_watts: float
    limit_watts: float
    reference: ClockPair

    @property
    def scale_watts(self) -> float:
        """What weights are multiplied by."""
        return self.limit_watts - self.idle_watts

    @cached_property
    def designs(self) -> dict[VoltageCurve, Floats]:
        """Regressors of every row under each curve of ``VOLTAGES``, ``[n, len(WEIGHTS)]``."""
        return {voltage: self.design(voltage) for voltage in VOLTAGES}

    def design(self, voltage: VoltageCurve) -> Floats:
        """Regressors of every row, ``[n, len(WEIGHTS)]``."""
        terms = [
            regressors(activities, row.clocks, self.reference, voltage)
            for activities, row in zip(self.activities, self.rows, strict=True)
        ]
        return np.array([[each[name] for name in WEIGHTS] for each in terms])

    def weights(self, settings: FitSettings) -> Floats:
        """Weight of every row in the fit."""
        micro = settings.micro_weight * np.sqrt(self.real.sum() / max(1, (~self.real).sum()))
        return np.where(self.real, 1.0, micro)


def gpu_rows(gpu_id: str) -> GpuRows:
    """The activity table of a GPU with predicted times and activities. Raises DataError."""
    gpu, rows = load_gpu(gpu_id), read_activity_table(gpu_id)
    seconds = [predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS) for row in rows]
    return GpuRows(
        gpu=gpu,
        rows=rows,
        seconds=np.array(seconds),
        activities=tuple(
            unit_activities(row.activity, gpu, row.clocks, time, constants=TABLE_CONSTANTS)
            for row, time in zip(rows, seconds, strict=True)
        ),
        watts=np.array([row.power_watts for row in rows]),
        programs=np.array([row.program for row in rows]),
        real=np.array([row.kind == "real" for row in rows]),
        idle_watts=gpu.idle_watts or IDLE_SHARE * gpu.tdp_watts,
        limit_watts=gpu.tdp_watts,
        reference=reference_clocks(rows),
    )


def all_rows() -> dict[str, GpuRows]:
    """Every GPU with an activity table. Raises DataError."""
    return {gpu: gpu_rows(gpu) for gpu in ACTIVITY_GPUS}


def solve(
    parts: Iterable[tuple[GpuRows, Bools, VoltageCurve, float]],
    ridge: float,
    settings: FitSettings,
    prior: Floats | None = None,
) -> Floats:
    """Weights that fit the chosen rows of several GPUs; ``prior`` (else 0) is what they are
    drawn to. Each part brings the rows' mask, the GPU's voltage curve and a factor."""
    blocks, targets, mass = [], [], 0.0
    for table, mask, voltage, factor in parts:
        weight = table.weights(settings)[mask] * factor
        watts = table.watts[mask]
        blocks.append(
            table.designs[voltage][mask] * (table.scale_watts / watts * weight)[:, np.newaxis]
        )
        targets.append((watts - table.idle_watts) / watts * weight)
        mass += float((weight**2).sum())
    # A program's rows weigh mass / programs; the constant makes ridge 1 about a tenth of that.
    pull = 0.3 * ridge * np.sqrt(mass / 50)
    centre = np.zeros(len(WEIGHTS)) if prior is None else prior
    blocks.append(np.eye(len(WEIGHTS)) * pull)
    targets.append(centre * pull)
    return np.asarray(nnls(np.vstack(blocks), np.concatenate(targets))[0])


def predict(table: GpuRows, weights: Floats, voltage: VoltageCurve) -> Floats:
    """Watts of every row, ``[n]``."""
    design = table.designs.get(voltage)
    if design is None:
        design = table.design(voltage)
    return np.asarray(table.idle_watts + table.scale_watts * (design @ weights))


@lru_cache(maxsize=1024)
def choose_voltage(table: GpuRows, without: str | None, settings: FitSettings) -> VoltageCurve:
    """The curve under which application rows scale best with the clocks, but for one program."""
    mask = table.programs != without

    def error(voltage: VoltageCurve) -> float:
        weights = solve([(table, mask, voltage, 1.0)], settings.ridge, settings)
        watts = predict(table, weights, voltage)
        wrong = scaling(table, watts) - scaling(table, table.watts)
        return float(np.mean(np.abs(wrong[mask & table.real])))

    return min(VOLTAGES, key=error)


def scaling(table: GpuRows, values: Floats) -> Floats:
    """Each row's value over that of the same program and input at the reference clocks."""
    at_reference = {
        row.label: value
        for row, value in zip(table.rows, values, strict=True)
        if row.clocks == table.reference
    }
    return np.array(
        [value / at_reference[row.label] for row, value in zip(table.rows, values, strict=True)]
    )


def pooled_weights(
    tables: Sequence[GpuRows], without: str | None, settings: FitSettings
) -> tuple[Floats, dict[str, VoltageCurve]]:
    """Weights common to several GPUs, every GPU weighing the same, and each one's voltage curve.

    Rows of the program ``without`` take no part.
    """
    voltages = {table.gpu.id: choose_voltage(table, without, settings) for table in tables}
    parts = []
    for table in tables:
        mask = table.programs != without
        mass = float((table.weights(settings)[mask] ** 2).sum())
        parts.append((table, mask, voltages[table.gpu.id], 7 / np.sqrt(mass)))
    return solve(parts, settings.pooled_ridge, settings), voltages


@dataclass(frozen=True)
class LeftOut:
    """Predictions of every application row by a model that saw nothing of its program.

    ``watts`` is NaN for microbenchmarks; ``median_watts`` is what the other programs' median at
    the same clocks would say.
    """

    table: GpuRows
    watts: Floats
    median_watts: Floats


def leave_program_out(tables: Mapping[str, GpuRows], gpu_id: str, settings: FitSettings) -> LeftOut:
    """Predict each program of a GPU by weights fitted without it, on any GPU."""
    table = tables[gpu_id]
    others = [tables[other] for other in tables if other != gpu_id]
    watts = np.full(len(table.rows), np.nan)
    median = np.full(len(table.rows), np.nan)
    for program in np.unique(table.programs[table.real]):
        left_out = table.programs == program
        prior, _ = pooled_weights(others, str(program), settings)
        voltage = choose_voltage(table, str(program), settings)
        weights = solve([(table, ~left_out, voltage, 1.0)], settings.ridge, settings, prior)
        watts[left_out] = predict(table, weights, voltage)[left_out]
        median[left_out] = [
            _median_at(table, ~left_out & table.real, row.clocks)
            for row, out in zip(table.rows, left_out, strict=True)
            if out
        ]
    return LeftOut(table, watts, median)


def _median_at(table: GpuRows, mask: Bools, clocks: ClockPair) -> float:
    same = [
        row.power_watts
        for row, chosen in zip(table.rows, mask, strict=True)
        if chosen and row.clocks == clocks
    ]
    return float(np.median(same))


def row_folds(
    tables: Mapping[str, GpuRows], gpu_id: str, settings: FitSettings, seed: int, folds: int
) -> tuple[Floats, Floats]:
    """Predict single rows left out at random: other clocks of their program are known.

    Returns watts and the training rows' median watts of every application row, NaN elsewhere.
    """
    table = tables[gpu_id]
    prior, _ = pooled_weights([tables[o] for o in tables if o != gpu_id], None, settings)
    voltage = choose_voltage(table, None, settings)
    real = np.flatnonzero(table.real)
    fold = np.random.default_rng(seed).permutation(len(real)) % folds
    watts = np.full(len(table.rows), np.nan)
    median = np.full(len(table.rows), np.nan)
    for number in range(folds):
        left_out = np.zeros(len(table.rows), dtype=np.bool_)
        left_out[real[fold == number]] = True
        weights = solve([(table, ~left_out, voltage, 1.0)], settings.ridge, settings, prior)
        watts[left_out] = predict(table, weights, voltage)[left_out]
        median[left_out] = np.median(table.watts[table.real & ~left_out])
    return watts, median


def leave_gpu_out(tables: Mapping[str, GpuRows], gpu_id: str, settings: FitSettings) -> Floats:
    """Watts of every row of a GPU by the other GPUs' pooled weights and its datasheet facts."""
    others = [tables[other] for other in tables if other != gpu_id]
    weights, voltages = pooled_weights(others, None, settings)
    return predict(tables[gpu_id], weights, typical_voltage(voltages.values()))


def typical_voltage(curves: Iterable[VoltageCurve]) -> VoltageCurve:
    """The median floor and slope of several curves."""
    known = list(curves)
    return VoltageCurve(
        floor=float(np.median([curve.floor for curve in known])),
        slope=float(np.median([curve.slope for curve in known])),
    )


def fitted_parameters(
    tables: Mapping[str, GpuRows], gpu_id: str, settings: FitSettings
) -> PhysicalParameters:
    """The parameters that serve: fitted on all rows of the GPU, the other GPUs as prior."""
    table = tables[gpu_id]
    prior, _ = pooled_weights([tables[o] for o in tables if o != gpu_id], None, settings)
    everything = np.ones(len(table.rows), dtype=np.bool_)
    voltage = choose_voltage(table, None, settings)
    weights = solve([(table, everything, voltage, 1.0)], settings.ridge, settings, prior)
    return _parameters(gpu_id, table, voltage, weights)


def pooled_parameters(tables: Mapping[str, GpuRows], settings: FitSettings) -> PhysicalParameters:
    """The parameters for GPUs that nobody measured; their watts are those of a typical board."""
    weights, voltages = pooled_weights(list(tables.values()), None, settings)
    known = list(tables.values())
    limit = float(np.median([table.limit_watts for table in known]))
    return PhysicalParameters(
        gpu=POOLED,
        idle_watts=IDLE_SHARE * limit,
        limit_watts=limit,
        highest_watts=limit,
        reference_core_mhz=float(np.median([table.reference.core_mhz for table in known])),
        reference_memory_mhz=float(np.median([table.reference.memory_mhz for table in known])),
        voltage=typical_voltage(voltages.values()),
        weights=_named(weights),
    )


def _parameters(
    gpu_id: str, table: GpuRows, voltage: VoltageCurve, weights: Floats
) -> PhysicalParameters:
    return PhysicalParameters(
        gpu=gpu_id,
        idle_watts=table.idle_watts,
        limit_watts=table.limit_watts,
        highest_watts=float(table.watts.max()),
        reference_core_mhz=table.reference.core_mhz,
        reference_memory_mhz=table.reference.memory_mhz,
        voltage=voltage,
        weights=_named(weights),
    )


def _named(weights: Floats) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(WEIGHTS, weights, strict=True)}
