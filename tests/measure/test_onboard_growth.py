"""What older time models ask of a GPU: regressions refitted, a board onboarded that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.papers.thesis.growth import growth
from tests.measure.measuring import board, record
from tests.measure.simulated import SimulatedRunner
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import ModelError, SchemaError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.measure import catalogue, micro
from wattcast.measure.onboard.data import loaded
from wattcast.measure.onboard.growth import clock_split, latency_pieces, saturation
from wattcast.measure.onboard.profile import fit_profile
from wattcast.measure.recording import read_recording
from wattcast.models.clocks import ClockPair
from wattcast.models.time.base import get_time_model

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
        for part in (micro.latencies, catalogue.chains, micro.chases, catalogue.streams)
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
