"""Onboarding of a simulated GPU whose every number is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.measure.measuring import NO_COUNTER, board, catalogue, energies, record
from tests.measure.simulated import Faults, SimulatedRunner
from wattcast.features.gpus import check_profile, load_gpu
from wattcast.measure.onboard.data import loaded, to_toml
from wattcast.measure.onboard.power import fit_power, power_rows
from wattcast.measure.onboard.profile import fit_profile
from wattcast.measure.onboard.run import Onboarded, onboard, pooled_parameters
from wattcast.measure.recording import Recording, read_recording
from wattcast.measure.workload import executed
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import PhysicalPowerModel, WorkAtTime
from wattcast.models.store import ArtifactStore
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import BottleneckTimeModel


class World:
    """A board measured by samples alone: 100 ms apart, 250 ms late, 1 % noise."""

    def __init__(self, folder: Path) -> None:
        self.gpu = board(NO_COUNTER)
        self.path, self.home = folder / "recording.jsonl", folder / "home"
        workloads = catalogue(SimulatedRunner(self.gpu).device().board)
        self.runner = record(self.gpu, self.path, workloads)
        self.recording: Recording = read_recording(self.path)
        self.made: Onboarded = onboard(self.path, self.home)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("onboard"))


@pytest.mark.slow
def test_the_sensor_is_found_out(world: World) -> None:
    truth, sensor = world.gpu.truth, world.recording.sensor
    assert sensor.update_period_seconds == pytest.approx(truth.update_period_seconds, rel=0.1)
    assert sensor.lag_seconds == pytest.approx(truth.lag_seconds, rel=0.1)


def test_every_energy_is_recovered_within_ten_percent(world: World) -> None:
    truth, found = world.gpu.truth, world.made.picojoules
    for event, picojoules in truth.picojoules.items():
        if event != "texture":  # no workload reads textures
            assert found[event] == pytest.approx(picojoules, rel=0.1), event
    assert found["active_watts"] == pytest.approx(truth.active_watts, rel=0.1)
    assert world.made.gpu.idle_watts == pytest.approx(truth.idle_watts, rel=0.1)
    assert world.made.power is not None
    assert world.made.power.unresolved == ()
    assert any("texture: no microbenchmark" in note for note in world.made.notes)


def test_an_energy_below_the_noise_is_told_as_not_resolved(world: World) -> None:
    gpu, chance = world.made.gpu, np.random.default_rng(1)
    assert world.made.power is not None
    parameters = world.made.power.parameters
    scale = parameters.limit_watts - parameters.idle_watts
    micro = [one for one in power_rows(world.recording, gpu).rows if one.role == "micro"]
    for _ in range(30):
        noisy = []
        for row in micro:
            assert row.watts is not None
            drawn = scale * parameters.weight("fp16") * row.activities.fp16
            true = row.watts - 0.995 * drawn  # at most 0.2 W are left
            noisy.append(replace(row, watts=true * chance.normal(1.0, 0.002)))
        found = fit_power(noisy, gpu, parameters.idle_watts, pooled_parameters(gpu))
        assert found.unresolved == ("fp16",)
        assert [note for note in found.notes if note.startswith("fp16: the sensor")]


def test_every_rate_and_latency_is_recovered_within_ten_percent(world: World) -> None:
    truth, gpu = world.gpu.truth, world.made.gpu
    timing = {
        "l1": gpu.l1_latency_cycles,
        "l2": gpu.l2_latency_cycles,
        "dram": gpu.dram_latency_cycles,
        "shared": gpu.shared_latency_cycles,
        **gpu.latency_cycles,
    }
    for target, cycles in truth.latency_cycles.items():
        assert timing[target] == pytest.approx(cycles, rel=0.1), target
    rate = gpu.issue_rates["fma.f32"]
    assert rate.throughput == pytest.approx([truth.results_per_cycle["fma.f32"]] * 2, rel=0.1)
    # 95 % of 63 results a cycle, 4.2 cycles late: 0.95 x 63 x 4.2 / 32 = 7.9 warps in flight,
    # half with two independent instructions.
    assert rate.peak_warps == (8, 4)
    assert gpu.kernel_launch is not None
    assert gpu.kernel_launch.microseconds == pytest.approx(truth.launch_seconds * 1e6, rel=0.1)
    assert gpu.block_start is not None
    assert gpu.block_start.cycles == pytest.approx(3.3, rel=0.1)
    assert gpu.block_start.cycles_per_warp == pytest.approx(0.4, rel=0.1)
    assert gpu.streaming_share == pytest.approx(truth.profile.streaming_share, rel=0.1)
    assert gpu.l2_bytes_per_clock == pytest.approx(truth.profile.l2_bytes_per_clock, rel=0.005)
    assert gpu.core_mhz == truth.profile.core_mhz


def test_unseen_kernels_are_predicted_within_six_percent(world: World) -> None:
    found = world.made.validation
    assert found is not None
    assert found.on_applications
    assert len(set(found.families)) == 8
    for protocol in ("random", "grouped"):
        scores = found.power_scores(protocol)
        assert scores["mape_percent"] < 6
        assert scores["baseline_mape_percent"] > 1.5 * scores["mape_percent"]
    times = found.time_scores()
    assert times["mape_percent"] < 6
    assert times["baseline_mape_percent"] > 20


def test_what_is_written_serves(world: World) -> None:
    gpu = load_gpu("simulated-gpu", overlay=world.home / "gpus")
    assert check_profile(world.home / "gpus" / "simulated-gpu.toml") == []
    artifact = ArtifactStore((world.home / "artifacts",)).find(
        gpu.id, "power", "physical", "activity1"
    )
    model = PhysicalPowerModel(artifact, gpu)
    assert not model.pooled
    clocks = ClockPair(gpu.core_mhz, gpu.memory_mhz)
    workload = next(w for w in catalogue(world.recording.device.board) if w.id == "gemm-5120")
    analysis = executed(workload, gpu)
    time = BottleneckTimeModel().predict(analysis, gpu, clocks)
    power = model.predict(
        WorkAtTime(analysis.activity, time.estimate.value, beside(analysis.extras)), clocks
    )
    seconds, watts = world.runner.truth_of(workload)
    assert time.estimate.basis == power.estimate.basis == "unseen_kernel"
    assert time.estimate.low <= seconds <= time.estimate.high
    truly = watts + world.gpu.truth.idle_watts
    assert power.estimate.value == pytest.approx(
        truly, rel=0.01
    )  # an interval of 0.7 % may miss it
    assert {score.protocol for score in artifact.card.scores} == {"random", "grouped"}
    report = (world.home / "onboarding" / gpu.id / "report.md").read_text("utf-8")
    assert "fitted on microbenchmarks alone" in report
    assert "energy counter: not offered" in report
    figures = json.loads((world.home / "onboarding" / gpu.id / "report.json").read_text("utf-8"))
    assert figures["power"]["active_watts"] == pytest.approx(33, rel=0.1)


def test_a_replay_gives_the_same(world: World, tmp_path: Path) -> None:
    again = onboard(world.path, tmp_path)
    assert again.picojoules == world.made.picojoules
    assert again.gpu == world.made.gpu


def test_without_a_power_sensor_the_profile_is_fitted_all_the_same(tmp_path: Path) -> None:
    gpu = board(Faults(not_supported=frozenset({"DeviceGetPowerUsage"}), instant_power=False))
    path = tmp_path / "recording.jsonl"
    device = SimulatedRunner(gpu).device()
    chosen = [
        one
        for one in catalogue(device.board)
        if one.id.startswith(("latency-fma", "launch", "energy-alu", "bandwidth-dram"))
    ]
    record(gpu, path, chosen)
    made = onboard(path, tmp_path / "home")
    assert made.power is None
    assert made.card is None
    assert made.gpu.latency_cycles["fma.f32"] == pytest.approx(4.2, rel=0.1)
    assert made.gpu.idle_watts is None
    assert any("too few to fit a power model" in note for note in made.notes)


@pytest.mark.slow
def test_without_applications_families_of_microbenchmarks_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    record(board(), path, energies())
    made = onboard(path, tmp_path / "home")
    assert made.validation is not None
    assert not made.validation.on_applications
    assert made.card is not None
    assert made.gpu.time_interval is None
    report = (tmp_path / "home" / "onboarding" / made.gpu.id / "report.md").read_text("utf-8")
    assert "no application was measured" in report


def test_toml_of_a_profile_reads_back() -> None:
    import tomllib

    data = {"a": 'x "y" \\', "n": [1, 2.5], "t": {"add.f32": {"value": 1e-7, "ok": True}}}
    assert tomllib.loads(to_toml(data)) == data


@pytest.mark.parametrize("gpu", ["tesla-v100", "h200-sxm5", "tesla-k20"])
def test_a_known_profile_keeps_what_was_not_measured(
    world: World, tmp_path: Path, gpu: str
) -> None:
    fitted = fit_profile(world.recording, gpu)
    written, before = loaded(fitted.data, tmp_path), load_gpu(gpu)
    assert written.id == gpu
    assert written.clocks.supported_pairs == before.clocks.supported_pairs
    assert written.tdp_watts == before.tdp_watts
    assert written.capability == before.capability
    assert written.dram_latency_cycles == pytest.approx(437, rel=0.01)
    assert written.latencies["fma.f32"].source == "onboarding"


@pytest.mark.slow
def test_several_clocks_tell_the_voltage(tmp_path: Path) -> None:
    gpu = board()
    path = tmp_path / "recording.jsonl"
    for core in (700.0, 1050.0, 1380.0):
        gpu.core_mhz = core
        record(gpu, path, energies(), label=f"{core:g}")
    made = onboard(path, tmp_path / "home")
    assert made.power is not None
    fitted, truth = made.power.parameters, gpu.truth
    for core in (700.0, 1050.0):
        share = core / 1380
        assert fitted.voltage.at(share) == pytest.approx(truth.voltage.at(share), rel=0.1)
    for event in ("fma", "alu", "fp64", "sfu", "issue", "l2"):
        assert made.picojoules[event] == pytest.approx(truth.picojoules[event], rel=0.1), event
