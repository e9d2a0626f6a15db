"""Special registers of the sampled threads (PTX ISA 8.x, chapter 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.spaces import WINDOWS
from wattcast.features.execution.values import U32, U64, Array, DType
from wattcast.features.launch import WARP_SIZE

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


def _squeezed(values: Array, dtype: DType) -> Array:
    narrow = values.astype(dtype)
    return narrow[:1].copy() if (narrow == narrow[0]).all() else narrow


def special_values(machine: Machine, name: str) -> Array | None:
    """One value per thread (one for all where they agree); ``None`` if it is not known."""
    launch = machine.launch
    text = name.removeprefix("%")
    head, _, axis = text.partition(".")
    number = {"x": 0, "y": 1, "z": 2}.get(axis, 3)
    linear = np.arange(machine.count, dtype=np.int64) % machine.per_block
    block = np.repeat(np.array(machine.blocks, dtype=np.int64), machine.per_block)

    def split(index: Array, dims: tuple[int, int, int]) -> Array:
        if number == 3:
            return np.zeros(1, dtype=np.int64)
        below = int(np.prod(dims[:number]))
        part = index // below
        return part % dims[number] if number < 2 else part

    def one(value: int) -> Array:
        return np.array([value], dtype=U32)

    if head == "tid":
        return _squeezed(split(linear, launch.block), U32)
    if head == "ctaid":
        return _squeezed(split(block, launch.grid), U32)
    if head in ("ntid", "nctaid"):
        dims = launch.block if head == "ntid" else launch.grid
        return one(dims[number] if number < 3 else 0)
    lane = linear % WARP_SIZE
    if head == "laneid":
        return lane.astype(U32)
    if head.startswith("lanemask_"):
        bit = np.uint64(1) << lane.astype(U64)
        below, all_lanes = bit - np.uint64(1), np.uint64(0xFFFFFFFF)
        table = {
            "eq": bit, "lt": below, "le": below | bit,
            "gt": all_lanes & ~(below | bit), "ge": all_lanes & ~below,
        }  # fmt: skip
        found = table.get(head.removeprefix("lanemask_"))
        return None if found is None else found.astype(U32)
    if head == "warpid":
        return _squeezed(linear // WARP_SIZE, U32)
    if head == "smid":
        return _squeezed(block % machine.multiprocessors, U32)
    dynamic = machine.shared_bytes - machine.program.shared_bytes
    fixed = {
        "nwarpid": 64, "nsmid": machine.multiprocessors, "gridid": 0,
        "dynamic_smem_size": dynamic, "total_smem_size": machine.shared_bytes,
        "aggr_smem_size": machine.shared_bytes, "reserved_smem_offset_begin": 0,
    }  # fmt: skip
    if head in fixed:
        return one(fixed[head])
    cluster = machine.program.cluster
    if head == "clusterid":
        return _squeezed(split(block, launch.grid) // (*cluster, 1)[number], U32)
    if head == "nclusterid":
        return one(launch.grid[number] // cluster[number] if number < 3 else 0)
    if head == "cluster_ctaid":
        return _squeezed(split(block, launch.grid) % (*cluster, 1)[number], U32)
    if head in ("cluster_nctaid", "cluster_nctarank", "is_explicit_cluster"):
        whole = cluster[0] * cluster[1] * cluster[2]
        return one({"cluster_nctarank": whole, "is_explicit_cluster": whole > 1}.get(
            head, (*cluster, 0)[number]))  # fmt: skip
    if head == "cluster_ctarank":
        wide, high, _ = launch.grid
        place = (block % wide, block // wide % high, block // (wide * high))
        x, y, z = (at % size for at, size in zip(place, cluster, strict=True))
        return _squeezed(x + cluster[0] * (y + cluster[1] * z), U32)
    if head in ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
        return np.zeros(1, dtype=U64)
    if head.startswith(("envreg", "pm")):
        return one(0)
    if head in ("shared_window", "local_window"):
        return np.array([WINDOWS[head.partition("_")[0]]], dtype=U64)
    return None
