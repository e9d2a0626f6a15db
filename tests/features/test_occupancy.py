"""Theoretical occupancy and the launches a GPU refuses.

The golden values are worked out by hand from the rules of NVIDIA's occupancy calculator; the
comment beside each shows how. (48,000 random cases on all 16 capabilities were compared with
cuda_occupancy.h of CUDA 13.0 when this was written: no difference.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tables import rows
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.loader import capabilities
from wattcast.features.launch import Launch
from wattcast.features.occupancy import check_launch, occupancy, waves

CAPABILITIES = tuple(capabilities())


@lru_cache
def gpu_of(capability: str) -> GpuProfile:
    """Some GPU with the limits of a capability (limits are all that occupancy looks at)."""
    return load_gpu("tesla-v100").model_copy(
        update={
            "id": f"gpu-{capability}",
            "compute_capability": capability,
            "capability": capabilities()[capability],
        }
    )


# capability, block, registers, static, dynamic -> blocks per SM, warps per SM, limiter
GOLDEN = rows("occupancy", "golden")


@pytest.mark.parametrize("row", GOLDEN)
def test_golden_values(row: tuple[Any, ...]) -> None:
    capability, block, registers, static, dynamic, blocks, warps, limiter = row
    gpu = gpu_of(capability)
    found = occupancy(gpu, Launch.of(1000, block, dynamic), registers, static)
    assert found.resident_blocks_per_sm == blocks
    assert found.resident_warps_per_sm == warps
    assert found.limiter == limiter
    assert found.occupancy == warps / gpu.max_warps_per_sm


def test_every_limit_is_reported() -> None:
    found = occupancy(load_gpu("v100"), Launch.of(1, 128, 1024), 64, 1024)
    assert dict(found.limits) == {
        "blocks": 32,
        "warps": 16,
        "registers": 8,
        "shared_memory": 48,
    }
    without = occupancy(load_gpu("v100"), Launch.of(1, 128), 0, 0)
    assert dict(without.limits) == {"blocks": 32, "warps": 16}


@pytest.mark.parametrize(
    ("blocks", "expected"), [(1, 1), (104, 1), (105, 2), (208, 2), (209, 3), (10**6, 9616)]
)
def test_waves(blocks: int, expected: int) -> None:
    gpu = load_gpu("tesla-k20")  # 13 SMs, 8 blocks of 256 threads each
    launch = Launch.of(blocks, 256)
    assert waves(gpu, launch, occupancy(gpu, launch, 24, 0)) == expected


capability_ids = st.sampled_from(CAPABILITIES)
threads = st.integers(1, 1024)
register_counts = st.integers(1, 63)


@settings(deadline=None)  # a busy machine is no failure
@given(capability_ids, threads, register_counts, st.integers(0, 49152), st.integers(0, 49152))
def test_resident_work_stays_within_every_limit(
    capability: str, block: int, registers: int, static: int, dynamic: int
) -> None:
    gpu = gpu_of(capability)
    launch = Launch.of(1, block, dynamic)
    try:
        found = occupancy(gpu, launch, registers, static)
    except LaunchError:
        return
    blocks = found.resident_blocks_per_sm
    assert 1 <= blocks <= gpu.max_blocks_per_sm
    assert blocks == min(found.limits.values()) == found.limits[found.limiter]
    assert found.resident_warps_per_sm == blocks * launch.warps_per_block <= gpu.max_warps_per_sm
    assert blocks * launch.warps_per_block * 32 * registers <= gpu.registers_per_sm
    reserved = gpu.capability.reserved_shared_bytes_per_block
    assert blocks * (static + dynamic + reserved) <= gpu.shared_bytes_per_sm
    assert 0 < found.occupancy <= 1


@settings(deadline=None)  # a busy machine is no failure
@given(
    capability_ids, threads, register_counts, st.integers(0, 63), st.integers(0, 49152), st.data()
)
def test_more_registers_or_shared_memory_never_make_more_blocks_resident(
    capability: str, block: int, registers: int, more: int, shared: int, data: st.DataObject
) -> None:
    gpu, launch = gpu_of(capability), Launch.of(1, block)
    less = data.draw(st.integers(0, shared))
    try:
        with_more = occupancy(gpu, launch, registers + more, shared)
    except LaunchError:
        return
    with_less = occupancy(gpu, launch, registers, less)
    assert with_more.resident_blocks_per_sm <= with_less.resident_blocks_per_sm


# --- refused launches -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "static", "registers", "field", "says"),
    [
        (Launch.of(1, (32, 33)), 0, 16, "block", "threads of a block: 1056"),
        (Launch.of(1, 1025), 0, 16, "block", "block.x: 1025"),
        (Launch.of(1, (1, 1025)), 0, 16, "block", "block.y: 1025"),
        (Launch.of(1, (1, 1, 65)), 0, 16, "block", "block.z: 65"),
        (Launch.of(2**31, 1), 0, 16, "grid", "grid.x: 2147483648"),
        (Launch.of((1, 65536), 1), 0, 16, "grid", "grid.y: 65536"),
        (Launch.of((1, 1, 65536), 1), 0, 16, "grid", "grid.z: 65536"),
        (Launch.of(1, 32), 49153, 16, "static_shared_bytes", "49153"),
        (Launch.of(1, 32), -1, 16, "static_shared_bytes", "negative"),
        (Launch.of(1, 32, 98305), 0, 16, "dynamic_shared_bytes", "98305"),
        (Launch.of(1, 32, 98304), 1, 16, "dynamic_shared_bytes", "1 static and 98304 dynamic"),
        (Launch.of(1, 32), 0, 256, "registers_per_thread", "registers of a thread: 256"),
        (Launch.of(1, 32), 0, -1, "registers_per_thread", "negative"),
        (Launch.of(1, 1024), 0, 65, "registers_per_thread", "1024 threads with 65 each: 73728"),
        # 9 warps are checked as 12: 12 x 8192
        (Launch.of(1, 288), 0, 255, "registers_per_thread", "98304"),
    ],
)
def test_v100_refuses(launch: Launch, static: int, registers: int, field: str, says: str) -> None:
    gpu = load_gpu("tesla-v100")
    with pytest.raises(LaunchError) as caught:
        check_launch(gpu, launch, static, registers)
    assert caught.value.field == field
    assert says in str(caught.value)
    with pytest.raises(LaunchError):
        occupancy(gpu, launch, registers, static)


@pytest.mark.parametrize(
    ("launch", "static", "registers"),
    [
        (Launch.of(2**31 - 1, 1024), 0, 64),
        (Launch.of((1, 65535, 65535), (4, 4, 64)), 49152, 64),
        (Launch.of(1, (1, 1024)), 0, 64),
        (Launch.of(1, 256, 98304), 0, 255),
        (Launch.of(1, 1, 98303), 1, 255),
    ],
)
def test_v100_takes_what_is_just_within_its_limits(
    launch: Launch, static: int, registers: int
) -> None:
    check_launch(load_gpu("tesla-v100"), launch, static, registers)


def test_refusal_carries_value_and_limit() -> None:
    with pytest.raises(LaunchError) as caught:
        check_launch(load_gpu("k4200"), Launch.of(1, 32), 0, 64)
    assert caught.value.context == {
        "field": "registers_per_thread",
        "value": 64,
        "limit": 63,
        "gpu": "quadro-k4200",
    }
