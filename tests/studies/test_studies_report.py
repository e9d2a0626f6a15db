"""``python -m studies report``: what it lists, prints and refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from studies import report
from studies.__main__ import STUDIES, main
from studies.clocks import dvfs_report as dvfs
from studies.pages.page import Page, Section
from studies.pages.targets import Target
from studies.time import time_report as time
from studies.time.work_tables import ASSIGNMENTS

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def command(*words: str, status: int = 0) -> tuple[str, str]:
        try:
            code: object = main(["report", *words])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert code == status, printed
        return printed.out, printed.err

    return command


def test_every_study_is_listed_and_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, (_, purpose) in STUDIES.items():
        assert f"  {name:<12} {purpose}\n" in listed
        if name == "accuracy":  # writes a page: tests/docs
            continue
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: python -m studies {name}" in capsys.readouterr().out
    assert main(["nonsense"]) == 2
    assert "no study is called 'nonsense': report, accuracy" in capsys.readouterr().err


def test_help_lists_the_reports(run: Run) -> None:
    out, _ = run("--help")
    assert "time             how near predicted times" in out
    assert "dvfs             how near predicted time, power and energy" in out
    assert "power            how near predicted power comes to measured power" in out


def test_a_report_prints_its_targets_and_where_it_lies(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page("time", "Time", "", [Section("Only", ("text",))])
    asked = []

    def report(assignments: int, progress: Callable[[str], None]) -> tuple[Page, tuple[Target]]:
        asked.append(assignments)
        progress("counting")
        return page, (Target("a", 12.0, 10.0),)

    monkeypatch.setattr(time, "time_report", report)
    out, err = run("time")
    assert err == "counting\n"
    assert out == (
        "missed by 2.00   a: 12.00 % (at most 10 %)\n\n"
        "reports/time/time.html\nreports/time/time.md\n"
    )
    assert "Only" in (tmp_path / "reports" / "time" / "time.html").read_text("utf-8")
    run("time", "--out", str(tmp_path / "there"), "--assignments", "2")
    assert asked == [ASSIGNMENTS, 2]
    assert (tmp_path / "there" / "time.md").is_file()


def test_the_report_on_clocks_takes_no_assignments(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(progress: Callable[[str], None]) -> tuple[Page, tuple[Target, ...]]:
        progress("scaling")
        page = Page("dvfs", "Clocks", "", [Section("Only", ("text",))])
        return page, (Target("a", 97.0, 95.0, "at least"), Target("b", 78.1, 85.0, "at least"))

    monkeypatch.setattr(dvfs, "dvfs_report", report)
    out, err = run("dvfs")
    assert err == "scaling\n"
    assert out == (
        "met              a: 97.00 % (at least 95 %)\n"
        "missed by 6.90   b: 78.10 % (at least 85 %)\n\n"
        "reports/dvfs/dvfs.html\nreports/dvfs/dvfs.md\n"
    )
    assert (tmp_path / "reports" / "dvfs" / "dvfs.md").is_file()
    run("dvfs", "--assignments", "2", status=2)


@pytest.mark.parametrize("name", ["time", "dvfs"])
def test_without_data_the_variable_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))
    out, err = run(name, status=1)
    assert out == ""
    (error,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert "WATTCAST_DATA" in error
    assert not (tmp_path / "reports").exists()


def test_without_the_extra_it_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    _, err = run("time", status=1)
    assert err.count("\n") == 1
    assert "wattcast[train]" in err
    assert "markdown_it" in err


def test_all_models_are_fitted_by_one_command_that_stops_at_the_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))  # nothing to train on
    assert main(["fit-all", "--out", str(tmp_path / "models")]) == 1
    said = capfd.readouterr().err
    assert f"-m wattcast.training --all --out {tmp_path / 'models'}\n" in said
    assert "error: " in said
    assert "-m studies" not in said


def test_the_command_that_fits_all_takes_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("studies.fit_all.subprocess.run", run)
    assert main(["fit-all", "--out", "o", "--resume", "r"]) == 0
    assert ran == [
        ["wattcast.training", "--all", "--resume", "r", "--out", "o"],
        ["studies", "extra-trees", "--resume", "r", "--out", "o"],
        ["studies", "work", "--out", "o"],
        ["studies", "clocks", "--out", "o"],
        ["studies", "fit-physical", "--out", "o"],
    ]
