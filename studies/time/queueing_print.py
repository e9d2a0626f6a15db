"""Wang and Chu's forms that no user is answered by: the max form, and the cases as printed.

``Reading`` undoes single corrections of the cases, so that what each is worth can be measured;
docs/frequency.md gives their reasons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wattcast.models.clocks import ClockPair
from wattcast.models.time.queueing import (
    FormTime,
    QueueingGpu,
    QueueingLaunch,
    delays,
    latency_cycles,
    latency_floor,
    mean_warps,
    rounds_of,
    sm_cycles,
)
from wattcast.models.time.queueing_model import (
    Case,
    CaseTime,
    Terms,
    case_form,
    terms_of,
    with_shared,
)


def max_form(launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> FormTime:
    """rounds x (max(agl_del Aw g, Aw (n_i inst_cycle + n_s + dp_extra)) + dm_lat).

    Memory or the SM decides, whichever has more to do; once per round a latency is not hidden.
    No less than the chain of one warp (``latency_floor``).
    """
    memory = delays(gpu, clocks, launch.hit_rate)
    rounds = rounds_of(launch, gpu.sm_count)
    warps = rounds.warps
    parts = {
        "sm": warps * sm_cycles(launch, gpu),
        "memory": launch.transactions
        * (
            warps * gpu.l2_service * launch.hit_rate
            + mean_warps(launch, gpu) * memory.dram_service * (1 - launch.hit_rate)
        ),
        "latency": latency_cycles(launch, memory, rounds),
        "chain": latency_floor(launch, gpu, clocks),
    }
    cycles = max(max(parts["sm"], parts["memory"]) + parts["latency"], parts["chain"])
    return FormTime(cycles, clocks.core_mhz, parts)


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


def read_case_form(
    launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair, reading: Reading = CORRECTED
) -> CaseTime:
    """``case_form`` without the corrections that ``reading`` undoes."""
    found = case_form(launch, gpu, clocks)
    memory = found.delays
    if not reading.latency_of_eq_4:
        ratio = clocks.core_mhz / clocks.memory_mhz
        at_equal_clocks = gpu.latency_core_cycles + gpu.latency_memory_cycles * gpu.ratio_scale
        latency = gpu.l2_latency * launch.hit_rate + at_equal_clocks * ratio * (1 - launch.hit_rate)
        memory = memory._replace(latency=latency)
    if not launch.transactions:
        return replace(found, delays=memory)
    terms = terms_of(launch, gpu, memory, found.rounds, found.compute_cycles)
    outer, inner = launch.outer_iterations, launch.inner_iterations
    if launch.shared_transactions and outer is not None and inner is not None:
        case, active = with_shared(terms, outer, inner)
    else:
        case, active = _without_shared(terms, reading)
    return replace(found, case=case, active_cycles=active, delays=memory)


def _without_shared(terms: Terms, reading: Reading) -> tuple[Case, float]:
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
