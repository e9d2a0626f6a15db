"""What to measure next in a tuning space that has been predicted.

A Gaussian process over the tunable parameters learns by how much measurements differ from the
predictions, and expected improvement picks what comes next (Jones, Schonlau, Welch: Efficient
Global Optimization, 1998; over tuning spaces: Willemsen, van Nieuwpoort, van Werkhoven: Bayesian
Optimization for auto-tuning GPU kernels, 2021, which has no predictions to start from). All is in
logarithms: a gain is a share of the best value. The same measurements in the same order give the
same proposals. Where predicting all configurations takes too long, another such process tells those
that were not predicted from those that were, and expected improvement says which to predict next.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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

MOST_LEARNED = 300
"""Known configurations by which it is learnt how far each tells of others: a fit takes the cube."""

SOME = 5
"""Measurements from which one can be called strange."""


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
    bound (energy under a time bound). ``doubt`` and ``bounded_doubt``: standard deviations of the
    logarithms of predictions that ``emulated`` told, 0 for those that were made. Raises DataError
    for shapes and values that do not fit.
    """

    columns: Floats
    predicted: Floats
    bounded: Floats | None = None
    bound: float = math.inf
    doubt: Floats | None = None
    bounded_doubt: Floats | None = None
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

    def promise(self) -> Floats:
        """What each can be expected to save of the best value measured, or, while there is none,
        of the least prediction: by doubt alone, as if predictions were the truth."""
        if self.measured:
            return self.outlook().gain
        if self.doubt is None:
            return np.zeros(self.predicted.size)
        logs = np.log(self.predicted)
        gain = np.zeros(logs.size)
        told = self.doubt > 0
        gain[told] = _improvement(float(logs[~told].min()), logs[told], self.doubt[told])
        if self.bounded is not None:
            bounded, wide = self._expected(self.bounded, {}, self.bounded_doubt)
            gain *= _below((math.log(self.bound) - bounded) / wide)
        return gain

    def propose(self, count: int = 1) -> list[int]:
        """What to measure next, the most promising first; may name one again that looked strange.

        Where several are asked for, each is chosen as if those before had come out as expected.
        Empty where all have been measured.
        """
        found: list[int] = []
        told = replace(
            self,
            measured={index: list(values) for index, values in self.measured.items()},
            measured_bounded={index: list(each) for index, each in self.measured_bounded.items()},
            failed=set(self.failed),
        )
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
        if len(self.measured) < LEARNED_FROM or self._again(strange) or self._best(strange) is None:
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
        far = _fitted(self._places, *self._residuals(self.predicted, self.measured, self.doubt)).far
        return {
            index
            for index, away in zip(self.measured, far, strict=True)
            if away > STRANGE and not _believed(self.measured[index])
        }

    def _residuals(
        self, predicted: Floats, measured: dict[int, list[float]], doubt: Floats | None
    ) -> tuple[NDArray[np.intp], Floats, NDArray[np.bool_], Floats]:
        where = np.fromiter(measured, dtype=np.intp, count=len(measured))
        values = np.array([_middle(each) for each in measured.values()], dtype=np.float64)
        believed = np.array([_believed(each) for each in measured.values()], dtype=bool)
        doubted = np.zeros(where.size) if doubt is None else doubt[where]
        return where, np.log(values / predicted[where]), believed, doubted

    def _outlook(self, strange: set[int]) -> Outlook:
        mean, spread = self._expected(self.predicted, self.measured, self.doubt)
        best = self._best(strange)
        if best is None:
            gain = _improvement(float(mean.min()), mean, spread)
        else:
            gain = _improvement(math.log(_middle(self.measured[best])), mean, spread)
        if self.bounded is not None:
            bounded, wide = self._expected(self.bounded, self.measured_bounded, self.bounded_doubt)
            keeps = _below((math.log(self.bound) - bounded) / wide)
            gain = gain * keeps if best is not None else keeps * (1 + _rising(-mean))
        gain = gain * self._runs()
        gain[[each for each in self.measured if each not in strange]] = 0.0
        gain[list(self.failed)] = 0.0
        width = 1.645 * spread  # of a normal distribution, nine in ten
        return Outlook(np.exp(mean), np.exp(mean - width), np.exp(mean + width), gain)

    def _expected(
        self, predicted: Floats, measured: dict[int, list[float]], doubt: Floats | None
    ) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the logarithm of every configuration."""
        more = 0.0 if doubt is None else doubt
        if not measured:
            return np.log(predicted), np.hypot(
                np.full(predicted.size, math.hypot(SPREAD, OWN)), more
            )
        fit = _fitted(self._places, *self._residuals(predicted, measured, doubt))
        mean, spread = fit.everywhere(self._places)
        return np.log(predicted) + mean, np.hypot(spread, more)

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


def emulated(columns: Floats, known: Mapping[int, float]) -> tuple[Floats, Floats]:
    """All configurations from those whose value is known, at least ``LEARNED_FROM``.

    ``columns`` as in ``Search``. Values (medians) and the standard deviations of their logarithms,
    which are 0 for the known ones, both of shape (configurations,). Raises DataError for fewer.
    """
    if len(known) < LEARNED_FROM:
        raise DataError(
            f"{len(known)} known configurations: at least {LEARNED_FROM} tell of others"
        )
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor
    except ImportError as error:
        raise MissingExtraError("scipy", "tune") from error

    places = np.column_stack([_ranked(column) for column in np.asarray(columns, np.float64).T])
    where = np.fromiter(known, dtype=np.intp, count=len(known))
    logs = np.log(np.fromiter(known.values(), dtype=np.float64, count=len(known)))
    value, doubt = np.empty(places.shape[0]), np.zeros(places.shape[0])
    value[where] = logs
    left = np.setdiff1d(np.arange(places.shape[0]), where)
    if left.size:
        count = min(MOST_LEARNED, _count_learned(len(known)))
        kernel = _emulator(places.shape[1], places[where[:count]].tobytes(), logs[:count].tobytes())
        middle = float(logs[:count].mean())
        process = GaussianProcessRegressor(kernel, optimizer=None).fit(places[where], logs - middle)
        value[left], doubt[left] = process.predict(places[left], return_std=True)
        value[left] += middle
    return np.exp(value), doubt


@lru_cache(maxsize=8)
def _emulator(dimensions: int, at: bytes, logs: bytes) -> Kernel:
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    values = np.frombuffer(logs)
    spread = float(values.std()) + NOISE
    reach = np.full(dimensions, REACH * math.sqrt(dimensions))
    kernel = (
        ConstantKernel(spread**2, ((0.1 * spread) ** 2, (10 * spread) ** 2))
        * Matern(reach, (0.05, 100.0), nu=2.5)
        + WhiteKernel(OWN**2, (NOISE**2 / 100, 0.3**2))
    )  # fmt: skip
    return _fitted_kernel(kernel, np.frombuffer(at).reshape(-1, dimensions), values - values.mean())


def _fitted_kernel(kernel: Kernel, places: Floats, values: Floats) -> Kernel:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel).fit(places, values).kernel_


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
    doubt: Floats,
) -> _Fit:
    try:
        from scipy.linalg import cho_solve, cholesky
    except ImportError as error:
        raise MissingExtraError("scipy", "tune") from error

    at = places[where]
    kernel, own = _learned(at, residuals)
    noise = own + NOISE**2
    offset = float(np.median(residuals)) * residuals.size / (residuals.size + 1)
    usual = noise + doubt**2
    variance = usual.copy()
    while True:
        covariance = kernel(at) + np.diag(variance)
        lower = cholesky(covariance, lower=True)
        weights = cho_solve((lower, True), residuals - offset)
        inverse = np.diag(cho_solve((lower, True), np.eye(residuals.size)))
        away = weights / inverse  # of each from what the others say: Rasmussen & Williams, 5.12
        far = np.abs(away) * np.sqrt(inverse)
        # One that is far is taken for a slip, the farthest first: it says nothing of the others.
        apart = np.where(believed | (variance > usual), 0.0, far)
        worst = int(np.argmax(apart))
        if residuals.size < SOME or apart[worst] <= STRANGE:
            break
        variance[worst] = usual[worst] + away[worst] ** 2
    slipped = np.where(variance > usual, np.inf, far)
    return _Fit(at, kernel, own, offset, weights, lower, slipped)


def _learned(at: Floats, residuals: Floats) -> tuple[Kernel, float]:
    """The process, and the variance that is each one's own.

    By as many of the first measurements as a schedule that grows by a quarter allows: a fit costs
    more than a proposal and changes little between.
    """
    count = _count_learned(residuals.size)
    return _process(at.shape[1], at[:count].tobytes(), residuals[:count].tobytes())


def _count_learned(known: int) -> int:
    count = LEARNED_FROM if known >= LEARNED_FROM else 0
    while count and math.ceil(count * 1.25) <= known:
        count = math.ceil(count * 1.25)
    return count


@lru_cache(maxsize=8)
def _process(dimensions: int, at: bytes, residuals: bytes) -> tuple[Kernel, float]:
    """``_learned`` of the measurements given, kept: every proposal between two fits asks again."""
    from scipy.stats import median_abs_deviation
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    reach = np.full(dimensions, REACH * math.sqrt(dimensions))
    first = ConstantKernel(SPREAD**2, (0.01**2, 1.0)) * Matern(reach, (0.1, 20.0), nu=2.5)
    if not residuals:
        return first, OWN**2
    places = np.frombuffer(at).reshape(-1, dimensions)
    seen = np.frombuffer(residuals) - np.median(np.frombuffer(residuals))
    scale = 1.4826 * float(median_abs_deviation(seen)) + NOISE
    kernel = first + WhiteKernel(OWN**2 + NOISE**2, (NOISE**2, 0.2**2))
    found = _fitted_kernel(kernel, places, np.clip(seen, -STRANGE * scale, STRANGE * scale))
    return found.k1, float(found.k2.noise_level) - NOISE**2


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
