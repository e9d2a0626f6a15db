"""From uploaded measurements to a judged candidate.

    Uploads + base rows + champion
      -> fit on grouped and random folds of the uploads (what else there is always trains)
      -> factor of the board, fitted inside each fold
      -> scores beside the baseline, interval widths
      -> final fit on everything, artifacts with cards
      -> verdict of ``wattcast.training.retrain.gate``

The folds ask what changes between champion and candidate: the uploads. So all base rows stay in
the training part of every fold, as they were in the champion's training, and a fold leaves out
kernel groups of the uploads. A kernel that the champion learned from is left out of neither, so it
counts as known: scores and widths for unseen kernels are those of the other groups
(``upload_folds.py``), and both sides are compared where they know equally much (``inputs.py``).

Modes: ``full`` fits anew on base rows and uploads; ``continue`` adds trees to the champion's,
fitted on the uploads alone, where the base rows are not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wattcast.features.errors import DataError, ModelError
from wattcast.models.learned import Marks
from wattcast.training.checkpoints import Checkpoints
from wattcast.training.data_parallel import family_on
from wattcast.training.engine import Engine, InProcess
from wattcast.training.evaluation.splits import Floats, Rows
from wattcast.training.families import get_family
from wattcast.training.retrain.artifacts import FitTask, Made, fit, fit_predict_all
from wattcast.training.retrain.gate import CHAMPION, OldRows, judge
from wattcast.training.retrain.inputs import (
    Base,
    Champion,
    Order,
    Retrained,
    Uploads,
    known_range,
    knows_base,
)
from wattcast.training.retrain.upload_folds import (
    PROTOCOLS,
    Plan,
    UploadFold,
    fold_plan,
    judged,
)

Progress = Callable[[str, float], None]
"""Told the stage and the share of all work done."""


def retrain(
    order: Order,
    uploads: Uploads,
    base: Base | None,
    champion: Champion | None,
    out_dir: Path,
    *,
    opponents: Mapping[str, Floats] | None = None,
    knowing: Sequence[Marks | None] = (),
    notes: tuple[str, ...] = (),
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda stage, share: None,
) -> Retrained:
    """Train a candidate, write its artifacts below ``out_dir`` and judge it.

    ``opponents`` are watts ``[n]`` that other models give the uploaded rows; each must be beaten
    like the champion; ``knowing`` are the marks of what those learned from, ``notes`` are told with
    the verdict. Equal input gives equal models. Raises
    DataError where the rows do not allow it, ModelError for families or a champion that do not fit.
    """
    _check(order, uploads, base, champion)
    progress("folds", 0.0)
    rows = uploads.rows
    reference = None if champion is None else champion.trees_watts(rows.vectors)
    plan = fold_plan(rows, reference, known_range(base, champion, order))
    starts = {
        family: champion.start(family) if order.mode == "continue" and champion else None
        for family in order.families
    }
    engine = engine or InProcess()
    found = _fitted_folds(order, plan, base, starts, engine, checkpoints or Checkpoints(), progress)
    before = None if champion is None else champion.card
    ancestor = frozenset() if before is None else before.marks
    known = uploads.known_to(ancestor)
    singles = {family: judged(plan, watts, known, before) for family, watts in found.items()}
    factor = plan.factor
    progress("final fit", 0.9)
    models = {
        family: fit(
            _task(order, family, base, rows, factor, rows.vectors, starts[family]),
            family_on(engine, family),
        )
        for family in order.families
    }
    made = Made(order, uploads, base, champion, factor)
    cards = [
        made.write(out_dir, family, singles[family], models[family]) for family in order.families
    ]
    if len(cards) > 1:
        mean = np.mean([found[family] for family in order.families], axis=0)
        both = judged(plan, mean, known, before)
        cards.append(made.write_average(out_dir, tuple(cards), both))
    else:
        both = singles[order.families[0]]
    progress("gate", 0.97)
    predicted = factor * np.mean(
        [get_family(name).predict(model, rows.vectors) for name, model in models.items()], axis=0
    )
    against = dict(opponents or {})
    if champion is not None:
        against = {CHAMPION: champion.model.predict_watts(rows.vectors), **against}
    rivals = knowing if before is None else (before.marks, *knowing)
    footing = uploads.footing(ancestor, rivals, order.policy)
    footing = replace(footing, notes=(*notes, *footing.notes))
    compared = uploads.hold_out(both.grouped_watts, both.baseline_watts, against, footing)
    old = _old_rows(uploads, base, champion, predicted, models)
    return Retrained(tuple(cards), cards[-1], judge(compared, old, order.policy), compared)


def _check(order: Order, uploads: Uploads, base: Base | None, champion: Champion | None) -> None:
    if not order.families:
        raise ModelError("no family to train")
    for family in order.families:
        get_family(family)
    rows = uploads.rows
    if len(np.unique(rows.groups)) < 2:
        raise DataError("measurements of at least two kernels are needed")
    if not np.all(rows.watts > 0):
        raise DataError("measured power must be positive")
    missing = np.isnan(rows.vectors).all(axis=0)
    if missing.any():
        names = ", ".join(np.array(order.features)[missing])
        raise DataError(f"no measurement has a value of {names}")
    if champion is None:
        if order.mode == "continue":
            raise ModelError(f"{order.gpu} has no model to continue from")
        return
    if champion.card.feature_names != order.features:
        raise ModelError("the champion has other features than the measurements")
    if order.mode == "full" and base is None and knows_base(champion.card):
        raise DataError(
            "the rows that the champion was trained on are not at hand: set WATTCAST_DATA, or "
            "ask for mode continue"
        )


def _task(
    order: Order,
    family: str,
    base: Base | None,
    train: Rows,
    factor: float,
    test: Floats,
    start: bytes | None,
) -> FitTask:
    """A fit on uploads in the watts of the champion's board, with the base rows in mode full."""
    vectors, watts = train.vectors, train.watts / factor
    if order.mode == "full" and base is not None:
        vectors = np.concatenate([base.rows.vectors, vectors])
        watts = np.concatenate([base.rows.watts, watts])
    return FitTask(family, vectors, watts, test, start)


def _fitted_folds(
    order: Order,
    plan: Plan,
    base: Base | None,
    starts: Mapping[str, bytes | None],
    engine: Engine,
    checkpoints: Checkpoints,
    progress: Progress,
) -> dict[str, Floats]:
    """Out-of-fold watts ``[protocols, n]`` of every family, in the order of ``PROTOCOLS``."""
    rows = plan.rows
    found = {family: np.full((len(PROTOCOLS), len(rows)), np.nan) for family in starts}
    wanted: list[tuple[str, UploadFold, FitTask]] = []
    for fold in plan.folds:
        for family, start in starts.items():
            test = rows.vectors[fold.test]
            train = rows.take(fold.train)
            task = _task(order, family, base, train, fold.factor, test, start)
            kept = checkpoints.get(task.key)
            if kept is not None and kept.shape == (len(test),):
                found[family][fold.protocol, fold.test] = fold.factor * kept
            else:
                wanted.append((family, fold, task))
    total = len(plan.folds) * len(starts)
    finished = total - len(wanted)
    for at, watts in fit_predict_all(engine, [task for _, _, task in wanted]):
        family, fold, task = wanted[at]
        checkpoints.put(task.key, watts)
        found[family][fold.protocol, fold.test] = fold.factor * watts
        finished += 1
        progress("folds", 0.9 * finished / total)
    return found


def _old_rows(
    uploads: Uploads,
    base: Base | None,
    champion: Champion | None,
    predicted: Floats,
    models: Mapping[str, Any],
) -> OldRows | None:
    """Rows that candidate and champion were trained on: earlier uploads of the board, base rows.
    Base rows are of another board: they are compared in its watts, by the trees alone."""
    if champion is None:
        return None
    old = ~uploads.new
    rows = uploads.rows
    measured, groups = [rows.watts[old]], [rows.groups[old]]
    own = [predicted[old]]
    theirs = [champion.model.predict_watts(rows.vectors[old])] if old.any() else [np.empty(0)]
    if base is not None and knows_base(champion.card):
        vectors = base.rows.vectors
        measured.append(base.rows.watts)
        groups.append(base.rows.groups + rows.groups.max() + 1)
        own.append(
            np.mean([get_family(n).predict(model, vectors) for n, model in models.items()], axis=0)
        )
        theirs.append(champion.trees_watts(vectors))
    return OldRows(
        np.concatenate(measured),
        np.concatenate(groups),
        np.concatenate(own),
        np.concatenate(theirs),
    )
