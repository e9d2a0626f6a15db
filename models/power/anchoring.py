"""A launch's power from its prediction and from measured launches of the same kernel.

What a model misses of a kernel it misses at most of its launches: the logarithm of measured over
predicted power varies from kernel to kernel by much, within a kernel by little, and the less the
more alike two launches are. That is a Gaussian process over the launches of one kernel::

    cov(i, j) = OFFSET^2 + LOCAL^2 exp(-distance(i, j))        variance + NOISE^2

and the answer its posterior (simple kriging; C. E. Rasmussen and C. K. I. Williams, "Gaussian
Processes for Machine Learning", 2006, equations 2.25 and 2.26): the correction is shrunken by
how few launches are known, and by how far from them the new one lies. The interval narrows alike.
Kernels differ in how much they vary: where the known launches lie farther from their predictions
than the process has it, the variance is larger by as much, as in a Student process of
``FREEDOM`` degrees (A. Shah, A. G. Wilson and Z. Ghahramani, "Student-t Processes as Alternatives
to Gaussian Processes", AISTATS 2014, lemma 3).

The constants are those of greatest likelihood of the extra trees' residuals on kernels left out
of training, over all launches of three GPUs; those of any two of them score the third the same
to the second digit (docs/power.md has the figures and the command).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.checked import read_rows
from wattcast.features.errors import LaunchError
from wattcast.models.intervals import Estimate

Floats = NDArray[np.float64]

OFFSET = 0.05
"""Standard deviation of a kernel's own residual, in ln watts: between kernels."""
LOCAL = 0.28
"""Standard deviation of what changes from launch to launch of a kernel, in ln watts."""
NOISE = 0.02
"""Standard deviation of repeated measurements, in ln watts: 2 %."""
LENGTHS = (22.0, 90.0, 1.5)
"""Distances in ln threads, ln threads per block and ln predicted watts at which launches are
one unit apart: where the prediction hardly moves, neither does what it misses."""
FREEDOM = 4.0
"""Degrees of freedom. Of 2.5 to 10, 4 and 6 have the best interval scores on kernels left out of
three boards, 4 % better than a Gaussian process (docs/power.md); 4 holds kernels known to be odd as
well as others."""
ANY = "any"


class AnchoredWidth(NamedTuple):
    """Half the width of an interval in standard deviations of the process, and its ``level``.

    ``anchored.csv`` (made by ``python -m studies intervals --write``) holds what one or three known
    launches left of kernels left out, by GPU and source of its rows; ``groups`` are kernels. The
    row ``any`` is for models without rows of their own there: boards are its groups, and so few
    support a level of 0.8. A normal process would need 1.64 at 0.9.
    """

    gpu: str
    source: str
    deviations: float
    level: float
    groups: int


WIDTHS = Path(__file__).with_name("anchored.csv")


@lru_cache(maxsize=1)
def _widths() -> dict[tuple[str, str], AnchoredWidth]:
    return {(row.gpu, row.source): row for row in read_rows(WIDTHS, AnchoredWidth)}


def width_of(gpu: str, source: str) -> AnchoredWidth:
    """Of answers by a model of a GPU, trained on rows of a source."""
    known = _widths()
    return known.get((gpu, source)) or known[ANY, ANY]


@dataclass(frozen=True, slots=True)
class Anchored:
    """Corrected watts ``[m]``, and their standard deviation in ln watts ``[m]``."""

    watts: Floats
    log_deviation: Floats


def launch_coordinates(grid: ArrayLike, block: ArrayLike, predicted_watts: ArrayLike) -> Floats:
    """Where launches lie among the launches of their kernel, ``[m, 3]``.

    Blocks, threads per block and predicted watts are ``[m]``. Raises LaunchError for one that is
    not above 0 and finite.
    """
    blocks, threads, watts = (
        np.atleast_1d(np.asarray(values, dtype=np.float64))
        for values in (grid, block, predicted_watts)
    )
    for name, values in (("grid", blocks), ("block", threads), ("predicted_watts", watts)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise LaunchError(f"{name} must be above 0 and finite", field=name)
    return np.column_stack([np.log(blocks * threads), np.log(threads), np.log(watts)])


def anchored(
    predicted_known: ArrayLike,
    measured_known: ArrayLike,
    known: Floats,
    new: Floats,
    predicted_new: ArrayLike,
) -> Anchored:
    """Predictions of new launches, corrected by measured ones of the same kernel.

    Watts predicted and measured of the known launches are ``[k]``, those predicted of the new
    ones ``[m]``; ``known`` ``[k, 3]`` and ``new`` ``[m, 3]`` are ``launch_coordinates``. Without
    known launches the prediction stays as it is. Raises LaunchError for watts that are not above
    0 and finite.
    """
    before = np.asarray(predicted_new, dtype=np.float64)
    predicted = np.asarray(predicted_known, dtype=np.float64)
    measured = np.asarray(measured_known, dtype=np.float64)
    for name, values in (("power_watts", measured), ("predicted_watts", predicted)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise LaunchError(f"{name} must be above 0 and finite", field=name)
    prior = OFFSET**2 + LOCAL**2
    if not len(measured):
        return Anchored(before, np.full(len(before), np.sqrt(prior + NOISE**2)))
    between = _covariance(known, known) + NOISE**2 * np.eye(len(known))
    across = _covariance(known, new)
    weights = np.linalg.solve(between, across)
    missed = np.log(measured / predicted)
    correction = weights.T @ missed
    odd = (FREEDOM - 2 + missed @ np.linalg.solve(between, missed)) / (FREEDOM - 2 + len(missed))
    variance = odd * (np.maximum(prior - np.sum(weights * across, axis=0), 0.0) + NOISE**2)
    return Anchored(before * np.exp(correction), np.sqrt(variance))


def _covariance(one: Floats, other: Floats) -> Floats:
    steps = (one[:, None, :] - other[None, :, :]) / np.array(LENGTHS)
    distance = np.sqrt(np.sum(steps**2, axis=-1))
    return np.asarray(OFFSET**2 + LOCAL**2 * np.exp(-distance))


def corrected(estimate: Estimate, anchor: Anchored, width: AnchoredWidth) -> Estimate:
    """An estimate in watts moved to the first anchored value, ``seen_kernel``, with its interval.

    The interval is ``width.deviations`` standard deviations either way in ln watts, and never wider
    than the estimate's own: a measured launch takes nothing away from what was known.
    """
    watts = float(anchor.watts[0])
    factor = float(np.exp(width.deviations * anchor.log_deviation[0]))
    return Estimate(
        value=watts,
        low=watts / min(factor, estimate.value / estimate.low),
        high=watts * min(factor, estimate.high / estimate.value),
        level=min(estimate.level, width.level),
        basis="seen_kernel",
    )
