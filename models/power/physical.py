"""Power as physics has it: idle, plus energy per event times events per second.

    P = P_idle + (P_limit - P_idle) (c_m f_m + (c_0 + c_1 V^2 f) s + V^2 f sum_j w_j a_j
                                     + w_dram a_dram f_m + w_dram_core a_dram V^2 f)
    V = max(V_floor, 1 - k (1 - f))

s is the share of the SMs that have a block: of nine boards, idle or with launches on few SMs, each
says that what is left without any is idle power and the memory's clock (docs/physical.md). f and
f_m are clocks over the reference pair's, V the core voltage over that at the reference, a_j the
units' activities (``models.power.activities``). All weights are >= 0, so a busier unit, more SMs at
work or a higher core clock never draw less at otherwise the same activities. One set of weights per
GPU, fitted by ``studies/fitting/physical/fit.py``; the pooled set serves GPUs nobody measured.
docs/physical.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from pydantic import Field, model_validator

from wattcast.features.activity import Activity
from wattcast.features.checked import Frozen
from wattcast.features.gpus import GpuProfile
from wattcast.models import clocks as clocking
from wattcast.models.cards import ModelCard
from wattcast.models.clocks import ClockPair, largest, rows, smallest, together
from wattcast.models.intervals import Basis, Estimate, at_other_clocks
from wattcast.models.power.activities import (
    UnitActivities,
    load_store_passes,
    per_cycle,
    unit_activities,
)
from wattcast.models.store import Artifact
from wattcast.models.time.beside import NOTHING_BESIDE, Beside

POOLED = "pooled"
"""In the place of a GPU: weights for every GPU that nobody measured."""

SHARED_WEIGHTS: Mapping[str, str] = MappingProxyType({"fp16": "fma", "tensor": "fma"})
"""Units that no program of the published data uses: ``own_weights`` has theirs, from published
energies (``published_weights``) or measured (``wattcast.measure.onboard.run``). Without, a full
unit is taken to draw what a full FMA pipe draws."""

CORE_UNITS = ("issue", "fma", "alu", "fp64", "sfu", "load_store", "l2", "texture")
"""Units with a weight, in the core's clock and voltage domain."""

WEIGHTS = ("base", "memory_clock", "clock", *CORE_UNITS, "dram", "dram_core")
"""Names of the weights, in the order of the regressors."""

COMPONENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "idle": ("base", "memory_clock"),
        "clock": ("clock",),
        "control": ("issue",),
        "fp32": ("fma",),
        "int": ("alu",),
        "fp64": ("fp64",),
        "fp16": ("fp16",),
        "tensor": ("tensor",),
        "sfu": ("sfu",),
        "shared": ("load_store",),
        "texture": ("texture",),
        "l2": ("l2",),
        "dram": ("dram", "dram_core"),
    }
)
"""What a decomposition names, and the terms it adds up. ``clock`` is what the core draws for
running at all: its clock tree and what no unit explains. Of a launch whose accesses are known,
``l1_apart`` takes ``l1``, global and local memory's passes of the load/store units, from
``shared``."""


STANDING = ("idle", "clock")
"""Components that do not depend on what a launch does."""


class VoltageCurve(Frozen):
    """Core voltage over that at the reference clock: ``max(floor, 1 - slope (1 - f))``, and
    ``highest`` at most."""

    floor: float = Field(gt=0, le=1)
    slope: float = Field(ge=0)
    highest: float = Field(default=2.0, ge=1)

    def at(self, relative_core: float) -> float:
        """Relative voltage at ``relative_core``, the core clock over the reference's."""
        curve = largest((self.floor, 1.0 - self.slope * (1.0 - relative_core)))
        found: float = smallest((self.highest, curve))
        return found


class PhysicalParameters(Frozen):
    """Everything the physical model knows of one GPU.

    ``limit_watts`` scales the weights and is the board's power limit; ``highest_watts`` what
    the fitted rows reached.
    ``weights`` are dimensionless, one for each of ``WEIGHTS``; ``own_weights`` for those of
    ``SHARED_WEIGHTS`` that were measured. Those of ``POOLED`` are in the units of ``conversion``;
    its ``families`` are weights for GPUs of a compute capability of which boards were measured.
    """

    gpu: str
    idle_watts: float = Field(gt=0)
    limit_watts: float = Field(gt=0)
    highest_watts: float = Field(gt=0)
    reference_core_mhz: float = Field(gt=0)
    reference_memory_mhz: float = Field(gt=0)
    voltage: VoltageCurve
    weights: dict[str, float]
    own_weights: dict[str, float] = Field(default={})
    families: dict[str, dict[str, float]] = Field(default={})

    @model_validator(mode="after")
    def _sound(self) -> PhysicalParameters:
        if any(tuple(each) != WEIGHTS for each in (self.weights, *self.families.values())):
            raise ValueError(f"weights must be {', '.join(WEIGHTS)}, in this order")
        if not set(self.own_weights) <= set(SHARED_WEIGHTS):
            raise ValueError(f"own_weights may be {', '.join(SHARED_WEIGHTS)}")
        if any(weight < 0 for weight in (*self.weights.values(), *self.own_weights.values())):
            raise ValueError("a weight is negative")
        if self.idle_watts >= self.limit_watts:
            raise ValueError("idle_watts is not below limit_watts")
        return self

    def weight(self, term: str) -> float:
        """The weight of a term of ``regressors``: its own, or the one it shares."""
        return self.all_weights()[term]

    def all_weights(self) -> dict[str, float]:
        """Those of all terms."""
        lent = {name: self.weights[of] for name, of in SHARED_WEIGHTS.items()}
        return {**self.weights, **lent, **self.own_weights}

    @property
    def reference(self) -> ClockPair:
        """The pair at which clocks and voltage are 1."""
        return ClockPair(self.reference_core_mhz, self.reference_memory_mhz)


@dataclass(frozen=True, slots=True)
class PowerBreakdown:
    """Predicted watts and the share of each component; they sum to ``watts``.

    They know no power limit: ``wattcast.models.clocks`` finds the clocks that it leaves.
    """

    watts: float
    components: Mapping[str, float]


def l1_apart(found: PowerBreakdown, activity: Activity) -> PowerBreakdown:
    """The breakdown with ``l1`` beside ``shared``: one weight was fitted to the passes of both,
    and each has its share of what they draw by its passes."""
    passes = load_store_passes(activity)
    whole = found.components["shared"]
    l1 = whole * (passes.l1 / passes.both if passes.both else 0.0)
    parts: dict[str, float] = {}
    for name, watts in found.components.items():
        parts |= {"shared": whole - l1, "l1": l1} if name == "shared" else {name: watts}
    return PowerBreakdown(found.watts, parts)


def regressors(
    activities: UnitActivities, clocks: ClockPair, reference: ClockPair, voltage: VoltageCurve
) -> dict[str, float]:
    """What the weights multiply, dimensionless, by term.

    The terms are ``WEIGHTS`` and those of ``SHARED_WEIGHTS``.
    """
    core = clocks.core_mhz / reference.core_mhz
    volts = voltage.at(core)
    switching = volts * volts * core  # an array's square differs from a number's in the last digit
    memory = clocks.memory_mhz / reference.memory_mhz
    units = (*CORE_UNITS, *SHARED_WEIGHTS)
    return {
        "base": activities.sms,
        "memory_clock": memory,
        "clock": switching * activities.sms,
        **{name: switching * getattr(activities, name) for name in units},
        "dram": activities.dram * memory,
        "dram_core": activities.dram * switching,
    }


def predicted_power(
    parameters: PhysicalParameters, activities: UnitActivities, clocks: ClockPair
) -> PowerBreakdown:
    """Watts at ``clocks``, split into components."""
    scale = parameters.limit_watts - parameters.idle_watts
    terms = regressors(activities, clocks, parameters.reference, parameters.voltage)
    weights = parameters.all_weights()
    watts = {name: scale * weights[name] * value for name, value in terms.items()}
    components = {
        component: sum(map(watts.__getitem__, names)) for component, names in COMPONENTS.items()
    }
    components["idle"] += parameters.idle_watts
    return PowerBreakdown(sum(components.values()), components)


IDLE_SHARE = 0.15
"""Idle power over the board's limit where nobody measured it.

Between Tesla K20 (25 of 225 W, thesis) and the idle watts at default clocks of Titan V (.17),
Tesla K40c (.27) and GTX Titan X (.30) in their profiles; recent boards idle lower.
"""


PROCESS_NM = ((6.0, 28.0), (7.0, 16.0), (8.0, 12.0), (8.6, 7.0), (8.9, 8.0), (99.0, 5.0))
"""Process of the chips below a compute capability, in the foundry's nm: TSMC 28 (Kepler, Maxwell),
16 (Pascal), 12 (Volta, Turing), 7 (GA100), Samsung 8 (GA10x), TSMC 4N, which is a 5 nm process
(Ada, Hopper, Blackwell). NVIDIA's white papers on each architecture."""

PROCESS_EXPONENT = 0.8
"""Energy of an event is taken to fall with this power of the process' nm. Of 0.4 to 1 each predicts
boards left out about as well (docs/physical.md)."""

WIRES = ("l2", "dram_core")
"""Terms that do not fall with the process: they carry bits across the chip, and the energy of a bit
and a millimetre hardly changes (S. W. Keckler et al., "GPUs and the Future of Parallel Computing",
IEEE Micro 31(5), 2011; M. Horowitz, "Computing's Energy Problem", ISSCC 2014)."""

ON_PACKAGE = ("HBM", "LPDDR")
"""Memory beside the chip, whose interface draws little while it only runs; that of GDDR draws
its share of the board for as long as its clock runs (``memory_clock``)."""

ON_PACKAGE_CLOCK = 0.3
"""What ``clock`` counts on such boards. Their chips run near their lowest voltage: P100, V100 and
A100 draw 10 to 35 W of 250 and 400 there, boards with GDDR 50 to 100 W (docs/physical.md)."""

ABOVE_RATED = 1.1
"""GeForce and TITAN boards with GDDR boost above their rated clock: energies are those at this many
times it, and the voltage rises by as much again. Chosen by boards left out (docs/physical.md)."""

TENSOR_PICOJOULES = 3.9
"""Energy of an FP16 or BF16 multiply-add of the matrix units with FP32 accumulation, its operands
from registers, at 12 nm and the highest clock, for random normal values.

H. He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given "Predictable" Data!"
(thonking.ai, 2024): BF16, 8192 cubed, on an A100 at its limit of 400 W: 257 TFLOP/s with normally
distributed values, 295 with zeros, which keep below the limit. So the clock fell to 0.87 and the
voltage to 0.87 (``idle_power_voltage.csv``: 0.80 of 0.92 V). Of the 400 W 70 are idle and clock
(the same table), 84 what the other weights say of such a kernel's issue, shared memory, L2 and
device memory (tiles of 256 x 128 x 32, warps of 64 x 64). That leaves 1.9 pJ, 2.5 at the highest
voltage, 3.9 at 12 nm."""

TENSOR_VALUES = 0.4
"""Share by which the power of a matrix product falls at most with other values: "almost 40 %"
(T. Gregersen, P. Patel and E. Choukse, "Input-Dependent Power Usage in GPUs", SC24 workshops,
arXiv:2409.18324; up to 67 % of the lower for DGEMM on A100: S. Bhalachandra et al.,
arXiv:2212.08805). Answers are for random values, for zeros where a launch says that all its data
are zeros; the interval spans both."""


def process_factor(gpu: GpuProfile) -> float:
    """Energy of an event by the chip's process over that at 12 nm."""
    capability = float(gpu.compute_capability)
    nanometres = next(nm for below, nm in PROCESS_NM if capability < below)
    return float((nanometres / 12.0) ** PROCESS_EXPONENT)


def published_weights(
    gpu: GpuProfile, reference: ClockPair, scale_watts: float, fma_weight: float
) -> dict[str, float]:
    """Weights of ``SHARED_WEIGHTS`` on a GPU that were not measured on it.

    A lane's pair of FP16 results is taken to cost what an FP32 result costs. A multiply-add of
    the matrix units costs ``TENSOR_PICOJOULES``; one of another type as its time (a guess).
    """
    sm, events = gpu.capability, events_per_second(gpu, reference)
    found = {"fp16": fma_weight * sm.fp16_lanes / 2 / sm.fp32_lanes}
    if sm.tensor_fma_per_clock:
        pico = TENSOR_PICOJOULES * process_factor(gpu)
        found["tensor"] = 1e-12 * pico * events["tensor"] / scale_watts
    return found


def events_per_second(gpu: GpuProfile, clocks: ClockPair) -> dict[str, float]:
    """Events of each unit at an activity of 1; a unit that the GPU lacks has 0.

    A warp instruction issued (``issue``), one lane's result of a pipe, a multiply-add of a matrix
    unit, one lane's pass of load/store, a sector of L2, a byte of device memory (``dram``).
    """
    cycles = gpu.sm_count * clocks.core_hz
    each = {name: most * cycles for name, most in per_cycle(gpu).items()}
    return {**each, "dram": clocking.bandwidth_bytes_per_second(gpu, clocks.memory_mhz)}


def conversion(gpu: GpuProfile, reference: ClockPair, idle_watts: float) -> dict[str, float]:
    """What each of the pooled weights is multiplied by on a GPU, by name.

    Pooled weights of units are picojoules of an event at 12 nm (``WIRES``: at any), of ``base``,
    ``memory_clock`` and ``clock`` shares of what a board may draw above ``idle_watts``.
    """
    process = process_factor(gpu)
    near = _on_package(gpu)
    events = events_per_second(gpu, reference)
    pico = {
        name: 1e-12 * events[name] / (gpu.tdp_watts - idle_watts) for name in (*CORE_UNITS, "dram")
    }
    return {
        "base": 1.0,
        "memory_clock": 0.0 if near else 1.0,
        "clock": ON_PACKAGE_CLOCK if near else 1.0,
        **{name: pico[name] * (1.0 if name in WIRES else process) for name in CORE_UNITS},
        "dram": pico["dram"],
        "dram_core": pico["dram"],
    }


def parameters_for(gpu: GpuProfile, pooled: PhysicalParameters) -> PhysicalParameters:
    """The pooled weights with a GPU's datasheet facts: for a GPU nobody measured.

    Idle power in a profile was measured with clocks held. On boards with GDDR what of it exceeds
    ``IDLE_SHARE`` goes with the memory's clock: measured, that is the same on a GTX Titan X. What a
    board draws for running at all is then a share of what is left above it.
    GeForce and TITAN boards run ``ABOVE_RATED``, of others no higher voltage is assumed above the
    rated clock. Below it the profile's lowest voltage counts, where somebody measured it.
    """
    idle, held = IDLE_SHARE * gpu.tdp_watts, gpu.idle_watts
    if held is not None:
        idle = held if _on_package(gpu) else min(held, idle)
    consumer = "GeForce" in gpu.name or "TITAN" in gpu.name
    boost = ABOVE_RATED if consumer and not _on_package(gpu) else 1.0
    reference = ClockPair(boost * gpu.max_core_mhz, gpu.memory_mhz)
    factors = conversion(gpu, reference, idle)
    voltage = {"highest": boost, "floor": gpu.lowest_voltage or pooled.voltage.floor}
    shared = pooled.families.get(gpu.compute_capability, pooled.weights)
    weights = {name: shared[name] * factors[name] for name in WEIGHTS}
    if held is not None and held > idle:
        above = (gpu.tdp_watts - held) / (gpu.tdp_watts - idle)
        weights |= {name: above * weights[name] for name in ("base", "clock")}
        weights["memory_clock"] = 1.0 - above
    return pooled.model_copy(
        update={
            "gpu": gpu.id,
            "idle_watts": idle,
            "limit_watts": gpu.tdp_watts,
            "highest_watts": gpu.tdp_watts,
            "reference_core_mhz": reference.core_mhz,
            "reference_memory_mhz": reference.memory_mhz,
            "voltage": pooled.voltage.model_copy(update=voltage),
            "weights": weights,
            "own_weights": published_weights(gpu, reference, gpu.tdp_watts - idle, weights["fma"]),
            "families": {},
        }
    )


def _on_package(gpu: GpuProfile) -> bool:
    return (gpu.memory_kind or "").startswith(ON_PACKAGE)


# --- the physical power model as it serves: parameters from an artifact, intervals from its car


TOLERANCE = 0.05
"""How far an activity may lie beyond the training rows' before it counts as extrapolated: the
resolution of a prediction, not a measured figure."""

CLOCKS = ("core_mhz", "memory_mhz")
"""Features of a card whose rows ran at few clocks (a calibration's): the range they span."""

SAME_CLOCK = 0.01
"""Clocks this near, relatively, are the same setting: NVML reports the supported step beside the
one asked for."""


@dataclass(frozen=True, slots=True)
class WorkAtTime:
    """One launch, or another case of it: what it does and how long that takes."""

    activity: Activity
    time_seconds: float
    more: Beside = NOTHING_BESIDE


@dataclass(frozen=True, slots=True)
class PhysicalPower:
    """Predicted power with its interval and decomposition.

    ``outside`` names the units that work harder than in any training row, and the clocks that
    no training row ran near (``CLOCKS``).
    """

    estimate: Estimate
    components: Mapping[str, float]
    outside: tuple[str, ...]


class PhysicalPowerModel:
    """One artifact for one GPU. Stateless; safe to share between threads.

    ``typical_voltage`` tells that the voltage curve is that of other GPUs, ``lent_by`` names the
    board of the same chip that was measured instead. Raises ModelError for a file that holds no
    parameters.
    """

    def __init__(self, artifact: Artifact, gpu: GpuProfile) -> None:
        self.card: ModelCard = artifact.card
        stored = artifact.parameters(PhysicalParameters)
        self.pooled = stored.gpu == POOLED
        self.gpu = gpu
        self.parameters = parameters_for(gpu, stored) if self.pooled else stored
        measured_on = str(self.card.hyperparameters.get("measured_on", gpu.id))
        self.lent_by = "" if measured_on == gpu.id else measured_on
        self.typical_voltage = self.pooled or bool(self.card.hyperparameters.get("pooled_voltage"))
        facts = {fact.name: fact for fact in self.card.features}
        self._clocks = {
            name: (facts[name].minimum, facts[name].maximum) for name in CLOCKS if name in facts
        }
        # A card made before ``sms`` was told names none: its rows filled their GPUs.
        highest = (facts[name].maximum if name in facts else 1.0 for name in UnitActivities._fields)
        ends = (self._clocks.get(name, (0.0, inf)) for name in CLOCKS)
        self._trained = [
            *((-inf, most + TOLERANCE) for most in highest),
            *((low * (1 - SAME_CLOCK), high * (1 + SAME_CLOCK)) for low, high in ends),
        ]

    def predict(self, work: WorkAtTime, clocks: ClockPair) -> PhysicalPower:
        """Power at ``clocks``."""
        return self.predictions(work, [clocks])[0]

    def predictions(
        self,
        work: WorkAtTime,
        pairs: Sequence[ClockPair],
        cases: Sequence[WorkAtTime] = (),
        zeros: bool = False,
    ) -> list[PhysicalPower]:
        """Power at each pair, for which ``work`` and ``cases`` have the time, ``[n]`` of several.

        The interval spans ``cases``, which the truth may be instead. ``zeros``: all data are zeros,
        so matrix units toggle least.
        """
        clocks, of = together(pairs), self.parameters
        activities, *others = (
            unit_activities(each.activity, self.gpu, clocks, each.time_seconds, more=each.more)
            for each in (work, *cases)
        )
        breakdown = l1_apart(predicted_power(of, activities, clocks), work.activity)
        watts = [predicted_power(of, each, clocks).watts for each in others]
        return self._told(activities, breakdown, pairs, watts, zeros)

    def of_activities(
        self, activities: UnitActivities, clocks: ClockPair, zeros: bool = False
    ) -> PhysicalPower:
        """The same from activities that are known."""
        breakdown = predicted_power(self.parameters, activities, clocks)
        return self._told(activities, breakdown, [clocks], (), zeros)[0]

    def _told(
        self,
        activities: UnitActivities,
        breakdown: PowerBreakdown,
        pairs: Sequence[ClockPair],
        cases: Sequence[float],
        zeros: bool,
    ) -> list[PhysicalPower]:
        """Pair by pair, with the interval that spans the watts of ``cases``."""
        watts, components = breakdown.watts, breakdown.components
        # A matrix product's values may toggle least; of a unit that was measured too, since that
        # was with values of its own.
        tensor = components["tensor"]
        moving = watts - sum(components[name] for name in STANDING)
        quiet = watts * (1.0 - TENSOR_VALUES * (tensor / (moving + (moving == 0.0))))
        others = [*cases, watts, quiet]
        if zeros:
            less = smallest((watts - quiet, tensor))
            components = {**components, "tensor": tensor - less}
            watts -= less
        widths, idle = self.card.intervals, self.parameters.idle_watts
        names, found = (*activities._fields, *CLOCKS), []
        spans = rows(len(pairs), watts, smallest(others), largest(others))
        inputs = rows(len(pairs), *activities, *together(pairs))
        parts = rows(len(pairs), *components.values())
        for clocks, (value, least, most), given, split in zip(
            pairs, spans, inputs, parts, strict=True
        ):
            told = zip(names, given, self._trained, strict=True)
            outside = tuple(name for name, one, (low, high) in told if not low <= one <= high)
            # A pooled model is calibrated on GPUs left out: its unseen width is that of a new GPU.
            width = widths.extrapolated if outside else widths.unseen_kernel
            low = max(float(width.around(least)[0]), min(idle, least))
            high = float(width.around(most)[1])
            basis: Basis = "extrapolated" if outside or self.lent_by else "unseen_kernel"
            basis = "uncalibrated" if self.pooled else basis
            estimate = Estimate(value, low, high, widths.level, basis)
            if any(name in CLOCKS for name in outside):
                ends = self._clocks.items()
                near = {n: min(max(getattr(clocks, n), a), b) for n, (a, b) in ends}
                distance = clocking.clock_distance(clocks, clocks._replace(**near))
                estimate = at_other_clocks(estimate, distance)
                estimate = replace(estimate, low=max(estimate.low, min(low, idle)))
            watts_of = dict(zip(components, split, strict=True))
            found.append(PhysicalPower(estimate, watts_of, outside))
        return found
