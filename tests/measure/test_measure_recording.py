"""Recordings: what an interruption costs, what is refused, and data sets made of them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.measure import measuring
from tests.measure.measuring import board, energy, true_profile
from tests.measure.simulated import SimulatedGpu
from wattcast.features.errors import DataError
from wattcast.measure.exchange import from_tuning, from_zeus, pack, write_imported
from wattcast.measure.protocol import Settings, measure
from wattcast.measure.recording import SCHEMA_FILE, Configuration, read_recording, schema
from wattcast.measure.run import plan, planned_seconds
from wattcast.measure.workload import Workload
from wattcast.predictor.tuning_files import Configuration as Tuned
from wattcast.predictor.tuning_files import TuningRun

SETTINGS = Settings(poll_seconds=0.02)


def kernels() -> list[Workload]:
    return [
        energy(name, [name] * 4, trips=2, blocks=1280) for name in ("alu", "fma", "fp64", "sfu")
    ]


def campaign(gpu: SimulatedGpu, path: Path) -> None:
    measuring.campaign(gpu, kernels(), SETTINGS).run(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "whole.jsonl"
    campaign(board(), path)
    return path


def interrupt_at(gpu: SimulatedGpu, second: float) -> None:
    """As from the keyboard, at a simulated time."""
    sleep: Callable[[float], None] = gpu.sleep

    def interrupted(seconds: float) -> None:
        if gpu.now() >= second:
            raise KeyboardInterrupt
        sleep(seconds)

    gpu.sleep = interrupted  # type: ignore[method-assign]


def test_wherever_it_is_interrupted_only_what_was_in_flight_is_lost(
    tmp_path: Path, whole: Path
) -> None:
    keys = [one.key for one in read_recording(whole).configurations]
    path = tmp_path / "recording.jsonl"
    done = 0
    for second in (5.0, 30.0, 25.0):
        gpu = board()
        interrupt_at(gpu, second)
        with pytest.raises(KeyboardInterrupt):
            campaign(gpu, path)
        found = [one.key for one in read_recording(path).configurations]
        assert found == keys[: len(found)]
        assert len(found) >= done
        done = len(found)
    campaign(board(), path)
    assert [one.key for one in read_recording(path).configurations] == keys


def test_a_line_cut_off_anywhere_is_left_out_and_written_again(tmp_path: Path, whole: Path) -> None:
    content = whole.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    for cut in (last + 1, (last + len(content)) // 2, len(content) - 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(content[:cut])
        found = read_recording(path)
        assert found.torn
        assert len(found.configurations) == 3
    campaign(board(), path)
    again = read_recording(path)
    assert not again.torn
    assert len(again.configurations) == 4
    assert len(again.sessions) == 2


def test_a_recording_reads_back_what_was_written(whole: Path) -> None:
    found = read_recording(whole)
    assert found.provenance == "simulated"
    assert found.sensor.update_period_seconds == pytest.approx(0.1, rel=0.1)
    for one, workload in zip(found.configurations, kernels(), strict=True):
        assert found.workload(one) == workload
        assert len(one.samples.at_seconds) == len(one.samples.power_watts or ())
        assert one.samples.energy_joules is not None
        assert sum(launches for launches, _ in one.batches) > 0


def test_every_line_keeps_to_the_published_schema(whole: Path) -> None:
    published = json.loads(SCHEMA_FILE.read_text("utf-8"))
    assert published == json.loads(json.dumps(schema())), (
        "run python -m studies reference docs/reference"
    )
    validator = jsonschema_rs.validator_for(published)
    for line in whole.read_text("utf-8").splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"type": "configuration", "key": "x"})


def test_defects_name_the_line(tmp_path: Path, whole: Path) -> None:
    lines = whole.read_text("utf-8").splitlines(keepends=True)
    cases = {
        "other PTX": ([line.replace(".version 7.0", ".version 7.1") for line in lines], "hash"),
        "no module": ([line for line in lines if '"type":"module"' not in line], "no module"),
        "no session": (lines[1:], "starts with its session"),
        "unit": (
            [lines[0], *(one.replace("time_seconds", "time_ms") for one in lines[1:])],
            "line",
        ),
    }
    for name, (changed, told) in cases.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(changed), "utf-8")
        with pytest.raises(DataError, match=told):
            read_recording(path)


LIMIT = true_profile().tdp_watts


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("power_watts", 1.5 * LIMIT + 1, f"more than {1.5 * LIMIT:g} W, 1.5 times the limit of"),
        ("power_watts", 95_000.0, "is it in milliwatts"),
        ("power_watts", 1e-300, "too low; give at least 0.001 W"),
        ("time_seconds", 1e-30, "not between 1e-07 s (100 ns) and 86400 s (a day)"),
        ("time_seconds", 0.9e-7, "not between"),
        ("time_seconds", 86_401.0, "not between"),
    ],
)
def test_what_cannot_have_been_measured_is_not_read_back(
    tmp_path: Path, whole: Path, name: str, value: float, told: str
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(with_first_result(whole, {name: value}), "utf-8")
    field = re.escape(f"recording.jsonl, line 4: energy-alu/uniform.{name}: {value:g} ")
    with pytest.raises(DataError, match=f"^{field}.*{re.escape(told)}"):
        read_recording(path)


def with_first_result(recording: Path, changes: dict[str, float]) -> str:
    """A recording with another first result."""
    lines = recording.read_text("utf-8").splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if '"type":"configuration"' in line)
    line = json.loads(lines[at])
    line["result"].update(changes)
    return "".join([*lines[:at], json.dumps(line) + "\n", *lines[at + 1 :]])


def test_the_bounds_are_read_back_and_less_than_a_tenth_of_idle_is_told(
    tmp_path: Path, whole: Path
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text(with_first_result(whole, {"power_watts": 1.5 * LIMIT}), "utf-8")
    assert read_recording(path).doubts == read_recording(whole).doubts == ()
    path.write_text(with_first_result(whole, {"power_watts": 1.0}), "utf-8")
    (doubt,) = read_recording(path).doubts
    assert "line 4: energy-alu/uniform.power_watts: 1 W is below" in doubt


def test_a_result_that_cannot_be_is_a_failure_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recording.jsonl"

    def whim(*given: Any) -> Configuration:
        found = measure(*given)
        result = found.result.model_copy(update={"power_watts": 1e6})
        return found.model_copy(update={"result": result}) if "alu" in found.key else found

    with monkeypatch.context() as patch:
        patch.setattr("wattcast.measure.run.measure", whim)
        campaign(board(), path)
    read = read_recording(path)
    (failure,) = read.failures
    assert (failure.key, failure.permanent) == ("energy-alu/uniform", False)
    assert "power_watts: 1e+06 W is more than" in failure.detail
    assert len(read.configurations) == 3
    campaign(board(), path)
    assert len(read_recording(path).configurations) == 4


def test_another_board_is_not_mixed_in(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_bytes(whole.read_bytes())
    gpu = board()
    other = measuring.campaign(gpu, [], SETTINGS)
    other = replace(other, device=other.device.model_copy(update={"label": "another"}))
    with pytest.raises(DataError, match="of another device"):
        other.run(path)


def test_a_plan_skips_with_a_note_and_says_how_long() -> None:
    heavy = kernels()[0].model_copy(update={"id": "new", "minimum_capability": (9, 0)})
    planned, notes = plan([*kernels(), heavy], (7, 0), 2**34, ("uniform", "zeros"))
    assert [one.key for one in planned[:2]] == ["energy-alu/uniform", "energy-alu/zeros"]
    assert notes == ["new: skipped, needs compute capability 9.0"]
    assert 8 * 5 < planned_seconds(planned, Settings()) < 8 * 6 + 20
    assert plan(kernels(), (7, 0), 2**20)[0] == []


def test_an_open_data_set_holds_everything_and_its_checksums(tmp_path: Path, whole: Path) -> None:
    target = tmp_path / "data.zip"
    counts = pack([whole], target, "the testers")
    assert counts["configurations"] == 4
    with zipfile.ZipFile(target) as archive:
        names = set(archive.namelist())
        sums = dict(
            reversed(line.split("  ")) for line in archive.read("SHA256SUMS").decode().splitlines()
        )
        assert set(sums) == names - {"SHA256SUMS"}
        for name, value in sums.items():
            assert hashlib.sha256(archive.read(name)).hexdigest() == value
        table = list(csv.DictReader(io.StringIO(archive.read("results.csv").decode())))
        assert {f"ptx/{row['ptx_sha256']}.ptx" for row in table} <= names
        assert all(float(row["energy_joules"]) > 0 for row in table)
        readme = archive.read("README.md").decode()
    assert "creativecommons.org/licenses/by/4.0" in readme
    assert "Not measured" in readme
    other = tmp_path / "again.zip"
    pack([whole], other, "the testers")
    assert other.read_bytes() == target.read_bytes()
    with pytest.raises(DataError, match="exists already"):
        pack([whole], target, "the testers")


def test_kernel_tuners_results_become_a_recording(tmp_path: Path) -> None:
    tuned = [
        Tuned({"block_size_x": 128, "tile": 2}, 2e-3, 0.3),
        Tuned({"block_size_x": 256, "tile": 2}, 1e-3, None),
        Tuned({"block_size_x": 512, "tile": 2}, None, None, valid=False),
    ]
    found = from_tuning(TuningRun(tuned, problem_size=(1000,)), "Vector Add")
    assert [one.workload.grid for one in found] == [(8, 1, 1), (4, 1, 1)]
    assert found[0].result.power_watts == pytest.approx(150)
    assert found[1].result.unresolved == ("energy_not_measured",)
    path = tmp_path / "imported.jsonl"
    write_imported(path, found, "Tesla V100", "results.json", "MIT")
    read = read_recording(path)
    assert read.provenance == "imported"
    assert [one.key for one in read.configurations] == [one.key for one in found]
    with pytest.raises(DataError, match="under MIT"):
        pack([path], tmp_path / "data.zip", "nobody")


def test_a_zeus_log_becomes_configurations() -> None:
    log = (
        "start_time,window_name,elapsed_time,gpu0_energy\n1.0,Step 1,2.0,300.0\n3.5,step 2,1.0,90\n"
    )
    found = from_zeus(log)
    assert [one.result.power_watts for one in found] == [150.0, 90.0]
    assert found[0].key == "step-1-0"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("a,b\n1,2\n", "not a Zeus log"),
        ("window_name,elapsed_time,gpu0_energy,gpu1_energy\nw,1,2,3\n", "one GPU, found 2"),
        ("window_name,elapsed_time,gpu0_energy\nw,x,2\n", "line 2: not numbers"),
        ("window_name,elapsed_time,gpu0_energy\n", "no window"),
    ],
)
def test_other_logs_are_refused(log: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        from_zeus(log)
