"""The study's view of features: selection, outliers, dwarfs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from studies.papers.thesis import features
from studies.papers.thesis.data import judge, rows_of
from studies.papers.thesis.features import TABLE_5_4, rank, select_features, without_correlated
from studies.papers.thesis.published import NOT_CLASSIFIED
from studies.papers.thesis.regressors import REGRESSORS
from studies.papers.thesis.rows import error_by_dwarf, rows_by_dwarf
from tests.studies.test_thesis_models import ONCE, a_frame

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
