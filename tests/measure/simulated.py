"""A GPU of known behaviour against simulated time: board, power sensor and driver.

Everything that onboarding is to find out is a number of ``Truth``: energies of events, rates,
latencies, launch overhead, the sensor's period, lag and noise. What a kernel executes comes from
the same analysis as everywhere: a simulation proves measuring and fitting, not the analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, prod
from types import MappingProxyType

import numpy as np

from wattcast.features.activity import Activity
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.measure.device import Batch, Device, GpuLostError, WorkloadError
from wattcast.measure.workload import Board, Pattern, Probe, Workload, executed
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import VoltageCurve
from wattcast.models.time.beside import Beside, beside
from wattcast.models.time.bottleneck import combined_seconds, dram_bytes, resource_seconds

EVENTS = (
    "issue",
    "fma",
    "fp16",
    "tensor",
    "alu",
    "fp64",
    "sfu",
    "load_store",
    "l2",
    "texture",
    "dram",
)
"""Events with an energy, as ``models.power.activities.UnitActivities`` names their units: a warp
instruction issued; one lane's result of a pipe; a multiply-add of a matrix unit; one lane's pass of
load/store; a sector of L2; a texture request's lane; a byte of device memory."""

_PICOJOULES = {
    "issue": 220.0,
    "fma": 7.0,
    "fp16": 4.5,
    "tensor": 0.6,
    "alu": 5.0,
    "fp64": 22.0,
    "sfu": 16.0,
    "load_store": 9.0,
    "l2": 900.0,
    "texture": 20.0,
    "dram": 45.0,
}

_LATENCIES = {
    "fma.f32": 4.2,
    "add.s32": 4.6,
    "fma.f64": 8.4,
    "shared": 21.0,
    "l1": 31.0,
    "l2": 205.0,
    "dram": 437.0,
}


@dataclass(frozen=True)
class Truth:
    """All there is to find out about a simulated board.

    ``profile`` holds the true rates. ``picojoules`` by event at the reference clocks, where they
    follow the square of the voltage. ``active_watts``: what a busy board draws beside idle and
    events. ``latency_cycles`` and ``results_per_cycle`` (of an SM) by a probe's target.
    ``loaded_cycles_per_thread``: what each thread launched adds to a load from device memory;
    ``memory_share_of_latency``: of its cycles, what follows the memory clock; ``growth``: a, b, c
    of ``a (b - exp(-c n))`` in MB/s, n the memory instructions of the load/store units.
    ``pattern_factor`` scales the energy of events of workloads whose data vary.
    ``wander_share``: how far the core clock swings under load. ``blocks_after``: blocks start
    after the work of a launch rather than beside it, as no time model has it.
    """

    profile: GpuProfile
    idle_watts: float = 42.0
    active_watts: float = 33.0
    picojoules: Mapping[str, float] = field(default_factory=lambda: MappingProxyType(_PICOJOULES))
    latency_cycles: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType(_LATENCIES)
    )
    results_per_cycle: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"fma.f32": 63.0, "add.s32": 63.0})
    )
    loaded_cycles_per_thread: float = 0.003
    memory_share_of_latency: float = 0.4
    growth: Mapping[str, tuple[float, float, float]] = field(
        default_factory=lambda: MappingProxyType(
            {"global": (71000.0, 1.05, 2.1e-4), "shared": (810000.0, 1.01, 1.7e-5)}
        )
    )
    launch_seconds: float = 3.1e-6
    blocks_after: bool = False
    idle_core_mhz: float = 135.0
    update_period_seconds: float = 0.1
    lag_seconds: float = 0.25
    noise_share: float = 0.01
    voltage: VoltageCurve = field(default_factory=lambda: VoltageCurve(floor=0.6, slope=0.7))
    pattern_factor: Mapping[Pattern, float] = field(
        default_factory=lambda: MappingProxyType(
            {"zeros": 0.82, "uniform": 1.0, "random_bits": 1.06}
        )
    )
    leakage_per_degree: float = 3e-4
    degrees_per_watt: float = 0.1
    thermal_seconds: float = 3.0
    wander_share: float = 0.0


@dataclass
class Faults:
    """What goes wrong. Names are NVML functions without ``nvml``; times are simulated seconds."""

    not_supported: frozenset[str] = frozenset()
    no_permission: frozenset[str] = frozenset()
    instant_power: bool = True
    mig: bool = False
    boards: int = 1
    lost_at_seconds: float | None = None
    counter_bits: int = 64
    counter_start_millijoules: int = 5_000_000
    start_error: int | None = None


def event_counts(activity: Activity, more: Beside) -> dict[str, float]:
    """Events of one launch, by the names of ``EVENTS``."""
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests)
    return {
        "issue": activity.warp_instructions_sass,
        "fma": activity.fma_pipe_instructions * WARP_SIZE,
        "fp16": activity.fp16_instructions * WARP_SIZE,
        "tensor": more.tensor_fmas,
        "alu": activity.alu_pipe_instructions * WARP_SIZE,
        "fp64": activity.fp64_instructions * WARP_SIZE,
        "sfu": activity.sfu_instructions * WARP_SIZE,
        "load_store": (activity.lsu_requests + conflicts) * WARP_SIZE,
        "l2": activity.l2_sectors,
        "texture": activity.texture_requests * WARP_SIZE,
        "dram": dram_bytes(activity),
    }


class SimulatedGpu:
    """A board that runs batches one after the other while simulated time goes on.

    It is its own clock (``now``, ``sleep``).
    """

    def __init__(self, truth: Truth, faults: Faults | None = None, seed: int = 1) -> None:
        self.truth, self.faults = truth, faults or Faults()
        self.time = 0.0
        self.core_mhz = truth.profile.core_mhz
        self.memory_mhz = truth.profile.memory_mhz
        self.limit_watts = truth.profile.tdp_watts
        self._random = np.random.default_rng(seed)
        self._queue: list[tuple[float, float, float]] = []  # start, end, watts above idle
        self._lagged = truth.idle_watts
        self._degrees = 30.0
        self._joules = 0.0
        self._next_update = truth.update_period_seconds
        self.shown_watts = truth.idle_watts
        self.shown_joules = self._joules

    # --- the clock ----------------------------------------------------------------------

    def now(self) -> float:
        """Simulated seconds."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let simulated time go on."""
        end = self.time + seconds
        while self.time < end - 1e-12:
            edges = [end, self._next_update]
            edges += [edge for one in self._queue[:2] for edge in one[:2] if edge > self.time]
            step = min(edges) - self.time
            self._pass(step)
            if self._next_update - self.time < 1e-9:
                self._update()
        while self._queue and self._queue[0][1] <= self.time:
            self._queue.pop(0)

    def _pass(self, step: float) -> None:
        truth, above = self.truth, 0.0
        for start, end, watts in self._queue:
            if start <= self.time + 1e-12 < end:
                above = watts
                break
        leakage = 1 + truth.leakage_per_degree * (self._degrees - 30.0)
        watts = (truth.idle_watts + above) * leakage
        self._joules += watts * step
        keep = exp(-step / truth.lag_seconds) if truth.lag_seconds else 0.0
        self._lagged = watts + (self._lagged - watts) * keep
        target = 30.0 + truth.degrees_per_watt * (watts - truth.idle_watts)
        self._degrees = target + (self._degrees - target) * exp(-step / truth.thermal_seconds)
        self.time += step

    def _update(self) -> None:
        truth = self.truth
        noise = 1 + truth.noise_share * float(self._random.standard_normal())
        self.shown_watts = max(0.0, self._lagged * noise)
        self.shown_joules = self._joules
        self._next_update += truth.update_period_seconds

    # --- work ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a batch runs now."""
        return any(start <= self.time < end for start, end, _ in self._queue)

    @property
    def degrees(self) -> float:
        """Temperature in degrees Celsius."""
        return self._degrees

    @property
    def lost(self) -> bool:
        """Whether the board fell off the bus."""
        at = self.faults.lost_at_seconds
        return at is not None and self.time >= at

    def shown_core_mhz(self) -> float:
        """Core clock as a driver tells it."""
        if not self.busy:
            return self.truth.idle_core_mhz
        swing = 1 + self.truth.wander_share * float(self._random.uniform(-1, 1))
        return self.core_mhz * swing

    def enqueue(self, seconds: float, watts_above_idle: float) -> tuple[float, float]:
        """Run for so long after what is under way; begin and end."""
        start = max(self.time, self._queue[-1][1] if self._queue else self.time)
        seconds *= 1 + 0.002 * float(self._random.standard_normal())
        self._queue.append((start, start + seconds, watts_above_idle))
        return start, start + seconds


class SimulatedRunner:
    """``device.Runner`` of a simulated board."""

    def __init__(self, gpu: SimulatedGpu, name: str = "Simulated GPU", label: str = "sim") -> None:
        self.gpu = gpu
        self._name, self._label = name, label
        self._known: dict[str, tuple[Activity, Beside]] = {}

    def device(self) -> Device:
        """Facts as a driver tells them: the true ones of the chip, none of its rates."""
        profile = self.gpu.truth.profile
        major, _, minor = profile.compute_capability.partition(".")
        return Device(
            name=self._name,
            label=self._label,
            board=Board(
                sm_count=profile.sm_count,
                compute_capability=(int(major), int(minor)),
                l2_bytes=profile.l2_bytes,
                memory_bytes=profile.memory_bytes or 2**34,
                max_threads_per_sm=profile.max_threads_per_sm,
                shared_bytes_per_block=profile.capability.max_shared_bytes_per_block,
                core_mhz=profile.max_core_mhz,
            ),
            driver_version="simulated",
            cuda_version="simulated",
            memory_bus_bits=profile.memory.bus_bits.value,
            max_memory_mhz=profile.memory_mhz,
            power_limit_watts=profile.tdp_watts,
        )

    def pci_bus(self) -> str:
        """The first board of the simulated NVML."""
        return "0000:01:00.0"

    def versions(self) -> Mapping[str, str]:
        """No driver is involved."""
        return {"simulation": "1"}

    def close(self) -> None:
        """Nothing to give back."""

    def load(self, workload: Workload, pattern: Pattern) -> SimulatedLoad:
        """Work out time and power of a launch. Raises WorkloadError, GpuLostError."""
        if self.gpu.lost:
            raise GpuLostError("the GPU is lost")
        seconds, watts = self.truth_of(workload, pattern)
        return SimulatedLoad(self.gpu, seconds, watts)

    def truth_of(self, workload: Workload, pattern: Pattern = "uniform") -> tuple[float, float]:
        """True seconds of a launch, back to back, and true watts above idle while it runs."""
        truth, gpu = self.gpu.truth, self.gpu
        clocks = ClockPair(gpu.core_mhz, gpu.memory_mhz)
        activity, more = self._activity(workload)
        resources = resource_seconds(activity, truth.profile, clocks, more=more)
        starts = resources.pop("blocks") if truth.blocks_after else 0.0
        seconds = combined_seconds(resources)
        if workload.probe is not None:
            seconds = self._probed(workload, workload.probe, clocks, seconds)
        seconds += truth.launch_seconds + starts
        core = clocks.core_mhz / truth.profile.core_mhz
        volts = truth.voltage.at(core) ** 2
        # The energy of device memory is per byte, whatever the core's voltage.
        joules = sum(
            truth.picojoules[name] * 1e-12 * count * (1.0 if name == "dram" else volts)
            for name, count in event_counts(activity, more).items()
        )
        if workload.varied:
            joules *= truth.pattern_factor[pattern]
        return seconds, truth.active_watts * volts * core + joules / seconds

    def _probed(self, workload: Workload, probe: Probe, clocks: ClockPair, seconds: float) -> float:
        """Latencies and throughputs follow the truth's own tables."""
        truth = self.gpu.truth
        threads = prod(workload.grid) * prod(workload.block)
        if probe.kind == "growth":
            if probe.target == "latency":
                cycles = self._dram_cycles(clocks) + truth.loaded_cycles_per_thread * threads
                return probe.operations * cycles / clocks.core_hz
            a, b, c = truth.growth[probe.target]
            batches = threads / truth.profile.lsu_lanes * probe.parallelism
            return probe.operations / (a * (b - exp(-c * batches))) / 1e6
        if probe.kind == "latency" and probe.target == "dram":
            return probe.operations * self._dram_cycles(clocks) / clocks.core_hz
        if probe.kind == "latency" and probe.target in truth.latency_cycles:
            return probe.operations * truth.latency_cycles[probe.target] / clocks.core_hz
        if probe.kind == "throughput" and probe.warps_per_sm is not None:
            peak = truth.results_per_cycle.get(probe.target)
            if peak is None or probe.target not in truth.latency_cycles:
                return seconds
            inflight = probe.parallelism * probe.warps_per_sm * WARP_SIZE
            rate = min(peak, inflight / truth.latency_cycles[probe.target])
            return probe.operations / (rate * truth.profile.sm_count * clocks.core_hz)
        return seconds

    def _dram_cycles(self, clocks: ClockPair) -> float:
        """Wang and Chu's Eq. 4; the truth's latency at the profile's clocks."""
        truth, own = self.gpu.truth, self.gpu.truth.profile
        moved = clocks.core_mhz / clocks.memory_mhz * own.memory_mhz / own.core_mhz
        share = truth.memory_share_of_latency
        return truth.latency_cycles["dram"] * (1 - share + share * moved)

    def _activity(self, workload: Workload) -> tuple[Activity, Beside]:
        if workload.id not in self._known:
            try:
                analysis = executed(workload, self.gpu.truth.profile)
                self._known[workload.id] = (analysis.activity, beside(analysis.extras))
            except WattcastError as error:
                raise WorkloadError(f"{workload.id} does not run: {error}") from error
        return self._known[workload.id]


class SimulatedLoad:
    """``device.Loaded``: batches on the board's queue."""

    def __init__(self, gpu: SimulatedGpu, seconds: float, watts: float) -> None:
        self._gpu, self._seconds, self._watts = gpu, seconds, watts
        self._under_way: list[tuple[int, float, float]] = []

    def enqueue(self, launches: int) -> None:
        """Add a batch."""
        self._check()
        start, end = self._gpu.enqueue(launches * self._seconds, self._watts)
        self._under_way.append((launches, start, end))

    def pending(self) -> int:
        """Batches that have not ended."""
        self._check()
        return sum(end > self._gpu.now() for _, _, end in self._under_way)

    def finished(self) -> list[Batch]:
        """Batches that ended."""
        now = self._gpu.now()
        ended = [one for one in self._under_way if one[2] <= now]
        self._under_way = [one for one in self._under_way if one[2] > now]
        return [Batch(launches, end - start) for launches, start, end in ended]

    def close(self) -> None:
        """Let what is under way end."""
        if self._under_way and not self._gpu.lost:
            self._gpu.sleep(max(0.0, self._under_way[-1][2] - self._gpu.now()))

    def _check(self) -> None:
        if self._gpu.lost:
            raise GpuLostError("the GPU is lost")
