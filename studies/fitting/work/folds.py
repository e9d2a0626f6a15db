"""How time models of measured work are judged: on launches, programs and ports left out.

Everything that is fitted is fitted in each fold anew, the physical constants too. ``port`` folds
keep a program and its ports to other runtimes on one side: near-twins would tell too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.neighbors import NearestNeighbors

from studies.data.launches import CLOCKS, GPU, MeasuredLaunch, groups_of
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.cards import Spread
from wattcast.models.store import Float32s
from wattcast.models.time.calibration import TimeProtocol, TimeScoreName, TimeScores
from wattcast.models.time.measured_work import (
    FLOPS_PER_FMA,
    PARTS,
    Work,
    WorkConstants,
    p_norm,
    unit_seconds,
    work_schema,
)
from wattcast.models.time.work_model import work_inputs
from wattcast.training.evaluation.scores import Rows, fold_assignment, outside_range, time_scores
from wattcast.training.families import SEED, Catboost, Hyperparameters

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

FOLDS = 10
PROTOCOLS: tuple[TimeProtocol, ...] = ("program", "port", "random")
MODEL, PHYSICAL, ROOFLINE, NEAREST, MEDIAN = (
    "boosted",
    "physical",
    "roofline",
    "nearest launch",
    "median time",
)
OTHERS = (PHYSICAL, ROOFLINE, NEAREST, MEDIAN)

RESIDUAL_SHRINKAGE = 0.8
"""Share of the logarithmic residual that the trees are to learn. Chosen on fold assignments of
other seeds than the reported ones: a fifth less costs nothing and errs less on unseen ports."""

SMOOTHING = 0.05
"""Residuals (in logarithms) below which the fit of constants turns from absolute to squared."""

START = {"dram": 1.1, "fp32": 1.1, "fp64": 1.2, "issue": 1.5, "thread": 40.0, "wave": 8.0,
         "fetch": 20.0, "blocks": 100.0, "launch": 3500.0}  # fmt: skip
"""Where the fit of constants starts: the right order of magnitude."""


class WorkCatboost(Catboost):
    """CatBoost on the logarithmic residual: absolute error, since its outliers are long.

    Shallow trees on few rows and inputs at a time: launches of one program resemble each other.
    """

    hyperparameters: Hyperparameters = MappingProxyType(
        {
            "depth": 5,
            "iterations": 1000,
            "learning_rate": 0.03,
            "loss_function": "MAE",
            "rsm": 0.3,
            "bootstrap_type": "Bernoulli",
            "subsample": 0.6,
            "border_count": 1000,
            "random_seed": SEED,
        }
    )

    def __init__(self, **changes: int) -> None:
        self.hyperparameters = MappingProxyType({**type(self).hyperparameters, **changes})

    def fit_weighted(self, vectors: Float32s, targets: Floats, weights: Floats) -> object:
        """Model of vectors ``[n, k]`` and targets ``[n]``."""
        import catboost

        model = catboost.CatBoostRegressor(
            **self.hyperparameters,
            logging_level="Silent",
            thread_count=1,
            allow_writing_files=False,
        )
        return model.fit(vectors, targets, sample_weight=weights)


@dataclass(frozen=True)
class WorkTable:
    """Launches as arrays: seconds ``[n]``, ``units`` ``[9, n]`` (``unit_seconds`` of each), weights
    ``[n]`` and groups ``[n]`` by protocol."""

    works: tuple[Work, ...]
    seconds: Floats
    units: Floats
    weights: Floats
    groups: Mapping[TimeProtocol, Indices]

    @classmethod
    def of(cls, launches: Sequence[MeasuredLaunch]) -> WorkTable:
        """The table of launches; a program with n of them weighs as sqrt(n)."""
        gpu = load_gpu(GPU)
        programs = groups_of(launches, lambda one: one.program)
        works = tuple(one.work for one in launches)
        units = [list(unit_seconds(work, gpu, CLOCKS).values()) for work in works]
        return cls(
            works=works,
            seconds=np.array([one.seconds for one in launches]),
            units=np.array(units).T,
            weights=1 / np.sqrt(np.bincount(programs)[programs]),
            groups={
                "program": programs,
                "port": groups_of(launches, lambda one: one.port_group),
                "random": np.arange(len(launches)),
            },
        )


@dataclass(frozen=True)
class LeftOut:
    """Predicted seconds ``[assignments, n]`` of each way by models that did not see the launch's
    group; ``outside`` marks launches with an input outside the range of their fold's training."""

    protocol: TimeProtocol
    predicted: Mapping[str, Floats]
    outside: NDArray[np.bool_]

    def scores(self, table: WorkTable) -> TimeScores:
        """Scores of the model and the other ways, mean and spread over assignments."""
        programs = table.groups["program"]

        def spread(way: str) -> dict[TimeScoreName, Spread]:
            each = [time_scores(table.seconds, one, programs) for one in self.predicted[way]]
            return {
                name: Spread(
                    mean=round(float(np.mean([one[name] for one in each])), 4),
                    std=round(float(np.std([one[name] for one in each])), 4),
                )
                for name in each[0]
            }

        return TimeScores(
            protocol=self.protocol,
            folds=FOLDS,
            assignments=len(self.predicted[MODEL]),
            model=spread(MODEL),
            others={way: spread(way) for way in OTHERS},
        )


def fitted_constants(units: Floats, seconds: Floats, weights: Floats) -> WorkConstants:
    """Constants with the least weighted mean absolute logarithmic error, within their bounds.

    ``units`` ``[9, n]``. The error is smoothed near zero; the search is deterministic.
    """
    least = work_schema().least
    start = np.log([*(START[name] for name in PARTS), 1.3])
    bounds = [(np.log(least.factors[name] or 1e-3), None) for name in PARTS]
    share = weights / weights.sum()
    measured = np.log(seconds)

    def loss(x: Floats) -> tuple[float, Floats]:
        norm = float(np.exp(x[-1]))
        parts = np.exp(x[:-1])[:, None] * units
        whole = p_norm(parts, norm)
        shares = (parts / whole) ** norm
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(parts > 0, np.log(parts / whole), 0.0)
        slope = np.vstack([shares, (shares * logs).sum(axis=0)])
        error = np.log(whole) - measured
        size = np.sqrt(error**2 + SMOOTHING**2)
        return float(share @ size), slope @ (share * error / size)

    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=[*bounds, (np.log(least.norm), 3.0)]
    )
    factors = dict(zip(PARTS, np.exp(found.x[:-1]).tolist(), strict=True))
    return WorkConstants(factors, float(np.exp(found.x[-1])))


def inputs_of(table: WorkTable, constants: WorkConstants) -> tuple[Float32s, Floats]:
    """Vectors ``[n, k]`` of schema ``work1`` and physical seconds ``[n]`` under constants."""
    parts = np.array([constants.factors[name] for name in PARTS])[:, None] * table.units
    return work_inputs(table.works, parts, constants.norm), p_norm(parts, constants.norm)


def fit_residual(
    table: WorkTable, vectors: Float32s, physical: Floats, rows: Indices, **changes: int
) -> object:
    """The trees, fitted to the shrunken logarithmic residual of ``rows``.

    ``changes`` to the hyperparameters of ``WorkCatboost``.
    """
    residual = np.log(table.seconds[rows] / physical[rows])
    return WorkCatboost(**changes).fit_weighted(
        vectors[rows], RESIDUAL_SHRINKAGE * residual, table.weights[rows]
    )


class Predicted(NamedTuple):
    """Of left-out launches ``[m]``: physical seconds, ln of the trees' correction, and whether an
    input lies outside the range of the training launches."""

    physical_seconds: Floats
    log_correction: Floats
    outside: NDArray[np.bool_]


def predict(table: WorkTable, train: Indices, test: Indices, **changes: int) -> Predicted:
    """Fit constants and trees on ``train`` alone, and predict ``test``."""
    constants = fitted_constants(table.units[:, train], table.seconds[train], table.weights[train])
    vectors, physical = inputs_of(table, constants)
    trees = fit_residual(table, vectors, physical, train, **changes)
    seen, unseen = vectors[train].astype(np.float64), vectors[test].astype(np.float64)
    correction = WorkCatboost().predict(trees, unseen)
    return Predicted(physical[test], correction, outside_range(seen, unseen))


def folds_of(table: WorkTable, protocol: TimeProtocol, seed: int, folds: int = FOLDS) -> Indices:
    """Fold of every launch, ``[n]``; see ``training.evaluation.protocols.fold_assignment``."""
    # Of the rows it needs their number and their groups alone.
    rows = Rows(np.empty((len(table.seconds), 0)), table.seconds, table.groups[protocol])
    return fold_assignment(rows, "random" if protocol == "random" else "grouped", seed, folds)


def leave_out(
    table: WorkTable, protocol: TimeProtocol, seeds: Sequence[int], jobs: int = 2
) -> LeftOut:
    """Predict every launch by models that did not see its group, once per seed."""
    shape = (len(seeds), len(table.seconds))
    predicted = {way: np.empty(shape) for way in (MODEL, *OTHERS)}
    outside = np.zeros(shape, dtype=np.bool_)
    places, roofline = _places(table.works), _roofline(table.works)

    def one(task: tuple[int, NDArray[np.bool_]]) -> None:
        at, is_test = task
        train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
        found = predict(table, train, test)
        neighbours = NearestNeighbors(n_neighbors=1).fit(places[train])
        nearest = neighbours.kneighbors(places[test], return_distance=False)[:, 0]
        for way, values in (
            (MODEL, found.physical_seconds * np.exp(found.log_correction)),
            (PHYSICAL, found.physical_seconds),
            (ROOFLINE, roofline[test]),
            (NEAREST, table.seconds[train][nearest]),
            (MEDIAN, np.median(table.seconds[train])),
        ):
            predicted[way][at, test] = values
        outside[at, test] = found.outside

    tasks = [
        (at, assignment == fold)
        for at, seed in enumerate(seeds)
        for assignment in [folds_of(table, protocol, seed)]
        for fold in range(FOLDS)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, tasks))  # each task writes rows of its own
    return LeftOut(protocol, predicted, outside)


def _places(works: Sequence[Work]) -> Floats:
    """Where launches lie for the nearest-launch baseline: logarithms of work, blocks, threads."""
    return np.log(
        [
            (
                1 + work.dram_bytes,
                1 + work.flops_sp,
                1 + work.flops_dp,
                1 + work.int_ops,
                work.launch.blocks,
                work.launch.threads_per_block,
            )
            for work in works
        ]
    )


def _roofline(works: Sequence[Work]) -> Floats:
    """The roofline: the longest of bytes, FP32, FP64 and integer operations at peak rates."""
    gpu: GpuProfile = load_gpu(GPU)
    cycles = gpu.sm_count * CLOCKS.core_hz
    return np.array(
        [
            max(
                work.dram_bytes / gpu.bandwidth_bytes_per_second,
                work.flops_sp / (FLOPS_PER_FMA * gpu.fp32_lanes * cycles),
                work.flops_dp / (FLOPS_PER_FMA * gpu.fp64_lanes * cycles),
                work.int_ops / (gpu.int_lanes * cycles),
            )
            for work in works
        ]
    )
