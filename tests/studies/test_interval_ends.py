"""No answer to a random valid request has ends that cannot be: what that is, is told here anew."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import settings_at
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx import read_module
from wattcast.models.power.physical import IDLE_SHARE
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one

ROOT = Path(__file__).parents[2]
TEXTS = [
    (ROOT / name).read_text("utf-8")
    for name in ("app/demo/vector_add.ptx", "measure/kernels/matrix.ptx",
                 "measure/kernels/sparse.ptx", "measure/kernels/stencil.ptx")
]  # fmt: skip
MANY = int(os.environ.get("ENDS_TEST_REQUESTS", "3000"))
"""100,000 take half an hour of a core."""
LAUNCH_SECONDS, READING, ROUNDING = 1e-6, 1.12, 1e-9


def requested(draw: random.Random, kernels: list[tuple[str, str]], gpu: GpuProfile) -> Any:
    """A valid request: any launch, clocks, limit and known launch."""
    text, kernel = draw.choice(kernels)
    launch: dict[str, Any] = {
        "grid": [round(2 ** draw.uniform(0, 22))],
        "block": [32 * draw.randint(1, 32)],
        "arguments": {str(at): round(2 ** draw.uniform(0, 24)) for at in range(draw.randint(0, 5))},
    }
    watts = round(draw.uniform(0.4, 1.0) * gpu.tdp_watts)
    seconds = 2 ** draw.uniform(-17, -3)
    choices: dict[str, Any] = {
        "loops": {"default": round(2 ** draw.uniform(0, 14))},
        "registers_per_thread": draw.randint(8, 128),
        "clocks": {"core_mhz": round(draw.uniform(0.4, 1.0) * gpu.max_core_mhz)},
        "power_limit_watts": watts,
        "known": [{"launch": launch, "power_watts": watts, "time_seconds": seconds}],
    }
    chosen = {name: value for name, value in choices.items() if draw.random() < 0.3}
    asked = {"ptx": text, "kernel": kernel, "gpu": gpu.id, "launch": launch, **chosen}
    return PredictRequest.model_validate(asked | {"analysis_effort": 2_000_000})


def bounds(predictor: Predictor, gpu: GpuProfile) -> tuple[float, float]:
    """Least and most watts of a board: idle and limit, or what was measured at work."""
    cards = [card for card in predictor.power.base_cards() if card.gpu == gpu.id]
    idle = IDLE_SHARE * gpu.tdp_watts
    if any(card.family == "physical" for card in cards) or gpu.idle_watts is not None:
        idle = predictor.power.physical(gpu).parameters.idle_watts
    if not any(card.family == "physical" for card in cards):
        idle = min(idle, gpu.idle_watts or inf)
    floors = [card.intervals.floor_watts for card in cards if card.intervals.floor_watts > 0]
    most = [card.training.power_maximum_watts for card in cards]
    return min([idle, *floors]), max([gpu.tdp_watts, *most])


def impossible(answer: Any, least: float, most: float) -> Iterator[str]:
    """What of an answer cannot be."""
    lowest = {"power": least, "time": LAUNCH_SECONDS, "energy": least * LAUNCH_SECONDS}
    power, time = answer["power"], answer["time"]
    highest = {"power": READING * most, "time": inf, "energy": power["high"] * time["high"]}
    for name, unit in (("power", "watts"), ("time", "seconds"), ("energy", "joules")):
        low, value, high = (answer[name][each] for each in ("low", unit, "high"))
        if not 0 < low <= value <= high < inf:
            yield f"{name}: {low:g} .. {value:g} .. {high:g}"
        if low < lowest[name] * (1 - ROUNDING) or high > highest[name] * (1 + ROUNDING):
            yield f"{name}: {low:g} .. {high:g} outside {lowest[name]:g} .. {highest[name]:g}"


@pytest.mark.parametrize("count", [60, pytest.param(MANY, marks=pytest.mark.slow)])
def test_random_requests_have_ends_that_can_be(count: int, tmp_path: Path) -> None:
    predictor, draw, answers = Predictor(settings_at(tmp_path)), random.Random(count), 0
    gpus = [*predictor.gpus.all()]
    kernels = [
        (text, one.name) for text in TEXTS for one in read_module(text).functions if one.is_entry
    ]
    for number in range(count):
        gpu = draw.choice(gpus)
        request = requested(draw, kernels, gpu)
        try:
            answer = predict_one(predictor, request).data()
        except WattcastError:
            continue
        answers += 1
        if answer["power"] and answer["time"]:
            wrong = list(impossible(answer, *bounds(predictor, gpu)))
            assert not wrong, (number, gpu.id, request.kernel, request.launch)
    assert answers > count / 2


def test_the_check_finds_what_cannot_be() -> None:
    answer = {
        "power": {"low": 40.0, "watts": 100.0, "high": 200.0},
        "time": {"low": 1e-5, "seconds": 2e-5, "high": 4e-5},
        "energy": {"low": 1e-3, "joules": 2e-3, "high": 4e-3},
    }
    assert not [*impossible(answer, 30.0, 300.0)]
    for name, end, value in (
        ("power", "low", 20.0), ("power", "high", 340.0), ("power", "low", 110.0),
        ("time", "low", 1e-7), ("energy", "low", 1e-9), ("energy", "high", 1.0),
    ):  # fmt: skip
        assert [*impossible({**answer, name: {**answer[name], end: value}}, 30.0, 300.0)]
