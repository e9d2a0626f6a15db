"""Fits the power model of one campaign; where no time was measured, relative time with it.

Non-negative watts, voltages that never fall as a clock rises, and the campaign's gap between two
launches. Residuals are relative: of the watts themselves, and of the scale against the reference,
which is what the model is for; every program weighs the same, large deviations count linearly.
An idle board's power, where measured, is left out: it gates clocks that a running one does not,
and drawing the fit to it made scales worse.

Relative time has one set of parameters for a kind of counters, two for each GPU.

What limits a kernel is the same physics on every GPU; a GPU of its own has ``fill`` (its path from
memory into L2) and ``fixed_share``. Campaigns of one kind of counters are therefore fitted
together: some twenty kernels each do not tell twelve parameters apart, and the same kernel is
limited by other units on another GPU. A kernel left out is left out of all campaigns.

Least squares on the time scales, each program of a campaign with the same weight (138 variants
of three microbenchmarks are not 138 kernels), large
deviations counting linearly, drawn weakly to a prior that says what is usual for hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from studies.fitting.scaling.rows import Floats, ScalingRows
from wattcast.models.clocks import TYPICAL_STREAMING_SHARE
from wattcast.models.papers.scaling.physical import (
    STATIC_WATTS,
    PowerParameters,
    TimeForm,
    TimeParameters,
    VoltageKnots,
    duty,
    power_terms,
    time_by_form,
)
from wattcast.models.papers.scaling.use import UNITS, CounterKind

PUBLISHED_VOLTAGES: Mapping[str, VoltageKnots] = MappingProxyType(
    {
        "gtx-titan-x": VoltageKnots(mhz=(785, 975, 1164), relative=(0.973, 1.0, 1.127)),
        "titan-xp": VoltageKnots(mhz=(898, 1404, 1911), relative=(0.979, 1.0, 1.421)),
        "tesla-k40c": VoltageKnots(mhz=(666, 875), relative=(0.855, 1.0)),
    }
)
"""Core voltage ratios that Guerreiro et al. inferred (HPCA 2018, github.com/hpc-ulisboa/
gpupowermodel): flat below the first clock. Priors of the fits, which see the same boards."""

TIME_UNITS: Mapping[CounterKind, tuple[str, ...]] = MappingProxyType(
    {
        # Integer lanes are the SP lanes up to Pascal; issue slots count their instructions.
        "nvprof": ("issue", "sp", "dp", "sfu", "shared", "l2", "texture"),
        "dcgm": ("sp", "dp"),
        "utilisation": ("sp", "int", "dp", "sfu", "shared", "l2"),
    }
)
"""Units that may limit time."""

CAMPAIGN_WEIGHTS: Mapping[str, float] = MappingProxyType({"wang_gtx_980_icpads49_timeonly": 0.5})
"""Weight of a campaign's kernels, 1 unless told: the 49 pairs repeat the GTX 980's low clocks,
and their file counts no instructions by kind."""


@dataclass(frozen=True, slots=True)
class TimePrior:
    """Usual values and how far parameters may be from them (one standard deviation).

    Capacities: units seldom keep up more than 0.8 of their peak, memory what streams reach.
    Order 4 is that of the form this one extends. A kernel that uses core and memory alike has
    0.555 of its latency on the core clock, as a DRAM access of the GTX 980 at equal clocks (Wang
    and Chu, ICPADS 2018, equation 4): the bias is its log odds. ``strength`` weighs the prior
    against the rows (0.03: a parameter two deviations off costs what one program 6 % off does).
    """

    capacity: float = 0.8
    capacity_width: float = 0.4
    dram_capacity: float = TYPICAL_STREAMING_SHARE
    dram_width: float = 0.1
    order: float = 4.0
    order_width: float = 0.3
    latency_bias: float = 0.22
    latency_bias_width: float = 0.7
    latency_slope: float = 1.0
    latency_slope_width: float = 1.0
    fill: float = 0.3
    fill_width: float = 1.5
    fixed_share: float = 0.05
    fixed_width: float = 0.5
    strength: float = 0.03


SOFT = 0.05
"""Deviation of a time scale beyond which it counts linearly rather than squared."""


def fit_times(parts: Sequence[ScalingRows]) -> dict[str, TimeParameters]:
    """Parameters of each campaign, by name; all of one kind of counters, with times measured."""
    kind = parts[0].kind
    assert kind is not None, "campaigns without counters have nothing to fit"
    packing = TimePacking(TIME_UNITS[kind], len(parts), TimePrior())
    units = np.concatenate([part.use.select(packing.units) for part in parts])
    dram = np.concatenate([part.use.dram for part in parts])
    core = np.concatenate([part.core for part in parts])
    memory = np.concatenate([part.memory for part in parts])
    measured = np.concatenate([part.time_scale for part in parts])
    campaign = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    weight = np.concatenate([row_weights(part) for part in parts])

    def residuals(vector: Floats) -> Floats:
        form = packing.form(vector, campaign)
        time = time_by_form(form, units, dram, core, memory)
        return np.concatenate(
            [softened(time - measured, SOFT) * np.sqrt(weight), packing.pull(vector)]
        )

    vector = least_squares(residuals, packing.start, max_nfev=40).x
    return {part.campaign: packing.parameters(vector, at) for at, part in enumerate(parts)}


def row_weights(part: ScalingRows) -> Floats:
    """Weights that give every program of a campaign the campaign's weight."""
    return part.program_weights() * CAMPAIGN_WEIGHTS.get(part.campaign, 1.0)


def softened(residual: Floats, scale: float) -> Floats:
    """Residuals whose squares grow linearly beyond ``scale`` (pseudo-Huber)."""
    squares = 2 * (np.sqrt(1 + (residual / scale) ** 2) - 1)
    return np.asarray(np.sign(residual) * scale * np.sqrt(squares))


class TimePacking:
    """Parameters of several campaigns as one vector without bounds."""

    def __init__(self, units: tuple[str, ...], campaigns: int, prior: TimePrior) -> None:
        self.units = units
        self._campaigns = campaigns
        k, one = len(units), np.ones(campaigns)
        self.start = np.concatenate(
            [
                np.full(k, np.log(prior.capacity)),
                np.log([prior.dram_capacity, prior.order - 1]),
                [prior.latency_bias, np.log(prior.latency_slope)],
                one * np.log(prior.fill),
                one * _logit(prior.fixed_share),
            ]
        )
        width = np.concatenate(
            [
                np.full(k, prior.capacity_width),
                [prior.dram_width, prior.order_width],
                [prior.latency_bias_width, prior.latency_slope_width],
                one * prior.fill_width,
                one * prior.fixed_width,
            ]
        )
        self._pull = prior.strength / width

    def pull(self, vector: Floats) -> Floats:
        """Residuals of the prior."""
        return np.asarray((vector - self.start) * self._pull)

    def form(self, vector: Floats, campaign: np.ndarray | int) -> TimeForm:
        """Parameters for rows of the campaigns numbered in ``campaign``."""
        k = len(self.units)
        fill, fixed = np.split(vector[k + 4 :], 2)
        return TimeForm(
            capacities=np.exp(vector[:k]),
            dram_capacity=float(np.exp(vector[k])),
            order=1 + float(np.exp(vector[k + 1])),
            fill=np.exp(fill[campaign]),
            fixed_share=1 / (1 + np.exp(-fixed[campaign])),
            latency_bias=float(vector[k + 2]),
            latency_slope=float(np.exp(vector[k + 3])),
        )

    def parameters(self, vector: Floats, campaign: int) -> TimeParameters:
        """Parameters of one campaign."""
        form = self.form(vector, campaign)
        return TimeParameters(
            capacities=dict(zip(self.units, form.capacities.tolist(), strict=True)),
            **{name: float(getattr(form, name)) for name in TimeForm._fields[1:]},
        )


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))


POWER_UNITS: Mapping[CounterKind, tuple[str, ...]] = MappingProxyType(dict(UNITS))
"""Units with watts of their own: all that the counters tell."""


ABSOLUTE, SCALE = 0.2, 1.5
"""Weights of residuals of watts and of scales."""
RIDGE = 0.01
"""Draws watts (over the campaign's median) to plausible ones."""
SMOOTH, MEMORY_STEP = 0.1, 0.1
"""Draw the steps of core voltage to those published, or to equal ones; the memory's to none."""


GAP_UNIT_SECONDS = 20e-6
"""Scale of the gap in the fit; a launch costs the host some microseconds."""
_START_STATIC = (0.1, 0.15, 0.15, 0.1, 0.1)
_START_DRAM, _START_UNIT, _START_GAP = 0.2, 0.2, 0.3
_START_STEP = 0.01


def fit_power(rows: ScalingRows, time: Floats) -> PowerParameters:
    """Power of one campaign, given each row's time over that at the nominal pair."""
    problem = _PowerProblem(rows)

    def residuals(vector: Floats) -> Floats:
        return problem.residuals(vector, time)

    start = problem.start
    vector = least_squares(residuals, start, bounds=(0.0, np.inf), max_nfev=60).x
    return problem.parameters(vector)


def fit_power_and_time(rows: ScalingRows) -> tuple[PowerParameters, TimeParameters]:
    """Power of a campaign that measured no time, and relative time as power betrays it.

    A kernel slowed by its memory clock does less work a second, and draws less: at the Titan X's
    810 MHz nothing else tells what a kernel draws.
    """
    assert rows.kind is not None, "campaigns without counters have nothing to fit"
    problem = _PowerProblem(rows)
    packing = TimePacking(TIME_UNITS[rows.kind], 1, TimePrior(strength=0.005))
    units, at = rows.use.select(packing.units), len(problem.start)

    def residuals(vector: Floats) -> Floats:
        form = packing.form(vector[at:], 0)
        time = time_by_form(form, units, rows.use.dram, rows.core, rows.memory)
        return np.concatenate([problem.residuals(vector[:at], time), packing.pull(vector[at:])])

    start = np.concatenate([problem.start, packing.start])
    low = np.where(np.arange(len(start)) < at, 0.0, -np.inf)
    vector = least_squares(residuals, start, bounds=(low, np.inf), max_nfev=40).x
    return problem.parameters(vector[:at]), packing.parameters(vector[at:], 0)


class _PowerProblem:
    """Residuals of one campaign as a function of one vector, all of it >= 0.

    Vector: steps of core voltage, steps of memory voltage, gap, static watts, DRAM, units.
    """

    def __init__(self, rows: ScalingRows) -> None:
        assert rows.kind is not None, "campaigns without counters have nothing to fit"
        self._rows = rows
        self._names = POWER_UNITS[rows.kind]
        self._core = _Domain(rows.core_mhz, rows.nominal.core_mhz)
        self._memory = _Domain(rows.memory_mhz, rows.nominal.memory_mhz)
        self._units = rows.use.select(self._names)
        self._reference = rows.reference_rows
        self._median = float(np.median(rows.power_watts[rows.is_reference]))
        sound = rows.sound_power & np.isfinite(rows.power_watts)
        self._weight = np.sqrt(rows.program_weights() * sound)
        watts = (*_START_STATIC, _START_DRAM, *[_START_UNIT] * len(self._names))
        self._steps = self._core.steps, self._memory.steps
        self.start = np.array(
            [*[_START_STEP] * sum(self._steps), _START_GAP, *watts], dtype=np.float64
        )
        published = PUBLISHED_VOLTAGES.get(rows.gpu)
        self._published = self._core.steps_of(published) if published else None

    def residuals(self, vector: Floats, time: Floats) -> Floats:
        """Weighted residuals at one vector, given relative times ``[n]``."""
        rows = self._rows
        watts = self._watts(vector, time)
        absolute = softened(watts / rows.power_watts - 1, SOFT)
        scale = softened(watts / watts[self._reference] - rows.power_scale, SOFT)
        return np.concatenate(
            [
                ABSOLUTE * absolute * self._weight,
                SCALE * scale * self._weight,
                RIDGE * (vector - self.start)[sum(self._steps) :],
                *self._step_pull(vector),
            ]
        )

    def parameters(self, vector: Floats) -> PowerParameters:
        """The model of a vector."""
        core, memory = self._voltages(vector)
        watts = self._weights(vector).tolist()
        return PowerParameters(
            **dict(zip((*STATIC_WATTS, "dram_watts"), watts[:6], strict=True)),
            unit_watts=dict(zip(self._names, watts[6:], strict=True)),
            gap_seconds=self._gap(vector),
            core_voltage=self._core.knots(core),
            memory_voltage=self._memory.knots(memory),
        )

    def _watts(self, vector: Floats, time: Floats) -> Floats:
        rows = self._rows
        core, memory = self._voltages(vector)
        terms = power_terms(
            self._units,
            rows.use.dram,
            rows.core,
            rows.memory,
            core[self._core.index],
            memory[self._memory.index],
            duty(self._gap(vector), rows.use.seconds * time) / time,
        )
        return np.asarray(terms @ self._weights(vector))

    def _voltages(self, vector: Floats) -> tuple[Floats, Floats]:
        first, second = self._steps
        return self._core.voltages(vector[:first]), self._memory.voltages(
            vector[first : first + second]
        )

    def _gap(self, vector: Floats) -> float:
        return float(vector[sum(self._steps)]) * GAP_UNIT_SECONDS

    def _weights(self, vector: Floats) -> Floats:
        return np.asarray(vector[sum(self._steps) + 1 :] * self._median)

    def _step_pull(self, vector: Floats) -> tuple[Floats, Floats]:
        first, second = self._steps
        core, memory = vector[:first], vector[first : first + second]
        pull = np.diff(core) if self._published is None else core - self._published
        return np.asarray(SMOOTH * pull), MEMORY_STEP * memory


class _Domain:
    """A clock domain's clocks, and voltages as steps between them, 1 at the nominal clock."""

    def __init__(self, mhz: Floats, nominal_mhz: float) -> None:
        self.mhz, self.index = np.unique(mhz, return_inverse=True)
        self._nominal = int(np.searchsorted(self.mhz, nominal_mhz))
        self.steps = len(self.mhz) - 1

    def voltages(self, steps: Floats) -> Floats:
        """Relative voltage at each clock."""
        risen = np.concatenate([[0.0], np.cumsum(steps)])
        # Never below a tenth: far steps of a fit under way must not turn voltages negative.
        return np.asarray(np.maximum(1 + risen - risen[self._nominal], 0.1))

    def steps_of(self, knots: VoltageKnots) -> Floats:
        """Steps of a published curve between these clocks."""
        return np.diff(knots.at(self.mhz))

    def knots(self, voltages: Floats) -> VoltageKnots:
        """The curve through voltages at the clocks."""
        return VoltageKnots(mhz=tuple(self.mhz.tolist()), relative=tuple(voltages.tolist()))
