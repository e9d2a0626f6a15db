"""Theoretical occupancy with its limiter, and what a GPU or a kernel's directives refuse to launch.

The rules are those of NVIDIA's occupancy calculator (cuda_occupancy.h of the CUDA Toolkit):
a block is resident on one SM as a whole, and the smallest of four block counts holds,
the architecture's block limit, warps, registers and shared memory. The numbers come from
``features/gpus/compute_capability.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Literal

from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE, Dim3, Launch, dim3
from wattcast.features.ptx.ir import Function, Module

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
    # What a block uses and the system's reserve, in allocation units.
    used = static_shared_bytes + launch.dynamic_shared_bytes
    reserved = gpu.capability.reserved_shared_bytes_per_block
    allocated = _round_up(used + reserved, gpu.capability.shared_allocation_unit)
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
    static, dynamic = static_shared_bytes, launch.dynamic_shared_bytes
    registers = registers_per_thread
    for what, field, value in (
        (f"static shared memory is {static} bytes", "static_shared_bytes", static),
        (f"registers_per_thread is {registers}", "registers_per_thread", registers),
    ):
        if value < 0:
            raise LaunchError(f"{what}; it cannot be negative", field=field)
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
            detail = f"{what}: {value}; {gpu.id} allows at most {most}"
            raise LaunchError(detail, field=field, value=value, limit=most, gpu=gpu.id)


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


# --- what a kernel's own directives ask of a launch (PTX ISA 9.0, 11.4 and 11.7) -----------------
# The driver refuses a launch that does not keep to them, so nothing is predicted for it either.


def fixed_block(function: Function) -> Dim3 | None:
    """The block size that ``.reqntid`` fixes, if the kernel has one."""
    wanted = function.directives.get("reqntid")
    return dim3("reqntid", wanted[:3]) if wanted else None


def check_directives(module: Module, function: Function, launch: Launch) -> None:
    """Raises LaunchError naming directive, line and what it wants.

    ``.reqntid`` fixes the block in every dimension, ``.maxntid`` its most threads in all,
    ``.reqnctapercluster`` what the grid must be a multiple of. ``.maxnctapersm`` and
    ``.minnctapersm`` steer register allocation and refuse no launch by themselves.
    """

    def refused(directive: str, wanted: tuple[int, ...], field: str, why: str) -> LaunchError:
        line = _line(module, function, directive)
        return LaunchError(
            f".{directive} in line {line} {why}",
            field=field,
            directive=f".{directive}",
            line=line,
            wanted=list(dim3(directive, wanted[:3])),
        )

    fixed, most = fixed_block(function), function.directives.get("maxntid")
    if fixed is not None and fixed != launch.block:
        raise refused(
            "reqntid", fixed, "block",
            f"wants blocks of exactly {_text(fixed)} threads; {_text(launch.block)} are launched",
        )  # fmt: skip
    if most and launch.threads_per_block > prod(most):
        raise refused(
            "maxntid", most, "block",
            f"wants blocks of at most {prod(most)} threads; {launch.threads_per_block} are "
            "launched",
        )  # fmt: skip
    cluster = function.directives.get("reqnctapercluster")
    if not cluster:
        return
    wanted = dim3("reqnctapercluster", cluster[:3])
    if any(size % part for size, part in zip(launch.grid, wanted, strict=True)):
        raise refused(
            "reqnctapercluster", wanted, "grid",
            f"wants a grid of whole clusters of {_text(wanted)} blocks; {_text(launch.grid)} "
            "blocks are launched",
        )  # fmt: skip
    rank = (function.directives.get("maxclusterrank") or (prod(wanted),))[0]
    if prod(wanted) > rank:
        raise refused(
            "maxclusterrank", (rank,), "grid",
            f"allows clusters of {rank} blocks; .reqnctapercluster wants {prod(wanted)}",
        )  # fmt: skip


def _text(sizes: Dim3) -> str:
    kept = sizes if sizes[2] > 1 else sizes[:2] if sizes[1] > 1 else sizes[:1]
    return " x ".join(f"{size:,}" for size in kept)


def _line(module: Module, function: Function, directive: str) -> int:
    """The line of a directive between a kernel's name and its body."""
    for number, text in enumerate(module.text.splitlines()[function.line - 1 :], function.line):
        if f".{directive}" in text.partition("//")[0]:
            return number
        if text.lstrip().startswith("{"):
            break
    return function.line
