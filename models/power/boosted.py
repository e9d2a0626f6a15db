"""Tree power models (XGBoost, CatBoost, their average, extra trees) behind one interface.

Predictions run in ONNX Runtime, which scores one vector an order of magnitude faster than the
native libraries; those load only for ``shap``. The native file stays the
truth: tests hold both to within 0.001 W of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import FeatureVector
from wattcast.models.cards import ModelCard
from wattcast.models.explain import BACKGROUND_NAME, Background
from wattcast.models.intervals import Basis, Estimate
from wattcast.models.power import BOOSTED_FAMILIES
from wattcast.models.store import Artifact, Float32s, Float64s, TreeModel


class BoostedPowerModel:
    """Watts of a kernel launch from its feature vector.

    Vectors are float32 ``[n, k]`` in the order of ``card.feature_names`` (the model fields of
    the schema); NaN is a missing value, allowed only where the training rows miss some too.
    Every method raises ModelError for a vector of another shape or with a forbidden value.
    """

    def __init__(self, artifact: Artifact) -> None:
        card = artifact.card
        if card.family not in BOOSTED_FAMILIES:
            raise ModelError(
                f"{card.family!r} is not a boosted family", known=list(BOOSTED_FAMILIES)
            )
        self.card: ModelCard = card
        singles = artifact.members if card.family == "average" else (artifact,)
        self._singles = tuple(TreeModel(single) for single in singles)
        if not self._singles:
            raise ModelError("an average needs members")
        self.feature_names = card.feature_names
        self._factor = card.watts_factor
        # The range is kept in double precision; compare what the model sees.
        self._minimum = np.array([f.minimum for f in card.features]).astype(np.float32)
        self._maximum = np.array([f.maximum for f in card.features]).astype(np.float32)
        self._may_miss = np.array([f.missing_share > 0 for f in card.features])
        self._with_background = artifact if card.files else artifact.members[0]

    def predict_watts(self, x: ArrayLike) -> Float64s:
        """Power in watts, ``[n]``, for vectors ``[n, k]``, by ONNX Runtime on one thread."""
        return self._watts(self._checked(x))

    def _watts(self, vectors: Float32s) -> Float64s:
        return self._factor * _mean([single.score(vectors) for single in self._singles])

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
        outside = self._outside(self._checked(x))
        return tuple(tuple(self.feature_names[at] for at in np.flatnonzero(row)) for row in outside)

    def _outside(self, vectors: Float32s) -> NDArray[np.bool_]:
        return (vectors < self._minimum) | (vectors > self._maximum)

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
        vectors = self._checked(vectors)
        basis: Basis = "unseen_kernel"
        if self._outside(vectors[:1]).any() or self._novelty.score(vectors[:1])[0] > NOVEL:
            basis = "extrapolated"
        calibration = self.card.intervals
        each = [calibration.estimate(float(w), basis) for w in self._watts(vectors)]
        low = min(part.low for part in each)
        high = max(part.high for part in each)
        return Estimate(each[0].value, low, high, calibration.level, basis)

    @cached_property
    def background(self) -> Background:
        """Statistics for LIME and synthetic points. Raises ModelError if unreadable."""
        return self._with_background.parameters(Background, BACKGROUND_NAME)

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
                    f"feature {self.feature_names[at]} is {vectors[row, at]} in row {row}; "
                    "the model was trained on finite values there",
                    field=self.feature_names[at],
                )
        return vectors


def _mean(parts: list[Float64s]) -> Float64s:
    return np.asarray(sum(parts) / len(parts), dtype=np.float64)


# --- how unlike anything in training a launch is: what a range check of single features cannot
# Each feature is placed among the training rows' quantiles, so that 0 is the least and 1 the
# greatest value seen, and beyond them by the share of the range it lies outside. The novelty of a
# vector is its distance (root mean square over features) to the nearest synthetic point of the
# model's background, in units of what separates such points from each other: 1 is as far as the
# 95th percentile of them. Only summaries are needed; no training row goes with a model.


Floats = NDArray[np.float64]

USUAL = 0.95
"""Share of the synthetic points whose novelty among the others is at most 1."""

NOVEL = 1.5
"""Novelty beyond which an answer counts as extrapolated. On kernels left out of training, launches
above 1 err more than the others on each of three GPUs, by 5 % (K20) to twofold (V100); below it
the error does not follow the score, so that the width does not either (docs/power.md)."""

MOST_OVERSHOOT = 2.0
"""Farthest that one feature counts beyond its range, in ranges: it shall not drown the others."""


class Novelty:
    """Scores vectors ``[n, k]`` against the background of one model."""

    def __init__(self, background: Background) -> None:
        quantiles = np.array([feature.quantiles for feature in background.features], np.float64)
        levels = np.linspace(0, 1, quantiles.shape[1])
        scales = [_distinct(each, levels) for each in quantiles]
        # Row by row, and from the last one on level: inf where a feature has fewer.
        self._knots = np.full(quantiles.shape, np.inf)
        self._knots_at, self._slopes = np.zeros(quantiles.shape), np.zeros(quantiles.shape)
        for row, (values, places) in enumerate(scales):
            self._knots[row, : values.size] = values
            self._knots_at[row, : values.size] = places
            self._slopes[row, : values.size - 1] = np.diff(places) / np.diff(values)
        self._low, self._high = quantiles[:, 0], quantiles[:, -1]
        least = 1e-9 * np.maximum(1.0, np.abs(self._high))
        self._span = np.maximum(self._high - self._low, least)
        self._points = self._places(background.matrix())
        among = _distances(self._points, self._points)
        np.fill_diagonal(among, np.inf)
        unit = float(np.quantile(among.min(axis=1), USUAL)) if len(among) > 1 else 0.0
        self._unit = unit if unit > 0 else 1.0

    def score(self, x: ArrayLike) -> Floats:
        """Novelty ``[n]`` of vectors of the model, ``[n, k]``; a missing value counts as the
        nearest point's own."""
        vectors = np.asarray(x, dtype=np.float64)
        nearest = _distances(self._places(vectors), self._points).min(axis=1)
        return np.asarray(nearest / self._unit)

    def _places(self, vectors: NDArray[np.floating]) -> Floats:
        values = vectors.astype(np.float64)
        within = np.minimum(np.maximum(values, self._low), self._high)
        # As np.interp for each feature, for all at once: a missing value stays one.
        knot = np.maximum((within[..., None] >= self._knots).sum(axis=-1) - 1, 0)
        row = np.arange(len(self._knots))
        inside = self._slopes[row, knot] * (within - self._knots[row, knot])
        inside += self._knots_at[row, knot]
        beyond = np.minimum(np.abs(values - within) / self._span, MOST_OVERSHOOT)
        return np.asarray(inside + np.copysign(beyond, values - within))


def _distinct(quantiles: Floats, levels: Floats) -> tuple[Floats, Floats]:
    """Each quantile once, at the middle of its levels: a constant feature lies at one half."""
    values, index = np.unique(quantiles, return_inverse=True)
    return values, np.bincount(index, weights=levels) / np.bincount(index)


def _distances(one: Floats, other: Floats) -> Floats:
    steps = (one[:, None, :] - other[None, :, :]) ** 2
    sums = steps.sum(axis=-1)
    means = np.nanmean(steps, axis=-1) if np.isnan(sums).any() else sums / steps.shape[-1]
    return np.asarray(np.sqrt(means))


# --- the vector of a power model: features of its schema, and how the launch fills the GPU ----
# A model card names its inputs. Most are fields of the card's feature schema; those of
# ``LAUNCH_FEATURES`` follow from the launch and the GPU. Training and serving both compute them
# here.


LAUNCH_FEATURES = ("launched_threads", "blocks_per_sm", "busy_sm_share", "filled_share")
"""Threads of the launch; its blocks for each SM; share of the SMs that get a block at all; share
of the GPU's thread places that the first wave fills."""


def launch_features(
    grid: ArrayLike, block: ArrayLike, occupancy: ArrayLike, gpu: GpuProfile
) -> dict[str, Floats]:
    """``LAUNCH_FEATURES`` of blocks, threads per block and occupancy (0..1], each ``[n]``.

    An occupancy of NaN counts as 1: it then is the launch alone that bounds what is filled.
    """
    blocks, threads = np.asarray(grid, dtype=np.float64), np.asarray(block, dtype=np.float64)
    places = float(gpu.max_warps_per_sm * 32)
    busy = np.minimum(blocks / gpu.sm_count, 1.0)
    first_wave = np.ceil(blocks / gpu.sm_count) * threads / places
    resident = np.minimum(np.nan_to_num(np.asarray(occupancy, dtype=np.float64), nan=1.0), 1.0)
    return {
        "launched_threads": blocks * threads,
        "blocks_per_sm": blocks / gpu.sm_count,
        "busy_sm_share": busy,
        "filled_share": np.minimum(resident, first_wave) * busy,
    }


def vector_for(vector: FeatureVector, names: Sequence[str], gpu: GpuProfile) -> FeatureVector:
    """The vector with ``names`` as its model inputs, launch features added where they are asked.

    Raises ModelError for a name that is neither a field of the schema nor a launch feature.
    """
    if tuple(names) == vector.model_fields and not set(names) & set(LAUNCH_FEATURES):
        return vector
    values = dict(vector.values)
    launched = launch_features(
        [values["grid_size"]], [values["block_size"]], [values.get("occupancy", np.nan)], gpu
    )
    values |= {name: float(launched[name][0]) for name in names if name in launched}
    for name in names:
        if name not in values:
            raise ModelError(f"schema {vector.schema_id} has no feature {name!r}", field=name)
    return replace(vector, values=values, model_fields=tuple(names))
