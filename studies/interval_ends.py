"""Whether answers to random valid requests have ends that can be.

Kernels are those that are measured (``measure/kernels``) and the demonstration's, at any
launch, clocks and power limit, on any GPU. Every answer must satisfy ``impossible``: nothing of it
is taken from the code that keeps the ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattcast.features.errors import WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx import read_module
from wattcast.models.power.physical import IDLE_SHARE
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one

ROOT = Path(__file__).parents[1]
FILES = ("app/demo/vector_add.ptx", "measure/kernels/matrix.ptx",
         "measure/kernels/sparse.ptx", "measure/kernels/stencil.ptx",
         "measure/kernels/image.ptx")  # fmt: skip

LAUNCH_SECONDS = 1e-6
READING = 1.05
ROUNDING = 1e-9


@dataclass
class Found:
    """Answers by number, refused requests by kind of error, and what was impossible."""

    answers: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def requests(seed: int, gpus: list[GpuProfile]) -> Iterator[PredictRequest]:
    """Endless requests, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - drawn to be repeated, not to be secret
    texts = {name: (ROOT / name).read_text("utf-8") for name in FILES}
    kernels = [
        (text, function.name)
        for text in texts.values()
        for function in read_module(text).functions
        if function.is_entry
    ]
    while True:
        text, kernel = draw.choice(kernels)
        gpu = draw.choice(gpus)
        launch: dict[str, Any] = {
            "grid": [round(2 ** draw.uniform(0, 22))],
            "block": [32 * draw.randint(1, 32)],
        }
        if draw.random() < 0.5:
            launch["arguments"] = {
                str(at): round(2 ** draw.uniform(0, 24)) for at in range(draw.randint(1, 5))
            }
        asked: dict[str, Any] = {"ptx": text, "kernel": kernel, "gpu": gpu.id, "launch": launch}
        if draw.random() < 0.5:
            asked["loops"] = {"default": round(2 ** draw.uniform(0, 14))}
        if draw.random() < 0.3:
            asked["registers_per_thread"] = draw.randint(8, 128)
        if draw.random() < 0.3:
            share = draw.uniform(0.4, 1.0)
            asked["clocks"] = {"core_mhz": round(share * gpu.max_core_mhz)}
        if draw.random() < 0.2:
            asked["power_limit_watts"] = round(draw.uniform(0.4, 1.0) * gpu.tdp_watts)
        if draw.random() < 0.2:
            asked["known"] = [
                {
                    "launch": launch,
                    "power_watts": round(draw.uniform(0.2, 1.0) * gpu.tdp_watts, 1),
                    "time_seconds": 2 ** draw.uniform(-17, -3),
                }
            ]
        yield PredictRequest.model_validate(asked | {"analysis_effort": 2_000_000})


def impossible(
    answer: Mapping[str, Any], gpu: GpuProfile, idle_watts: float, most_watts: float
) -> Iterator[str]:
    """What of an answer cannot be."""
    units = {"power": "watts", "time": "seconds", "energy": "joules"}
    for name, unit in units.items():
        part = answer[name]
        if part is None:
            continue
        low, value, high = part["low"], part[unit], part["high"]
        if not 0 < low <= value <= high < float("inf"):
            yield f"{name}: {low:g} .. {value:g} .. {high:g}"
    power, time, joules = answer["power"], answer["time"], answer["energy"]
    if power is not None and power["low"] < idle_watts * (1 - ROUNDING):
        yield f"power from {power['low']:g} W, idle {idle_watts:g} W"
    if power is not None and power["high"] > READING * most_watts * (1 + ROUNDING):
        yield f"power to {power['high']:g} W, limit {most_watts:g} W"
    if time is not None and time["low"] < LAUNCH_SECONDS * (1 - ROUNDING):
        yield f"time from {time['low']:g} s"
    if joules is not None and joules["low"] < idle_watts * LAUNCH_SECONDS * (1 - ROUNDING):
        yield f"energy from {joules['low']:g} J"
    if joules is not None and joules["high"] > power["high"] * time["high"] * (1 + ROUNDING):
        yield f"energy to {joules['high']:g} J"


def facts(predictor: Predictor, gpu: GpuProfile) -> tuple[float, float]:
    """Least and most watts of a board: idle as measured or assumed, its limit as told or measured;
    what was measured at work, whichever model answers, moves either."""
    cards = [card for card in predictor.power.base_cards() if card.gpu == gpu.id]
    own = [card for card in cards if card.family == "physical"]
    idle = IDLE_SHARE * gpu.tdp_watts
    if own:
        idle = predictor.power.physical(gpu).parameters.idle_watts
    elif gpu.idle_watts is not None:
        idle = min(gpu.idle_watts, predictor.power.physical(gpu).parameters.idle_watts)
    floors = [card.intervals.floor_watts for card in cards if card.intervals.floor_watts > 0]
    most = [card.training.power_maximum_watts for card in cards]
    return min([idle, *floors]), max([gpu.tdp_watts, *most])


def check(predictor: Predictor, count: int, seed: int = 0, gpus: list[str] | None = None) -> Found:
    """Ask ``count`` requests; what they answered, and what of it cannot be."""
    profiles = [predictor.gpus.load(name) for name in gpus] if gpus else [*predictor.gpus.all()]
    bounds = {gpu.id: facts(predictor, gpu) for gpu in profiles}
    known = {gpu.id: gpu for gpu in profiles}
    found = Found()
    asked = requests(seed, profiles)
    for number in range(count):
        request = next(asked)
        assert request.gpu is not None
        try:
            answer = predict_one(predictor, request)
        except WattcastError as error:
            found.refused[type(error).__name__] += 1
            continue
        found.answers += 1
        gpu = known[request.gpu]
        for why in impossible(answer.data(), gpu, *bounds[gpu.id]):
            kernel = answer["kernel"]["mangled"]
            found.wrong.append(f"{number}: {gpu.id} {kernel} {request.launch.grid}: {why}")
    return found
