"""From the published rows to checked artifacts: the one training path of the power models.

train() per GPU:  clean -> recompute by the serving rules -> cross-validate both tables
                  -> fit on all rows -> native and ONNX files, background, card

The PowerQuant files have one table: their cleaned columns are what the serving rules give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from studies.fitting.nested import (
    NESTED_SEEDS,
    NestedFold,
    averaged_folds,
    calibrated,
    nested_folds,
)
from studies.fitting.out_of_fold import (
    ASSIGNMENTS,
    Fit,
    FitPredict,
    OutOfFold,
    averaged,
    kept,
    plain,
)
from studies.fitting.out_of_fold import evaluate as evaluate_protocol
from studies.fitting.trees.compact import save_compact
from studies.fitting.trees.tables import SOURCE, THESIS_FILES, TrainingTable, training_table
from wattcast.features.errors import ModelError
from wattcast.features.schemas.tables import read_definition
from wattcast.models.cards import (
    FeatureFacts,
    Member,
    ModelCard,
    ProtocolScores,
    SchemaReference,
    Source,
    Table,
    stored,
)
from wattcast.models.intervals import IntervalCalibration
from wattcast.models.store import PACKAGED_ARTIFACTS
from wattcast.training.data.cleaning import CleanTable
from wattcast.training.data.datasets import sources
from wattcast.training.engine import Checkpoints, Engine, InProcess, family_on
from wattcast.training.evaluation.scores import FOLDS, Protocol, Rows
from wattcast.training.families import FAMILIES, Family, library_versions
from wattcast.training.provenance import (
    average_of,
    code_revision,
    today,
    write_artifact,
    write_background,
)

Progress = Callable[[str], None]
PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")


@dataclass(frozen=True)
class Plan:
    """How thoroughly to evaluate. The defaults make the packaged artifacts."""

    assignments: int = ASSIGNMENTS
    nested_seeds: tuple[int, ...] = NESTED_SEEDS
    version: int = 1
    jobs: int = 2
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    engine: Engine = field(default_factory=InProcess)
    """Where fits on many rows run (``wattcast.training.engine``)."""


@dataclass(frozen=True)
class Evaluation:
    """Everything out of fold of one family: per table and protocol, and nested."""

    predictions: Mapping[tuple[Table, Protocol], OutOfFold]
    nested: Sequence[NestedFold]
    served: Table

    def scores(self) -> tuple[ProtocolScores, ...]:
        """Scores of every table and protocol beside the median-watt baseline."""
        return tuple(
            ProtocolScores(
                table=table,
                protocol=protocol,
                folds=FOLDS,
                assignments=len(result.predicted_watts),
                model=result.scores(),
                baseline=result.baseline_scores(),
            )
            for (table, protocol), result in self.predictions.items()
        )

    def intervals(self, floor_watts: float) -> IntervalCalibration:
        """Interval widths of the served model: those of the served table."""
        return calibrated(
            self.predictions[self.served, "grouped"],
            self.predictions[self.served, "random"],
            self.nested,
            floor_watts,
        )


def train(
    gpus: Sequence[str] = tuple(THESIS_FILES),
    families: Sequence[str] = tuple(FAMILIES),
    out_dir: Path = PACKAGED_ARTIFACTS,
    progress: Progress = print,
    *,
    plan: Plan | None = None,
    root: Path | None = None,
    source: str = SOURCE,
) -> list[ModelCard]:
    """Train, evaluate and write artifacts below ``out_dir`` (default: the packaged ones).

    With both boosted families their average gets a card of its own. Equal data, seeds and library
    versions give equal scores to the last printed digit. Raises DataError for missing or
    defective data, ModelError for an unknown family.
    """
    plan = plan or Plan()
    chosen = [family_on(plan.engine, name) for name in dict.fromkeys(families)]
    if not chosen:
        raise ModelError("no family to train")
    cards = []
    for gpu in gpus:
        table = training_table(gpu, root, source)
        progress(
            f"{gpu}, {source}: {table.facts.rows} rows, {table.facts.kernels} kernels in "
            f"{table.facts.kernel_groups} groups"
        )
        cards += _train_gpu(table, chosen, out_dir, plan, progress)
    return cards


def evaluate(
    rows: Mapping[Table, Rows],
    fits: Mapping[Table, Fit],
    plan: Plan,
    progress: Progress,
    label: str,
) -> Evaluation:
    """Cross-validate one family on every table by both protocols, and nested."""
    seeds = range(plan.assignments)
    predictions = {}
    for name, fit in fits.items():
        for protocol in PROTOCOLS:
            progress(f"{label}: {protocol} folds, {name.replace('_', ' ')}")
            predictions[name, protocol] = evaluate_protocol(
                rows[name], fit, protocol, seeds, jobs=plan.jobs
            )
    progress(f"{label}: nested folds for the intervals")
    served = list(fits)[-1]
    nested = nested_folds(rows[served], fits[served], plan.nested_seeds, jobs=plan.jobs)
    return Evaluation(predictions, nested, served)


def averaged_evaluation(parts: Sequence[Evaluation]) -> Evaluation:
    """The average of several families, from the predictions they already made."""
    return Evaluation(
        {key: averaged([part.predictions[key] for part in parts]) for key in parts[0].predictions},
        averaged_folds([part.nested for part in parts]),
        parts[0].served,
    )


def fit_predictor(family: Family) -> FitPredict:
    """Fit on training vectors and predict test vectors."""
    return lambda vectors, watts, test: family.predict(family.fit(vectors, watts), test)


def boosted_fit(family: Family, checkpoints: Checkpoints) -> Fit:
    """A family as protocols take it; what it predicted before is read from the checkpoints."""
    settings = {**family.hyperparameters, **library_versions((family.library,))}
    return kept(plain(fit_predictor(family)), checkpoints, family.name, settings)


def _train_gpu(
    table: TrainingTable,
    families: Sequence[Family],
    out_dir: Path,
    plan: Plan,
    progress: Progress,
) -> list[ModelCard]:
    cards, evaluations = [], []
    rows = table.rows[table.served]
    names = [one.name for one in table.features]
    for family in families:
        label = f"{table.gpu} {family.name}"
        fit = boosted_fit(family, plan.checkpoints)
        evaluation = evaluate(table.rows, dict.fromkeys(table.rows, fit), plan, progress, label)
        evaluations.append(evaluation)
        card = power_card(
            table,
            family.name,
            evaluation,
            plan,
            hyperparameters=family.hyperparameters,
            libraries=(family.library,),
        )
        progress(f"{label}: final fit on {table.facts.rows} rows")
        model = family.fit(rows.vectors, rows.watts)
        cards.append(
            write_artifact(card, out_dir, partial(_write_model, family, model, rows, names))
        )
    if len(families) > 1:
        members = average_of(cards, out_dir)
        evaluation = averaged_evaluation(evaluations)
        card = power_card(
            table,
            "average",
            evaluation,
            plan,
            hyperparameters={"average_of": ", ".join(member.family for member in members)},
            libraries=tuple(family.library for family in families),
            members=members,
        )
        cards.append(write_artifact(card, out_dir, lambda folder: None))
    return cards


def _write_model(
    family: Family, model: Any, rows: Rows, names: Sequence[str], folder: Path
) -> None:
    save_compact(family, model, folder, rows.vectors.shape[1])
    write_background(rows.vectors, names, folder)


def power_card(
    table: TrainingTable,
    name: str,
    evaluation: Evaluation,
    plan: Plan,
    *,
    hyperparameters: Mapping[str, bool | int | float | str],
    libraries: tuple[str, ...],
    members: tuple[Member, ...] = (),
    features: tuple[FeatureFacts, ...] = (),
    beside: Sequence[TrainingTable] = (),
) -> ModelCard:
    """The card of a model evaluated on a table's rows, and on those of the tables ``beside`` it."""
    return ModelCard(
        gpu=table.gpu,
        target="power",
        family=name,
        source=table.source,
        version=plan.version,
        feature_schema=SchemaReference(
            id=table.schema, sha256=read_definition(table.schema).sha256
        ),
        features=features or table.features,
        training=table.facts,
        sources=tuple(_source_of(one.clean) for one in (table, *beside)),
        hyperparameters=dict(hyperparameters),
        libraries=library_versions(libraries),
        scores=evaluation.scores(),
        intervals=evaluation.intervals(table.floor_watts),
        members=members,
        # The real checksums come with the files; a card without any would not be valid.
        files={} if members else {"model.onnx": "0" * 64},
        created=today(),
        code_revision=code_revision(),
        learned=stored(mark for one in (table, *beside) for mark in one.marks),
    )


def _source_of(cleaned: CleanTable) -> Source:
    """The card entry of a published file."""
    return Source(
        repository=sources().repository,
        path=cleaned.source.path,
        sha256=cleaned.source.sha256,
        used_sha256=cleaned.sha256,
        licence=sources().licence,
    )
