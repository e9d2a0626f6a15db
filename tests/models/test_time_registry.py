"""All time models by name: one interface, one set of promises."""

from __future__ import annotations

from math import isfinite

import pytest

from tests.models.time_works import K20, KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import LaunchError, ModelError
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.papers.thesis.scheduling import SchedulingTimeModel
from wattcast.models.time.base import TIME_MODELS, get_time_model


@pytest.fixture(scope="module")
def analysis() -> KernelAnalysis:
    module = read_module((KERNELS / "tiled_matmul.ptx").read_text(encoding="utf-8"))
    return analyse(
        module, None, Launch.of((32, 32), (32, 32)), K20, loops={"default": 32},
        registers_per_thread=32, analysis="symbolic",
    )  # fmt: skip


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'oracle'.*delay, .*volkov") as caught:
        get_time_model("oracle")
    assert caught.value.context["known"] == sorted(TIME_MODELS)


@pytest.mark.parametrize("name", list(TIME_MODELS))
def test_every_model_keeps_the_interface(name: str, analysis: KernelAnalysis) -> None:
    model = get_time_model(name)
    assert model.family == name
    assert get_time_model(name) is model
    prediction = model.predict(analysis, K20)
    assert prediction.family == name
    assert prediction.clocks == default_clocks(K20)
    estimate = prediction.estimate
    assert 0 < estimate.low <= estimate.value <= estimate.high
    assert isfinite(estimate.high)
    assert prediction.parts
    assert all(isfinite(part) and part >= 0 for part in prediction.parts.values())
    half = ClockPair(K20.core_mhz / 2, K20.memory_mhz / 2)
    slower = model.predict(analysis, K20, half)
    assert slower.clocks == half
    assert slower.estimate.value >= estimate.value
    with pytest.raises(LaunchError):
        model.predict(analysis, K20, ClockPair(0, K20.memory_mhz))


def test_it_says_that_it_does_not_know_the_memory_clock(analysis: KernelAnalysis) -> None:
    other = ClockPair(640, 1300)
    prediction = SchedulingTimeModel().predict(analysis, K20, other)
    same_core = SchedulingTimeModel().predict(analysis, K20, ClockPair(640, K20.memory_mhz))
    assert prediction.estimate == same_core.estimate
    assert prediction.diagnostics[:-1] == same_core.diagnostics
    assert prediction.diagnostics[-1].code == "memory_clock_unused"
    assert "2600 MHz" in prediction.diagnostics[-1].detail
