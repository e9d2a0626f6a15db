"""Answers about many launches at once, and about one launch in depth."""

from __future__ import annotations

import itertools
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import Row, at_most, fact, median_seconds
from benchmarks.ptx_text import kernel

ROOT = Path(__file__).parents[1]
BLOCKS = [[16 * number] for number in range(1, 65)]


def rows() -> Iterator[Row]:
    """Every row of this part. Registers are given or estimated: ptxas is off, as it is asked once
    for each kernel, whatever is asked of it."""
    vector_add = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")
    streaming = {"ptx": vector_add}
    yield at_most("64 shapes, streaming kernel never seen", 1e3 * _sweep(streaming), 60.0, "ms")
    text = {"ptx": kernel(100), "loops": {"default": 10}, "registers_per_thread": 24}
    quick = _sweep({**text, "analysis": "symbolic"})
    yield at_most("64 shapes, 100 instructions, symbolic", quick * 1e3, 60.0, "ms")
    slow = _sweep(text, repeats=2)
    yield fact("64 shapes, 100 instructions with reuse, executed", slow * 1e3, "ms")
    yield at_most("10,000 launches, 100 instructions, symbolic", _batch(text, 10_000), 10.0, "s")
    clock = (ROOT / "tests" / "fixtures" / "ptx" / "clock.ptx").read_text(encoding="utf-8")
    yield at_most("the authors' clock kernel, new launch", 1e3 * _new_launches(clock), 5.0, "ms")
    yield from _in_depth(vector_add)
    yield from _library()


def _services() -> Any:
    from wattcast.app.services import Services
    from wattcast.app.settings import Settings

    home = Path(tempfile.gettempdir()) / "wattcast-benchmarks"
    return Services(Settings(home=home, ptxas="off"))


def _sweep(body: dict[str, Any], repeats: int = 7) -> float:
    from wattcast.predictor.messages.sweep import SweepRequest
    from wattcast.predictor.sweep import sweep

    launch = {"grid": [4096], "block": [256]}
    asked = {
        "gpu": "tesla-v100",
        "launch": launch,
        "blocks": BLOCKS,
        "include_unproven": True,
        **body,
    }
    request = SweepRequest.model_validate(asked)
    fresh = [_services() for _ in range(repeats + 1)]
    for services in fresh:
        services.power.physical(services.gpus.load("tesla-v100"))
    waiting = iter(fresh)

    def once() -> None:
        answer = sweep(next(waiting), request)
        assert len(answer["points"]) + len(answer["infeasible"]) == len(BLOCKS)

    return median_seconds(once, repeats, 1)


def _batch(body: dict[str, Any], count: int) -> float:
    """Seconds of one request with as many launches, no two alike."""
    from wattcast.predictor.batch import predict_many
    from wattcast.predictor.messages.sweep import BatchRequest

    launches = [
        {"grid": [1024 + number], "block": [256], "arguments": {"1": 100_000 + 37 * number}}
        for number in range(count)
    ]
    services = _services()
    asked = {"gpu": "tesla-v100", "launches": launches, **body}
    predict_many(services, BatchRequest.model_validate({**asked, "launches": launches[:20]}))
    start = perf_counter()
    answer = predict_many(services, BatchRequest.model_validate(asked))
    seconds = perf_counter() - start
    assert not answer["failed"]
    return seconds


def _new_launches(ptx: str, count: int = 200) -> float:
    """Median seconds of a prediction by the default models, PTX known, each launch new."""
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict_one

    services = _services()
    body: dict[str, Any] = {"ptx": ptx, "gpu": "tesla-v100"}
    waiting = (
        PredictRequest.model_validate({**body, "launch": {"grid": [64 + number], "block": [256]}})
        for number in itertools.count()
    )
    return median_seconds(lambda: predict_one(services, next(waiting)), count)


def _in_depth(ptx: str) -> Iterator[Row]:
    from wattcast.predictor.advise import advise
    from wattcast.predictor.hotspots import hotspots_of
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict_one

    services = _services()
    body = {"ptx": ptx, "gpu": "tesla-v100", "launch": {"grid": [4096], "block": [256]}}
    request = PredictRequest.model_validate({**body, "model": "physical"})
    answer = predict_one(services, request)
    hot = median_seconds(lambda: hotspots_of(services, request, answer), 20)
    yield fact("hotspots of a launch that has been predicted", hot * 1e3, "ms")
    advise(services, request)
    advice = median_seconds(lambda: advise(services, request), 10)
    yield fact("advice on a launch that has been advised on", advice * 1e3, "ms")


def _library() -> Iterator[Row]:
    """Operators and a language model on a board whose power the pooled model tells."""
    import wattcast
    from wattcast.predictor.messages.operators import OperatorBatchRequest
    from wattcast.predictor.operators import predict_operators

    gpu, tokens, services = "h100-sxm5", itertools.count(1000), _services()
    shape: dict[str, Any] = {"n": 4096, "k": 4096}
    one = median_seconds(lambda: wattcast.operator("gemm", m=next(tokens), gpu=gpu, **shape), 300)
    yield at_most("an operator, new shape", one * 1e3, 0.3, "ms")
    calls = [{"name": "gemm", "m": m, **shape} for m in range(1, 10_001)]
    many = OperatorBatchRequest.model_validate({"operators": calls, "gpu": gpu})
    seconds = median_seconds(lambda: predict_operators(services, many), 3, 1)
    yield at_most("10,000 operators", seconds, 1.0, "s")
    configs = tomllib.loads((ROOT / "tests/fixtures/language_models.toml").read_text("utf-8"))
    llama = configs["llama-3-8b"]["config"]
    told = median_seconds(lambda: wattcast.language_model(llama, gpu=gpu, prompt=next(tokens)), 30)
    yield at_most("forecast of a language model", told * 1e3, 5.0, "ms")
