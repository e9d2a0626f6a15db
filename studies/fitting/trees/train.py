"""``python -m studies train``: fit the packaged boosted models, search settings, print cards.

``python -m studies fit-all`` fits the other shipped models too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies import parser_of
from studies.card_tables import (
    feature_table,
    interval_table,
    score_table,
    summary_table,
    table,
)
from studies.fitting.out_of_fold import ASSIGNMENTS
from studies.fitting.trees.boosted import Plan, train
from studies.fitting.trees.tables import SOURCE, SOURCES, training_table
from wattcast.features.errors import ModelError, WattcastError
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.engine import SPREAD_ROWS, Checkpoints, ClusterError, Engine, open_engine
from wattcast.training.evaluation.scores import FOLDS, Floats, Rows, fold_assignment, mae_watts
from wattcast.training.families import FAMILIES, SEED, get_family

if TYPE_CHECKING:
    import optuna

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("train", __doc__)
    gpus = sorted({gpu for _, files in SOURCES.values() for gpu in files})
    parser.add_argument("--all", action="store_true", help="every published source")
    parser.add_argument("--source", choices=list(SOURCES), help=f"published rows; else {SOURCE}")
    parser.add_argument("--gpu", action="append", choices=gpus)
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--resume", type=Path, help="folder for finished fits: a training that died goes on there"
    )
    parser.add_argument(
        "--search", type=int, metavar="TRIALS", help="print the best hyperparameters; no files"
    )
    parser.add_argument(
        "--dask", default=os.environ.get("WATTCAST_DASK"), help="scheduler whose workers fit"
    )
    parser.add_argument(
        "--dask-rows",
        type=int,
        default=SPREAD_ROWS,
        help="rows from which one XGBoost fit is spread over the workers",
    )
    parser.add_argument("--report", action="store_true", help="print the cards below --out only")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            cards = ArtifactStore([options.out]).list()
        else:
            with open_engine(options.dask, options.jobs, options.dask_rows) as engine:
                if options.search:
                    print(_searched(options, engine))
                    return 0
                cards = _trained(options, engine)
    except (WattcastError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary_table(cards))
    print(score_table(cards))
    print(interval_table(cards))
    for card in cards:
        if card.family != "average":
            print(f"{card.gpu} {card.family}\n\n{feature_table(card)}")
    return 0


def _searched(options: argparse.Namespace, engine: Engine) -> str:
    """The best setting of each boosted family on each GPU, by the error on kernels left out."""
    source = options.source or SOURCE
    lines = []
    for gpu in options.gpu or tuple(SOURCES[source][1]):
        made = training_table(gpu, source=source)
        for family in options.family or FAMILIES:
            found = search(engine, made.rows[made.served], family, options.search)
            errors = found.mae_watts, found.family_mae_watts, found.baseline_mae_watts
            setting = ", ".join(f"{name}={value:.4g}" for name, value in found.parameters.items())
            lines.append([gpu, family, *(f"{watts:.2f}" for watts in errors), setting])
    titles = ["GPU", "family", "best MAE W", "as shipped", "median power", "hyperparameters"]
    note = (
        f"\nMean absolute error with kernels left out, best of {options.search}. The best was "
        "chosen on these folds: expect more on others.\n"
    )
    return table(titles, lines) + note


def _trained(options: argparse.Namespace, engine: Engine) -> list[ModelCard]:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    plan = Plan(
        assignments=options.assignments,
        jobs=options.jobs,
        checkpoints=Checkpoints(options.resume),
        engine=engine,
    )
    cards = []
    for source in SOURCES if options.all else (options.source or SOURCE,):
        files = SOURCES[source][1]
        gpus = options.gpu or tuple(files)
        if options.all:
            gpus = [gpu for gpu in gpus if gpu in files]
        families = options.family or tuple(FAMILIES)
        cards += train(gpus, families, options.out, say, plan=plan, source=source)
    return cards


# --- Hyperparameters of a boosted family by optuna, judged on kernels left  --------------------


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
