"""How the published feature columns are really computed, as pure functions.

Every function takes numbers or NumPy arrays (they broadcast) and returns float64; a NaN
argument gives a NaN. Serving (``Schema.vector``) and training (recomputing published rows)
both call these, so there is no skew between the two.

Symbols: T threads launched, nB blocks, nT threads per block, w simulated waves, W "wtotal",
G = glob_inst_sm, S = shar_inst_sm. "Printed" is what the thesis prints (Alavani, "Performance
Modeling of GPGPU Programs", section 5.4); "share" is the part of the published rows that the
formula here reproduces within 0.1 % (K20 larger data set / M60 / V100, in this order), as the
specification states it; ``tests/features/test_schemas.py`` prints it for the files at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]

WARP_SIZE = 32
"""Threads of a warp (CUDA C++ Programming Guide)."""

ACCESS_BYTES = 4
"""access_sz of Eq. 5.2: one 32-bit access (data: every row of K20, M60 and V100)."""

EXTRA_TRIP_CYCLES = 9
"""Cycles of any compute instruction in a further loop trip, on every GPU (features.md 3)."""

MISC_WEIGHTS = (3, 1, 3, 2)
"""Weights in misc_inst_sm of compute, branch, label and return lines (features.md 1)."""

ISSUE_DISPATCH_UNITS = 2
"""nDU of Eq. 5.1 (PowerQuant rows)."""


def _float(value: ArrayLike) -> Floats:
    """As float64; a single number becomes a NumPy scalar, whose arithmetic is the fastest."""
    number: Floats = np.asarray(value, dtype=np.float64)[()]
    return number


def round_half_up(value: ArrayLike) -> Floats:
    """The nearest integer, halves upward: spreadsheet rounding of a value >= 0."""
    return np.asarray(np.floor(_float(value) + 0.5))


# --- waves ----------------------------------------------------------------------


def simulated_waves(
    blocks: ArrayLike, threads_per_block: ArrayLike, sm_count: ArrayLike, threads_per_sm: int = 2048
) -> Floats:
    """w: rounds in which the extractor simulates the kernel on one SM.

    Real: max(1, ceil(floor(nB / nSM) * nT / threads_per_sm)). Printed (Algorithm 10):
    ceil(nB / nSM * nT) counted down by 2048 while >= 0, which gives one round too many at
    exact multiples. Registers, shared memory and block limits do not enter.
    Share: 100 % of K80, Ampere and Ada, 92 % of PowerQuant V100, 90-93 % of the thesis rows
    whose comp_inst_sm / comp_inst_kernel is whole.
    """
    per_sm = np.floor(_float(blocks) / _float(sm_count)) * _float(threads_per_block)
    return np.asarray(np.maximum(1.0, np.ceil(per_sm / threads_per_sm)))


def waves_column(blocks: ArrayLike, sm_count: ArrayLike) -> Floats:
    """The column ``waves`` of K20: ceil(nB / nSM); no other formula uses it.

    Printed: the rounds of Algorithm 10. Share: 1.000 (K20); blank for M60 and V100.
    """
    return np.asarray(np.ceil(_float(blocks) / _float(sm_count)))


def thread_waves(threads: ArrayLike, sm_count: ArrayLike, threads_per_sm: int = 2048) -> Floats:
    """max(1, ceil(T / (nSM * threads_per_sm))): the column ``waves`` of the cleaned PowerQuant
    files, of which their inst_issue_cycles is made.

    It does not round nB / nSM down, so it exceeds ``simulated_waves`` in 10-13 % of the rows.
    Share: 1.000 (all four files). The other counters of those rows follow ``simulated_waves``.
    """
    waves = np.ceil(_float(threads) / (_float(sm_count) * threads_per_sm))
    return np.asarray(np.maximum(1.0, waves))


def wtotal(threads: ArrayLike, slope: float, intercept: float) -> Floats:
    """W, the "waves" of Eq. 5.2: floor(slope * T + intercept), the same on every GPU.

    alavani2023: 2.8647e-5, 1.535. powerquant2026: 2.86468e-5, 1.5 (at T = 16384 these give
    2 and 1). Printed: the waves of Algorithm 10. Share: .999 / 1.000 / 1.000.
    """
    return np.asarray(np.floor(slope * _float(threads) + intercept))


def n_warps(blocks: ArrayLike) -> Floats:
    """The column ``n_warps``: nB / 32. Printed: warps per SM. Share: 1.000 (K20)."""
    return np.asarray(_float(blocks) / WARP_SIZE)


# --- latencies ------------------------------------------------------------------


class LatencyPiece(NamedTuple):
    """cycles = slope * T + intercept for T below ``below`` threads (and above the last piece)."""

    below: float
    slope: float
    intercept: float


def load_latency(threads: ArrayLike, pieces: Sequence[LatencyPiece]) -> Floats:
    """Cycles of a global load launched with T threads; ``pieces`` are f(T) of a GPU.

    Lower bounds are inclusive (T = 4096 uses K20's second line). Printed (Table 3.3, K20): the
    same four lines with both bounds exclusive, and nothing for T >= 2203648.
    """
    bounds, slopes, intercepts = _piece_arrays(tuple(pieces))
    count = _float(threads)
    which = np.searchsorted(bounds, count, side="right")
    # searchsorted puts NaN last, where the slope may be 0: 0 * NaN is still NaN.
    return np.asarray(slopes[which] * count + intercepts[which])


@lru_cache(maxsize=64)
def _piece_arrays(pieces: tuple[LatencyPiece, ...]) -> tuple[Floats, Floats, Floats]:
    return (
        np.array([piece.below for piece in pieces[:-1]]),
        np.array([piece.slope for piece in pieces]),
        np.array([piece.intercept for piece in pieces]),
    )


def average_latency(total_cycles: ArrayLike, instructions: ArrayLike, empty: float = 0.0) -> Floats:
    """avg_X_lat: total cycles / instructions, both over all waves; ``empty`` for no instruction.

    Printed: the total divided by the static count, hence w times larger. Share
    (avg_comp_lat): .984 / .962 / 1.000.
    """
    cycles, count = _float(total_cycles), _float(instructions)
    if cycles.ndim == count.ndim == 0:
        return _float(cycles / count if count != 0 else empty)
    cycles, count = np.broadcast_arrays(cycles, count)
    result = np.full(count.shape, empty, dtype=np.float64)
    np.divide(cycles, count, out=result, where=count != 0)
    return result


# --- instruction counts ---------------------------------------------------------


def misc_inst_sm(
    waves: ArrayLike,
    compute: ArrayLike,
    branches: ArrayLike,
    labels: ArrayLike,
    returns: ArrayLike,
    unknown_dynamic: ArrayLike,
) -> Floats:
    """w * (3 compute + branches + 3 labels + 2 returns + UNKNOWN), static but for the last.

    The miscellaneous counter over-counts: compute lines weigh 3 in it besides their own 1.
    Printed: the number of miscellaneous instructions.
    """
    c, b, l, r = MISC_WEIGHTS  # noqa: E741 - l of labels
    lines = (
        c * _float(compute)
        + b * _float(branches)
        + l * _float(labels)
        + r * _float(returns)
        + _float(unknown_dynamic)
    )
    return np.asarray(_float(waves) * lines)


def total_inst(
    comp_sm: ArrayLike, glob_sm: ArrayLike, shar_sm: ArrayLike, misc_sm: ArrayLike
) -> Floats:
    """Sum of the four ``*_sm`` counts (no row's real instruction count). Share .995/.999/.992."""
    return np.asarray(_float(comp_sm) + _float(glob_sm) + _float(shar_sm) + _float(misc_sm))


# --- inst_issue_cycles ----------------------------------------------------------


def issue_cycles_thesis(threads: ArrayLike, total: ArrayLike, divisor: float) -> Floats:
    """alavani2023: round_half_up(T * total_inst / D), D 65536 (K20, M60) or 16384 (V100).

    Printed (Eq. 5.1): T / (nWS * 32) * total_inst / nDU, that is D = 256 or 1024, 64 to 256
    times more. Share: .999 / 1.000 / 1.000.
    """
    return round_half_up(_float(threads) * _float(total) / divisor)


def issue_cycles_powerquant(threads: ArrayLike, total: ArrayLike, divisor: float) -> Floats:
    """powerquant2026: floor(floor(T / B) * floor(total_inst / 2) / (2 B)), at least 1.

    B = sqrt(D) / 2: 128 for D = 65536 (K20, K80, Ada), 64 for 16384 (V100), 128 * 108 for
    764411904 (Ampere). T / B and total_inst / 2 are the divisions of Eq. 5.1 by nWS * 32 and
    nDU, done on whole numbers. Where B divides T this is the specification's floor(T / (D/2)
    * floor(total_inst / 2)); elsewhere that one misses 4 to 74 % of the rows by a little.
    Printed: Eq. 5.1, without 2 B. Share: 1.000 of the rows of saxpy, bfs2 and BlackScholes
    (known total_inst) that do not overflow 32 bits; the overflow is not imitated. No
    published value is below 1.
    """
    batch_threads = np.sqrt(divisor) / ISSUE_DISPATCH_UNITS
    batches = np.floor(_float(threads) / batch_threads)
    pairs = np.floor(_float(total) / ISSUE_DISPATCH_UNITS)
    cycles = np.floor(batches * pairs / (ISSUE_DISPATCH_UNITS * batch_threads))
    return np.asarray(np.maximum(1.0, cycles))


def issue_cycles_cleaned(
    threads: ArrayLike,
    waves: ArrayLike,
    compute: ArrayLike,
    global_: ArrayLike,
    misc: ArrayLike,
    divisor: float = 16384.0,
) -> Floats:
    """powerquant2026r: floor(max(1, T * w * (comp + glob + misc static counts) / 16384)).

    ``waves`` are those of ``thread_waves``. The published column overflows 32 bits on two GPUs;
    the cleaned files hold this instead (accuracy.md rule 9). Share: 1.000 (all four files).
    """
    lines = _float(compute) + _float(global_) + _float(misc)
    batches = _float(threads) * _float(waves) * lines / divisor
    return np.asarray(np.floor(np.maximum(1.0, batches)))


# --- cache_penalty --------------------------------------------------------------


def cache_penalty(
    threads: ArrayLike,
    global_instructions: ArrayLike,
    latency_cycles: ArrayLike,
    wtotal_: ArrayLike,
    l2_bytes: float,
) -> Floats:
    """T * G * latency / (W * L2 / 4). What "latency" is depends on schema and GPU:

    * alavani2023, K20 and M60: avg_glob_lat (printed, Eq. 5.2, but W is the line of ``wtotal``);
      share 1.000 / 1.000;
    * alavani2023, V100: glob_lat_sm, the total, hence a further factor G; share 1.000 (0 with
      the average);
    * powerquant2026: the latency of the textually last global instruction, and G is the static
      count times w; share .99 of K80 and Ada. In the V100 and Ampere files T * G is a 32-bit
      number whose overflow (60 % of the rows) leaves a too small value; not imitated here.
    """
    per_wave = _float(wtotal_) * l2_bytes / ACCESS_BYTES
    return np.asarray(
        _float(threads) * _float(global_instructions) * _float(latency_cycles) / per_wave
    )


# --- throughputs and penalties --------------------------------------------------


def throughput(count: ArrayLike, a: float, b: float, c: float) -> Floats:
    """a * (b - exp(-c * count)): Global_Throughput of G, sh_throughput of S (thesis Table 4.5).

    Same as printed but for M60's shared exponent, 5.5295e-5 in the data and 5.5295e-6 in
    Table 4.5. Share: global .996 / 1.000, shared 1.000 / 1.000; V100 blank.
    """
    return np.asarray(a * (b - np.exp(-c * _float(count))))


def glb_penalty(
    threads: ArrayLike,
    glob_sm: ArrayLike,
    throughput_global: ArrayLike,
    sm_count: int,
    memory_ghz: float,
) -> Floats:
    """ceil(T / (32 nSM)) * 32 nSM * G * f_mem / TP_g, f_mem the memory clock in GHz.

    Printed (Eq. 5.3): T / R[LSU] * access_sz / TP * G. Share: 1.000 / 1.000; V100 blank.
    """
    step = WARP_SIZE * sm_count
    rounded = np.ceil(_float(threads) / step) * step
    return np.asarray(rounded * _float(glob_sm) * memory_ghz / _float(throughput_global))


def sh_penalty_k20(
    threads: ArrayLike,
    shar_sm: ArrayLike,
    throughput_shared: ArrayLike,
    memory_ghz: float,
    large_factor: float = 2.125,
    large_above_threads: int = 4096,
) -> Floats:
    """K20: T * S * k / TP_s, k = 2.6 up to 4096 threads and 2.6 * 2.125 above; 0 without S.

    Printed (Eq. 5.4): T / (R[LSU] * nSM) * access_sz / TP * S. Share 1.000 (233 rows; none
    has between 4096 and 6400 threads, where the change lies).
    """
    count = _float(threads)
    k = np.where(count > large_above_threads, memory_ghz * large_factor, memory_ghz)
    return average_latency(count * _float(shar_sm) * k, throughput_shared)


def sh_penalty_m60(
    threads: ArrayLike,
    shar_sm: ArrayLike,
    throughput_shared: ArrayLike,
    memory_ghz: float,
    step_threads: int = 512,
) -> Floats:
    """M60: ceil(T / 512) * 512 * S * 2.505 / TP_s; 0 without S.

    Printed: Eq. 5.4, as above. Share .737 of 99 rows; what the others hold is not known.
    """
    rounded = np.ceil(_float(threads) / step_threads) * step_threads
    return average_latency(rounded * _float(shar_sm) * memory_ghz, throughput_shared)
