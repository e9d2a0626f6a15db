"""The cache rules on streams made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.features.test_memory import stream_without_reuse
from wattcast.features.activity.memory import (
    L2_SHARE,
    SHARED_CARVEOUTS_KB,
    MemoryLevels,
    l1_bytes,
    memory_levels,
)
from wattcast.features.counts import ReuseCurve, Sharing, Stream, Traffic
from wattcast.features.gpus import gpu_ids, load_gpu
from wattcast.features.launch import L2State, Launch
from wattcast.features.occupancy import Occupancy


def _distinct(streams: Iterable[Stream]) -> float:
    return sum(stream.distinct_sectors for stream in streams)


V100 = load_gpu("tesla-v100")  # 80 SMs, 128 KiB of L1, 6 MiB of L2
K20 = load_gpu("tesla-k20")
BLOCKS = 8000


def levels(
    *streams: Stream, gpu=V100, requests: float = 1.0, shared: int = 0, l2: L2State = "warm"
) -> MemoryLevels:
    """Of 8000 blocks in a row, eight on each SM."""
    traffic = Traffic(0.0, 0.0, _distinct(streams), BLOCKS, requests, streams)
    resident = Occupancy(8, 64, 1.0, "warps", {})
    launch = replace(Launch.of(BLOCKS, 256), l2=l2)
    return memory_levels(traffic, gpu, launch, resident, shared)


def test_a_stream_passes_all_levels_once() -> None:
    found = levels(stream_without_reuse("all", 8e6, 4e6, 0.0, BLOCKS))
    assert found == MemoryLevels(12e6, 8e6, 4e6, 12e6 * 32)


def test_a_small_footprint_stays_in_a_warm_l2_and_comes_into_a_cold_one_once() -> None:
    fits = 0.9 * V100.l2_bytes / 32
    stream = stream_without_reuse("all", fits * 0.99, 0.0, 0.0, BLOCKS)
    small = levels(stream)
    assert (small.l2_sectors, small.dram_read_sectors) == (pytest.approx(0.99 * fits), 0)
    assert levels(stream, l2="cold").dram_read_sectors == pytest.approx(0.99 * fits)


@pytest.mark.parametrize(
    ("gpu", "sizes", "misses"),
    [
        ("tesla-v100", (0.94, 1.03, 1.14, 1.25, 1.38), (0.0, 0.23, 0.65, 0.85, 0.92)),
        ("l40", (0.93, 1.02, 1.12, 1.23), (0.0, 0.2, 0.78, 0.96)),
        ("a100-sxm4-80gb", (0.9, 0.99, 1.08, 1.18), (0.62, 0.76, 0.86, 0.93)),
        ("h100-pcie", (0.94, 1.03, 1.13, 1.24), (0.58, 0.72, 0.89, 0.96)),
    ],
)
def test_data_leave_l2_little_by_little(
    gpu: str, sizes: tuple[float, ...], misses: tuple[float, ...]
) -> None:
    """Ernst, gpu-benches, whose shares of loads that miss are worked out from latencies and
    bandwidths."""
    profile = load_gpu(gpu)
    for size, share in zip(sizes, misses, strict=True):
        sectors = size * profile.l2_bytes / 32
        found = levels(stream_without_reuse("all", sectors, 0.0, 0.0, BLOCKS), gpu=profile)
        assert found.dram_read_sectors / sectors == pytest.approx(share, abs=0.18)


def test_traffic_has_no_step_where_the_footprint_reaches_l2() -> None:
    sectors = [(0.5 + 0.01 * n) * V100.l2_bytes / 32 for n in range(120)]
    reads = [levels(stream_without_reuse("all", n, 0.0, 0.0, BLOCKS)).dram_read_sectors
             for n in sectors]  # fmt: skip
    steps = [after - before for before, after in pairwise(reads)]
    assert min(steps) >= 0
    assert max(steps) < 0.1 * V100.l2_bytes / 32


def test_a_cold_l2_holds_part_of_what_is_stored_when_the_launch_ends() -> None:
    """Half of a V100's; an RTX 3080 wrote 402.07 of 402.65 MB (babelstream's init_kernel)."""
    for gpu, share in ((V100, 0.5), (load_gpu("rtx-3080"), 0.14)):
        found = levels(stream_without_reuse("all", 0.0, 8e6, 0.0, BLOCKS), gpu=gpu, l2="cold")
        assert found.dram_write_sectors == pytest.approx(8e6 - share * gpu.l2_bytes / 32)


def test_what_was_stored_long_before_a_cold_launch_ends_is_written() -> None:
    """One sector of a hundred: of two and a half sizes of L2 that pass last, those stored."""
    streams = [stream_without_reuse(name, *each, 0.0, BLOCKS)
               for name, each in (("in", (9.9e6, 0.0)), ("out", (0.0, 1e5)))]  # fmt: skip
    found = levels(*streams, l2="cold")
    assert found.dram_write_sectors == pytest.approx(1e5 - 0.01 * 2.5 * 6 * 2**20 / 32)


def test_atomics_go_to_l2_and_back_once() -> None:
    found = levels(stream_without_reuse("all", 0.0, 0.0, 8e6, BLOCKS))
    assert found == MemoryLevels(8e6, 8e6, 8e6, 8e6 * 32)


def rereading(lines: float, times: int) -> Stream:
    """Each block reads its own lines from end to end, again and again; a request is a line."""
    once = BLOCKS * lines * 4
    curve = ReuseCurve(
        (0.0, lines - 1, lines, lines * times), (0.0, lines - 1, lines, lines),
        (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0),
    )  # fmt: skip
    return Stream(
        "own", once * times, 0.0, 0.0, 0.0, once, once, once, 0.0, once, once / 4,
        Sharing(), Sharing(), curve, curve,
    )  # fmt: skip


def test_what_is_read_again_hits_if_the_blocks_of_an_sm_fit_into_l1() -> None:
    # Eight blocks with 127 lines each take 127 KiB of 128; with 129 none is left when it is due.
    fits, misses = rereading(127, 5), rereading(129, 5)
    assert levels(fits, requests=127 * 5).l2_sectors == pytest.approx(fits.unique_kept_sectors)
    assert levels(misses, requests=129 * 5).l2_sectors == pytest.approx(misses.kept_load_sectors)


def test_shared_memory_is_taken_from_l1() -> None:
    # Eight blocks with 100 lines each: 16 KiB of shared memory leave 112 KiB, 24 take 32.
    stream = rereading(100, 5)
    held = levels(stream, requests=500, shared=2 * 1024)
    assert held.l2_sectors == pytest.approx(stream.unique_kept_sectors)
    less = levels(stream, requests=500, shared=3 * 1024)
    assert less.l2_sectors == pytest.approx(stream.kept_load_sectors)
    none = levels(stream, requests=500, shared=16 * 1024)
    assert none.l2_sectors == stream.kept_load_sectors


def test_l1_of_kepler_holds_no_global_loads() -> None:
    stream = rereading(10, 5)
    assert levels(stream, requests=50, gpu=K20).l2_sectors == stream.kept_load_sectors
    assert levels(stream, requests=50).l2_sectors == pytest.approx(stream.unique_kept_sectors)


def test_what_blocks_of_a_wave_share_in_step_is_fetched_once_for_all() -> None:
    # All blocks walk together through 1 GiB: L1 of every SM fetches it once for its eight
    # blocks, L2 once for all 640, and so for every wave.
    lines = 2.0**23
    stream = rereading(lines, 1)
    everyone = Sharing(everyone=1.0)
    shared = replace(
        stream,
        sharing=everyone,
        line_sharing=everyone,
        distinct_sectors=lines * 4,
        distinct_lines=lines,
    )
    found = levels(shared, requests=lines)
    assert found.l2_sectors == pytest.approx(lines * 4 * BLOCKS / 8)
    assert found.dram_read_sectors == pytest.approx(lines * 4 * BLOCKS / 640)


@pytest.mark.parametrize("together", [1, 4])
def test_a_table_read_at_random_hits_by_how_much_of_it_l2_holds(together: int) -> None:
    # 1,000 sectors for every block from a table of 4 Mi lines, one or all four of a line each time.
    each = 1000.0
    lines, table = float(1 << 22), float(together << 22)
    curve = ReuseCurve((0.0, each), (0.0, each / together), (1.0, 0.0), (0.0, 0.0))
    touched = each * BLOCKS
    stream = Stream(
        "table", touched, 0.0, 0.0, 0.0, touched, touched, touched, 0.0, table, lines,
        Sharing(population=table), Sharing(population=lines), curve, curve,
    )  # fmt: skip
    found = levels(stream, requests=each)
    held = L2_SHARE * V100.l2_bytes / 128
    assert found.dram_read_sectors == pytest.approx(touched * (1 - held / lines), rel=0.01)
    # Lines that every block touches stay, whichever of their sectors it takes.
    bins = replace(stream, sharing=Sharing(0.8, population=200.0), line_sharing=Sharing(1.0))
    beside = stream_without_reuse("all", 8e8, 0.0, 0.0, BLOCKS)
    assert levels(beside, bins, requests=each).dram_read_sectors == pytest.approx(8e8, rel=1e-3)


def test_what_a_block_stored_long_before_is_read_from_memory() -> None:
    read = rereading(1e5, 1)
    stored = replace(read, store_sectors=read.distinct_sectors, unique_read_sectors=0.0)
    assert levels(stored, requests=1e5).dram_read_sectors == pytest.approx(read.distinct_sectors)


def test_a_matrix_product_reads_its_factors_from_memory_once_if_a_wave_fits() -> None:
    # 100 x 80 blocks; a block reads 64 KiB of a row of A and of a column of B, each shared.
    lines = 512.0
    curve = ReuseCurve((0.0, 2 * lines), (0.0, lines), (1.0, 0.0), (0.0, 0.0))
    once = BLOCKS * lines * 4
    rows, columns = Sharing(beside=1.0, row=1.0), Sharing(below=1.0, column=1.0)
    factors = [
        Stream(name, once, 0.0, 0.0, 0.0, once, once, once, 0.0, distinct * lines * 4,
               distinct * lines, sharing, sharing, curve, curve)
        for name, sharing, distinct in (("a", rows, 80), ("b", columns, 100))
    ]  # fmt: skip
    traffic = Traffic(0.0, 0.0, _distinct(factors), BLOCKS, 2 * lines, tuple(factors))
    resident = Occupancy(8, 64, 1.0, "warps", {})
    launch = replace(Launch.of((100, 80), 256), l2="cold")
    found = memory_levels(traffic, V100, launch, resident, 0)
    # A wave of 640 blocks covers 6.4 rows: 0.4 MiB of A and all 6.25 MiB of B do not fit in
    # 4.5 MiB, so that B is read in every wave but in step: 12.5 waves of 6.25 MiB and 0.4 MiB.
    assert found.dram_read_sectors == pytest.approx(12.5 * 106.4 * lines * 4, rel=0.01)
    wide = V100.model_copy(
        update={"chip": V100.chip.model_copy(
            update={"l2_bytes": V100.chip.l2_bytes.model_copy(update={"value": 10 << 20})}
        )}
    )  # fmt: skip
    found = memory_levels(traffic, wide, launch, resident, 0)
    # 7.5 MiB hold B and the rows at hand: both are read once.
    assert found.dram_read_sectors == pytest.approx(180 * lines * 4, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "read_only", "passing"),
    [
        ("tesla-v100", 0.0, 1), ("tesla-p100", 0.0, 1), ("gtx-1080-ti", 0.0, 4),
        ("gtx-1080-ti", 0.5, 2.5), ("gtx-1080-ti", 1.0, 1), ("gtx-980", 0.0, 4),
    ],
)  # fmt: skip
def test_l1_of_maxwell_and_small_pascals_holds_read_only_loads_alone(
    gpu: str, read_only: float, passing: float
) -> None:
    """NVIDIA's Maxwell and Pascal Tuning Guides; the GTX 1080 Ti's counters of gaussian show as
    many reads of L2 as sectors loaded, those of P100 a tenth fewer."""
    stream = rereading(8.0, 4)  # four times the same kilobyte, which fits into any L1
    traffic = Traffic(0.0, 0.0, _distinct([stream]), BLOCKS, 32.0, (stream,))
    resident = Occupancy(8, 64, 1.0, "warps", {})
    launch = Launch.of(BLOCKS, 256)
    found = memory_levels(traffic, load_gpu(gpu), launch, resident, 0, read_only)
    assert found.l2_sectors == pytest.approx(passing * BLOCKS * 8 * 4)


@pytest.mark.parametrize(
    ("gpu", "blocks", "shared_bytes", "kib"),
    [
        ("tesla-v100", 2, 0, 128), ("tesla-v100", 2, 20_000, 64), ("tesla-v100", 1, 98_304, 32),
        ("rtx-2080-ti", 1, 0, 64), ("rtx-2080-ti", 8, 5_000, 32),
        ("a100-pcie-40gb", 8, 0, 184), ("a100-pcie-40gb", 1, 166_912, 28),
        ("gtx-1080-ti", 4, 10_000, 48), ("tesla-k20", 1, 0, 0),
    ],
)  # fmt: skip
def test_l1_has_what_the_steps_of_shared_memory_leave(
    gpu: str, blocks: int, shared_bytes: int, kib: int
) -> None:
    """By hand from the CUDA C++ Programming Guide; from 8.0 on a block has 1 KB more."""
    assert l1_bytes(load_gpu(gpu), blocks, shared_bytes) == kib * 1024


def test_every_unified_l1_knows_its_steps() -> None:
    for gpu in map(load_gpu, gpu_ids()):
        if float(gpu.compute_capability) >= 7.0:
            assert SHARED_CARVEOUTS_KB[gpu.compute_capability][-1] * 1024 == (
                gpu.capability.shared_bytes_per_sm
            )
