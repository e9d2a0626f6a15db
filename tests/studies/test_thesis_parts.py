"""The thesis, part by part: tables beside the printed ones, and the command that prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.__main__ import main as studies
from studies.pages.page import Section, Table, to_markdown
from studies.papers.thesis import command, model_sections
from studies.papers.thesis import study as thesis
from studies.papers.thesis.data import Effort
from studies.papers.thesis.study import K20, Study
from studies.papers.thesis.times import times_section
from tests.studies.test_thesis_models import a_frame

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
