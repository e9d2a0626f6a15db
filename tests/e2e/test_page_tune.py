"""The tab Tune in a real browser: a space is predicted, measurements change what comes next."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.app.test_tune import KERNEL, SIZE, SPACE
from tests.e2e.browser import PATIENCE_MILLISECONDS, SCHEMES, Watched, needs_chromium
from tests.needs import needs_nvrtc
from wattcast.predictor.tuning_files import read_tuning, t4_text

pytestmark = needs_chromium

OWN = {
    "tune_params": {"block_size_x": [64, 128, 256, 512, 2048], "core_mhz": [1410, 1005]},
    "problem_size": [SIZE],
}


def give(page: Watched, space: dict[str, Any]) -> Page:
    """The demonstration's kernel and a space of it, and the tab Tune open."""
    page.vector_add()
    tab = page.page
    tab.select_option("#gpu", "a100-sxm4-80gb")
    page.view("tune")
    tab.fill("#tune-space", json.dumps(space))
    tab.select_option("#tune-objective", "time")
    return tab


def predict(tab: Page) -> None:
    tab.click("#tune-form button[type=submit]")
    expect(tab.locator("#tune-stop")).to_be_hidden(timeout=3 * PATIENCE_MILLISECONDS)
    drawn(tab)


def drawn(tab: Page) -> None:
    tab.wait_for_selector("#tune-parallel svg .pieces line", state="attached")
    tab.wait_for_selector("#tune-scatter .scatterlayer .trace", state="attached")


def proposed(tab: Page) -> list[str]:
    return tab.locator("#tune-next tbody th").all_inner_texts()


def take(tab: Page) -> None:
    with tab.expect_response("**/tunings"):
        tab.click("#tune-take")


def saved(tab: Page, row: str, kind: str) -> str:
    with tab.expect_download() as download:
        tab.locator(f"{row} button.save", has_text=re.compile(rf"^{kind}")).first.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


@pytest.mark.parametrize("visits", [1, 2])
def test_what_is_measured_changes_what_comes_next(page: Watched, visits: int) -> None:
    for _ in range(visits):
        page.open()
    tab = give(page, OWN)
    predict(tab)
    assert tab.inner_text("#tune-count .value") == "8 of 10"
    assert "2 refused" in tab.inner_text("#tune-count")
    assert "2 cannot be predicted" in tab.inner_text("#tune-refused-title")
    before = proposed(tab)
    assert len(before) == 5
    tab.fill("#tune-next tbody tr:nth-child(1) [name=seconds]", "310 us")
    tab.fill("#tune-next tbody tr:nth-child(1) [name=joules]", "0.04")
    tab.check("#tune-next tbody tr:nth-child(2) [name=failed]")
    take(tab)
    expect(tab.locator("#tune-runs")).to_contain_text("1 failed")
    after = proposed(tab)
    assert after != before
    assert not {before[0], before[1]} & set(after)
    assert tab.inner_text("#tune-least .value") == "310 µs"
    # What was typed is what is exported, as Kernel Tuner writes it.
    text = saved(tab, "#tune-export", "JSON")
    run = read_tuning(text)
    named = [", ".join(f"{n}={v}" for n, v in one.parameters.items()) for one in run.configurations]
    assert named == before[:2]
    first, second = run.configurations
    assert first.time_seconds == pytest.approx(310e-6)
    assert first.energy_joules == 0.04
    assert not second.valid
    assert json.loads(text) == json.loads(t4_text(run.configurations))
    # The figures show the three kinds, and every configuration can be saved.
    traces = tab.evaluate(
        "document.querySelector('#tune-scatter').data.filter((one) => one.name)"
        ".map((one) => [one.name, one.x.length, one.marker.symbol])"
    )
    assert traces == [
        ["predicted only", 1, "circle-open"], ["failed", 1, "x"], ["measured", 1, "diamond"],
        ["next", 5, "star"],
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(saved(tab, "#tune-all", "CSV"))))
    assert len(rows) == 10
    assert [row["measured, s"] for row in rows if row["measured, s"]] == ["0.00031"]
    assert [row["status"] for row in rows].count("refused") == 2
    for kind in ("SVG", "PNG", "CSV", "HTML"):
        with tab.expect_download():
            tab.locator("#tune-parallel-saves button.save", has_text=kind).click()
    page.check_quiet()


def test_a_reload_keeps_the_work_and_a_file_brings_measurements(page: Watched) -> None:
    page.open()
    tab = give(page, OWN)
    predict(tab)
    asked: list[Any] = []

    def seen(request: Request) -> None:
        if "/tunings" in request.url:
            asked.append(request.post_data_json)

    tab.on("request", seen)
    first = proposed(tab)
    text = t4_text(read_tuning(json.dumps({"results": [
        {"configuration": {"block_size_x": 256, "core_mhz": 1005},
         "measurements": [{"name": "time", "value": 0.31, "unit": "ms"}]},
    ]})).configurations)  # fmt: skip
    with tab.expect_response("**/tunings"):
        file: Any = {"name": "t4.json", "mimeType": "application/json", "buffer": text.encode()}
        tab.set_input_files("#tune-results-file", file)
    expect(tab.locator("#tune-measured tbody tr")).to_have_count(1)
    told = proposed(tab)
    assert told != first
    tab.reload()
    tab.wait_for_selector("html[data-ready=true]")
    page.view("tune")  # a link to the prediction of the form's kernel opens that first
    drawn(tab)
    assert proposed(tab) == told
    assert len(asked[-1]["predicted"]) == 10  # nothing is predicted again
    assert "310 µs" in tab.inner_text("#tune-measured")
    assert tab.input_value("#tune-objective") == "time"
    assert tab.locator("#tune-on").is_hidden()
    # Taken back, all is as before; forgotten, nothing is left.
    with tab.expect_response("**/tunings"):
        tab.click("#tune-measured tbody button")
    expect(tab.locator("#tune-measured-panel")).to_be_hidden()
    assert proposed(tab) == first
    tab.click("#tune-clear")
    assert tab.locator("#tune-result").is_hidden()
    tab.reload()
    tab.wait_for_selector("html[data-ready=true]")
    assert tab.input_value("#tune-space") == ""
    page.check_quiet()


def test_wrong_entries_are_told_and_change_nothing(page: Watched) -> None:
    page.open()
    tab = give(page, {**OWN, "restrictions": ["work > 1"]})
    tab.click("#tune-form button[type=submit]")
    expect(tab.locator("#tune-error")).to_contain_text("work is no tunable parameter")
    page.complaints.clear()  # the refusal is a console error
    tab.fill("#tune-space", json.dumps(OWN))
    predict(tab)
    expect(tab.locator("#tune-error")).to_be_hidden()
    told = tab.locator("#tune-measured-error")
    tab.click("#tune-take")
    expect(told).to_have_text("Enter a time, an energy or a failure first.")
    tab.fill("#tune-next tbody tr:nth-child(1) [name=seconds]", "quick")
    tab.click("#tune-take")
    expect(told).to_contain_text("quick: a quantity in s is taken")
    tab.fill("#tune-next tbody tr:nth-child(1) [name=seconds]", "")
    tab.fill("#tune-next tbody tr:nth-child(1) [name=joules]", "4 mJ")
    tab.click("#tune-take")
    expect(told).to_contain_text("was not measured")
    assert tab.locator("#tune-measured-panel").is_hidden()
    assert tab.input_value("#tune-next tbody tr:nth-child(1) [name=joules]") == "4 mJ"


def test_by_keyboard_brush_widths_and_schemes(page: Watched) -> None:
    page.open()
    tab = give(page, OWN)
    tab.focus("#tune-objective")
    tab.locator("#tune-form button[type=submit]").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#tune-stop")).to_be_hidden()
    drawn(tab)
    tab.focus("#tune-next [name=seconds]")
    tab.keyboard.type("0.3 ms")
    with tab.expect_response("**/tunings"):
        tab.keyboard.press("Enter")
    expect(tab.locator("#tune-measured tbody tr")).to_have_count(1)
    tab.click("#tune-result summary:has-text('Choose values')")
    kept = tab.locator("#tune-kept")
    assert kept.inner_text() == "8 of 10 configurations are shown."
    tab.select_option("#tune-filter-1", label="1005")
    expect(kept).to_have_text("4 of 10 configurations are shown.")
    # A pointer on an axis does the same; once more takes it back.
    box = tab.locator("#tune-parallel svg").bounding_box()
    assert box is not None
    for shown in ("1 of 10", "4 of 10"):
        tab.mouse.click(box["x"] + 46, box["y"] + box["height"] - 14)
        expect(kept).to_have_text(f"{shown} configurations are shown.")
    for width in (360, 1440):
        tab.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            tab.emulate_media(color_scheme=scheme)
            page.check_width(f"tune {width} {scheme}")
            page.check_access(f"tune {width} {scheme}")
    page.check_quiet()


def test_it_opens_on_the_launch_at_lower_clocks(page: Watched) -> None:
    page.open()
    tab = page.page
    page.settled()
    page.view("tune")
    tab.wait_for_function("() => document.querySelector('#tune-space').value")
    space = json.loads(tab.input_value("#tune-space"))
    assert space["problem_size"] == [2048, 512]  # 64x64 blocks of 32x8
    assert space["tune_params"]["core_mhz"][::4] == [1380, 828]
    predict(tab)
    assert tab.inner_text("#tune-count .value") == "5 of 5"
    page.check_quiet()


@needs_nvrtc
@pytest.mark.slow
def test_variants_of_a_source(page: Watched) -> None:
    page.open()
    tab = page.page
    file: Any = {"name": "scale.cu", "mimeType": "text/plain", "buffer": KERNEL.encode()}
    tab.set_input_files("#source-file", file)
    tab.wait_for_selector("#source-note:has-text('scale.cu')")
    tab.select_option("#gpu", "a100-sxm4-80gb")
    page.view("tune")
    space: Any = {
        "name": "space.json",
        "mimeType": "application/json",
        "buffer": json.dumps(SPACE).encode(),
    }
    tab.set_input_files("#tune-space-file", space)
    tab.fill("#tune-divisors", "block_size_x, work")
    tab.fill("#tune-limit", "8")
    predict(tab)
    assert tab.inner_text("#tune-count .value") == "8 of 19"
    expect(tab.locator("#tune-on")).to_be_hidden()
    tab.fill("#tune-limit", "100")
    predict(tab)  # the same question goes on
    assert tab.inner_text("#tune-count .value") == "19 of 19"
    page.check_quiet()


@pytest.mark.slow
def test_twenty_thousand_configurations_stay_fluid(page: Watched) -> None:
    page.open()
    values = {**{name: [*range(10)] for name in "abcd"}, "block_size_x": [64, 128]}
    space = {"tune_params": values, "problem_size": [SIZE]}
    tab = give(page, space)
    tab.fill("#tune-limit", "16")
    predict(tab)
    told = tab.inner_text("#tune-count .value")  # and what is proposed
    assert 16 <= int(told.removesuffix(" of 20000")) <= 31
    assert tab.locator("#tune-parallel svg .pieces line").count() < 2000
    marks = tab.evaluate("document.querySelector('#tune-scatter').data.map((one) => one.x.length)")
    assert sum(marks) < 4000
    tab.click("#tune-result summary:has-text('Choose values')")
    milliseconds = tab.evaluate(
        """() => {
          const chosen = document.querySelector("#tune-filter-0");
          const start = performance.now();
          chosen.value = chosen.options[3].value;
          chosen.dispatchEvent(new Event("change"));
          document.querySelector("#tune-parallel svg").getBoundingClientRect();
          return performance.now() - start;
        }"""
    )
    print(f"a brush over 20,000 configurations: {milliseconds:.0f} ms")
    expect(tab.locator("#tune-kept")).to_have_text("2000 of 20000 configurations are shown.")
    page.check_quiet()
