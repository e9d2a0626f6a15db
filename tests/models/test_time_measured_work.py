"""The physical estimate: parts worked by hand, and what must hold on any GPU."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattcast.models.time.measured_work as work_schema_module
from tests.models.time_works import physical_seconds
from wattcast.features.errors import ClockError, LaunchError
from wattcast.features.gpus import list_gpus, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.schemas.tables import hash_of
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.time.measured_work import (
    PARTS,
    Work,
    combined_seconds,
    p_norm,
    part_seconds,
    unit_seconds,
    work_schema,
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
