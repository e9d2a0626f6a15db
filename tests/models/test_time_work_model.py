"""Time from measured work as it is served: the packaged artifact, its GPU and others."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from tests.models.time_works import physical_seconds
from wattcast.features.errors import ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.models.clocks import ClockPair
from wattcast.models.store import ArtifactStore
from wattcast.models.time.calibration import TimeCard
from wattcast.models.time.measured_work import PARTS, Runtime, Work, work_schema
from wattcast.models.time.work_model import (
    REFERENCE_GPU,
    WorkTimeModel,
    log_factors,
    work_inputs,
    work_parts,
    work_time_model,
)

STORE = ArtifactStore(kind=TimeCard)
RTX_3080 = load_gpu("rtx-3080")
V100 = load_gpu("tesla-v100")


@pytest.fixture(scope="module")
def model() -> WorkTimeModel:
    return work_time_model(STORE, "rtx-3080")


def saxpy(runtime: Runtime = "cuda", blocks: int = 65536) -> Work:
    """One element a thread: 12 bytes, two flops, a few integer operations."""
    threads = blocks * 256.0
    return Work(Launch.of(blocks, 256), 12 * threads, 6 * threads, 2 * threads, runtime=runtime)


def test_the_packaged_artifact_passes_its_checks(model: WorkTimeModel) -> None:
    assert STORE.problems() == ()
    assert model.card.feature_names == work_schema().inputs
    assert (model.card.gpu, model.card.target) == ("rtx-3080", "time")
    model.warm_up()


def test_onnx_scores_as_the_native_model(model: WorkTimeModel) -> None:
    points = model.background.matrix()
    scored = log_factors(model.trees.score, points)
    assert np.abs(scored - log_factors(model.trees.native.score, points)).max() < 1e-5
    assert np.ptp(scored) > 0.1


def test_a_stream_at_the_measured_clocks(model: WorkTimeModel) -> None:
    work, clocks = saxpy(), model.measured_clocks
    found = model.predict(work, RTX_3080, clocks)
    assert found.estimate.basis == "unseen_kernel"
    assert found.regime == "memory"
    # It cannot beat the bandwidth, and a stream reaches most of it.
    assert 1 < found.estimate.value / (work.dram_bytes / 760e9) < 2
    assert tuple(found.parts) == (*PARTS, "correction")
    assert found.parts["correction"] == pytest.approx(
        found.estimate.value - physical_seconds(work, RTX_3080, clocks)
    )


def test_an_unknown_runtime_lies_between_the_known_ones(model: WorkTimeModel) -> None:
    cuda, openmp, unknown = (
        model.predict(saxpy(runtime, 512), RTX_3080, model.measured_clocks).estimate.value
        for runtime in ("cuda", "openmp", "unknown")
    )
    assert cuda != openmp
    assert unknown == pytest.approx(sqrt(cuda * openmp), rel=1e-6)


def test_another_gpu_gets_the_physical_estimate_alone(model: WorkTimeModel) -> None:
    clocks = ClockPair(1380.0, 877.0)
    found = model.predict(saxpy(), V100, clocks)
    assert found.estimate.basis == "uncalibrated"
    assert found.estimate.value == pytest.approx(physical_seconds(saxpy(), V100, clocks))
    assert "correction" not in found.parts
    own = model.predict(saxpy(), RTX_3080, model.measured_clocks).estimate
    assert found.estimate.high / found.estimate.value > 1.5 * own.high / own.value


def test_default_clocks_are_the_profiles(model: WorkTimeModel) -> None:
    assert model.predict(saxpy(), V100).clocks == (V100.core_mhz, V100.memory_mhz)


def test_other_clocks_scale_as_physics_does_and_widen(model: WorkTimeModel) -> None:
    work, base = saxpy(blocks=64), model.measured_clocks
    faster = ClockPair(base.core_mhz * 1.2, base.memory_mhz)
    there, here = (model.predict(work, RTX_3080, pair).estimate for pair in (faster, base))
    expected = physical_seconds(work, RTX_3080, faster) / physical_seconds(work, RTX_3080, base)
    assert there.value / here.value == pytest.approx(expected)
    assert there.high / there.value == pytest.approx(1.2 * here.high / here.value)
    assert there.low / there.value == pytest.approx(here.low / here.value / 1.2)


def test_outside_the_training_range_the_interval_says_so(model: WorkTimeModel) -> None:
    huge = Work(Launch.of(2**31 - 1, 32), 1e12, 1e12)
    found = model.predict(huge, RTX_3080, model.measured_clocks).estimate
    inside = model.predict(saxpy(), RTX_3080, model.measured_clocks).estimate
    assert found.basis == "extrapolated"
    assert found.high / found.value >= (inside.high / inside.value) ** 1.499


def test_a_profile_other_than_trained_with_is_refused(model: WorkTimeModel) -> None:
    chip = RTX_3080.chip
    count = chip.sm_count.model_copy(update={"value": 70})
    other = RTX_3080.model_copy(update={"chip": chip.model_copy(update={"sm_count": count})})
    with pytest.raises(ModelError, match="sm_count is 70, the time model was trained with 68"):
        model.predict(saxpy(), other)


def test_inputs_are_shares_of_the_physical_estimate(model: WorkTimeModel) -> None:
    work, clocks = saxpy(), model.measured_clocks
    parts = work_parts([work], RTX_3080, clocks)
    vector = work_inputs([work], parts, work_schema().constants.norm)[0]
    whole = physical_seconds(work, RTX_3080, clocks)
    assert vector[0] == pytest.approx(log(parts[0, 0] / whole), rel=1e-6)
    assert vector[2] == pytest.approx(log(1e-6))  # no double precision at all
    assert vector[-3:].tolist() == [256, 65536, 0]
    assert exp(vector[0]) > 0.5


def test_gpus_without_an_artifact_use_the_reference(tmp_path: Path) -> None:
    assert work_time_model(STORE, "tesla-v100").card.gpu == REFERENCE_GPU
    with pytest.raises(ModelError, match="no catboost time model for rtx-3080"):
        work_time_model(ArtifactStore([tmp_path], kind=TimeCard), "tesla-v100")


def test_seen_kernel_is_not_the_models_to_claim(model: WorkTimeModel) -> None:
    with pytest.raises(ModelError, match="seen_kernel"):
        model.card.intervals.estimate(1e-3, "seen_kernel")


def test_the_card_holds_every_protocol_beside_the_other_ways(model: WorkTimeModel) -> None:
    for protocol in ("program", "port", "random"):
        scores = model.card.score(protocol)
        assert set(scores.others) == {"physical", "roofline", "nearest launch", "median time"}
    program = model.card.score("program").model
    assert program["median_ape_percent"].mean <= 30
    assert program["within_factor_2_share"].mean >= 0.78
    unseen = model.card.intervals.unseen_kernel
    assert unseen.launches is not None
    assert 0.87 <= unseen.launches <= 0.95
