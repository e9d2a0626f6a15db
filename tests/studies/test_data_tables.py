"""``python -m studies tables``: the tables that only studies read, beside those of power."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.__main__ import main


def test_tables_of_studies_are_missing_read_or_defective(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables", str(tmp_path)]) == 0
    states = {each["path"]: each["state"] for each in json.loads(capsys.readouterr().out)}
    assert states["time/rtx_3080_launches.csv"] == "missing"
    assert states["activity/tesla-v100.csv"] == "missing"
    assert states["power/clean/K20.csv"] == "missing"
    (tmp_path / "dvfs").mkdir()
    (tmp_path / "dvfs" / "wang_ptx_opcode_counts.csv").write_text("a\n1\n")
    assert main(["tables", str(tmp_path)]) == 1
    (defect,) = (
        each for each in json.loads(capsys.readouterr().out) if each["state"] == "defective"
    )
    assert defect["path"] == "dvfs/wang_ptx_opcode_counts.csv"
    assert defect["problem"].startswith("wang_ptx_opcode_counts.csv has no column ")
