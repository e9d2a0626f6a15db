"""``wattcast measure``, ``onboard``, ``data pack`` and ``data import``, with a simulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.conftest import Ended
from tests.measure.measuring import board, energies, probes
from tests.measure.simulated import Faults, SimulatedGpu
from tests.measure.simulation import simulated as simulated_machine
from wattcast.measure import catalogue
from wattcast.measure.recording import read_recording
from wattcast.measure.run import Machine


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimulatedGpu]:
    """Puts a simulated board in the place of the machine's."""

    def install(faults: Faults | None = None) -> SimulatedGpu:
        gpu = board(faults)
        monkeypatch.setattr(Machine, "here", lambda index: simulated_machine(gpu))
        chosen = [
            *probes()[:2],
            *(one for one in energies() if one.id[7:] in ("alu", "fma", "sfu")),
        ]
        monkeypatch.setattr(catalogue, "micro", lambda board: chosen)
        monkeypatch.setattr(catalogue, "applications", lambda board: [])
        return gpu

    return install


def test_without_bindings_or_driver_one_line_says_what_helps(ended: Ended, tmp_path: Path) -> None:
    code, out, err = ended("measure", tmp_path / "r.jsonl")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "wattcast[measure]" in err or "driver" in err
    assert not (tmp_path / "r.jsonl").exists()


def test_onboarding_without_what_it_fits_with_says_so_before_it_measures() -> None:
    code = (
        "import sys; sys.modules['scipy'] = None; sys.argv = ['wattcast', 'onboard']\n"
        "from wattcast.app.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "onboarding needs scipy" in line
    assert "wattcast[measure,train]" in line


def test_measure_then_onboard_then_pack(
    ended: Ended, tmp_path: Path, simulated: Callable[..., SimulatedGpu]
) -> None:
    gpu = simulated()
    path = tmp_path / "r.jsonl"
    code, out, _ = ended("measure", path, "--plan", "--json")
    assert code == 0
    assert json.loads(out)["planned"] == 5
    assert not path.exists()
    code, out, err = ended("measure", path, "--json")
    assert (code, json.loads(out)["measured"]) == (0, 5)
    assert "power sensor: new value every 100 ms" in err
    assert (gpu.core_mhz, gpu.limit_watts) == (1380.0, 250.0)
    _, out, _ = ended("measure", path)
    assert "0 measured, 5 already there" in out

    code, out, err = ended("onboard", "--replay", path)
    assert code == 0, err
    assert "Simulated GPU is now known as simulated-gpu" in out
    assert (tmp_path / "home" / "gpus" / "simulated-gpu.toml").is_file()
    _, out, _ = ended("gpus", "show", "simulated-gpu")
    assert json.loads(out)["id"] == "simulated-gpu"

    _, out, _ = ended("data", "pack", path, "--to", tmp_path / "d.zip", "--attribution", "us")
    assert "5 configurations" in out
    code, _, err = ended("data", "pack", path, "--to", tmp_path / "d.zip", "--attribution", "us")
    assert (code, len(err.splitlines())) == (2, 1)


def test_measuring_within_given_minutes_stops_between_configurations_and_goes_on(
    ended: Ended, tmp_path: Path, simulated: Callable[..., SimulatedGpu]
) -> None:
    gpu = simulated()
    path = tmp_path / "r.jsonl"
    code, out, err = ended("measure", path, "--minutes", 0.5)
    assert code == 0
    first = len(read_recording(path).configurations)
    assert 1 <= first < 5
    assert f"{first} measured" in out
    assert f"{5 - first} left; run it again to continue" in out
    # What was begun is ended: at most one configuration more than the time given.
    assert 30 <= gpu.now() < 30 + 40
    assert "the time is over" in err
    _, out, _ = ended("measure", path)
    assert f"{5 - first} measured, {first} already there" in out
    assert "left" not in out


def test_held_clocks_are_recorded_and_set_back(
    ended: Ended, tmp_path: Path, simulated: Callable[..., SimulatedGpu]
) -> None:
    gpu = simulated()
    path = tmp_path / "r.jsonl"
    code, _, _ = ended("measure", path, "--only", "energy-alu", "--hold-core-mhz", 1102)
    assert code == 0
    assert gpu.core_mhz == 1380.0
    (one,) = read_recording(path).configurations
    assert one.key == "energy-alu/uniform@1102"
    assert one.result.core_mhz == 1102


def test_an_interrupt_keeps_the_recording(
    ended: Ended, tmp_path: Path, simulated: Callable[..., SimulatedGpu]
) -> None:
    gpu = simulated()
    sleep = gpu.sleep

    def interrupted(seconds: float) -> None:
        if gpu.now() > 30:
            raise KeyboardInterrupt
        sleep(seconds)

    gpu.sleep = interrupted  # type: ignore[method-assign]
    path = tmp_path / "r.jsonl"
    code, _, err = ended("measure", path, "--hold-power-limit", 200)
    assert code == 130
    assert "run it again to continue" in err.splitlines()[-1]
    assert gpu.limit_watts == 250.0
    assert 1 <= len(read_recording(path).configurations) < 5


def test_a_lost_gpu_is_one_line(
    ended: Ended, tmp_path: Path, simulated: Callable[..., SimulatedGpu]
) -> None:
    simulated(Faults(lost_at_seconds=30.0))
    code, _, err = ended("measure", tmp_path / "r.jsonl")
    assert code == 1
    assert "the GPU is lost" in err.splitlines()[-1]
    assert read_recording(tmp_path / "r.jsonl").failures


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["measure", "r.jsonl", "--patterns", "ones"], "expected some of zeros"),
        (["onboard", "--replay", "a", "--recording", "b"], "give one of them"),
        (["onboard", "--replay", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_wrong_use_is_one_line(ended: Ended, arguments: list[str], told: str) -> None:
    code, _, err = ended(*arguments)
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1


def test_import_of_kernel_tuner_and_zeus(ended: Ended, tmp_path: Path) -> None:
    cache = {
        "device_name": "V100",
        "kernel_name": "vec",
        "problem_size": 1000,
        "tune_params_keys": ["block_size_x"],
        "cache": {"128": {"block_size_x": 128, "time": 2.0, "nvml_energy": 0.3}},
    }
    file = tmp_path / "cache.json"
    file.write_text(json.dumps(cache), "utf-8")
    code, out, err = ended("data", "import", file, "--to", tmp_path / "k.jsonl", "--gpu", "V100")
    assert (code, err) == (0, "")
    assert "1 configurations" in out
    (one,) = read_recording(tmp_path / "k.jsonl").configurations
    assert one.result.power_watts == pytest.approx(150)
    log = tmp_path / "zeus.csv"
    log.write_text("start_time,window_name,elapsed_time,gpu0_energy\n1,w,2,300\n", "utf-8")
    code, _, _ = ended("data", "import", log, "--to", tmp_path / "z.jsonl", "--gpu", "V100")
    assert code == 0
    code, _, err = ended("onboard", "--replay", tmp_path / "z.jsonl")
    assert code == 2
    assert "no probes to onboard with" in err
