"""The page in a real browser: from measurements to the model that serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app import lab, new_gpu
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, table
from tests.e2e.browser import SCHEMES, Watched, chromium, needs_chromium, watched

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


@pytest.mark.slow
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
    tab.select_option("#retrain-mode", "continue")
    tab.select_option("#retrain-family", "catboost")
    tab.uncheck("#retrain-promote")
    tab.click("#retrain")
    tab.wait_for_selector(".planned:has-text('300 rows of 12 kernels train')")
    assert service.get("/jobs").json() == []  # nothing has started
    page.check_access("plan")
    tab.click("#retrain-start")
    tab.wait_for_selector("#job-stage:has-text('running')")
    tab.wait_for_selector("#job-done, #job .error", timeout=RETRAINED_MILLISECONDS)
    assert "is a candidate" in tab.inner_text("#job")
    page.check_access("retrained")
    page.view("models")
    tab.select_option("#models-gpu", GPU)
    tab.wait_for_selector("#champion:has-text('packaged default')")
    tab.click("#versions tr:has-text('uploads') button")
    tab.wait_for_selector("dialog tr:has-text('Would serve')")
    assert "Serves now" in tab.inner_text("dialog")
    page.check_access("promote")
    assert service.get(f"/models/{GPU}/power/registry").json()["promotions"] == []
    tab.click("#promote")
    tab.wait_for_selector("#champion:has-text('uploads')")
    (place,) = service.get(f"/models/{GPU}/power/registry").json()["places"]
    assert place["champion"]["source"] == "uploads"
    page.check_access("models")
    tab.set_viewport_size({"width": 360, "height": 900})
    page.check_width("models")
    tab.screenshot(path=tmp_path / "models-360.png", full_page=True)
    tab.click("#serving button:has-text('Roll back')")
    tab.wait_for_selector("#champion:has-text('packaged default')")
    page.view("measurements")
    page.check_width("measurements")
    tab.screenshot(path=tmp_path / "measurements-360.png", full_page=True)
    page.check_quiet()


@pytest.mark.slow
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
    error, uncorrected = float(cells[4]), float(cells[5])
    assert error < 3 < uncorrected
    page.check_access("models of time")
    tab.set_viewport_size({"width": 360, "height": 900})
    page.check_width("models")
    tab.screenshot(path=tmp_path / "models-time-360.png", full_page=True)
    tab.click("#serving button:has-text('Roll back')")
    tab.wait_for_selector("#champion:has-text('default time model, uncorrected')")
    page.check_quiet()


@pytest.mark.slow
def test_a_board_of_ones_own_from_its_measurements_to_its_answers_and_back(
    page: Watched, service: httpx.Client, vector_add: str, looping: str, tmp_path: Path
) -> None:
    content = lab.measured(service, {"add.ptx": vector_add, "loop.ptx": looping})
    page.open("/#measurements")
    tab = page.page
    tab.select_option("#upload-gpu", lab.GPU)
    tab.fill("#upload-board", lab.BOARD)
    file: Any = {"name": "rows.zip", "mimeType": "application/zip", "buffer": content}
    tab.set_input_files("#upload-file", file)
    tab.wait_for_selector("#upload-check:has-text('72 rows would be taken')")
    tab.click("#upload")
    tab.wait_for_selector("#upload-done")
    # What would be done is shown before anything starts; the mode is the one that is preset.
    assert tab.input_value("#retrain-mode") == "auto"
    tab.select_option("#retrain-gpu", lab.GPU)
    tab.fill("#retrain-board", lab.BOARD)
    tab.uncheck("#retrain-promote")
    tab.focus("#retrain")
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".planned:has-text('72 rows of 24 kernels train')")
    plan = tab.inner_text(".planned")
    assert "the physical model is calibrated" in plan
    assert "No row is left out" in plan
    tab.click(".planned summary")
    page.check_access("plan")
    tab.focus("#retrain-start")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#job-stage")
    tab.wait_for_selector("#job-done, #job .error", timeout=RETRAINED_MILLISECONDS)
    assert "is a candidate" in tab.inner_text("#job")
    # Old and new on kernels left out, as a picture and as a table.
    tab.wait_for_selector("#job-done .figure .scatterlayer .point")
    tab.click("#job-done .held-out summary")
    first = tab.locator("#job-done .held-out tbody tr").first.locator("td").all_inner_texts()
    old, new = (float(text.removesuffix(" %")) for text in first[1:])
    assert new < 6 < old
    for scheme in SCHEMES:
        tab.emulate_media(color_scheme=scheme)
        page.check_access(f"retrained, {scheme}")
    tab.set_viewport_size({"width": 390, "height": 900})
    page.check_width("retrained")
    tab.screenshot(path=tmp_path / "retrained-390.png", full_page=True)
    tab.set_viewport_size({"width": 1280, "height": 900})
    # Promoted by hand, it answers for its board, wherever a model answers.
    page.view("models")
    tab.select_option("#models-gpu", lab.GPU)
    tab.click("#versions tr:has-text('uploads') button")
    tab.click("#promote")
    tab.wait_for_selector(f"#serving:has-text('For board {lab.BOARD}')")
    page.check_access("models")
    page.view("predict")
    tab.select_option("#gpu", lab.GPU)
    page.predict_example()
    general = watts(page)
    tab.click("#kernel-form summary:has-text('More settings')")
    tab.focus("#board")
    tab.wait_for_selector(f"#boards option[value='{lab.BOARD}']", state="attached")
    tab.fill("#board", lab.BOARD)
    predict_again(page)
    own = watts(page)
    assert own / general == pytest.approx(lab.DRAWS, rel=0.03)
    calls = {"sweep": "/sweep", "clocks": "/dvfs", "compare": "/compare"}
    for view, path in calls.items():
        page.view(view)
        if view == "sweep":
            tab.fill("#sweep-blocks", "128, 256")
        with tab.expect_request(lambda request, path=path: request.url.endswith(path)) as asked:
            tab.click(f"#{view}-form button[type=submit]")
        body = asked.value.post_data_json
        assert (body["board"], body["model"]) == (lab.BOARD, "auto")
        tab.wait_for_selector(f"#{view}-result:visible")
        page.check_access(view)
    page.check_quiet()
    # The second visit finds the job with its verdict, and the board as it was left.
    tab.goto("about:blank")
    page.open("/#measurements")
    tab.wait_for_selector("#jobs tr:has-text('not promoted')")
    row = tab.inner_text("#jobs tbody tr")
    assert lab.BOARD in row
    assert "new_gpu" in row
    tab.click("#jobs button:has-text('Show')")
    tab.wait_for_selector("#past-done .figure .scatterlayer .point")
    page.check_access("past retraining")
    tab.set_viewport_size({"width": 390, "height": 900})
    page.check_width("measurements")
    tab.screenshot(path=tmp_path / "measurements-390.png", full_page=True)
    tab.set_viewport_size({"width": 1280, "height": 900})
    page.view("predict")
    tab.click("#kernel-form summary:has-text('More settings')")
    tab.fill("#board", lab.BOARD)
    page.predict_example()
    assert watts(page) == own
    page.view("models")
    tab.select_option("#models-gpu", lab.GPU)
    tab.click(f"#serving p:has-text('{lab.BOARD}') button")
    tab.wait_for_selector("#serving:not(:has-text('For board'))")
    page.view("predict")
    predict_again(page)
    assert watts(page) == general
    page.check_quiet()


def watts(page: Watched) -> float:
    """The power of the prediction that is shown."""
    return float(page.number("power").removesuffix(" W"))


def predict_again(page: Watched) -> None:
    """Ask again, and wait for the new answer."""
    with page.page.expect_response(lambda answer: answer.url.endswith("/predict")):
        page.page.click("#predict")
    page.page.wait_for_function("() => !document.getElementById('predict').disabled")
