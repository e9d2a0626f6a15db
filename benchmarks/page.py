"""The web page in Debian's Chromium, over loopback: when something is seen, when it can be used,
how soon an edit is answered, and how soon another place is there."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, fact
from benchmarks.service import free_port, server

CHROMIUM = Path("/usr/bin/chromium")
LOADS = 9
EDITS = 9

_WATCH = """
new MutationObserver((_, watcher) => {
  const seen = (name) => performance.getEntriesByName(name).length;
  if (document.getElementById("result")?.dataset.state === "fresh" && !seen("picture"))
    performance.mark("picture");
  if (document.documentElement?.dataset.ready && !seen("ready")) performance.mark("ready");
  if (seen("ready") && seen("picture")) watcher.disconnect();
}).observe(document, {attributes: true, subtree: true, childList: true});
"""
"""The page marks its root once its modules run and the GPUs are listed, and its result once
numbers, advice and heat on the code are there."""

_EDIT = """(text) => new Promise((resolve) => {
  const [result, field] = ["result", "source"].map((id) => document.getElementById(id));
  const start = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", {bubbles: true}));
  new MutationObserver((_, watcher) => {
    if (result.dataset.state !== "fresh") return;
    watcher.disconnect();
    resolve(performance.now() - start);
  }).observe(result, {attributes: true});
})"""
"""Milliseconds from a change of the source to the page that shows it: numbers, advice, heat."""

_PLACE = """(tab) => new Promise((resolve) => {
  const start = performance.now();
  tab.click();
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start)));
})"""
"""Milliseconds from a click on a tab to the frame that shows its place."""

_TIMES = """() => ["first-contentful-paint", "picture", "ready"].map(
  (name) => performance.getEntriesByName(name)[0].startTime)"""


def edited(number: int) -> str:
    """PTX of 100 instructions, of which ``number`` changes a constant."""
    sums = "".join(f" fma.rn.f32 %f1, %f1, %f1, 0f3F{number:02X}{at:04X};\n" for at in range(92))
    return (
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry hundred(.param .u64 p)\n{\n"
        " .reg .b32 %r<2>;\n .reg .f32 %f<2>;\n .reg .b64 %rd<4>;\n ld.param.u64 %rd1, [p];\n"
        " cvta.to.global.u64 %rd1, %rd1;\n mov.u32 %r1, %tid.x;\n mul.wide.u32 %rd2, %r1, 4;\n"
        f" add.s64 %rd3, %rd1, %rd2;\n ld.global.f32 %f1, [%rd3];\n{sums}"
        " st.global.f32 [%rd3], %f1;\n ret;\n}\n"
    )


def rows() -> Iterator[Row]:
    """Every row of this part; none without Chromium."""
    if not CHROMIUM.exists():
        print(f"no {CHROMIUM}: the page is not measured", file=sys.stderr)
        return
    port = free_port()
    command = [sys.executable, "-m", "wattcast.app.cli", "serve"]
    with tempfile.TemporaryDirectory() as home, server(command, port, home):
        loads, edits, places = _measured(f"http://127.0.0.1:{port}/")
    paint, picture, ready = ([load[at] for load in loads] for at in (0, 1, 2))
    yield fact("page, first contentful paint, median of cold loads", median(paint), "ms")
    yield fact("page, first contentful paint, best", min(paint), "ms")
    yield at_most("page, solved example shown, median of cold loads", median(picture), 500.0, "ms")
    yield fact("page, solved example shown, best", min(picture), "ms")
    yield at_most("page usable, median of cold loads", median(ready), 1000.0, "ms")
    yield fact("page usable, best", min(ready), "ms")
    yield at_most("page, edit of 100 PTX instructions shown, median", median(edits), 200.0, "ms")
    yield fact("page, edit of 100 PTX instructions shown, slowest", max(edits), "ms")
    yield at_most("page, another place shown, median", median(places), 100.0, "ms")
    yield fact("page, another place shown, slowest", max(places), "ms")


def _measured(url: str) -> tuple[list[tuple[float, ...]], list[float], list[float]]:
    """Milliseconds until a load is painted, tells something and can be used, each with an empty
    cache of its own; until an edit is answered; and until a place is shown."""
    from playwright.sync_api import sync_playwright

    loads, edits, places = [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for load in range(LOADS):
            context = browser.new_context()
            page = context.new_page()
            page.add_init_script(_WATCH)
            page.goto(url)
            page.wait_for_selector("html[data-ready=true]")
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
            loads.append(tuple(float(each) for each in page.evaluate(_TIMES)))
            if load == LOADS - 1:
                page.evaluate(_EDIT, edited(0))  # another kernel than the example's
                edits = [float(page.evaluate(_EDIT, edited(1 + edit))) for edit in range(EDITS)]
                tabs = 2 * page.query_selector_all("[role=tab]")
                places = [float(tab.evaluate(_PLACE)) for tab in tabs]
            context.close()
        browser.close()
    return loads, edits, places
