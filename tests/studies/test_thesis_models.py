"""The study's models: what they predict, on whom they are judged, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from studies.fitting.out_of_fold import OutOfFold
from studies.papers.thesis import regressors as repeated
from studies.papers.thesis.data import Effort, Printed, printed, rows_of
from studies.papers.thesis.regressors import REGRESSORS, judge_linear, judge_regressors
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.evaluation.scores import Rows

ONCE = Effort(assignments=1, jobs=1)


def a_frame(kernels: int = 12, launches: int = 8, seed: int = 0) -> pd.DataFrame:
    """Rows with every column: power follows the kernel's latency and the size of the launch."""
    generator = np.random.default_rng(seed)
    kernel = np.repeat(np.arange(kernels), launches)
    frame = pd.DataFrame(
        {name: generator.uniform(1, 100, len(kernel)) for name in (*MODEL_INPUTS, "grid_size")}
    )
    frame["avg_comp_lat"] = generator.uniform(4, 20, kernels)[kernel]
    frame["inst_issue_cycles"] = generator.uniform(0, 1e6, len(kernel))
    frame["power_w"] = 40 + 3 * frame["avg_comp_lat"] + frame["inst_issue_cycles"] / 5e4
    frame["kernel_group"] = frame["kernel_id"] = [f"kernel{at:02d}/k" for at in kernel]
    frame["family"] = ["bfs" if at % 2 else "saxpy" for at in kernel]
    frame["serial"] = np.linspace(1, 1800, len(kernel)).round()
    return frame


def test_all_eight_predict_rows_with_a_missing_value() -> None:
    rows = rows_of(a_frame(kernels=6, launches=6))
    rows.vectors[3, 0] = np.nan
    spans = rows.watts.min() - 60, rows.watts.max() + 60
    for name, fit_predict in REGRESSORS.items():
        watts = fit_predict(rows.vectors, rows.watts, rows.vectors[:4])
        assert watts.shape == (4,), name
        assert ((watts > spans[0]) & (watts < spans[1])).all(), name


def test_regressors_and_the_linear_one_come_by_gpu() -> None:
    tables = {"one": a_frame(6, 5), "two": a_frame(6, 5, seed=1)}
    found = judge_regressors(tables, ONCE, ("decision-tree",))
    assert {gpu: list(models) for gpu, models in found.items()} == {
        "one": ["decision-tree"],
        "two": ["decision-tree"],
    }
    # Power is linear in these features.
    assert judge_linear(tables, ONCE)["one"].scores("random")["r2"].mean > 0.95


# --- repeated runs, the printed figures ------------------------------------------


def test_scores_by_fold_are_averaged_before_the_runs() -> None:
    rows = Rows.of(np.zeros((4, 1)), [1.0, 3.0, 10.0, 30.0], list("abcd"))
    predicted = np.array([[1.0, 3.0, 10.0, 20.0]])
    made = OutOfFold(
        rows, predicted, predicted, np.zeros((1, 4), dtype=bool), folds=np.array([[0, 0, 1, 1]])
    )
    scores = repeated.mean_of_folds(made)
    # Fold 0 is exact, fold 1 explains 1 - 100 / 200 of its own variance.
    assert scores["r2"].mean == pytest.approx((1 + 0.5) / 2)
    assert scores["mae_watts"].mean == pytest.approx((0 + 5) / 2)
    with pytest.raises(ValueError, match="folds"):
        repeated.mean_of_folds(replace(made, folds=None))


def test_printed_figures_are_complete_and_possible() -> None:
    facts = printed()
    assert isinstance(facts, Printed)
    assert set(facts.table_5_8) == set(facts.table_5_9)
    for by_model in facts.table_5_8.values():
        assert set(by_model) == set(REGRESSORS)
        for scores in by_model.values():
            # An R2 below 1, and no mean of absolute errors above that of squares.
            assert scores.r2 < 1
            assert scores.mae_watts < scores.rmse_watts
    assert len({len(row) for row in facts.table_5_12.values()}) == 1
