"""The figures that the thesis prints of its power study (``printed.toml``), validated."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from wattcast.features.errors import DataError

PRINTED_FILE = Path(__file__).with_name("printed.toml")

Schedule = Literal["uniform", "exponential", "inverse time"]
Size = Literal["smaller", "larger"]
"""The thesis' two data sets of Tesla K20."""


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


class Trained(_Facts):
    """A network of Table 5.6: epochs it was trained for and the R2 it reached."""

    epochs: int
    r2: float


class Network(_Facts):
    """A row of Table 5.6."""

    features: Literal["engineering", "automatic"]
    layers: tuple[int, int, int]
    schedule: Schedule
    rate: float
    smaller: Trained
    larger: Trained

    def trained(self, size: Size) -> Trained:
        """What it reached on one of the two data sets."""
        return self.smaller if size == "smaller" else self.larger


class Linear(_Facts):
    """Section 5.7."""

    linear_r2: float


class Cost(_Facts):
    """A column of Table 5.10: memory in MiB, time in seconds, features by importance."""

    memory_mib: dict[Size, float]
    seconds: dict[Size, float]
    ranking: tuple[str, ...]


class Outliers(_Facts):
    """Section 5.8.2: outliers found, and the rows they were found among."""

    outliers: int
    rows: int


class Compared(_Facts):
    """A row of Table 6.2: measured and predicted microseconds and watts."""

    kernel: str
    actual_us: float
    predicted_us: float
    actual_watts: float
    predicted_watts: float


class Printed(_Facts):
    """The whole file; GPU ids and names of models and dwarfs are this repository's."""

    table_5_3: dict[str, Scores]
    correlations: tuple[Correlation, ...]
    table_5_6: tuple[Network, ...]
    section_5_7: Linear
    table_5_8: dict[str, dict[str, Scores]]
    table_5_9: dict[str, RepeatedScores]
    table_5_10: dict[str, Cost]
    section_5_8_2: Outliers
    table_5_11: dict[str, Scores]
    table_5_12: dict[str, dict[str, float]]
    appendix_table_1: dict[str, dict[str, float]]
    table_6_2: tuple[Compared, ...]


@cache
def printed() -> Printed:
    """The thesis' figures. Raises DataError if the file is not as it should be."""
    try:
        return Printed.model_validate(tomllib.loads(PRINTED_FILE.read_text("utf-8")))
    except ValidationError as error:
        raise DataError(f"{PRINTED_FILE.name}: {error}", file=PRINTED_FILE.name) from error
