"""Extra trees on the rows of several GPUs: the power model for kernels nobody measured.

A GPU with 25 measured kernels tells little of a 26th; the same kernels and others ran on further
GPUs. Their rows join the training, their power carried over on a logarithmic scale from the
least power measured there to the board's limit. What is left out of the GPU's own rows for a
test is left out of all of them, so that no score knows the kernel from another board. Kernels
with many launches are weighted down: a new kernel resembles a kernel, not a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features.gpus import load_gpu
from wattcast.models.power.boosted import NATIVE_NAMES, ONNX_NAME
from wattcast.training.evaluation.splits import Fit, Floats, Predict, Rows
from wattcast.training.forests import SETTINGS, Forest, as_booster, grow

FAMILY = "extratrees"
LIBRARIES = ("scikit-learn", "xgboost")

ROWS_PER_KERNEL_POWER = 0.75
"""A row's weight is its kernel group's number of rows to minus this: 0 counts rows, 1 counts
kernels, which makes everything of the one row that some kernels have."""

PEER_WEIGHT = 0.5
"""Weight of another GPU's row beside an own one."""

Names = NDArray[np.str_]


@dataclass(frozen=True)
class Part:
    """Rows of one GPU: vectors ``[n, k]``, watts and names of kernel groups ``[n]``."""

    gpu: str
    vectors: Floats
    watts: Floats
    groups: Names

    @property
    def limit_watts(self) -> float:
        """The board's power limit."""
        return load_gpu(self.gpu).tdp_watts


def pooled_fit(
    own: Part,
    peers: Sequence[Part] = (),
    *,
    share: float = 1.0,
    settings: Mapping[str, Any] = SETTINGS,
) -> Fit:
    """Fits on training rows of ``own`` and those of ``peers`` whose kernels are not left out.

    Training rows are rows of ``own`` with groups numbered as in ``Rows.of``: a group without
    one is left out of the peers, too. ``share`` of the answer is the trees'; the rest is the
    median of the training rows' kernels. Known rows of a test are not used: anchoring is for them.
    """
    names = np.unique(own.groups)

    def fit(train: Rows) -> Predict:
        groups = names[train.groups]
        part = Part(own.gpu, train.vectors, train.watts, groups)
        without = left_out(names, groups)
        fitted = fit_pooled(part, peers, without, share=share, settings=settings)

        def predict(known: Rows, test: Rows) -> Floats:
            return fitted.predict(filled(test.vectors, train.vectors))

        return predict

    return fit


def left_out(names: Names, groups: Names) -> frozenset[str]:
    """The names that no group has."""
    return frozenset(names.tolist()) - frozenset(groups.tolist())


def fit_pooled(
    own: Part,
    peers: Sequence[Part],
    without: frozenset[str] = frozenset(),
    *,
    share: float = 1.0,
    settings: Mapping[str, Any] = SETTINGS,
) -> Forest:
    """Trees on all rows of ``own`` and the rows of ``peers`` of no kernel group in ``without``."""
    floor, limit = float(own.watts.min()), own.limit_watts
    vectors, targets, weights = [own.vectors], [np.log(own.watts)], [_weights(own.groups)]
    for peer in peers:
        kept = ~np.isin(peer.groups, list(without))
        low = float(peer.watts.min())
        place = np.log(peer.watts[kept] / low) / np.log(peer.limit_watts / low)
        vectors.append(peer.vectors[kept])
        targets.append(np.log(floor) + place * np.log(limit / floor))
        weights.append(PEER_WEIGHT * _weights(peer.groups[kept]))
    everything = np.concatenate(vectors)
    return grow(
        filled(everything, everything),
        np.concatenate(targets),
        np.concatenate(weights),
        centre_watts=_kernel_median(own),
        share=share,
        settings=settings,
    )


def save(forest: Forest, folder: Path, features: int) -> None:
    """Write the native and the ONNX file into ``folder``."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = as_booster(forest, features)
    booster.save_model(folder / NATIVE_NAMES[FAMILY])
    inputs = [("features", FloatTensorType([None, features]))]
    converted = onnxmltools.convert_xgboost(booster, name=FAMILY, initial_types=inputs)
    (folder / ONNX_NAME).write_bytes(converted.SerializeToString())


def hyperparameters(
    peers: Sequence[Part], share: float, settings: Mapping[str, Any] = SETTINGS
) -> dict[str, Any]:
    """What a card says of the fit."""
    return {
        **settings,
        "rows_per_kernel_power": ROWS_PER_KERNEL_POWER,
        "peers": ", ".join(peer.gpu for peer in peers),
        "peer_weight": PEER_WEIGHT,
        "share_of_trees": share,
    }


def _weights(groups: Names) -> Floats:
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    weights = counts[index] ** -ROWS_PER_KERNEL_POWER
    return np.asarray(weights / weights.mean()) if len(weights) else np.zeros(0)


def _kernel_median(part: Part) -> float:
    medians = [np.median(part.watts[part.groups == name]) for name in np.unique(part.groups)]
    return float(np.median(medians))


def filled(vectors: Floats, like: Floats) -> Floats:
    """Missing values as the median of ``like``'s; a feature that ``like`` never has is 0."""
    if not np.isnan(vectors).any():
        return vectors
    present = ~np.isnan(like).all(axis=0)
    medians = np.zeros(like.shape[1])
    medians[present] = np.nanmedian(like[:, present], axis=0)
    return np.where(np.isnan(vectors), medians, vectors)
