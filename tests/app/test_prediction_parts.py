"""The short cuts of the prediction service change nothing but its speed."""

from __future__ import annotations

import math

import pytest

from wattcast.app.services import Services
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import PtxError, ServiceError
from wattcast.features.ptx import read_module
from wattcast.features.schemas import list_schemas
from wattcast.predictor import parts
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.memory import ENTRY_BYTES, Memory, ModuleCache, module_bytes
from wattcast.predictor.parts.watts import with_registers


def analysed(services: Services, request: PredictRequest) -> KernelAnalysis:
    assert request.gpu is not None
    gpu = services.gpus.load(request.gpu)
    return parts.analysed(services, request, services.sources.read(request, gpu), gpu)


@pytest.mark.parametrize("registers", [1, 16, 33, 64, 128])
def test_other_registers_change_two_features_alone(
    services: Services, vector_add: str, looping: str, registers: int
) -> None:
    compared = 0
    for schema in list_schemas():
        if "reg_thread" not in schema.model_fields:
            continue  # the short cut is for the published schemas
        for gpu in schema.gpus:
            if gpu not in {profile.id for profile in services.gpus.all()}:
                continue
            for ptx in (vector_add, looping):
                request = PredictRequest.model_validate(
                    {"ptx": ptx, "gpu": gpu, "launch": {"grid": [777], "block": [192]}}
                )
                analysis = analysed(services, request)
                quick = with_registers(analysis, analysis.vector(schema.id), registers)
                whole = analysis.vector(schema.id, registers_per_thread=registers)
                assert list(quick.values) == list(whole.values)
                for name, value in whole.values.items():
                    same = quick.values[name] == value
                    assert same or (math.isnan(value) and math.isnan(quick.values[name])), name
                compared += 1
    assert compared >= 10


def test_the_module_cache_holds_what_fits(vector_add: str) -> None:
    size = len(vector_add)
    each = module_bytes(read_module(f"//0\n{vector_add}")) + ENTRY_BYTES
    memory = Memory(3 * each + each // 2)
    cache = ModuleCache(memory, max_ptx_bytes=10 * size)
    texts = [f"//{n}\n" + vector_add for n in range(4)]
    read = [cache.read(text) for text in texts]
    assert cache.known(texts[0]) is None
    assert cache.known(texts[3]) is read[3]
    assert cache.place(read[3])
    assert cache.place(read[0]) is None
    assert memory.held_bytes == pytest.approx(3 * each, rel=0.01)
    assert cache.read(texts[3]) is read[3]
    assert cache.read(texts[0]).sha256 == read[0].sha256
    with pytest.raises(ServiceError, match="WATTCAST_MAX_PTX_BYTES"):
        cache.read("//" + "x" * 11 * size)
    with pytest.raises(PtxError) as caught:
        cache.read("// a\n// b\ud800")
    assert (caught.value.line, caught.value.column) == (2, 5)
