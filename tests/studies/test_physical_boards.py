"""What docs/physical.md shows of cards and boards is what the code gives, and what must hold."""

from __future__ import annotations

import numpy as np
import pytest

from studies.data.activity_tables import served_folder
from studies.power.physical_boards import (
    PAGE,
    TABLES,
    boards_tables,
    cards_table,
    one_board_seen,
    shown,
    spread,
    with_tables,
)
from studies.power.physical_fit import Fits
from studies.power.physical_rows import SWEPT, all_rows
from wattcast.models.power.physical import POOLED
from wattcast.models.store import ArtifactStore
from wattcast.training.data.datasets import find_data

needs_data = pytest.mark.skipif(find_data() is None, reason="no data folder: set WATTCAST_DATA")


def test_the_page_shows_the_shipped_cards() -> None:
    assert shown(PAGE.read_text("utf-8"), "cards") == cards_table().strip()


@pytest.mark.slow
@needs_data
@pytest.mark.skipif(served_folder() is None, reason="no activity tables: set WATTCAST_ACTIVITY")
def test_the_page_shows_what_the_study_prints() -> None:
    assert shown(PAGE.read_text("utf-8"), "boards") == boards_tables().strip()


def test_tables_take_their_places() -> None:
    page = "a\n<!-- physical-x: begin -->\nold\n<!-- physical-x: end -->\nb\n"
    found = with_tables(page, {"x": "| new |\n"})
    assert shown(found, "x") == "| new |"
    assert found.startswith("a\n")
    assert found.endswith("\nb\n")
    assert with_tables(found, {"x": "| new |\n"}) == found
    assert all(f"<!-- physical-{name}: begin -->" in PAGE.read_text("utf-8") for name in TABLES)


def test_the_pooled_interval_is_no_wider_than_asked_and_holds_boards_left_out() -> None:
    card = next(card for card in ArtifactStore().list() if card.gpu == POOLED)
    width = card.intervals.unseen_kernel
    low, high = width.around(np.array([100.0]))
    assert high[0] / low[0] <= 2.2
    assert width.coverage is not None
    assert 0.87 <= width.coverage.kernels <= 0.97  # mean over the boards


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("gpu", "most"), [("a40", 5.0), ("a100-sxm4-40gb", 7.0)])
def test_one_board_seen_tells_the_others(gpu: str, most: float) -> None:
    found = one_board_seen(Fits(all_rows()), gpu)
    assert len(found.errors_percent) == 8
    assert found.errors_percent.max() <= most
    assert found.rank_correlation >= 0.9
    assert found.mean_of_others_percent < found.errors_percent.mean()  # there is no better guess


@needs_data
@pytest.mark.parametrize("gpu", SWEPT)
def test_boards_differ_more_than_a_board_from_itself(gpu: str) -> None:
    found = spread(gpu)
    assert 0 < found.within_percent < found.between_percent < 5
    assert 0 < found.percent_per_kelvin < 1.5
