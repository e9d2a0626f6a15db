"""Background statistics kept with a model: what LIME perturbs within and SHAP compares to.

Statistics and synthetic points only. The licence of the training data does not allow its rows
to be handed on, so no row of it is stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from wattcast.features.checked import Frozen
from wattcast.features.errors import ModelError

BACKGROUND_NAME = "background.json"


class Bin(Frozen):
    """Training values that fall into one quartile bin of a feature (LIME's discretisation)."""

    index: int = Field(ge=0, le=3)
    count: int = Field(ge=1)
    mean: float
    std: float = Field(ge=0)
    minimum: float
    maximum: float


class FeatureStatistics(Frozen):
    """One feature over the training rows, missing values left out.

    ``quantiles`` are those at 0, 5, ... 100 %; ``bins`` those between the quartiles.
    """

    name: str
    mean: float
    std: float = Field(ge=0)
    quantiles: tuple[float, ...] = Field(min_length=21, max_length=21)
    bins: tuple[Bin, ...] = Field(min_length=1)

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The 25, 50 and 75 % quantiles: edges of the bins."""
        return self.quantiles[5], self.quantiles[10], self.quantiles[15]


class Background(Frozen):
    """Statistics of all features and synthetic points drawn from them.

    ``points`` ``[n, k]`` come from a Gaussian copula with the training rows' rank
    correlation, mapped onto each feature's quantiles and rounded: no training row.
    """

    features: tuple[FeatureStatistics, ...] = Field(min_length=1)
    points: tuple[tuple[float, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rectangular(self) -> Background:
        if any(len(point) != len(self.features) for point in self.points):
            raise ValueError("a point has another length than there are features")
        return self

    def matrix(self) -> NDArray[np.float32]:
        """Synthetic points as ``[n, k]``, in the order of ``features``."""
        return np.array(self.points, dtype=np.float32)


def read_background(content: bytes) -> Background:
    """Read a ``background.json``. Raises ModelError if it does not validate."""
    try:
        return Background.model_validate_json(content)
    except ValidationError as error:
        raise ModelError(f"background statistics {BACKGROUND_NAME}: {error}") from error
