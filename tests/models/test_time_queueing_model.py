"""Wang and Chu's model as two families of time models."""

from __future__ import annotations

import pytest

from tests.models.time_works import KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.wang_chu.inputs import gpu_parameters, launch_of
from wattcast.models.papers.wang_chu.model import QueueingCasesTimeModel, QueueingTimeModel
from wattcast.models.papers.wang_chu.network import network_form
from wattcast.models.time.base import get_time_model
from wattcast.models.time.calibration import spread

GTX_980 = load_gpu("gtx-980")
SERVERS = ("sm", "texture", "l2", "dram")


def analysed(name: str, launch: Launch, gpu: GpuProfile, trips: float = 32) -> KernelAnalysis:
    module = read_module((KERNELS / name).read_text(encoding="utf-8"))
    return analyse(
        module, None, launch, gpu, loops={"default": trips}, registers_per_thread=32,
        analysis="symbolic",
    )  # fmt: skip


MATMUL = analysed("tiled_matmul.ptx", Launch.of((32, 32), (32, 32)), GTX_980)
SMALL = analysed("vector_add.ptx", Launch.of(1, 256), GTX_980)
LARGE = analysed("vector_add.ptx", Launch.of(200_000, 256), GTX_980)


def test_queueing_is_the_network_form_and_the_start_of_the_kernel() -> None:
    found = QueueingTimeModel().predict(MATMUL, GTX_980)
    gpu = gpu_parameters(GTX_980)
    form = network_form(launch_of(MATMUL, GTX_980, 28), gpu, default_clocks(GTX_980))
    assert found.estimate.value == pytest.approx(form.seconds + gpu.launch_seconds)
    assert found.clocks == default_clocks(GTX_980)
    assert found.family == "queueing"


@pytest.mark.parametrize("analysis", [MATMUL, SMALL, LARGE])
def test_parts_of_queueing_add_up_as_it_says(analysis: KernelAnalysis) -> None:
    found = QueueingTimeModel().predict(analysis, GTX_980)
    parts = found.parts
    busy = max(parts[name] for name in SERVERS) + parts["overlap"] + parts["latency"]
    assert found.estimate.value == pytest.approx(max(busy, parts["chain"]) + parts["launch"])


def test_parts_of_queueing_cases_add_up_and_name_the_case() -> None:
    found = QueueingCasesTimeModel().predict(MATMUL, GTX_980)
    assert set(found.parts) == {"shared, intensive (21)", "launch"}
    assert found.estimate.value == pytest.approx(sum(found.parts.values()))
    assert found.regime == "compute"


def test_regimes() -> None:
    model = QueueingTimeModel()
    assert model.predict(SMALL, GTX_980).regime == "launch"
    assert model.predict(LARGE, GTX_980).regime == "memory"
    assert model.predict(MATMUL, GTX_980, ClockPair(100, 3505)).regime == "compute"


def test_a_stream_takes_its_bytes_over_the_bandwidth() -> None:
    """200,000 blocks of 256 floats, twice read and once written, at 8 / 9 of 224 GB/s."""
    found = QueueingTimeModel().predict(LARGE, GTX_980)
    bytes_moved = 200_000 * 256 * 12
    assert found.parts["dram"] == pytest.approx(bytes_moved / (3505e6 * 64 * 8 / 9), rel=0.01)
    assert found.estimate.value == pytest.approx(found.parts["dram"], rel=0.2)


def test_the_interval_is_that_of_programs_left_out() -> None:
    for family in ("queueing", "queueing-cases"):
        found = get_time_model(family).predict(MATMUL, GTX_980).estimate
        width, basis = spread(family, "gtx-980")
        assert found.basis == basis == "unseen_kernel"
        assert found.low == pytest.approx(found.value * width.low_factor)
        assert found.high == pytest.approx(found.value * width.high_factor)
        assert found.level == 0.9
