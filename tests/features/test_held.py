"""The bytes that caches count for modules and analyses, beside what tracemalloc sees."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref

import pytest

from tests.fixtures.kernels.data import SOURCES, path_for
from wattcast.features.analysis import KernelAnalysis, Mode, analyse
from wattcast.features.errors import AnalysisError
from wattcast.features.execution import spaces
from wattcast.features.execution.machine import Machine
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.symbolic.arith import Val
from wattcast.models.time.base import TIME_MODELS, get_time_model
from wattcast.predictor.parts.memory import analysis_bytes, module_bytes

V100 = load_gpu("tesla-v100")
FACTOR = 1.6
MODES: tuple[Mode, ...] = ("symbolic", "executed")
MEASURED = ("bisection", "async_copy", "device_calls", "gather", "mma_inline", "switch_case")

WEIGHED: tuple[tuple[str, Mode], ...] = (
    *((name, "executed") for name in MEASURED),
    ("async_copy", "symbolic"),
)
"""What symbols refuse holds less than is estimated."""


def text_of(name: str) -> str:
    return path_for(name, "sm_90").read_text(encoding="utf-8")


def analysed(module: Module, mode: Mode, blocks: int = 64) -> KernelAnalysis:
    launch = Launch.of(blocks, 128)
    found = analyse(module, module.kernels[0], launch, V100, loops={"default": 4}, analysis=mode)
    try:
        get_time_model("bottleneck").predict(found, V100)
    except AnalysisError:  # symbols refuse what they cannot prove
        assert mode == "symbolic"
    return found


def held() -> int:
    """Traced bytes but for tables of made-up data, of which all launches share a few."""
    spaces._numbers.cache_clear()
    spaces._random.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def estimates_that_are_off() -> dict[tuple[str, str], tuple[float, float]]:
    """Estimated over traced bytes of module and analysis, where they differ too much."""
    for name, mode in WEIGHED:  # tables and opcodes that stay for good
        analysed(read_module(text_of(name)), mode)
    tracemalloc.start()
    off = {}
    for name, mode in WEIGHED:
        start = held()
        module = read_module(text_of(name) + " ")
        first = analysed(module, mode)
        middle = held()
        second = analysed(module, mode, blocks=65)
        analysis = held() - middle
        ratios = (
            module_bytes(module) / (middle - start - analysis),
            analysis_bytes(second) / analysis,
        )
        if not all(1 / FACTOR < ratio < FACTOR for ratio in ratios):
            off[name, mode] = ratios
        del first, second, module
    return off


@pytest.mark.slow
def test_the_estimates_hold() -> None:
    """In a process of its own: other tests' threads allocate, too."""
    code = "from tests.features import test_held; print(test_held.estimates_that_are_off())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{}"


def test_only_what_was_parsed_counts() -> None:
    module = read_module(text_of("gather"))
    heads = module_bytes(module)
    assert len(module.text) < heads < 2.5 * len(module.text) + 5000 * len(module.functions)
    analysed(module, "symbolic")
    parsed = module_bytes(module)
    analysed(module, "executed")
    assert heads < parsed < module_bytes(module)


@pytest.mark.slow
def test_nothing_outlives_its_module() -> None:
    """What is worked out about a function is attached to it, and freed with it."""
    left = []
    for source in list(SOURCES)[:20]:
        path = path_for(source, "sm_90")
        for mode in MODES:
            module = read_module(path.read_text(encoding="utf-8"))
            try:
                found = analysed(module, mode)
                for family in TIME_MODELS:
                    get_time_model(family).predict(found, V100)
            except Exception as error:
                del error
            found = None  # type: ignore[assignment]
            function = weakref.ref(module.kernels[0])
            del module
            gc.collect()
            if function() is not None:
                left.append((path.name, mode))
    assert not left


def test_what_an_analysis_works_with_is_freed_without_the_collector() -> None:
    """The service lets the collector run far too rarely for rings of a megabyte a request."""
    gc.freeze()  # what other tests left is not gone through again and again
    for name in ("bisection", "device_calls", "gather"):
        module = read_module(text_of(name))
        for mode in MODES:
            analysed(module, mode)  # what is attached to the module stays
            gc.collect()
            gc.disable()
            try:
                kept = analysed(module, mode, blocks=65)
                left = [each for each in gc.get_objects() if isinstance(each, Val | Machine)]
            finally:
                gc.enable()
            assert not left, (name, mode, len(left))
            assert kept.module is module
