"""Artifacts of the physical power model: parameters, scores and intervals with a card each.

    python -m studies fit-physical  fits, writes, prints

One artifact for every GPU of ``physical_rows.py``, and ``pooled``, which serves the others with
their datasheet facts. Scores of the grouped protocol leave whole programs out, settings chosen
without them (for ``pooled`` whole GPUs and the program); the random one leaves single readings
out, so that a program's other clocks are known. Two GPUs were fitted on counted activities alone:
their intervals are widened by what serving from PTX costs where both are known.

What it costs to serve a model from PTX that was fitted on counted activities: GTX Titan X and GTX
980 have no activities from PTX. On three GPUs there are both: there the same fit on counted rows
alone predicts left-out programs once from counted activities and once from those it is served, at
predicted times.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from studies.data.activity_tables import ACTIVITY_GPUS, read_served_table, served_path
from studies.data.tables import source_of_table
from studies.fitting.out_of_fold import ASSIGNMENTS, measure_coverage
from studies.fitting.physical.fit import (
    Averaged,
    Choice,
    Fits,
    FitSettings,
    choose,
    error_percent,
    fitted_parameters,
    leave_program_out,
    pooled_parameters,
    predict,
    row_folds,
    scored_programs,
)
from studies.fitting.physical.rows import COUNTED_CAMPAIGNS, Floats, GpuRows, all_rows
from wattcast.features.schemas import activity_schema, get_schema
from wattcast.models.cards import (
    FeatureFacts,
    ModelCard,
    ProtocolScores,
    SchemaReference,
    ScoreName,
    Spread,
    TrainingFacts,
    code_marks,
    group_mark,
    stored,
)
from wattcast.models.intervals import (
    EXTRAPOLATED_WIDENING,
    Coverage,
    IntervalCalibration,
    IntervalWidth,
    Residuals,
    Width,
    calibrate,
    conformal_factors,
    conformal_width,
    interval_bounds,
)
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import POOLED, PhysicalParameters, parameters_for
from wattcast.models.store import PACKAGED_ARTIFACTS, PARAMETERS_NAME
from wattcast.training.evaluation.scores import FOLDS, Rows, outside_range, point_scores, spread_of
from wattcast.training.families import library_versions
from wattcast.training.provenance import code_revision, fingerprint, today, write_artifact


def watts_of(parameters: PhysicalParameters, table: GpuRows) -> Floats:
    """Watts of every row by any parameters, ``[n]``, not cut at the board's limit."""
    board = replace(
        table,
        idle_watts=parameters.idle_watts,
        limit_watts=parameters.limit_watts,
        reference=parameters.reference,
    )
    weights = np.array(list(parameters.weights.values()))
    design = board.design(parameters.voltage)
    return np.asarray(board.idle_watts + board.scale_watts * (design @ weights))


def priors(fits: Fits, gpu_id: str, settings: Averaged) -> dict[str, PhysicalParameters]:
    """Parameters of a GPU by the others and its datasheet, for each scored program without it."""
    table = fits.tables[gpu_id]
    others = [other for other in fits.tables if other != gpu_id]
    return {
        program: parameters_for(
            table.gpu, pooled_parameters(fits, settings, others, frozenset({program}))
        )
        for program in scored_programs(table)
    }


def leave_gpu_out(fits: Fits, gpu_id: str, settings: Averaged) -> Floats:
    """Watts of every scored row by the other GPUs' other programs, NaN elsewhere."""
    table = fits.tables[gpu_id]
    watts = np.full(len(table.watts), np.nan)
    for program, parameters in priors(fits, gpu_id, settings).items():
        mine = (table.programs == program) & table.scored
        watts[mine] = watts_of(parameters, table)[mine]
    return watts


@dataclass(frozen=True)
class ServedCost:
    """Errors in percent on left-out programs, and log half-widths of their 90 % intervals."""

    gpu_id: str
    counted_percent: float
    served_percent: float
    counted_width: float
    served_width: float


def served_costs(fits: Fits, settings: Averaged) -> list[ServedCost]:
    """The cost on each GPU with both kinds of activities."""
    return [
        _cost(fits, gpu_id, settings)
        for gpu_id in COUNTED_CAMPAIGNS
        if gpu_id in fits.tables and fits.tables[gpu_id].counted.any()
    ]


def served_widening(fits: Fits, settings: Averaged) -> float:
    """Ratio of interval widths, served over counted, in logarithms: the GPUs' mean, at least 1."""
    ratios = [cost.served_width / cost.counted_width for cost in served_costs(fits, settings)]
    return max(1.0, round(float(np.mean(ratios)), 3))


def _cost(fits: Fits, gpu_id: str, settings: Averaged) -> ServedCost:
    table = fits.tables[gpu_id]
    served = table.take(table.scored)
    counted = table.take(table.counted & np.isin(table.programs, served.programs))
    alone = Fits({**fits.tables, **fits.relatives, gpu_id: table.take(table.counted)})
    watts = {kind: np.full(len(rows.watts), np.nan) for kind, rows in enumerate((served, counted))}
    for program in scored_programs(served):
        weights, voltage = alone.fit(gpu_id, settings, frozenset({program}))
        for kind, rows in enumerate((served, counted)):
            mine = rows.programs == program
            watts[kind][mine] = predict(rows, weights, voltage)[mine]

    def width(predicted: Floats, measured: Floats, programs: np.ndarray) -> float:
        factors = conformal_factors(np.log(measured / predicted), programs, LEVEL, symmetric=True)
        return float(np.log(factors[1]))

    return ServedCost(
        gpu_id,
        counted_percent=error_percent(counted, watts[1]),
        served_percent=error_percent(served, watts[0]),
        counted_width=width(watts[1], counted.watts, counted.programs),
        served_width=width(watts[0], served.watts, served.programs),
    )


SCHEMA = "activity1"
SOURCE = "dvfs"
FAMILY = "physical"
LEVEL = 0.9
POOLED_SETTINGS: Averaged = (FitSettings(),)
"""Those of weights for boards nobody measured: the defaults, so that nothing is chosen by them."""


def train(
    out_dir: Path = PACKAGED_ARTIFACTS, progress: Callable[[str], None] = print
) -> list[ModelCard]:
    """Fit, evaluate and write all physical power models below ``out_dir``.

    Raises DataError, also without the activity tables of the service.
    """
    served_path(next(iter(ACTIVITY_GPUS)))
    fits = Fits(all_rows())
    progress("settings, by programs left out of programs left out")
    choice = choose(fits)
    progress("what serving from PTX costs a model fitted on counters")
    widening = served_widening(fits, choice.best)
    every = [*fits.tables.values(), *fits.relatives.values()]
    learned = learned_by(every)  # each is drawn to what the others were fitted to
    cards = []
    for gpu_id, table in fits.varied.items():
        progress(f"{gpu_id}: {int(table.scored.sum())} rows of applications")
        evaluation = _gpu_evaluation(fits, gpu_id, choice, widening)
        card = _card(gpu_id, [table], evaluation, choice.best, learned)
        cards.append(_written(card, fitted_parameters(fits, gpu_id, choice.best), out_dir))
    progress("pooled: for GPUs that nobody measured")
    card = _card(POOLED, every, _pooled_evaluation(fits), POOLED_SETTINGS, learned)
    cards.append(_written(card, pooled_parameters(fits, POOLED_SETTINGS), out_dir))
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
        widening: float = 1.0,
        *,
        by_board: bool = False,
    ) -> None:
        self.rows, self.groups, self.outside = rows, groups, outside
        self.widening, self.by_board = widening, by_board
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
        found = calibrate(
            grouped=residuals,
            random=random,
            outside=self.outside,
            floor_watts=floor,
            level=LEVEL,
            unseen_coverage=_coverage(residuals, floor),
        )
        if self.by_board:
            unseen = _board_width(residuals)
            coverage = _coverage(residuals, floor, _board_width)
            return found.model_copy(
                update={
                    "method": "student-t-of-boards-log-residual",
                    "seen_kernel": unseen,
                    "unseen_kernel": unseen.model_copy(update={"coverage": coverage}),
                    "extrapolated": unseen.widened(EXTRAPOLATED_WIDENING),
                }
            )
        if self.widening == 1.0:
            return found
        names = ("seen_kernel", "unseen_kernel", "extrapolated")
        return found.model_copy(
            update={name: self._widened(getattr(found, name)) for name in names}
        )

    def _widened(self, width: Width) -> Width:
        """The width with activities from PTX; the coverage stays that of counted ones."""
        wide = width.widened(self.widening)
        if width.coverage is None:
            return wide
        note = f"{width.coverage.protocol}; activities counted, before widening for PTX"
        return wide.model_copy(
            update={"coverage": width.coverage.model_copy(update={"protocol": note})}
        )


def _gpu_evaluation(fits: Fits, gpu_id: str, choice: Choice, widening: float) -> _Evaluation:
    table = fits.tables[gpu_id]
    scored = table.scored
    left_out = leave_program_out(fits, gpu_id, choice.settings)
    folds = [row_folds(fits, gpu_id, choice.best, seed, FOLDS) for seed in range(ASSIGNMENTS)]
    rows = _rows([table])
    programs = table.programs[scored]
    outside = np.zeros(len(rows.watts), dtype=np.bool_)
    for program in np.unique(programs):
        test = programs == program
        # Microbenchmarks are training rows too: their activities count as known.
        known = table.activities[table.programs != program]
        outside[test] = outside_range(known, rows.vectors[test])
    return _Evaluation(
        rows,
        (left_out.watts[scored][np.newaxis], left_out.median_watts[scored][np.newaxis]),
        (
            np.array([watts[scored] for watts, _ in folds]),
            np.array([median[scored] for _, median in folds]),
        ),
        len(np.unique(rows.groups)),
        outside,
        widening if table.counted[scored].all() else 1.0,
    )


def _pooled_evaluation(fits: Fits) -> _Evaluation:
    """Each GPU by the others' weights. There is no random split of a few GPUs: the same figures
    stand for both protocols."""
    known = list(fits.tables.values())
    rows = _rows(known, by_gpu=True)
    watts = np.concatenate(
        [
            leave_gpu_out(fits, gpu_id, POOLED_SETTINGS)[table.scored]
            for gpu_id, table in fits.tables.items()
        ]
    )
    limits = np.concatenate([np.full(int(t.scored.sum()), t.limit_watts) for t in known])
    gpu, share = rows.groups, rows.watts / limits
    median = np.array(
        [np.median(share[gpu != own]) * limit for own, limit in zip(gpu, limits, strict=True)]
    )
    both = (watts[np.newaxis], median[np.newaxis])
    inside = np.zeros(len(watts), dtype=np.bool_)
    return _Evaluation(rows, both, both, len(known), inside, by_board=True)


def _rows(tables: Sequence[GpuRows], *, by_gpu: bool = False) -> Rows:
    """Application rows; groups are programs, or GPUs."""
    return Rows.of(
        np.vstack([table.activities[table.scored] for table in tables]),
        np.concatenate([table.watts[table.scored] for table in tables]),
        np.concatenate(
            [
                np.full(int(table.scored.sum()), table.gpu.id)
                if by_gpu
                else table.programs[table.scored]
                for table in tables
            ]
        ),
    )


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


def _board_width(residuals: Residuals) -> IntervalWidth:
    """Width for a board nobody measured, from residuals of a few boards that were left out.

    Student's prediction interval of one more board, about the boards' mean: the mean squares of
    their residuals have a degree of freedom less than there are boards, since rows of one say
    little more than one row. Eight boards are too few for a 90 % quantile of their own.
    """
    boards = [residuals.logarithms[residuals.groups == one] for one in np.unique(residuals.groups)]
    centre = float(np.mean([rows.mean() for rows in boards]))
    spread = float(np.sqrt(np.mean([np.mean((rows - centre) ** 2) for rows in boards])))
    count = len(boards)
    half = float(student_t.ppf((1 + LEVEL) / 2, count - 1) * spread * np.sqrt(1 + 1 / count))
    return IntervalWidth(
        low_factor=float(np.exp(centre - half)), high_factor=float(np.exp(centre + half))
    )


def _coverage(
    residuals: Residuals,
    floor_watts: float,
    width_of: Callable[[Residuals], Width] = lambda known: conformal_width(known, LEVEL),
) -> Coverage:
    low = np.empty_like(residuals.predicted_watts)
    high = np.empty_like(low)
    for group in np.unique(residuals.groups):
        test = residuals.groups == group
        width = width_of(residuals.take(~test))
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
    gpu_id: str,
    tables: Sequence[GpuRows],
    evaluation: _Evaluation,
    settings: Averaged,
    learned: str,
) -> ModelCard:
    vectors = np.vstack([table.activities for table in tables])
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
                reproduced_note=_note(tables),
            )
            for at, name in enumerate(UnitActivities._fields)
        ),
        training=TrainingFacts(
            rows=len(watts),
            kernels=len({(table.gpu.id, str(label)) for table in tables for label in table.labels}),
            kernel_groups=len(set(programs)),
            power_minimum_watts=float(watts.min()),
            power_median_watts=float(np.median(watts)),
            power_maximum_watts=float(watts.max()),
            fingerprint=fingerprint(vectors, watts, programs),
            dropped={},
            recomputed={},
        ),
        sources=tuple(source_of_table(path) for table in tables for path in table.paths),
        hyperparameters={
            "averaged_settings": len(settings),
            "settings": "; ".join(
                f"micro {one.micro_weight:g}, counted {one.counter_weight:g}, ridge {one.ridge:g}"
                for one in settings
            ),
            "pooled_ridge": settings[0].pooled_ridge,
            "rows_as_served": int(sum((t.real & ~t.counted).sum() for t in tables)),
        },
        libraries=library_versions(("numpy", "scipy")),
        scores=evaluation.scores(),
        intervals=evaluation.intervals(),
        files={PARAMETERS_NAME: "0" * 64},
        created=today(),
        code_revision=code_revision(),
        learned=learned,
    )


def _note(tables: Sequence[GpuRows]) -> str:
    note = "share of the unit's peak at the predicted time"
    if all(table.counted.all() for table in tables):
        return f"fitted on hardware counters, served as {note}"
    return note


def learned_by(tables: Sequence[GpuRows]) -> str:
    """Marks of the programs, by name and, where activities were counted from PTX, by those."""
    marks = {group_mark(str(name)) for table in tables for name in table.programs}
    fields = [field.name for field in activity_schema().fields]
    for gpu in sorted({table.gpu.id for table in tables} & set(ACTIVITY_GPUS)):
        counts = [
            [getattr(one.activity, name) for name in fields] for one in read_served_table(gpu)
        ]
        found = code_marks(SCHEMA, fields, np.array(counts, dtype=np.float64))
        marks |= {mark for mark in found if mark is not None}
    return stored(marks)


def _written(card: ModelCard, parameters: PhysicalParameters, out_dir: Path) -> ModelCard:
    def write(folder: Path) -> None:
        text = parameters.model_dump_json(indent=1) + "\n"
        (folder / PARAMETERS_NAME).write_text(text, "utf-8")

    return write_artifact(card, out_dir, write)


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies fit-physical")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    options = parser.parse_args(arguments)
    cards = train(options.out, lambda line: print(line, file=sys.stderr, flush=True))
    for card in cards:
        for protocol in ("random", "grouped"):
            found = card.score("as_published", protocol)
            print(
                f"{card.gpu} {protocol}: MAPE {found.model['mape_percent'].mean:.1f} % "
                f"(baseline {found.baseline['mape_percent'].mean:.1f} %), "
                f"MAE {found.model['mae_watts'].mean:.1f} W"
            )
    return 0
