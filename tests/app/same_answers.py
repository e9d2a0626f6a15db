"""Answers about fixture kernels, in any order and by any number of threads, as one JSON document.

    python -m tests.app.same_answers SEED THREADS KERNEL... > answers.json

Two such documents are compared byte for byte: ``test_determinism``.
"""

from __future__ import annotations

import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import to_json

from benchmarks.execution import hint
from studies.end_to_end import programs
from tests.app.conftest import settings_at
from tests.fixtures.kernels.data import Buffer, FixtureKernel, Shape, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.app.services import Services
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

GPU = "a100-sxm4-80gb"
EFFORT = 30_000_000
"""Small, so that the longest fixtures end where the budget does: that place must not move."""

PUBLIC = "public"
"""Stands for the public programs among the names."""


def body(kernel: FixtureKernel, shape: Shape) -> dict[str, Any]:
    """The request for one launch."""
    arguments: dict[str, Any] = {}
    for index, value in enumerate(shape.arguments.values()):
        if isinstance(value, Buffer):
            told = hint(value)
            arguments[str(index)] = {
                name: getattr(told, name) for name in ("elements", "values", "low", "high")
            }
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    launch = {
        "grid": shape.grid,
        "block": shape.block,
        "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        "arguments": arguments,
    }
    ptx = ptx_path(kernel.source, targets(kernel.source)[-1]).read_text(encoding="utf-8")
    return {"ptx": ptx, "kernel": kernel.entry, "gpu": GPU, "launch": launch,
            "analysis_effort": EFFORT}  # fmt: skip


def answers(seed: int, threads: int, names: list[str]) -> dict[str, bytes]:
    """JSON by kernel and shape; ``seed`` shuffles who is asked about first."""
    wanted = [
        (f"{kernel.name}/{number}", body(kernel, shape))
        for kernel in KERNELS
        if kernel.name in names
        for number, shape in enumerate((*kernel.shapes[1:], kernel.large))
    ]
    if PUBLIC in names:
        wanted += [
            (f"{PUBLIC}/{program.name}", program.request(GPU, analysis_effort=EFFORT))
            for program in programs()
        ]
    random.Random(seed).shuffle(wanted)
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(threads) as pool:
        services = Services(settings_at(Path(home)))

        def ask(one: tuple[str, dict[str, Any]]) -> tuple[str, bytes]:
            answer = predict(services, PredictRequest.model_validate(one[1])).data()
            del answer["id"]
            return one[0], to_json(answer, inf_nan_mode="constants")

        try:
            return dict(sorted(pool.map(ask, wanted)))
        finally:
            services.close()


if __name__ == "__main__":
    found = answers(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    sys.stdout.buffer.write(b"\n".join(name.encode() + b" " + text for name, text in found.items()))
