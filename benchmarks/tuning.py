"""A tuning space of a thousand variants: compiled and predicted, in CPU seconds of one core."""

from __future__ import annotations

import json
import random
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, at_most, fact

VARIANTS = 1000
CORES = 2
SAMPLE = 40
"""Variants that are looked at, drawn by chance: they differ by a factor of ten."""

SIDE, FILTER = 4096, 7
SPACE = {
    "problem_size": [SIDE, SIDE],
    "tune_params": {
        "block_size_x": [16, 32, 48, 64, 96, 128],
        "block_size_y": [1, 2, 4, 8, 16],
        "tile_size_x": [1, 2, 4, 8],
        "tile_size_y": [1, 2, 4, 8],
        "use_shared": [0, 1],
        "use_padding": [0, 1],
    },
    "restrictions": [
        "block_size_x * block_size_y >= 32",
        "block_size_x * block_size_y <= 1024",
        "tile_size_x * tile_size_y <= 16",
        "use_shared == 1 or use_padding == 0",
        "use_shared == 0 or "
        "(block_size_x * tile_size_x + 6) * (block_size_y * tile_size_y + 6) * 4 <= 49152",
    ],
}
"""1,025 variants, as tuners of convolutions have them: tiles of up to 16 results a thread."""


def problem() -> Any:
    """The convolution of ``convolution.cu`` with arrays of their size."""
    from wattcast.predictor.rank import TuningProblem

    padded = (SIDE + FILTER - 1) ** 2
    sizes = {"out": SIDE**2, "in": padded, "filter": FILTER**2}
    arrays = {name: {"elements": count} for name, count in sizes.items()}
    request = {
        "cuda": Path(__file__).with_name("convolution.cu").read_text(encoding="utf-8"),
        "kernel": "convolution",
        "gpu": "a100",
        "launch": {"arguments": {"width": SIDE, "height": SIDE, **arrays}},
    }
    divisors = ("block_size_x", "tile_size_x"), ("block_size_y", "tile_size_y")
    return TuningProblem((SIDE, SIDE), divisors, request=request)


def rows() -> Iterator[Row]:
    """Every row of this part; processes are counted with what they start."""
    from wattcast.app.settings import Settings
    from wattcast.features.cuda.isolation import find_nvrtc
    from wattcast.predictor import Predictor
    from wattcast.predictor.forecasts import forecasts
    from wattcast.predictor.rank import request_of
    from wattcast.predictor.tuning_files import read_tuning

    if find_nvrtc() is None:
        yield fact("tuning: skipped, the extra cuda is not installed", 0, "")
        return
    space = list(read_tuning(json.dumps(SPACE)).configurations)
    random.Random(1).shuffle(space)
    settings = Settings(home=Path(tempfile.gettempdir()) / "wattcast-benchmarks")
    predictor = Predictor(settings, own=True)
    list(forecasts(predictor, problem(), space[SAMPLE : SAMPLE + 2]))  # models are opened
    texts = [request_of(problem(), one)["cuda"] for one in space[:SAMPLE]]
    before = _cpu_seconds()
    for at in range(0, SAMPLE, 4):
        predictor.sources.compile_all(texts[at : at + 4], "8.0")
    compiled = (_cpu_seconds() - before) / SAMPLE
    before = _cpu_seconds()
    found = list(forecasts(predictor, problem(), space[:SAMPLE]))
    both = (_cpu_seconds() - before) / SAMPLE
    assert all(row.problem is None for row in found)
    yield fact("a variant of a convolution, compiled", compiled, "CPU s")
    yield fact("a variant of a convolution, analysed and predicted", both - compiled, "CPU s")
    minutes = VARIANTS * both / CORES / 60
    yield at_most(f"{VARIANTS:,} variants on {CORES} cores, at that rate", minutes, 10.0, "min")


def _cpu_seconds() -> float:
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(each) for each in who]
    return sum(one.ru_utime + one.ru_stime for one in used)
