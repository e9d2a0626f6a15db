"""From the published rows to checked artifacts: the one training path of the power models.

train() per GPU:  clean -> recompute by the serving rules -> cross-validate both tables
                  -> fit on all rows -> native and ONNX files, background, card

The PowerQuant files have one table: their cleaned columns are what the serving rules give.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from features.errors import DataError, ModelError
from features.gpus import load_gpu
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
from models.power.inputs import LAUNCH_FEATURES, launch_features
from training.checkpoints import Checkpoints
from training.data.cleaning import MODEL_INPUTS, CleanTable, clean
from training.data.datasets import data_root, sources
from training.data.recompute import recompute, reproduced_shares
from training.evaluation.calibration import (
    NESTED_SEEDS,
    NestedFold,
    averaged_folds,
    calibrated,
    nested_folds,
)
from training.evaluation.protocols import ASSIGNMENTS, OutOfFold, averaged
from training.evaluation.protocols import evaluate as evaluate_protocol
from training.evaluation.rows import Fit, FitPredict, Rows, plain
from training.evaluation.splits import FOLDS, Protocol
from training.families import FAMILIES, Family, get_family, library_versions
from training.forests import SETTINGS
from training.power import pooled as power_pooled
from training.power.kept import kept
from training.power.rows import rows_of
from training.summary import fingerprint, summarise

SCHEMA = "alavani2023"
SOURCE = "thesis"
THESIS_FILES: Mapping[str, str] = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
"""GPU id -> the thesis' data file of it."""
POWERQUANT_SCHEMA = "powerquant2026r"
POWERQUANT_SOURCE = "powerquant"
POWERQUANT_FILES: Mapping[str, str] = {
    "tesla-k80": "K80",
    "tesla-v100": "PQ_V100",
    "ampere-84sm": "PQ_Ampere84",
    "ada-24sm": "PQ_Ada24",
}
"""GPU id -> the PowerQuant data file of it."""
SOURCES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    SOURCE: (SCHEMA, THESIS_FILES),
    POWERQUANT_SOURCE: (POWERQUANT_SCHEMA, POWERQUANT_FILES),
}
"""Source -> its feature schema and files."""
POOLED = power_pooled.FAMILY
ALL_FAMILIES = (*FAMILIES, POOLED)
TREE_SHARE: Mapping[str, float] = {SOURCE: 1.0, POWERQUANT_SOURCE: 0.5}
"""Share of the answer that is the extra trees', the rest being the median kernel: ten kernels
tell little of an eleventh. Fixed beforehand, docs/power.md says how."""
TREE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    SOURCE: SETTINGS,
    # Three hundred rows of each of ten kernels: larger leaves, for files of a fair size.
    POWERQUANT_SOURCE: {**SETTINGS, "min_samples_leaf": 16},
}
"""Settings of the extra trees."""

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
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


@dataclass(frozen=True)
class TrainingTable:
    """Rows of one GPU in one table or both, and what the card tells about them.

    ``launched`` are the same rows with ``LAUNCH_FEATURES`` after the schema's inputs, and
    ``launched_features`` the facts of all those columns.
    """

    gpu: str
    source: str
    clean: CleanTable
    rows: Mapping[Table, Rows]
    launched: Mapping[Table, Rows]
    group_names: Mapping[Table, NDArray[np.str_]]
    facts: TrainingFacts
    features: tuple[FeatureFacts, ...]
    launched_features: tuple[FeatureFacts, ...]
    floor_watts: float

    @property
    def schema(self) -> str:
        """Id of the feature schema."""
        return SOURCES[self.source][0]

    @property
    def served(self) -> Table:
        """The table that a model is fitted on: what serving computes."""
        return "as_recomputed" if "as_recomputed" in self.rows else "as_published"

    def part(self, name: Table) -> power_pooled.Part:
        """One table's rows as the pooled trees take them."""
        rows = self.launched[name]
        return power_pooled.Part(self.gpu, rows.vectors, rows.watts, self.group_names[name])


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
    families: Sequence[str] = ALL_FAMILIES,
    out_dir: Path | None = None,
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
    if out_dir is None:
        from models.store import PACKAGED_ARTIFACTS

        out_dir = PACKAGED_ARTIFACTS
    plan = plan or Plan()
    asked = list(dict.fromkeys(families))
    chosen = [get_family(name) for name in asked if name != POOLED]
    if not asked:
        raise ModelError("no family to train")
    peers = peer_tables(source, root) if POOLED in asked else []
    cards = []
    for gpu in gpus:
        table = training_table(gpu, root, source)
        progress(
            f"{gpu}, {source}: {table.facts.rows} rows, {table.facts.kernels} kernels in "
            f"{table.facts.kernel_groups} groups"
        )
        if chosen:
            cards += _train_gpu(table, chosen, out_dir, plan, progress)
        if POOLED in asked:
            others = [peer for peer in peers if peer.gpu != gpu]
            cards.append(_train_pooled(table, others, out_dir, plan, progress))
    return cards


def peer_tables(source: str, root: Path | None = None) -> list[TrainingTable]:
    """Tables of a source whose rows may join another GPU's training.

    None of PowerQuant: its files hold the same dozen kernels, and a kernel that is left out is
    left out of all of them. Raises DataError for missing or defective data.
    """
    if source != SOURCE:
        return []
    return [training_table(gpu, root, source) for gpu in SOURCES[source][1]]


def training_table(gpu: str, root: Path | None = None, source: str = SOURCE) -> TrainingTable:
    """Clean (and recompute) the rows of one GPU. Raises DataError where the source has none."""
    schema, files = SOURCES[source]
    if gpu not in files:
        known = ", ".join(files)
        raise DataError(f"no {source} rows for {gpu!r}; there are some for {known}")
    cleaned = clean(files[gpu], root or data_root())
    published = cleaned.training_rows
    definition = read_definition(schema)
    frames: dict[Table, pd.DataFrame] = {"as_published": published}
    changed: dict[str, int] = {}
    if source == SOURCE:
        served = recompute(published, definition, gpu)
        frames["as_recomputed"], changed = served.frame, served.changed
    frames = {name: _launched(frame, gpu) for name, frame in frames.items()}
    names = tuple(one.name for one in definition.fields if one.model_input)
    rows = {name: rows_of(frame, names) for name, frame in frames.items()}
    last = frames[list(frames)[-1]]
    fitted = rows[list(frames)[-1]]
    facts = TrainingFacts(
        rows=len(fitted),
        kernels=int(published["kernel_id"].nunique()),
        kernel_groups=int(published["kernel_group"].nunique()),
        power_minimum_watts=float(fitted.watts.min()),
        power_median_watts=float(np.median(fitted.watts)),
        power_maximum_watts=float(fitted.watts.max()),
        fingerprint=fingerprint(fitted.vectors, fitted.watts, last["kernel_group"].tolist()),
        dropped={**cleaned.dropped, "5 idle_power": len(cleaned.frame) - len(published)},
        recomputed=changed,
    )
    features = _features(frames, definition, gpu, names)
    return TrainingTable(
        gpu=gpu,
        source=source,
        clean=cleaned,
        rows=rows,
        launched={
            name: rows_of(frame, (*names, *LAUNCH_FEATURES)) for name, frame in frames.items()
        },
        group_names={
            name: frame["kernel_group"].to_numpy(dtype=str) for name, frame in frames.items()
        },
        facts=facts,
        features=features,
        launched_features=(*features, *(_launch_facts(last, name) for name in LAUNCH_FEATURES)),
        # Idle rows are no training rows, but they do tell how little the GPU draws.
        floor_watts=float(cleaned.frame["power_w"].min()),
    )


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
        card = _card(
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
        members = tuple(
            Member(
                family=card.family,
                version=card.version,
                card_sha256=sha256_of(out_dir / card.folder / CARD_NAME),
            )
            for card in cards
        )
        evaluation = averaged_evaluation(evaluations)
        card = _card(
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


def _train_pooled(
    table: TrainingTable,
    peers: Sequence[TrainingTable],
    out_dir: Path,
    plan: Plan,
    progress: Progress,
) -> ModelCard:
    label = f"{table.gpu} {POOLED}"
    share, settings = TREE_SHARE[table.source], TREE_SETTINGS[table.source]
    fits = pooled_fits(table, peers, plan.checkpoints)
    evaluation = evaluate(table.launched, fits, plan, progress, label)
    others = [peer.part(table.served) for peer in peers]
    card = _card(
        table,
        POOLED,
        evaluation,
        plan,
        hyperparameters=power_pooled.hyperparameters(others, share, settings),
        libraries=power_pooled.LIBRARIES,
        features=table.launched_features,
        beside=[peer.clean for peer in peers],
    )
    progress(f"{label}: final fit")
    own = table.part(table.served)
    forest = power_pooled.fit_pooled(own, others, share=share, settings=settings)
    vectors = table.launched[table.served].vectors

    def write(folder: Path) -> None:
        power_pooled.save(forest, folder, vectors.shape[1])
        _write_background(vectors, [one.name for one in table.launched_features], folder)

    return write_artifact(card, out_dir, write)


def pooled_fits(
    table: TrainingTable, peers: Sequence[TrainingTable], checkpoints: Checkpoints | None = None
) -> dict[Table, Fit]:
    """How the extra trees are fitted on training rows of each table of one GPU."""
    share, trees = TREE_SHARE[table.source], TREE_SETTINGS[table.source]
    fits: dict[Table, Fit] = {}
    for name in table.rows:
        parts = [peer.part(name) for peer in peers]
        settings = {
            **power_pooled.hyperparameters(parts, share, trees),
            **library_versions(power_pooled.LIBRARIES[:1]),
            "gpu": table.gpu,
            "rows": ", ".join(
                fingerprint(part.vectors, part.watts, part.groups.tolist())
                for part in (table.part(name), *parts)
            ),
        }
        fit = power_pooled.pooled_fit(table.part(name), parts, share=share, settings=trees)
        fits[name] = kept(fit, checkpoints or Checkpoints(), POOLED, settings)
    return fits


def _write_model(
    family: Family, model: Any, rows: Rows, names: Sequence[str], folder: Path
) -> None:
    family.save(model, folder, rows.vectors.shape[1])
    _write_background(rows.vectors, names, folder)


def _write_background(vectors: NDArray[np.float64], names: Sequence[str], folder: Path) -> None:
    background = summarise(vectors, names)
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
    evaluation: Evaluation,
    plan: Plan,
    *,
    hyperparameters: Mapping[str, bool | int | float | str],
    libraries: tuple[str, ...],
    members: tuple[Member, ...] = (),
    features: tuple[FeatureFacts, ...] = (),
    beside: Sequence[CleanTable] = (),
) -> ModelCard:
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
        sources=tuple(_source(one) for one in (table.clean, *beside)),
        hyperparameters=dict(hyperparameters),
        libraries=library_versions(libraries),
        scores=evaluation.scores(),
        intervals=evaluation.intervals(table.floor_watts),
        members=members,
        # The real checksums come with the files; a card without any would not be valid.
        files={} if members else {"model.onnx": "0" * 64},
        created=today(),
        code_revision=code_revision(),
    )


def _source(cleaned: CleanTable) -> Source:
    return Source(
        repository=sources().repository,
        path=cleaned.source.path,
        sha256=cleaned.source.sha256,
        used_sha256=cleaned.sha256,
        licence=sources().licence,
    )


def _launched(frame: pd.DataFrame, gpu: str) -> pd.DataFrame:
    more = launch_features(
        frame["grid_size"], frame["block_size"], frame["occupancy"], load_gpu(gpu)
    )
    return frame.assign(**more)


def _features(
    frames: Mapping[Table, pd.DataFrame], definition: Definition, gpu: str, names: Sequence[str]
) -> tuple[FeatureFacts, ...]:
    if "as_recomputed" not in frames:
        note = "column of the authors' newer tool, whose rules the schema follows"
        return tuple(_facts(frames["as_published"], name, note) for name in names)
    if tuple(names) != MODEL_INPUTS:
        raise DataError(f"schema {definition.id} has other model inputs than Table 5.4")
    before = reproduced_shares(frames["as_published"], definition, gpu)
    after = reproduced_shares(frames["as_recomputed"], definition, gpu)
    return tuple(
        _facts(
            frames["as_recomputed"],
            name,
            after[name].note,
            share=after[name].share,
            published=before[name].share,
        )
        for name in names
    )


def _launch_facts(frame: pd.DataFrame, name: str) -> FeatureFacts:
    return _facts(frame, name, "computed from grid, block and occupancy", share=1.0)


def _facts(
    frame: pd.DataFrame,
    name: str,
    note: str,
    *,
    share: float | None = None,
    published: float | None = None,
) -> FeatureFacts:
    return FeatureFacts(
        name=name,
        minimum=float(frame[name].min()),
        maximum=float(frame[name].max()),
        missing_share=float(frame[name].isna().mean()),
        reproduced_share=share,
        reproduced_share_published=published,
        reproduced_note=note,
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
