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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import DataError
from wattcast.models import processes

Floats = NDArray[np.float64]

AGREE = 0.05
"""Two measurements of one configuration this near are believed, relative."""

GAIN = 0.005
"""Expected gain of one more measurement below which the search stops, relative."""


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
    logarithms of predictions that ``emulated`` told, 0 for those that were made. ``clocks``: where
    every parameter is a clock or a power limit, how wrong predictions are over them. Raises
    DataError for shapes and values that do not fit.
    """

    columns: Floats
    predicted: Floats
    bounded: Floats | None = None
    bound: float = math.inf
    doubt: Floats | None = None
    bounded_doubt: Floats | None = None
    clocks: processes.ClockErrors | None = None
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
            [processes.ranked(column) for column in (*self.columns.T, np.log(self.predicted))]
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
        unknown = len(self.measured) < processes.LEARNED_FROM and not self.clocks
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
        if len(self.measured) < processes.SOME:
            return set()
        far = self._fit(self.predicted, self.measured, self.doubt).far
        return {
            index
            for index, away in zip(self.measured, far, strict=True)
            if away > processes.STRANGE and not _believed(self.measured[index])
        }

    def _fit(
        self, predicted: Floats, measured: dict[int, list[float]], doubt: Floats | None
    ) -> processes.Fit:
        where = np.fromiter(measured, dtype=np.intp, count=len(measured))
        values = np.array([_middle(each) for each in measured.values()], dtype=np.float64)
        believed = np.array([_believed(each) for each in measured.values()], dtype=bool)
        residuals = np.log(values / predicted[where])
        doubted = np.zeros(where.size) if doubt is None else doubt[where]
        return processes.fitted(self._inputs[where], residuals, believed, doubted, self.clocks)

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
                np.full(predicted.size, math.hypot(processes.SPREAD, processes.OWN)), more
            )
        mean, spread = self._fit(predicted, measured, doubt).everywhere(self._inputs)
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


def coded(rows: Sequence[Sequence[float | str | bool]]) -> Floats:
    """Parameters as numbers: texts by their order in the alphabet. Shape (rows, parameters)."""
    columns = []
    for column in zip(*rows, strict=True):
        texts = sorted({str(each) for each in column})
        numeric = all(isinstance(each, int | float) for each in column)
        columns.append([float(each) if numeric else texts.index(str(each)) for each in column])
    return np.array(columns, dtype=np.float64).T.reshape(len(rows), -1)


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
