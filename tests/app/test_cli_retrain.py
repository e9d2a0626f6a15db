"""``wattcast retrain``: the plan, the job and the board's answers, without a service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app import lab
from tests.app.conftest import Run, settings_at
from tests.app.live import running


@pytest.mark.slow
def test_a_board_is_retrained_and_answers(
    run: Run, tmp_path: Path, vector_add: str, looping: str
) -> None:
    file, ptx = tmp_path / "rows.zip", tmp_path / "add.ptx"
    ptx.write_text(vector_add)
    with running(settings_at(tmp_path / "other", job_workers=0)) as client:
        file.write_bytes(lab.measured(client, {"add.ptx": vector_add, "loop.ptx": looping}))
    asked = ("--gpu", lab.GPU, "--board", lab.BOARD)
    planned, told = run("retrain", str(file), *asked, "--dry-run")
    assert "72 rows, 0 rejected" in told
    assert "mode new_gpu: the physical model answers for this board now" in planned
    assert "72 rows of 24 kernels train; compared on 24 kernels" in planned
    batch = told.split()[1].rstrip(":")
    result, told = run("retrain", *asked, "--batch", batch, "--json")
    assert json.loads(result)["promoted"]
    assert "done" in told
    launch = ("--gpu", lab.GPU, "--grid", "1000", "--block", "256", "--json")
    watts = [
        json.loads(run("predict", str(ptx), *launch, *board)[0])["power"]["watts"]
        for board in ((), ("--board", lab.BOARD))
    ]
    assert watts[1] / watts[0] == pytest.approx(lab.DRAWS, rel=0.03)
    points = json.loads(
        run("dvfs", str(ptx), *launch, "--board", lab.BOARD, "--clocks", "1380/877")[0]
    )["points"]
    assert points[0]["power"]["watts"] == pytest.approx(watts[1])


def test_what_is_wrong_is_one_line(run: Run, tmp_path: Path) -> None:
    _, why = run("retrain", "--gpu", lab.GPU, status=2)
    assert "batches" in why
    _, why = run("retrain", str(tmp_path / "none.zip"), "--gpu", lab.GPU, status=2)
    assert "No such file" in why
    unknown = "00000000-0000-0000-0000-000000000000"
    _, why = run("retrain", "--gpu", lab.GPU, "--batch", unknown, status=2)
    assert f"no measurements {unknown}" in why
