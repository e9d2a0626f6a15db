"""The boosted way to retrain: trees fitted anew, or more trees added to the champion's.

    Uploads + champion
      -> fit on grouped and random folds of the uploads
      -> factor of the board, fitted inside each fold
      -> scores beside the baseline, interval widths
      -> final fit on everything, artifacts with cards
      -> verdict of ``wattcast.training.gate``

The folds ask what changes between champion and candidate: the uploads. A kernel that the champion
learned from is left out of neither, so it counts as known: scores and widths for unseen kernels are
those of the other groups (``folds.py``), and both sides are compared where they know equally much
(``uploads.py``).

A fit task holds everything it needs, so that it can be sent to another machine: no files, no
pickled models. The model to continue from travels as the bytes of its native file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from wattcast.features.errors import DataError, ModelError
from wattcast.models.cards import Marks, ModelCard, TrainingFacts
from wattcast.training import provenance
from wattcast.training.engine import Checkpoints, Engine, InProcess, family_on, is_spread
from wattcast.training.evaluation.scores import Floats, Rows
from wattcast.training.families import SEED, Family, get_family, library_versions
from wattcast.training.folds import Folds, PowerScores, UploadFold, folds_over, power_scores
from wattcast.training.gate import CHAMPION, OldRows, Opponent
from wattcast.training.uploads import Candidate, Champion, Order, Uploads, knows_base

MORE_TREES: Mapping[str, int] = MappingProxyType({"xgboost": 100, "catboost": 60})
"""Trees added to a model that is continued: a fifth of what its family starts with (thesis
Table 5.7), enough for residuals of a model that fits already; a convention of ours."""

Progress = Callable[[str, float], None]
"""Takes the stage and the share of all work done."""


@dataclass(frozen=True)
class FitTask:
    """One fit: rows (``vectors`` ``[n, k]``, ``watts`` ``[n]``), and ``test`` vectors ``[m, k]``.
    ``start`` holds the bytes of the native model to continue from, if any."""

    family: str
    vectors: Floats
    watts: Floats
    test: Floats
    start: bytes | None = None

    @property
    def key(self) -> str:
        """sha256 of everything that the result follows from."""
        digest = hashlib.sha256(f"{self.family}\n{SEED}\n".encode())
        for array in (self.vectors, self.watts, self.test):
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        digest.update(self.start or b"")
        return digest.hexdigest()


def fit(task: FitTask, family: Family | None = None) -> Any:
    """The fitted model; one that is continued is fitted here. Raises ModelError for an unknown
    family."""
    own = get_family(task.family)
    if task.start is None:
        return (family or own).fit(task.vectors, task.watts)
    return own.fit(task.vectors, task.watts, task.start, MORE_TREES[task.family])


def fit_predict(task: FitTask, family: Family | None = None) -> Floats:
    """Watts of the test vectors, ``[m]``, by a model fitted on the task's rows."""
    return get_family(task.family).predict(fit(task, family), task.test)


def fit_predict_all(engine: Engine, tasks: Sequence[FitTask]) -> Iterator[tuple[int, Floats]]:
    """``fit_predict`` of every task with its index, as they are ready.
    Fits that take the whole cluster run one after another, the others side by side."""
    spread = [
        task.start is None and is_spread(engine, task.family, len(task.watts)) for task in tasks
    ]
    rest = []
    for at, task in enumerate(tasks):
        if spread[at]:
            yield at, fit_predict(task, family_on(engine, task.family))
        else:
            rest.append(at)
    for number, watts in engine.map(fit_predict, [tasks[at] for at in rest]):
        yield rest[number], watts


def retrain(
    order: Order,
    uploads: Uploads,
    champion: Champion | None,
    out_dir: Path,
    *,
    opponents: Sequence[Opponent] = (),
    notes: tuple[str, ...] = (),
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda stage, share: None,
) -> Candidate:
    """Train a candidate, write its artifacts below ``out_dir`` and judge it.

    Each of the ``opponents`` must be beaten like the champion; ``notes`` go into the verdict. Equal
    input gives equal models. Raises DataError where the rows do not allow it, ModelError for
    families or a champion that do not fit.
    """
    boosting = _Boosting(order, uploads, champion, engine or InProcess())
    boosting.check()
    progress("folds", 0.0)
    folds, rows = boosting.folds, uploads.rows
    out_of_fold = boosting.out_of_fold(checkpoints or Checkpoints(), progress)
    known = uploads.known_to(boosting.ancestor)
    before = None if champion is None else champion.card

    def scores(watts: Floats) -> PowerScores:
        return power_scores(folds, watts, known, before)

    progress("final fit", 0.9)
    models = {
        family: fit(
            boosting.task(family, rows, folds.factor, rows.vectors),
            family_on(boosting.engine, family),
        )
        for family in order.families
    }
    judged = {family: scores(watts) for family, watts in out_of_fold.items()}
    cards = [boosting.write(out_dir, name, judged[name], model) for name, model in models.items()]
    final = judged[order.families[0]]
    if len(cards) > 1:
        final = scores(np.mean(list(out_of_fold.values()), axis=0))
        cards.append(boosting.write_average(out_dir, cards, final))
    progress("gate", 0.97)
    if champion is not None:
        watts = champion.model.predict_watts(rows.vectors)
        opponents = (Opponent(CHAMPION, watts, champion.card.marks), *opponents)
    old, left_out = boosting.old_rows(models), (final.grouped_watts, final.baseline_watts)
    ancestor = boosting.ancestor
    return uploads.judged(tuple(cards), *left_out, opponents, ancestor, notes, old)


@dataclass(frozen=True)
class _Boosting:
    """One retraining."""

    order: Order
    uploads: Uploads
    champion: Champion | None
    engine: Engine

    def check(self) -> None:
        """Raises DataError or ModelError where nothing can be trained."""
        order, champion, rows = self.order, self.champion, self.uploads.rows
        if not order.families:
            raise ModelError("no family to train")
        for family in order.families:
            get_family(family)
        self.uploads.check()
        missing = np.isnan(rows.vectors).all(axis=0)
        if missing.any():
            names = ", ".join(np.array(order.features)[missing])
            raise DataError(f"no measurement has a value of {names}")
        if champion is None:
            if order.continued:
                raise ModelError(f"{order.gpu} has no model to continue from")
            return
        if champion.card.feature_names != order.features:
            raise ModelError("the champion has other features than the measurements")
        if not order.continued and knows_base(champion.card):
            raise DataError(
                "the rows that the champion was trained on are not at hand: ask for mode continue"
            )
        _ = self.starts

    @property
    def ancestor(self) -> Marks | None:
        """Marks of what the candidate descends from."""
        return frozenset() if self.champion is None else self.champion.card.marks

    @property
    def continued(self) -> ModelCard | None:
        """The card of the model whose trees stay."""
        return self.champion.card if self.order.continued and self.champion else None

    @cached_property
    def starts(self) -> Mapping[str, bytes | None]:
        """The native model that each family continues from."""
        families = self.order.families
        if self.champion is None or not self.order.continued:
            return dict.fromkeys(families)
        return {name: self.champion.native(name) for name in families}

    @cached_property
    def known_range(self) -> tuple[Floats, Floats] | None:
        """Least and largest value of each feature that the model knows without the uploads."""
        if self.continued is None:
            return None
        features = self.continued.features
        return np.array([f.minimum for f in features]), np.array([f.maximum for f in features])

    @cached_property
    def folds(self) -> Folds:
        rows, champion = self.uploads.rows, self.champion
        reference = None if champion is None else champion.trees_watts(rows.vectors)
        return folds_over(rows, reference, self.known_range)

    def task(self, family: str, train: Rows, factor: float, test: Floats) -> FitTask:
        """A fit on uploads, in the watts of the champion's board."""
        return FitTask(family, train.vectors, train.watts / factor, test, self.starts[family])

    def out_of_fold(self, checkpoints: Checkpoints, progress: Progress) -> dict[str, Floats]:
        """Out-of-fold watts ``[protocols, n]`` of every family, in the order of ``PROTOCOLS``."""
        rows = self.uploads.rows
        predicted = {family: self.folds.unpredicted() for family in self.order.families}
        pending: list[tuple[str, UploadFold, FitTask]] = []
        for fold in self.folds.folds:
            train, test = rows.take(fold.train), rows.vectors[fold.test]
            for family in self.order.families:
                task = self.task(family, train, fold.factor, test)
                kept = checkpoints.get(task.key)
                if kept is not None and kept.shape == (len(test),):
                    predicted[family][fold.protocol, fold.test] = fold.factor * kept
                else:
                    pending.append((family, fold, task))
        total = len(self.folds.folds) * len(predicted)
        finished = total - len(pending)
        for at, watts in fit_predict_all(self.engine, [task for _, _, task in pending]):
            family, fold, task = pending[at]
            checkpoints.put(task.key, watts)
            predicted[family][fold.protocol, fold.test] = fold.factor * watts
            finished += 1
            progress("folds", 0.9 * finished / total)
        return predicted

    def old_rows(self, models: Mapping[str, Any]) -> OldRows | None:
        """Rows that candidate and champion were trained on: earlier uploads of the board."""
        rows, old = self.uploads.rows, ~self.uploads.new
        if self.champion is None or not old.any():
            return None
        each = [get_family(name).predict(model, rows.vectors) for name, model in models.items()]
        watts = self.folds.factor * np.mean(each, axis=0)[old]
        theirs = self.champion.model.predict_watts(rows.vectors[old])
        return OldRows(rows.watts[old], rows.groups[old], watts, theirs)

    def write(self, out_dir: Path, family: str, scores: PowerScores, model: Any) -> ModelCard:
        """Artifact of one family."""
        parameters = dict(get_family(family).hyperparameters)
        if self.continued is not None:
            parameters["continued_from"] = self.continued.folder.as_posix()
            parameters["trees_added"] = MORE_TREES[family]
        vectors = self.uploads.rows.vectors

        def files(folder: Path) -> None:
            get_family(family).save(model, folder, vectors.shape[1])
            provenance.write_background(vectors, self.order.features, folder)

        card = self._card(
            scores,
            family=family,
            hyperparameters=parameters,
            libraries=library_versions((get_family(family).library,)),
            files={"model.onnx": "0" * 64},
        )
        return provenance.write_artifact(card, out_dir, files)

    def write_average(
        self, out_dir: Path, cards: Sequence[ModelCard], scores: PowerScores
    ) -> ModelCard:
        """Artifact of the average of several families, whose artifacts lie there already."""
        members = provenance.average_of(cards, out_dir)
        card = self._card(
            scores,
            family="average",
            hyperparameters={"average_of": ", ".join(member.family for member in members)},
            libraries=library_versions(tuple(get_family(card.family).library for card in cards)),
            members=members,
            files={},
        )
        return provenance.write_artifact(card, out_dir, lambda folder: None)

    def _card(self, scores: PowerScores, **fields: Any) -> ModelCard:
        order, uploads, before = self.order, self.uploads, self.continued
        earlier = () if before is None or before.board is None else before.board.batches
        board = {
            "watts_factor": self.folds.factor,
            "batches": tuple(dict.fromkeys((*earlier, *uploads.batches))),
            "base_data": before is not None and knows_base(before),
        }
        vectors = uploads.rows.vectors
        fields["features"] = provenance.feature_facts(
            order.features, vectors, known=self.known_range
        )
        fields["training"] = self._training_facts(before)
        # Its ancestor is the champion: even where nothing is continued, its trees gave the factor.
        return scores.card(order, uploads, before, self.ancestor, board, **fields)

    def _training_facts(self, before: ModelCard | None) -> TrainingFacts:
        fitted = self.uploads.rows
        facts = provenance.training_facts(fitted.vectors, fitted.watts, fitted.groups)
        if before is None:
            return facts
        # A kernel that is in the uploads under another name counts twice: names of uploads are the
        # operator's.
        counts = ("rows", "kernels", "kernel_groups")
        more = {name: getattr(facts, name) + getattr(before.training, name) for name in counts}
        return facts.model_copy(update=more)
