"""Forms that take no code, in a real browser: a library operator, and a language model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.app import lab, new_gpu
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.measured import GPU, SCHEMA, table
from tests.e2e.browser import SCHEMES, Watched, needs_chromium
from wattcast.app.demo import SOLVED

pytestmark = needs_chromium


def opened(page: Watched, name: str) -> Page:
    """The view with the example that it opens on."""
    page.open()
    page.view(name)
    page.page.wait_for_selector(f"#{name}-result:not([hidden])")
    return page.page


def answered(tab: Page, name: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Press the button: what was sent, and what came back once it is shown."""
    with tab.expect_response(f"**{path}") as response:
        tab.click(f"#{name}-form button[type=submit]")
    answer: dict[str, Any] = json.loads(response.value.body())
    sent: dict[str, Any] = json.loads(response.value.request.post_data or "")
    tab.wait_for_selector(f"#{name}-busy:empty", state="attached")
    return sent, answer


@pytest.mark.parametrize("name", ["operator", "language"])
def test_each_opens_on_its_solved_example_and_asks_the_same(page: Watched, name: str) -> None:
    solved = json.loads(SOLVED.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    tab = opened(page, name)
    shown = tab.inner_text(f"#{name}-numbers")
    sent, answer = answered(tab, name, "/predict" if name == "operator" else "/language-models")
    ends = [[each["energy"][end] for end in ("joules", "low", "high")]
            for each in (answer, solved["prediction"])]  # fmt: skip
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)  # last digits are the processor's
    assert tab.inner_text(f"#{name}-numbers") == shown
    asked = solved["request"]
    for member in (set(asked) & set(sent)) - {"operator"}:
        assert sent[member] == asked[member]
    assert sent.get("operator") == asked.get("operator")
    page.check_access(name)
    assert not page.complaints
    assert not page.foreign


def test_an_operator_of_another_kind_is_asked_with_its_own_fields(
    page: Watched, service: httpx.Client
) -> None:
    tab = opened(page, "operator")
    tab.select_option("#operator-name", "attention")
    shape = tab.locator("#operator-form fieldset:not([hidden])")
    assert shape.count() == 1
    shape.locator("[name=phase]").select_option("decode")
    shape.locator("[name=heads]").fill("32")
    shape.locator("[name=kv_heads]").fill("8")
    shape.locator("[name=cached_tokens]").fill("4096")
    tab.fill("#operator-form [name=gpu]", "h200")
    sent, answer = answered(tab, "operator", "/predict")
    assert sent == {
        "gpu": "h200",
        "operator": {
            **{"name": "attention", "phase": "decode", "heads": 32, "kv_heads": 8},
            **{"cached_tokens": 4096, "causal": True, "dtype": "bfloat16", "kv_dtype": "bfloat16"},
        },
    }
    assert "attention on h200-sxm5" in tab.inner_text("#operator-title")
    tab.click("#operator-facts a")
    tab.wait_for_selector("#result-title:has-text('attention')")
    tab.wait_for_selector("#waterfall")
    assert f"prediction={answer['id']}" in tab.url
    assert not page.complaints


def test_errors_stand_beside_the_button(page: Watched) -> None:
    tab = opened(page, "operator")
    tab.fill("#operator-form [name=gpu]", "no-such-board")
    answered(tab, "operator", "/predict")
    assert "no-such-board" in tab.inner_text("#operator-error")
    tab = opened(page, "language")
    tab.fill("#language-config", "{")
    tab.click("#language-form button[type=submit]")
    tab.wait_for_selector("#language-error:has-text('JSON')")
    tab.fill("#language-config", '{"hidden_size": "<b>4</b>"}')
    answered(tab, "language", "/language-models")
    assert "not '<b>4</b>'" in tab.inner_text("#language-error")


def test_a_config_from_a_file_over_power_limits(page: Watched) -> None:
    tab = opened(page, "language")
    config = json.loads(tab.input_value("#language-config")) | {"num_hidden_layers": 2}
    file: Any = {"name": "config.json", "mimeType": "application/json"}
    tab.set_input_files("#language-file", {**file, "buffer": json.dumps(config).encode()})
    expect(tab.locator("#language-config")).to_have_value(json.dumps(config))
    tab.fill("#language-form [name=batches]", "")
    tab.fill("#language-form [name=power_limits_watts]", "400, 500, 700")
    sent, answer = answered(tab, "language", "/language-models")
    assert sent["power_limits_watts"] == [400, 500, 700]
    assert answer["model"]["layers"] == 2
    tab.wait_for_selector("#language-curve:has-text('Power limit, W') .scatterlayer .trace")
    tab.wait_for_selector("#language-operators .barlayer .trace")
    rows = tab.locator("#language-tables tbody").last.locator("tr")
    assert rows.count() == 3
    assert not page.complaints


# --- The page in a real browser: from measurements to the model that serves

RETRAINED_MILLISECONDS = 500_000
"""Longest wait for a retraining, which gives way to everything else on the machine."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("home")
    with running(settings_at(home, job_lease_seconds=300)) as client:
        yield client


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
