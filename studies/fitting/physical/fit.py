"""Fits the physical power model, and predicts programs and GPUs left out.

Rows are programs at many clocks (``physical_rows.py``). Weights are non-negative least squares on
relative residuals, drawn towards the pooled weights of the other GPUs: fifteen programs do not
tell thirteen weights apart. Every fit goes through normal equations, summed program by program,
so that leaving some out costs a subtraction. docs/physical.md.

Settings are chosen inside the training programs. Whoever chooses by programs he then scores on
has seen them. Here every left-out program gets the settings under which the OTHER programs, left
out in turn, come out best: a nested cross-validation. The settings that ship are chosen the same
way over all programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from studies.fitting.physical.rows import VOLTAGES, Floats, GpuRows, scaling
from wattcast.models.power.physical import (
    IDLE_SHARE,
    POOLED,
    WEIGHTS,
    PhysicalParameters,
    VoltageCurve,
    published_weights,
)

Programs = frozenset[str]
NOBODY: Programs = frozenset()


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Hyperparameters. ``choose`` chooses them inside the training programs.

    ``micro_weight``: weight of all microbenchmark rows together over that of all scored rows.
    ``counter_weight``: weight of a row whose activities were counted over that of one with the
    activities the model is served. ``ridge``: pull towards the prior (pooled weights), in units of
    one program's rows. ``pooled_ridge``: the pooled fit's own pull towards 0.
    """

    micro_weight: float = 0.3
    counter_weight: float = 0.5
    ridge: float = 2.0
    pooled_ridge: float = 0.5


ENERGY_RIDGE = 0.03
"""Pull of pooled weights towards 0, as a share of what the rows say of each."""

FLOOR = ("base", "memory_clock", "clock")
"""What a board draws for running at all: microbenchmarks of a board of the same chip do not say."""

RELATED = 0.3
"""Weight of such a board's rows together over that of a board whose programs were measured: that of
microbenchmarks (``FitSettings.micro_weight``)."""

Averaged = tuple[FitSettings, ...]
"""Settings whose weights are averaged: no choice among near equals is left to chance."""

SettingsOf = Callable[[str], Averaged]
"""Settings to fit with where a program is left out."""


class Fits:
    """Fits on any choice of the tables' programs. Not safe to share between threads."""

    def __init__(self, tables: Mapping[str, GpuRows]) -> None:
        self.tables = {gpu_id: table for gpu_id, table in tables.items() if table.scored.any()}
        self.relatives = {gpu_id: tables[gpu_id] for gpu_id in tables if gpu_id not in self.tables}
        """Boards of which only microbenchmarks were measured: they tell what units draw."""
        self._moments: dict[tuple[str, VoltageCurve], _Moments] = {}
        self._voltages: dict[tuple[str, Programs], VoltageCurve] = {}
        self._priors: dict[tuple[tuple[str, ...], FitSettings, Programs], Floats] = {}
        self._units = {gpu_id: unit_moments(table) for gpu_id, table in self.relatives.items()}

    @property
    def varied(self) -> dict[str, GpuRows]:
        """Tables of boards whose clocks were varied: those that have a model of their own."""
        return {gpu_id: table for gpu_id, table in self.tables.items() if table.several_clocks}

    def voltage(self, gpu_id: str, without: Programs = NOBODY) -> VoltageCurve:
        """The curve under which application rows scale best with the clocks, but for some.

        Always by ``FitSettings()``: a choice of settings is not to drag voltages along.
        """
        table = self.tables[gpu_id]
        if not table.several_clocks:
            return VOLTAGES[0]  # of no effect at the reference clock
        known = without & set(table.programs)
        if (gpu_id, known) not in self._voltages:
            rows = table.real & ~np.isin(table.programs, list(known))
            measured = scaling(table, table.watts)

            def error(voltage: VoltageCurve) -> float:
                weights = self.solve([(gpu_id, voltage, 1.0)], known, 2.0, FitSettings())
                wrong = scaling(table, predict(table, weights, voltage)) - measured
                return float(np.mean(np.abs(wrong[rows])))

            self._voltages[gpu_id, known] = min(VOLTAGES, key=error)
        return self._voltages[gpu_id, known]

    def pooled(
        self, gpus: Iterable[str], settings: Averaged, without: Programs = NOBODY
    ) -> tuple[Floats, dict[str, Floats]]:
        """Weights in the units of ``physical.conversion``, every GPU weighing the same.

        Those of all GPUs, and by compute capability those of its boards, drawn to them.
        """
        known = list(gpus)
        families: dict[str, list[str]] = {}
        for table in self.relatives.values():
            families[table.gpu.compute_capability] = []
        for gpu_id in known:
            families.setdefault(self.tables[gpu_id].gpu.compute_capability, []).append(gpu_id)
        everywhere, apart = [], {name: [] for name in families}  # type: ignore[var-annotated]
        for one in settings:
            total = self._energies(known, one, without)
            pull = ENERGY_RIDGE * np.diag(total)[:-1]
            everywhere.append(solved(total + _pull(pull, np.zeros(len(WEIGHTS)))))
            for name, boards in families.items():
                own = self._family(name, boards, one, without)
                apart[name].append(solved(own + total + _pull(pull, everywhere[-1])))
        named = {name: np.mean(each, axis=0) for name, each in apart.items()}
        return np.mean(everywhere, axis=0), named

    def _family(
        self, capability: str, boards: Sequence[str], settings: FitSettings, without: Programs
    ) -> Floats:
        """Mean moments of a family's boards, those with microbenchmarks alone weighing less."""
        total, mass = len(boards) * self._energies(boards, settings, without), float(len(boards))
        for units in self._related(capability):
            total += RELATED * units
            mass += RELATED
        return np.asarray(total / mass)

    def _related(self, capability: str) -> list[Floats]:
        return [
            self._units[gpu_id]
            for gpu_id, table in self.relatives.items()
            if table.gpu.compute_capability == capability
        ]

    def _energies(self, gpus: Sequence[str], settings: FitSettings, without: Programs) -> Floats:
        """Mean moments of several GPUs' rows, ``[k + 1, k + 1]``."""
        size = len(WEIGHTS) + 1
        total = np.diag(np.full(size, 1e-12))  # for a unit that no GPU has, and an exact fit
        for gpu_id in gpus:
            moments = self._moment(gpu_id, self.voltage(gpu_id, without))
            if mass := moments.mass(settings, without):
                own = np.append(self.tables[gpu_id].conversion, 1.0)
                total += np.outer(own, own) * moments.total(settings, without) / mass / len(gpus)
        return total

    def fit(
        self, gpu_id: str, settings: Averaged, without: Programs = NOBODY
    ) -> tuple[Floats, VoltageCurve]:
        """Weights and voltage curve of one GPU; programs left out are so on every GPU."""
        others = [other for other in self.tables if other != gpu_id]
        voltage = self.voltage(gpu_id, without)
        parts = [(gpu_id, voltage, 1.0)]
        each = [
            self.solve(parts, without, one.ridge, one, self.prior(others, one, without))
            for one in settings
        ]
        return np.mean(each, axis=0), voltage

    def prior(self, gpus: Sequence[str], settings: FitSettings, without: Programs) -> Floats:
        """Shares of the limit common to several GPUs whose clocks were varied."""
        varied = [gpu_id for gpu_id in gpus if gpu_id in self.varied]
        if not varied:
            return np.zeros(len(WEIGHTS))
        key = (tuple(varied), settings, without)
        if key not in self._priors:
            parts = []
            for gpu_id in varied:
                voltage = self.voltage(gpu_id, without)
                mass = self._moment(gpu_id, voltage).mass(settings, without)
                parts.append((gpu_id, voltage, 7 / np.sqrt(mass)))
            self._priors[key] = self.solve(parts, without, settings.pooled_ridge, settings)
        return self._priors[key]

    def solve(
        self,
        parts: Iterable[tuple[str, VoltageCurve, float]],
        without: Programs,
        ridge: float,
        settings: FitSettings,
        prior: Floats | None = None,
    ) -> Floats:
        """Weights that fit several GPUs' rows; ``prior`` (else 0) is what they are drawn to.

        Each part brings the GPU, its voltage curve and a factor on its rows.
        """
        size = len(WEIGHTS) + 1
        total, mass = np.zeros((size, size)), 0.0
        for gpu_id, voltage, factor in parts:
            moments, table = self._moment(gpu_id, voltage), self.tables[gpu_id]
            own = factor**2 * moments.mass(settings, without)
            total += factor**2 * moments.total(settings, without)
            mass += own
            shares = np.append(1 / np.where(table.conversion > 0, table.conversion, 1.0), 1.0)
            for units in self._related(table.gpu.compute_capability):
                total += RELATED * own * np.outer(shares, shares) * units
        # A program's rows weigh mass / programs; the constant makes ridge 1 about a tenth of that.
        pull = 0.09 * ridge**2 * mass / 50
        centre = np.zeros(len(WEIGHTS)) if prior is None else prior
        towards = np.column_stack([np.eye(len(WEIGHTS)), centre])
        total += pull * towards.T @ towards
        total[-1, -1] += 1e-9 * mass  # keeps a target that fits exactly positive definite
        return solved(total)

    def _moment(self, gpu_id: str, voltage: VoltageCurve) -> _Moments:
        key = (gpu_id, voltage)
        if key not in self._moments:
            self._moments[key] = _Moments(self.tables[gpu_id], voltage)
        return self._moments[key]


@lru_cache(maxsize=8)
def unit_moments(table: GpuRows) -> Floats:
    """``[X y]' [X y]`` a row ``[k + 1, k + 1]`` of microbenchmarks, weights in the units of
    ``physical.conversion`` and those of ``FLOOR`` free: what the rows say of the units, whatever
    this board draws for running at all. The voltage curve is the one that fits them best."""
    relative = (table.scale_watts / table.watts)[:, np.newaxis]
    target = (table.watts - table.idle_watts) / table.watts
    errors = [nnls(design * relative, target)[1] for design in table.designs.values()]
    design = table.designs[VOLTAGES[int(np.argmin(errors))]]
    rows = np.column_stack([design * relative * table.conversion, target])
    whole = rows.T @ rows / len(rows)
    free = [WEIGHTS.index(name) for name in FLOOR if whole[WEIGHTS.index(name)].any()]
    inner = whole[np.ix_(free, free)]
    left = whole - whole[:, free] @ np.linalg.solve(inner, whole[free])
    left[free], left[:, free] = 0.0, 0.0
    return np.asarray(left)


def _pull(strength: Floats, centre: Floats) -> Floats:
    """Moments of rows that say each weight is ``centre``, by ``strength`` ``[k]``."""
    towards = np.column_stack([np.eye(len(centre)), centre])
    return np.asarray(towards.T @ np.diag(strength) @ towards)


def solved(moments: Floats) -> Floats:
    """Non-negative least squares from ``[X y]' [X y]``, ``[k + 1, k + 1]``, positive definite."""
    upper = np.linalg.cholesky(moments).T
    return np.asarray(nnls(upper[:-1, :-1], upper[:-1, -1])[0])


class _Moments:
    """``[X y]' [X y]`` of one GPU's rows under one voltage curve, by program and kind of row."""

    def __init__(self, table: GpuRows, voltage: VoltageCurve) -> None:
        relative = (table.scale_watts / table.watts)[:, np.newaxis]
        target = (table.watts - table.idle_watts) / table.watts
        rows = np.column_stack([table.designs[voltage] * relative, target])
        self._names, program = np.unique(table.programs, return_inverse=True)
        kind = np.where(table.scored, 0, np.where(table.real, 1, 2))
        self._rows = np.zeros((len(self._names), 3))
        self._sums = np.zeros((len(self._names), 3, rows.shape[1], rows.shape[1]))
        for at, of in {(int(a), int(k)) for a, k in zip(program, kind, strict=True)}:
            mine = rows[(program == at) & (kind == of)]
            self._rows[at, of] = len(mine)
            self._sums[at, of] = mine.T @ mine
        self._share = float(self._rows[:, 0].sum() / max(1.0, self._rows[:, 2].sum()))

    def total(self, settings: FitSettings, without: Programs) -> Floats:
        """The sums but for some programs, kinds of rows weighed by the settings."""
        # Added up, not taken off the whole: rounding would let the left out show in the last bits.
        kept = self._sums[self._kept(without)].sum(axis=0)
        return np.asarray(np.tensordot(self._factors(settings), kept, 1))

    def mass(self, settings: FitSettings, without: Programs) -> float:
        """Sum of the rows' weights."""
        kept = self._rows[self._kept(without)].sum(axis=0)
        return float(self._factors(settings) @ kept)

    def _kept(self, without: Programs) -> NDArray[np.bool_]:
        return ~np.isin(self._names, list(without))

    def _factors(self, settings: FitSettings) -> Floats:
        micro = settings.micro_weight**2 * self._share
        return np.array([1.0, settings.counter_weight**2, micro])


def predict(table: GpuRows, weights: Floats, voltage: VoltageCurve) -> Floats:
    """Watts of every row, ``[n]``."""
    design = table.designs.get(voltage)
    if design is None:
        design = table.design(voltage)
    return np.asarray(table.idle_watts + table.scale_watts * (design @ weights))


@dataclass(frozen=True)
class LeftOut:
    """Predictions of every scored row by a model that saw nothing of its program, on any GPU.

    ``watts`` is NaN for other rows, and so is ``median_watts``: what the other programs' median
    at the same clocks would say.
    """

    table: GpuRows
    watts: Floats
    median_watts: Floats

    @property
    def error_percent(self) -> float:
        """Mean absolute percentage error over the scored rows."""
        return error_percent(self.table, self.watts)

    @property
    def median_error_percent(self) -> float:
        """The same of the median."""
        return error_percent(self.table, self.median_watts)


def error_percent(table: GpuRows, watts: Floats) -> float:
    """Mean absolute percentage error over the scored rows."""
    return float(np.mean(np.abs(watts / table.watts - 1)[table.scored]) * 100)


def scored_programs(table: GpuRows) -> list[str]:
    """Programs that scores stand on, sorted."""
    return [str(name) for name in np.unique(table.programs[table.scored])]


def leave_program_out(fits: Fits, gpu_id: str, settings: Averaged | SettingsOf) -> LeftOut:
    """Predict each program of a GPU by weights fitted without it, on any GPU."""
    table = fits.tables[gpu_id]
    watts = np.full(len(table.watts), np.nan)
    for program in scored_programs(table):
        mine = settings(program) if callable(settings) else settings
        weights, voltage = fits.fit(gpu_id, mine, frozenset({program}))
        rows = (table.programs == program) & table.scored
        watts[rows] = predict(table, weights, voltage)[rows]
    return LeftOut(table, watts, clock_medians(table))


def clock_medians(table: GpuRows) -> Floats:
    """The median of the other programs' scored rows at the same clocks, ``[n]``."""
    median = np.full(len(table.watts), np.nan)
    for row in np.flatnonzero(table.scored):
        same = table.scored & (table.clock_numbers == table.clock_numbers[row])
        median[row] = np.median(table.watts[same & (table.programs != table.programs[row])])
    return median


def row_folds(
    fits: Fits, gpu_id: str, settings: Averaged, seed: int, folds: int
) -> tuple[Floats, Floats]:
    """Predict single readings left out at random: other clocks of their program are known.

    Returns watts and the training rows' median watts of every scored row, NaN elsewhere.
    """
    table = fits.tables[gpu_id]
    others = [other for other in fits.tables if other != gpu_id]
    priors = [fits.prior(others, one, NOBODY) for one in settings]
    voltage = fits.voltage(gpu_id)
    names = np.unique(table.measurements[table.scored])
    fold_of = dict(
        zip(names, np.random.default_rng(seed).permutation(len(names)) % folds, strict=True)
    )
    fold = np.array([fold_of.get(name, -1) for name in table.measurements])
    watts, median = np.full((2, len(table.watts)), np.nan)
    for number in range(folds):
        left_out = fold == number
        part = Fits({**fits.relatives, gpu_id: table.take(~left_out)})
        each = [
            part.solve([(gpu_id, voltage, 1.0)], NOBODY, one.ridge, one, prior)
            for one, prior in zip(settings, priors, strict=True)
        ]
        weights = np.mean(each, axis=0)
        tested = left_out & table.scored
        watts[tested] = predict(table, weights, voltage)[tested]
        median[tested] = np.median(table.watts[table.scored & ~left_out])
    return watts, median


def typical_voltage(curves: Iterable[VoltageCurve]) -> VoltageCurve:
    """The median floor and slope of several curves."""
    known = list(curves)
    return VoltageCurve(
        floor=float(np.median([curve.floor for curve in known])),
        slope=float(np.median([curve.slope for curve in known])),
    )


def fitted_parameters(fits: Fits, gpu_id: str, settings: Averaged) -> PhysicalParameters:
    """The parameters that serve: fitted on all rows of the GPU, the other GPUs as prior."""
    weights, voltage = fits.fit(gpu_id, settings)
    return parameters_of(fits.tables[gpu_id], weights, voltage)


def pooled_parameters(
    fits: Fits,
    settings: Averaged,
    gpus: Iterable[str] | None = None,
    without: Programs = NOBODY,
) -> PhysicalParameters:
    """The parameters for GPUs that nobody measured; their watts are those of a typical board.

    Each compute capability of which a board was measured has weights of its own, drawn to those of
    all.
    """
    known = list(fits.tables if gpus is None else gpus)
    tables = [fits.tables[gpu_id] for gpu_id in known]
    limit = float(np.median([table.limit_watts for table in tables]))
    pooled, families = fits.pooled(known, settings, without)
    return PhysicalParameters(
        gpu=POOLED,
        idle_watts=IDLE_SHARE * limit,
        limit_watts=limit,
        highest_watts=limit,
        reference_core_mhz=float(np.median([table.reference.core_mhz for table in tables])),
        reference_memory_mhz=float(np.median([table.reference.memory_mhz for table in tables])),
        voltage=typical_voltage(
            fits.voltage(gpu_id, without) for gpu_id in known if gpu_id in fits.varied
        ),
        weights=_named(pooled),
        families={name: _named(families[name]) for name in sorted(families)},
    )


def parameters_of(table: GpuRows, weights: Floats, voltage: VoltageCurve) -> PhysicalParameters:
    """Parameters of one GPU from fitted weights."""
    named = _named(weights)
    return PhysicalParameters(
        gpu=table.gpu.id,
        idle_watts=table.idle_watts,
        limit_watts=table.limit_watts,
        highest_watts=float(table.watts.max()),
        reference_core_mhz=table.reference.core_mhz,
        reference_memory_mhz=table.reference.memory_mhz,
        voltage=voltage,
        weights=named,
        own_weights=published_weights(table.gpu, table.reference, table.scale_watts, named["fma"]),
    )


def _named(weights: Floats) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(WEIGHTS, weights, strict=True)}


CANDIDATES = tuple(
    FitSettings(micro_weight=micro, counter_weight=counter, ridge=ridge)
    for micro, counter, ridge in product((0.1, 0.3, 1.0), (0.25, 0.5, 1.0), (1.0, 2.0, 4.0))
)
"""Settings tried: the ranges the prototype found good, and a factor beyond on either side."""

SHARE_KEPT = 3
"""The best one in so many candidates are averaged: the very best of near equals is chance."""


@dataclass(frozen=True)
class Choice:
    """Settings chosen over all programs, and for each program over the others."""

    best: Averaged
    without: Mapping[str, Averaged]

    def settings(self, program: str) -> Averaged:
        """Settings for fits that leave ``program`` out."""
        return self.without.get(program, self.best)


def choose(fits: Fits, candidates: Sequence[FitSettings] = CANDIDATES) -> Choice:
    """Settings by the mean error over GPUs with activities as they are served."""
    gpus = [
        gpu_id for gpu_id, table in fits.tables.items() if not table.counted[table.scored].all()
    ]
    programs = sorted({name for gpu_id in gpus for name in scored_programs(fits.tables[gpu_id])})
    errors = np.array([_pair_errors(fits, gpus, programs, each) for each in candidates])
    kept = max(1, len(candidates) // SHARE_KEPT)

    def least(by_program: Floats) -> Averaged:
        order = np.argsort(np.nanmean(by_program, axis=1), kind="stable")
        return tuple(candidates[at] for at in sorted(order[:kept]))

    without = {
        program: least(np.delete(errors[:, at, :], at, axis=1))
        for at, program in enumerate(programs)
    }
    return Choice(least(np.array([np.diag(error) for error in errors])), without)


def _pair_errors(
    fits: Fits, gpus: Sequence[str], programs: Sequence[str], settings: FitSettings
) -> Floats:
    """Error on program q by fits without p and q, ``[p, q]``, mean over the GPUs that ran q."""
    sums, counts = np.zeros((2, len(programs), len(programs)))
    for gpu_id in gpus:
        served = fits.tables[gpu_id].take(fits.tables[gpu_id].scored)
        relevant = set(served.programs)
        rows = [served.programs == name for name in programs]
        for first, second in combinations_with_replacement(range(len(programs)), 2):
            left_out = frozenset({programs[first], programs[second]})
            if not left_out & relevant:
                continue
            weights, voltage = fits.fit(gpu_id, (settings,), left_out)
            wrong = np.abs(predict(served, weights, voltage) / served.watts - 1)
            for into, of in {(first, second), (second, first)}:
                if programs[of] in relevant:
                    sums[into, of] += wrong[rows[of]].mean()
                    counts[into, of] += 1
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


@lru_cache(maxsize=2)
def cached_choice(fits: Fits) -> Choice:
    """``choose`` among ``CANDIDATES``, once for each ``fits``: it takes a minute."""
    return choose(fits)
