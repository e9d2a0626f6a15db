"""A board of a product whose physical model answers, measured at two core clocks."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import numpy as np

from tests.app.measured import zipped
from tests.app.new_gpu import body_of, launches
from tests.app.test_problems import json_of

GPU = "tesla-v100"
BOARD = "lab-7"
DRAWS = 1.2
"""What the board draws of what is predicted for its product."""

CLOCKS = ({}, {"core_mhz": 1005})
"""The default clocks, and lower ones, at which every other launch of a kernel ran."""


def power(client: httpx.Client, body: dict[str, Any]) -> float:
    """Watts that a request is answered."""
    return float(json_of(client.post("/predict", json=body))["power"]["watts"])


def measured(client: httpx.Client, kernels: dict[str, str], draws: float = DRAWS) -> bytes:
    """A zip of a table and PTX with the columns that are needed, clocks and groups, and no more."""
    generator = np.random.default_rng(7)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("ptx", "grid", "block", "loops", "kernel_group", "core_mhz", "power_watts"))
    for number, launch in enumerate(launches()):
        clocks = CLOCKS[number // 2 % 2]
        body = body_of(kernels, launch, GPU) | ({"clocks": clocks} if clocks else {})
        watts = draws * power(client, body) * float(np.exp(generator.normal(0, 0.01)))
        told = (launch["ptx"], launch["grid"], launch["block"], json.dumps(launch["loops"]))
        group = f"kernel_{launch['group']}"
        writer.writerow((*told, group, clocks.get("core_mhz", ""), repr(watts)))
    return zipped({"rows.csv": text.getvalue(), **kernels})
