"""The default time model: what a launch physically does, over the rate of what does it.

Every resource gets the seconds it would need alone (``resource_seconds``). Resources work at the
same time but never overlap perfectly, so a p-norm a little above the largest combines them, and
a launch takes no less than its longest chain of waiting (``combined_seconds``); its start comes
on top. Rates come from the GPU's profile; no
constant was fitted to the time of an application. Sources of the constants, and how far the
result lies from measured times: docs/bottleneck.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

import numpy as np

from wattcast.features.activity import Activity, Extras
from wattcast.features.activity.extras import TensorKind
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, checked, default_clocks, streaming_bytes_per_second
from wattcast.models.estimate import Estimate, unsure
from wattcast.models.intervals import loosened
from wattcast.models.time.base import Floats, Regime, TimePrediction
from wattcast.models.time.spread import interval_of, level_of


@dataclass(frozen=True, slots=True)
class Constants:
    """Dimensionless constants shared by all GPUs, and one time (docs/bottleneck.md).

    ``overlap_norm``: exponent of the norm that combines resources. ``reread_locality``: share of
    estimated DRAM re-reads that count; 1 for our own analysis, which follows reuse distances, less
    for estimates that do not (``studies.data.activity_tables``). ``load_store``, ``fp64`` and
    ``texture``: time a pipe takes over that at its peak rate. ``block_cycles`` and
    ``block_cycles_of_sm``: least core cycles between the starts of two blocks, over the whole
    GPU and on one SM. ``launch_seconds``: a launch itself. The last three count where the
    profile holds no measurement.
    """

    overlap_norm: float = 3.0
    reread_locality: float = 1.0
    load_store: float = 1.15
    fp64: float = 1.1
    texture: float = 1.1
    block_cycles: float = 1.7
    block_cycles_of_sm: float = 114.0
    launch_seconds: float = 2.5e-6


CONSTANTS = Constants()

MULTIPLY_INSTRUCTIONS: Mapping[str, float] = {"5": 3.0, "6": 3.0}
"""Machine instructions of a 32-bit integer multiplication by major compute capability, else 1.

Maxwell and Pascal multiply 16 bits at a time (XMAD; the CUDA C++ Programming Guide's table of
arithmetic throughput says "multiple instructions" for 5.x and 6.x).
"""

SHARED_BYTES_PER_LANE = 4
"""A load/store pass serves each lane with one bank's word (CUDA C++ Programming Guide)."""

L1_BYTES_PER_CLOCK = 128
"""What L1 of an SM delivers a clock at most, where a profile holds no measurement: one line
(CUDA C++ Programming Guide, compute capability 5.x on)."""

L2_BYTES_PER_CLOCK_OF_SM = 32
"""What an SM draws from L2 a clock, where a profile holds no measurement: one sector."""

HOT_WORD_CYCLES = 1.0
"""Core cycles between two atomics on the same word of global memory (GK110 whitepaper: one a
clock; nothing newer is published)."""

_REGIMES: Mapping[str, Regime] = {
    "dram": "memory",
    "blocks": "latency",
    "latency": "latency",
    "atomics": "latency",
}


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


@dataclass(frozen=True, slots=True)
class Beside:
    """What a launch does beside ``activity1``, in the units of this model.

    ``tensor_fmas``: multiply-adds of the matrix units, as FP16 ones of the same time.
    ``atomic_passes``: passes of atomics over their lanes that meet at one address, each a
    load/store pass more. ``hottest_operations``: atomics on the word of global memory that most
    of them hit; they go one after the other.
    """

    tensor_fmas: float = 0.0
    atomic_passes: float = 0.0
    hottest_operations: float = 0.0


NOTHING_BESIDE = Beside()


def beside(extras: Extras) -> Beside:
    """The extras of an analysis; what it does not know counts as no conflict."""
    tensor = sum(
        work.multiply_adds * TENSOR_COST[work.kind] * (0.5 if work.sparse else 1.0)
        for work in extras.tensor
    )
    passes = sum(
        max(0.0, use.passes - use.requests) for use in extras.atomics.uses if use.passes is not None
    )
    return Beside(tensor, passes, extras.atomics.hottest_operations or 0.0)


def resource_seconds(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    constants: Constants = CONSTANTS,
    more: Beside = NOTHING_BESIDE,
) -> dict[str, float]:
    """Seconds each resource would need if nothing else limited the launch.

    Device memory runs at the memory clock, everything else at the core clock. What an SM does
    itself waits for the busiest SM (``sm_imbalance``).
    """
    sm = gpu.capability
    hz = clocks.core_hz
    busiest = gpu.sm_count * hz / activity.sm_imbalance
    multiplications = max(0.0, activity.fma_pipe_instructions - activity.fp32_instructions)
    extra = multiplications * (MULTIPLY_INSTRUCTIONS.get(_major(gpu), 1.0) - 1.0)
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests)
    global_sectors = activity.global_load_sectors + activity.global_store_sectors
    shared_lanes = sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE

    def pipe(warp_instructions: float, lanes: float) -> float:
        # A pipe the SM lacks (FP16 on Maxwell) does nothing: its work is counted elsewhere.
        return warp_instructions * WARP_SIZE / (lanes * busiest) if lanes else 0.0

    return {
        "dram": dram_bytes(activity, constants)
        / streaming_bytes_per_second(gpu, clocks.memory_mhz),
        "l2": activity.l2_sectors * SECTOR_BYTES / (_l2_bytes_per_clock(gpu) * hz),
        "l1": global_sectors * SECTOR_BYTES / (_l1_bytes_per_clock(gpu) * busiest),
        "load_store": constants.load_store
        * pipe(activity.lsu_requests + conflicts + more.atomic_passes, shared_lanes),
        "atomics": more.hottest_operations * HOT_WORD_CYCLES / hz,
        "tensor": more.tensor_fmas / (sm.tensor_fma_per_clock * busiest)
        if sm.tensor_fma_per_clock
        else 0.0,
        "issue": (activity.warp_instructions_sass + extra) / (sm.warp_schedulers * busiest),
        "fma": pipe(activity.fma_pipe_instructions + extra, sm.fp32_lanes),
        "alu": pipe(activity.alu_pipe_instructions, sm.int_lanes),
        "fp64": constants.fp64 * pipe(activity.fp64_instructions, sm.fp64_lanes),
        "fp16": pipe(activity.fp16_instructions, sm.fp16_lanes / 2),
        "sfu": pipe(activity.sfu_instructions, sm.sfu_lanes),
        "texture": constants.texture * pipe(activity.texture_requests, sm.texture_lanes),
        "blocks": activity.blocks * _block_seconds(activity, gpu, hz, busiest, constants),
        "latency": activity.latency_cycles / hz,
    }


def combined_seconds(resources: Mapping[str, float], constants: Constants = CONSTANTS) -> float:
    """The p-norm of what each resource needs, but no less than the latency.

    The norm is the largest where one resource dominates and more where several come close.
    ``latency`` is a chain rather than a resource: it leaves the others free, so the longer of
    the two counts. 0 where nothing is needed.
    """
    used = [seconds for name, seconds in resources.items() if seconds and name != "latency"]
    largest = max(used, default=0.0)
    norm = constants.overlap_norm
    busy = largest * float(sum((each / largest) ** norm for each in used) ** (1 / norm))
    return max(busy, resources.get("latency", 0.0))


def launch_seconds(activity: Activity, gpu: GpuProfile, constants: Constants = CONSTANTS) -> float:
    """What starting the launches of ``activity`` costs."""
    line = gpu.kernel_launch
    each = constants.launch_seconds if line is None else line.microseconds * 1e-6
    return each * activity.kernel_launches


def predicted_seconds(
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    constants: Constants = CONSTANTS,
    more: Beside = NOTHING_BESIDE,
) -> float:
    """Seconds of the launch, or launches, that ``activity`` totals."""
    resources = resource_seconds(activity, gpu, clocks, constants, more)
    return combined_seconds(resources, constants) + launch_seconds(activity, gpu, constants)


def regime(resources: Mapping[str, float], start_seconds: float) -> Regime:
    """What bounds a launch: its largest resource, or its start."""
    name = max(resources, key=lambda each: resources[each])
    if start_seconds > resources[name]:
        return "launch"
    return _REGIMES.get(name, "compute")


def dram_bytes(activity: Activity, constants: Constants = CONSTANTS) -> float:
    """Bytes between L2 and device memory: distinct ones once, re-reads as far as they count."""
    sectors = activity.dram_read_sectors + activity.dram_write_sectors
    distinct = activity.kernel_launches * activity.footprint_bytes / SECTOR_BYTES
    again = max(0.0, sectors - distinct)
    return (sectors - (1 - constants.reread_locality) * again) * SECTOR_BYTES


def _block_seconds(
    activity: Activity, gpu: GpuProfile, hz: float, busiest: float, constants: Constants
) -> float:
    """Least seconds between the starts of two blocks."""
    if gpu.block_start is not None:
        return gpu.block_start.at(ceil(activity.threads_per_block / WARP_SIZE)) / hz
    return max(constants.block_cycles / hz, constants.block_cycles_of_sm / busiest)


def _major(gpu: GpuProfile) -> str:
    return gpu.compute_capability.partition(".")[0]


def _l2_bytes_per_clock(gpu: GpuProfile) -> float:
    return gpu.l2_bytes_per_clock or L2_BYTES_PER_CLOCK_OF_SM * gpu.sm_count


def _l1_bytes_per_clock(gpu: GpuProfile) -> float:
    return gpu.l1_bytes_per_clock or L1_BYTES_PER_CLOCK


class BottleneckTimeModel:
    """The default time model as a ``TimeModel``.

    ``parts`` are bounds: seconds each resource would need alone, and ``launch``, which is paid on
    top of what they combine to.
    """

    family = "bottleneck"

    @staticmethod
    def combined(parts: Mapping[str, Floats]) -> Floats:
        """``combined_seconds`` for arrays."""
        latency = parts.get("latency", np.zeros(1))
        busy = np.array(
            [part for name, part in parts.items() if name != "latency"] or [0 * latency]
        )
        largest = busy.max(axis=0)
        scaled = busy / np.where(largest > 0, largest, 1.0)
        norm = CONSTANTS.overlap_norm
        found: Floats = np.maximum(largest * (scaled**norm).sum(axis=0) ** (1 / norm), latency)
        return found

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``.

        Raises ClockError for clocks that are not above 0, AnalysisError where the kernel cannot
        be analysed dynamically.
        """
        pair = checked(clocks or default_clocks(gpu))
        activity, more = analysis.activity, beside(analysis.extras)
        resources = resource_seconds(activity, gpu, pair, more=more)
        start = launch_seconds(activity, gpu)
        seconds = combined_seconds(resources) + start
        cases = [predicted_seconds(case, gpu, pair, more=more) for case in analysis.activity_cases]
        width, basis = interval_of(gpu)
        estimate = Estimate(
            seconds,
            min([seconds, *cases]) * width.low_factor,
            max([seconds, *cases]) * width.high_factor,
            level_of(gpu),
            basis,
        )
        estimate = unsure(estimate, analysis.coverage.error)
        return TimePrediction(
            family=self.family,
            estimate=loosened(estimate) if analysis.cut_short else estimate,
            clocks=pair,
            parts={**resources, "launch": start},
            regime=regime(resources, start),
            diagnostics=analysis.activity_diagnostics,
        )


# --- how much of a predicted time each resource accounts for ----------------------------------
# The default model combines the seconds ``R_i`` that each resource would need alone by a p-norm
# ``T``, which is homogeneous of degree one: by Euler's theorem ``T = sum_i R_i dT/dR_i``, and
#
#     R_i dT/dR_i = T (R_i / T)^p.
#
# So each share is what T would lose first if the resource got a little faster, and the shares sum
# to T without a rest. Where the chain of waiting is longer than that, it accounts for all.


LATENCY = "latency"


def resource_shares(
    resources: Mapping[str, float], constants: Constants = CONSTANTS
) -> dict[str, float]:
    """Seconds of ``combined_seconds(resources)`` by resource; they sum to it.

    Resources that account for nothing are left out.
    """
    total = combined_seconds(resources, constants)
    if total <= 0.0:
        return {}
    used = {name: part for name, part in resources.items() if part > 0.0 and name != LATENCY}
    busy = combined_seconds(used, constants)
    if busy < total:
        return {LATENCY: total}
    weights = {name: (part / busy) ** constants.overlap_norm for name, part in used.items()}
    whole = sum(weights.values())
    return {name: total * weight / whole for name, weight in weights.items()}
