"""A GPU that nobody measured, and a board of it whose measurements a retraining learns from."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import numpy as np

from tests.app.measured import result_of, zipped
from tests.app.test_problems import json_of

GPU = "a100-sxm4-80gb"
OPTIONS: dict[str, Any] = {"gpu": GPU, "mode": "new_gpu", "targets": ["power", "time"]}
WATTS, SECONDS = 0.6, 1.5
"""What the board takes of what is predicted for its product."""


def launches() -> list[dict[str, Any]]:
    """Two kernels at 24 sizes or loop lengths, each of which counts as a kernel of its own."""
    found = []
    for size in range(12):
        for block in (128, 256, 512):
            common = {"block": block, "loops": {}}
            found.append({**common, "ptx": "add.ptx", "grid": 2 ** (size + 4)} | {"group": size})
            found.append(
                {**common, "ptx": "loop.ptx", "grid": 2048, "group": 100 + size}
                | {"loops": {"default": 2**size}}
            )
    return found


def body_of(kernels: dict[str, str], launch: dict[str, Any], gpu: str = GPU) -> dict[str, Any]:
    """A request about a launch at the default clocks."""
    return {
        "ptx": kernels[launch["ptx"]],
        "gpu": gpu,
        "launch": {"grid": [launch["grid"]], "block": [launch["block"]]},
        "loops": launch["loops"],
    }


def answer(
    client: httpx.Client, kernels: dict[str, str], launch: dict[str, Any], **more: object
) -> dict[str, Any]:
    told = json_of(client.post("/predict", json={**body_of(kernels, launch), **more}))
    del told["id"]
    return told


def measured(
    client: httpx.Client,
    kernels: dict[str, str],
    *,
    power: bool = True,
    time: bool = True,
) -> bytes:
    """A zip of what the board of this test draws and takes, within a percent or two."""
    generator = np.random.default_rng(4)
    asked = launches()
    predicted = [answer(client, kernels, launch) for launch in asked]
    noise = np.exp(generator.normal(0, 0.01, (2, len(asked))))
    watts = WATTS * noise[0] * [one["power"]["watts"] for one in predicted]
    seconds = SECONDS * noise[1] * [one["time"]["seconds"] for one in predicted]
    text = io.StringIO()
    writer = csv.writer(text)
    names = ("gpu", "ptx", "grid", "block", "loops", "kernel_group", "power_watts", "time_seconds")
    writer.writerow(names)
    for launch, one, other in zip(asked, watts.tolist(), seconds.tolist(), strict=True):
        told = (launch["ptx"], launch["grid"], launch["block"], json.dumps(launch["loops"]))
        values = (repr(one) if power else "", repr(other) if time else "")
        writer.writerow((GPU, *told, f"kernel_{launch['group']}", *values))
    return zipped({"rows.csv": text.getvalue(), **kernels})


def retrained(client: httpx.Client, content: bytes, **options: object) -> dict[str, Any]:
    """The result of a retraining on an upload in the same request."""
    accepted = client.post(
        "/retrain", files={"file": ("rows", content)}, data={**OPTIONS, **options}
    )
    result = result_of(client, accepted)
    return {one["target"]: one for one in (result, *result.get("also", ()))}
