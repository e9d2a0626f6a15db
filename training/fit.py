"""From the published rows to checked artifacts: the one training path of the power models.

train() per GPU:  clean -> recompute by the serving rules -> cross-validate both tables
                  -> fit on all rows -> native and ONNX files, background, card
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from features.errors import DataError, ModelError
from features.schemas.tables import Definition, read_definition
from models.background import BACKGROUND_NAME
from models.cards import (
    CARD_NAME,
    AnyCard,
    FeatureFacts,
    Member,
    ModelCard,
    ProtocolScores,
    SchemaReference,
    Source,
    Table,
    TrainingFacts,
    sha256_of,
)
from models.intervals import IntervalCalibration
from training.calibration import (
    NESTED_SEEDS,
    NestedFold,
    averaged_folds,
    calibrated,
    nested_folds,
)
from training.cleaning import MODEL_INPUTS, CleanTable, clean
from training.datasets import data_root, sources
from training.families import FAMILIES, Family, get_family, library_versions
from training.protocols import ASSIGNMENTS, OutOfFold, averaged, cross_validate
from training.recompute import recompute, reproduced_shares
from training.rows import FitPredict, Rows
from training.splits import FOLDS, Protocol
from training.summary import fingerprint, summarise

SCHEMA = "alavani2023"
SOURCE = "thesis"
THESIS_FILES: Mapping[str, str] = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
"""GPU id -> the thesis' data file of it."""

Progress = Callable[[str], None]
PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")
TABLES: tuple[Table, ...] = ("as_published", "as_recomputed")


@dataclass(frozen=True)
class Plan:
    """How thoroughly to evaluate. The defaults make the packaged artifacts."""

    assignments: int = ASSIGNMENTS
    nested_seeds: tuple[int, ...] = NESTED_SEEDS
    version: int = 1
    jobs: int = 2


@dataclass(frozen=True)
class TrainingTable:
    """Rows of one GPU in both tables, and what the card tells about them."""

    gpu: str
    clean: CleanTable
    rows: Mapping[Table, Rows]
    facts: TrainingFacts
    features: tuple[FeatureFacts, ...]
    floor_watts: float


@dataclass(frozen=True)
class Evaluation:
    """Everything out of fold of one family: per table and protocol, and nested."""

    predictions: Mapping[tuple[Table, Protocol], OutOfFold]
    nested: Sequence[NestedFold]

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
        """Interval widths of the served model: those of the recomputed table."""
        return calibrated(
            self.predictions["as_recomputed", "grouped"],
            self.predictions["as_recomputed", "random"],
            self.nested,
            floor_watts,
        )


def train(
    gpus: Sequence[str] = tuple(THESIS_FILES),
    families: Sequence[str] = tuple(FAMILIES),
    out_dir: Path | None = None,
    progress: Progress = print,
    *,
    plan: Plan | None = None,
    root: Path | None = None,
) -> list[ModelCard]:
    """Train, evaluate and write artifacts below ``out_dir`` (default: the packaged ones).

    With two families their average gets a card of its own. Equal data, seeds and library
    versions give equal scores to the last printed digit. Raises DataError for missing or
    defective data, ModelError for an unknown family.
    """
    if out_dir is None:
        from models.store import PACKAGED_ARTIFACTS

        out_dir = PACKAGED_ARTIFACTS
    plan = plan or Plan()
    chosen = [get_family(name) for name in dict.fromkeys(families)]
    if not chosen:
        raise ModelError("no family to train")
    cards = []
    for gpu in gpus:
        table = training_table(gpu, root)
        progress(
            f"{gpu}: {table.facts.rows} rows, {table.facts.kernels} kernels in "
            f"{table.facts.kernel_groups} groups"
        )
        cards += _train_gpu(table, chosen, out_dir, plan, progress)
    return cards


def training_table(gpu: str, root: Path | None = None) -> TrainingTable:
    """Clean and recompute the thesis rows of one GPU. Raises DataError where there are none."""
    if gpu not in THESIS_FILES:
        known = ", ".join(THESIS_FILES)
        raise DataError(f"no thesis rows for {gpu!r}; there are some for {known}")
    cleaned = clean(THESIS_FILES[gpu], root or data_root())
    published = cleaned.training_rows
    definition = read_definition(SCHEMA)
    served = recompute(published, definition, gpu)
    rows: dict[Table, Rows] = {
        "as_published": _rows(published),
        "as_recomputed": _rows(served.frame),
    }
    watts = rows["as_recomputed"].watts
    facts = TrainingFacts(
        rows=len(watts),
        kernels=int(published["kernel_id"].nunique()),
        kernel_groups=int(published["kernel_group"].nunique()),
        power_minimum_watts=float(watts.min()),
        power_median_watts=float(np.median(watts)),
        power_maximum_watts=float(watts.max()),
        fingerprint=fingerprint(
            rows["as_recomputed"].vectors, watts, served.frame["kernel_group"].tolist()
        ),
        dropped={**cleaned.dropped, "5 idle_power": len(cleaned.frame) - len(published)},
        recomputed=served.changed,
    )
    features = _features(published, served.frame, definition, gpu)
    # Idle rows are no training rows, but they do tell how little the GPU draws.
    floor_watts = float(cleaned.frame["power_w"].min())
    return TrainingTable(gpu, cleaned, rows, facts, features, floor_watts)


def evaluate(
    table: TrainingTable, fit_predict: FitPredict, plan: Plan, progress: Progress, label: str
) -> Evaluation:
    """Cross-validate one family on both tables by both protocols, and nested."""
    seeds = range(plan.assignments)
    predictions = {}
    for name in TABLES:
        for protocol in PROTOCOLS:
            progress(f"{label}: {protocol} folds, {name.replace('_', ' ')}")
            predictions[name, protocol] = cross_validate(
                table.rows[name], fit_predict, protocol, seeds, jobs=plan.jobs
            )
    progress(f"{label}: nested folds for the intervals")
    nested = nested_folds(
        table.rows["as_recomputed"], fit_predict, plan.nested_seeds, jobs=plan.jobs
    )
    return Evaluation(predictions, nested)


def averaged_evaluation(parts: Sequence[Evaluation]) -> Evaluation:
    """The average of several families, from the predictions they already made."""
    return Evaluation(
        {key: averaged([part.predictions[key] for part in parts]) for key in parts[0].predictions},
        averaged_folds([part.nested for part in parts]),
    )


def fit_predictor(family: Family) -> FitPredict:
    """Fit on training vectors and predict test vectors."""
    return lambda vectors, watts, test: family.predict(family.fit(vectors, watts), test)


def _train_gpu(
    table: TrainingTable,
    families: Sequence[Family],
    out_dir: Path,
    plan: Plan,
    progress: Progress,
) -> list[ModelCard]:
    cards, evaluations = [], []
    rows = table.rows["as_recomputed"]
    for family in families:
        label = f"{table.gpu} {family.name}"
        evaluation = evaluate(table, fit_predictor(family), plan, progress, label)
        evaluations.append(evaluation)
        card = _card(table, family.name, (family,), evaluation, plan)
        progress(f"{label}: final fit on {table.facts.rows} rows")
        model = family.fit(rows.vectors, rows.watts)
        cards.append(write_artifact(card, out_dir, partial(_write_model, family, model, rows)))
    if len(families) > 1:
        members = tuple(
            Member(
                family=card.family,
                version=card.version,
                card_sha256=sha256_of(out_dir / card.folder / CARD_NAME),
            )
            for card in cards
        )
        evaluation = averaged_evaluation(evaluations)
        card = _card(table, "average", tuple(families), evaluation, plan, members=members)
        cards.append(write_artifact(card, out_dir, lambda folder: None))
    return cards


def _write_model(family: Family, model: Any, rows: Rows, folder: Path) -> None:
    family.save(model, folder, rows.vectors.shape[1])
    background = summarise(rows.vectors, MODEL_INPUTS)
    (folder / BACKGROUND_NAME).write_text(background.model_dump_json() + "\n", "utf-8")


def write_artifact(card: AnyCard, out_dir: Path, write_files: Callable[[Path], None]) -> AnyCard:
    """Write the files and then the card of an artifact; it appears under its name at once."""
    folder = out_dir / card.folder
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    write_files(building)
    files = {path.name: sha256_of(path) for path in sorted(building.iterdir())}
    card = type(card).model_validate({**card.model_dump(), "files": files})
    (building / CARD_NAME).write_text(card.to_json(), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return card


def _card(
    table: TrainingTable,
    name: str,
    families: tuple[Family, ...],
    evaluation: Evaluation,
    plan: Plan,
    members: tuple[Member, ...] = (),
) -> ModelCard:
    source = table.clean.source
    hyperparameters: dict[str, bool | int | float | str]
    if members:
        hyperparameters = {"average_of": ", ".join(member.family for member in members)}
    else:
        hyperparameters = dict(families[0].hyperparameters)
    return ModelCard(
        gpu=table.gpu,
        target="power",
        family=name,
        source=SOURCE,
        version=plan.version,
        feature_schema=SchemaReference(id=SCHEMA, sha256=read_definition(SCHEMA).sha256),
        features=table.features,
        training=table.facts,
        sources=(
            Source(
                repository=sources().repository,
                path=source.path,
                sha256=source.sha256,
                used_sha256=table.clean.sha256,
                licence=sources().licence,
            ),
        ),
        hyperparameters=hyperparameters,
        libraries=library_versions(tuple(family.library for family in families)),
        scores=evaluation.scores(),
        intervals=evaluation.intervals(table.floor_watts),
        members=members,
        # The real checksums come with the files; a card without any would not be valid.
        files={} if members else {"model.onnx": "0" * 64},
        created=today(),
        code_revision=code_revision(),
    )


def _rows(frame: pd.DataFrame) -> Rows:
    return Rows.of(frame[list(MODEL_INPUTS)], frame["power_w"], frame["kernel_group"])


def _features(
    published: pd.DataFrame, served: pd.DataFrame, definition: Definition, gpu: str
) -> tuple[FeatureFacts, ...]:
    names = tuple(field.name for field in definition.fields if field.model_input)
    if names != MODEL_INPUTS:
        raise DataError(f"schema {definition.id} has other model inputs than Table 5.4")
    before = reproduced_shares(published, definition, gpu)
    after = reproduced_shares(served, definition, gpu)
    return tuple(
        FeatureFacts(
            name=name,
            minimum=float(served[name].min()),
            maximum=float(served[name].max()),
            missing_share=float(served[name].isna().mean()),
            reproduced_share=after[name].share,
            reproduced_share_published=before[name].share,
            reproduced_note=after[name].note,
        )
        for name in names
    )


def today() -> date:
    """Today in UTC, or the day of SOURCE_DATE_EPOCH (reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)).date()


def code_revision() -> str:
    """Commit of the code, marked when training's own files differ from it; else ``unknown``."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        result = subprocess.run(  # noqa: S603 - fixed arguments, no user input
            ["git", *arguments],  # noqa: S607 - the git of the user's PATH
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", str(here), str(here.parent / "features"))
        return git("rev-parse", "HEAD") + ("-modified" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
