"""Writes the scaling models of every campaign as artifacts with cards.

Served models are fitted on all kernels of a campaign; what a card scores was fitted without the
kernels it is scored on (``studies.fitting.scaling.command``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from studies.data.frequency import SEQUENCES, FrequencyTable, read_frequency
from studies.fitting.scaling.protocols import FEW_KERNELS, PhysicalFit, fit_physical, power_rows
from studies.fitting.scaling.rows import TITAN_X, Floats, ScalingRows, scaling_rows
from studies.fitting.scaling.scores import (
    INTERVAL_LEVEL,
    Progress,
    ScaleScores,
    Scored,
    one_in_ten,
    scale_errors,
)
from studies.fitting.scaling.trees import (
    CANDIDATES,
    FittedTrees,
    ResidualRows,
    TreeSettings,
    choose,
    fit_trees,
    hyperparameters,
)
from wattcast.features.errors import DataError
from wattcast.models.cards import (
    FeatureFacts,
    ScaledQuantity,
    ScaleWidth,
    ScalingCard,
    ScalingChoice,
    ScalingErrors,
    ScalingIntervals,
    ScalingScores,
    ScalingTrainingFacts,
    SchemaReference,
    Source,
    sha256_of,
)
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import conformal_factors
from wattcast.models.papers.scaling.card import (
    PHYSICAL,
    SCHEMAS,
    TREES,
    Quantity,
    physical_schema,
    schema_hash,
    trees_schema,
)
from wattcast.models.papers.scaling.physical import ScalingParameters
from wattcast.models.store import PARAMETERS_NAME
from wattcast.training.data.datasets import data_root
from wattcast.training.families import library_versions
from wattcast.training.provenance import code_revision, today, write_artifact

VERSION = 1
_DIGITS, _LEAST = 6, 1e-9
REPOSITORIES = {
    "lisboa": "https://github.com/hpc-ulisboa/gpupowermodel",
    "wang": "https://github.com/blackjack2015/NV-DVFS-Benchmark",
}
LICENCES = {
    "lisboa": (
        "BSD-3-Clause with a fourth clause: research using it cites Guerreiro et al., HPCA 2018 "
        "(microbenchmarks: also Lopes et al., ISPASS 2017); rows are not redistributed"
    ),
    "wang": (
        "none stated upstream: used for training and evaluation, cited here (Wang and Chu, "
        "ICPADS 2018), rows never redistributed"
    ),
}
"""Where the campaigns come from. The files at hand hold the upstream columns under uniform names,
so that the checksums in a card are theirs."""


def write_campaigns(
    campaigns: Sequence[str],
    scored: Iterable[Scored],
    out_dir: Path,
    root: Path | None = None,
    *,
    progress: Progress = print,
) -> list[ScalingCard]:
    """Fit campaigns of one kind of counters on all their kernels and write their artifacts.

    Raises DataError for campaigns of several kinds, or without counters.
    """
    parts = [scaling_rows(campaign, root) for campaign in campaigns]
    if parts[0].kind is None or len({part.kind for part in parts}) > 1:
        raise DataError(f"{', '.join(campaigns)} are not of one kind of counters")
    settings = _settings(parts)
    fits = fit_physical(parts)
    known, cards = list(scored), []
    for at, (part, fit) in enumerate(zip(parts, fits, strict=True)):
        progress(f"{part.gpu}: {part.campaign}, {len(part)} rows")
        power_trees = _trees(power_rows(part, fit), settings[at])
        mine = [one for one in known if one.predictions.rows.campaign == part.campaign]
        cards += _write(part, fit, power_trees, mine, out_dir, root)
    return cards


_Trees = tuple[ResidualRows, TreeSettings, FittedTrees]


def _settings(parts: Sequence[ScalingRows]) -> list[TreeSettings]:
    """Number of trees of each campaign's power.

    Chosen as in the scores, so that no trees are served that no score is of: on microbenchmarks
    and a physical model of theirs where a campaign has some, else on all kernels.
    """
    micro = any((~part.real).any() for part in parts)
    learning = [part.take(~part.real) for part in parts] if micro else list(parts)
    candidates = CANDIDATES if micro else FEW_KERNELS

    def chosen(rows: ResidualRows | None) -> TreeSettings:
        if rows is None:
            return candidates[0]
        return choose(rows, np.ones(len(rows.measured), dtype=bool), candidates)

    fits = fit_physical(learning)
    return [chosen(power_rows(part, fit)) for part, fit in zip(learning, fits, strict=True)]


def _trees(rows: ResidualRows | None, settings: TreeSettings) -> _Trees | None:
    """Trees of all rows; ``None`` where there are none to fit."""
    if rows is None:
        return None
    trees = fit_trees(rows, np.ones(len(rows.measured), dtype=bool), settings)
    return None if trees is None else (rows, settings, trees)


def _write(
    part: ScalingRows,
    fit: PhysicalFit,
    trees: _Trees | None,
    scored: Sequence[Scored],
    out_dir: Path,
    root: Path | None,
) -> list[ScalingCard]:
    parameters = parameters_of(part, fit)
    physical = _card(part, "physical", scored, root, family=PHYSICAL)
    cards = [write_artifact(physical, out_dir, partial(_write_parameters, parameters))]
    corrects = cards[0].files[PARAMETERS_NAME]
    if trees is not None:
        rows, settings, fitted = trees
        card = _card(
            part,
            "hybrid",
            scored,
            root,
            family=TREES,
            quantity="power",
            vectors=rows.vectors,
            hyperparameters=hyperparameters(settings),
            corrects_sha256=corrects,
        )
        width = rows.vectors.shape[1]
        cards.append(write_artifact(card, out_dir, partial(_write_trees, fitted, width)))
    return cards


def parameters_of(part: ScalingRows, fit: PhysicalFit) -> ScalingParameters:
    """The parameters of a campaign's fit, as served; scales refer to its highest pair."""
    pairs = sorted({(m, c) for c, m in zip(part.core_mhz, part.memory_mhz, strict=True)})
    assert part.kind is not None, "a campaign without counters has no model"
    parameters = ScalingParameters(
        gpu=part.gpu,
        campaign=part.campaign,
        counters=part.kind,
        nominal=part.nominal,
        reference=ClockPair(float(pairs[-1][1]), float(pairs[-1][0])),
        core_range_mhz=(float(part.core_mhz.min()), float(part.core_mhz.max())),
        memory_range_mhz=(float(part.memory_mhz.min()), float(part.memory_mhz.max())),
        time_source="measured" if fit.time_measured else "power",
        time=fit.time,
        power=fit.power,
    )
    return ScalingParameters.model_validate(_rounded(parameters.model_dump()))


def _rounded(value: Any) -> Any:
    """Numbers to so many digits that another machine's last bits do not show."""
    if isinstance(value, float):
        return 0.0 if abs(value) < _LEAST else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_rounded(each) for each in value)
    return value


def _write_parameters(parameters: ScalingParameters, folder: Path) -> None:
    text = parameters.model_dump_json(indent=1) + "\n"
    (folder / PARAMETERS_NAME).write_text(text, "utf-8")


def _write_trees(trees: FittedTrees, features: int, folder: Path) -> None:
    trees.save(folder, features)


def _card(
    part: ScalingRows,
    model: str,
    scored: Sequence[Scored],
    root: Path | None,
    *,
    family: str,
    quantity: Quantity | None = None,
    vectors: np.ndarray | None = None,
    **rest: Any,
) -> ScalingCard:
    assert part.kind is not None, "a campaign without counters has no model"
    schema = physical_schema(part.kind) if quantity is None else trees_schema(part.kind)
    values = _physical_inputs(part) if vectors is None else vectors
    read = read_frequency(part.campaign, root)
    libraries = ("scipy",) if family == PHYSICAL else ("catboost", "scipy")
    return ScalingCard(
        gpu=part.gpu,
        target="scaling",
        family=family,
        source=part.campaign,
        version=VERSION,
        feature_schema=SchemaReference(id=schema, sha256=schema_hash(schema)),
        features=tuple(_feature(name, values[:, at]) for at, name in enumerate(SCHEMAS[schema])),
        training=ScalingTrainingFacts(
            rows=len(part),
            kernels=len(np.unique(part.kernel)),
            kernel_groups=len(np.unique(part.groups)),
            pairs=len(np.unique(np.column_stack([part.core_mhz, part.memory_mhz]), axis=0)),
            dropped=dict(read.dropped),
            noted=dict(read.noted),
        ),
        sources=_sources(read, root),
        hyperparameters=rest.pop("hyperparameters", {}),
        libraries=library_versions(libraries),
        scores=tuple(score for one in scored for score in _scores(one, model, quantity)),
        intervals=_intervals(scored, model),
        choice=tuple(choice for one in scored for choice in _choices(one, model)),
        # The real checksums come with the files; a card without any would not be valid.
        files={PARAMETERS_NAME: sha256_of(Path(__file__))},
        created=today(),
        code_revision=code_revision(),
        **rest,
    )


def _sources(read: FrequencyTable, root: Path | None) -> tuple[Source, ...]:
    found = [
        Source(
            repository=REPOSITORIES[read.source],
            path=f"{read.name}.csv (uniform columns)",
            sha256=read.sha256,
            used_sha256=read.sha256,
            licence=LICENCES[read.source],
        )
    ]
    if read.name == TITAN_X:
        digest = sha256_of((root or data_root()).joinpath(*SEQUENCES))
        found.append(
            Source(
                repository="https://github.com/hpc-ulisboa/gpuPTXModel",
                path=f"{SEQUENCES[-1]} (uniform columns): times of ten applications",
                sha256=digest,
                used_sha256=digest,
                licence="BSD-3-Clause",
            )
        )
    return tuple(found)


def _physical_inputs(part: ScalingRows) -> Floats:
    return np.column_stack([part.use.core, part.use.dram, part.use.seconds])


def _feature(name: str, column: Floats) -> FeatureFacts:
    known = column[np.isfinite(column)]
    return FeatureFacts(
        name=name,
        minimum=float(known.min()) if len(known) else 0.0,
        maximum=float(known.max()) if len(known) else 0.0,
        missing_share=1 - len(known) / len(column),
    )


def _scores(one: Scored, model: str, quantity: Quantity | None) -> Iterable[ScalingScores]:
    rows = one.predictions.rows
    wanted: tuple[tuple[ScaledQuantity, Callable[[str], ScaleScores | None]], ...] = (
        ("time", one.time),
        ("power", one.power),
        ("energy", one.energy),
    )
    for name, errors in wanted:
        found, base = errors(model), errors("mean curve")
        if found is None or base is None or quantity not in (None, name):
            continue
        yield ScalingScores(
            protocol=one.protocol,
            quantity=name,
            reference_mhz=(rows.reference.core_mhz, rows.reference.memory_mhz),
            kernels=len(np.unique(rows.kernel)),
            model=_as_errors(found),
            mean_curve=_as_errors(base),
        )


def _as_errors(errors: ScaleScores) -> ScalingErrors:
    names = ("mean_points", "median_points", "mape_percent", "close_percent")
    return ScalingErrors(**{name: round(getattr(errors, name), 4) for name in names})


def _choices(one: Scored, model: str) -> Iterable[ScalingChoice]:
    found, base = one.choice(model), one.choice("mean curve")
    if found is not None and base is not None:
        yield ScalingChoice(
            protocol=one.protocol,
            saved_percent=round(found.saved_percent, 4),
            mean_curve_saved_percent=round(base.saved_percent, 4),
            oracle_percent=round(found.oracle_percent, 4),
            hypervolume_ratio=round(found.hypervolume_ratio, 4),
        )


def _intervals(scored: Sequence[Scored], model: str) -> ScalingIntervals:
    return ScalingIntervals(
        level=INTERVAL_LEVEL,
        time=_width([(one.predictions.time.get(model), one.predictions.rows.time_scale,
                      one.predictions.rows) for one in scored]),
        power=_width([(one.predictions.power.get(model), one.predictions.rows.power_scale,
                       one.predictions.rows) for one in scored]),
        energy_one_in_ten=_one_in_ten(scored, model),
    )  # fmt: skip


def _one_in_ten(scored: Sequence[Scored], model: str) -> float | None:
    """What energy scales of kernels left out exceed in one of ten; ``None`` where none are."""
    found = [errors for one in scored if (errors := one.energy_errors(model)) is not None]
    if not found:
        return None
    ratios, kernels = (np.concatenate(each) for each in zip(*found, strict=True))
    return round(one_in_ten(ratios, kernels), 6)


def _width(parts: Iterable[tuple[Floats | None, Floats, ScalingRows]]) -> ScaleWidth | None:
    """Factor that holds measured over predicted scales of kernels left out, by kernel."""
    found = [errors for each in parts if (errors := scale_errors(*each)) is not None]
    if not found:
        return None
    ratios, kernels = (np.concatenate(each) for each in zip(*found, strict=True))
    low, high = conformal_factors(ratios, kernels, INTERVAL_LEVEL, symmetric=True)
    return ScaleWidth(low_factor=round(low, 6), high_factor=round(high, 6))
