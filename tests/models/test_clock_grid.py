"""Which clocks a GPU supports, and what happens beside them."""

from __future__ import annotations

import pytest

from wattcast.features.errors import ClockError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import (
    ClockPair,
    admitted,
    crossed,
    highest_pair,
    is_supported,
    one_memory_clock,
    stepped,
    supported_pairs,
)

TITAN_X = load_gpu("gtx-titan-x")
V100 = load_gpu("tesla-v100")
M60 = load_gpu("tesla-m60")


def test_the_grid_of_a_gpu_and_its_highest_pair() -> None:
    assert len(supported_pairs(TITAN_X)) == 64
    assert highest_pair(TITAN_X) == (1164, 4005)
    assert highest_pair(V100) == (1380, 877)
    assert one_memory_clock(V100)
    assert not one_memory_clock(TITAN_X)


def test_a_gpu_without_a_list_supports_its_default_pair() -> None:
    assert supported_pairs(M60) == (ClockPair(M60.core_mhz, M60.memory_mhz),)


def test_the_default_pair_counts_as_supported() -> None:
    assert is_supported(ClockPair(V100.core_mhz, V100.memory_mhz), V100)
    assert not is_supported(ClockPair(1000, 877), V100)


def test_pairs_are_sorted_and_distinct() -> None:
    wanted = [ClockPair(1380, 877), ClockPair(802, 877), ClockPair(1380, 877)]
    assert admitted(wanted, V100) == ((802, 877), (1380, 877))


@pytest.mark.parametrize(
    ("pair", "field"),
    [
        ((0, 877), "core_mhz"),
        ((1000, -1), "memory_mhz"),
        ((200, 877), "core_mhz"),  # V100's lowest is 405
        ((1657, 877), "core_mhz"),  # its highest 1380; 1.2 times that is 1656
        ((1000, 1053), "memory_mhz"),
        ((1000, float("nan")), "memory_mhz"),
    ],
)
def test_clocks_far_from_any_supported_one_are_refused(
    pair: tuple[float, float], field: str
) -> None:
    with pytest.raises(ClockError) as caught:
        admitted([ClockPair(*pair)], V100)
    assert caught.value.field == field
    assert admitted([ClockPair(203, 877), ClockPair(1656, 1052)], V100)


def test_ranges_and_crosses() -> None:
    assert stepped(700, 1000, 100, "core") == (700, 800, 900, 1000)
    assert stepped(0.1, 0.3, 0.1, "core") == pytest.approx((0.1, 0.2, 0.3))
    assert stepped(700, 700, 50, "core") == (700,)
    assert crossed((1, 2), (3,)) == ((1, 3), (2, 3))
    for low, high, step in ((0, 1, 1), (2, 1, 1), (1, 2, 0)):
        with pytest.raises(ClockError, match="no range"):
            stepped(low, high, step, "core")
