"""Tuning spaces beside counters: what is asked, how it is scored, and what the page shows."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest

from studies.counters import (
    RESULTS,
    Asked,
    folder,
    lost,
    norms_left_out,
    spaces,
)
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


def asked(seconds: float, requests: float, counted: float) -> Asked:
    name = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
    row = defaultdict(lambda: "0", {name: str(counted), "VERTICES": "600"})
    counts = defaultdict(float, {"global_load_requests": requests})
    return Asked(0, 1.0, seconds, 0.5, 2.0, counts, 1.0, row, "memory", ())


def test_the_norm_of_a_space_is_chosen_by_other_kernels() -> None:
    """Both convolutions took as long as one norm says, points in a polygon as another: each gets
    the other's, and spaces of one kernel do not choose for each other."""
    parts = {"fma": 3.0, "shared": 4.0, "launch": 0.0}

    def took(norm: float) -> list[Asked]:
        measured = float((3.0**norm + 4.0**norm) ** (1 / norm))
        one = asked(5.0, 1, 1)._replace(parts=parts, measured_seconds=measured)
        return [one, one]

    spaces_asked = {
        "convolution_2080ti": took(3.0), "convolution_a100": took(3.0), "pnpoly_2080ti": took(1.25),
    }  # fmt: skip
    lines = norms_left_out(spaces_asked).splitlines()[2:]
    assert [line.split(" | ")[3] for line in lines] == ["1.25", "1.25", "3"]


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
