"""Measurements to retrain on: what a packaged model predicts, shifted as another board might be."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
import numpy as np

from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore

GPU = "tesla-k20"
SCHEMA = "alavani2023"
FAMILY = "catboost"


@cache
def _model() -> BoostedPowerModel:
    return BoostedPowerModel(ArtifactStore().find(GPU, "power", FAMILY, SCHEMA))


def table(
    rows: int = 2000,
    *,
    shift: float = 1.15,
    kernels: int = 40,
    shuffled: bool = False,
    seed: int = 0,
    board: str | None = None,
) -> bytes:
    """CSV of ``rows`` launches of ``kernels`` kernels; ``shuffled`` deals the watts out anew."""
    generator = np.random.default_rng(seed)
    model = _model()
    points = np.array(model.background.points)
    kernel = np.arange(rows) % kernels
    vectors = points[kernel] * generator.uniform(0.95, 1.05, (rows, points.shape[1]))
    watts = model.predict_watts(vectors) * shift * np.exp(generator.normal(0, 0.01, rows))
    if shuffled:
        watts = generator.permutation(watts)
    text = io.StringIO()
    writer = csv.writer(text)
    more = [] if board is None else ["board"]
    # The grid is no input of this model, but of others that may serve.
    names = ["gpu", *more, "kernel", "power_watts", "grid_size", *model.card.feature_names]
    writer.writerow(names)
    for at in range(rows):
        label = [] if board is None else [board]
        values = [repr(float(value)) for value in vectors[at]]
        named = [GPU, *label, f"kernel_{kernel[at]}", repr(float(watts[at])), 1000 + kernel[at]]
        writer.writerow([*named, *values])
    return text.getvalue().encode()


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip of files by name."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return archive.getvalue()


def upload(client: httpx.Client, content: bytes, **form: str) -> str:
    """Upload a table without a wrong row, or a zip of one and PTX; the batch's id."""
    if not content.startswith(b"PK"):
        form = {"schema": SCHEMA, **form}
    answer = client.post("/measurements", files={"file": ("rows", content)}, data=form)
    assert answer.status_code in (200, 201), answer.text
    assert answer.json()["rejected"] == 0
    batch: str = answer.json()["id"]
    return batch


def result_of(client: httpx.Client, accepted: httpx.Response) -> dict[str, Any]:
    """The result of a retraining that was accepted."""
    assert accepted.status_code == 202, accepted.text
    job = ended(client, accepted.headers["Location"])
    assert job["state"] == "done", job["error"]
    result: Any = job["result"]
    return dict(result)


def ended(client: httpx.Client, path: str, seconds: float = 300) -> dict[str, object]:
    """A job once it has ended."""
    until = time.monotonic() + seconds
    while True:
        job: dict[str, object] = client.get(path).json()
        if job["state"] in ("done", "failed", "cancelled"):
            return job
        assert time.monotonic() < until, job
        time.sleep(0.1)
