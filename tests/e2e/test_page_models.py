"""The page in a real browser: from measurements to the model that serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app import new_gpu
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, table
from tests.e2e.browser import Watched, chromium, needs_chromium, watched

pytestmark = needs_chromium

RETRAINED_MILLISECONDS = 500_000
"""Longest wait for a retraining, which gives way to everything else on the machine."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("home")
    with running(settings_at(home, job_lease_seconds=300)) as client:
        yield client


@pytest.fixture
def page(service: httpx.Client) -> Iterator[Watched]:
    with chromium() as browser, watched(browser, service) as opened:
        yield opened


def test_from_measurements_to_the_model_that_serves(
    page: Watched, service: httpx.Client, tmp_path: Path
) -> None:
    page.open("/#measurements")
    tab = page.page
    tab.wait_for_selector(f"#upload-schema option[value={SCHEMA}]", state="attached")
    tab.select_option("#upload-schema", SCHEMA)
    lines = table(300, kernels=12).decode().splitlines()
    lines.append(lines[-1].replace(GPU, "no-such-gpu"))
    file: Any = {"name": "rows.csv", "mimeType": "text/csv", "buffer": "\n".join(lines).encode()}
    tab.set_input_files("#upload-file", file)
    tab.wait_for_selector("#upload-check td:has-text('no-such-gpu')")
    assert "300 rows would be taken, 1 refused" in tab.inner_text("#upload-check")
    assert service.get("/measurements").json() == []  # nothing is stored yet
    page.check_access("upload")
    tab.click("#upload")
    tab.wait_for_selector("#batches tbody tr")
    (batch,) = service.get("/measurements").json()
    assert (batch["accepted"], batch["rejected"]) == (300, 1)
    tab.select_option("#retrain-gpu", GPU)
    tab.select_option("#retrain-family", "catboost")
    tab.uncheck("#retrain-promote")
    tab.click("#retrain")
    tab.wait_for_selector("#job-stage:has-text('running')")
    tab.wait_for_selector("#job-done, #job .error", timeout=RETRAINED_MILLISECONDS)
    assert "is a candidate" in tab.inner_text("#job")
    page.check_access("retrained")
    tab.click("#tab-models")
    tab.select_option("#models-gpu", GPU)
    tab.wait_for_selector("#champion:has-text('packaged default')")
    tab.click("#versions tr:has-text('uploads') button")
    tab.wait_for_selector("#champion:has-text('uploads')")
    (place,) = service.get(f"/models/{GPU}/power/registry").json()["places"]
    assert place["champion"]["source"] == "uploads"
    page.check_access("models")
    tab.set_viewport_size({"width": 360, "height": 900})
    page.check_width("models")
    tab.screenshot(path=tmp_path / "models-360.png", full_page=True)
    tab.click("#serving button:has-text('Roll back')")
    tab.wait_for_selector("#champion:has-text('packaged default')")
    tab.click("#tab-measurements")
    page.check_width("measurements")
    tab.screenshot(path=tmp_path / "measurements-360.png", full_page=True)
    page.check_quiet()


def test_what_corrects_times_is_shown_and_taken_back(
    page: Watched, service: httpx.Client, vector_add: str, looping: str, tmp_path: Path
) -> None:
    page.open("/#models")
    tab = page.page
    tab.select_option("#models-gpu", new_gpu.GPU)
    tab.wait_for_selector("#versions:has-text('No power model of this GPU has been trained')")
    kernels = {"add.ptx": vector_add, "loop.ptx": looping}
    results = new_gpu.retrained(service, new_gpu.measured(service, kernels))
    assert results["time"]["promoted"]
    tab.select_option("#models-target", "time")
    tab.wait_for_selector("#champion:has-text('(uploads)')")
    cells = tab.locator("#versions tbody tr:has-text('(uploads)') td").all_inner_texts()
    error, uncorrected = float(cells[3]), float(cells[4])
    assert error < 3 < uncorrected
    page.check_access("models of time")
    tab.set_viewport_size({"width": 360, "height": 900})
    page.check_width("models")
    tab.screenshot(path=tmp_path / "models-time-360.png", full_page=True)
    tab.click("#serving button:has-text('Roll back')")
    tab.wait_for_selector("#champion:has-text('default time model, uncorrected')")
    page.check_quiet()
