"""Prediction intervals that stay honest on kernels the model has never met.

Rows of one kernel resemble each other, so residuals pooled over rows promise far too narrow an
interval for an unseen kernel. Here every kernel group counts as one: hierarchical conformal
prediction (Y. Lee, R. F. Barber, R. Willett, "Distribution-free inference with hierarchical
data", 2023) on out-of-fold residuals. The residual is |ln(measured / predicted)|, so the width
scales with the prediction; or |measured^e - predicted^e|, so that it grows less (``ScaledWidth``),
where intervals score better for it: of ten kernels one that draws a fifth of what was predicted
makes a factor of 5 upwards too. Both tails share one quantile: with 25 groups a quantile of its own
for each tail rests on the one or two worst groups, and its intervals score worse on every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from wattcast.features.checked import Frozen
from wattcast.features.errors import ModelError

# What every predictor answers: a value, its interval and what the interval rests on.

Basis = Literal["seen_kernel", "unseen_kernel", "extrapolated", "uncalibrated"]
"""What an interval rests on, from narrow to wide (docs/design.md, predictors).

``seen_kernel``: this PTX has accepted measurements, or the request brings them.
``unseen_kernel``: calibrated on kernels left out of training.
``extrapolated``: the kernel or launch lies outside what the model was trained on.
``uncalibrated``: datasheet facts and no measurement on this GPU.
"""

BASIS_ORDER: tuple[Basis, ...] = ("seen_kernel", "unseen_kernel", "extrapolated", "uncalibrated")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity. ``level`` is the nominal coverage of ``[low, high]``, which is
    ``widened`` times as wide, in logarithms, as it was calibrated (``models/intervals.py``)."""

    value: float
    low: float
    high: float
    level: float
    basis: Basis
    widened: float = 1.0

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")


def unsure(estimate: Estimate, error: float) -> Estimate:
    """An estimate above 0 that goes with an input known to plus or minus ``error``, relative, of
    which its own doubt knows nothing."""
    value, more = estimate.value, 1.0 + error
    low = value * joined(estimate.low / value, 1.0 / more) if estimate.low > 0 else estimate.low
    return replace(estimate, low=low, high=value * joined(estimate.high / value, more))


def joined(*ratios: float) -> float:
    """The ratio of an interval's end to its value, from those that doubts give that know nothing of
    each other: squares of logarithms add up. All are at most 1, or all at least 1."""
    side = -1.0 if min(ratios) < 1.0 else 1.0
    return exp(side * hypot(*map(log, ratios)))


def parted(ratio: float, doubt: float) -> float:
    """What ``joined`` with ``doubt`` gives ``ratio``; 1 where the doubt is all of it."""
    rest = sqrt(max(0.0, log(ratio) ** 2 - log(doubt) ** 2))
    return exp(-rest if min(ratio, doubt) < 1.0 else rest)


def weaker(*bases: Basis) -> Basis:
    """The least certain of several bases."""
    return max(bases, key=BASIS_ORDER.index)


def between(estimate: Estimate, least: float, most: float) -> Estimate:
    """An estimate of which value and ends lie between what can be at all."""
    if least <= estimate.low and estimate.high <= most:
        return estimate
    value, low, high = (
        min(max(each, least), most) for each in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


_PREFIXES = (
    (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"),
    (1e-9, "n"),
)  # fmt: skip


def quantity(value: float, unit: str) -> str:
    """Three significant digits with an SI prefix: ``1.93e-5, "s"`` -> ``19.3 µs``."""
    if value == 0:
        return f"0 {unit}"
    scale, prefix = next((one for one in _PREFIXES if abs(value) >= one[0]), _PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}{unit}"


Floats = NDArray[np.float64]
Numbers = TypeVar("Numbers", float, Floats)

EXTRAPOLATED_WIDENING = 1.5
"""Least ratio of the extrapolated to the unseen-kernel width, both in logarithms.

Our convention, not a measured figure: outside the training range trees repeat their last
leaf, so the calibrated width is too narrow by an amount no held-out row can tell.
"""


BOARD_SPREAD = 0.03
"""Standard deviation of power between boards of one kind, in logarithms: 0.030 of eight A100, 0.013
of eight A40, over all intensities of the sweeps of multiply-adds; the larger (docs/physical.md)."""

CLOCK_SPREAD = 0.21
"""Standard deviation, in logarithms, of the error of power's ratio between clocks one ``clock
distance`` apart, on a board whose curve nobody measured; it grows with the root of the distance. Of
nine boards left out .07 to .34; by the others' a 90 % interval holds .89 (docs/physical.md)."""

Z80, Z90 = 1.282, 1.645
"""Standard deviations of a normal distribution that hold 80 and 90 %."""


class Coverage(Frozen):
    """What intervals really held, on data neither fitted nor calibrated on.

    ``rows``: share of rows inside; ``kernels``: mean over kernel groups of that share;
    ``mean_width_watts`` and ``interval_score_watts``: means over rows (Gneiting and Raftery,
    2007: width plus 2/alpha times the distance by which a value is missed; less is better).
    """

    protocol: str
    rows: float = Field(ge=0, le=1)
    kernels: float = Field(ge=0, le=1)
    mean_width_watts: float = Field(ge=0)
    interval_score_watts: float = Field(ge=0)


class IntervalWidth(Frozen):
    """Interval of one basis: ``[low_factor, high_factor]`` times the predicted value.

    ``coverage`` is the empirical one where a protocol can measure it, else ``None``.
    """

    low_factor: float = Field(gt=0, le=1)
    high_factor: float = Field(ge=1)
    coverage: Coverage | None = None

    def around(self, values: Numbers) -> tuple[Numbers, Numbers]:
        """Bounds around predictions, one or ``[n]``."""
        return values * self.low_factor, values * self.high_factor

    def widened(self, ratio: float) -> IntervalWidth:
        """``ratio`` times as wide in logarithms, without a coverage."""
        return IntervalWidth(low_factor=self.low_factor**ratio, high_factor=self.high_factor**ratio)

    def holds(self, inner: Width) -> bool:
        """Whether it is at least as wide as another of its kind."""
        return (
            isinstance(inner, IntervalWidth)
            and self.low_factor <= inner.low_factor
            and self.high_factor >= inner.high_factor
        )

    def of_board(self, factor: float) -> IntervalWidth:
        """Of a board that draws ``factor`` times as much: the same, since it is a ratio."""
        return self

    def __str__(self) -> str:
        return f"×{self.low_factor:.2f} to ×{self.high_factor:.2f}"


class ScaledWidth(Frozen):
    """Interval of one basis: ``half_width`` on either side of watts to the power ``exponent``.

    At 1 equally many watts around every prediction, at 0.5 watts that grow as its square root.
    """

    exponent: float = Field(gt=0, le=1)
    half_width: float = Field(ge=0)
    coverage: Coverage | None = None

    def around(self, values: Numbers) -> tuple[Numbers, Numbers]:
        """Bounds around predictions, one or ``[n]``, not below 0."""
        scaled = values**self.exponent
        low = np.maximum(scaled - self.half_width, 0.0)
        return low ** (1 / self.exponent), (scaled + self.half_width) ** (1 / self.exponent)

    def widened(self, ratio: float) -> ScaledWidth:
        """``ratio`` times as wide in its scale, without a coverage."""
        return ScaledWidth(exponent=self.exponent, half_width=self.half_width * ratio)

    def holds(self, inner: Width) -> bool:
        """Whether it is at least as wide as another of its kind."""
        return (
            isinstance(inner, ScaledWidth)
            and self.exponent == inner.exponent
            and self.half_width >= inner.half_width
        )

    def of_board(self, factor: float) -> ScaledWidth:
        """Of a board that draws ``factor`` times as much."""
        return self.widened(factor**self.exponent)

    def __str__(self) -> str:
        return f"±{self.half_width:.2f} W" + ("" if self.exponent == 1 else f"^{self.exponent:g}")


Width = IntervalWidth | ScaledWidth


class IntervalCalibration(Frozen):
    """All widths of a model at one nominal ``level``.

    ``floor_watts`` is the lowest power measured on the GPU in the data, idle rows included:
    no interval reaches below it (unless the prediction itself does).
    """

    method: Literal[
        "hierarchical-conformal-log-residual",
        "hierarchical-conformal-power-residual",
        "student-t-of-boards-log-residual",
    ] = "hierarchical-conformal-log-residual"
    level: float = Field(gt=0, lt=1)
    kernel_groups: int = Field(ge=2)
    floor_watts: float = Field(ge=0)
    seen_kernel: IntervalWidth
    unseen_kernel: Width
    extrapolated: Width

    @model_validator(mode="after")
    def _extrapolated_is_widest(self) -> IntervalCalibration:
        if not self.extrapolated.holds(self.unseen_kernel):
            raise ValueError("the extrapolated interval must hold the unseen_kernel one")
        return self

    def width(self, basis: Basis) -> Width:
        """Width for a basis. Raises ModelError for ``uncalibrated``: nothing was measured."""
        if basis == "uncalibrated":
            raise ModelError(f"a model calibrated on data gives no {basis!r} interval", basis=basis)
        width: Width = getattr(self, basis)
        return width

    def inherited(self, grouped: Residuals, random: Residuals, factor: float) -> Self:
        """Widths of a model that descends from this one, where too few kernels were really left
        out to tell its own: these, on a board that draws ``factor`` times as much, or wider where
        the residuals left out (of kernels it may have known) need it."""
        own = self.unseen_kernel.of_board(factor)
        exponent = own.exponent if isinstance(own, ScaledWidth) else 0.0
        unseen = _wider(own, conformal_width(grouped, self.level, exponent))
        outer = self.extrapolated.of_board(factor)
        low, high = conformal_factors(
            random.logarithms, np.arange(len(random.groups)), self.level, symmetric=True
        )
        floor = min(self.floor_watts, self.floor_watts * factor, grouped.measured_watts.min())
        return self.model_copy(
            update={
                "floor_watts": float(floor),
                "seen_kernel": IntervalWidth(low_factor=low, high_factor=high),
                "unseen_kernel": unseen,
                "extrapolated": _wider(outer, unseen.widened(EXTRAPOLATED_WIDENING)),
            }
        )

    def estimate(self, watts: float, basis: Basis) -> Estimate:
        """Interval around a prediction in watts, never below ``floor_watts`` or zero."""
        width = self.width(basis)
        low, high = interval_bounds(np.array([watts]), width, self.floor_watts)
        return Estimate(watts, float(low[0]), float(high[0]), self.level, basis)


@dataclass(frozen=True, slots=True)
class Residuals:
    """Out-of-fold predictions: measured and predicted watts and kernel group, each ``[n]``."""

    measured_watts: Floats
    predicted_watts: Floats
    groups: NDArray[np.int64]

    @property
    def logarithms(self) -> Floats:
        """ln(measured / predicted), ``[n]``. Raises ModelError where a value is not positive."""
        if not (np.all(self.measured_watts > 0) and np.all(self.predicted_watts > 0)):
            raise ModelError("interval calibration needs positive measured and predicted power")
        return np.asarray(np.log(self.measured_watts / self.predicted_watts))

    def take(self, rows: NDArray[np.bool_]) -> Residuals:
        """The chosen ones."""
        return Residuals(self.measured_watts[rows], self.predicted_watts[rows], self.groups[rows])


def _wider(one: Width, other: Width) -> Width:
    """What holds both, without a coverage."""
    if isinstance(one, IntervalWidth) and isinstance(other, IntervalWidth):
        return IntervalWidth(
            low_factor=min(one.low_factor, other.low_factor),
            high_factor=max(one.high_factor, other.high_factor),
        )
    return (one if one.holds(other) else other).model_copy(update={"coverage": None})


def interval_bounds(watts: Floats, width: Width, floor_watts: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds in watts, each ``[n]``, around predictions ``[n]``."""
    low, high = width.around(watts)
    return np.minimum(np.maximum(low, floor_watts), watts), np.maximum(high, watts)


def conformal_width(residuals: Residuals, level: float, exponent: float = 0.0) -> Width:
    """Width that holds a new row of a new group with probability ``level``, as
    ``conformal_factors`` with ``symmetric``; at an ``exponent`` of 0 a factor.

    Raises ModelError for watts that are not positive.
    """
    if exponent == 0:
        low, high = conformal_factors(residuals.logarithms, residuals.groups, level, symmetric=True)
        return IntervalWidth(low_factor=low, high_factor=high)
    scaled = residuals.measured_watts**exponent - residuals.predicted_watts**exponent
    half = _upper_quantile(np.abs(scaled), _group_weights(residuals.groups), level)
    return ScaledWidth(exponent=exponent, half_width=half)


def supported_level(groups: int, wanted: float = 0.9) -> float:
    """The highest level up to ``wanted`` at which so many groups give a finite width.

    The largest of ``k`` residuals holds a new one with probability k / (k + 1), and no finite width
    is known to hold more: 0.9 takes nine groups, four support 0.8. In hundredths, rounded down.
    """
    share = groups / (groups + 1)
    return wanted if share >= wanted - 1e-9 else int(100 * share + 1e-9) / 100


def conformal_factors(
    log_residuals: ArrayLike, groups: ArrayLike, level: float, *, symmetric: bool = False
) -> tuple[float, float]:
    """Factors ``(low, high)`` holding a new row of a NEW group with probability ``level``.

    Every group has the same mass, shared evenly by its rows; one more such mass, for the new
    group, lies at infinity. Each tail gets half of ``1 - level``, or with ``symmetric`` both
    share it, ``low = 1 / high``. With too few groups for a finite quantile (at level 0.9 under
    19, symmetric under 9: ``supported_level``) the largest residual stands in.
    ``low <= 1 <= high``.
    """
    residuals = np.asarray(log_residuals, dtype=np.float64)
    weights = _group_weights(groups)
    if symmetric:
        factor = float(np.exp(_upper_quantile(np.abs(residuals), weights, level)))
        return 1 / factor, factor
    tail = (1 - level) / 2
    high = _upper_quantile(residuals, weights, 1 - tail)
    low = -_upper_quantile(-residuals, weights, 1 - tail)
    return float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0)))


def _group_weights(groups: ArrayLike) -> Floats:
    """Mass of each row: equal for all groups, and one more such mass for the new one."""
    _, index, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[index] / (len(counts) + 1))


def _upper_quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(weights[order])
    # 1e-12: the sum of many equal shares may fall short of the level by rounding alone.
    at = int(np.searchsorted(mass, level - 1e-12))
    return float(values[order][min(at, len(values) - 1)])


def at_other_clocks(estimate: Estimate, distance: float) -> Estimate:
    """An estimate of power carried to clocks that lie ``distance`` (>= 0) from those it is known
    at: the sum of both clocks' absolute log ratios."""
    return less_sure(estimate, CLOCK_SPREAD * sqrt(distance))


def less_sure(estimate: Estimate, spread: float) -> Estimate:
    """The estimate with an independent error more, a standard deviation in logarithms."""
    more, value = Z90 * spread, estimate.value
    low = hypot(log(value / estimate.low), more)
    high = hypot(log(estimate.high / value), more)
    return replace(estimate, low=value * exp(-low), high=value * exp(high))


ALARM_CHANCE = 0.01
"""How likely intervals that keep their promise are ever widened: a usual level of tests."""

LEAST_HALF = 0.01
"""Least half width, in logarithms, that a miss is measured in: an end that is cut to what a board
can draw lies no nearer than a sensor tells apart."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What intervals held of measurements that came in after the answers.

    Of ``kernels`` the first measured launch counts, ``inside`` of them were held; the least
    promised ``level``. ``widening``, in logarithms, would have held that level; 1: no alarm.
    """

    kernels: int
    inside: int
    level: float
    widening: float = 1.0

    def widen(self, estimate: Estimate) -> Estimate:
        """An estimate as wide as was needed, at the level that so few kernels support."""
        if self.widening <= 1.0 or estimate.value <= 0.0:
            return estimate
        level = min(estimate.level, supported_level(self.kernels, estimate.level))
        return replace(_stretched(estimate, self.widening), level=level, widened=self.widening)


def miss_score(estimate: Estimate, measured: float) -> float:
    """How many calibrated half widths a measurement lies from its prediction, in logarithms."""
    error = np.log(measured / estimate.value)
    end = estimate.high if error > 0 else max(estimate.low, 1e-9 * estimate.value)
    half = max(abs(np.log(end / estimate.value)), LEAST_HALF)
    return float(abs(error) / half * estimate.widened)


def observed_coverage(scores: ArrayLike, groups: ArrayLike, level: float) -> Observed:
    """Of ``miss_score`` in the order of arrival ``[n]`` and the kernel of each."""
    values, names = np.asarray(scores, dtype=np.float64), np.asarray(groups)
    _, first = np.unique(names, return_index=True)
    kernels, inside = len(first), int(np.sum(values[first] <= 1.0))
    widening = 1.0
    if evidence(kernels, kernels - inside, level) >= 1 / ALARM_CHANCE:
        widening = max(1.0, _upper_quantile(values, _group_weights(names), level))
    return Observed(kernels, inside, level, widening)


def evidence(kernels: int, missed: int, level: float) -> float:
    """How much likelier ``missed`` of ``kernels`` are where more than ``1 - level`` are missed.

    The likelihood ratio against ``1 - level``, averaged over all greater shares alike. Where the
    level is kept, it ever reaches 1 / p with probability p at most, however often it is looked at
    (J. Ville, "Etude critique de la notion de collectif", 1939). The average is a tail of the
    binomial distribution.
    """
    share = 1.0 - level
    term = (kernels + 1) / (kernels + 1 - missed) * level  # of the tail, over that of what is there
    total = 0.0
    for k in range(missed, -1, -1):
        total += term
        term *= k / (kernels + 2 - k) * level / share
    return total / ((kernels + 1) * level)


def loosened(estimate: Estimate) -> Estimate:
    """An estimate whose input was extrapolated: ``EXTRAPOLATED_WIDENING`` times as wide in
    logarithms, and no better than ``extrapolated``."""
    basis = weaker(estimate.basis, "extrapolated")
    return replace(_stretched(estimate, EXTRAPOLATED_WIDENING), basis=basis, widened=1.0)


def _stretched(estimate: Estimate, ratio: float) -> Estimate:
    """``ratio`` times as wide in logarithms."""
    value = estimate.value
    low, high = (value * (end / value) ** ratio for end in (estimate.low, estimate.high))
    return replace(estimate, low=low, high=high)


def calibrate(
    *,
    grouped: Residuals,
    random: Residuals,
    outside: NDArray[np.bool_],
    floor_watts: float,
    level: float = 0.9,
    unseen_coverage: Coverage | None = None,
    seen_coverage: Coverage | None = None,
    exponent: float = 0.0,
) -> IntervalCalibration:
    """Calibrate all widths from out-of-fold predictions.

    ``grouped`` come from folds that never split a kernel group, ``random`` from folds that do
    (there every row counts as its own group: the kernel is known). ``outside`` ``[n]`` marks the
    grouped rows whose inputs left the range of their fold's training rows; the extrapolated
    width holds what they need and at least ``EXTRAPOLATED_WIDENING`` times the unseen one.
    ``exponent`` says how both grow with the prediction (``conformal_width``).
    """
    unseen = conformal_width(grouped, level, exponent)
    extrapolated = unseen.widened(EXTRAPOLATED_WIDENING)
    if np.any(outside):
        needed = conformal_width(grouped.take(outside), level, exponent)
        extrapolated = needed if needed.holds(extrapolated) else extrapolated
    seen_low, seen_high = conformal_factors(
        random.logarithms, np.arange(len(random.measured_watts)), level, symmetric=True
    )
    return IntervalCalibration(
        method="hierarchical-conformal-power-residual"
        if exponent
        else "hierarchical-conformal-log-residual",
        level=level,
        kernel_groups=len(np.unique(grouped.groups)),
        floor_watts=floor_watts,
        seen_kernel=IntervalWidth(
            low_factor=seen_low, high_factor=seen_high, coverage=seen_coverage
        ),
        unseen_kernel=unseen.model_copy(update={"coverage": unseen_coverage}),
        extrapolated=extrapolated,
    )
