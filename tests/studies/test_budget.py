"""Counts under a small budget beside those of a run to completion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.budget.launches import Asked, long_running, of_fixtures
from studies.budget.study import Compared, compared, page, read, study

BUDGET = 2e7
FEW = (
    "histogram/2", "spmv_scalar/2", "matmul_tiled/2", "grid_stride/2", "scan/2", "stencil2d/2",
    "saxpy/2", "softmax/2", "triangular_pairs/2", "layer_norm/2", "transpose_padded/2",
    "long/histogram_bytes", "long/spmv_warp", "long/stencil_steps", "long/rows_of_lengths",
)  # fmt: skip


def asked(*names: str) -> list[Asked]:
    return [each for each in (*of_fixtures(), *long_running()) if each.name in names]


@pytest.fixture(scope="module")
def found() -> dict[str, Compared]:
    return {each.name: compared(each, BUDGET) for each in asked(*FEW)}


@pytest.mark.slow
def test_a_small_budget_counts_what_completion_counts(found: dict[str, Compared]) -> None:
    """Most of these end within the budget only because fewer blocks are run."""
    worst = np.array([one.worst for one in found.values()])
    print(page(list(found.values())))
    assert len(found) == len(FEW)
    assert np.mean(worst <= 0.02) >= 0.8
    assert np.mean(worst <= 0.10) >= 0.95


def test_results_kept_are_not_worked_out_again(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "results.jsonl"
    one = asked("saxpy/0", "copy/0")
    first = list(study(one, file, BUDGET, said.append))
    assert len(said) == 2
    assert list(study(one, file, BUDGET, said.append)) == first
    assert len(said) == 2
    assert read(file) == {each.name: each for each in first}


def test_a_run_that_was_cut_counts_less_than_completion() -> None:
    """The comparison sees what a budget leaves out: this kernel repeats nothing, and knows only
    from its data when to end."""
    one = compared(*asked("long/until_done"), 1e5)
    assert not one.completed
    assert one.deviation("instructions") > 0.1
    assert "budget ended" in page([one])
