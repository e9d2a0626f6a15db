"""The physical estimate: parts worked by hand, and what must hold on any GPU."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattcast.models.time.measured_work as work_schema_module
from tests.models.time_works import physical_seconds
from wattcast.features.errors import ClockError, LaunchError, ModelError
from wattcast.features.gpus import list_gpus, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.schemas.tables import hash_of
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.store import ArtifactStore
from wattcast.models.time.calibration import TimeCard
from wattcast.models.time.measured_work import (
    PARTS,
    Runtime,
    Work,
    combined_seconds,
    p_norm,
    part_seconds,
    unit_seconds,
    work_schema,
)
from wattcast.models.time.work_model import (
    REFERENCE_GPU,
    WorkTimeModel,
    log_factors,
    work_inputs,
    work_parts,
    work_time_model,
)

RTX_3080 = load_gpu("rtx-3080")

BASE = ClockPair(1440.0, 9501.0)

GPUS = list_gpus()

COUNTS = ("dram_bytes", "int_ops", "flops_sp", "flops_dp")


def work(blocks: int = 68, threads: int = 256, **counts: float) -> Work:
    return Work(Launch.of(blocks, threads), **{"dram_bytes": 0.0, "int_ops": 0.0, **counts})


def test_units_worked_by_hand() -> None:
    # 68 SM at 1.44 GHz, 128 FP32 lanes, 2 FP64 lanes, 4 schedulers, 760 GB/s: one block an SM.
    threads = 68 * 256
    found = unit_seconds(
        work(
            dram_bytes=760e6,
            int_ops=1440.0 * threads,
            flops_sp=2 * 128 * 68 * 1.44e6,
            flops_dp=2 * 2 * 68 * 1.44e6,
        ),
        RTX_3080,
        BASE,
    )
    flops = 2 * (128 + 2) * 68 * 1.44e6
    assert tuple(found) == PARTS
    assert found == pytest.approx(
        {
            "dram": 1e-3,
            "fp32": 1e-3,
            "fp64": 1e-3,
            "issue": (1440 * threads + flops / 2) / (4 * 32 * 68 * 1.44e9),
            "thread": 1e-6,
            "wave": 1e-6,
            "fetch": 760e6 / (68 * 8 * 32) / 1.44e9,
            "blocks": 1 / 1.44e9,
            "launch": 1 / 1.44e9,
        }
    )


def test_the_busiest_sm_is_waited_for() -> None:
    # 69 blocks: one SM runs two of them, where the mean is 69 / 68.
    even, uneven = (
        unit_seconds(work(blocks, flops_sp=1e9, dram_bytes=1e9), RTX_3080, BASE)
        for blocks in (68, 69)
    )
    for part in ("fp32", "dram"):
        assert uneven[part] / even[part] == pytest.approx(2 * 68 / 69)


def test_one_sm_draws_a_sector_a_cycle_while_the_others_idle() -> None:
    found = unit_seconds(work(1, dram_bytes=1e9), RTX_3080, BASE)
    assert found["dram"] == pytest.approx(1e9 / (32 * 1.44e9))


def test_waves_of_resident_blocks() -> None:
    # 1024 threads are 32 of 48 warps: one block an SM, so 69 blocks take two waves.
    one, two = (
        unit_seconds(work(blocks, 1024, int_ops=blocks * 1024 * 100.0), RTX_3080, BASE)
        for blocks in (68, 69)
    )
    assert two["wave"] == pytest.approx(2 * one["wave"])
    assert two["thread"] == pytest.approx(one["thread"])


def test_an_empty_launch_takes_its_start() -> None:
    seconds = physical_seconds(work(1, 1), RTX_3080, BASE)
    assert seconds == pytest.approx(3784 / 1.44e9, rel=0.01)


def test_parts_and_norm_by_hand() -> None:
    parts = np.array([[3.0], [4.0]])
    assert p_norm(parts, 2.0) == pytest.approx([5.0])
    assert p_norm(parts, 1.0) == pytest.approx([7.0])


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "12", None])
def test_a_count_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(LaunchError, match=name) as caught:
        replace(work(), **{name: value})
    assert caught.value.field == name


def test_a_runtime_nobody_knows_is_refused() -> None:
    with pytest.raises(LaunchError, match="'opencl'; it must be one of cuda, openmp, unknown"):
        replace(work(), runtime="opencl")


def test_what_the_gpu_refuses_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"block\.x: 2048"):
        unit_seconds(work(1, 2048), RTX_3080, BASE)
    with pytest.raises(ClockError):
        unit_seconds(work(), RTX_3080, ClockPair(0.0, 9501.0))


counts = st.floats(min_value=0, max_value=1e15)

launches = st.tuples(st.integers(1, 10**6), st.integers(1, 1024))


@settings(max_examples=200)
@given(
    gpu=st.sampled_from(GPUS),
    launch=launches,
    values=st.tuples(counts, counts, counts, counts),
    name=st.sampled_from(COUNTS),
    more=st.floats(min_value=1, max_value=100),
)
def test_more_work_is_never_faster(gpu, launch, values, name, more) -> None:
    base = Work(Launch.of(*launch), **dict(zip(COUNTS, values, strict=True)))
    clocks = default_clocks(gpu)
    seconds = physical_seconds(base, gpu, clocks)
    heavier = physical_seconds(replace(base, **{name: getattr(base, name) * more}), gpu, clocks)
    assert heavier >= seconds * (1 - 1e-12)


@settings(max_examples=100)
@given(gpu=st.sampled_from(GPUS), launch=launches, values=st.tuples(counts, counts, counts, counts))
def test_the_whole_lies_between_the_longest_part_and_their_sum(gpu, launch, values) -> None:
    one = Work(Launch.of(*launch), **dict(zip(COUNTS, values, strict=True)))
    clocks = default_clocks(gpu)
    parts = part_seconds(one, gpu, clocks)
    whole = combined_seconds(parts)
    assert max(parts.values()) * (1 - 1e-12) <= whole <= sum(parts.values()) * (1 + 1e-12)
    twice = ClockPair(2 * clocks.core_mhz, 2 * clocks.memory_mhz)
    assert physical_seconds(one, gpu, twice) == pytest.approx(whole / 2)


def test_the_schema_holds_a_share_of_every_part_and_the_launch() -> None:
    schema = work_schema()
    shares = tuple(f"{part}_share" for part in PARTS)
    assert schema.inputs == (*shares, "threads_per_block", "blocks", "openmp")
    assert tuple(schema.constants.factors) == PARTS
    for name, factor in schema.constants.factors.items():
        assert factor >= schema.least.factors[name]


def test_the_hash_of_the_schema_covers_the_constants() -> None:
    file = Path(work_schema_module.__file__).with_name("work1.toml")
    raw = tomllib.loads(file.read_text(encoding="utf-8"))
    assert hash_of(raw) == work_schema().sha256
    raw["constants"]["dram"]["value"] = 1.1
    assert hash_of(raw) != work_schema().sha256


# --- Time from measured work as it is served: the packaged artifact, its GPU and others

STORE = ArtifactStore(kind=TimeCard)

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
