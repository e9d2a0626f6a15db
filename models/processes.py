"""Gaussian processes of a search in a tuning space: how far predictions are off, and what
configurations that nobody predicted would be predicted as.

Values are logarithms; places are tunable parameters by their rank, 0 to 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
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

MOST_LEARNED = 300
"""Known configurations by which it is learnt how far each tells of others: a fit takes the cube."""

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


CLOCKS = ClockErrors(slope=0.19, wave=0.052, reach=0.21)
"""By maximum likelihood on 73 kernels left out, predicted from code: study
``tuning-clocks`` of revision 5da0e32."""


@dataclass(frozen=True, slots=True)
class Fit:
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


def fitted(
    at: Floats,
    residuals: Floats,
    believed: NDArray[np.bool_],
    doubt: Floats,
    clocks: ClockErrors | None,
) -> Fit:
    try:
        from scipy.linalg import cho_solve, cholesky
    except ImportError as error:
        raise MissingExtraError("scipy", "tune") from error

    kernel, own = (clocks.process(), 0.0) if clocks else _learned(at, residuals)
    noise = own + NOISE**2
    offset = float(np.median(residuals)) * residuals.size / (residuals.size + 1)
    if clocks:
        offset = 0.0  # it has a level of its own
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
    return Fit(at, kernel, own, offset, weights, lower, slipped)


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
    found = _learned_kernel(kernel, places, np.clip(seen, -STRANGE * scale, STRANGE * scale))
    return found.k1, float(found.k2.noise_level) - NOISE**2


def ranked(column: Floats) -> Floats:
    """Values by their place among the different ones, 0 to 1; many different ones by their size."""
    different, place = np.unique(column, return_inverse=True)
    if different.size > 32:
        return np.asarray((column - different[0]) / (different[-1] - different[0]))
    return np.asarray(place / max(1, different.size - 1), dtype=np.float64)


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

    places = np.column_stack([ranked(column) for column in np.asarray(columns, np.float64).T])
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

    places, values = np.frombuffer(at).reshape(-1, dimensions), np.frombuffer(logs)
    spread = float(values.std()) + NOISE
    reach = np.full(dimensions, REACH * math.sqrt(dimensions))
    kernel = (
        ConstantKernel(spread**2, ((0.1 * spread) ** 2, (10 * spread) ** 2))
        * Matern(reach, (0.05, 100.0), nu=2.5)
        + WhiteKernel(OWN**2, (NOISE**2 / 100, 0.3**2))
    )  # fmt: skip
    return _learned_kernel(kernel, places, values - values.mean())


def _learned_kernel(kernel: Kernel, places: Floats, values: Floats) -> Kernel:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel).fit(places, values).kernel_
