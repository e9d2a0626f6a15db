"""Power from activity that hardware measured: DCGM's shares, Guerreiro et al.'s utilisations.

Not what serves, but what the physical form is worth where nothing about the kernel is guessed:

-   ``dcgm_left_out``: from DCGM's shares of SMs, FP32, FP64 and device memory at every clock,
    programs left out. Two forms, the physical one and a quadratic in the shares' square roots;
    which of them, or their geometric mean, and how much microbenchmarks weigh is chosen for each
    program over the others left out in turn.
-   ``titan_x``: GTX Titan X, fitted on microbenchmarks, read on real programs, by the scaling
    model's terms (``studies.clocks.scaling_fits``) with residuals of watts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import nnls
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from studies.clocks.scaling_fits import PowerSettings, fit_power_and_time
from studies.clocks.scaling_rows import scaling_rows
from studies.data.activity_tables import MeasuredProgram, read_activity_table
from studies.power.physical_fit import Fits
from studies.power.physical_rows import Bools, Floats, GpuRows, prototype_rows
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import VoltageCurve
from wattcast.models.scaling.power import power_watts
from wattcast.models.scaling.timing import relative_time
from wattcast.training.evaluation.scores import mape_percent

SHARES = ("sm_active", "fp32_active", "fp64_active", "dram_active")
"""DCGM's profiling fields, 0 to 1, measured at every clock (``dcgm_*`` of the activity tables)."""

OCCUPANCY = "sm_occupancy"
"""Resident warps: no unit that draws, but the quadratic form may learn what it goes with."""

DCGM_GPUS = ("quadro-rtx-8000", "tesla-v100")
MICRO_WEIGHTS = (0.03, 0.1, 0.3)
FORMS = ("physical", "quadratic", "mean")
CANDIDATES = tuple(product(MICRO_WEIGHTS, FORMS))


@dataclass(frozen=True)
class Measured:
    """Error in percent of one route on one GPU, and of the median at the same clocks."""

    gpu_id: str
    rows: int
    model_percent: float
    median_percent: float


class DcgmRows:
    """Rows of one GPU with DCGM's shares ``[n, 5]``; the rest as in ``GpuRows``."""

    def __init__(self, gpu_id: str) -> None:
        rows: Sequence[MeasuredProgram] = read_activity_table(gpu_id)
        self.table: GpuRows = prototype_rows(gpu_id)
        self.shares: Floats = np.array(
            [[row.counters[f"dcgm_{name}"] for name in (*SHARES, OCCUPANCY)] for row in rows]
        ).clip(0.0, 1.0)
        self.core = self.table.clocks_mhz[:, 0] / self.table.reference.core_mhz
        self.fits = Fits({gpu_id: self.table})

    def predicted(self, left_out: frozenset[str], micro_weight: float) -> dict[str, Floats]:
        """Watts of every row by each of ``FORMS``, fitted without some programs."""
        table = self.table
        train = ~np.isin(table.programs, list(left_out))
        real, micro = train & table.real, train & ~table.real
        weights = np.where(table.real, 1.0, micro_weight * real.sum() / micro.sum())
        voltage = self.fits.voltage(table.gpu.id, left_out)
        physical = self._physical(train, weights, voltage)
        quadratic = self._quadratic(train, weights)
        mean = np.sqrt(physical * quadratic)
        return {"physical": physical, "quadratic": quadratic, "mean": mean}

    def _physical(self, train: Bools, weights: Floats, voltage: VoltageCurve) -> Floats:
        table = self.table
        volts = np.maximum(voltage.floor, 1 - voltage.slope * (1 - self.core))
        switching = volts**2 * self.core
        dram = self.shares[:, SHARES.index("dram_active")]
        design = np.column_stack(
            [
                np.ones_like(dram),
                switching,
                switching[:, np.newaxis] * self.shares[:, : len(SHARES)],
                dram,
            ]
        )
        weight = np.sqrt(weights[train]) / table.watts[train]
        target = (table.watts[train] - table.idle_watts) * weight
        fitted, _ = nnls(design[train] * weight[:, np.newaxis], target)
        return np.asarray(table.idle_watts + design @ fitted)

    def _quadratic(self, train: Bools, weights: Floats) -> Floats:
        inputs = np.column_stack([np.sqrt(self.shares), self.core])
        model = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge(1.0))
        model.fit(
            inputs[train], np.log(self.table.watts[train]), ridge__sample_weight=weights[train]
        )
        return np.asarray(np.exp(model.predict(inputs)))


def dcgm_left_out(gpus: Sequence[str] = DCGM_GPUS) -> dict[str, Floats]:
    """Watts of every application row, its program left out of fit and choice; else NaN."""
    rows = {gpu_id: DcgmRows(gpu_id) for gpu_id in gpus}
    programs = sorted({str(p) for one in rows.values() for p in one.table.programs[one.table.real]})

    def errors(left_out: frozenset[str], program: str) -> Floats:
        """Mean error over GPUs on one program by each candidate."""
        found = []
        for one in rows.values():
            mine = one.table.real & (one.table.programs == program)
            by_weight = {w: one.predicted(left_out, w) for w in MICRO_WEIGHTS}
            wrong = [
                np.abs(by_weight[w][form][mine] / one.table.watts[mine] - 1).mean()
                for w, form in CANDIDATES
            ]
            found.append(wrong)
        return np.asarray(np.mean(found, axis=0))

    return _nested(rows, programs, errors)


def _nested(
    rows: dict[str, DcgmRows],
    programs: Sequence[str],
    errors: Callable[[frozenset[str], str], Floats],
) -> dict[str, Floats]:
    watts = {gpu_id: np.full(len(one.table.watts), np.nan) for gpu_id, one in rows.items()}
    for program in programs:
        inner = [
            errors(frozenset({program, other}), other) for other in programs if other != program
        ]
        weight, form = CANDIDATES[int(np.argmin(np.mean(inner, axis=0)))]
        for gpu_id, one in rows.items():
            mine = one.table.real & (one.table.programs == program)
            watts[gpu_id][mine] = one.predicted(frozenset({program}), weight)[form][mine]
    return watts


TITAN_X_DOMAINS: Mapping[str, Any] = {
    "32 pairs": {"reference": ClockPair(1164.0, 3505.0), "memory_mhz": (810.0, 3505.0)},
    "64 pairs": {},
}
"""The two memory clocks and the reference of Guerreiro et al., and all pairs of the data."""

WATTS_ALONE = PowerSettings(absolute=1.0, scale=0.0)
"""Watts are asked for, so residuals of watts are what is minimised; the other settings are those
of the scaling model."""


def titan_x(domain: str) -> Measured:
    """Microbenchmarks to real programs on GTX Titan X. Raises DataError."""
    rows = scaling_rows("lisboa_gtx_titan_x", **TITAN_X_DOMAINS[domain])
    micro, real = rows.take(~rows.real), rows.take(rows.real)
    power, time = fit_power_and_time(micro, WATTS_ALONE)
    slower = relative_time(time, real.use, real.core, real.memory)
    watts = power_watts(power, real.use, real.nominal, real.core_mhz, real.memory_mhz, slower)
    medians = np.array(
        [
            np.median(micro.power_watts[(micro.core_mhz == core) & (micro.memory_mhz == memory)])
            for core, memory in zip(real.core_mhz, real.memory_mhz, strict=True)
        ]
    )
    return Measured(
        "gtx-titan-x",
        len(real),
        mape_percent(real.power_watts, watts),
        mape_percent(real.power_watts, medians),
    )
