"""``wattcast report``: what it lists, prints and refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from wattcast.app.cli import main
from wattcast.training.reports import dvfs, extra, time
from wattcast.training.reports.page import Page, Section
from wattcast.training.reports.targets import Target
from wattcast.training.work.study import ASSIGNMENTS

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def command(*words: str, status: int = 0) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["wattcast", "report", *words])
        monkeypatch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == status, printed
        return printed.out, printed.err

    return command


def test_help_lists_the_reports(run: Run) -> None:
    out, _ = run("--help")
    assert "time   How near predicted times" in out
    assert "dvfs   How near predicted time, power and energy" in out
    assert "power  How near predicted power comes to measured power" in out


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
    (error,) = (line for line in err.splitlines() if line.startswith("wattcast: "))
    assert "WATTCAST_DATA" in error
    assert not (tmp_path / "reports").exists()


def test_without_the_extra_it_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    _, err = run("time", status=1)
    assert err.count("\n") == 1
    assert "wattcast[train]" in err
    assert "matplotlib" in err
