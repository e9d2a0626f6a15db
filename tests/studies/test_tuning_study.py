"""Counting measurements: the study's arithmetic, on spaces that the tests make up."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from studies.tuning import NEAR, by_kernel_tuner, by_tuning, main, median, needed

ROWS = [
    {"tile": float(tile), "warps": float(warps), "stages": float(stages)}
    for tile, warps, stages in product(range(1, 21), (1, 2, 4, 8, 16), (1, 2, 3, 4))
]  # 400


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(
        [1 + abs(row["tile"] - 7) / 10 + abs(np.log2(row["warps"]) - 2) / 5 for row in ROWS]
    ) * np.array([1 + row["stages"] / 10 for row in ROWS])


def test_it_counts_up_to_the_first_that_is_near() -> None:
    measured = np.array([1.0, 1.04, 1.2, 1.009])
    assert needed(measured, [2, 1, 3, 0]) == {"1%": 3, "5%": 2}
    assert needed(measured, [2]) == {"1%": None, "5%": None}
    assert median([[2, 1, 3], [2], [0]], measured, "1%") == 3
    assert median([[2], [2], [0]], measured, "1%") is None
    assert median([], measured, "5%") is None


def test_the_search_has_predicted_what_it_needs_and_finds_the_best() -> None:
    asked: list[int] = []

    def seconds(place: int) -> float | None:
        asked.append(place)
        return None if place % 50 == 3 else float(truth()[place]) * 1.3

    found = by_tuning(ROWS, seconds, truth(), predictions=250)
    assert len(asked) == len(set(asked)) <= 300
    counts = needed(truth(), found.order)
    assert counts["5%"] is not None
    assert counts["5%"] <= 5
    assert found.stopped is not None
    assert len(found.order) <= 0.1 * len(ROWS) + 1


def test_kernel_tuner_measures_the_same_space() -> None:
    pytest.importorskip("kernel_tuner", reason="Kernel Tuner is not installed")
    names, values = list(ROWS[0]), [list(row.values()) for row in ROWS]
    found = by_kernel_tuner(names, values, truth(), 1)
    assert sum(bool(orders) for orders in found.values()) >= 10
    for orders in found.values():
        for order in orders:
            assert 0 < len(set(order)) == len(order) <= len(ROWS)
            assert set(order) <= set(range(len(ROWS)))
    assert NEAR == (1.01, 1.05)


def test_without_data_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("studies.counters.find_data", lambda: None)
    assert main(["--space", "gemm_titan_rtx"]) == 2
    assert "no data folder" in capsys.readouterr().err
