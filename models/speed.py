"""How near a launch comes to what the hardware can do: the speed of light of each unit.

``share`` is the time that a unit would need alone at its peak, spread evenly over all SMs, over the
predicted time of the launch: what profilers call its utilisation. Peaks are facts of the GPU's
profile at the clocks predicted for; nothing is taken off them for what a pipe or a stream sustains,
so no share exceeds 1. docs/bottleneck.md tells what each unit counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import LATENCY_PER_WAVE
from wattcast.features.activity.instructions import InstructionEvents, Operations
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.time.beside import NOTHING_BESIDE, Beside, major, tensor_rate
from wattcast.models.time.bottleneck import (
    L1_BYTES_PER_CLOCK,
    LATENCY,
    MULTIPLY_INSTRUCTIONS,
    SHARED,
    SHARED_BYTES_PER_LANE,
    dram_bytes,
    l1_cycles,
    l2_bytes_per_clock,
    launch_seconds,
    resource_seconds,
    resource_shares,
)
from wattcast.models.time.measured_work import FLOPS_PER_FMA

Floats = npt.NDArray[np.float64]

Unit = Literal[
    "dram", "l2", "l1", "shared", "issue", "fp32", "int", "fp64", "fp16", "sfu", "tensor",
    "texture",
]  # fmt: skip
Measure = Literal["byte/s", "flop/s", "operation/s", "instruction/s"]

NAMES: Mapping[Unit, str] = {
    "dram": "DRAM", "l2": "L2", "l1": "L1 and load/store", "shared": "shared memory",
    "issue": "issue slots", "fp32": "FP32 and IMAD", "int": "INT", "fp64": "FP64", "fp16": "FP16",
    "sfu": "SFU", "tensor": "tensor", "texture": "texture",
}  # fmt: skip
"""How people call the units. Integer products (IMAD) share the pipe of FP32 multiply-adds."""


class Speed(NamedTuple):
    """One unit: ``share`` of its slots that are taken, 0 to 1; what it achieves and its peak, each
    in ``measure``. Useful work is less than what is taken: lanes that idle, additions where a
    multiply-add could be, passes of bank conflicts."""

    unit: Unit
    share: float
    achieved: float
    peak: float
    measure: Measure


class Point(NamedTuple):
    """A launch under the roof of one precision: operations, those per byte of device memory
    (``None`` where it moves none), those a second, and the roof."""

    precision: Unit
    operations: float
    intensity: float | None
    achieved: float
    peak: float


class SpeedOfLight(NamedTuple):
    """Of one launch. ``seconds`` are what the shares refer to: the time answered or, where that is
    less, what the busiest unit needs by the counts. ``points`` are those of floating-point work,
    or, without any, of integers; ``dram_peak`` is the slanted roof, in bytes a second."""

    seconds: float
    units: tuple[Speed, ...]
    dram_bytes: float
    dram_peak: float
    points: tuple[Point, ...]


def unit_seconds(
    activity: Activity, gpu: GpuProfile, clocks: ClockPair, more: Beside
) -> dict[Unit, float]:
    """Seconds that each unit of the GPU takes at its peak, on all SMs alike.

    Asynchronous products read shared memory beside the warps, as in the default time model: of
    both the slower counts. A unit that the GPU lacks is left out.
    """
    sm, hz = gpu.capability, clocks.core_hz
    every = gpu.sm_count * hz
    per_multiply = MULTIPLY_INSTRUCTIONS.get(major(gpu), 1.0) - 1.0
    extra = per_multiply * max(0.0, activity.fma_pipe_instructions - activity.fp32_instructions)
    passes = max(more.feed_passes, activity.shared_transactions - more.feed_passes)
    lanes: dict[Unit, tuple[float, float]] = {
        "shared": (passes, sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE),
        "fp32": (activity.fma_pipe_instructions + extra, sm.fp32_lanes),
        "int": (activity.alu_pipe_instructions, sm.int_lanes),
        "fp64": (activity.fp64_instructions, sm.fp64_lanes),
        "fp16": (activity.fp16_instructions, sm.fp16_lanes / 2),
        "sfu": (activity.sfu_instructions, sm.sfu_lanes),
        "texture": (activity.texture_requests, sm.texture_lanes),
    }
    found: dict[Unit, float] = {
        "dram": dram_bytes(activity) / bandwidth_bytes_per_second(gpu, clocks.memory_mhz),
        "l2": activity.l2_sectors * SECTOR_BYTES / (l2_bytes_per_clock(gpu) * hz),
        "l1": l1_cycles(activity, gpu, more.l1_cycles_per_sector) / every,
        "issue": (activity.warp_instructions_sass + extra) / (sm.warp_schedulers * every),
        **{
            unit: instructions * WARP_SIZE / (width * every)
            for unit, (instructions, width) in lanes.items()
            if width
        },
    }
    if sm.tensor_fma_per_clock:
        cycles = sum(done / tensor_rate(sm, kind) for kind, done, _ in more.tensor_by_kind)
        found["tensor"] = cycles / every
    return {unit: found[unit] for unit in NAMES if unit in found}


def speed_of_light(
    activity: Activity,
    operations: Operations,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float,
    more: Beside,
) -> SpeedOfLight:
    """Of a launch that takes ``time_seconds`` (> 0) at ``clocks``."""
    taken = unit_seconds(activity, gpu, clocks, more)
    seconds = max(time_seconds, *taken.values())
    peaks, useful = _peaks(gpu, clocks), _useful(activity, operations, gpu, more)
    units = []
    for unit, part in taken.items():
        share = part / seconds
        peak, measure = peaks[unit]
        if unit == "tensor" and part:  # each type has its own peak: that of what is multiplied
            peak = useful[unit] / part
            integer = all(kind in ("s8", "s4", "b1") for kind, _, _ in more.tensor_by_kind)
            measure = "operation/s" if integer else "flop/s"
        done = useful.get(unit, part * peak)
        # What is fused by ptxas, or read by many lanes at once, is more than slots hold.
        units.append(Speed(unit, share, min(share * peak, done / seconds), peak, measure))
    by_unit = {each.unit: each for each in units}
    moved = dram_bytes(activity)
    chosen = [
        each for each in units if each.measure == "flop/s" and each.achieved > 0
    ] or [each for each in (by_unit["int"],) if each.achieved > 0]  # fmt: skip
    points = tuple(
        Point(
            each.unit,
            each.achieved * seconds,
            each.achieved * seconds / moved if moved else None,
            each.achieved,
            each.peak,
        )
        for each in chosen
    )
    return SpeedOfLight(seconds, tuple(units), moved, by_unit["dram"].peak, points)


def _peaks(gpu: GpuProfile, clocks: ClockPair) -> dict[Unit, tuple[float, Measure]]:
    """What each unit does in a second at most."""
    sm, hz = gpu.capability, clocks.core_hz
    every = gpu.sm_count * hz
    mhz = clocks.core_mhz
    return {
        "dram": (bandwidth_bytes_per_second(gpu, clocks.memory_mhz), "byte/s"),
        "l2": (l2_bytes_per_clock(gpu) * hz, "byte/s"),
        "l1": ((gpu.l1_bytes_per_clock or L1_BYTES_PER_CLOCK) * every, "byte/s"),
        "shared": (sm.shared_bytes_per_clock * every, "byte/s"),
        "issue": (sm.warp_schedulers * every, "instruction/s"),
        "fp32": (gpu.peak("fp32", mhz), "flop/s"),
        "int": (sm.int_lanes * every, "operation/s"),
        "fp64": (gpu.peak("fp64", mhz), "flop/s"),
        "fp16": (gpu.peak("fp16", mhz), "flop/s"),
        "sfu": (sm.sfu_lanes * every, "operation/s"),
        "tensor": (gpu.peak("tensor_fp16", mhz), "flop/s"),
        "texture": (sm.texture_lanes * every, "operation/s"),
    }


def _useful(
    activity: Activity, operations: Operations, gpu: GpuProfile, more: Beside
) -> dict[Unit, float]:
    """What the launch asks of units that may do more for it than that."""
    halves = bool(gpu.capability.fp16_lanes)  # else the compiler converts to FP32
    sectors = activity.global_load_sectors + activity.global_store_sectors
    return {
        "l1": sectors * SECTOR_BYTES,
        "shared": operations.shared_bytes,
        "fp32": operations.fp32_flops + (0.0 if halves else operations.fp16_flops),
        "int": operations.int_operations,
        "fp64": operations.fp64_flops,
        "fp16": operations.fp16_flops,
        "sfu": operations.sfu_operations,
        "tensor": FLOPS_PER_FMA * sum(done for _, done, _ in more.tensor_by_kind),
    }


# --- the resource table: what each instruction takes of each unit -----------------------------


def unit_cycles(
    events: Mapping[str, InstructionEvents],
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    more: Beside,
) -> dict[str, dict[Unit, Floats]]:
    """Core cycles of an SM's share of each unit, by function, unit and instruction ``[n]``.

    All instructions together take what ``unit_seconds`` says, in proportion to what they ask of
    the unit; units that are not used are left out.
    """
    found: dict[str, dict[Unit, Floats]] = {name: {} for name in events}
    for unit, seconds in unit_seconds(activity, gpu, clocks, more).items():
        weights = {name: _asked(unit, each, gpu) for name, each in events.items()}
        whole = sum(float(part.sum()) for part in weights.values())
        if whole > 0.0 and seconds > 0.0:
            for name, part in weights.items():
                found[name][unit] = part * (seconds * clocks.core_hz / whole)
    return found


def _asked(unit: Unit, events: InstructionEvents, gpu: GpuProfile) -> Floats:
    """What each instruction asks of a unit, in any measure."""
    if unit in ("issue", "fp32"):
        return _issued(unit, events, gpu)
    return _events(unit, events)


def _issued(slots: str, events: InstructionEvents, gpu: GpuProfile) -> Floats:
    """Slots of the schedulers (``issue``) or of the pipe of multiply-adds that each takes: a 32-bit
    multiplication several on some GPUs (``models.time.bottleneck``)."""
    per_multiply = MULTIPLY_INSTRUCTIONS.get(major(gpu), 1.0) - 1.0
    extra = np.maximum(events.fma - events.fp32, 0.0) * per_multiply
    return (events.machine_instructions if slots == "issue" else events.fma) + extra


_EVENTS: Mapping[str, str] = {
    "dram": "dram_sectors", "l2": "l2_sectors", "l1": "global_sectors", "shared": "shared_passes",
    "int": "alu", "tensor": "tensor_operations", "texture": "texture_requests", "fp32": "fma",
    "atomics": "atomic_requests", "shared_fp64": "fp64", "control": "machine_instructions",
    LATENCY: "latency_cycles",
}  # fmt: skip
"""Events by what asks for them (a unit, a resource of time, a component of power), where they have
another name."""


def _events(name: str, events: InstructionEvents, otherwise: Any = None) -> Floats:
    """What each instruction asks of a unit, resource or component; ``otherwise`` for another."""
    found: Floats = getattr(events, _EVENTS.get(name, name), otherwise)
    return found


# Where in its code a launch spends its seconds and joules.
#
# Time: each resource's share of the predicted time (``wattcast.models.time.bottleneck``) goes to
# the instructions that use the resource, in proportion to what they ask of it. Energy: what a unit
# draws above an idle GPU goes to the instructions that keep it busy; what the GPU draws for being
# on (``idle``, ``clock``) goes by time, since it is drawn for as long as an instruction keeps the
# launch running. What no instruction causes (starting the launch and its blocks) is kept apart, so
# that everything sums to the launch's own seconds and joules.

BY_TIME = frozenset({"idle", "clock"})
"""Components of power that are drawn whatever runs: their energy follows the time."""


@dataclass(frozen=True)
class Attribution:
    """Seconds and joules of one launch by instruction.

    ``seconds`` and ``joules`` are by function: ``float64[instructions]`` and
    ``float64[components, instructions]`` in the order of ``components``. ``start_seconds`` and
    ``start_joules`` belong to no instruction. All of them sum to the launch's.
    """

    components: tuple[str, ...]
    seconds: Mapping[str, Floats]
    joules: Mapping[str, Floats]
    start_seconds: float
    start_joules: float

    @property
    def total_seconds(self) -> float:
        """Of the launch."""
        return self.start_seconds + sum(float(part.sum()) for part in self.seconds.values())

    @property
    def total_joules(self) -> float:
        """Of the launch."""
        return self.start_joules + sum(float(part.sum()) for part in self.joules.values())

    def scaled(self, seconds: float, joules: float) -> Attribution:
        """The same shares of another total, as where another model answered."""
        by_time = seconds / self.total_seconds
        by_energy = joules / self.total_joules
        return Attribution(
            self.components,
            {name: part * by_time for name, part in self.seconds.items()},
            {name: part * by_energy for name, part in self.joules.items()},
            self.start_seconds * by_time,
            self.start_joules * by_energy,
        )


def attributed(
    events: Mapping[str, InstructionEvents],
    activity: Activity,
    gpu: GpuProfile,
    clocks: ClockPair,
    components: Mapping[str, float],
    more: Beside = NOTHING_BESIDE,
) -> Attribution:
    """Share the predicted time and power of a launch out among its instructions.

    ``components`` are watts by component as the physical model answers them at this time;
    ``events`` and ``activity`` tell of the same launch.
    """
    seconds = {name: np.zeros(each.alu.size) for name, each in events.items()}
    resources = resource_seconds(activity, gpu, clocks, more=more)
    started = launch_seconds(activity, gpu)
    total = started
    for resource, part in resource_shares(resources).items():
        total += part
        weights = {name: _time_weights(resource, each, gpu) for name, each in events.items()}
        outside = _start_latency(activity) if resource == LATENCY else 0.0
        started += _shared_out(part, weights, outside, seconds)
    joules = {name: np.zeros((len(components), each.alu.size)) for name, each in events.items()}
    start_joules = 0.0
    for row, (component, watts) in enumerate(components.items()):
        energy = watts * total
        rows = {name: part[row] for name, part in joules.items()}
        if component in BY_TIME:
            start_joules += _shared_out(energy, seconds, started, rows)
        else:
            weights = {name: _energy_weights(component, each) for name, each in events.items()}
            start_joules += _shared_out(energy, weights, 0.0, rows)
    return Attribution(tuple(components), seconds, joules, started, start_joules)


def _shared_out(
    amount: float, weights: Mapping[str, Floats], outside: float, into: Mapping[str, Floats]
) -> float:
    """Add ``amount`` to ``into`` by ``weights``; returns what the weight ``outside`` keeps.

    All of it stays outside where no instruction has a weight.
    """
    whole = outside + sum(float(part.sum()) for part in weights.values())
    if whole <= 0.0:
        return amount
    for name, part in weights.items():
        into[name][...] += part * (amount / whole)
    return amount * outside / whole


def _start_latency(activity: Activity) -> float:
    """Cycles over all warps that their start waits, beside ``latency_cycles`` of instructions."""
    warps = activity.blocks * -(-activity.threads_per_block // 32)
    return LATENCY_PER_WAVE * warps


def _time_weights(resource: str, events: InstructionEvents, gpu: GpuProfile) -> Floats:
    """What each instruction asks of a resource of the default time model."""
    if resource in ("issue", "fma"):
        return _issued(resource, events, gpu)
    if resource in ("load_store", SHARED):
        return events.load_store_passes + events.atomic_requests
    return _events(resource, events, np.zeros_like(events.alu))  # ``blocks``: nothing starts them


def _energy_weights(component: str, events: InstructionEvents) -> Floats:
    """What each instruction asks of a component; every machine instruction alike where it is one
    that this module does not know."""
    if component == "l1":
        return events.load_store_passes - events.shared_passes
    return _events(component, events, events.machine_instructions)
