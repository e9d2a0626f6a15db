"""``wattcast gpus add``: profiles from text dumps and from the driver, into the user's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app import lab
from tests.app.conftest import Ended, Run, settings_at
from tests.app.live import running
from tests.measure.measuring import board
from tests.measure.simulation import simulated
from wattcast.features.gpus import check_profile, load_gpu
from wattcast.measure.run import Machine
from wattcast.training import few_shot
from wattcast.training.few_shot import Calibrated, Choice

DUMPS = Path(__file__).parents[1] / "fixtures" / "dumps"

SMI, QUERY = DUMPS / "nvidia_smi.txt", DUMPS / "device_query.txt"


def told_a40(folder: Path, *changes: tuple[str, str]) -> Path:
    """The dump as an A40 would print it, with a default limit of 250 W."""
    text = SMI.read_text("utf-8")
    for old, new in (("NVIDIA Example 24GB", "NVIDIA A40"), ("0xABCD10DE", "0x223510DE"), *changes):
        text = text.replace(old, new)
    path = folder / "a40.txt"
    path.write_text(text, "utf-8")
    return path


def test_two_dumps_of_an_unknown_board_make_its_profile(ended: Ended, tmp_path: Path) -> None:
    code, out, err = ended("gpus", "add", SMI, QUERY)
    assert code == 0, err
    assert "NVIDIA Example 24GB is now known as example-24gb" in " ".join(out.split())
    path = tmp_path / "home" / "gpus" / "example-24gb.toml"
    assert check_profile(path) == []
    gpu = load_gpu("nvidia example 24gb")
    assert (gpu.sm_count, gpu.compute_capability, gpu.l2_bytes) == (40, "8.6", 4194304)
    assert (gpu.core_mhz, gpu.max_core_mhz, gpu.memory_mhz) == (1500, 1800, 6251)
    assert (gpu.memory_bytes, gpu.memory.bus_bits.value) == (25282281472, 256)
    assert gpu.bandwidth_bytes_per_second == pytest.approx(256 / 8 * 2 * 6251e6)
    assert (gpu.tdp_watts, gpu.limit_range_watts) == (250, (100, 260))
    assert gpu.sources == {"driver": "text dump: nvidia_smi.txt, device_query.txt"}
    shown: Any = json.loads(ended("gpus", "show", "EXAMPLE 24GB")[1])
    assert shown["power_models"] == []


def test_a_known_board_keeps_its_facts_but_those_the_dump_tells_otherwise(
    ended: Ended, tmp_path: Path
) -> None:
    before = load_gpu("a40")
    code, out, err = ended("gpus", "add", told_a40(tmp_path))
    assert code == 0, err
    assert "NVIDIA A40 is now known as a40 (the rest from a40)" in " ".join(out.split())
    gpu = load_gpu("NVIDIA A40")
    assert (gpu.tdp_watts, gpu.limit_range_watts) == (250, (100, 260))
    assert gpu.memory_mhz == 6251  # told otherwise: 7251 in the package
    assert gpu.bandwidth_bytes_per_second == pytest.approx(384 / 8 * 2 * 6251e6)
    assert (gpu.core_mhz, gpu.max_core_mhz) == (before.core_mhz, before.max_core_mhz)
    assert (gpu.chip, gpu.memory_timing) == (before.chip, before.memory_timing)
    assert load_gpu("10de:2235").tdp_watts == 250
    assert gpu.power.min_limit_watts == before.power.min_limit_watts  # the same: its own source

    code, _, err = ended("gpus", "add", told_a40(tmp_path, ("250.00 W", "200.00 W")))
    assert (code, "exists; --replace overwrites it" in err) == (2, True)
    assert ended("gpus", "add", told_a40(tmp_path, ("250.00 W", "200.00 W")), "--replace")[0] == 0
    assert load_gpu("a40").tdp_watts == 200


def test_another_id_leaves_the_profile_of_the_package_alone(ended: Ended, tmp_path: Path) -> None:
    assert ended("gpus", "add", told_a40(tmp_path), "--id", "my-a40")[0] == 0
    assert (load_gpu("a40").tdp_watts, load_gpu("my-a40").tdp_watts) == (300, 250)
    assert load_gpu("10de:2235").id == "a40"


def test_a_base_brings_what_a_dump_does_not_tell(ended: Ended) -> None:
    code, _, err = ended("gpus", "add", SMI)
    assert code == 2
    assert "nothing tells the compute capability, the number of SMs, the size of L2" in err
    assert "--base" in err
    assert ended("gpus", "add", SMI, "--base", "rtx-a4000")[0] == 0
    made = load_gpu("NVIDIA Example 24GB")
    assert (made.id, made.sm_count, made.tdp_watts) == ("example-24gb", 48, 250)
    assert load_gpu("rtx-a4000").tdp_watts == 140
    code, _, err = ended("gpus", "add", QUERY, "--base", "v100")
    assert (code, "compute capability 8.6, tesla-v100 7.0" in err) == (2, True)


def test_dumps_that_cannot_be_used_are_told_apart(ended: Ended, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("free memory: 3 GB\n", "utf-8")
    assert "neither what nvidia-smi -q nor" in ended("gpus", "add", other)[2]
    assert "No such file" in ended("gpus", "add", tmp_path / "absent.txt")[2]
    found = ended("gpus", "add", QUERY, told_a40(tmp_path))[2]
    assert "different boards: NVIDIA A40, NVIDIA Example 24GB" in found
    assert not list((tmp_path / "home" / "gpus").glob("*.toml"))


def test_the_device_of_this_machine_is_asked(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = board()
    monkeypatch.setattr(Machine, "here", lambda index: simulated(gpu))
    code, out, err = ended("gpus", "add")
    assert code == 0, err
    assert "Simulated GPU is now known as simulated-gpu" in " ".join(out.split())
    made, truth = load_gpu("Simulated GPU"), gpu.truth.profile
    assert (made.sm_count, made.tdp_watts) == (truth.sm_count, truth.tdp_watts)
    assert made.limit_range_watts == (100, truth.tdp_watts)
    assert made.sources["driver"].startswith("driver ")


# --- ``wattcast calibrate``: what it prints, as text and as JSON


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


# --- ``wattcast retrain``: the plan, the job and the board's answers, without a service


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
