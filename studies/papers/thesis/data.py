"""The rows of the study, what the thesis prints (``printed.toml``), and how models are judged."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from studies.evaluation import cross_validate
from studies.fitting.out_of_fold import FitPredict, OutOfFold
from studies.fitting.trees.tables import THESIS_FILES
from wattcast.features.errors import DataError
from wattcast.models.cards import ScoreName, Spread
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.evaluation.scores import Floats, Protocol, Rows

# --- A model judged by both protocols on the same folds as its baseline, an --------------------


ASSIGNMENTS = 2
"""Seeded fold assignments unless asked otherwise: the whole study in a few minutes."""
PROTOCOLS: tuple[Protocol, ...] = ("random", "grouped")
LEFT_OUT: Mapping[Protocol, str] = {"random": "rows", "grouped": "kernels"}
"""What each protocol leaves out, in words."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How thoroughly to judge: seeded fold assignments, fits at a time, and who is told."""

    assignments: int = ASSIGNMENTS
    jobs: int = 2
    progress: Progress = lambda line: None

    @property
    def seeds(self) -> range:
        """Seeds of the fold assignments."""
        return range(self.assignments)


@dataclass(frozen=True)
class Judged:
    """Out-of-fold predictions of one model: rows left out at random, and whole kernels."""

    model: str
    random: OutOfFold
    grouped: OutOfFold

    def by(self, protocol: Protocol) -> OutOfFold:
        """Predictions of one protocol."""
        return self.random if protocol == "random" else self.grouped

    def scores(self, protocol: Protocol) -> Mapping[ScoreName, Spread]:
        """Mean and spread over fold assignments."""
        return self.by(protocol).scores()

    def median(self, protocol: Protocol) -> Mapping[ScoreName, Spread]:
        """The same of the training rows' median power as the prediction for everything."""
        return self.by(protocol).baseline_scores()


def judge(model: str, rows: Rows, fit_predict: FitPredict, effort: Effort) -> Judged:
    """Predict every row by fits that did not see it (random), nor its kernel (grouped)."""
    found = {
        protocol: cross_validate(rows, fit_predict, protocol, effort.seeds, jobs=effort.jobs)
        for protocol in PROTOCOLS
    }
    return Judged(model, found["random"], found["grouped"])


def text(value: Spread, name: ScoreName) -> str:
    """A score: mean ± spread over fold assignments, the mean alone where there is no spread."""
    if value.std == 0 or abs(value.mean) >= 1000:
        return mean(value, name)
    digits = 3 if name == "r2" else 2
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def mean(value: Spread, name: ScoreName) -> str:
    """The mean alone. Scores beyond all measure lose digits."""
    digits = 3 if name == "r2" else 2
    return f"{value.mean:.{digits}f}" if abs(value.mean) < 1000 else f"{value.mean:.1e}"


def beside_median(judged: Judged, protocol: Protocol, name: ScoreName) -> str:
    """A score with that of the training rows' median in brackets."""
    median = judged.median(protocol)[name]
    return f"{text(judged.scores(protocol)[name], name)} ({mean(median, name)})"


# --- The figures that the thesis prints of its power study (printed.toml),  --------------------


PRINTED_FILE = Path(__file__).with_name("printed.toml")


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scores(_Facts):
    """Scores as Tables 5.3, 5.8 and 5.11 have them; errors in watts."""

    r2: float
    rmse_watts: float
    mae_watts: float


class RepeatedScores(_Facts):
    """Table 5.9: mean and spread over runs; errors in watts and percent."""

    r2: tuple[float, float]
    rmse_watts: tuple[float, float]
    mae_watts: tuple[float, float]
    mape_percent: tuple[float, float]


class Correlation(_Facts):
    """A correlation coefficient of two features."""

    one: str
    other: str
    kind: Literal["pearson", "kendall"]
    value: float


class Printed(_Facts):
    """The whole file; GPU ids and names of models and dwarfs are this repository's."""

    correlations: tuple[Correlation, ...]
    table_5_4: tuple[str, ...]
    table_5_8: dict[str, dict[str, Scores]]
    table_5_9: dict[str, RepeatedScores]
    table_5_12: dict[str, dict[str, float]]


@cache
def printed() -> Printed:
    """The thesis' figures. Raises DataError if the file is not as it should be."""
    try:
        return Printed.model_validate(tomllib.loads(PRINTED_FILE.read_text("utf-8")))
    except ValidationError as error:
        raise DataError(f"{PRINTED_FILE.name}: {error}", file=PRINTED_FILE.name) from error


# --- The rows of the study: the thesis' three files, cleaned, with the feat --------------------


def study_tables(
    gpus: Sequence[str] = tuple(THESIS_FILES), root: Path | None = None
) -> dict[str, pd.DataFrame]:
    """GPU id -> its cleaned rows as published, without those that drew idle power.

    Raises DataError for missing or defective data.
    """
    return {gpu: clean(THESIS_FILES[gpu], root).training_rows for gpu in gpus}


def rows_of(frame: pd.DataFrame, features: Sequence[str] = MODEL_INPUTS) -> Rows:
    """Rows of chosen columns, grouped by kernel group."""
    return Rows.of(
        frame[list(features)].to_numpy(float),
        frame["power_w"].to_numpy(float),
        frame["kernel_group"].to_numpy(),
    )


def median_filled(vectors: Floats) -> Floats:
    """Vectors ``[n, k]`` with the column's median where a value is missing."""
    return np.where(np.isnan(vectors), np.nanmedian(vectors, axis=0), vectors)
