"""Onboarding of a simulated GPU whose every number is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.papers.thesis.growth import growth
from tests.measure.measuring import NO_COUNTER, board, catalogue, energies, record
from tests.measure.simulated import Faults, SimulatedRunner
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import ModelError, SchemaError
from wattcast.features.gpus import GpuProfile, check_profile, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.measure import catalogue as workloads
from wattcast.measure import micro
from wattcast.measure.onboard.data import loaded, to_toml
from wattcast.measure.onboard.growth import clock_split, latency_pieces, saturation
from wattcast.measure.onboard.power import fit_power, power_rows
from wattcast.measure.onboard.profile import fit_profile
from wattcast.measure.onboard.run import Onboarded, onboard, pooled_parameters
from wattcast.measure.recording import Recording, read_recording
from wattcast.measure.workload import executed
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import PhysicalPowerModel, WorkAtTime
from wattcast.models.store import ArtifactStore
from wattcast.models.time.base import get_time_model
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


# --- What older time models ask of a GPU: regressions refitted, a board onboarded that has them

KERNEL = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx" / "saxpy.sm_70.ptx"


def test_the_lines_of_table_3_3_are_found_again() -> None:
    printed = load_gpu("tesla-k20").global_memory_latency
    assert printed is not None
    threads = np.unique(np.geomspace(64, 2.2e6, 60).astype(int))
    bounds = [piece.below_threads or np.inf for piece in printed.pieces]
    lines = [printed.pieces[int(np.searchsorted(bounds, t, side="right"))] for t in threads]
    cycles = [line.slope * t + line.constant for line, t in zip(lines, threads, strict=True)]
    found = latency_pieces(threads.tolist(), cycles)
    assert len(found) == 5  # the printed four, and the level of the last point
    for line, same in zip(printed.pieces[:4], found[:4], strict=True):
        assert same.slope == pytest.approx(line.slope, rel=1e-3)
        assert same.constant == pytest.approx(line.constant, rel=1e-3)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="2 points"):
        latency_pieces([32, 64], [400.0, 410.0])
    with pytest.raises(ValueError, match="3 points"):
        saturation([1, 2, 3], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("gpu", ["tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050"])
@pytest.mark.parametrize("memory", ["global", "shared"])
def test_the_curves_of_table_4_5_are_found_again(gpu: str, memory: str) -> None:
    curve = getattr(load_gpu(gpu), f"{memory}_memory_throughput")
    n = np.geomspace(0.01, 10, 40) / curve.c
    values = [curve.at(one) for one in n]
    found = growth("exponential", n.tolist(), values)
    assert found.numbers == pytest.approx((curve.a, curve.b, curve.c), rel=0.01)
    # Table 4.4: of the three forms the exponential fits best.
    assert found.r_squared > growth("logarithmic", n.tolist(), values).r_squared
    assert found.r_squared > growth("linear", n.tolist(), values).r_squared


def test_the_split_of_equation_4() -> None:
    core, memory = np.array([400.0, 700.0, 1000.0]), np.array([1000.0, 700.0, 400.0])
    assert clock_split(core, memory, 277.32 + 222.78 * core / memory) == pytest.approx(
        (277.32, 222.78)
    )
    assert clock_split([700.0, 710.0], [700.0, 705.0], [500.0, 501.0]) is None


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gpu = board()
    path = tmp_path_factory.mktemp("growth") / "recording.jsonl"
    make = micro.Maker(SimulatedRunner(gpu).device().board)
    chosen = {"add.f32", "mul.f32", "fma.f32", "div.f32", "sqrt.f32", "add.s32", "mad.s32",
              "cvt.f32", "selp.b32", "shared", "dram"}  # fmt: skip
    chains = [
        one
        for part in (micro.latencies, workloads.chains, micro.chases, workloads.streams)
        for one in part(make)
        if one.probe is not None and one.probe.target in chosen and one.kind != "energy"
    ]
    for core in (900.0, 1380.0):
        gpu.core_mhz = core
        growths = [*micro.growths(make)] if core == 1380.0 else []
        record(gpu, path, [*chains, *growths], label=f"{core:g}")
    return path


@pytest.fixture(scope="module")
def onboarded(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> GpuProfile:
    fitted = fit_profile(read_recording(recording))
    return loaded(fitted.data, tmp_path_factory.mktemp("gpus"))


def test_what_a_board_does_under_load_is_found_out(onboarded: GpuProfile) -> None:
    truth = board().truth
    latency = onboarded.global_memory_latency
    assert latency is not None
    for threads in (64, 5120, 80 * 1024):
        piece = next(p for p in latency.pieces if not p.below_threads or threads < p.below_threads)
        true = truth.latency_cycles["dram"] + truth.loaded_cycles_per_thread * threads
        assert piece.slope * threads + piece.constant == pytest.approx(true, rel=0.05)
    for curve, (a, b, c) in (
        (onboarded.global_memory_throughput, truth.growth["global"]),
        (onboarded.shared_memory_throughput, truth.growth["shared"]),
    ):
        assert curve is not None
        for n in (0.3 / c, 1 / c, 5 / c):
            assert curve.at(n) == pytest.approx(a * (b - np.exp(-c * n)), rel=0.1)
    queueing = onboarded.dram_queueing
    assert queueing is not None
    ratio = truth.profile.core_mhz / truth.profile.memory_mhz
    moved = truth.latency_cycles["dram"] * truth.memory_share_of_latency
    assert queueing.latency_memory_cycles.value * ratio == pytest.approx(moved, rel=0.05)


def asked(gpu: GpuProfile) -> KernelAnalysis:
    module = read_module(KERNEL.read_text())
    launch = Launch((1024, 1, 1), (256, 1, 1), 0, {"0": 262144, "1": 2.0})
    return analyse(module, next(iter(module.kernels)), launch, gpu)


@pytest.mark.parametrize("name", ["delay", "scheduling", "queueing"])
def test_the_older_models_answer_for_an_onboarded_gpu(onboarded: GpuProfile, name: str) -> None:
    clocks = ClockPair(onboarded.core_mhz, onboarded.memory_mhz)
    model = get_time_model(name)
    found = model.predict(asked(onboarded), onboarded, clocks).estimate.value
    assert 1e-6 < found < 1e-3
    assert len(onboarded.latencies) >= 17  # every row of Table 3.2
    if name != "queueing":
        bare = onboarded.model_copy(update={"latencies": {}, "global_memory_latency": None})
        with pytest.raises(ModelError):
            model.predict(asked(bare), bare, clocks)


def test_an_onboarded_gpu_has_the_features_of_the_thesis(onboarded: GpuProfile) -> None:
    renamed = onboarded.model_copy(update={"id": "board-nobody-knows"})
    values = asked(renamed).vector("alavani2023").values
    assert values["avg_glob_lat"] > 400
    assert values["glb_penalty"] > 0
    unknown = renamed.model_copy(update={"global_memory_throughput": None})
    with pytest.raises(SchemaError, match="board-nobody-knows"):
        asked(unknown).vector("alavani2023")
