"""Sectors, bank conflicts and footprints against plain Python sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.machine_code import find_nvdisasm, machine_lines
from tests.fixtures.tables import table
from tests.reference.counters import shared_transactions as reference_transactions
from wattcast.features.analysis import analyse
from wattcast.features.counts import ReuseCurve, Run, Sharing, Stream, patch
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.loader import FOLDER, check_profile
from wattcast.features.launch import Launch
from wattcast.features.machine_code import machine_code
from wattcast.features.memory import (
    KEY_BITS,
    SECTORS_PER_LINE,
    SectorLog,
    bank_conflicts,
    distinct,
    l1_millicycles,
    per_slot,
    sectors,
    shared_transactions,
    slot_sectors,
    unite,
)
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.wide_loads import joined_loads

LANES = st.lists(st.integers(0, 4096), min_size=32, max_size=32)

ACTIVE = st.lists(st.booleans(), min_size=32, max_size=32)


def lanes_apart(lanes: list[int], scale: int = 1) -> np.ndarray:
    return np.array([lanes], dtype=np.int64) * scale


@given(LANES, ACTIVE)
def test_sectors_are_the_distinct_32_byte_pieces_of_active_lanes(
    lanes: list[int], active: list[bool]
) -> None:
    wanted = {a // 32 for a, on in zip(lanes, active, strict=True) if on}
    counts, values = sectors(lanes_apart(lanes), np.array([active]))
    assert counts.tolist() == [len(wanted)]
    assert set(values.tolist()) == wanted


@given(LANES, ACTIVE, st.sampled_from([1, 2, 4, 8, 16]))
def test_shared_transactions_are_the_degree_of_bank_conflict(
    lanes: list[int], active: list[bool], width: int
) -> None:
    aligned = [lane * width for lane in lanes]
    found = shared_transactions(lanes_apart(aligned), width, np.array([active]))
    lanes_on = [(lane, aligned[lane], width) for lane in range(32) if active[lane]]
    assert found.tolist() == [reference_transactions(lanes_on)]


def test_known_patterns() -> None:
    lane = np.arange(32, dtype=np.int64)[None, :]
    assert sectors(lane * 4)[0].tolist() == [4]
    assert sectors(lane * 4 + 4)[0].tolist() == [5]
    assert sectors(lane * 128)[0].tolist() == [32]
    assert shared_transactions(lane * 4, 4).tolist() == [1]
    assert shared_transactions(lane * 128, 4).tolist() == [32]
    assert shared_transactions(lane * 132, 4).tolist() == [1]
    assert shared_transactions(lane * 0, 4).tolist() == [1]
    assert shared_transactions(lane * 8, 8).tolist() == [2]
    assert shared_transactions(lane * 16, 16).tolist() == [4]
    # Pairs of lanes that read the same: forums.developer.nvidia.com/t/77228.
    for pairs in (lane * 0, lane // 2, lane // 4, lane // 4 * 2 + lane % 2):
        assert shared_transactions(pairs * 16, 16).tolist() == [2]
        assert shared_transactions(pairs * 8, 8).tolist() == [1]
    assert shared_transactions(lane % 8 * 16, 16).tolist() == [4]
    assert bank_conflicts(lane * 8).tolist() == [2]


@given(st.lists(st.integers(-50, 50), max_size=200))
def test_distinct_sorts_and_drops_repeats(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))


def test_a_log_keeps_distinct_keys_through_compaction_and_samples_when_it_is_full() -> None:
    log = SectorLog(limit=1000)
    for start in range(0, 600, 100):
        log.add(np.arange(start, start + 200, dtype=np.int64))
    assert log.keys.tolist() == list(range(700))
    assert log.factor == 1
    slot = 1 << KEY_BITS
    both = np.arange(450_000, dtype=np.int64), slot | np.arange(225_000, dtype=np.int64)
    for keys in (*both, *both):
        log.add(keys)
    assert log.keys.size <= 1000 < 2 * log.factor * log.keys.size
    assert log.per_slot(2) == pytest.approx([450_000, 225_000], rel=0.15)
    # Blocks keep the same lines: what they have in common stays told.
    shared = np.intersect1d(slot_sectors(log.keys, 0), slot_sectors(log.keys, 1))
    assert shared.size == slot_sectors(log.keys, 1).size


@pytest.mark.parametrize("turns", [1, 4])
def test_a_full_log_goes_on_counting_what_is_new(turns: int) -> None:
    """3 million touches by the fourth slot, ``turns`` of each sector."""
    log, slot = SectorLog(limit=500_000), 3 << KEY_BITS
    for touch in range(30):
        new = np.arange(touch * 100_000, (touch + 1) * 100_000, dtype=np.int64) // turns
        log.add(new | slot)
    assert log.factor > 1
    found = log.beyond(8)
    assert found[3] + log.keys.size == pytest.approx(3_000_000 / turns, rel=0.01)
    assert found.sum() == found[3]


def test_footprints_by_slot() -> None:
    left = np.arange(0, 10, dtype=np.int64)
    right = (1 << KEY_BITS) | np.arange(5, 15, dtype=np.int64)
    keys = unite([right, left, left])
    assert per_slot(keys, 2).tolist() == [10, 10]
    assert slot_sectors(keys, 1).tolist() == list(range(5, 15))
    assert unite([]).size == 0


@pytest.mark.parametrize(
    ("stride", "width", "cycles"),
    [
        # Unit strides of 4, 8 and 16 bytes, strides of 2 and 32 words; 33 words meet no bank twice
        # but 32 lines: A100 and A40 measure 1, 2, 4, 2, 32 and 9.3 (gpu-benches, gpu-strides).
        (4, 4, 1.0), (8, 8, 2.0), (16, 16, 4.0), (8, 4, 2.0), (128, 4, 32.0), (132, 4, 9.3),
        (0, 4, 1.0),
    ],
)  # fmt: skip
def test_l1_takes_what_its_banks_or_its_lines_take(stride: int, width: int, cycles: float) -> None:
    addresses = (np.arange(32, dtype=np.int64) * stride)[None, :]
    found = l1_millicycles(addresses, width, None, *sectors(addresses))
    assert found[0] / 1000 == pytest.approx(cycles, rel=0.02)


@given(st.lists(st.integers(0, 1 << 14), min_size=32, max_size=32), st.integers(1, 32))
def test_l1_takes_no_less_for_more_lanes(words: list[int], lanes: int) -> None:
    addresses = np.array([words], dtype=np.int64) * 4
    some = (np.arange(32) < lanes)[None, :]
    fewer = l1_millicycles(addresses, 4, some, *sectors(addresses, some))
    every = l1_millicycles(addresses, 4, None, *sectors(addresses))
    assert 708 <= fewer[0] <= every[0] <= 32_000


# --- What blocks touch together, worked out by hand

GRID = (8, 4, 1)


def stream_without_reuse(
    name: str, load_sectors: float, store_sectors: float, atomic_sectors: float, blocks: int
) -> Stream:
    """A stream whose sectors are all taken to be new and side by side."""
    stored = store_sectors + atomic_sectors
    whole = load_sectors + stored

    def curve(sectors: float) -> ReuseCurve:
        lines = sectors / blocks / SECTORS_PER_LINE
        return ReuseCurve((0.0, 1.0), (0.0, lines), (1.0, 0.0), (1.0, 0.0))

    return Stream(
        name, load_sectors, 0.0, store_sectors, atomic_sectors, load_sectors,
        load_sectors + atomic_sectors, load_sectors + atomic_sectors, stored, whole,
        whole / SECTORS_PER_LINE, Sharing(), Sharing(), curve(load_sectors), curve(whole),
    )  # fmt: skip


def test_a_patch_of_neighbours_fills_row_after_row() -> None:
    assert patch(4, 1, GRID) == (4, 1, 4, True)
    assert patch(16, 1, GRID) == (16, 2, 8, True)


def test_blocks_of_one_multiprocessor_lie_apart() -> None:
    # Every fifth of eight in a row: blocks 0, 5, 10, 15 lie in two and a half rows.
    four = patch(4, 5, GRID)
    assert four == (4, 2.5, 4, False)
    # Every eighth: all in one column.
    assert patch(4, 8, GRID) == (4, 4, 1, False)


def test_a_matrix_product_shares_rows_of_one_factor_and_columns_of_the_other() -> None:
    rows = Sharing(beside=1.0, row=1.0)
    columns = Sharing(below=1.0, column=1.0)
    wave = patch(16, 1, GRID)  # two rows of eight blocks
    assert rows.union(wave, 100) == pytest.approx(2 * 100)
    assert columns.union(wave, 100) == pytest.approx(8 * 100)
    # Blocks 0, 5, 10 and 15 lie in two and a half rows and four columns.
    assert rows.union(patch(4, 5, GRID), 100) == pytest.approx(2.5 * 100)
    assert columns.union(patch(4, 5, GRID), 100) == pytest.approx(4 * 100)


def test_neighbours_share_a_halo_once() -> None:
    # Of 10 units 2 are the next block's, too: eight blocks touch 8 * 8 + 2.
    halo = Sharing(beside=0.2)
    assert halo.union(patch(8, 1, GRID), 10) == pytest.approx(66)
    assert halo.union(patch(2, 5, GRID), 10) == pytest.approx(20)


def test_what_all_blocks_touch_counts_once() -> None:
    assert Sharing(everyone=1.0).union(patch(32, 1, GRID), 10) == pytest.approx(10)
    assert Sharing(everyone=0.5).union(patch(32, 1, GRID), 10) == pytest.approx(5 + 32 * 5)


def test_random_touches_fill_their_population() -> None:
    random = Sharing(population=1000)
    assert random.union(patch(1, 1, GRID), 10) == pytest.approx(10, rel=0.01)
    # 32 blocks draw 320 of 1000: 1000 (1 - exp(-0.32)).
    assert random.union(patch(32, 1, GRID), 10) == pytest.approx(273.85, abs=0.01)


SHARES = st.floats(0, 1)


@given(SHARES, SHARES, SHARES, st.integers(1, 32), st.integers(1, 9))
def test_a_union_lies_between_one_block_and_the_sum(
    everyone: float, beside: float, below: float, blocks: int, spacing: int
) -> None:
    row, column = beside if below == 0 else 0.0, below if beside == 0 else 0.0
    sharing = Sharing(everyone, beside, below, row, column)
    whole = sharing.union(patch(blocks, spacing, GRID), 7.0)
    assert 7.0 * (1 - 1e-9) <= whole <= 7.0 * blocks * (1 + 1e-9)


def test_blocks_that_go_on_longer_touch_more() -> None:
    stream = stream_without_reuse("all", 400.0, 80.0, 0.0, 10)
    longer = stream.times(2.0)
    assert (longer.kept_load_sectors, longer.store_sectors) == (800, 160)
    assert longer.distinct_sectors == 960
    assert stream.all == ReuseCurve((0, 1), (0, 12), (1, 0), (1, 0))
    assert longer.all == ReuseCurve((0, 1, 2), (0, 12, 24), (1, 0, 0), (1, 0, 0))
    assert stream.times(0.5).all == stream.all


@pytest.mark.parametrize(
    ("along", "blocks", "long"),
    [
        ((2.0, 4096.0), 4, 8), ((2.0, 4096.0), 32, 16), ((4096.0, 2.0), 4, 2),
        ((4096.0, 2.0), 32, 8), ((0.25, 4096.0), 8, 3.75), ((0.0, 0.0), 32, 2),
        ((2.0, 16.0), 32, 64),
    ],
)  # fmt: skip
def test_neighbours_lengthen_what_lies_side_by_side(
    along: tuple[float, float], blocks: int, long: float
) -> None:
    """Two sectors of a block, in a grid of 8 x 4: a row, a column, an eighth of a block further,
    the same for all, row after row."""
    assert Run(2.0, *along).of(blocks, GRID) == long


# --- The optional section of a profile with Wang and Chu's memory parameters


def test_a_gpu_nobody_measured_has_no_such_section() -> None:
    assert load_gpu("tesla-k20").dram_queueing is None


@pytest.mark.parametrize(
    ("line", "instead", "problem"),
    [
        ("cycles = [10.06, ", "cycles = [", "7 clocks but 6 cycles"),
        ("9.06, 9.0]", "9.06, 9.1]", "must not rise"),
        ('value = 8.281, unit = "cycle"', 'value = 8.281, unit = "ns"', "must be 'cycle'"),
        ("latency_memory_cycles", "latency_memory", "latency_memory_cycles: missing"),
    ],
)
def test_a_section_that_cannot_be_says_why(
    tmp_path: Path, line: str, instead: str, problem: str
) -> None:
    text = (FOLDER / "gtx-980.toml").read_text(encoding="utf-8")
    assert line in text
    changed = tmp_path / "gtx-980.toml"
    changed.write_text(text.replace(line, instead), encoding="utf-8")
    assert any(problem in each for each in check_profile(changed))


# --- Loads from shared memory that ptxas joins into wider ones

HEAD = table("bodies", "wide_loads")["head"]

SUM = "add.f32 %f5, %f1, %f2; add.f32 %f6, %f5, %f3; add.f32 %f7, %f6, %f4;"

END = "st.global.f32 [%rd1], %f7; ret; }\n"

FOUR = "".join(f"ld.shared.f32 %f{n + 1}, [%r5+{4 * n}];" for n in range(4))

CASES = [
    (4, FOUR + SUM, [4, 4, 4, 4]),
    # aligned to eight bytes alone
    (3, FOUR + SUM, [2, 2, 2, 2]),
    (2, FOUR + SUM, [1, 1, 1, 1]),
    # three of four words, two of four
    (4, FOUR.replace("+12", "+16") + SUM, [3, 3, 3, 1]),
    (4, FOUR.replace("+12", "+28").replace("+4", "+20") + SUM, [1, 1, 1, 1]),
    # a store or a barrier between them
    (4, FOUR.replace("ld.shared.f32 %f3", "st.shared.f32 [%r5+64], %f1;ld.shared.f32 %f3") + SUM,
     [2, 2, 2, 2]),
    (4, FOUR.replace("ld.shared.f32 %f3", "bar.sync 0;ld.shared.f32 %f3") + SUM, [2, 2, 2, 2]),
    # 16 bytes of two doubles
    (4, "ld.shared.f64 %fd1, [%r5]; ld.shared.f64 %fd2, [%r5+8]; add.f64 %fd3, %fd1, %fd2;"
     "cvt.rn.f32.f64 %f7, %fd3;", [2, 2]),
    # 16 bytes of two vectors
    (4, "ld.shared.v2.f32 {%f1, %f2}, [%r5]; ld.shared.v2.f32 {%f3, %f4}, [%r5+8];" + SUM, [2, 2]),
]  # fmt: skip


def module_of(shift: int, text: str) -> Module:
    return read_module((HEAD.replace("SHIFT", str(shift)) + text + END).replace(";", ";\n"))


@pytest.mark.parametrize(("shift", "text", "joined"), CASES)
def test_loads_that_share_a_wide_one(shift: int, text: str, joined: list[int]) -> None:
    body = module_of(shift, text).functions[0].body
    loads = [one.position for one in body.instructions if one.opcode.startswith("ld.shared")]
    assert joined_loads(body).loads[loads].tolist() == joined
    assert machine_code(body).instructions[loads].tolist() == [1 / one for one in joined]


@pytest.mark.parametrize(("shift", "text", "joined"), CASES)
def test_ptxas_makes_as_many(shift: int, text: str, joined: list[int]) -> None:
    if find_ptxas() is None or find_nvdisasm() is None:
        pytest.skip("needs NVIDIA's ptxas and nvdisasm (requirements-cuda.lock)")
    source = (HEAD.replace("SHIFT", str(shift)) + text + END).replace(";", ";\n")
    module = read_module(source)
    lines = machine_lines(source, module, "sm_75")["k"]
    body = module.functions[0].body
    loads = [one.line for one in body.instructions if one.opcode.startswith("ld.shared")]
    assert sum(lines[line] for line in loads) == sum(1 / one for one in joined)


def test_a_wide_load_takes_a_pass_for_each_quarter_of_the_warp() -> None:
    """The lanes' sixteen bytes lie side by side: four passes for one request, as by scalar loads;
    where all lanes read the same, half as many."""

    def shared(text: str) -> tuple[float, float]:
        launch, gpu = Launch.of(1, 32, arguments={"n": 0}), load_gpu("tesla-v100")
        activity = analyse(module_of(4, text), "k", launch, gpu).activity
        return activity.shared_requests, activity.shared_transactions

    store, stored = shared("mov.f32 %f7, 0f00000000;")
    requests, passes = shared(FOUR + SUM)
    assert (requests - store, passes - stored) == (1, 4)
    requests, passes = shared(FOUR.replace("%r5", "%r3") + SUM)
    assert (requests - store, passes - stored) == (1, 2)
