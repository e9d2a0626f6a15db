"""The tab Sweep in a real browser: what it proposes, what it leaves out, and how it draws both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.app.test_sweep_variants import TILED
from tests.e2e.browser import Watched, needs_chromium
from tests.needs import needs_nvrtc
from wattcast.features.launch import usual_blocks

pytestmark = needs_chromium

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"


def give(page: Watched, name: str, ptx: str, grid: str, block: str, kernel: str = "") -> None:
    """A file with its launch, in the form, and the tab Sweep open."""
    tab = page.page
    file: Any = {"name": name, "mimeType": "text/plain", "buffer": ptx.encode()}
    tab.set_input_files("#source-file", file)
    tab.wait_for_selector(f"#source-note:has-text('{name}')")
    if kernel:
        tab.select_option("#kernel", kernel)
    tab.fill("#grid", grid)
    tab.fill("#block", block)
    page.view("sweep")


def sweep(page: Watched) -> None:
    with page.page.expect_response("**/sweep"):
        page.page.click("#sweep-form button[type=submit]")
    page.page.wait_for_selector("#sweep-map .heatmaplayer image", state="attached")
    page.page.wait_for_selector("#sweep-front .scatterlayer .trace", state="attached")


@pytest.mark.parametrize("visits", [1, 2])
def test_a_launch_that_breaks_the_kernel_is_not_offered(page: Watched, visits: int) -> None:
    for _ in range(visits):
        page.open()
    tab = page.page
    ptx = (FIXTURES / "transpose.sm_70.ptx").read_text(encoding="utf-8")
    give(page, "transpose.ptx", ptx, "32x32", "32x8", "transpose_direct")
    sweep(page)
    others = len(usual_blocks(2)) - 1
    assert tab.inner_text("#sweep-left-out-title").startswith(f"{others} shapes are left out")
    tab.click("#sweep-left-out-title")
    assert "block size along x is in the code: 32" in tab.inner_text("#sweep-left-out")
    assert tab.locator("#sweep-best tbody button").count() == 0
    assert "no difference" in tab.inner_text("#sweep-best")
    assert "No other shape is shown to compute the same" in tab.inner_text("#sweep-doubt")
    page.check_access("sweep")
    # Asked for all the same: the warning stands above the figures, and axes go up by value.
    tab.check("#sweep-unproven")
    sweep(page)
    told, drawn = (tab.locator(each).bounding_box() for each in ("#sweep-doubt", "#sweep-map"))
    assert "not shown to compute" in tab.inner_text("#sweep-doubt")
    assert told is not None
    assert drawn is not None
    assert told["y"] + told["height"] <= drawn["y"]
    axes = tab.evaluate(
        "['xaxis', 'yaxis'].map((axis) => document.querySelector('#sweep-map')"
        ".layout[axis].categoryarray.map(Number))"
    )
    assert axes == [sorted(axis) for axis in axes]
    assert [len(axis) for axis in axes] == [9, 9]
    page.check_access("sweep")
    page.check_quiet()


def test_what_is_not_told_apart_neither_fills_the_colours_nor_gets_a_button(
    page: Watched, vector_add: str
) -> None:
    page.open()
    tab = page.page
    give(page, "vector_add.ptx", vector_add, "4096", "256")
    tab.fill("#sweep-blocks", "1024, 256, 512")
    sweep(page)
    low, high = tab.evaluate(
        "(({zmin, zmax}) => [zmin, zmax])(document.querySelector('#sweep-map').data[0])"
    )
    cells = tab.evaluate("document.querySelector('#sweep-map').data[0].z.flat()")
    assert high - low >= 5 * (max(cells) - min(cells))
    columns = tab.evaluate("document.querySelector('#sweep-map').data[0].x")
    assert columns == ["256", "512", "1024"]
    assert tab.locator("#sweep-best tbody button").count() == 0
    # From a poor launch there is something to gain, and the button puts it into the form.
    tab.fill("#grid", "32768")
    tab.fill("#block", "32")
    sweep(page)
    tab.click("#sweep-best tbody button >> nth=0")
    assert tab.input_value("#block") != "32"
    page.check_quiet()


@needs_nvrtc
def test_each_example_has_more_than_one_shape(page: Watched) -> None:
    page.open("/?example=reduction")
    page.settled()
    page.view("sweep")
    sweep(page)
    page.page.wait_for_selector("#sweep-note:has-text('5 shapes')")
    page.check_quiet()


@needs_nvrtc
def test_macros_of_a_source_are_swept(page: Watched) -> None:
    page.open()
    tab = page.page
    page.view("predict")
    file: Any = {"name": "tiled.cu", "mimeType": "text/plain", "buffer": TILED.encode()}
    tab.set_input_files("#source-file", file)
    tab.wait_for_selector("#source-note:has-text('tiled.cu')")
    tab.fill("#grid", "64x64")
    tab.fill("#block", "16x16")
    page.view("sweep")
    tab.click("#sweep-variants summary")
    tab.fill("#sweep-defines", "TILE=32,8,16 PAD=0,1")
    tab.fill("#sweep-grid", "ceil(1024 / TILE), 1024 / TILE")
    tab.fill("#sweep-block", "TILE, TILE")
    sweep(page)
    assert "each variant is another program" in tab.inner_text("#sweep-doubt")
    drawn = tab.evaluate("(({x, y}) => [x, y])(document.querySelector('#sweep-map').data[0])")
    assert drawn == [["8", "16", "32"], ["PAD=0", "PAD=1"]]
    tab.click("#sweep-result summary:has-text('All shapes')")
    assert "TILE=16, PAD=1: 64x64 x 16x16" in tab.inner_text("#sweep-table")
    page.check_access("sweep")
    # Without values for its macros the source does not compile, which the form tells.
    assert all("422" in told for told in page.complaints)
    assert not page.foreign
