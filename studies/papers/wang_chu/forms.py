"""What one launch is to Wang and Chu's model, from nvprof's counters, as in the paper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, isnan, prod
from typing import NamedTuple

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.use import LANES_OF_A_QUAD
from wattcast.models.papers.wang_chu.inputs import traffic_shares
from wattcast.models.papers.wang_chu.model import (
    Case,
    CaseTime,
    Terms,
    case_form,
    terms_of,
    with_shared,
)
from wattcast.models.papers.wang_chu.network import QueueingGpu, QueueingLaunch

WARPS_PER_BLOCK_UNKNOWN = 8
"""256 threads, the commonest block of the paper's kernels, where a table has no launch."""


def counters_to_inputs(counters: Mapping[str, object], gpu: GpuProfile) -> QueueingLaunch:
    """One launch from nvprof's counters, totals of the launch unless their name says otherwise.

    Needed: ``inst_per_warp``, ``achieved_occupancy``, ``l2_read_transactions``,
    ``l2_write_transactions``, ``dram_read_transactions``, ``dram_write_transactions``, and
    ``blocks`` ("(grid) (block)") or ``warps``. Used where given: the transactions of shared and
    global memory with those per request, ``inst_fp_64`` (else ``flop_count_dp`` and
    ``flop_count_dp_fma``), ``inst_fp_32``, ``inst_integer``, ``flop_count_sp_special``,
    ``tex_cache_transactions``, ``warp_execution_efficiency``. A missing or empty value counts as
    not given.

    Counters tell nothing of dependences and loops: no latency floor, and the case form leaves
    shared memory out. Raises DataError naming the column.
    """
    row = _Counters(counters)
    blocks, warps_per_block = _shape(row)
    warps = blocks * warps_per_block
    shared = row.sum("shared_load_transactions", "shared_store_transactions")
    # nvprof counts instructions of threads; lanes that are off hold a pipe as well.
    efficiency = row.get("warp_execution_efficiency", 1.0) or 1.0
    sm = gpu.capability
    instructions = max(0.0, row.need("inst_per_warp") - row.memory_requests() / warps)
    lanes = max(
        row.get("inst_fp_32", 0.0) / sm.fp32_lanes, row.get("inst_integer", 0.0) / sm.int_lanes
    )
    slow = (
        row.double_precision() / sm.fp64_lanes
        + row.get("flop_count_sp_special", 0.0) / sm.sfu_lanes
    )
    issue = instructions / gpu.warp_schedulers
    quads = row.get("tex_cache_transactions", 0.0)
    return QueueingLaunch(
        instructions=instructions,
        **traffic_shares(
            (row.need("l2_read_transactions") + row.need("l2_write_transactions")) / warps,
            (row.need("dram_read_transactions") + row.need("dram_write_transactions")) / warps,
        ),
        resident_warps=row.need("achieved_occupancy") * gpu.max_warps_per_sm,
        warps_per_block=warps_per_block,
        blocks=blocks,
        shared_transactions=shared / warps,
        extra_cycles=slow / efficiency / warps + max(0.0, lanes / efficiency / warps - issue),
        texture_cycles=quads * LANES_OF_A_QUAD / sm.texture_lanes / warps,
    )


class _Counters:
    """Counters by name; an absent, empty or not-a-number value is not given."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def find(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None or value == "":
            return None
        try:
            number = float(str(value))
        except ValueError as error:
            raise DataError(f"{name} is {value!r}, no number", column=name) from error
        if isnan(number):
            return None
        if not 0 <= number < float("inf"):
            raise DataError(f"{name} is {number:g}; a counter is not negative", column=name)
        return number

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if isinstance(value, str) and value.strip() else None

    def get(self, name: str, otherwise: float) -> float:
        found = self.find(name)
        return otherwise if found is None else found

    def need(self, name: str) -> float:
        found = self.find(name)
        if found is None:
            raise DataError(f"the counter {name} is missing", column=name)
        return found

    def sum(self, *names: str) -> float:
        return sum(self.get(name, 0.0) for name in names)

    def memory_requests(self) -> float:
        """Memory instructions of all warps: transactions over transactions per request."""
        total = 0.0
        for kind in ("gld", "gst", "shared_load", "shared_store"):
            each = self.get(f"{kind}_transactions_per_request", 0.0)
            if each:
                total += self.get(f"{kind}_transactions", 0.0) / each
        return total

    def double_precision(self) -> float:
        """FP64 instructions of threads; flop_count_dp counts a multiply-add as two."""
        instructions = self.find("inst_fp_64")
        if instructions is not None:
            return instructions
        return max(0.0, self.get("flop_count_dp", 0.0) - self.get("flop_count_dp_fma", 0.0))


def _shape(row: _Counters) -> tuple[float, float]:
    """Blocks and warps of a block. A partial warp is a warp: threads / 32 would lose it."""
    text = row.text("blocks")
    if text is None:
        return row.need("warps") / WARPS_PER_BLOCK_UNKNOWN, float(WARPS_PER_BLOCK_UNKNOWN)
    axes = [
        tuple(int(n) for n in re.findall(r"\d+", part)) for part in re.findall(r"\([^)]*\)", text)
    ]
    if len(axes) != 2 or any(len(each) != 3 or not all(each) for each in axes):
        raise DataError(
            f"blocks is {text!r}; it must be '(x y z) (x y z)', grid and block", column="blocks"
        )
    return float(prod(axes[0])), float(ceil(prod(axes[1]) / WARP_SIZE))


# --- the cases as printed ---------------------------------------------------------------------


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
