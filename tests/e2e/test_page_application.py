"""The tab Application in a real browser: traces of both kinds, the timeline, what can be saved."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import FilePayload, FloatRect, Page, expect

from tests.app.test_application import SOLVER, TRAINING
from tests.app.test_application_http import zipped
from tests.e2e.browser import Watched, needs_chromium
from tests.e2e.test_page_save import saved
from tests.generated.traces import Gpu, Launch, kineto, many, nsys, training_step

pytestmark = needs_chromium


def given(page: Watched, trace: Path, *code: FilePayload, against: Path | None = None) -> Page:
    """The tab with its files chosen."""
    tab = page.page
    page.view("application")
    tab.set_input_files("#application-trace", trace)
    tab.set_input_files("#application-code", list(code))
    tab.set_input_files("#application-against", [] if against is None else [against])
    return tab


def answered(tab: Page) -> dict[str, Any]:
    """Press the button; what the service answered, once it is shown."""
    with tab.expect_response("**/applications") as response:
        tab.click("#application-form button[type=submit]")
    answer: dict[str, Any] = json.loads(response.value.body())
    tab.wait_for_selector("#application-result:not([hidden])")
    count = "1 launch," if answer["launches"] == 1 else f"{answer['launches']:,} launches"
    tab.wait_for_selector(f"#application-view:has-text('All of it: {count}')")
    return answer


def in_view(tab: Page, *words: str) -> None:
    """Wait until the timeline says so of the view."""
    told = "".join(f":has-text({json.dumps(word, ensure_ascii=False)})" for word in words)
    tab.wait_for_selector(f"#application-view{told}")


def placed(tab: Page) -> FloatRect:
    """Where the canvas is, once all of it can be pointed at."""
    canvas = tab.locator("#application-timeline canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    return box


def drawn(tab: Page) -> set[tuple[int, ...]]:
    """Colours on the canvas."""
    return {
        tuple(one)
        for one in tab.evaluate(
            """() => {
              const canvas = document.querySelector("#application-timeline canvas");
              const pen = canvas.getContext("2d");
              const {data} = pen.getImageData(0, 0, canvas.width, canvas.height);
              const seen = new Set();
              for (let at = 0; at < data.length; at += 4) seen.add(data.slice(at, at + 3).join());
              return [...seen].map((one) => one.split(",").map(Number));
            }"""
        )
    }


@pytest.mark.parametrize("visits", [1, 2])
def test_both_kinds_of_trace(
    page: Watched, service: httpx.Client, vector_add: str, visits: int
) -> None:
    for _ in range(visits):
        page.open("/#application")
    cache: FilePayload = {
        "name": "cache.zip",
        "mimeType": "application/zip",
        "buffer": zipped({"AB/vector_add.ptx": vector_add.encode(), "AB/notes.txt": b"x"}),
    }
    for trace in (TRAINING, SOLVER):
        tab = given(page, trace, cache)
        tab.fill("#application-price", "0.3")
        tab.fill("#application-currency", "EUR")
        tab.fill("#application-carbon", "380")
        told = answered(tab)
        # Coverage comes first of all that is told.
        first = tab.inner_text("#application-result").splitlines()[0]
        assert first.startswith(f"Coverage of the time of {told['launches']} launches: ")
        for one in told["coverage"]:
            assert f"{100 * one['time_share']:.1f} %" in first
        assert "by their code" in first
        numbers = tab.inner_text("#application-numbers")
        energy = told["energy"]
        for value in (energy["joules"], energy["low"], energy["high"]):
            assert f"{1000 * value:.3g} mJ" in numbers
        assert f"{told['price']['amount']:.4g}".split("e")[0] in numbers
        assert "CO2" in numbers
        mark = told["trust"]["mark"].replace("guess", "rough estimate")
        assert mark in tab.inner_text("#application-trust")
        assert "AB/vector_add.ptx" in tab.inner_text("#application-kernels")
        rows = tab.locator("#application-kernels tbody tr")
        assert rows.count() == len(told["kernels"])
        assert "945 MHz" in tab.inner_text("#application-clocks")
        assert "lock the core clock" in tab.inner_text("#application-advice")
        for part in ("operators", "streams", "steps"):
            assert tab.locator(f"#application-{part} tbody tr").count() == len(told[part])
        assert tab.locator("#application-changes-panel").is_hidden()
    page.check_access("application")
    page.check_quiet()
    tab.set_viewport_size({"width": 390, "height": 800})
    page.check_width("application")
    page.check_access("application, narrow")
    page.view("history")
    page.view("application")
    assert len(drawn(tab)) > 5
    page.check_quiet()


def test_the_place_opens_on_a_solved_example(page: Watched) -> None:
    page.open()
    tab = page.page
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.method))
    tab.click("#tab-application")
    tab.wait_for_selector("#application-view:has-text('All of it: 22 launches')")
    first = tab.inner_text("#application-numbers")
    assert "mJ" in first
    assert "vector_add.ptx" in tab.inner_text("#application-code-name")
    assert "POST" not in asked
    # Asked again, the service says the same; another trace is not taken to have the example's code.
    answered(tab)
    assert tab.inner_text("#application-numbers") == first
    tab.set_input_files("#application-trace", SOLVER)
    assert tab.inner_text("#application-code-name") == "none"
    page.check_quiet()


def test_the_timeline_is_moved_and_zoomed_by_all_means(page: Watched, tmp_path: Path) -> None:
    launches = [
        Launch("first", 0, 400_000),
        Launch("other", 600_000, 200_000, stream=8),
        Launch("second", 700_000, 300_000),
        Launch("first", 200_000, 300_000, device=1),
    ]
    trace = nsys(tmp_path / "t.sqlite", launches, gpus=(Gpu(), Gpu("NVIDIA A40", 84)))
    page.open("/#application")
    tab = given(page, trace)
    told = answered(tab)
    whole = tab.inner_text("#application-view")
    assert f"4 launches, {1000 * told['energy']['joules']:.3g} mJ in 1 ms" in whole
    # As many colours as kernels: of the two names, and of what they stand beside.
    assert {(47, 127, 193), (194, 87, 26), (43, 138, 95)} <= drawn(tab)
    canvas = tab.locator("#application-timeline canvas")
    assert "2 GPU" in (canvas.get_attribute("aria-label") or "")
    tab.focus("#application-timeline")
    for _ in range(6):
        tab.keyboard.press("ArrowUp")
    in_view(tab, "369 µs to 631 µs: 3 launches", "in 262 µs")  # 1.25^6 times as close
    tab.keyboard.press("ArrowLeft")
    in_view(tab, "337 µs to 600 µs: 2 launches")
    tab.keyboard.press("Home")
    in_view(tab, whole)
    # The wheel zooms at the pointer, here a pixel before the end.
    box = placed(tab)
    tab.mouse.move(box["x"] + box["width"] - 1, box["y"] + 40)
    for _ in range(12):
        tab.mouse.wheel(0, -200)
    in_view(tab, "to 999 µs: 1 launch,", "in 4.72 µs")
    tab.mouse.move(box["x"] + 200, box["y"] + 40)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 700, box["y"] + 40, steps=4)
    tab.mouse.up()
    in_view(tab, "to 997 µs: 1 launch,", "in 4.72 µs")
    tab.click("#application-go-all")
    in_view(tab, whole)
    tab.click("#application-go-in")
    in_view(tab, "250 µs to 750 µs: 4 launches", "in 500 µs")
    tab.click("#application-launches summary")
    rows = tab.locator("#application-launch-table tbody tr")
    expect(rows).to_have_count(4)
    by_energy = sorted(told["launch_columns"]["joules"], reverse=True)
    assert f"{1000 * by_energy[0]:.3g} mJ" in rows.first.inner_text()
    tab.click("#application-go-left")
    in_view(tab, "0 s to 500 µs: 2 launches")
    expect(rows).to_have_count(2)  # the table follows
    # What is pointed at is named.
    tab.click("#application-go-all")
    in_view(tab, whole)
    box = placed(tab)
    tab.mouse.move(box["x"] + 78 + 0.1 * (box["width"] - 78), box["y"] + 20 + 96 + 7)
    assert tab.inner_text("#application-pointed").startswith("first: 400 µs from 0 s")
    page.check_access("application, two boards")
    page.check_quiet()


def test_at_every_distance_the_joules_are_those_of_the_answer(
    page: Watched, tmp_path: Path
) -> None:
    """Power is drawn from launches that overlap; what is in view is what the board draws."""
    page.open("/#application")
    tab = given(page, kineto(tmp_path / "t.json", many(2_000)))
    told = answered(tab)
    apart = [Launch("k", 10_000 + 50_000 * at, 40_000 - 9_000 * (at % 3)) for at in range(40)]
    answers = [told, answered(given(page, kineto(tmp_path / "apart.json", apart)))]
    for answer in answers:
        line = answer["devices"][0]["timeline"]
        ends = [*line["start_seconds"], answer["span_seconds"]]
        whole, parts = tab.evaluate(
            """async ([answer, ends]) => {
              const main = document.querySelector("script[type=module]").src;
              const {bandsOf} = await import(main.replace("main.js", "timeline.js"));
              const [{steps}] = bandsOf(answer);
              const until = ends.map((end) => steps.until(end));
              return [until.at(-1), until.slice(1).map((end, at) => end - until[at])];
            }""",
            [answer, ends],
        )
        assert whole == pytest.approx(answer["energy"]["joules"], rel=1e-9)
        joules = [w * s for w, s in zip(line["watts"], line["seconds"], strict=True)]
        assert sum(parts) == pytest.approx(sum(joules), rel=1e-9)
    # Without overlaps the power of a launch is the same all along: every stretch agrees.
    assert parts == pytest.approx(joules, rel=1e-6)
    page.check_quiet()


def test_what_is_wrong_is_told_in_the_words_of_the_service(page: Watched, tmp_path: Path) -> None:
    page.open("/#application")
    tab = page.page
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(TRAINING.read_bytes()[:800])
    (tmp_path / "foreign.json").write_text('{"events": []}')
    unknown = kineto(tmp_path / "unknown.json", [Launch("k", 10, 10)], gpus=(Gpu("Foo 9000"),))
    broken: FilePayload = {"name": "c.zip", "mimeType": "application/zip", "buffer": b"PK\3\4"}
    refused: list[tuple[Path, list[FilePayload], str]] = [
        (cut, [], "cut.json.gz: the gzip is cut off"),
        (tmp_path / "foreign.json", [], "no member traceEvents"),
        (unknown, [], "unknown GPU 'Foo 9000'"),
        (TRAINING, [broken], "the zip is broken: it has no directory"),
    ]
    for trace, code, why in refused:
        given(page, trace, *code)
        tab.click("#application-form button[type=submit]")
        tab.wait_for_selector(f"#application-error:has-text({json.dumps(why)})")
        assert tab.locator("#application-result").is_hidden()
    # A refusal is no fault of the page, though Chromium puts a line into its console.
    assert all("422" in line for line in page.complaints)
    page.complaints.clear()
    given(page, unknown)
    tab.select_option("#application-gpu", "tesla-v100")
    assert answered(tab)["devices"][0]["gpu"] == "tesla-v100"
    assert tab.locator("#application-error").is_hidden()
    page.check_quiet()


def test_it_is_compared_and_saved(page: Watched, tmp_path: Path) -> None:
    launches, steps = training_step()
    older = kineto(tmp_path / "old.json", [*launches, Launch("extra", 6_000_000, 500_000)], steps)
    page.open("/#application")
    tab = given(page, TRAINING, against=older)
    told = answered(tab)
    rows = tab.locator("#application-changes tbody tr")
    assert rows.nth(0).inner_text().startswith("All of it")
    assert rows.nth(1).inner_text().startswith("extra")
    answer = json.loads(saved(tab, "#application-saves .saves", "JSON"))
    assert answer == told
    kernels = list(csv.DictReader(io.StringIO(
        saved(tab, "#application-saves .saves", "CSV").decode()
    )))  # fmt: skip
    assert [float(row["joules"]) for row in kernels] == [row["joules"] for row in told["kernels"]]
    line = list(csv.DictReader(io.StringIO(
        saved(tab, "#application-timeline-saves .saves:nth-child(1)", "CSV").decode()
    )))  # fmt: skip
    sums = sum(float(row["Power, W"]) * float(row["Time, s"]) for row in line)
    assert sums == pytest.approx(told["energy"]["joules"], rel=1e-9)
    each = list(csv.DictReader(io.StringIO(
        saved(tab, "#application-timeline-saves .saves:nth-child(2)", "CSV").decode()
    )))  # fmt: skip
    assert [float(row["Energy, J"]) for row in each] == told["launch_columns"]["joules"]
    picture = saved(tab, "#application-timeline-saves .saves", "PNG")
    assert picture.startswith(b"\x89PNG")
    report = saved(tab, "#view-application > .saves.whole", "HTML").decode()
    assert "Coverage of the time of 22 launches" in report
    assert "data:image/png;base64," in report
    assert "<script" not in report
    page.check_quiet()
