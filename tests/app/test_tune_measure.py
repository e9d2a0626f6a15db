"""``wattcast tune --measure`` on a simulated board: compiled, loaded, launched, metered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.measure.measuring import NO_COUNTER, board
from tests.measure.simulated import Faults, SimulatedGpu
from tests.measure.simulation import simulated
from tests.needs import needs_nvrtc
from wattcast.app.cli import app
from wattcast.measure import protocol
from wattcast.measure.device import ContextBrokenError, MeasureError, WorkloadError
from wattcast.measure.run import Machine
from wattcast.measure.workload import Workload
from wattcast.predictor.tuning_files import read_tuning

pytestmark = needs_nvrtc

SIZE = 1 << 24
KERNEL = """\
extern "C" __global__ void scale(float *out, const float *in, float by, long long n) {
    int first = (blockIdx.x * block_size_x + threadIdx.x) * work;
    #pragma unroll
    for (int i = 0; i < work; i++)
        if (first + i < n) out[first + i] = by * in[first + i];
}
"""
SPACE = {
    "tune_params": {"block_size_x": [32, 64, 128, 256, 512], "work": [1, 4]},
    "problem_size": [SIZE],
    "kernel_name": "scale",
}
ARGUMENTS = ("--arg", f"out:elements={SIZE}", "--arg", f"in:elements={SIZE}", "--arg", f"n={SIZE}",
             "--arg", "by=2")  # fmt: skip

Tune = Callable[..., Result]


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first test predicted, for the others."""
    return tmp_path_factory.mktemp("kept") / "keep.jsonl"


@pytest.fixture
def tune(keep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tunes a copy for the V100 that the simulated board is, with a sensor looked at less often."""
    (tmp_path / "space.json").write_text(json.dumps(SPACE), encoding="utf-8")
    (tmp_path / "scale.cu").write_text(KERNEL, encoding="utf-8")
    quick = protocol.Settings(poll_seconds=0.02)
    monkeypatch.setattr(protocol, "Settings", lambda: quick)

    def call(*words: str, arguments: tuple[str, ...] = ARGUMENTS) -> Result:
        files = [str(tmp_path / "space.json"), str(tmp_path / "scale.cu")]
        asked = ["tune", *files, "--gpu", "v100", "--grid-div-x", "block_size_x,work"]
        keeps = ["--keep", str(keep), "--workers", "1"] if arguments else ["--workers", "1"]
        return CliRunner().invoke(app, [*asked, "--measure", *keeps, *arguments, *words])

    return call


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def install(faults: Faults = NO_COUNTER, **truth: Any) -> Machine:
        gpu: SimulatedGpu = board(faults, **truth)
        machine = simulated(gpu)
        monkeypatch.setattr(Machine, "here", lambda index: machine)
        return machine

    return install


def loads(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[Workload]:
    """Every workload that the board was given."""
    found: list[Workload] = []
    real = machine.runner.load

    def noting(workload: Workload, pattern: Any) -> Any:
        found.append(workload)
        return real(workload, pattern)

    monkeypatch.setattr(machine.runner, "load", noting)
    return found


@pytest.mark.slow
def test_energy_is_measured_on_the_board_and_written_down(
    tune: Tune, here: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = loads(here(), monkeypatch)
    results = tmp_path / "results.json"
    result = tune("--by", "energy", "--budget", "3", "--results", str(results))
    assert result.exit_code == 0, result.output
    rows = read_tuning(results.read_text()).configurations
    assert len(rows) == 3
    for number, row in enumerate(rows, 1):
        assert row.time_seconds is not None
        assert row.energy_joules is not None
        # The simulated board copies 128 MB at 0.83 of 900 GB/s at most, and idles at 42 W.
        assert 0.8 < row.time_seconds / (8 * SIZE / (0.83 * 898e9)) < 4
        assert 42 < row.energy_joules / row.time_seconds < 300
        (line,) = [each for each in result.stdout.splitlines() if each.startswith(f"{number}. ")]
        assert "best " in line
        assert " expected)" in line
    _behaviour, first, *_ = given
    assert first.grid[0] * first.block[0] * (4 if "work 4" in first.ptx else 1) >= SIZE / 4
    assert [each.kind for each in first.arguments] == ["buffer", "buffer", "scalar", "scalar"]
    assert first.arguments[3].value == SIZE  # type: ignore[union-attr]
    # The second start goes on from the file.
    more = tune("--by", "energy", "--budget", "1", "--results", str(results), "--json")
    assert json.loads(more.stdout)["measured"] >= 3
    assert len(read_tuning(results.read_text()).configurations) == 4


def test_time_alone_needs_no_power(
    tune: Tune, here: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    sensorless = frozenset({"DeviceGetFieldValues", "DeviceGetPowerUsage",
                            "DeviceGetTotalEnergyConsumption"})  # fmt: skip
    machine = here(Faults(not_supported=sensorless))
    real = machine.runner.load

    def picky(workload: Workload, pattern: Any) -> Any:
        if workload.block[0] == 512:
            raise WorkloadError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        return real(workload, pattern)

    monkeypatch.setattr(machine.runner, "load", picky)
    result = tune("--by", "time", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["finished"]
    assert answer["best"]["configuration"]["block_size_x"] < 512
    refused = tune("--by", "energy")
    assert refused.exit_code == 1
    assert "use --by time" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_kernel_that_breaks_the_context_is_not_tried_again(
    tune: Tune, here: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(workload: Workload, pattern: Any) -> Any:
        raise ContextBrokenError("an illegal address")

    monkeypatch.setattr(here().runner, "load", broken)
    results = tmp_path / "results.json"
    result = tune("--by", "time", "--results", str(results))
    assert isinstance(result.exception, ContextBrokenError)
    (row,) = read_tuning(results.read_text()).configurations
    assert not row.valid


def test_clocks_of_the_space_are_held_while_it_measures(
    tune: Tune, here: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = here()
    gpu = machine.clock
    assert isinstance(gpu, SimulatedGpu)
    before = gpu.core_mhz
    seen: list[float] = []
    real = machine.runner.load

    def noting(workload: Workload, pattern: Any) -> Any:
        seen.append(gpu.core_mhz)
        return real(workload, pattern)

    monkeypatch.setattr(machine.runner, "load", noting)
    clocks = {**SPACE, "tune_params": {"block_size_x": [256], "work": [1], "core_mhz": [1380, 900]}}
    (tmp_path / "space.json").write_text(json.dumps(clocks), encoding="utf-8")
    result = tune("--by", "time", "--json")
    assert result.exit_code == 0, result.output
    assert set(seen) == {1380, 900}
    assert gpu.core_mhz == before


def test_without_a_gpu_one_line_says_so(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(index: int | None) -> Machine:
        raise MeasureError("CUDA sees no GPU")

    monkeypatch.setattr(Machine, "here", none)
    assert isinstance(tune().exception, MeasureError)


def test_what_is_missing_or_another_is_told(tune: Tune, here: Callable[..., Machine]) -> None:
    here()
    result = tune("--by", "time", arguments=())
    assert "argument 0 (u64) is needed to run the kernel: give --arg 0=NUMBER" in str(
        result.exception
    )
    both = tune("--run", "true")
    assert both.exit_code == 2
    assert "give one of them" in both.stderr
