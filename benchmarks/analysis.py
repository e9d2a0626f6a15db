"""PTX to facts: reading, feature vectors, scoring and explanations inside one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import process_time

import numpy as np

from benchmarks.measure import Row, at_least, at_most, fact, in_fresh_process, median_seconds
from benchmarks.ptx_text import kernel, module, tensor_kernel
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.time.bottleneck import BottleneckTimeModel

GPU = "tesla-v100"
LAUNCH = Launch.of(4096, 256)


def rows() -> Iterator[Row]:
    """Every row of this part."""
    yield from _reading()
    yield from _scoring()
    yield from _tensor()


def _tensor() -> Iterator[Row]:
    text, gpu, times = tensor_kernel(5000), load_gpu("a100-sxm4-40gb"), []
    for _ in range(5):
        begin = process_time()
        found = analyse(read_module(text), None, Launch.of((64, 16), 128), gpu)
        BottleneckTimeModel().predict(found, gpu)
        times.append(process_time() - begin)
    size = len(found.function.body.instructions)
    yield fact("instructions of a staged kernel for tensor cores", size, "")
    yield at_most("its analysis and time, CPU", min(times), 1.0, "s")


def _reading() -> Iterator[Row]:
    gpu = load_gpu(GPU)
    small = kernel(100)

    def vector(registers: int | None) -> None:
        analysis = analyse(
            read_module(small), None, LAUNCH, gpu, loops={"default": 10},
            registers_per_thread=registers,
        )  # fmt: skip
        analysis.vector("alavani2023")

    given = median_seconds(lambda: vector(24), 200)
    estimated = median_seconds(lambda: vector(None), 200)
    yield at_most("parse + vector, 100 instructions, registers given", given * 1e3, 1.0, "ms")
    yield fact("parse + vector, 100 instructions, registers estimated", estimated * 1e3, "ms")

    text = module(4.0)
    megabytes = len(text) / 1e6
    scan = median_seconds(lambda: read_module(text), 5, 1)
    yield at_least("scanning a module for its kernels", megabytes / scan, 10.0, "MB/s")

    def parse_all() -> None:
        for found in read_module(text).kernels:
            _ = found.body

    full = median_seconds(parse_all, 3, 1)
    yield at_least("full IR", megabytes / full, 3.0, "MB/s")
    yield at_most("memory of the full IR over the text", _memory_ratio(), 15.0, "x")


def _memory_ratio() -> float:
    code = """
import resource
from benchmarks.ptx_text import module
from wattcast.features.ptx import read_module
from wattcast.models.time.bottleneck import BottleneckTimeModel
read_module(module(0.1)).kernels[0].body
text = module(8.0)
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
before = resident()
read = read_module(text)
for found in read.kernels:
    found.body
print((resident() - before) / len(text))
"""
    return float(in_fresh_process(code))


def _scoring() -> Iterator[Row]:
    from wattcast.models.explain import explain_lime
    from wattcast.models.power.boosted import BoostedPowerModel, vector_for
    from wattcast.models.store import ArtifactStore

    store = ArtifactStore()
    analysis = analyse(
        read_module(kernel(100)), None, LAUNCH, load_gpu(GPU), registers_per_thread=24,
        loops={"default": 10},
    )  # fmt: skip
    vector = analysis.vector("alavani2023")
    for family in ("xgboost", "catboost", "extratrees"):
        model = BoostedPowerModel(store.find(GPU, "power", family, "alavani2023"))
        inputs = vector_for(vector, model.card.feature_names, analysis.gpu).model_inputs()
        row = inputs.reshape(1, -1).astype(np.float32)
        score = median_seconds(partial(model.predict_watts, row), 500, 50)
        yield at_most(f"one scored vector, {family}", score * 1e3, 0.1, "ms")
        shap = median_seconds(partial(model.shap, row), 30, 5)
        yield at_most(f"TreeSHAP, {family}", shap * 1e3, 10.0, "ms")
        lime = median_seconds(partial(explain_lime, model, row[0]), 10, 2)
        yield at_most(f"LIME, {family}", lime * 1e3, 100.0, "ms")
