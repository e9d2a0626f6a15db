"""The roofline as a time model: a launch takes at least its work over the peak that does it.

    t = max(floating-point operations / peak, bytes / bandwidth)

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", Communications of the ACM 52(4), 2009. Nothing waits and nothing
starts: the result is a lower bound, as far as the counts are right. docs/time.md says what it
counts.
"""

from __future__ import annotations

from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import Diagnostic, ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second, checked, default_clocks
from wattcast.models.papers.thesis.work import executed_span, work_of
from wattcast.models.time.base import Regime, TimePrediction, largest
from wattcast.models.time.bottleneck import dram_bytes
from wattcast.models.time.calibration import lane_flops, peaks_per_second, uncalibrated_estimate

LOWER_BOUND = Diagnostic(
    "time_is_lower_bound",
    "the roofline ignores latency, launch overhead and caches, so a launch takes longer. Use "
    "time_model auto for an estimate",
)


def matrix_flops(analysis: KernelAnalysis) -> float:
    """Floating-point operations of the matrix instructions executed; integer ones count none."""
    total = 0.0
    for name, counts in analysis.counts.functions(None).items():
        function = analysis.module.function(name)
        assert function is not None, "only functions of the module are counted"
        for instruction in function.body.instructions:
            facts = classify(instruction.opcode)
            if facts.pipe == "tensor":
                warps = float(counts.warp_executions[instruction.position])
                total += warps * WARP_SIZE * facts.flops_per_lane
    return total


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
