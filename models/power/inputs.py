"""The vector of a power model: features of its schema, and how the launch fills the GPU.

A model card names its inputs. Most are fields of the card's feature schema; those of
``LAUNCH_FEATURES`` follow from the launch and the GPU. Training and serving both compute them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import FeatureVector

Floats = NDArray[np.float64]

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
