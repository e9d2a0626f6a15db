"""Hyperparameters of a boosted family by optuna, judged on kernels left out, on any engine.

The thesis' hyperparameters (Table 5.7) were tuned on random rows. Here a setting is judged by the
mean absolute error of grouped folds, since it is kernels nobody measured that are asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wattcast.features.errors import ModelError
from wattcast.training.engine import Engine
from wattcast.training.evaluation.scores import mae_watts
from wattcast.training.evaluation.splits import FOLDS, Rows, fold_assignment
from wattcast.training.families import SEED, Floats, get_family

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class FoldTask:
    """One fit of a fold: ``parameters`` go before the family's hyperparameters."""

    family: str
    parameters: Mapping[str, bool | int | float | str]
    vectors: Floats
    watts: Floats
    test: Floats


@dataclass(frozen=True)
class Found:
    """The best setting, its error on kernels left out, and that of the family's own."""

    parameters: Mapping[str, bool | int | float | str]
    mae_watts: float
    family_mae_watts: float
    baseline_mae_watts: float
    trials: int


def fit_fold(task: FoldTask) -> Floats:
    """Watts of the test vectors."""
    family = type(get_family(task.family))()
    family.hyperparameters = {**family.hyperparameters, **task.parameters}
    return family.predict(family.fit(task.vectors, task.watts), task.test)


def search(
    engine: Engine, rows: Rows, family: str, trials: int, *, at_once: int = 4, seed: int = SEED
) -> Found:
    """The best of ``trials`` settings by the error of grouped folds; the same for the same seed.

    ``at_once`` settings are asked for before their results are told (optuna's ask and tell), so
    that an engine with many workers has all their folds to run. Raises ModelError for a family
    whose hyperparameters are not searched.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=False, n_startup_trials=8)
    )
    assignment = fold_assignment(rows, "grouped", 0)
    own, baseline = _errors(engine, rows, family, [{}], assignment)
    done = 0
    while done < trials:
        asked = [study.ask() for _ in range(min(at_once, trials - done))]
        settings = [_suggested(family, trial) for trial in asked]
        errors, _ = _errors(engine, rows, family, settings, assignment)
        for trial, error in zip(asked, errors, strict=True):
            study.tell(trial, error)
        done += len(asked)
    best = study.best_trial
    return Found(best.params, float(best.value or np.inf), own[0], baseline, trials)


def _errors(
    engine: Engine,
    rows: Rows,
    family: str,
    settings: Sequence[Mapping[str, Any]],
    assignment: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[list[float], float]:
    """Mean absolute error in watts of each setting, and of the folds' median."""
    predicted = np.full((len(settings), len(rows)), np.nan)
    baseline = np.full(len(rows), np.nan)
    tasks, places = [], []
    for fold in range(FOLDS):
        test, train = assignment == fold, assignment != fold
        baseline[test] = np.median(rows.watts[train])
        given = rows.vectors[train], rows.watts[train], rows.vectors[test]
        for at, parameters in enumerate(settings):
            tasks.append(FoldTask(family, parameters, *given))
            places.append((at, test))
    for number, watts in engine.map(fit_fold, tasks):
        at, test = places[number]
        predicted[at, test] = watts
    return [mae_watts(rows.watts, each) for each in predicted], mae_watts(rows.watts, baseline)


def _suggested(family: str, trial: optuna.Trial) -> dict[str, Any]:
    """A setting within a factor of a few around the family's own (thesis Table 5.7)."""
    if family == "xgboost":
        return {
            "n_estimators": trial.suggest_int("n_estimators", 100, 800, step=50),
            "max_depth": trial.suggest_int("max_depth", 2, 10),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "min_child_weight": trial.suggest_float("min_child_weight", 0.5, 20, log=True),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.4, 1.0),
            "subsample": trial.suggest_float("subsample", 0.4, 1.0),
        }
    if family == "catboost":
        return {
            "depth": trial.suggest_int("depth", 2, 10),
            "iterations": trial.suggest_int("iterations", 50, 600, step=50),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "l2_leaf_reg": trial.suggest_float("l2_leaf_reg", 0.5, 30, log=True),
        }
    raise ModelError(f"no search over the hyperparameters of {family!r}")
