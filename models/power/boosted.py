"""Tree power models (XGBoost, CatBoost, their average, extra trees) behind one interface.

Predictions run in ONNX Runtime, which scores one vector an order of magnitude faster than the
native libraries; those load only for ``native_watts`` and ``shap``. The native file stays the
truth: tests hold both to within 0.001 W of each other.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from wattcast.features.errors import ModelError
from wattcast.models.background import BACKGROUND_NAME, Background, read_background
from wattcast.models.cards import ModelCard
from wattcast.models.estimate import Basis, Estimate
from wattcast.models.novelty import NOVEL, Novelty
from wattcast.models.power import BOOSTED_FAMILIES
from wattcast.models.store import Artifact
from wattcast.models.trees import NATIVE_NAMES, ONNX_NAME, Float32s, Float64s, TreeModel

__all__ = ["NATIVE_NAMES", "ONNX_NAME", "BoostedPowerModel"]


class BoostedPowerModel:
    """Watts of a kernel launch from its feature vector.

    Vectors are float32 ``[n, k]`` in the order of ``card.feature_names`` (the model fields of
    the schema); NaN is a missing value, allowed only where the training rows miss some too.
    Every method raises ModelError for a vector of another shape or with a forbidden value.
    """

    def __init__(self, artifact: Artifact) -> None:
        card = artifact.card
        if card.family not in BOOSTED_FAMILIES:
            raise ModelError(f"{card.family!r} is no boosted family", known=list(BOOSTED_FAMILIES))
        self.card: ModelCard = card
        singles = artifact.members if card.family == "average" else (artifact,)
        self._singles = tuple(TreeModel(single) for single in singles)
        if not self._singles:
            raise ModelError("an average needs members")
        self._factor = card.watts_factor
        self._minimum = np.array([f.minimum for f in card.features])
        self._maximum = np.array([f.maximum for f in card.features])
        self._may_miss = np.array([f.missing_share > 0 for f in card.features])
        self._background_file = (artifact if card.files else artifact.members[0]).file(
            BACKGROUND_NAME
        )

    def predict_watts(self, x: ArrayLike) -> Float64s:
        """Power in watts, ``[n]``, for vectors ``[n, k]``, by ONNX Runtime on one thread."""
        vectors = self._checked(x)
        return self._factor * _mean([single.score(vectors) for single in self._singles])

    def native_watts(self, x: ArrayLike) -> Float64s:
        """As ``predict_watts``, by the libraries that trained the model."""
        vectors = self._checked(x)
        return self._factor * _mean([single.native.score(vectors) for single in self._singles])

    def shap(self, x: ArrayLike) -> tuple[float, Float64s]:
        """Exact TreeSHAP (Lundberg et al., 2020): base watts and contributions ``[n, k]``.

        Base plus the contributions of a row is its native prediction, within rounding.
        """
        vectors = self._checked(x)
        if not len(vectors):
            raise ModelError("there is no vector to explain")
        parts = [single.native.shap(vectors) for single in self._singles]
        base = sum(part[0] for part in parts) / len(parts)
        return self._factor * base, self._factor * _mean([part[1] for part in parts])

    def outside_training_range(self, x: ArrayLike) -> tuple[tuple[str, ...], ...]:
        """Per row, the features whose value the training rows do not span."""
        vectors = self._checked(x)
        # The range is kept in double precision; compare what the model sees.
        low, high = self._minimum.astype(np.float32), self._maximum.astype(np.float32)
        outside = (vectors < low) | (vectors > high)
        names = self.card.feature_names
        return tuple(tuple(names[at] for at in np.flatnonzero(row)) for row in outside)

    def novelty(self, x: ArrayLike) -> Float64s:
        """How unlike the training rows vectors ``[n, k]`` are, ``[n]``; 1 is unusual."""
        return self._novelty.score(self._checked(x))

    @cached_property
    def _novelty(self) -> Novelty:
        return Novelty(self.background)

    def estimate(self, x: ArrayLike, alternatives: ArrayLike | None = None) -> Estimate:
        """Power with its interval for one vector ``[k]``.

        ``alternatives`` ``[m, k]`` are vectors the truth may be instead (an uncertain register
        count, say): the interval spans theirs too. The basis is ``extrapolated`` when ``x``
        leaves the training range or is too unlike anything in training (``models.novelty``),
        else ``unseen_kernel``: a model alone claims no more.
        """
        vectors = np.atleast_2d(np.asarray(x, dtype=np.float32))
        if len(vectors) != 1:
            raise ModelError(f"an estimate is for one vector, not {len(vectors)}")
        if alternatives is not None:
            others = np.asarray(alternatives, dtype=np.float32).reshape(-1, vectors.shape[1])
            vectors = np.vstack([vectors, others])
        basis: Basis = "unseen_kernel"
        if any(self.outside_training_range(vectors[:1])) or self.novelty(vectors[:1])[0] > NOVEL:
            basis = "extrapolated"
        calibration = self.card.intervals
        each = [calibration.estimate(float(w), basis) for w in self.predict_watts(vectors)]
        low = min(part.low for part in each)
        high = max(part.high for part in each)
        return Estimate(each[0].value, low, high, calibration.level, basis)

    @cached_property
    def background(self) -> Background:
        """Statistics for LIME and synthetic points. Raises ModelError if unreadable."""
        return read_background(self._background_file)

    def warm_up(self) -> None:
        """Create the ONNX sessions now rather than at the first prediction."""
        for single in self._singles:
            _ = single.session
        _ = self._novelty

    def _checked(self, x: ArrayLike) -> Float32s:
        vectors = np.ascontiguousarray(x, dtype=np.float32)
        width = len(self._may_miss)
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise ModelError(f"vectors must be [n, {width}], not {list(vectors.shape)}")
        if not np.isfinite(vectors).all():
            bad = np.isinf(vectors) | (np.isnan(vectors) & ~self._may_miss)
            if bad.any():
                row, at = (int(i) for i in np.argwhere(bad)[0])
                raise ModelError(
                    f"feature {self.card.feature_names[at]} is {vectors[row, at]} in row {row}; "
                    "the model was trained on finite values there",
                    field=self.card.feature_names[at],
                )
        return vectors


def _mean(parts: list[Float64s]) -> Float64s:
    return np.asarray(sum(parts) / len(parts), dtype=np.float64)
