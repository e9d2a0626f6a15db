"""The published case distinction of Wang and Chu's model (Eq. 8 to 21), corrected.

Which equation holds depends on what a warp does between two global transactions (avr_comp)
against what memory takes for one (agl_del, agl_lat). ``Reading`` undoes single corrections, so
that what each is worth can be measured; docs/frequency.md gives their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from wattcast.models.clocks import ClockPair
from wattcast.models.time.queueing import (
    Delays,
    QueueingGpu,
    QueueingLaunch,
    Rounds,
    delays,
    rounds_of,
)

Case = Literal[
    "no global memory",
    "compute (9)",
    "memory (11)",
    "few warps, short (13)",
    "few warps, long (15)",
    "shared, infrequent (17)",
    "shared, intensive (21)",
]


class Reading(NamedTuple):
    """Which corrections apply.

    ``saturated_by_other_warps``: (10b) and (12b) exchanged, so that memory is saturated where
    the other warps' service covers one warp's round trip. ``round_of_active_warps``: Eq. 11
    serves #Aw warps, not #Wpb. ``latency_of_eq_4``: Eq. 5a takes dm_lat at the clocks rather
    than that of equal clocks times their ratio.
    """

    saturated_by_other_warps: bool = True
    round_of_active_warps: bool = True
    latency_of_eq_4: bool = True


CORRECTED = Reading()
PRINTED = Reading(False, False, False)


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


class _Terms(NamedTuple):
    """The paper's symbols: a avr_comp, L agl_lat, Q agl_del, Aw, Wpb, g per warp."""

    a: float
    latency: float
    service: float
    resident: float
    per_block: float
    transactions: float
    shared_latency: float


def case_form(
    launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair, reading: Reading = CORRECTED
) -> CaseTime:
    """T_active and T_exec by the case that applies. Raises LaunchError for clocks not above 0.

    Shared memory has cases of its own where ``outer_iterations`` and ``inner_iterations`` are
    known. A kernel without global transactions only issues.
    """
    memory = _memory(launch, gpu, clocks, reading)
    rounds = rounds_of(launch, gpu.sm_count)
    issue = gpu.issue_cycles * launch.instructions
    if not launch.transactions:
        return CaseTime(
            "no global memory",
            issue * rounds.resident_warps,
            rounds,
            issue,
            memory,
            clocks.core_mhz,
        )
    terms = _Terms(
        issue / launch.transactions,
        memory.latency,
        memory.service,
        rounds.resident_warps,
        launch.warps_per_block,
        launch.transactions,
        gpu.shared_latency,
    )
    outer, inner = launch.outer_iterations, launch.inner_iterations
    if launch.shared_transactions and outer is not None and inner is not None:
        case, active = _with_shared(terms, outer, inner)
    else:
        case, active = _without_shared(terms, reading)
    return CaseTime(case, active, rounds, terms.a, memory, clocks.core_mhz)


def _memory(
    launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair, reading: Reading
) -> Delays:
    found = delays(gpu, clocks, launch.hit_rate)
    if reading.latency_of_eq_4:
        return found
    ratio = clocks.core_mhz / clocks.memory_mhz
    at_equal_clocks = gpu.latency_core_cycles + gpu.latency_memory_cycles * gpu.ratio_scale
    latency = gpu.l2_latency * launch.hit_rate + at_equal_clocks * ratio * (1 - launch.hit_rate)
    return found._replace(latency=latency)


def _without_shared(terms: _Terms, reading: Reading) -> tuple[Case, float]:
    """Eq. 8 to 15. One outer iteration is one transaction, so o is g."""
    a, latency, service, resident = terms.a, terms.latency, terms.service, terms.resident
    outer = terms.transactions
    if a >= service:
        if a * (resident - 1) >= latency:
            return "compute (9)", a * resident * outer + latency
        return "few warps, long (15)", a * (resident - 1) + (a + latency) * outer
    covered = service * (resident - 1) >= a + latency
    if covered == reading.saturated_by_other_warps:
        served = resident if reading.round_of_active_warps else terms.per_block
        return "memory (11)", latency + a + service * served * outer
    # Less than one transaction a warp: that share of the warps waits for a first one.
    first = service * resident * min(outer, 1.0) + latency + a
    return "few warps, short (13)", first + (a + latency) * max(outer - 1, 0.0)


def _with_shared(terms: _Terms, outer: float, inner: float) -> tuple[Case, float]:
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
