"""Wang and Chu's time model under core and memory clocks: parameters, inputs, network form.

    delays(memory, clocks, hit_rate)     latency and service time of a transaction (Eq. 4, 5)
    network_form(launch, gpu, clocks)    the busiest server, and servers that wait for each other
    queueing_model.case_form(...)        the published case distinction, corrected

Q. Wang and X. Chu, "GPGPU Performance Estimation with Core and Memory Frequency Scaling",
ICPADS 2018. The print has errors; docs/frequency.md lists every correction and what each form
reaches against measured times. Times are core clock cycles unless a name says otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite
from typing import NamedTuple

from wattcast.features.errors import Diagnostic, LaunchError
from wattcast.models.clocks import ClockPair, checked

# --- parameters of a GPU ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DramService:
    """D: core cycles between two sectors one SM gets from device memory, at equal clocks.

    ``cycles`` at the ``memory_mhz`` it was measured at, both in the order of rising clocks.
    """

    memory_mhz: tuple[float, ...]
    cycles: tuple[float, ...]

    def at(self, memory_mhz: float) -> float:
        """D at a memory clock: exact where measured, on the line between neighbours elsewhere.

        Beyond the ends the nearest measurement holds: none says that memory becomes yet more
        or less efficient.
        """
        clocks, cycles = self.memory_mhz, self.cycles
        above = bisect_left(clocks, memory_mhz)
        if above == 0:
            return cycles[0]
        if above == len(clocks):
            return cycles[-1]
        share = (memory_mhz - clocks[above - 1]) / (clocks[above] - clocks[above - 1])
        return cycles[above - 1] + share * (cycles[above] - cycles[above - 1])


def smooth_service_cycles(a: float, b: float, memory_mhz: float) -> float:
    """D = a / f_m + b, the smooth form: ``a`` in cycles x MHz, ``b`` in cycles."""
    return a / memory_mhz + b


@dataclass(frozen=True, slots=True)
class QueueingGpu:
    """A GPU as the model knows it.

    ``latency_core_cycles`` + ``latency_memory_cycles`` x clock ratio is dm_lat; ``ratio_scale``
    turns core MHz / memory MHz into that ratio (1 on the GPU they were measured on). ``l2_*`` and
    ``shared_latency`` are l2_lat, l2_del and sh_lat; ``shared_service`` is what one pass through
    shared memory takes, ``issue_cycles`` inst_cycle, what one warp instruction costs an SM (its
    issue, not its latency: see docs/frequency.md). ``launch_seconds`` starts a kernel.
    ``diagnostics`` say what stands in for a missing fact.
    """

    sm_count: int
    issue_cycles: float
    latency_core_cycles: float
    latency_memory_cycles: float
    service: DramService
    ratio_scale: float = 1.0
    l2_latency: float = 222.0
    l2_service: float = 1.0
    shared_latency: float = 28.0
    shared_service: float = 1.0
    launch_seconds: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()


# --- what one launch is -----------------------------------------------------------------------


_ABOVE_0 = ("resident_warps", "warps_per_block", "blocks", "outer_iterations", "mlp")


@dataclass(frozen=True, slots=True)
class QueueingLaunch:
    """One launch as plain numbers; what a warp does is the mean over all warps.

    ``instructions``: n_i, without those that access memory. ``transactions``: g, 32-byte sectors
    at L2, loads and stores. ``hit_rate``: the share of them that device memory does not see.
    ``resident_warps``: Aw of one SM. ``shared_transactions``: n_s. ``extra_cycles``: what slower
    pipes (FP64, special functions) hold an SM beyond the issue of their instructions, the
    specification's dp_extra. ``texture_cycles``: what the texture units take; they work beside
    the rest.

    ``outer_iterations`` and ``inner_iterations`` (o, i) are those of a kernel that works through
    shared memory: transfers from global memory, and shared accesses after each. Without them
    the case form leaves shared memory out.

    ``mlp``: transactions under way between two waits of a warp, infinite if it never waits.
    ``chain_cycles``: dependent instructions and shared accesses of a warp, at their latencies.
    Without ``mlp`` there is no latency floor.
    """

    instructions: float
    transactions: float
    hit_rate: float
    resident_warps: float
    warps_per_block: float
    blocks: float
    shared_transactions: float = 0.0
    extra_cycles: float = 0.0
    texture_cycles: float = 0.0
    outer_iterations: float | None = None
    inner_iterations: float | None = None
    mlp: float | None = None
    chain_cycles: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate <= 1:
            raise LaunchError(
                f"hit_rate is {self.hit_rate}; it must lie between 0 and 1", field="hit_rate"
            )
        for name in self.__slots__:
            value, above = getattr(self, name), name in _ABOVE_0
            if value is None or (
                (value > 0 or (value == 0 and not above)) and (isfinite(value) or name == "mlp")
            ):
                continue
            must = "be above 0" if above else "not be negative"
            raise LaunchError(f"{name} is {value}; it must {must}", field=name)


class Rounds(NamedTuple):
    """How a grid passes through an SM: ``resident_warps`` at a time, ``rounds`` times.

    ``warps`` is the work of the busiest SM: blocks are handed out whole, and only as many SMs
    work as there are blocks.
    """

    warps: float
    resident_warps: float
    rounds: float


def rounds_of(launch: QueueingLaunch, sm_count: int) -> Rounds:
    """Eq. 6 with whole blocks: #Wpb x #B / (#Aw x #SM) where the SMs divide the blocks.

    With fewer blocks than SMs the others idle (Table IV calls those at work #Asm), so each SM
    at work has one block; an SM that is never full has one round of what it gets.
    """
    warps = ceil(launch.blocks / sm_count) * launch.warps_per_block
    resident = min(launch.resident_warps, warps)
    return Rounds(warps, resident, warps / resident)


# --- memory -----------------------------------------------------------------------------------


class Delays(NamedTuple):
    """Memory at one pair of clocks, in core cycles.

    ``dram_latency`` dm_lat, ``dram_service`` dm_del; ``latency`` agl_lat and ``service`` agl_del
    average over hits and misses in L2.
    """

    dram_latency: float
    dram_service: float
    latency: float
    service: float


def delays(gpu: QueueingGpu, clocks: ClockPair, hit_rate: float) -> Delays:
    """Eq. 4 and 5. The print scales the latency's core-clocked part too; here Eq. 4 stands alone.

    Raises LaunchError for a clock that is not above 0.
    """
    ratio = checked(clocks).core_mhz / clocks.memory_mhz
    dram_latency = gpu.latency_core_cycles + gpu.latency_memory_cycles * ratio * gpu.ratio_scale
    dram_service = gpu.service.at(clocks.memory_mhz) * ratio
    miss = 1 - hit_rate
    return Delays(
        dram_latency,
        dram_service,
        gpu.l2_latency * hit_rate + dram_latency * miss,
        gpu.l2_service * hit_rate + dram_service * miss,
    )


# --- network form --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormTime:
    """A predicted time: ``cycles`` of the core clock ``core_mhz``, and what they are made of.

    ``parts`` are core cycles: what each server needs alone, ``overlap`` what they add by
    waiting for each other, ``latency`` and ``chain``.
    """

    cycles: float
    core_mhz: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Eq. 6 yields core cycles."""
        return self.cycles / (self.core_mhz * 1e6)


WARPS_TOGETHER = 8
"""Warps that count as one customer at most: the usual block of the kernels the form was checked
with. Chosen, not measured; docs/frequency.md says what whole blocks would give."""


def network_form(
    launch: QueueingLaunch,
    gpu: QueueingGpu,
    clocks: ClockPair,
) -> FormTime:
    """Servers as a closed queueing network, its customers the resident blocks.

    L2 and device memory serve side by side, and so do the texture units. With many customers
    the busiest server decides; with few, one that waits at a server leaves
    the others idle, and one alone passes through them one after the other. Warps of a block do
    the same at about the same time, ``WARPS_TOGETHER`` of them at most.
    """
    memory = delays(gpu, clocks, launch.hit_rate)
    rounds = rounds_of(launch, gpu.sm_count)
    per_warp = {
        "sm": sm_cycles(launch, gpu),
        "texture": launch.texture_cycles,
        "l2": gpu.l2_service * launch.transactions,
        "dram": memory.dram_service * launch.transactions * (1 - launch.hit_rate),
    }
    # All SMs share device memory: what an idle one leaves, the others get.
    mean = launch.blocks * launch.warps_per_block / gpu.sm_count
    customers = min(launch.resident_warps, mean) / min(launch.warps_per_block, WARPS_TOGETHER)
    queued = closed_network_cycles([mean * each for each in per_warp.values()], customers)
    # Device memory is everyone's, the rest the SM's own: there the busiest has more to do.
    servers = {name: rounds.warps * each for name, each in per_warp.items()}
    servers["dram"] = mean * per_warp["dram"]
    busiest = max(servers.values())
    parts = {
        **servers,
        "overlap": max(0.0, queued - busiest),
        # Latencies that nothing hides: one a round.
        "latency": rounds.rounds * memory.dram_latency if launch.transactions else 0.0,
        "chain": latency_floor(launch, gpu, clocks),
    }
    cycles = max(busiest + parts["overlap"] + parts["latency"], parts["chain"])
    return FormTime(cycles, clocks.core_mhz, parts)


def closed_network_cycles(demands: Sequence[float], customers: float) -> float:
    """Time in which servers work off their ``demands``, ``customers`` of them at a time.

    Exact for a closed product-form network (J. P. Buzen, "Computational algorithms for closed
    queueing networks with exponential servers", CACM 1973): total / throughput with throughput
    G(N-1) / G(N), each customer bringing an equal share of every demand. It lies between the sum
    (one customer) and the largest (many). A customer's time in the network is interpolated
    between whole numbers of them, so that it never falls with their number; below 1 counts as 1.
    """
    most = max(demands)
    if not most:
        return 0.0
    present = max(1.0, customers)
    whole = floor(present)
    constants = [1.0] + [0.0] * (whole + 1)
    for demand in demands:
        # Relative to the largest: powers of the cycles themselves would overflow.
        for count in range(1, whole + 2):
            constants[count] += demand / most * constants[count - 1]
    here, above = (count * constants[count] / constants[count - 1] for count in (whole, whole + 1))
    return most * (here + (present - whole) * (above - here)) / present


def latency_floor(launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> float:
    """What one warp after the other takes at least: g / mlp waits and its dependent instructions.

    0 without ``mlp``. It matters where few warps are resident. The specification's floor,
    (g / mlp)(agl_lat + avr_comp Aw) below an occupancy of 0.3, ends at that occupancy, so that
    more blocks could take less time; a warp's own chain holds at every occupancy.
    """
    if launch.mlp is None:
        return 0.0
    memory = delays(gpu, clocks, launch.hit_rate)
    chain = launch.transactions / launch.mlp * memory.latency + launch.chain_cycles
    return rounds_of(launch, gpu.sm_count).rounds * chain


def sm_cycles(launch: QueueingLaunch, gpu: QueueingGpu) -> float:
    """What one warp holds its SM: issue, shared memory passes, slower pipes."""
    issue = launch.instructions * gpu.issue_cycles
    return issue + launch.shared_transactions * gpu.shared_service + launch.extra_cycles
