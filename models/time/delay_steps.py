"""Algorithms 4 and 5 of the thesis on plain numbers: delays of instructions, rounds of blocks.

    instruction_level_parallelism   section 4.3.2.2: dispatch units filled one by one
    compute_delay, memory_delay     equations 4.3 and 4.4
    global_penalty, shared_penalty  equation 4.5 and the one after it
    kernel_delay                    Algorithm 4 (and 4.6, 4.7): blocks summed, loops multiplied
    issue_rounds, serial_blocks     Algorithm 5: n_ic, and the rounds of blocks
    parallel_degree, bottleneck     section 4.3.3.2: MPD and the time it costs

Source: G. Alavani, Prediction of Performance and Power Consumption of GPGPU Applications
(PhD thesis, BITS Pilani, 2023), section 4.3. Delays are core clock cycles a warp of one SM.
Where the print is ambiguous or cannot be meant, the choice and its reason stand at the place;
docs/time.md lists them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattcast.features.launch import WARP_SIZE

TRANSACTION_BYTES = 128
"""Sz_gl, bytes of a global memory transaction: a cache line (CUDA C++ Programming Guide, Global
Memory; the thesis names the quantity and prints no number, its appendix counts 128 too)."""

BANK_BYTES = 4
"""Bytes a shared memory bank serves a core cycle (CUDA C++ Programming Guide, Shared Memory)."""


# --- parallelism ------------------------------------------------------------------------


def issue_cycles(predecessors: Sequence[Sequence[int]], dispatch_units: int) -> int:
    """n_cycles of a basic block: its instructions given to the dispatch units in text order.

    ``predecessors[i]`` are the instructions i depends on. A cycle ends when its
    ``dispatch_units`` are taken or the next instruction depends on one of the same cycle.
    """
    cycles = 0
    this_cycle: list[int] = []
    for index, before in enumerate(predecessors):
        if (
            not cycles
            or len(this_cycle) == dispatch_units
            or any(source in this_cycle for source in before)
        ):
            cycles += 1
            this_cycle = []
        this_cycle.append(index)
    return cycles


def instruction_level_parallelism(
    predecessors: Sequence[Sequence[int]], dispatch_units: int
) -> float:
    """ILP = n_inst / n_cycles of a block, between 1 and ``dispatch_units``; 1 if it is empty."""
    if not predecessors:
        return 1.0
    return len(predecessors) / issue_cycles(predecessors, dispatch_units)


def at_parallelism(values: Sequence[float], ilp: float) -> float:
    """A row of Table 3.1 (``values[i]`` at ILP ``i + 1``) at any ILP >= 1.

    Linear between its columns, the last one beyond: the table has whole numbers, a block's ILP
    is a fraction.
    """
    below = min(int(ilp), len(values)) - 1
    if below == len(values) - 1:
        return values[below]
    return values[below] + (ilp - below - 1) * (values[below + 1] - values[below])


# --- delay of one instruction -------------------------------------------------------------


def compute_delay(
    latency: float, parallelism: float, peak_warps: float, throughput: float
) -> float:
    """Equation 4.3, as printed; ``parallelism`` is ILP x TLP, ``throughput`` threads a cycle.

    Above ``peak_warps`` the latency is divided by them too, so next to nothing of it is left
    and 32 / throughput decides.
    """
    if parallelism <= peak_warps:
        return latency / parallelism
    return latency / (parallelism * peak_warps) + WARP_SIZE / throughput


def memory_delay(
    latency: float, parallelism: float, peak_warps: float, penalty_cycles: float
) -> float:
    """Equation 4.4: the latency shared by all, and above ``peak_warps`` the penalty p^m."""
    if parallelism <= peak_warps:
        return latency / parallelism
    return latency / parallelism + penalty_cycles


def global_penalty(access_bytes: float, bandwidth: float) -> float:
    """Equation 4.5: Sz_gl c / BW_g, in the time unit of ``bandwidth`` (bytes of the whole GPU).

    c, which the text says cannot be known from PTX, is that of a coalesced request: as many
    transactions as 32 accesses of ``access_bytes`` fill, at least one. What stride costs is in
    the latency, a regression against it (section 3.3.3).
    """
    transactions = max(1.0, WARP_SIZE * access_bytes / TRANSACTION_BYTES)
    return TRANSACTION_BYTES * transactions / bandwidth


def shared_penalty(access_bytes: float, banks: int, conflicts: float = 0.0) -> float:
    """Sz_w Sz_sm / (n_sb BW_s) + n_bc size / BW_s, in core cycles; BW_s is one bank's.

    With the bandwidth of all banks the first term would divide by their number twice. Conflicts
    are "future work" in the text: 0.
    """
    return (WARP_SIZE * access_bytes / banks + conflicts * access_bytes) / BANK_BYTES


# --- Algorithm 4 ----------------------------------------------------------------------------


def kernel_delay(block_delays: Sequence[Sequence[float]], multipliers: Sequence[float]) -> float:
    """Algorithm 4: d_k, the delays of every instruction of every block, loops multiplied.

    Every block counts, also those of branches that exclude each other: the text assumes each
    branch taken by a thread of every warp.
    """
    return sum(sum(delays) * times for delays, times in zip(block_delays, multipliers, strict=True))


# --- Algorithm 5 ----------------------------------------------------------------------------


def issue_rounds(warps_per_block: int, cores_per_sm: int) -> int:
    """n_ic = nT_b / n_cSM, in whole issue cycles: a block's warps over those issued at once."""
    at_once = max(1, cores_per_sm // WARP_SIZE)
    return -(-warps_per_block // at_once)


def serial_blocks(blocks: int, sm_count: int, resident_blocks: int) -> int:
    """n_serial: blocks one after the other, max(SMcounters) of each wave, summed over the waves.

    A wave hands ``resident_blocks`` (nB^M) to every SM in turn. Each costs t_thread, so the sum
    is ceil(blocks / SMs) whatever a wave holds.

    The printed loops cannot be meant: lines 6 to 17 hand out a whole wave for *each* block,
    ``<= nB^M`` counts the blocks of all SMs against the limit of one, and one too many;
    ``maximum(num_blocksRound)`` is the maximum of a single number.
    """
    waves, rest = divmod(blocks, resident_blocks * sm_count)
    return waves * resident_blocks + -(-rest // sm_count)


def parallel_degree(
    bandwidth_bytes_per_second: float, request_bytes: float, latency_seconds: float
) -> float:
    """MPD: warps whose requests device memory serves at the same time (section 4.3.3.2).

    Bandwidth over the bandwidth of one warp, ``request_bytes / latency_seconds``.
    """
    return bandwidth_bytes_per_second * latency_seconds / request_bytes


def bottleneck(warps: float, degree: float, latency_seconds: float) -> float:
    """Seconds that ``warps`` wait at one memory instruction because only ``degree`` are served.

    The first ``degree`` warps have their latency in d_i; the others follow in turns of that size,
    each a latency: (warps / MPD - 1) latencies, which is bytes over bandwidth less one latency.
    d_i holds that latency divided by ILP x TLP, so a kernel that does nothing but stream is
    predicted faster than the bandwidth allows (docs/time.md).
    """
    return max(0.0, warps / degree - 1.0) * latency_seconds
