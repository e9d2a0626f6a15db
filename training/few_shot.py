"""A new GPU from few measurements: a model of other GPUs, mapped by N launches measured on it.

    wattcast calibrate MEASURED.csv     predicts launches of a GPU from a few measured on it
    docs/data.md                   leave-one-GPU-out with N launches

A model of the other GPUs tells a launch's power relative to its GPU's median (``SourceModel``).
The N known rows then map that to watts in several ways (``WAYS``): their median alone, an affine
map of the logarithm, a map of ranks, each blended with the median, and an affine map whose
residuals are carried to similar launches by a Gaussian process. Which way, is chosen by
cross-validation: how the ways did on existing GPUs that stood in as new ones (each predicted by
a model of the rest), and how they do on the known rows left out in turn. Where none clearly beats
the median in that, it is the median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

from wattcast.features.checked import check_measured
from wattcast.features.errors import DataError
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.data.datasets import FIRST_ROW, number, read_table
from wattcast.training.evaluation.scores import Floats, Indices, Predict, Rows
from wattcast.training.power_rows import power_rows

COLUMNS = (
    *(name for name in MODEL_INPUTS if name not in ("occupancy", "shmem_block")),
    *("grid_size", "total_threads"),
)
"""Features that every power file has (occupancy and shared memory are the thesis' alone)."""

STAND_IN_WEIGHT = 10.0
"""How many known rows the experience with existing GPUs counts as, in choosing a way."""

MARGIN = 0.05
"""Share by which a way must err less than the median in cross-validation to be chosen: the best of
several always looks a little better than it is."""

_SHRINKAGE = 3.0
"""Known rows that the prior slope of the affine map counts as: 1, power varies as elsewhere."""
_TREES, _DRAWS = 100, 8
FOLDS = 10
_SEED = 7


@dataclass(frozen=True)
class Launches:
    """Launches of one GPU: ``relative`` is the logarithm of the source model's relative power,
    ``places`` standardised features ``[n, k]``, ``log_watts`` measured (NaN where asked for)."""

    relative: Floats
    places: Floats
    log_watts: Floats

    def __len__(self) -> int:
        return len(self.relative)

    def take(self, rows: Indices) -> Launches:
        """The chosen launches."""
        return Launches(self.relative[rows], self.places[rows], self.log_watts[rows])


Way = Callable[[Launches, Launches], Floats]
"""(known launches, others) -> logarithm of their watts."""


def own_median(known: Launches, test: Launches) -> Floats:
    """The median of what was measured."""
    return np.full(len(test), np.median(known.log_watts))


def affine(known: Launches, test: Launches) -> Floats:
    """ln watts = a + b x relative power; b is shrunk to 1, and power never falls with it."""
    slope = _slope(known)
    return np.median(known.log_watts - slope * known.relative) + slope * test.relative


def ranked(known: Launches, test: Launches) -> Floats:
    """The k-th least relative power of the known launches has their k-th least power."""
    return np.asarray(
        np.interp(test.relative, np.sort(known.relative), np.sort(known.log_watts)),
        dtype=np.float64,
    )


def blended(way: Way, share: float) -> Way:
    """``share`` of a way, the rest of the own median, in logarithms."""

    def predict(known: Launches, test: Launches) -> Floats:
        return share * way(known, test) + (1 - share) * own_median(known, test)

    return predict


def carried(length: float) -> Way:
    """Affine map, and its residuals carried to launches at a distance of about ``length``.

    A Gaussian process with a squared-exponential kernel; distances are per feature, so that
    ``length`` means the same however many features there are.
    """

    def predict(known: Launches, test: Launches) -> Floats:
        residual = known.log_watts - affine(known, known)
        among = _likeness(known.places, known.places, length)
        # Half of the variance of a residual is the launch's own and tells nothing of others.
        weights = np.linalg.solve(among + 0.5 * np.eye(len(known)), residual)
        return np.asarray(
            affine(known, test) + _likeness(test.places, known.places, length) @ weights
        )

    return predict


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "median": own_median,
        "affine": affine,
        "affine, half": blended(affine, 0.5),
        "rank": ranked,
        "rank, half": blended(ranked, 0.5),
        "carried 0.3": carried(0.3),
        "carried 0.6": carried(0.6),
        "carried 1.2": carried(1.2),
    }
)


class SourceModel:
    """Power relative to its GPU's median, learned from other GPUs; every GPU weighs the same."""

    def __init__(self, train: Rows) -> None:
        assert train.gpus is not None
        self.gpus = tuple(np.unique(train.gpus).tolist())
        target, weights = np.empty(len(train)), np.empty(len(train))
        for gpu in self.gpus:
            own = train.gpus == gpu
            target[own] = np.log(train.watts[own] / np.median(train.watts[own]))
            weights[own] = 1 / own.sum()
        logs = _logs(train.vectors)
        self._fill = np.nanmedian(logs, axis=0)
        logs = self._filled(logs)
        self._mean, self._scale = logs.mean(axis=0), logs.std(axis=0)
        self._trees = ExtraTreesRegressor(
            _TREES, min_samples_leaf=3, max_features=0.5, random_state=_SEED
        ).fit(logs, target, sample_weight=weights / weights.mean())

    def launches(self, rows: Rows) -> Launches:
        """Launches of one GPU as this model sees them."""
        logs = self._filled(_logs(rows.vectors))
        return Launches(
            np.asarray(self._trees.predict(logs)),
            (logs - self._mean) / self._scale,
            np.log(rows.watts),
        )

    def _filled(self, logs: Floats) -> Floats:
        return np.where(np.isnan(logs), self._fill, logs)


@dataclass(frozen=True)
class Choice:
    """The way chosen, and the mean absolute error in watts of each on known launches left out."""

    way: str
    left_out_mae_watts: Mapping[str, float]


@dataclass
class Calibrator:
    """Calibration as protocols score it: fits on other GPUs, predicts from known rows.

    ``ways`` are those to choose from. Fits of source models are kept, since the other GPUs are the
    same for every draw of known rows.
    """

    ways: Mapping[str, Way] = field(default_factory=lambda: WAYS)
    _models: dict[tuple[str, ...], SourceModel] = field(default_factory=dict)
    _gains: dict[tuple[tuple[str, ...], int], dict[str, float]] = field(default_factory=dict)

    def __call__(self, train: Rows) -> Predict:
        """Training rows of other GPUs -> what predicts a new one."""
        model = self._model(train)

        def predict(known: Rows, test: Rows) -> Floats:
            measured, asked = model.launches(known), model.launches(test)
            way = self.ways[self._choose(train, measured).way]
            return np.asarray(np.exp(way(measured, asked)))

        return predict

    def choice(self, train: Rows, known: Rows) -> Choice:
        """What is chosen for known rows of a new GPU, at least 2, and why."""
        return self._choose(train, self._model(train).launches(known))

    def _choose(self, train: Rows, known: Launches) -> Choice:
        if len(known) < 2:
            raise DataError("a calibration needs at least two measured launches")
        before = self._experience(train, len(known))
        errors = left_out_errors(self.ways, known)
        own = _gains(errors)
        weight = STAND_IN_WEIGHT / (STAND_IN_WEIGHT + len(known))
        total = {name: weight * before[name] + (1 - weight) * own[name] for name in self.ways}
        best = min(total, key=lambda name: total[name])
        return Choice(best if total[best] < np.log(1 - MARGIN) else "median", errors)

    def _model(self, train: Rows) -> SourceModel:
        assert train.gpus is not None
        key = tuple(np.unique(train.gpus).tolist())
        if key not in self._models:
            self._models[key] = SourceModel(train)
        return self._models[key]

    def _experience(self, train: Rows, shots: int) -> dict[str, float]:
        """How the ways did on the training GPUs, each standing in for a new one."""
        assert train.gpus is not None
        key = (tuple(np.unique(train.gpus).tolist()), shots)
        if key not in self._gains:
            gains = []
            for gpu in key[0]:
                own = train.gpus == gpu
                if own.sum() < 2 * shots or own.all():
                    continue  # too few launches to stand in, or no GPU left to learn from
                model = self._model(train.take(np.flatnonzero(~own)))
                launches = model.launches(train.take(np.flatnonzero(own)))
                gains += [self._drawn(launches, shots, draw) for draw in range(_DRAWS)]
            self._gains[key] = {
                name: float(np.mean([gain[name] for gain in gains])) if gains else 0.0
                for name in self.ways
            }
        return self._gains[key]

    def _drawn(self, launches: Launches, shots: int, draw: int) -> dict[str, float]:
        order = np.random.default_rng([_SEED, draw]).permutation(len(launches))
        known, test = launches.take(order[:shots]), launches.take(order[shots:])
        errors = {name: _errors(way(known, test), test) for name, way in self.ways.items()}
        return _gains({name: each.mean() for name, each in errors.items()})


def left_out_errors(ways: Mapping[str, Way], known: Launches) -> dict[str, float]:
    """Mean absolute error in watts of each way on known launches left out in turn."""
    fold = np.arange(len(known)) % min(FOLDS, len(known))
    errors = {name: np.empty(len(known)) for name in ways}
    for each in np.unique(fold):
        rest, out = known.take(np.flatnonzero(fold != each)), np.flatnonzero(fold == each)
        for name, way in ways.items():
            errors[name][out] = _errors(way(rest, known.take(out)), known.take(out))
    return {name: float(each.mean()) for name, each in errors.items()}


def _gains(errors: Mapping[str, float]) -> dict[str, float]:
    """Logarithm of each way's error over the median's."""
    # 1e-9 W: known rows may all be equal, and the median then has no error at all.
    median = errors["median"] + 1e-9
    return {name: float(np.log((error + 1e-9) / median)) for name, error in errors.items()}


def _errors(log_watts: Floats, test: Launches) -> Floats:
    return np.asarray(np.abs(np.exp(log_watts) - np.exp(test.log_watts)))


def _slope(known: Launches) -> float:
    spread = known.relative - known.relative.mean()
    power = known.log_watts - known.log_watts.mean()
    prior = _SHRINKAGE * max(float(np.mean(spread**2)), 1e-12)
    return max((float(spread @ power) + prior) / (float(spread @ spread) + prior), 0.0)


def _likeness(left: Floats, right: Floats, length: float) -> Floats:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    return np.asarray(np.exp(-np.maximum(squares, 0) / (2 * left.shape[1] * length**2)))


def _logs(vectors: Floats) -> Floats:
    return np.asarray(np.log1p(vectors))


@dataclass(frozen=True)
class Calibrated:
    """A choice for a GPU, and predicted watts of the launches asked for."""

    choice: Choice
    measured: int
    predicted_watts: tuple[float, ...]


def calibrate(measured: Path, asked: Path | None = None, root: Path | None = None) -> Calibrated:
    """Predict launches of a new GPU from a few measured on it, and all power rows there are.

    Both files are CSV with ``COLUMNS`` (blank where unknown), ``measured`` also with
    ``power_watts``. Raises DataError for a defect in them, or where there are no power rows.
    """
    features = {name: number(nullable=True) for name in COLUMNS}
    table = read_table(measured, {**features, "power_watts": number(low=None)})
    for at, measured_watts in enumerate(table["power_watts"], start=FIRST_ROW):
        check_measured(None, power_watts=measured_watts, where=f"{measured.name}, row {at}")
    known = _rows(table)
    train = power_rows(root=root, columns=COLUMNS)
    calibrator = Calibrator()
    choice = calibrator.choice(train, known)
    watts: Floats = np.empty(0)
    if asked is not None:
        watts = calibrator(train)(known, _rows(read_table(asked, features)))
    return Calibrated(choice, len(known), tuple(watts.tolist()))


def _rows(frame: pd.DataFrame) -> Rows:
    watts = frame["power_watts"] if "power_watts" in frame else np.full(len(frame), np.nan)
    return Rows.of(frame[list(COLUMNS)], watts, np.arange(len(frame)))
