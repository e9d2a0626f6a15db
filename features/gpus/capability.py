"""Limits and units of one SM, the same for every GPU of a compute capability."""

from __future__ import annotations

from typing import NamedTuple


class CapabilityFacts(NamedTuple):
    """Limits and units of one SM (compute_capability.toml); units are in that file."""

    max_threads_per_block: int
    max_block_x: int
    max_block_y: int
    max_block_z: int
    max_grid_x: int
    max_grid_y: int
    max_grid_z: int
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    max_registers_per_block: int
    max_registers_per_thread: int
    register_allocation_unit: int
    sub_partitions_per_sm: int
    sub_partitions_at_launch: int
    shared_bytes_per_sm: int
    max_shared_bytes_per_block: int
    max_shared_bytes_per_block_opt_in: int
    reserved_shared_bytes_per_block: int
    shared_allocation_unit: int
    shared_banks: int
    shared_bytes_per_clock: int
    l1_bytes_per_sm: int
    fp32_lanes: int
    fp64_lanes: int
    int_lanes: int
    fp16_lanes: int
    sfu_lanes: int
    lsu_lanes: int
    texture_lanes: int
    warp_schedulers: int
    dispatch_units: int
    tensor_cores: int
    tensor_fma_per_clock: int
