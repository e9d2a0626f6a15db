"""``wattcast calibrate``: what it prints, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.conftest import Run
from wattcast.training import few_shot
from wattcast.training.few_shot import Calibrated, Choice


def test_the_choice_its_errors_and_the_watts_are_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, Path | None]] = []

    def calibrated(measured: Path, others: Path | None) -> Calibrated:
        asked.append((measured, others))
        return Calibrated(Choice("rank", {"median": 12.5, "rank": 7.25}), 5, (80.0, 91.26))

    monkeypatch.setattr(few_shot, "calibrate", calibrated)
    out, _ = run("calibrate", "known.csv", "--predict", "asked.csv")
    assert out.splitlines() == [
        "5 measured launches; mean error, leaving out one at a time:",
        "  median            12.5 W",
        "  rank               7.2 W  <- chosen",
        "launch 1: 80.0 W",
        "launch 2: 91.3 W",
    ]
    out, _ = run("calibrate", "known.csv", "--json")
    assert json.loads(out) == {
        "chosen": "rank",
        "measured_launches": 5,
        "left_out_mae_watts": {"median": 12.5, "rank": 7.25},
        "power_watts": [80.0, 91.26],
    }
    assert asked == [(Path("known.csv"), Path("asked.csv")), (Path("known.csv"), None)]


def test_a_file_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    out, err = run("calibrate", str(tmp_path / "none.csv"), status=2)
    assert out == ""
    assert err.startswith("wattcast: none.csv cannot be read")
    assert err.count("\n") == 1
