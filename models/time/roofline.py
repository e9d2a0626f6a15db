"""The roofline as a time model: a launch takes at least its work over the peak that does it.

    t = max(floating-point operations / peak, bytes / bandwidth)

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", Communications of the ACM 52(4), 2009. Nothing waits and nothing
starts: the result is a lower bound, as far as the counts are right. docs/time.md says what it
counts; the variant of the thesis' appendix is ``studies/time/instruction_roofline.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import Counted
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked, default_clocks
from wattcast.models.time.base import Regime, TimePrediction, largest
from wattcast.models.time.spread import uncalibrated_estimate
from wattcast.models.time.work import executed_span, work_of

Precision = Literal["fp32", "fp64", "fp16", "tensor"]

FLOPS_PER_FMA = 2
"""A multiply-add is two operations; peaks are stated so."""

LOWER_BOUND = Diagnostic(
    "time_is_lower_bound",
    "the roofline ignores latency, launch overhead and caches, so a launch takes longer. Use "
    "time_model auto for an estimate",
)


def peaks_per_second(gpu: GpuProfile, core_mhz: float) -> dict[Precision, float]:
    """Floating-point operations a second at a core clock: lanes x 2 x clock of every SM.

    FP16 counts both halves of a lane's pair; where there are no such lanes the compiler converts
    to FP32. ``tensor`` is that of dense FP16 matrices, 0 without tensor cores.
    """
    sm = gpu.capability
    hz = gpu.sm_count * core_mhz * 1e6
    per_cycle: dict[Precision, float] = {
        "fp32": sm.fp32_lanes,
        "fp64": sm.fp64_lanes,
        "fp16": sm.fp16_lanes or sm.fp32_lanes,
        "tensor": sm.tensor_fma_per_clock,
    }
    return {name: FLOPS_PER_FMA * each * hz for name, each in per_cycle.items()}


def lane_flops(activity: Activity, tensor_flops: float, gpu: GpuProfile) -> dict[Precision, float]:
    """Operations the lanes of each precision were occupied for, over the whole launch.

    An addition holds its lane as long as a multiply-add and counts as one, and a partial warp
    as a whole one: what could have been done, which is what the peak is made of.
    """
    pair = 2 if gpu.capability.fp16_lanes else 1
    slots = FLOPS_PER_FMA * WARP_SIZE
    return {
        "fp32": slots * activity.fp32_instructions,
        "fp64": slots * activity.fp64_instructions,
        "fp16": slots * pair * activity.fp16_instructions,
        "tensor": tensor_flops,
    }


def matrix_flops(analysis: KernelAnalysis) -> float:
    """Floating-point operations of the matrix instructions executed; integer ones count none."""
    functions: Mapping[str, Counted] = (
        analysis.executed.functions
        if analysis.activity_how == "executed"
        else analysis.symbolic.functions
    )
    total = 0.0
    for name, counts in functions.items():
        function = analysis.module.function(name)
        assert function is not None, "only functions of the module are counted"
        for instruction in function.body.instructions:
            facts = classify(instruction.opcode)
            if facts.pipe == "tensor":
                warps = float(counts.warp_executions[instruction.position])
                total += warps * WARP_SIZE * facts.flops_per_lane
    return total


def dram_bytes(activity: Activity) -> float:
    """Bytes between L2 and device memory, both ways."""
    return (activity.dram_read_sectors + activity.dram_write_sectors) * SECTOR_BYTES


class RooflineTimeModel:
    """The roofline over every precision and device memory. Stateless.

    ``parts`` are bounds, the largest counts: ``fp32``, ``fp64``, ``fp16``, ``tensor``, ``memory``.
    A lower bound on the time; no published pairs tell how far below it lies, so the interval is
    the uncalibrated one, a factor 4 either way.
    """

    family = "roofline"
    combined = staticmethod(largest)

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Least time of an analysed launch; see ``TimeModel``.

        Raises ModelError for matrix instructions on a GPU without tensor cores, and for a kernel
        without floating-point work and memory traffic.
        """
        pair = checked(clocks or default_clocks(gpu))
        activity = analysis.activity
        matrices = matrix_flops(analysis) if activity.tensor_instructions else 0.0
        parts = roofline_parts(activity, matrices, gpu, pair)
        seconds = max(parts.values())
        less, more = executed_span(work_of(analysis))
        bound: Regime = "memory" if parts["memory"] == seconds else "compute"
        return TimePrediction(
            family=self.family,
            estimate=uncalibrated_estimate(seconds, seconds * less, seconds * more),
            clocks=pair,
            parts=parts,
            regime=bound,
            diagnostics=(LOWER_BOUND,),
        )


def roofline_parts(
    activity: Activity, tensor_flops: float, gpu: GpuProfile, clocks: ClockPair
) -> dict[str, float]:
    """Seconds of every bound. Raises ModelError for matrix instructions without tensor cores."""
    peaks = peaks_per_second(gpu, clocks.core_mhz)
    done = lane_flops(activity, tensor_flops, gpu)
    if done["tensor"] and not peaks["tensor"]:
        raise ModelError(f"{gpu.id} has no tensor cores for this kernel's matrices", gpu=gpu.id)
    parts: dict[str, float] = {
        name: done[name] / peak if peak else 0.0 for name, peak in peaks.items()
    }
    parts["memory"] = dram_bytes(activity) / bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    return parts
