"""Sectors, bank conflicts and footprints against plain Python sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.counters import shared_transactions as reference_transactions
from wattcast.features.memory import (
    KEY_BITS,
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

LANES = st.lists(st.integers(0, 4096), min_size=32, max_size=32)
ACTIVE = st.lists(st.booleans(), min_size=32, max_size=32)


def table(lanes: list[int], scale: int = 1) -> np.ndarray:
    return np.array([lanes], dtype=np.int64) * scale


@given(LANES, ACTIVE)
def test_sectors_are_the_distinct_32_byte_pieces_of_active_lanes(
    lanes: list[int], active: list[bool]
) -> None:
    wanted = {a // 32 for a, on in zip(lanes, active, strict=True) if on}
    counts, values = sectors(table(lanes), np.array([active]))
    assert counts.tolist() == [len(wanted)]
    assert set(values.tolist()) == wanted


@given(LANES, ACTIVE, st.sampled_from([1, 2, 4, 8, 16]))
def test_shared_transactions_are_the_degree_of_bank_conflict(
    lanes: list[int], active: list[bool], width: int
) -> None:
    aligned = [lane * width for lane in lanes]
    found = shared_transactions(table(aligned), width, np.array([active]))
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
