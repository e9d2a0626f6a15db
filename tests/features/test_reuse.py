"""What blocks touch together, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.counts import ReuseCurve, Run, Sharing, Stream, patch
from wattcast.features.memory import SECTORS_PER_LINE

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
