"""Where in its code a launch spends its seconds and joules.

Time: each resource's share of the predicted time (``wattcast.models.time.bottleneck``) goes to the
instructions that use the resource, in proportion to what they ask of it. Energy: what a unit draws
above an idle GPU goes to the instructions that keep it busy; what the GPU draws for being on
(``idle``, ``clock``) goes by time, since it is drawn for as long as an instruction keeps the launch
running. What no instruction causes (starting the launch and its blocks) is kept apart, so that
everything sums to the launch's own seconds and joules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import LATENCY_PER_WAVE
from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.time.beside import NOTHING_BESIDE, Beside
from wattcast.models.time.bottleneck import (
    LATENCY,
    MULTIPLY_INSTRUCTIONS,
    SHARED,
    launch_seconds,
    resource_seconds,
    resource_shares,
)

Floats = npt.NDArray[np.float64]

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
        # 32-bit multiplication takes several instructions on some GPUs (models.time.bottleneck).
        per_multiply = MULTIPLY_INSTRUCTIONS.get(gpu.compute_capability.partition(".")[0], 1.0)
        extra = np.maximum(events.fma - events.fp32, 0.0) * (per_multiply - 1.0)
        return (events.machine_instructions if resource == "issue" else events.fma) + extra
    if resource in ("load_store", SHARED):
        return events.load_store_passes + events.atomic_requests
    if resource == "tensor":
        return events.tensor_operations
    named = _TIME_EVENTS.get(resource)
    if named is None:  # ``blocks``: no instruction starts them
        return np.zeros_like(events.alu)
    found: Floats = getattr(events, named)
    return found


_TIME_EVENTS: Mapping[str, str] = {
    "dram": "dram_sectors", "l2": "l2_sectors", "l1": "global_sectors",
    "atomics": "atomic_requests", "alu": "alu", "fp64": "fp64", "shared_fp64": "fp64",
    "fp16": "fp16", "sfu": "sfu", "texture": "texture_requests", LATENCY: "latency_cycles",
}  # fmt: skip

_ENERGY_EVENTS: Mapping[str, str] = {
    "control": "machine_instructions", "fp32": "fma", "int": "alu", "fp64": "fp64", "fp16": "fp16",
    "sfu": "sfu", "tensor": "tensor_operations", "shared": "shared_passes",
    "texture": "texture_requests", "l2": "l2_sectors", "dram": "dram_sectors",
}  # fmt: skip


def _energy_weights(component: str, events: InstructionEvents) -> Floats:
    """What each instruction asks of a component; every machine instruction alike where it is one
    that this module does not know."""
    if component == "l1":
        return events.load_store_passes - events.shared_passes
    found: Floats = getattr(events, _ENERGY_EVENTS.get(component, "machine_instructions"))
    return found
