"""The report on power: sections of the study, targets from cards, the page as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.__main__ import main as run
from studies.pages.page import Page, Section, Table, to_html, to_markdown
from studies.pages.targets import Target, target_lines
from studies.power import (
    power_features,
    power_physical,
    power_study,
)
from studies.power import power_report as power
from studies.power.bounds import BOUNDS, KNOWN_R2
from studies.power.holds import IntervalGain, blend
from studies.power.physical_fit import FitSettings
from studies.power.physical_rows import prototype_rows
from studies.power.physical_tables import RouteError
from studies.power.power_models import (
    Held,
    chosen_cards,
    intervals_section,
    model_targets,
    models_section,
    packaged_cards,
)
from studies.power.power_parts import ON_REQUEST, PARTS, USUAL
from studies.power.power_physical import PhysicalChapter, physical_chapter
from studies.thesis import command, outliers
from studies.thesis import study as thesis
from studies.thesis.cost import Measured
from studies.thesis.judged import Effort
from studies.thesis.regressors import REGRESSORS
from studies.thesis.study import K20, Study
from tests.studies.test_thesis_models import a_frame
from wattcast.features.errors import DataError
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.data.datasets import find_data

needs_data = pytest.mark.skipif(
    find_data() is None, reason="no training data: set WATTCAST_DATA (docs/study.md)"
)
MODEL = "decision-tree"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """The study on made-up rows with one fast model."""
    tables = {K20: a_frame(10, 6), "tesla-m60": a_frame(8, 5, seed=1)}
    monkeypatch.setattr(thesis, "study_tables", lambda root: tables)
    monkeypatch.setattr(outliers, "BOTH_WAYS", (MODEL,))
    return Study(Effort(assignments=1, jobs=1), models=(MODEL,))


def tables_of(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def test_regressors_stand_beside_print_and_baselines(study: Study) -> None:
    section = power_study.regressors_section(study)
    first = tables_of(section)[0]
    rows = {row[0]: row for row in first.rows}
    assert list(rows) == [MODEL, "multi-linear", "median watt", "nearest row"]
    found = study.regressors[K20][MODEL].scores("grouped")["mae_watts"]
    assert rows[MODEL][-1] == f"{found.mean:.2f}"
    assert rows[MODEL][4:7] == ["0.845", "9.39", "5.01"]
    assert len(tables_of(section)) == 2
    assert "10 kernel groups" in first.caption


def test_outliers_and_dwarfs_speak_of_the_same_rows(study: Study) -> None:
    removed, everywhere = tables_of(power_study.outliers_section(study))
    assert [row[:2] for row in everywhere.rows] == [[MODEL, "kept"], [MODEL, "removed"]]
    kept = study.regressors[K20][MODEL].scores("random")["r2"].mean
    assert everywhere.rows[0][2].startswith(f"{kept:.3f}")
    assert len(removed.rows) == 1


def test_dwarfs_are_those_of_the_table_and_the_rest(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {MODEL: dict.fromkeys(("Graph Traversal", "Dense Linear Algebra"), 3.25)}
    facts = power_study.printed().model_copy(update={"table_5_12": told})
    monkeypatch.setattr(power_study, "printed", lambda: facts)
    rows_out, kernels_out = tables_of(power_study.dwarfs_section(study))
    for table in (rows_out, kernels_out):
        assert [row[0] for row in table.rows] == ["Dense Linear Algebra", "Graph Traversal"]
        assert sum(int(row[1]) for row in table.rows) == len(study.k20)
        assert all(row[2].endswith("(3.25)") for row in table.rows)


def test_dependence_has_every_feature(study: Study) -> None:
    (table,) = tables_of(power_features.dependence_section(study))
    assert sorted(row[0] for row in table.rows) == sorted(MODEL_INPUTS)


def test_cost_stands_beside_the_printed(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_features, "measure", lambda model, size: Measured(2.0, 300.0, 20.0))
    (table,) = tables_of(power_features.cost_section(study))
    assert table.rows[0] == ["xgboost", "smaller", "2.0", "3.3", "300", "20", "323"]
    assert len(table.rows) == 4


# --- cards and targets ----------------------------------------------------------------------------


def test_targets_are_those_of_the_best_card_of_each_gpu() -> None:
    cards = packaged_cards()
    chosen = chosen_cards(cards)
    assert list(chosen) == list(BOUNDS)
    for gpu, card in chosen.items():
        rivals = [each for each in cards if each.gpu == gpu and each.source == card.source]
        errors = [each.score("as_published", "grouped").model["mae_watts"].mean for each in rivals]
        own = card.score("as_published", "grouped")
        assert own.model["mae_watts"].mean == min(errors)
        held = model_targets([card], {})
        floor = next(one for one in held if one.target.bound == BOUNDS[gpu].grouped_mae_watts)
        assert floor.target.found == own.model["mae_watts"].mean
        assert floor.nothing == own.baseline["mae_watts"].mean
        assert floor.target.unit == "W"


def test_plain_models_are_bounds_where_they_were_judged(study: Study) -> None:
    plain = {K20: {"xgboost": replace(study.regressors[K20][MODEL], model="xgboost")}}
    held = model_targets(packaged_cards(), plain)
    (one,) = [each for each in held if "against plain" in each.target.name]
    error = plain[K20]["xgboost"].scores("grouped")["mae_watts"].mean
    assert one.target.bound == pytest.approx(error, abs=0.005)


def test_r2_has_no_unit_and_three_digits() -> None:
    target = Target("a", 0.9134, 0.925, "at least", unit="")
    assert (target.verdict, target.limit, target.reached) == (
        "missed by 0.012",
        "at least 0.925",
        "0.913",
    )
    assert target_lines([target]) == ["missed by 0.012  a: 0.913 (at least 0.925)"]


def test_sections_on_cards_have_random_beside_grouped() -> None:
    cards = packaged_cards()
    text = to_markdown(Page("p", "P", "", [models_section(cards), intervals_section(cards)]))
    assert "random, 5 × 10" in text
    assert "grouped, 5 × 10" in text
    assert "unseen kernel" in text
    html = to_html(Page("p", "P", "", [models_section(cards)]))
    assert html.count("<table>") == 2


@needs_data
def test_physical_models_are_judged_beside_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = ("quadro-rtx-8000", "tesla-v100", "gtx-1080-ti", "tesla-p100")
    # Without the campaigns that only add programs: the tables of activities alone are quick.
    monkeypatch.setattr(
        power_physical, "all_rows", lambda: {gpu: prototype_rows(gpu) for gpu in gpus}
    )
    chapter = physical_chapter((FitSettings(),))
    (section,) = chapter.sections
    table, programs = tables_of(section)
    by_gpu = {row[0]: row for row in table.rows}
    at = programs.titles.index("tesla-p100")
    assert int(by_gpu["tesla-p100"][1]) == sum(row[at] != "-" for row in programs.rows)
    held = {each.target.name.split(",")[0]: each for each in chapter.held}
    assert set(held) == {"quadro-rtx-8000", "tesla-v100", "gtx-1080-ti", "tesla-p100"}
    rtx = held["quadro-rtx-8000"]
    assert by_gpu["quadro-rtx-8000"][3] == f"{rtx.target.found:.1f} ({rtx.nothing:.1f})"
    assert rtx.target.found < rtx.nothing


# --- the page -------------------------------------------------------------------------------------


def test_the_page_has_targets_first_and_every_part(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def section(name: str) -> Section:
        return Section(f"part {name}", ("text",))

    physical = PhysicalChapter(
        (section("physical"),), (Held(Target("p", 12.0, 14.0), 17.2), Held(Target("q", 1.0, 0.5)))
    )
    monkeypatch.setattr(power, "physical_chapter", lambda: physical)
    asked = {1: [Held(Target("m", 3.0, 4.0))]}
    monkeypatch.setattr(power, "measured_targets", asked.__getitem__)
    monkeypatch.setattr(power, "Study", lambda effort: study)
    sections = {"regressors": lambda _: section("models"), "one": lambda _: section("one")}
    monkeypatch.setattr(power, "PARTS", sections)
    page, targets = power.power_report(1, parts=("one",))
    assert not [each for each in targets if "plain" in each.name]
    titles = [each.title for each in page.sections]
    assert titles[0] == "Targets"
    assert titles[-2:] == ["part physical", "part one"]
    assert targets[-3:] == (
        Target("p", 12.0, 14.0),
        Target("q", 1.0, 0.5),
        Target("m", 3.0, 4.0),
    )
    (shown,) = tables_of(page.sections[0])
    assert shown.rows[-3:-1] == [
        ["p", "at most 14 %", "12.00 %", "met", "17.20"],
        ["q", "at most 0.5 %", "1.00 %", "missed by 0.50", "-"],
    ]


def test_the_report_command_writes_both_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page("power", "Accuracy of power", "", [Section("Only", ("text",))])
    asked = []

    def report(assignments: int, progress: object) -> tuple[Page, tuple[Target]]:
        asked.append(assignments)
        return page, (Target("K20, R²", 0.93, 0.925, "at least", unit=""),)

    monkeypatch.setattr(power, "power_report", report)
    assert run(["report", "power", "--out", str(tmp_path), "--assignments", "3"]) == 0
    assert asked == [3]
    assert capsys.readouterr().out.startswith("met              K20, R²: 0.930 (at least 0.925)\n")
    assert "Only" in (tmp_path / "power.md").read_text("utf-8")
    assert (tmp_path / "power.html").is_file()


def test_the_study_command_prints_the_parts_asked_for(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Study", lambda effort: study)
    assert command.main(["regressors", "--assignments", "1", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "## Eight regressors" in out
    assert "Outliers" not in out
    assert ".svg" not in out


def test_the_study_command_refuses_what_is_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["nonsense"])
    assert ended.value.code == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_study_command_tells_of_missing_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))
    assert command.main(["regressors"]) == 1
    assert "WATTCAST_DATA" in capsys.readouterr().err


def test_a_study_of_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        _ = Study(Effort(1, 1), root=tmp_path).tables


def test_parts_cover_the_thesis() -> None:
    assert set(PARTS) == {
        *("initial", "selection", "regressors", "networks", "repeated", "ranking"),
        *("dependence", "outliers", "dwarfs", "dynamic", "cost", "regressions", "compared"),
        *("pictures", *ON_REQUEST),
    }
    assert set(USUAL) == set(PARTS) - set(ON_REQUEST)
    assert set(REGRESSORS) >= {"xgboost", "catboost"}


def test_points_of_a_figure_are_medians_of_kernels(study: Study) -> None:
    predicted = study.regressors[K20][MODEL].grouped
    points = power_study._kernel_points("gpu", predicted)
    frame = pd.DataFrame({"group": predicted.rows.groups, "watts": predicted.rows.watts})
    medians = frame.groupby("group")["watts"].median()
    np.testing.assert_allclose(points.measured, medians.to_numpy())


def test_what_the_report_measures_itself_stands_beside_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = [
        RouteError("PTX tokens alone", "tesla-v100", 17.6, 17.4),
        RouteError("programs left out", "tesla-p100", 9.0, 17.0),
    ]
    monkeypatch.setattr(power, "measured_errors", lambda fast: iter(routes))
    monkeypatch.setattr(
        power, "interval_judged", lambda *_: IntervalGain(80.0, 100.0, nearest_mae=1.0)
    )
    monkeypatch.setattr(power, "_seen", lambda seeds: iter(()))
    monkeypatch.setattr(power, "_known", lambda seeds: iter(()))
    held = {each.target.name: each for each in power.measured_targets(1)}
    tokens = held["tesla-v100, physical, PTX tokens alone, mean error"]
    assert tokens.target.verdict == "missed by 0.10"
    assert tokens.nothing == 17.4
    gain = held["tesla-k20, kernels left out, interval score under a constant width's"].target
    assert (round(gain.found, 9), gain.bound, gain.met) == (20.0, 10.0, True)
    assert len(held) == 1 + len(BOUNDS), "a bound in words is the physical chapter's"


@needs_data
def test_known_launches_tell_more_than_their_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "KNOWN_R2", {"tesla-m60": KNOWN_R2["tesla-m60"]})
    (held,) = power._known([0])
    assert held.target.bound == 0.78
    assert held.nothing < held.target.found < 1


def test_the_blend_answers_a_repeated_launch_with_about_its_own_watts() -> None:
    random = np.random.default_rng(0)
    vectors = random.uniform(1, 10, (60, 3))
    watts = 50 + 20 * vectors[:, 0] + random.normal(0, 1, 60)
    vectors[5, 2] = np.nan
    again = blend(vectors, watts, vectors[:10])
    assert again == pytest.approx(watts[:10], rel=0.05)
    unseen = blend(vectors[10:], watts[10:], vectors[:10])
    assert np.abs(unseen - watts[:10]).mean() < np.abs(watts[:10] - np.median(watts)).mean()
