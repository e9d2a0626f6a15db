"""Theoretical occupancy with its limiter, and what a GPU refuses to launch.

The rules are those of NVIDIA's occupancy calculator (cuda_occupancy.h of the CUDA Toolkit):
a block is resident on one SM as a whole, and the smallest of four block counts holds,
the architecture's block limit, warps, registers and shared memory. The numbers come from
``features/gpus/compute_capability.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE, Launch

Limiter = Literal["blocks", "warps", "registers", "shared_memory"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What of a kernel is resident on one SM when the grid is large enough to fill it.

    ``occupancy`` is resident over possible warps, in (0, 1]. ``limits`` holds how many
    blocks each limiter alone would allow; a limiter that the kernel does not use is absent.
    ``limiter`` is the smallest of them, the first in the order blocks, warps, registers,
    shared_memory if several are equal.
    """

    resident_blocks_per_sm: int
    resident_warps_per_sm: int
    occupancy: float
    limiter: Limiter
    limits: Mapping[Limiter, int]


def occupancy(
    gpu: GpuProfile, launch: Launch, registers_per_thread: int, static_shared_bytes: int
) -> Occupancy:
    """Resident blocks and warps of an SM, for a launch that ``check_launch`` accepts.

    Raises LaunchError, as ``check_launch`` does, where no block fits.
    """
    check_launch(gpu, launch, static_shared_bytes, registers_per_thread)
    limits: dict[Limiter, int] = {
        "blocks": gpu.max_blocks_per_sm,
        "warps": gpu.max_warps_per_sm // launch.warps_per_block,
    }
    if registers_per_thread:
        limits["registers"] = _blocks_by_registers(gpu, launch, registers_per_thread)
    allocated = _shared_allocation(gpu, static_shared_bytes + launch.dynamic_shared_bytes)
    if allocated:
        limits["shared_memory"] = gpu.shared_bytes_per_sm // allocated
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    warps = blocks * launch.warps_per_block
    return Occupancy(
        resident_blocks_per_sm=blocks,
        resident_warps_per_sm=warps,
        occupancy=warps / gpu.max_warps_per_sm,
        limiter=limiter,
        limits=MappingProxyType(limits),
    )


def waves(gpu: GpuProfile, launch: Launch, resident: Occupancy) -> int:
    """Rounds in which the grid's blocks pass through the GPU: ceil(blocks / (resident x SMs))."""
    return -(-launch.blocks // (resident.resident_blocks_per_sm * gpu.sm_count))


def check_launch(
    gpu: GpuProfile, launch: Launch, static_shared_bytes: int, registers_per_thread: int
) -> None:
    """Raises LaunchError for a launch that ``gpu`` refuses; ``field`` names the part.

    Statically declared shared memory is limited to 48 KB everywhere; with dynamic shared
    memory the limit is the one after opting in, since the request does not tell whether the
    program opts in (cudaFuncAttributeMaxDynamicSharedMemorySize).
    """
    static, dynamic, registers = (
        static_shared_bytes,
        launch.dynamic_shared_bytes,
        registers_per_thread,
    )
    if static < 0:
        raise LaunchError(
            f"static shared memory is {static} bytes; it cannot be negative",
            field="static_shared_bytes",
        )
    if registers < 0:
        raise LaunchError(
            f"registers_per_thread is {registers}; it cannot be negative",
            field="registers_per_thread",
        )
    facts, threads = gpu.capability, launch.threads_per_block
    # The launch check of the hardware counts warps for all sub-partitions alike
    # (cuda_occupancy.h), so five warps weigh as much as eight.
    warps = _round_up(launch.warps_per_block, facts.sub_partitions_at_launch)
    for what, value, most, field in (
        ("block.x", launch.block[0], facts.max_block_x, "block"),
        ("block.y", launch.block[1], facts.max_block_y, "block"),
        ("block.z", launch.block[2], facts.max_block_z, "block"),
        ("threads of a block", threads, facts.max_threads_per_block, "block"),
        ("grid.x", launch.grid[0], facts.max_grid_x, "grid"),
        ("grid.y", launch.grid[1], facts.max_grid_y, "grid"),
        ("grid.z", launch.grid[2], facts.max_grid_z, "grid"),
        ("static shared bytes of a block", static,
         facts.max_shared_bytes_per_block, "static_shared_bytes"),
        (f"shared bytes of a block ({static} static and {dynamic} dynamic)", static + dynamic,
         facts.max_shared_bytes_per_block_opt_in, "dynamic_shared_bytes"),
        ("registers of a thread", registers,
         facts.max_registers_per_thread, "registers_per_thread"),
        (f"registers allocated to a block of {threads} threads with {registers} each",
         warps * _registers_per_warp(gpu, registers),
         facts.max_registers_per_block, "registers_per_thread"),
    ):  # fmt: skip
        if value > most:
            raise _refused(what, value, most, gpu, field)


def _refused(what: str, value: int, most: int, gpu: GpuProfile, field: str) -> LaunchError:
    return LaunchError(
        f"{what}: {value}; {gpu.id} allows at most {most}",
        field=field,
        value=value,
        limit=most,
        gpu=gpu.id,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _registers_per_warp(gpu: GpuProfile, registers_per_thread: int) -> int:
    return _round_up(registers_per_thread * WARP_SIZE, gpu.capability.register_allocation_unit)


def _blocks_by_registers(gpu: GpuProfile, launch: Launch, registers_per_thread: int) -> int:
    """Warps are placed in sub-partitions, each with its share of the register file."""
    partitions = gpu.capability.sub_partitions_per_sm
    per_partition = gpu.registers_per_sm // partitions
    warps = per_partition // _registers_per_warp(gpu, registers_per_thread) * partitions
    return warps // launch.warps_per_block


def _shared_allocation(gpu: GpuProfile, used_bytes: int) -> int:
    """Bytes a block takes: what it uses and the system's reserve, in allocation units."""
    total = used_bytes + gpu.capability.reserved_shared_bytes_per_block
    return _round_up(total, gpu.capability.shared_allocation_unit)
