"""What to measure next in a tuning space whose every configuration has been predicted.

A Gaussian process over the tunable parameters learns by how much measurements differ from the
predictions, and expected improvement picks what comes next (Jones, Schonlau, Welch: Efficient
Global Optimization, 1998; over tuning spaces: Willemsen, van Nieuwpoort, van Werkhoven: Bayesian
Optimization for auto-tuning GPU kernels, 2021, which has no predictions to start from). All is in
logarithms: a gain is a share of the best value. The same measurements in the same order give the
same proposals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

Floats = NDArray[np.float64]

SPREAD = 0.15
"""What predictions of one space are wrong by before anything is measured, as a standard deviation
of logarithms, where neighbours are wrong alike: medians of 2 to 15 % in ``docs/accuracy.md``."""

OWN = 0.05
"""What each is wrong by on its own, that no neighbour tells; learnt later with the noise."""

NOISE = 0.01
"""Between two measurements of one configuration, relative: Kernel Tuner's means of 7 to 32 runs on
boards with fixed clocks."""

REACH = 0.5
"""How far a measurement tells of others, as a share of each parameter's values; learnt later."""

LEARNED_FROM = 10
"""Measurements from which spread and reach are learnt instead of assumed; a search does not stop
before, for until then nobody knows how far the predictions are off."""

STRANGE = 4.0
"""Standard deviations from what all others let expect: measured once more before it counts."""

AGREE = 0.05
"""Two measurements of one configuration this near are believed, relative."""

GAIN = 0.005
"""Expected gain of one more measurement below which the search stops, relative."""

SOME = 5
"""Measurements from which one can be called strange."""


LEVEL = 1.0
"""What predictions over clocks may be wrong by all alike, in logarithms: so wide that the first
measurement tells it, as a common factor says nothing of which pair is best."""


@dataclass(frozen=True, slots=True)
class ClockErrors:
    """What predictions over clocks and power limits alone are wrong by besides, as standard
    deviations of logarithms: along each logarithm of a clock (``slope``), and in waves (``wave``)
    that reach so far in it (``reach``)."""

    slope: float
    wave: float
    reach: float

    def process(self) -> Kernel:
        """As a process over logarithms of clocks."""
        from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern

        slopes = ConstantKernel(self.slope**2) * DotProduct(LEVEL / self.slope)
        return slopes + ConstantKernel(self.wave**2) * Matern(self.reach, nu=2.5)


CLOCKS = ClockErrors(slope=0.19, wave=0.05, reach=0.15)
"""By maximum likelihood on kernels left out: ``python -m studies tuning-clocks`` prints it."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of all configurations; ``gain`` is what measuring each can be expected to save
    of the best value, 0 where it has been measured. Values are medians with 90 % intervals."""

    value: Floats
    low: Floats
    high: Floats
    gain: Floats


@dataclass
class Search:
    """Proposes configurations by predictions and takes in what was measured of them.

    ``columns``: parameters as numbers, (configurations, parameters); ``predicted``: the objective,
    above 0. ``bounded`` and ``bound``: a second quantity, as predicted, that must stay below a
    bound (energy under a time bound). ``clocks``: where every parameter is a clock or a power
    limit, how wrong predictions are over them. Raises DataError for shapes and values that do not
    fit.
    """

    columns: Floats
    predicted: Floats
    bounded: Floats | None = None
    bound: float = math.inf
    clocks: ClockErrors | None = None
    measured: dict[int, list[float]] = field(default_factory=dict)
    measured_bounded: dict[int, list[float]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.columns = np.asarray(self.columns, dtype=np.float64)
        for name in ("predicted", "bounded"):
            given = getattr(self, name)
            if given is None:
                continue
            values = np.asarray(given, dtype=np.float64)
            if self.columns.ndim != 2 or values.shape != self.columns.shape[:1] or not values.size:
                raise DataError("every configuration needs its parameters and its prediction")
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise DataError("predictions must be finite and above 0")
            setattr(self, name, values)
        self._places = np.column_stack(
            [_ranked(column) for column in (*self.columns.T, np.log(self.predicted))]
        )
        if self.clocks and not (self.columns > 0).all():
            raise DataError("clocks and power limits must be above 0")

    @property
    def _inputs(self) -> Floats:
        """Where each configuration lies for the process."""
        if not self.clocks:
            return self._places
        # A limit that does not bind, or a clock above what it allows: predicted as the same run.
        _, first, which = np.unique(
            np.log(self.predicted).round(9), return_index=True, return_inverse=True
        )
        return np.asarray(np.log(self.columns / self.columns.max(axis=0))[first][which])

    def tell(self, index: int, value: float | None, bounded: float | None = None) -> None:
        """A measurement, ``None`` for a run that failed. Raises DataError for what is no number."""
        if not 0 <= index < self.predicted.size:
            raise DataError(f"there is no configuration {index}")
        if value is None:
            self.failed.add(index)
            return
        if self.bounded is not None and bounded is None:
            raise DataError("this objective needs two quantities measured: its own and the bound's")
        for given in (value, *(() if bounded is None else (bounded,))):
            if not (math.isfinite(given) and given > 0):
                raise DataError(f"a measurement must be finite and above 0, not {given!r}")
        self.failed.discard(index)
        self.measured.setdefault(index, []).append(float(value))
        if bounded is not None:
            self.measured_bounded.setdefault(index, []).append(float(bounded))

    def best(self) -> int | None:
        """The configuration with the least measured value that keeps the bound and is believed."""
        return self._best(self._strange())

    def outlook(self) -> Outlook:
        """What measurements so far let expect of every configuration."""
        return self._outlook(self._strange())

    def propose(self, count: int = 1) -> list[int]:
        """What to measure next, the most promising first; may name one again that looked strange.

        Where several are asked for, each is chosen as if those before had come out as expected.
        Empty where all have been measured.
        """
        found: list[int] = []
        told = Search(self.columns, self.predicted, self.bounded, self.bound, self.clocks)
        told.measured = {index: list(values) for index, values in self.measured.items()}
        told.measured_bounded = {k: list(v) for k, v in self.measured_bounded.items()}
        told.failed = set(self.failed)
        while len(found) < count:
            one, outlook = told._next()
            if one is None or one in found:
                break
            found.append(one)
            limit = None if self.bounded is None else min(self.bound, float(self.bounded[one]))
            told.tell(one, float(outlook.value[one]), limit)
        return found

    def finished(self, gain: float = GAIN) -> bool:
        """Whether one more measurement is expected to gain less than ``gain`` of the best; never
        while configurations are left and none that was measured keeps the bound."""
        left = self.predicted.size - len(self.measured.keys() | self.failed)
        strange = self._strange()
        if left == 0:
            return not self._again(strange)
        unknown = len(self.measured) < LEARNED_FROM and not self.clocks
        if unknown or self._again(strange) or self._best(strange) is None:
            return False
        return float(self._outlook(strange).gain.max()) < gain

    def _next(self) -> tuple[int | None, Outlook]:
        strange = self._strange()
        outlook = self._outlook(strange)
        if again := self._again(strange):
            return again[0], outlook
        if not self.measured and not self.failed and self.bounded is None:
            return int(np.argmin(self.predicted)), outlook
        open_ = outlook.gain.copy()
        open_[[*self.failed, *(each for each in self.measured if each not in strange)]] = -1
        if (open_ < 0).all():
            return None, outlook
        if open_.max() <= 0:
            open_[open_ >= 0] = 1 / outlook.value[open_ >= 0]
        return int(np.argmax(open_)), outlook

    def _best(self, strange: set[int]) -> int | None:
        kept = [
            index
            for index in self.measured
            if index not in strange
            and (self.bounded is None or _middle(self.measured_bounded[index]) <= self.bound)
        ]
        return min(kept, key=lambda index: _middle(self.measured[index]), default=None)

    def _again(self, strange: set[int]) -> list[int]:
        """Strange ones that would be the best if they were true."""
        best = self._best(strange)
        limit = math.inf if best is None else _middle(self.measured[best])
        return sorted(
            (index for index in strange if min(self.measured[index]) < limit),
            key=lambda index: min(self.measured[index]),
        )

    def _strange(self) -> set[int]:
        """Measured once, or with values that differ, and far from what all others let expect."""
        if len(self.measured) < SOME:
            return set()
        far = self._fit(self.predicted, self.measured).far
        return {
            index
            for index, away in zip(self.measured, far, strict=True)
            if away > STRANGE and not _believed(self.measured[index])
        }

    def _fit(self, predicted: Floats, measured: dict[int, list[float]]) -> _Fit:
        where = np.fromiter(measured, dtype=np.intp, count=len(measured))
        values = np.array([_middle(each) for each in measured.values()], dtype=np.float64)
        believed = np.array([_believed(each) for each in measured.values()], dtype=bool)
        residuals = np.log(values / predicted[where])
        return _fitted(self._inputs, where, residuals, believed, self.clocks)

    def _outlook(self, strange: set[int]) -> Outlook:
        mean, spread = self._expected(self.predicted, self.measured)
        best = self._best(strange)
        if best is None:
            gain = np.full(mean.size, SPREAD)
        else:
            gain = _improvement(math.log(_middle(self.measured[best])), mean, spread)
        if self.bounded is not None:
            bounded, wide = self._expected(self.bounded, self.measured_bounded)
            keeps = _below((math.log(self.bound) - bounded) / wide)
            gain = gain * keeps if best is not None else keeps * (1 + _rising(-mean))
        gain = gain * self._runs()
        gain[[each for each in self.measured if each not in strange]] = 0.0
        gain[list(self.failed)] = 0.0
        width = 1.645 * spread  # of a normal distribution, nine in ten
        return Outlook(np.exp(mean), np.exp(mean - width), np.exp(mean + width), gain)

    def _expected(
        self, predicted: Floats, measured: dict[int, list[float]]
    ) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of every configuration."""
        if not measured:
            return np.log(predicted), np.full(predicted.size, math.hypot(SPREAD, OWN))
        mean, spread = self._fit(predicted, measured).everywhere(self._inputs)
        return np.log(predicted) + mean, spread

    def _runs(self) -> Floats:
        """Chance that each runs, by what ran and what failed beside it."""
        if not self.failed:
            return np.ones(self.predicted.size)
        near = {
            name: np.exp(
                -0.5
                * (
                    (self._places[:, None, :] - self._places[None, sorted(which), :]) ** 2 / 0.1**2
                ).sum(axis=2)
            ).sum(axis=1)
            for name, which in (("ran", self.measured.keys()), ("failed", self.failed))
        }
        return np.asarray((1 + near["ran"]) / (1 + near["ran"] + near["failed"]))


def coded(rows: Sequence[Sequence[float | str | bool]]) -> Floats:
    """Parameters as numbers: texts by their order in the alphabet. Shape (rows, parameters)."""
    columns = []
    for column in zip(*rows, strict=True):
        texts = sorted({str(each) for each in column})
        numeric = all(isinstance(each, int | float) for each in column)
        columns.append([float(each) if numeric else texts.index(str(each)) for each in column])
    return np.array(columns, dtype=np.float64).T.reshape(len(rows), -1)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Residuals as a Gaussian process; ``far``: standard deviations of each from the others."""

    where: Floats
    kernel: Kernel
    own: float
    offset: float
    weights: Floats
    lower: Floats
    far: Floats

    def everywhere(self, places: Floats) -> tuple[Floats, Floats]:
        from scipy.linalg import solve_triangular

        across = self.kernel(places, self.where)
        mean = self.offset + across @ self.weights
        half = solve_triangular(self.lower, across.T, lower=True)
        left = self.own + self.kernel.diag(places) - np.einsum("ij,ij->j", half, half)
        return mean, np.sqrt(np.maximum(left, 1e-8))


def _fitted(
    places: Floats,
    where: NDArray[np.intp],
    residuals: Floats,
    believed: NDArray[np.bool_],
    clocks: ClockErrors | None,
) -> _Fit:
    try:
        from scipy.linalg import cho_solve, cholesky
    except ImportError as error:
        raise MissingExtraError("scipy", "tune") from error

    at = places[where]
    kernel, own = (clocks.process(), 0.0) if clocks else _learned(at, residuals)
    noise = own + NOISE**2
    offset = float(np.median(residuals)) * residuals.size / (residuals.size + 1)
    if clocks:
        offset = 0.0  # it has a level of its own
    variance = np.full(residuals.size, noise)
    while True:
        covariance = kernel(at) + np.diag(variance)
        lower = cholesky(covariance, lower=True)
        weights = cho_solve((lower, True), residuals - offset)
        inverse = np.diag(cho_solve((lower, True), np.eye(residuals.size)))
        away = weights / inverse  # of each from what the others say: Rasmussen & Williams, 5.12
        far = np.abs(away) * np.sqrt(inverse)
        # One that is far is taken for a slip, the farthest first: it says nothing of the others.
        doubt = np.where(believed | (variance > noise), 0.0, far)
        worst = int(np.argmax(doubt))
        if residuals.size < SOME or doubt[worst] <= STRANGE:
            break
        variance[worst] = noise + away[worst] ** 2
    slipped = np.where(variance > noise, np.inf, far)
    return _Fit(at, kernel, own, offset, weights, lower, slipped)


def _learned(at: Floats, residuals: Floats) -> tuple[Kernel, float]:
    """The process, and the variance that is each one's own.

    By as many of the first measurements as a schedule that grows by a quarter allows: a fit costs
    more than a proposal and changes little between.
    """
    count = 0
    if residuals.size >= LEARNED_FROM:
        count = LEARNED_FROM
        while math.ceil(count * 1.25) <= residuals.size:
            count = math.ceil(count * 1.25)
    return _process(at.shape[1], at[:count].tobytes(), residuals[:count].tobytes())


@lru_cache(maxsize=8)
def _process(dimensions: int, at: bytes, residuals: bytes) -> tuple[Kernel, float]:
    """``_learned`` of the measurements given, kept: every proposal between two fits asks again."""
    from scipy.stats import median_abs_deviation
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    reach = np.full(dimensions, REACH * math.sqrt(dimensions))
    first = ConstantKernel(SPREAD**2, (0.01**2, 1.0)) * Matern(reach, (0.1, 20.0), nu=2.5)
    if not residuals:
        return first, OWN**2
    places = np.frombuffer(at).reshape(-1, dimensions)
    seen = np.frombuffer(residuals) - np.median(np.frombuffer(residuals))
    scale = 1.4826 * float(median_abs_deviation(seen)) + NOISE
    process = GaussianProcessRegressor(
        first + WhiteKernel(OWN**2 + NOISE**2, (NOISE**2, 0.2**2)), normalize_y=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(places, np.clip(seen, -STRANGE * scale, STRANGE * scale))
    return process.kernel_.k1, float(process.kernel_.k2.noise_level) - NOISE**2


def _ranked(column: Floats) -> Floats:
    """Values by their place among the different ones, 0 to 1; many different ones by their size."""
    different, place = np.unique(column, return_inverse=True)
    if different.size > 32:
        return np.asarray((column - different[0]) / (different[-1] - different[0]))
    return np.asarray(place / max(1, different.size - 1), dtype=np.float64)


def _rising(values: Floats) -> Floats:
    return np.asarray(np.argsort(np.argsort(values, kind="stable")) / max(1, values.size))


def _middle(values: Sequence[float]) -> float:
    """The median, of two the larger: a slip that looks good does not count while it is alone."""
    return sorted(values)[len(values) // 2]


def _believed(values: Sequence[float]) -> bool:
    """Whether two of them agree."""
    ordered = sorted(values)
    return any(b <= a * (1 + AGREE) for a, b in pairwise(ordered))


def _improvement(best: float, mean: Floats, spread: Floats) -> Floats:
    """Expected improvement below ``best`` (Jones, Schonlau, Welch, Equation 15), in logarithms."""
    below = (best - mean) / spread
    density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    return np.asarray((best - mean) * _below(below) + spread * density)


def _below(values: Floats) -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(values))
