"""What the page shows can be taken along: CSV, HTML, SVG and PNG; two predictions side by side."""

from __future__ import annotations

import csv
import io
import json
import re
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import SCHEMES, Watched, needs_chromium, watched

pytestmark = needs_chromium

SVG = "{http://www.w3.org/2000/svg}"


def saved(tab: Page, row: str, kind: str) -> bytes:
    """The file that a button of a row of them makes."""
    with tab.expect_download() as download:
        tab.locator(f"{row} button", has_text=re.compile(rf"^{kind}")).first.click()
    assert download.value.suggested_filename.startswith("wattcast-")
    assert download.value.suggested_filename.endswith(f".{kind.lower()}")
    return Path(download.value.path()).read_bytes()


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8"))))


def words(content: bytes) -> str:
    """All text of an SVG."""
    return " ".join(each.text or "" for each in ElementTree.fromstring(content).iter(f"{SVG}text"))


def test_bars_are_saved_as_numbers_and_the_roofline_as_a_picture(
    page: Watched, service: httpx.Client
) -> None:
    page.open()
    page.predict_example()
    tab = page.page
    asked = {"prediction_id": tab.url.partition("prediction=")[2], "target": "power"}
    told = service.get("/explain", params=asked).json()
    table = rows(saved(tab, "#waterfall .saves", "CSV"))
    amounts = {row["Part"].split(" = ")[0]: float(row["Amount, W"]) for row in table}
    assert amounts["Prediction"] == pytest.approx(told["prediction_watts"], rel=5e-3)
    for one in told["contributions"][:5]:
        assert amounts[one["feature"]] == pytest.approx(one["watts"], rel=5e-3)
    lines = rows(saved(tab, "#hot-list .saves", "CSV"))
    assert lines[0]["Line"].split()[0].isdigit()
    tab.locator("#roofline").scroll_into_view_if_needed()
    row = "#speed .saves[aria-label='Save Roofline']"
    tab.wait_for_selector(row)
    roof, point = rows(saved(tab, row, "CSV"))[2:4]
    assert (roof["Series"][:9], point["Series"]) == ("FP32 roof", "FP32")
    assert float(roof["FLOP/s"]) > float(point["FLOP/s"]) > 0
    assert "FLOP/s" in words(saved(tab, row, "SVG"))
    # On the page's ground, --panel.
    with Image.open(io.BytesIO(saved(tab, row, "PNG"))) as picture:
        box = tab.locator("#roofline").bounding_box()
        assert box is not None
        assert picture.width == pytest.approx(2 * box["width"], abs=2)
        assert (255, 255, 255) in {
            shade for _, shade in picture.convert("RGB").getcolors(2**24) or []
        }
    page.check_quiet()


def test_a_file_stands_by_itself(page: Watched, browser: Browser, tmp_path: Path) -> None:
    page.open()
    page.predict_example()
    tab = page.page
    file = tmp_path / "view.html"
    file.write_bytes(saved(tab, "#view-predict > .saves.whole", "HTML"))
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=", text)
    other = browser.new_page()
    other.goto(file.as_uri())
    assert "vector_add" in other.inner_text("body")
    assert other.locator("table.bars svg rect").count() > 5
    assert other.locator("button, input, select").count() == 0
    other.close()
    page.check_quiet()


def test_figures_are_saved_with_their_numbers(page: Watched, service: httpx.Client) -> None:
    page.open("/#accuracy")
    tab = page.page
    tab.wait_for_selector("#accuracy-points .scatterlayer .trace")
    shipped = json.loads(
        files("wattcast.app.web").joinpath("static/accuracy.json").read_text(encoding="utf-8")
    )
    (titan,) = (one for one in shipped["boards"] if one["quantity"] == "power" and "points" in one)
    table = rows(saved(tab, "#accuracy-points-panel .saves", "CSV"))
    assert [row["Note"] for row in table] == [point[0] for point in titan["points"]]
    assert [float(row["Measured, W"]) for row in table] == [point[1] for point in titan["points"]]
    drawn = saved(tab, "#accuracy-points-panel .saves", "SVG")
    assert "Measured, W" in words(drawn)
    saved(tab, "#accuracy-points-panel .saves", "PNG")
    saved(tab, "#accuracy-points-panel .saves", "HTML")
    page.check_quiet()


def test_how_near_predictions_came_board_by_board(page: Watched, service: httpx.Client) -> None:
    page.open("/#accuracy")
    tab = page.page
    tab.wait_for_selector("#accuracy-boards tbody tr:nth-child(2)")
    shipped = json.loads(
        files("wattcast.app.web").joinpath("static/accuracy.json").read_text(encoding="utf-8")
    )
    for quantity in ("power", "time"):
        tab.select_option("#accuracy-quantity", quantity)
        boards = [one for one in shipped["boards"] if one["quantity"] == quantity]
        lines = tab.locator("#accuracy-boards tbody tr:not(.scale)")
        expect(lines).to_have_count(sum(len(one["splits"]) for one in boards))
        first = next(iter(boards[0]["splits"].values()))
        told = lines.first.inner_text()
        assert boards[0]["name"] in told
        assert f"{first['median_error_percent']:g} %" in told
        assert f"{first['baseline']['near_percent']:.3g} % without" in told
        for width in (390, 1440):
            tab.set_viewport_size({"width": width, "height": 900})
            for scheme in SCHEMES:
                tab.emulate_media(color_scheme=scheme)
                page.check_width(f"{quantity} {width} {scheme}")
                page.check_access(f"{quantity} {width} {scheme}")
    assert "Redistributions in binary form" in (tab.text_content("#accuracy-notice") or "")
    page.check_quiet()


def test_two_predictions_of_the_history_side_by_side(
    page: Watched, browser: Browser, service: httpx.Client, vector_add: str
) -> None:
    made = [
        service.post(
            "/predict",
            json={"ptx": vector_add, "gpu": gpu, "launch": {"grid": [grid], "block": [256]}},
        ).json()
        for gpu, grid in (("tesla-v100", 4096), ("quadro-rtx-8000", 64))
    ]
    page.open("/#history")
    tab = page.page
    link = "#history-table tr:has(a[href$='{}'])".format
    for one, launch in zip(made, ("4096 x 256", "64 x 256"), strict=True):
        told = tab.locator(link(one["id"])).inner_text()
        assert launch in told
        assert one["gpu"] in told
    assert tab.locator("#history-compare").is_disabled()
    for one in made[::-1]:  # whatever is chosen first, the earlier one stands first
        tab.locator(f"{link(one['id'])} input").focus()
        tab.keyboard.press("Space")
    tab.locator("#history-compare").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#history-sides table")
    change = 100 * (made[1]["power"]["watts"] / made[0]["power"]["watts"] - 1)
    row = tab.locator("#history-sides tr:has(th:text-is('Power'))").inner_text()
    assert f"{abs(change):.3g} %" in row
    assert tab.locator("#history-sides tr:has-text('Grid x block') td").all_inner_texts()[:2] == [
        "4096 x 256",
        "64 x 256",
    ]
    for width in (390, 1440):
        tab.set_viewport_size({"width": width, "height": 900})
        page.check_width(f"history {width}")
        page.check_access(f"history {width}")
    table = rows(saved(tab, "#history-table .saves", "CSV"))
    newest = {row["GPU"]: row for row in table[:2]}
    for one in made:
        assert float(newest[one["gpu"]]["Energy, J"]) == one["energy"]["joules"]
    # A third choice takes the place of the first; a second visit knows nothing of it.
    third = service.post(
        "/predict",
        json={"ptx": vector_add, "gpu": "tesla-p100", "launch": {"grid": [64], "block": [64]}},
    ).json()
    tab.click("#history-reload")
    tab.check(f"{link(third['id'])} input")
    expect(tab.locator("#history-table input:checked")).to_have_count(2)
    page.check_quiet()
    with watched(browser, service) as again:
        again.open("/#history")
        expect(again.page.locator("#history-table input:checked")).to_have_count(0)
        again.check_quiet()


def test_a_name_that_a_spreadsheet_would_compute_is_text(page: Watched) -> None:
    page.open()
    module = page.page.evaluate(
        """async () => {
          const script = document.querySelector("script[type=module]").src;
          const { csv } = await import(script.replace("main.js", "save.js"));
          return csv([["Kernel", "Change"], ["=HYPERLINK(1)", "-3.5"],
            ['say "a, b"', "@x"], ["-x", ""]]);
        }"""
    )
    assert module == 'Kernel,Change\r\n\'=HYPERLINK(1),-3.5\r\n"say ""a, b""",\'@x\r\n\'-x,\r\n'
