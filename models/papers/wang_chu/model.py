"""Wang and Chu's model behind the interface of all time models: ``queueing``, ``queueing-cases``.

Times of other core and memory clocks are what it is for: device memory runs at the one, the
SMs and L2 at the other, and each form says what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, checked, default_clocks
from wattcast.models.papers.thesis.work import Timed, executed_span, work_of
from wattcast.models.papers.wang_chu.inputs import gpu_parameters, launch_of
from wattcast.models.papers.wang_chu.network import (
    Delays,
    QueueingGpu,
    QueueingLaunch,
    Rounds,
    delays,
    network_form,
    rounds_of,
)
from wattcast.models.time.base import Floats, Regime, TimePrediction, summed
from wattcast.models.time.calibration import estimate_within, spread

# --- the published case distinction of Wang and Chu's model (Eq. 8 to 21), corrected ----------
# Which equation holds depends on what a warp does between two global transactions (avr_comp)
# against what memory takes for one (agl_del, agl_lat). docs/frequency.md gives the reasons of the
# corrections; ``studies.papers.wang_chu.forms`` undoes them one by one.


Case = Literal[
    "no global memory",
    "compute (9)",
    "memory (11)",
    "few warps, short (13)",
    "few warps, long (15)",
    "shared, infrequent (17)",
    "shared, intensive (21)",
]


@dataclass(frozen=True, slots=True)
class CaseTime:
    """``case`` names the equation; ``active_cycles`` is T_active, ``cycles`` T_exec (Eq. 6).

    ``compute_cycles`` is avr_comp, ``delays`` the memory at these clocks. All in cycles of the
    core clock ``core_mhz``.
    """

    case: Case
    active_cycles: float
    rounds: Rounds
    compute_cycles: float
    delays: Delays
    core_mhz: float

    @property
    def cycles(self) -> float:
        """T_exec."""
        return self.active_cycles * self.rounds.rounds

    @property
    def seconds(self) -> float:
        """T_exec in seconds: it is counted in core cycles."""
        return self.cycles / (self.core_mhz * 1e6)


class Terms(NamedTuple):
    """The paper's symbols: a avr_comp, L agl_lat, Q agl_del, Aw, Wpb, g per warp."""

    a: float
    latency: float
    service: float
    resident: float
    per_block: float
    transactions: float
    shared_latency: float


def terms_of(
    launch: QueueingLaunch, gpu: QueueingGpu, memory: Delays, rounds: Rounds, issue_cycles: float
) -> Terms:
    """The terms of a launch's cases; ``issue_cycles``: core cycles of issue per transaction."""
    return Terms(
        issue_cycles, memory.latency, memory.service, rounds.resident_warps,
        launch.warps_per_block, launch.transactions, gpu.shared_latency,
    )  # fmt: skip


def case_form(launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> CaseTime:
    """T_active and T_exec by the case that applies. Raises LaunchError for clocks not above 0.

    Shared memory has cases of its own where ``outer_iterations`` and ``inner_iterations`` are
    known. A kernel without global transactions only issues.
    """
    memory = delays(gpu, clocks, launch.hit_rate)
    rounds = rounds_of(launch, gpu.sm_count)
    issue = gpu.issue_cycles * launch.instructions
    if not launch.transactions:
        active = issue * rounds.resident_warps
        return CaseTime("no global memory", active, rounds, issue, memory, clocks.core_mhz)
    terms = terms_of(launch, gpu, memory, rounds, issue / launch.transactions)
    outer, inner = launch.outer_iterations, launch.inner_iterations
    if launch.shared_transactions and outer is not None and inner is not None:
        case, active = with_shared(terms, outer, inner)
    else:
        case, active = _without_shared(terms)
    return CaseTime(case, active, rounds, terms.a, memory, clocks.core_mhz)


def _without_shared(terms: Terms) -> tuple[Case, float]:
    """Eq. 8 to 15. One outer iteration is one transaction, so o is g."""
    a, latency, service, resident = terms.a, terms.latency, terms.service, terms.resident
    outer = terms.transactions
    if a >= service:
        if a * (resident - 1) >= latency:
            return "compute (9)", a * resident * outer + latency
        return "few warps, long (15)", a * (resident - 1) + (a + latency) * outer
    if service * (resident - 1) >= a + latency:
        return "memory (11)", latency + a + service * resident * outer
    # Less than one transaction a warp: that share of the warps waits for a first one.
    first = service * resident * min(outer, 1.0) + latency + a
    return "few warps, short (13)", first + (a + latency) * max(outer - 1, 0.0)


def with_shared(terms: Terms, outer: float, inner: float) -> tuple[Case, float]:
    """Eq. 16 to 21; in the paper's equations gld_trans counts one outer iteration."""
    a, latency, service = terms.a, terms.latency, terms.service
    resident, per_block, shared = terms.resident, terms.per_block, terms.shared_latency
    # (16b) has one shared access; i of them take i times as long to hide.
    hidden = (a + shared) * inner <= service * (resident - per_block)
    if a <= service and hidden:
        return "shared, infrequent (17)", a + latency + service * resident * terms.transactions
    each = terms.transactions / outer
    phase1 = 2 * a + service * each * resident + latency + shared
    phase2 = a * (per_block - 1) + (a + shared) * inner
    phase3 = 2 * a + service * each * per_block + latency + shared
    return "shared, intensive (21)", phase1 + (phase2 + phase3) * outer


# --- Wang and Chu's model behind the interface of all time models: ``queueing``, ``queueing-cas


_SERVERS: Mapping[str, Regime] = {
    "sm": "compute",
    "texture": "compute",
    "l2": "compute",
    "dram": "memory",
    "latency": "latency",
}
_CASES: Mapping[Case, Regime] = {
    "no global memory": "compute",
    "compute (9)": "compute",
    "memory (11)": "memory",
    "few warps, short (13)": "latency",
    "few warps, long (15)": "latency",
    "shared, infrequent (17)": "memory",
    "shared, intensive (21)": "compute",
}


class _QueueingModel:
    """What both forms share: the launch as they take it, its start, and the interval."""

    family: ClassVar[str]

    def _timed(self, launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> Timed:
        raise NotImplementedError

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``. The interval also holds what uncertain
        trip counts would execute.

        Raises ModelError for matrix instructions on a GPU without tensor cores.
        """
        pair = checked(clocks or default_clocks(gpu))
        parameters = gpu_parameters(gpu)
        launch = launch_of(analysis, gpu, parameters.shared_latency)
        found = self._timed(launch, parameters, pair)
        start = parameters.launch_seconds
        seconds = found.seconds + start
        less, more = executed_span(work_of(analysis))
        width = spread(self.family, gpu.id)
        return TimePrediction(
            family=self.family,
            estimate=estimate_within(seconds, seconds * less, seconds * more, width),
            clocks=pair,
            parts={**found.parts, "launch": start},
            regime="launch" if start > found.seconds else found.regime,
            diagnostics=parameters.diagnostics,
        )


class QueueingTimeModel(_QueueingModel):
    """Servers that wait for each other (``network_form``). Stateless.

    ``parts`` are seconds: ``sm``, ``texture``, ``l2`` and ``dram`` what each server needs alone,
    ``overlap`` what they add by waiting, ``latency`` the latency of every round; the sum of the
    largest server, ``overlap`` and ``latency`` counts, but no less than ``chain``, one warp after
    the other. ``launch``, the start of the kernel, comes on top. More blocks or a lower clock
    of either kind never shorten a prediction.
    """

    family = "queueing"

    @staticmethod
    def combined(parts: Mapping[str, Floats]) -> Floats:
        """``network_form``: the busiest server, waiting, latency; or the chain."""
        busiest = np.max([parts[name] for name in ("sm", "texture", "l2", "dram")], axis=0)
        found: Floats = np.maximum(busiest + parts["overlap"] + parts["latency"], parts["chain"])
        return found

    def _timed(self, launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> Timed:
        found = network_form(launch, gpu, clocks)
        parts = {name: cycles / clocks.core_hz for name, cycles in found.parts.items()}
        regime = _SERVERS[max(_SERVERS, key=lambda each: found.parts[each])]
        if found.cycles <= found.parts["chain"]:
            regime = "latency"
        return Timed(found.seconds, parts, regime)


class QueueingCasesTimeModel(_QueueingModel):
    """The published case distinction, corrected (``case_form``). Stateless.

    ``parts`` are summands in seconds: ``active``, T_active over all rounds, under the name of its
    case, and ``launch``. A chain of one transaction at a time: it knows no parallel
    requests of a warp and overestimates kernels that do not saturate memory. Where one case gives
    way to another a higher core clock can lengthen a prediction a little (docs/frequency.md).
    """

    family = "queueing-cases"
    combined = staticmethod(summed)

    def _timed(self, launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> Timed:
        found = case_form(launch, gpu, clocks)
        return Timed(found.seconds, {found.case: found.seconds}, _CASES[found.case])
