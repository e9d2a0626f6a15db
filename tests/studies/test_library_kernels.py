"""``python -m studies library-kernels``: what products of libraries draw by their time alone."""

from __future__ import annotations

import numpy as np
import pytest

from studies.fitting.operators import read_rows
from studies.traces.library_kernels import BOARDS, Shares, by_time, half_products, shares_of
from wattcast.predictor.traces.library import HALF_LOW, HALF_SECONDS, HALF_SHARE
from wattcast.training.data.datasets import data_root, find_data


def shares(groups: list[str], share: list[float], seconds: float = 1e-4) -> Shares:
    count = len(groups)
    return Shares(np.array(share), np.full(count, seconds), np.full(count, 16.0), np.array(groups))


def test_groups_weigh_alike_whatever_their_rows() -> None:
    many = shares(["a"] * 900 + ["b"] * 100, [0.9] * 900 + [0.5] * 100)
    assert many.ends() == (0.5, 0.9)
    (line,) = by_time(many)
    assert "1,000 rows, median 0.90, groups 0.50 to 0.90" in line
    first = next(half_products([("x", many), ("y", shares(["c"] * 200, [0.8] * 200))]))
    assert first.startswith("x: 1,000 rows, median 0.90")


@pytest.mark.skipif(find_data() is None, reason="no data sets: set WATTCAST_DATA")
def test_constants_are_those_of_the_rows() -> None:
    ends = []
    for board in BOARDS:
        rows = read_rows(data_root() / "operators", "gemm", board)
        assert rows is not None
        found = shares_of(rows)
        long = found.taken((found.bits == 16) & (found.seconds >= HALF_SECONDS))
        assert np.median(long.share) == pytest.approx(HALF_SHARE, abs=0.01)
        ends.append(long.ends()[0])
    assert np.mean(ends) == pytest.approx(HALF_LOW, abs=0.01)
