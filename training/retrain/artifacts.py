"""The fits of a retraining, from nothing or from a model that is there, and their files and cards.

A task holds everything it needs, so that it can be sent to another machine: no files, no pickled
models; the model to continue from travels as the bytes of its native file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from wattcast.features.errors import ModelError
from wattcast.models.cards import BoardFacts, Member, ModelCard, TrainingFacts
from wattcast.models.learned import stored
from wattcast.training.data_parallel import family_on, is_spread
from wattcast.training.engine import Engine
from wattcast.training.evaluation.splits import Rows
from wattcast.training.families import SEED, Family, Floats, get_family, library_versions
from wattcast.training.provenance import (
    average_of,
    code_revision,
    feature_facts,
    today,
    training_facts,
    write_artifact,
    write_background,
)
from wattcast.training.retrain.inputs import (
    SOURCE,
    Base,
    Champion,
    Order,
    Uploads,
    known_range,
    knows_base,
)
from wattcast.training.retrain.upload_folds import Judged

MORE_TREES: Mapping[str, int] = MappingProxyType({"xgboost": 100, "catboost": 60})
"""Trees added to a model that is continued: a fifth of what its family starts with (thesis
Table 5.7), enough for residuals of a model that fits already; a convention of ours."""


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
    """The fitted model. Raises ModelError for an unknown family."""
    if task.start is None:
        return (family or get_family(task.family)).fit(task.vectors, task.watts)
    continued = {"xgboost": _continue_xgboost, "catboost": _continue_catboost}
    if task.family not in continued:
        raise ModelError(f"{task.family!r} models cannot be continued", known=sorted(continued))
    return continued[task.family](task)


def fit_predict(task: FitTask, family: Family | None = None) -> Floats:
    """Watts of the test vectors, ``[m]``, by a model fitted on the task's rows."""
    return get_family(task.family).predict(fit(task, family), task.test)


def fit_predict_all(engine: Engine, tasks: Sequence[FitTask]) -> Iterator[tuple[int, Floats]]:
    """``fit_predict`` of every task with its index, as they are ready.
    Fits that take the whole cluster run one after another, the others side by side."""
    spread: list[int] = []
    rest: list[int] = []
    for at, task in enumerate(tasks):
        alone = task.start is None and is_spread(engine, task.family, len(task.watts))
        (spread if alone else rest).append(at)
    for at in spread:
        yield at, fit_predict(tasks[at], family_on(engine, tasks[at].family))
    for number, watts in engine.map(fit_predict, [tasks[at] for at in rest]):
        yield rest[number], watts


def _continue_xgboost(task: FitTask) -> Any:
    import xgboost

    parameters = dict(get_family("xgboost").hyperparameters)
    del parameters["n_estimators"]
    assert task.start is not None
    before = xgboost.Booster(params={"nthread": 1})
    before.load_model(bytearray(task.start))
    matrix = xgboost.DMatrix(task.vectors, task.watts, nthread=1)
    return xgboost.train(
        {**parameters, "nthread": 1}, matrix, MORE_TREES["xgboost"], xgb_model=before
    )


def _continue_catboost(task: FitTask) -> Any:
    import catboost

    parameters = dict(get_family("catboost").hyperparameters)
    parameters["iterations"] = MORE_TREES["catboost"]
    assert task.start is not None
    before = catboost.CatBoostRegressor()
    before.load_model(blob=task.start)
    model = catboost.CatBoostRegressor(
        **parameters, logging_level="Silent", thread_count=1, allow_writing_files=False
    )
    model.fit(np.asarray(task.vectors, dtype=np.float32), task.watts, init_model=before)
    return model


@dataclass(frozen=True)
class Made:
    """Writes the artifacts of one retraining."""

    order: Order
    uploads: Uploads
    base: Base | None
    champion: Champion | None
    factor: float

    def write(self, out_dir: Path, family: str, found: Judged, model: Any) -> ModelCard:
        """Artifact of one family."""
        parameters = dict(get_family(family).hyperparameters)
        if self.order.mode == "continue" and self.champion is not None:
            card = self.champion.card
            parameters |= {
                "continued_from": card.folder.as_posix(),
                "trees_added": MORE_TREES[family],
            }
        vectors = self._fitted().vectors

        def files(folder: Path) -> None:
            get_family(family).save(model, folder, vectors.shape[1])
            write_background(vectors, self.order.features, folder)

        card = self._card(family, found, parameters, (), {"model.onnx": "0" * 64})
        return write_artifact(card, out_dir, files)

    def write_average(self, out_dir: Path, cards: Sequence[ModelCard], found: Judged) -> ModelCard:
        """Artifact of the average of several families, whose artifacts lie there already."""
        members = average_of(cards, out_dir)
        parameters = {"average_of": ", ".join(member.family for member in members)}
        card = self._card("average", found, parameters, members, {})
        return write_artifact(card, out_dir, lambda folder: None)

    def _card(
        self,
        family: str,
        found: Judged,
        parameters: Mapping[str, Any],
        members: tuple[Member, ...],
        files: Mapping[str, str],
    ) -> ModelCard:
        order, uploads = self.order, self.uploads
        before = self.champion.card if self.champion is not None else None
        continued = before if order.mode == "continue" else None
        base_data = self.base is not None if continued is None else knows_base(continued)
        sources = (
            (continued.sources if continued is not None else ())
            + (self.base.sources if self.base is not None and continued is None else ())
            + uploads.sources
        )
        return ModelCard(
            gpu=order.gpu,
            target="power",
            family=family,
            source=SOURCE,
            version=order.version,
            feature_schema=order.schema,
            features=feature_facts(
                order.features,
                self._fitted().vectors,
                known=known_range(self.base, self.champion, order),
            ),
            training=self._facts(continued),
            sources=tuple(dict.fromkeys(sources)),
            hyperparameters=dict(parameters),
            libraries=library_versions(
                tuple(get_family(name).library for name in order.families)
                if members
                else (get_family(family).library,)
            ),
            scores=found.scores,
            intervals=found.intervals,
            members=members,
            files=dict(files),
            created=today(),
            code_revision=code_revision(),
            board=BoardFacts(
                label=order.board,
                watts_factor=self.factor,
                batches=self._batches(continued),
                base_data=base_data,
                **found.told(),
            ),
            learned=self._learned(before),
        )

    def _learned(self, before: ModelCard | None) -> str:
        """Of uploads and champion: even where nothing is continued, its trees told the factor. Of a
        champion that does not tell what it learned from, nothing can be told either."""
        marks = frozenset() if before is None else before.marks
        return "" if marks is None else stored(marks | self.uploads.learned)

    def _batches(self, continued: ModelCard | None) -> tuple[str, ...]:
        before = continued.board.batches if continued is not None and continued.board else ()
        return tuple(dict.fromkeys((*before, *self.uploads.batches)))

    def _fitted(self) -> Rows:
        """Rows of the final fit: those whose statistics go with the model."""
        rows = self.uploads.rows
        if self.order.mode == "continue" or self.base is None:
            return rows
        base = self.base.rows
        return Rows(
            np.concatenate([base.vectors, rows.vectors]),
            np.concatenate([base.watts, rows.watts]),
            np.concatenate([base.groups, rows.groups + base.groups.max() + 1]),
        )

    def _facts(self, continued: ModelCard | None) -> TrainingFacts:
        fitted = self._fitted()
        facts = training_facts(fitted.vectors, fitted.watts, [str(g) for g in fitted.groups])
        if continued is None:
            return facts
        # A kernel that is in the uploads under another name counts twice: names of uploads are the
        # operator's.
        counts = ("rows", "kernels", "kernel_groups")
        before = continued.training
        more = {name: getattr(facts, name) + getattr(before, name) for name in counts}
        return facts.model_copy(update=more)
