"""What the parts of an explanation mean, in plain sentences, and what a programmer can change.

``meaning_of`` answers for features of the published schemas, components of power and resources of
the time models alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wattcast.features.schemas import get_schema


class Meaning(NamedTuple):
    """A sentence that says what it is, and how the programmer changes it (``None``: cannot)."""

    sentence: str
    change: str | None

    @property
    def changeable(self) -> bool:
        """Whether the programmer can change it."""
        return self.change is not None


_SHAPE = "choose another grid or block"
_CODE = "change the kernel's code"
_MEMORY = "load and store less from global memory, or reuse what was loaded"
_SHARED = "use shared memory less, or without bank conflicts"

FEATURES: Mapping[str, tuple[str, str | None]] = {
    "avg_comp_lat": ("how long a compute instruction takes on average", "use cheaper arithmetic"),
    "avg_glob_lat": ("how long a global memory instruction takes on average", _MEMORY),
    "avg_misc_lat": ("how long an instruction outside the other classes takes on average", None),
    "avg_shar_lat": ("how long a shared load takes on average", "use shared memory, or not"),
    "branch": ("branches over all waves of blocks", "write fewer branches, or unroll loops"),
    "comp_inst_kernel": ("compute instructions in the kernel's text", _CODE),
    "comp_inst_sm": ("compute instructions that an SM executes", "compute less in each thread"),
    "comp_lat_sm": ("cycles an SM's compute instructions take", "compute less in each thread"),
    "glob_inst_kernel": ("global loads and stores in the kernel's text", _MEMORY),
    "glob_inst_sm": ("global loads and stores that an SM executes", _MEMORY),
    "glob_lat_sm": ("cycles an SM's global memory instructions take", _MEMORY),
    "glob_load_sm": ("global loads that an SM executes", _MEMORY),
    "glob_store_sm": ("global stores that an SM executes", "store less to global memory"),
    "misc_inst_kernel": ("instructions of other classes in the kernel's text", _CODE),
    "misc_inst_sm": ("instructions of other classes that an SM executes", _CODE),
    "misc_lat_sm": ("cycles an SM's instructions of other classes take", _CODE),
    "shar_inst_kernel": ("shared loads in the kernel's text", _SHARED),
    "shar_inst_sm": ("shared loads that an SM executes", _SHARED),
    "shar_lat_sm": ("cycles an SM's shared loads take", _SHARED),
    "sm_active": ("threads of a block, counted once more", "choose another block size"),
    "n_warps": ("blocks of the grid over 32", "choose another grid"),
    "waves": ("blocks that each SM gets", _SHAPE),
    "total_threads": ("threads launched", _SHAPE),
    "inst_issue_cycles": (
        "cycles it takes to issue all instructions",
        "execute fewer instructions",
    ),
    "cache_penalty": (
        "cycles lost to misses in L2",
        "place data that is used together close together",
    ),
    "glb_penalty": ("cycles lost to global memory", _MEMORY),
    "sh_penalty": ("cycles lost to shared memory", _SHARED),
    "occupancy": (
        "how many of an SM's warps can be resident",
        "use fewer registers or less shared memory, or choose another block size",
    ),
    "reg_thread": ("registers of a thread", "limit them (-maxrregcount, __launch_bounds__)"),
    "shmem_block": ("shared memory of a block", "use smaller tiles"),
    "block_size": ("threads of a block", "choose another block size"),
    "grid_size": ("blocks of the grid", "choose another grid"),
}

COMPONENTS: Mapping[str, tuple[str, str | None]] = {
    "idle": ("what the board draws for being on", None),
    "clock": ("what the core draws at its clock, whatever it does", "choose a lower core clock"),
    "control": (
        "fetching, decoding and issuing instructions",
        "execute fewer instructions: wider loads, unrolled loops, fused operations",
    ),
    "fp32": (
        "single-precision arithmetic, and integer multiplication beside it",
        "compute less, or in lower precision",
    ),
    "int": ("integer arithmetic, comparisons and addresses", "compute indices less often"),
    "fp64": ("double-precision arithmetic", "use float where its 24 bits are enough"),
    "fp16": ("half-precision arithmetic", "compute less"),
    "tensor": ("the matrix units", "multiply smaller matrices, or in lower precision"),
    "sfu": (
        "special functions: reciprocals, roots, exponentials, sines, conversions",
        "move divisions and special functions out of loops",
    ),
    "shared": ("shared memory and the load/store units, bank conflicts with it", _SHARED),
    "texture": ("texture fetches", "fetch fewer texels"),
    "l2": ("traffic between the SMs and L2", "coalesce accesses, or keep data in shared memory"),
    "dram": ("traffic with device memory", "move fewer bytes: coalesce, reuse, smaller types"),
}

RESOURCES: Mapping[str, tuple[str, str | None]] = {
    "dram": ("moving bytes to and from device memory", COMPONENTS["dram"][1]),
    "l2": ("moving sectors between L2 and the SMs", COMPONENTS["l2"][1]),
    "l1": ("moving sectors through L1", "coalesce accesses"),
    "load_store": ("the load/store units: requests, and passes of bank conflicts", _SHARED),
    "atomics": (
        "atomics on the same word of memory, one after the other",
        "combine within a warp or block first",
    ),
    "tensor": ("the matrix units", COMPONENTS["tensor"][1]),
    "issue": ("issuing machine instructions", COMPONENTS["control"][1]),
    "fma": ("the FMA pipe: single precision and integer multiplication", COMPONENTS["fp32"][1]),
    "alu": ("the integer pipe", COMPONENTS["int"][1]),
    "fp64": ("the double-precision pipe", COMPONENTS["fp64"][1]),
    "fp16": ("the half-precision pipe", COMPONENTS["fp16"][1]),
    "sfu": ("the special function units", COMPONENTS["sfu"][1]),
    "texture": ("the texture units", COMPONENTS["texture"][1]),
    "blocks": ("starting blocks", "launch fewer, larger blocks that do more each"),
    "latency": (
        "waiting that no other warp hides",
        "launch more warps, or give each independent instructions to overlap",
    ),
    "launch": ("starting the kernel", "launch less often: fuse kernels, use graphs"),
    "launch_overhead": ("starting the kernel", "launch less often: fuse kernels, use graphs"),
    "calibration": ("what launches measured on this board correct", None),
    "known": ("what measured launches of this kernel correct", None),
    "schedule": ("instructions as the schedulers issue them", _CODE),
    "global_penalty": ("waiting for global memory", _MEMORY),
    "shared_penalty": ("waiting for shared memory", _SHARED),
    "cache_penalty": ("misses in L2", FEATURES["cache_penalty"][1]),
    "memory_bottleneck": ("global memory beyond what it can deliver", _MEMORY),
    "sm": ("the SM as a server of instructions", _CODE),
    "overlap": ("time that the servers wait for each other", None),
    "chain": ("one warp's instructions after the other", "give threads independent instructions"),
    "memory": ("moving bytes to and from device memory", COMPONENTS["dram"][1]),
    "arithmetic": ("arithmetic instructions", _CODE),
    "fp32": ("single-precision arithmetic", COMPONENTS["fp32"][1]),
}


def meaning_of(name: str, target: str, schema_id: str | None = None) -> Meaning:
    """What a part of an explanation of ``power`` or ``time`` means.

    ``schema_id`` is that of a model on features; their schemas tell what is not listed here.
    """
    if schema_id is not None and name in FEATURES:
        return _sentence(*FEATURES[name])
    if schema_id is not None:
        for field in get_schema(schema_id).fields:
            if field.name == name:
                described = field.description[:1].lower() + field.description[1:]
                return _sentence(described, _CODE if field.changeable else None)
    known = (RESOURCES if target == "time" else COMPONENTS).get(name)
    if known is None:
        return Meaning(f"{name.replace('_', ' ')}, a part of the model.", None)
    return _sentence(*known)


def _sentence(what: str, change: str | None) -> Meaning:
    told = f"{what[:1].upper()}{what[1:]}. "
    if change is None:
        return Meaning(f"{told}The programmer cannot change it.", None)
    return Meaning(f"{told}The programmer can change it: {change}.", change)
