"""Tuning spaces beside counters: what is asked, how it is scored, and what the page shows."""

from __future__ import annotations

import json
import math
from itertools import combinations

import numpy as np
import pytest

from studies.counters import RESULTS, folder, lost, spaces
from wattcast.features.errors import DataError
from wattcast.training.data.datasets import find_data


def test_what_a_choice_loses_is_exact() -> None:
    measured = np.random.default_rng(1).uniform(1, 3, 12)
    loss, at_random = lost(measured, measured)
    assert loss == 0
    assert at_random == pytest.approx(100 * (measured.mean() / measured.min() - 1))
    worst, _ = lost(-measured, measured)
    assert worst == pytest.approx(100 * (measured.max() / measured.min() - 1))
    many = np.random.default_rng(2).uniform(1, 3, 150)  # of these, two are tried
    best = [min(pair) for pair in combinations(many.tolist(), 2)]
    assert math.ceil(0.01 * many.size) == 2
    assert lost(many, many)[1] == pytest.approx(100 * (np.mean(best) / many.min() - 1))


def test_the_folder_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATTCAST_PUBLIC_SPACES", raising=False)
    with pytest.raises(DataError, match="set WATTCAST_PUBLIC_SPACES"):
        folder()


@pytest.mark.parametrize("name", spaces())
def test_launches_are_those_that_were_measured(name: str) -> None:
    if find_data() is None:
        pytest.skip("no data folder: set WATTCAST_DATA")
    space = spaces()[name]
    rows = space.rows()
    assert len({space.ptx(row) for row in rows}) == len(rows)
    for row in rows[:200]:
        launch = space.launch(row)
        for what, key in (("grid", "grid"), ("block", "block")):
            told = [int(row[f"{key}_{axis}"]) for axis in "xyz" if f"{key}_{axis}" in row]
            if space.counters:
                assert (launch[what] + [1, 1])[:3] == told


def test_the_results_hold_every_space() -> None:
    figures = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert list(figures) == list(spaces())
    for name, one in figures.items():
        assert ("counts" in one) == spaces()[name].counters
