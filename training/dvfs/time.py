"""Fits the relative-time model: one set of parameters for a kind of counters, two for each GPU.

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

from wattcast.models.clocks import TYPICAL_STREAMING_SHARE
from wattcast.models.dvfs.timing import TimeForm, TimeParameters, time_by_form
from wattcast.models.dvfs.use import CounterKind
from wattcast.training.dvfs.rows import Floats, ScalingRows

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


def fit_times(
    parts: Sequence[ScalingRows], prior: TimePrior | None = None
) -> dict[str, TimeParameters]:
    """Parameters of each campaign, by name; all of one kind of counters, with times measured."""
    kind = parts[0].kind
    assert kind is not None, "campaigns without counters have nothing to fit"
    packing = TimePacking(TIME_UNITS[kind], len(parts), prior or TimePrior())
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
