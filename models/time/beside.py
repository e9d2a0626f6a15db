"""What a launch does beside ``activity1`` that the default time model counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattcast.features.activity import Extras
from wattcast.features.activity.extras import AtomicUse, TensorKind, TensorWork
from wattcast.features.activity.waiting import NO_COPIES, Copies, Waiting
from wattcast.features.gpus import CapabilityFacts, GpuProfile
from wattcast.models.time.waits import major

TENSOR_COST: Mapping[TensorKind, float] = MappingProxyType(
    {
        "f16": 1.0,
        "tf32": 2.0,
        "f64": 16.0,
        "f8": 0.5,
        "f4": 0.25,
        "s8": 0.5,
        "s4": 0.25,
        "b1": 1 / 16,
    }
)
"""Time of a multiply-add of the matrix units over that of an FP16 one (A100 whitepaper: FP16 312,
TF32 156, FP64 19.5 TFLOPS; INT8 624, INT4 1248, binary 4992 TOPS. FP8 and FP4: H100 and Blackwell
whitepapers, twice and four times FP16). Sparse ones take half (same place)."""


FROM_REGISTERS: Mapping[str, float] = {"9": 1 / 0.629}
"""Time of a multiply-add by mma or wmma, whose factors come from registers, over that of the peak
rate, by major compute capability, else 1. Hopper reaches its peak by wgmma alone, and 62.9 % of it
by mma, the mean over types and shapes on an H800 PCIe (Luo et al., Dissecting the NVIDIA Hopper
Architecture through Microbenchmarking and Multiple Level Analysis, arXiv:2501.12084, 2025, section
6.2). Nothing is published of 10.0."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a launch does beside ``activity1``, in the units of this model.

    ``tensor_fmas``: multiply-adds of the matrix units, as FP16 ones of the same time.
    ``atomic_passes``: passes of atomics over their lanes that meet at one address, each a
    load/store pass more. ``hottest_operations``: atomics on the word of global memory that most
    of them hit; they go one after the other.
    ``tensor_int8_fmas``: the part of ``tensor_fmas`` that is done on integers, as 8-bit ones.
    ``waiting``: dependent chains of a warp, for each machine instruction and each load that it
    executes. ``l1_cycles_per_sector`` of global loads; without it L1 delivers sectors at its full
    rate. ``register_reads`` of FP32 multiply-adds, by warps. ``register_fmas``: of
    ``tensor_fmas``, those of mma and wmma, whose factors come from registers. ``feed_passes``:
    passes of shared memory that asynchronous products take; ``copies``: waits of a block for
    asynchronous copies. ``tensor_by_kind``: kinds of factors, multiply-adds and those of them from
    registers, sparse ones as half; with it each kind runs at the rate that the GPU has for it.
    ``busy_blocks`` do more than leave, where that is known.
    """

    tensor_fmas: float = 0.0
    atomic_passes: float = 0.0
    hottest_operations: float = 0.0
    tensor_int8_fmas: float = 0.0
    waiting: Waiting | None = None
    l1_cycles_per_sector: float | None = None
    register_reads: float = 0.0
    register_fmas: float = 0.0
    feed_passes: float = 0.0
    copies: Copies = NO_COPIES
    tensor_by_kind: tuple[tuple[TensorKind, float, float], ...] = ()
    busy_blocks: float | None = None


NOTHING_BESIDE = Beside()


def beside(extras: Extras) -> Beside:
    """The extras of an analysis; what it does not know counts as no conflict."""
    tensor = _as_f16(extras.tensor)
    integer = _as_f16(work for work in extras.tensor if work.kind in ("s8", "s4", "b1"))
    passes = sum(
        max(0.0, use.passes - use.requests)
        for use in extras.atomics.uses
        if use.passes is not None and not _aggregated(use)
    )
    hottest = extras.atomics.hottest_operations or 0.0
    in_global = [use for use in extras.atomics.uses if use.space == "global"]
    if in_global and all(map(_aggregated, in_global)):
        hottest = min(hottest, extras.atomics.hottest_requests or 0.0)
    return Beside(
        tensor,
        passes,
        hottest,
        integer / TENSOR_COST["s8"],
        extras.waiting,
        extras.l1_cycles_per_sector,
        extras.register_reads,
        _as_f16(extras.from_registers),
        extras.feed_passes,
        extras.copies,
        tuple(
            (
                work.kind,
                _dense(work),
                _dense(
                    *(
                        other
                        for other in extras.from_registers
                        if (other.kind, other.sparse) == (work.kind, work.sparse)
                    )
                ),
            )
            for work in extras.tensor
        ),
        extras.busy_blocks,
    )


def _dense(*done: TensorWork) -> float:
    """Multiply-adds, sparse ones as half."""
    return sum(work.multiply_adds * (0.5 if work.sparse else 1.0) for work in done)


def _as_f16(done: Iterable[TensorWork]) -> float:
    """Multiply-adds as FP16 ones of the same time."""
    return sum(TENSOR_COST[work.kind] * _dense(work) for work in done)


def _aggregated(use: AtomicUse) -> bool:
    """Whether ptxas lets one lane of a warp do the atomics of all: integer sums of which each warp,
    by the code, hits one address (machine code of ptxas 12.9 for sm_75 and sm_80: VOTE and POPC,
    shuffles or REDUX, then RED by one lane)."""
    words = use.opcode.split(".")
    if use.space != "global" or "add" not in words or not {"u32", "s32"} & set(words):
        return False
    return use.uniform and use.passes == use.operations


def tensor_cycles(more: Beside, gpu: GpuProfile) -> float:
    """Cycles of the matrix units over all SMs. Boards whose units add up in FP32 at half rate do
    integers at full rate."""
    sm = gpu.capability
    if not sm.tensor_fma_per_clock:
        return 0.0
    if more.tensor_by_kind:
        slower = FROM_REGISTERS.get(major(gpu), 1.0) - 1.0
        return sum(
            (done + slower * held) / tensor_rate(sm, kind)
            for kind, done, held in more.tensor_by_kind
        )
    integer = more.tensor_int8_fmas if sm.tensor_int8_fma_per_clock else 0.0
    others = more.tensor_fmas - TENSOR_COST["s8"] * integer
    others += more.register_fmas * (FROM_REGISTERS.get(major(gpu), 1.0) - 1.0)
    return others / sm.tensor_fma_per_clock + integer / max(1, sm.tensor_int8_fma_per_clock)


_TENSOR_ROWS: Mapping[TensorKind, str] = {
    "tf32": "tensor_tf32_fma_per_clock", "f64": "tensor_fp64_fma_per_clock",
    "f8": "tensor_fp8_fma_per_clock", "f4": "tensor_fp4_fma_per_clock",
    "s8": "tensor_int8_fma_per_clock",
}  # fmt: skip


def tensor_rate(sm: CapabilityFacts, kind: TensorKind) -> float:
    """Dense multiply-adds of an SM in a clock: what its capability tells, else by ``TENSOR_COST``
    from FP16 (of 4 and 1 bits from 8: no later whitepaper prints them)."""
    base: TensorKind = "s8" if kind in ("s4", "b1") and sm.tensor_int8_fma_per_clock else "f16"
    if kind in _TENSOR_ROWS and getattr(sm, _TENSOR_ROWS[kind]):
        base = kind
    rate: float = getattr(sm, _TENSOR_ROWS.get(base, "tensor_fma_per_clock"))
    return rate * TENSOR_COST[base] / TENSOR_COST[kind]
