"""``python -m studies``: what it lists and refuses; one command fits every shipped model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from studies.__main__ import STUDIES, main, purpose


def test_every_study_is_listed_and_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name, module in STUDIES.items():
        assert f"  {name:<17} {purpose(module)}\n" in listed
        assert len(purpose(module)) > 20
        if name == "accuracy":  # writes a page: tests/docs
            continue
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: python -m studies {name}" in capsys.readouterr().out
    assert main(["nonsense"]) == 2
    assert "no study is called 'nonsense': accuracy, held-out" in capsys.readouterr().err


def test_all_models_are_fitted_by_one_command_that_stops_at_the_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WATTCAST_DATA", str(tmp_path))  # nothing to train on
    assert main(["fit-all", "--out", str(tmp_path / "models")]) == 1
    said = capfd.readouterr().err
    assert f"-m studies train --all --out {tmp_path / 'models'}\n" in said
    assert "error: " in said
    assert "extra-trees" not in said


def test_the_command_that_fits_all_takes_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("studies.fitting.fit_all.subprocess.run", run)
    assert main(["fit-all", "--out", "o", "--resume", "r"]) == 0
    assert ran == [
        ["studies", "train", "--all", "--resume", "r", "--out", "o"],
        ["studies", "extra-trees", "--resume", "r", "--out", "o"],
        ["studies", "work", "--out", "o"],
        ["studies", "clocks", "--out", "o"],
        ["studies", "fit-physical", "--out", "o"],
        ["studies", "products", "--out", "o"],
    ]
