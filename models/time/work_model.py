"""Time of a launch from its measured work, with what measurements taught about one GPU.

On the GPU of an artifact, boosted trees correct the physical estimate of ``measured_work`` (they
predict the logarithm of measured over physical time); on any other GPU the physical estimate
stands alone, basis ``uncalibrated``. ONNX Runtime scores the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp

import numpy as np

from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, clock_distance, default_clocks
from wattcast.models.explain import BACKGROUND_NAME, Background
from wattcast.models.intervals import Basis
from wattcast.models.store import Artifact, ArtifactStore, Float32s, Float64s, TreeModel
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.calibration import TimeCard
from wattcast.models.time.measured_work import (
    PARTS,
    SCHEMA_ID,
    Runtime,
    Work,
    combined_seconds,
    facts_of,
    p_norm,
    part_seconds,
    work_schema,
)

TARGET = "time"
FAMILY = "catboost"
REFERENCE_GPU = "rtx-3080"
"""GPU whose artifact answers for GPUs without one: its card knows the physical estimate's error."""

LEAST_SHARE = 1e-6
"""Below it a part counts for nothing, and its logarithm for no less."""

_OPENMP: Mapping[Runtime, float] = {"cuda": 0.0, "openmp": 1.0, "unknown": float("nan")}
_REGIMES: Mapping[str, Regime] = {
    "dram": "memory",
    "fp32": "compute",
    "fp64": "compute",
    "issue": "compute",
    "launch": "launch",
}


def work_inputs(works: Sequence[Work], parts: Float64s, norm: float) -> Float32s:
    """The inputs of schema ``work1``, ``[n, k]``, from the seconds of ``PARTS``, ``[9, n]``.

    An unknown runtime is NaN.
    """
    shares = np.log(np.maximum(parts / p_norm(parts, norm), LEAST_SHARE))
    launches = [
        (work.launch.threads_per_block, work.launch.blocks, _OPENMP[work.runtime]) for work in works
    ]
    return np.vstack([shares, np.array(launches).T]).T.astype(np.float32)


def work_parts(works: Sequence[Work], gpu: GpuProfile, clocks: ClockPair) -> Float64s:
    """Seconds of ``PARTS``, ``[9, n]``; column i is ``part_seconds`` of work i."""
    each = [list(part_seconds(work, gpu, clocks).values()) for work in works]
    return np.array(each, dtype=np.float64).reshape(-1, len(PARTS)).T


def log_factors(score: Callable[[Float32s], Float64s], vectors: Float32s) -> Float64s:
    """ln(time / physical estimate), ``[n]``, of vectors ``[n, k]`` that trees ``score``.

    An unknown runtime counts as the mean of both: no training row is without one.
    """
    unknown = np.isnan(vectors[:, -1])
    sides = [np.where(unknown, side, vectors[:, -1]) for side in (0.0, 1.0)]
    each = [score(np.column_stack([vectors[:, :-1], side]).astype(np.float32)) for side in sides]
    return np.asarray((each[0] + each[1]) / 2, dtype=np.float64)


class WorkTimeModel:
    """Seconds from measured work, on every GPU; ``artifact`` teaches it one of them.

    Raises ModelError for an artifact of another schema.
    """

    family = "work"

    def __init__(self, artifact: Artifact[TimeCard]) -> None:
        card = artifact.card
        if card.feature_schema.id != SCHEMA_ID or card.feature_names != work_schema().inputs:
            raise ModelError(f"the {card.gpu} time model takes other inputs than {SCHEMA_ID}")
        self.card = card
        self.trees = TreeModel(artifact)
        self._artifact = artifact
        self._low = np.array([f.minimum for f in card.features], dtype=np.float32)
        self._high = np.array([f.maximum for f in card.features], dtype=np.float32)

    @property
    def measured_clocks(self) -> ClockPair:
        """What the artifact's launches were measured at."""
        return ClockPair(self.card.clocks.core_mhz, self.card.clocks.memory_mhz)

    @property
    def background(self) -> Background:
        """Statistics of the training inputs. Raises ModelError if unreadable."""
        return self._artifact.parameters(Background, BACKGROUND_NAME)

    def predict(
        self, work: Work, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of a launch at ``clocks``, or at the profile's default ones.

        ``parts`` are the seconds of ``measured_work.PARTS``, bounds that a p-norm combines, and
        on the artifact's GPU ``correction``: predicted less combined seconds. At clocks other
        than the measured ones the prediction scales as the physical estimate does, and the
        interval grows by as much as full dependence on either clock could be wrong. Raises
        LaunchError for a launch the GPU refuses, ClockError for clocks that are not above 0,
        ModelError where the GPU's profile is not the one the artifact was trained with.
        """
        pair = clocks or default_clocks(gpu)
        parts = part_seconds(work, gpu, pair)
        physical = combined_seconds(parts)
        seconds, slack = physical, 1.0
        basis: Basis = "uncalibrated"
        if gpu.id == self.card.gpu:
            factor, basis = self._learned(work, gpu)
            seconds = physical * factor
            slack = exp(clock_distance(pair, self.measured_clocks))
            parts["correction"] = seconds - physical
        return TimePrediction(
            family=self.family,
            estimate=self.card.intervals.estimate(seconds, basis, slack),
            clocks=pair,
            parts=parts,
            regime=_REGIMES.get(max(PARTS, key=lambda name: parts[name]), "latency"),
        )

    def warm_up(self) -> None:
        """Create the ONNX session now rather than at the first prediction."""
        _ = self.trees.session

    def _learned(self, work: Work, gpu: GpuProfile) -> tuple[float, Basis]:
        self._check(gpu)
        # The correction belongs to the clocks measured at: physics takes it to others.
        parts = work_parts([work], gpu, self.measured_clocks)
        vectors = work_inputs([work], parts, work_schema().constants.norm)
        outside = (vectors < self._low) | (vectors > self._high)  # NaN is neither
        basis: Basis = "extrapolated" if outside.any() else "unseen_kernel"
        return exp(float(log_factors(self.trees.score, vectors)[0])), basis

    def _check(self, gpu: GpuProfile) -> None:
        for name, value in facts_of(gpu).items():
            trained = self.card.gpu_facts.get(name)
            if value != trained:
                raise ModelError(
                    f"{gpu.id}: {name} is {value:g}, the time model was trained with {trained}; "
                    "train it again",
                    gpu=gpu.id,
                    field=name,
                )


def work_time_model(store: ArtifactStore[TimeCard], gpu_id: str) -> WorkTimeModel:
    """The model that answers for a GPU: its own, else that of ``REFERENCE_GPU``.

    Raises ModelError where the one chosen is missing or fails a check.
    """
    own = any(
        (card.gpu, card.family, card.feature_schema.id) == (gpu_id, FAMILY, SCHEMA_ID)
        for card in store.list()
    )
    gpu = gpu_id if own else REFERENCE_GPU
    return WorkTimeModel(store.find(gpu, TARGET, FAMILY, SCHEMA_ID))
