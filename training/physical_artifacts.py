"""Artifacts of the physical power model: parameters, scores and intervals with a card each.

    python -m training.physical_artifacts          fits, writes the artifacts, prints the table

One artifact for every GPU with an activity table, and ``pooled``, which serves the others with
their datasheet facts. Scores of the grouped protocol leave whole programs out (for ``pooled``
whole GPUs); the random one leaves single rows out, so that a program's other clocks are known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from features.errors import WattcastError
from features.schemas import get_schema
from models.cards import (
    FeatureFacts,
    ModelCard,
    ProtocolScores,
    SchemaReference,
    ScoreName,
    Spread,
    TrainingFacts,
)
from models.intervals import (
    Coverage,
    IntervalCalibration,
    IntervalWidth,
    Residuals,
    calibrate,
    conformal_factors,
    interval_bounds,
    measure_coverage,
)
from models.power.activities import UnitActivities
from models.power.physical import PARAMETERS_NAME, POOLED, PhysicalParameters
from models.store import PACKAGED_ARTIFACTS
from training.activity_tables import activity_path
from training.datasets import source_of_table
from training.families import library_versions
from training.fit import code_revision, today, write_artifact
from training.physical import (
    FitSettings,
    GpuRows,
    all_rows,
    fitted_parameters,
    leave_gpu_out,
    leave_program_out,
    pooled_parameters,
    row_folds,
)
from training.protocols import ASSIGNMENTS, outside_range
from training.rows import Rows
from training.scores import point_scores, spread_of
from training.splits import FOLDS
from training.summary import fingerprint

Floats = NDArray[np.float64]

SCHEMA = "activity1"
SOURCE = "dvfs"
FAMILY = "physical"
LEVEL = 0.9


def train(
    out_dir: Path = PACKAGED_ARTIFACTS, progress: Callable[[str], None] = print
) -> list[ModelCard]:
    """Fit, evaluate and write all physical power models below ``out_dir``. Raises DataError."""
    tables, settings = all_rows(), FitSettings()
    cards = []
    for gpu_id, table in tables.items():
        progress(f"{gpu_id}: {int(table.real.sum())} rows of applications")
        card = _card(gpu_id, [table], _gpu_evaluation(tables, gpu_id, settings), settings)
        cards.append(_written(card, fitted_parameters(tables, gpu_id, settings), out_dir))
    progress("pooled: for GPUs that nobody measured")
    everything = list(tables.values())
    card = _card(POOLED, everything, _pooled_evaluation(tables, settings), settings)
    cards.append(_written(card, pooled_parameters(tables, settings), out_dir))
    return cards


class _Evaluation:
    """Predictions out of fold, ``[assignments, n]`` of ``rows``, with their baselines."""

    def __init__(
        self,
        rows: Rows,
        grouped: tuple[Floats, Floats],
        random: tuple[Floats, Floats],
        groups: int,
        outside: NDArray[np.bool_],
    ) -> None:
        self.rows, self.groups, self.outside = rows, groups, outside
        self.grouped, self.random = grouped, random

    def scores(self) -> tuple[ProtocolScores, ...]:
        return (
            _scores(self.rows, "random", FOLDS, *self.random),
            _scores(self.rows, "grouped", self.groups, *self.grouped),
        )

    def intervals(self) -> IntervalCalibration:
        """Widths from residuals on left-out programs, coverage of each program under the widths
        of the others'."""
        rows, watts = self.rows, self.grouped[0][0]
        floor = float(rows.watts.min())
        residuals = Residuals(rows.watts, watts, rows.groups)
        random = Residuals(rows.watts, self.random[0][0], rows.groups)
        return calibrate(
            grouped=residuals,
            random=random,
            outside=self.outside,
            floor_watts=floor,
            level=LEVEL,
            unseen_coverage=_coverage(residuals, floor),
        )


def _gpu_evaluation(
    tables: Mapping[str, GpuRows], gpu_id: str, settings: FitSettings
) -> _Evaluation:
    table = tables[gpu_id]
    real = table.real
    left_out = leave_program_out(tables, gpu_id, settings)
    folds = [row_folds(tables, gpu_id, settings, seed, FOLDS) for seed in range(ASSIGNMENTS)]
    rows = _rows([table])
    outside = np.zeros(len(rows.watts), dtype=np.bool_)
    for group in np.unique(rows.groups):
        test = rows.groups == group
        # Microbenchmarks are training rows too: their activities count as known.
        known = np.vstack([rows.vectors[~test], _vectors(table)[~real]])
        outside[test] = outside_range(known, rows.vectors[test])
    return _Evaluation(
        rows,
        (left_out.watts[real][np.newaxis], left_out.median_watts[real][np.newaxis]),
        (
            np.array([watts[real] for watts, _ in folds]),
            np.array([median[real] for _, median in folds]),
        ),
        len(np.unique(rows.groups)),
        outside,
    )


def _pooled_evaluation(tables: Mapping[str, GpuRows], settings: FitSettings) -> _Evaluation:
    """Each GPU by the others' weights. There is no random split of four GPUs: the same figures
    stand for both protocols."""
    known = list(tables.values())
    rows = _rows(known, by_gpu=True)
    watts = np.concatenate(
        [leave_gpu_out(tables, gpu_id, settings)[table.real] for gpu_id, table in tables.items()]
    )
    limits = np.concatenate([np.full(int(table.real.sum()), table.limit_watts) for table in known])
    share = np.concatenate([table.watts[table.real] / table.limit_watts for table in known])
    gpu = rows.groups
    median = np.array(
        [np.median(share[gpu != own]) * limit for own, limit in zip(gpu, limits, strict=True)]
    )
    both = (watts[np.newaxis], median[np.newaxis])
    return _Evaluation(rows, both, both, len(known), np.zeros(len(watts), dtype=np.bool_))


def _rows(tables: Sequence[GpuRows], *, by_gpu: bool = False) -> Rows:
    """Application rows; groups are programs, or GPUs."""
    return Rows.of(
        np.vstack([_vectors(table)[table.real] for table in tables]),
        np.concatenate([table.watts[table.real] for table in tables]),
        np.concatenate(
            [
                np.full(int(table.real.sum()), table.gpu.id)
                if by_gpu
                else table.programs[table.real]
                for table in tables
            ]
        ),
    )


def _vectors(table: GpuRows) -> Floats:
    return np.array(table.activities)


def _scores(
    rows: Rows, protocol: Literal["random", "grouped"], folds: int, watts: Floats, median: Floats
) -> ProtocolScores:
    return ProtocolScores(
        table="as_published",
        protocol=protocol,
        folds=folds,
        assignments=len(watts),
        model=_spread(rows, watts),
        baseline=_spread(rows, median),
    )


def _spread(rows: Rows, watts: Floats) -> dict[ScoreName, Spread]:
    return spread_of([point_scores(rows.watts, one, rows.groups) for one in watts])


def _coverage(residuals: Residuals, floor_watts: float) -> Coverage:
    low = np.empty_like(residuals.predicted_watts)
    high = np.empty_like(low)
    logarithms = residuals.logarithms
    for group in np.unique(residuals.groups):
        test = residuals.groups == group
        factors = conformal_factors(
            logarithms[~test], residuals.groups[~test], LEVEL, symmetric=True
        )
        width = IntervalWidth(low_factor=factors[0], high_factor=factors[1])
        low[test], high[test] = interval_bounds(residuals.predicted_watts[test], width, floor_watts)
    return measure_coverage(
        "each left-out program under the widths of the others",
        residuals.measured_watts,
        low,
        high,
        residuals.groups,
        LEVEL,
    )


def _card(
    gpu_id: str, tables: Sequence[GpuRows], evaluation: _Evaluation, settings: FitSettings
) -> ModelCard:
    vectors = np.vstack([_vectors(table) for table in tables])
    watts = np.concatenate([table.watts for table in tables])
    programs = [str(name) for table in tables for name in table.programs]
    return ModelCard(
        gpu=gpu_id,
        target="power",
        family=FAMILY,
        source=SOURCE,
        version=1,
        feature_schema=SchemaReference(id=SCHEMA, sha256=get_schema(SCHEMA).sha256),
        features=tuple(
            FeatureFacts(
                name=name,
                minimum=round(float(vectors[:, at].min()), 6),
                maximum=round(float(vectors[:, at].max()), 6),
                missing_share=0.0,
                reproduced_note="share of the unit's peak at the predicted time",
            )
            for at, name in enumerate(UnitActivities._fields)
        ),
        training=TrainingFacts(
            rows=len(watts),
            kernels=len({row.label for table in tables for row in table.rows}),
            kernel_groups=len(set(programs)),
            power_minimum_watts=float(watts.min()),
            power_median_watts=float(np.median(watts)),
            power_maximum_watts=float(watts.max()),
            fingerprint=fingerprint(vectors, watts, programs),
            dropped={},
            recomputed={},
        ),
        sources=tuple(source_of_table(activity_path(table.gpu.id)) for table in tables),
        hyperparameters={
            "micro_weight": settings.micro_weight,
            "ridge": settings.ridge,
            "pooled_ridge": settings.pooled_ridge,
        },
        libraries=library_versions(("numpy", "scipy")),
        scores=evaluation.scores(),
        intervals=evaluation.intervals(),
        files={PARAMETERS_NAME: "0" * 64},
        created=today(),
        code_revision=code_revision(),
    )


def _written(card: ModelCard, parameters: PhysicalParameters, out_dir: Path) -> ModelCard:
    def write(folder: Path) -> None:
        text = parameters.model_dump_json(indent=1) + "\n"
        (folder / PARAMETERS_NAME).write_text(text, "utf-8")

    return write_artifact(card, out_dir, write)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.physical_artifacts")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    options = parser.parse_args(arguments)
    try:
        cards = train(options.out, lambda line: print(line, file=sys.stderr, flush=True))
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for card in cards:
        for protocol in ("random", "grouped"):
            found = card.score("as_published", protocol)
            print(
                f"{card.gpu} {protocol}: MAPE {found.model['mape_percent'].mean:.1f} % "
                f"(baseline {found.baseline['mape_percent'].mean:.1f} %), "
                f"MAE {found.model['mae_watts'].mean:.1f} W"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
