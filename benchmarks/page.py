"""The web page in Debian's Chromium, over loopback: when something is seen, when it can be used."""

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

_WATCH = """
new MutationObserver((_, watcher) => {
  if (document.documentElement?.dataset.ready) {
    performance.mark("ready");
    watcher.disconnect();
  }
}).observe(document, {attributes: true, subtree: true, childList: true});
"""
"""The page marks its root once its modules run and the GPUs are listed."""

_TIMES = """() => ["first-contentful-paint", "ready"].map(
  (name) => performance.getEntriesByName(name)[0].startTime)"""


def rows() -> Iterator[Row]:
    """Every row of this part; none without Chromium."""
    if not CHROMIUM.exists():
        print(f"no {CHROMIUM}: the page is not measured", file=sys.stderr)
        return
    port = free_port()
    command = [sys.executable, "-m", "wattcast.app.cli", "serve"]
    with tempfile.TemporaryDirectory() as home, server(command, port, home):
        loads = _loads(f"http://127.0.0.1:{port}/")
    paint, ready = ([load[at] for load in loads] for at in (0, 1))
    yield fact("page, first contentful paint, median of cold loads", median(paint), "ms")
    yield fact("page, first contentful paint, best", min(paint), "ms")
    yield at_most("page usable, median of cold loads", median(ready), 1000.0, "ms")
    yield fact("page usable, best", min(ready), "ms")


def _loads(url: str) -> list[tuple[float, float]]:
    """Milliseconds to paint and to be usable; each load has an empty cache of its own."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(LOADS):
            context = browser.new_context()
            page = context.new_page()
            page.add_init_script(_WATCH)
            page.goto(url)
            page.wait_for_selector("html[data-ready=true]")
            page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
            paint, ready = page.evaluate(_TIMES)
            found.append((float(paint), float(ready)))
            context.close()
        browser.close()
    return found
