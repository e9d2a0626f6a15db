"""The study's models: what they predict, on whom they are judged, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.__main__ import main as studies
from studies.fitting.out_of_fold import OutOfFold
from studies.pages.page import Section, Table, to_markdown
from studies.papers.thesis import command, features, model_sections
from studies.papers.thesis import regressors as repeated
from studies.papers.thesis import study as thesis
from studies.papers.thesis.data import Effort, Printed, judge, printed, rows_of
from studies.papers.thesis.features import TABLE_5_4, rank, select_features, without_correlated
from studies.papers.thesis.published import NOT_CLASSIFIED
from studies.papers.thesis.regressors import REGRESSORS, judge_linear, judge_regressors
from studies.papers.thesis.rows import error_by_dwarf, rows_by_dwarf
from studies.papers.thesis.study import K20, Study
from studies.papers.thesis.times import times_section
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


# --- The thesis, part by part: tables beside the printed ones, and the command that prints them

MODEL = "decision-tree"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """The study on made-up rows with one fast model."""
    tables = {K20: a_frame(10, 6), "tesla-m60": a_frame(8, 5, seed=1)}
    monkeypatch.setattr(thesis, "study_tables", lambda root: tables)
    return Study(Effort(assignments=1, jobs=1), models=(MODEL,))


def tables_of(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def test_regressors_stand_beside_print_and_baselines(study: Study) -> None:
    section = model_sections.regressors_section(study)
    first = tables_of(section)[0]
    rows = {row[0]: row for row in first.rows}
    assert list(rows) == [MODEL, "multi-linear", "median watt", "nearest row"]
    found = study.regressors[K20][MODEL].scores("grouped")["mae_watts"]
    assert rows[MODEL][-1] == f"{found.mean:.2f}"
    assert rows[MODEL][4:7] == ["0.845", "9.39", "5.01"]
    assert len(tables_of(section)) == 2
    assert "10 kernel groups" in first.caption


def test_the_study_command_prints_the_parts_asked_for(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Study", lambda effort: study)
    assert command.main(["regressors", "--assignments", "1", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "## Eight regressors" in out
    assert "Outliers" not in out


def test_the_study_command_tells_of_missing_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))
    assert studies(["thesis", "regressors"]) == 1
    assert "WATTCAST_DATA" in capsys.readouterr().err


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 cells under 1 titles"):
        Table(("a",), [["1", "2"]])


def test_columns_of_numbers_are_aligned_as_such() -> None:
    table = Table(("name", "value", "gaps"), [["8 pairs x", "-0.5", "-"], ["y", "+12.1 (3)", "7"]])
    assert "| --- | ---: | ---: |" in to_markdown("p", [Section("s", (table,))])


def test_the_thesis_is_told_from_its_shipped_tables() -> None:
    rows = [list(row) for table in tables_of(times_section(None)) for row in table.rows]
    assert ["delay", "tesla-k20", "45", "26.86 (13.3)", "26.86"] in [row[:5] for row in rows]
    # Section 4.3.5 and the last lines of Table 4.8: mean absolute errors of 45 and of 44 kernels.
    pairs = [row for row in rows if row[0] in ("delay", "scheduling")]
    assert [row[2] for row in pairs] == ["45", "44", "44", "44", "44"]
    for row in pairs:
        assert float(row[3].split()[0]) == pytest.approx(float(row[4]), abs=0.1)
    kernels = {row[0].split(",")[0]: row for row in rows if row[1] == K20}
    # docs/time.md: the thesis' two models and Volkov's, in us and over what was measured.
    assert {"3.51 (1.33)", "7.10 (2.69)", "3.13 (1.18)"} < set(kernels["vectorAdd"])
    assert {"2,843.17 (0.41)", "8,030.25 (1.15)"} < set(kernels["tiledMatmul"])


# --- The study's view of features: selection, outliers, dwarfs


# --- selection ------------------------------------------------------------------------------------
def test_of_two_that_go_together_the_preferred_stays() -> None:
    frame = a_frame()
    frame["avg_comp_lat"] = -2 * frame["inst_issue_cycles"]
    frame["branch"] = frame["occupancy"]
    kept, dropped = without_correlated(
        frame, ("avg_comp_lat", "occupancy", "branch", "inst_issue_cycles"), "pearson"
    )
    assert kept == ("occupancy", "inst_issue_cycles")
    found = {each.feature: (each.kept, round(each.value, 6)) for each in dropped}
    assert found == {"avg_comp_lat": ("inst_issue_cycles", -1.0), "branch": ("occupancy", 1.0)}


def test_forest_and_shap_find_what_power_follows() -> None:
    ranking = rank(a_frame(), ("occupancy", "avg_comp_lat", "inst_issue_cycles", "branch"))
    first = {each.feature for each in ranking[:2]}
    assert first == {"avg_comp_lat", "inst_issue_cycles"}
    assert {each.feature for each in sorted(ranking, key=lambda one: -one.shap)[:2]} == first
    assert sum(each.forest for each in ranking) == pytest.approx(1)
    assert sum(each.shap for each in ranking) == pytest.approx(1)


def test_steps_only_ever_leave_features_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FOREST_TREES", 5)
    # Which features are left does not depend on the model that is judged on them.
    monkeypatch.setattr(features, "REGRESSORS", {"xgboost": REGRESSORS["decision-tree"]})
    generator = np.random.default_rng(3)
    frame = a_frame(8, 5)
    for name in TABLE_5_4:
        if name not in frame:
            frame[name] = generator.random(len(frame))
    frame["waves"] = frame["inst_issue_cycles"] / 7
    frame["glb_penalty"] = np.nan
    found = select_features(frame, ONCE)
    names = list(found.steps)[:-1]
    for before, after in pairwise(names):
        assert set(found.steps[after]) <= set(found.steps[before])
    assert "glb_penalty" not in found.steps["all"]
    assert "comp_inst_sm" not in found.steps["derived"]
    assert "waves" in {each.feature for each in found.pearson}
    assert "inst_issue_cycles" in found.steps["forest"]
    assert set(found.judged) == set(found.steps)


# --- outliers -------------------------------------------------------------------------------------


# --- dwarfs ---------------------------------------------------------------------------
def test_error_by_dwarf_is_that_of_its_rows() -> None:
    frame = a_frame(6, 5)
    frame.loc[frame.index[:5], "family"] = "nobody-knows"
    judged = {"decision-tree": judge("t", rows_of(frame), REGRESSORS["decision-tree"], ONCE)}
    members, errors = rows_by_dwarf(frame), error_by_dwarf(judged, frame)
    assert list(members) == ["Dense Linear Algebra", "Graph Traversal", NOT_CLASSIFIED]
    assert sum(found.rows.sum() for found in members.values()) == len(frame)
    own = members["Graph Traversal"].rows
    predicted = judged["decision-tree"].grouped
    wrong = np.abs(predicted.predicted_watts[0] - predicted.rows.watts)[own].mean()
    assert errors["Graph Traversal"]["decision-tree"][1] == pytest.approx(wrong)
