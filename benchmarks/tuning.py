"""A tuning space of a thousand variants: compiled and predicted, in CPU seconds of one core; a list
of Triton products on all of them."""

from __future__ import annotations

import random
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import Row, at_most, fact

VARIANTS, CORES = 1000, 2
SAMPLE = 40
"""Variants that are looked at, drawn by chance: they differ by a factor of ten."""

SIDE, FILTER = 4096, 7
SPACE = Path(__file__).with_name("convolution.json").read_text(encoding="utf-8")
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


def _products() -> Iterator[Row]:
    """48 Triton products that were never seen, as ``wattcast.rank_triton`` ranks them; registers
    are given, as Triton's binaries tell them."""
    from wattcast.app.python import predictors
    from wattcast.predictor import rank, triton

    cache = Path(__file__).parents[1] / "tests" / "fixtures" / "triton" / "ptx" / "gemm_fp16.sm_90"
    every = [
        replace(one, ptx=f"{one.ptx}// {at}\n", registers_per_thread=128)
        for at, one in enumerate(triton.read_cache(cache) * 7)
    ]
    sizes = {name: SIDE if name in "mnk" else {"elements": SIDE**2} for name in "mnkabc"}
    grid = lambda of: SIDE**2 // (of["BLOCK_M"] * of["BLOCK_N"])  # noqa: E731
    asked = list(triton.candidates(every, grid, sizes, {"gpu": "h100"}))
    rank.ranked(predictors.predictor(False), asked[48:], "time")  # models are opened
    start, before = perf_counter(), _cpu_seconds()
    with predictors.crew(variants=48, registry=False) as crew:
        rank.ranked(predictors.predictor(False), asked[:48], "time", crew=crew)
    yield at_most("48 Triton products, on all cores", perf_counter() - start, 2.0, "s")
    yield fact("48 Triton products, workers included", _cpu_seconds() - before, "CPU s")


def rows() -> Iterator[Row]:
    """Every row of this part; processes are counted with what they start."""
    yield from _products()
    from wattcast.app.settings import Settings
    from wattcast.features.cuda.isolation import find_nvrtc
    from wattcast.predictor import Predictor
    from wattcast.predictor.forecasts import forecasts
    from wattcast.predictor.rank import request_of
    from wattcast.predictor.tuning_files import read_tuning

    if find_nvrtc() is None:
        yield fact("tuning: skipped, the extra cuda is not installed", 0, "")
        return
    space = list(read_tuning(SPACE).configurations)
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
