"""``python -m studies library-kernels``: what products of libraries draw by their time alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.fitting.operators import read_rows
from studies.traces.library_kernels import BOARDS, LIKE, Shares, by_time, ratios
from tests.needs import needs_data
from wattcast.app.settings import Settings
from wattcast.predictor import Predictor
from wattcast.predictor.traces.library import BY_TIME, LOW
from wattcast.training.data.datasets import data_root


def shares(groups: list[str], share: list[float], seconds: float = 1e-4) -> Shares:
    count = len(groups)
    return Shares(np.array(share), np.full(count, seconds), np.full(count, 16.0), np.array(groups))


def test_groups_weigh_alike_whatever_their_rows() -> None:
    many = shares(["a"] * 900 + ["b"] * 100, [0.9] * 900 + [0.5] * 100)
    assert many.ends() == (0.5, 0.9)
    (line,) = by_time(many)
    assert "1,000 rows, median 0.90, groups 0.50 to 0.90" in line


@needs_data
@pytest.mark.parametrize("operator", LIKE)
def test_ends_are_those_of_the_worse_board(operator: str, tmp_path: Path) -> None:
    predictor, ends = Predictor(Settings(home=tmp_path)), list[tuple[float, float]]()
    for board in BOARDS:
        rows = read_rows(data_root() / "operators", operator, board)
        assert rows is not None
        found = ratios(predictor, board, operator, rows)
        long = found.taken(found.seconds >= 2e-5)
        ends += [found.ends(), long.ends()] if LIKE[operator] != "pass" else [found.ends()]
        assert np.mean(np.abs(1 / found.share - 1)) < 0.33
    like = BY_TIME[LIKE[operator]]
    least = LOW if LIKE[operator] == "pass" else min(low for low, _ in ends)
    assert (like.low, like.high) == pytest.approx((least, max(high for _, high in ends)), abs=0.011)
