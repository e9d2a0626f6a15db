"""Onboarding of a simulated GPU with the whole catalogue: what was found out, beside the truth.

Energies, latencies and rates below are made up; what simulation and models share, and so
cannot be proven here, docs/measuring.md tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp
from types import MappingProxyType

from tests.measure.simulated import Faults, SimulatedGpu, SimulatedRunner, Truth
from tests.measure.simulated_nvml import SimulatedNvml
from wattcast.features.activity.memory import GLOBAL_L1_SINCE
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.facts import Fact
from wattcast.features.gpus.sections import BlockStart, LaunchOverhead
from wattcast.measure.nvml import Nvml
from wattcast.measure.onboard.run import Onboarded
from wattcast.measure.recording import Recording
from wattcast.measure.run import Machine
from wattcast.models.time.beside import DEPENDENT_CYCLES
from wattcast.models.time.bottleneck import L1_BYTES_PER_CLOCK

PARAMETER_PERCENT = 10.0


PICOJOULES: Mapping[str, float] = MappingProxyType(
    {
        "issue": 130.0,
        "fma": 4.1,
        "fp16": 2.6,
        "tensor": 0.35,
        "alu": 3.2,
        "fp64": 11.0,
        "sfu": 12.0,
        "load_store": 5.5,
        "l2": 520.0,
        "texture": 20.0,
        "dram": 31.0,
    }
)
"""Made up; of the size that a full unit may draw of a board of 700 W."""

LATENCIES: Mapping[str, float] = MappingProxyType(
    {
        "fma.f32": 4.2,
        "add.f32": 4.3,
        "mul.f32": 4.4,
        "fma.f64": 8.4,
        "add.s32": 4.6,
        "ex2.f32": 17.3,
        "shared": 31.0,
        "l1": 36.5,
        "l2": 265.0,
        "dram": 655.0,
    }
)

RESULTS: Mapping[str, float] = MappingProxyType(
    {"fma.f32": 121.0, "add.s32": 61.0, "fma.f64": 59.0, "ex2.f32": 15.1}
)
"""Results an SM and cycle of throughput probes."""

NO_COUNTER = Faults(not_supported=frozenset({"DeviceGetTotalEnergyConsumption"}))
"""The harder case: power by samples alone."""


def truth(gpu: str, *, blocks_after: bool = False) -> Truth:
    """A board of a profile's size whose rates are none of the profile's."""
    base = load_gpu(gpu)
    # From 7.0 on the time model serves loads by banks and lines, at L1's full rate.
    rated = base.compute_capability.partition(".")[0] in DEPENDENT_CYCLES
    near = 97.0 if rated else float(L1_BYTES_PER_CLOCK)
    timing = {
        "l1_latency": Fact(value=LATENCIES["l1"], unit="cycle", source="truth"),
        "l2_latency": Fact(value=LATENCIES["l2"], unit="cycle", source="truth"),
        "dram_latency": Fact(value=LATENCIES["dram"], unit="cycle", source="truth"),
        "shared_latency": Fact(value=LATENCIES["shared"], unit="cycle", source="truth"),
        "l1_bytes_per_clock": Fact(value=near, unit="byte/cycle", source="truth"),
        "l2_bytes_per_clock": Fact(value=27.0 * base.sm_count, unit="byte/cycle", source="truth"),
    }
    share = Fact(value=0.81, unit="share", source="truth")
    launch = LaunchOverhead(unit="us", source="truth", microseconds=3.1, microseconds_per_thread=0)
    starts = BlockStart(unit="cycle", source="truth", cycles=2.4, cycles_per_warp=0.3)
    profile = base.model_copy(
        update={
            "memory_timing": base.memory_timing.model_copy(update=timing),
            "memory": base.memory.model_copy(update={"streaming_share": share}),
            "kernel_launch": launch,
            "block_start": starts,
        }
    )
    return Truth(
        profile,
        idle_watts=0.11 * base.tdp_watts,
        active_watts=0.09 * base.tdp_watts,
        picojoules=PICOJOULES,
        latency_cycles=LATENCIES,
        results_per_cycle=RESULTS,
        launch_seconds=launch.microseconds * 1e-6,
        blocks_after=blocks_after,
    )


@dataclass(frozen=True)
class Line:
    """One figure; ``bound_percent`` is what ``error_percent`` must stay within, if anything."""

    name: str
    true: float
    found: float | None
    bound_percent: float | None = PARAMETER_PERCENT

    @property
    def error_percent(self) -> float | None:
        """How far off, over the truth."""
        return None if self.found is None else abs(self.found / self.true - 1) * 100

    @property
    def holds(self) -> bool:
        """Whether it was found, within its bound."""
        if self.bound_percent is None:
            return True
        error = self.error_percent
        return error is not None and error <= self.bound_percent


def simulated(board: SimulatedGpu) -> Machine:
    """The machine of a simulated board."""
    return Machine(SimulatedRunner(board), Nvml(SimulatedNvml(board)), board, "simulated")


def parameters(known: Truth, recording: Recording, made: Onboarded) -> Iterator[Line]:
    """Every number that onboarding is to find out."""
    sensor, gpu, fitted = recording.sensor, made.gpu, made.profile.fitted
    yield Line(
        "sensor: update period, s", known.update_period_seconds, sensor.update_period_seconds
    )
    yield Line("sensor: lag, s", known.lag_seconds, sensor.lag_seconds)
    yield Line("idle, W", known.idle_watts, gpu.idle_watts)
    yield Line("busy beside events, W", known.active_watts, made.picojoules.get("active_watts"))
    for event, picojoules in known.picojoules.items():
        # No workload reads textures, and none works units that the board lacks.
        if event != "texture" and event not in lacking(known.profile):
            unresolved = made.power is not None and event in made.power.unresolved
            yield Line(
                f"energy of {event}, pJ" + (" (told as not resolved)" if unresolved else ""),
                picojoules,
                made.picojoules.get(event),
                None if unresolved else PARAMETER_PERCENT,
            )
    for target, cycles in known.latency_cycles.items():
        near = {
            "l1": gpu.l1_latency_cycles,
            "l2": gpu.l2_latency_cycles,
            "dram": gpu.dram_latency_cycles,
            "shared": gpu.shared_latency_cycles,
        }
        yield Line(f"latency of {target}, cycles", cycles, near.get(target) if target in near
                   else gpu.latency_cycles.get(target))  # fmt: skip
    for target, rate in known.results_per_cycle.items():
        yield Line(
            f"results an SM and cycle, {target}", rate, fitted.get(f"results_per_cycle {target}")
        )
    launch, block, true = gpu.kernel_launch, gpu.block_start, known.profile.block_start
    assert true is not None
    yield Line("launch, us", known.launch_seconds * 1e6, launch.microseconds if launch else None)
    yield Line("a block's start, cycles", true.cycles, block.cycles if block else None)
    yield Line(
        "a warp's of a block", true.cycles_per_warp, block.cycles_per_warp if block else None
    )
    yield from rates(known.profile, gpu)
    yield from growths(known, gpu)


def growths(known: Truth, gpu: GpuProfile) -> Iterator[Line]:
    """What the thesis' models ask for: latency under load, and throughputs at a small and a large
    launch."""
    latency = gpu.global_memory_latency
    threads = gpu.sm_count * gpu.max_threads_per_sm // 2
    loaded = known.latency_cycles["dram"] + known.loaded_cycles_per_thread * threads
    found = None
    if latency is not None:
        piece = next(
            p for p in latency.pieces if p.below_threads is None or threads < p.below_threads
        )
        found = piece.slope * threads + piece.constant
    yield Line("latency of a load with half the threads, cycles", loaded, found)
    for name, curve in (
        ("global", gpu.global_memory_throughput),
        ("shared", gpu.shared_memory_throughput),
    ):
        a, b, c = known.growth[name]
        for n in (0.5 / c, 5 / c):
            yield Line(
                f"{name} memory at {n:.0f} instructions, MB/s",
                a * (b - exp(-c * n)),
                None if curve is None else curve.at(n),
            )


def lacking(profile: GpuProfile) -> set[str]:
    """Events and rates of units that a board does not have; Kepler's L1 caches no global loads."""
    major, minor = (int(part) for part in profile.compute_capability.split("."))
    units = {
        "fp16": profile.fp16_lanes,
        "tensor": profile.tensor_fma_per_clock,
        "l1_bytes_per_clock": (major, minor) >= GLOBAL_L1_SINCE,
    }
    return {name for name, number in units.items() if not number}


def rates(profile: GpuProfile, gpu: GpuProfile) -> Iterator[Line]:
    """Bandwidths and clocks."""
    for name, unit in (
        ("l1_bytes_per_clock", "L1, bytes an SM and cycle"),
        ("l2_bytes_per_clock", "L2, bytes a cycle"),
        ("streaming_share", "device memory, share of the peak"),
        ("core_mhz", "core clock, MHz"),
        ("memory_mhz", "memory clock, MHz"),
    ):
        true = getattr(profile, name)
        assert true is not None
        if name not in lacking(profile):
            yield Line(unit, true, getattr(gpu, name))
