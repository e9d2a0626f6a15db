"""The artifacts of a retraining: files and cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattcast.models.background import BACKGROUND_NAME
from wattcast.models.cards import (
    CARD_NAME,
    BoardFacts,
    FeatureFacts,
    Member,
    ModelCard,
    TrainingFacts,
    sha256_of,
)
from wattcast.training.evaluation.rows import Rows
from wattcast.training.families import get_family, library_versions
from wattcast.training.provenance import code_revision, today, write_artifact
from wattcast.training.retrain.inputs import (
    SOURCE,
    Base,
    Champion,
    Order,
    Uploads,
    known_range,
    knows_base,
)
from wattcast.training.retrain.upload_folds import Judged, Plan
from wattcast.training.retrain.warm_start import MORE_TREES
from wattcast.training.summary import fingerprint, summarise


@dataclass(frozen=True)
class Made:
    """Writes the artifacts of one retraining."""

    order: Order
    uploads: Uploads
    base: Base | None
    champion: Champion | None
    plan: Plan
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
            background = summarise(vectors, self.order.features)
            (folder / BACKGROUND_NAME).write_text(background.model_dump_json() + "\n", "utf-8")

        card = self._card(family, found, parameters, (), {"model.onnx": "0" * 64})
        return write_artifact(card, out_dir, files)

    def write_average(self, out_dir: Path, cards: Sequence[ModelCard], found: Judged) -> ModelCard:
        """Artifact of the average of several families, whose artifacts lie there already."""
        members = tuple(
            Member(
                family=card.family,
                version=card.version,
                card_sha256=sha256_of(out_dir / card.folder / CARD_NAME),
            )
            for card in cards
        )
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
            features=self._features(),
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
            ),
        )

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

    def _features(self) -> tuple[FeatureFacts, ...]:
        vectors = self._fitted().vectors
        low, high = np.fmin.reduce(vectors, axis=0), np.fmax.reduce(vectors, axis=0)
        missing = np.isnan(vectors).mean(axis=0)
        known = known_range(self.base, self.champion, self.order)
        if known is not None:
            low, high = np.fmin(low, known[0]), np.fmax(high, known[1])
        return tuple(
            FeatureFacts(
                name=name,
                minimum=float(low[at]),
                maximum=float(high[at]),
                missing_share=float(missing[at]),
            )
            for at, name in enumerate(self.order.features)
        )

    def _facts(self, continued: ModelCard | None) -> TrainingFacts:
        fitted = self._fitted()
        watts = fitted.watts
        before = continued.training if continued is not None else None
        kernels = len(np.unique(fitted.groups))
        return TrainingFacts(
            rows=len(fitted) + (before.rows if before else 0),
            # A kernel that is in the uploads under another name counts twice: names of uploads
            # are the operator's.
            kernels=kernels + (before.kernels if before else 0),
            kernel_groups=kernels + (before.kernel_groups if before else 0),
            power_minimum_watts=float(watts.min()),
            power_median_watts=float(np.median(watts)),
            power_maximum_watts=float(watts.max()),
            fingerprint=fingerprint(fitted.vectors, watts, [str(g) for g in fitted.groups]),
            dropped={},
            recomputed={},
        )
