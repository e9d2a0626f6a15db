"""The timeline of an application's trace in Debian's Chromium: frames a second while it is panned
and zoomed by pointer, wheel and keys, one event for every frame that the browser offers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, at_least, fact
from benchmarks.page import CHROMIUM
from benchmarks.service import free_port, server
from tests.generated.traces import kineto, many

LAUNCHES = 100_000
SECONDS = 4.0

_COUNT = """
Object.assign(window, {drawn: 0, spent: []});
const plain = CanvasRenderingContext2D.prototype.setTransform;
CanvasRenderingContext2D.prototype.setTransform = function (...given) {
  window.drawn += 1;
  return plain.apply(this, given);
};
const ask = window.requestAnimationFrame;
window.requestAnimationFrame = (act) => ask((now) => {
  const [before, start] = [window.drawn, performance.now()];
  act(now);
  if (window.drawn > before) window.spent.push(performance.now() - start);
});
"""
"""The timeline sets its scale once for every picture that it draws, and draws when asked to."""

_DRIVE = """([how, seconds]) => new Promise((resolve) => {
  const box = document.getElementById("application-timeline");
  const canvas = box.querySelector("canvas");
  const {width, height} = canvas.getBoundingClientRect();
  const pointer = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind,
    {bubbles: true, pointerId: 1, clientX: canvas.getBoundingClientRect().left + x, clientY: 50}));
  const wheel = (given) => canvas.dispatchEvent(new WheelEvent("wheel", {bubbles: true,
    cancelable: true, clientX: canvas.getBoundingClientRect().left + 0.6 * width, ...given}));
  const key = (name) => box.dispatchEvent(new KeyboardEvent("keydown", {bubbles: true, key: name}));
  canvas.setPointerCapture = () => {};  // of a pointer that there is not
  const acts = {
    zoom: (at) => wheel({deltaY: at % 120 < 60 ? -40 : 40}),
    wheel: (at) => wheel({deltaX: at % 60 < 30 ? 20 : -20}),
    drag: (at) => pointer("pointermove", 0.5 * width + 300 * Math.sin(at / 20)),
    keys: (at) => key(["ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown"][Math.floor(at / 8) % 4]),
  };
  if (how === "drag") pointer("pointerdown", 0.5 * width);
  Object.assign(window, {drawn: 0, spent: []});
  const gaps = [];
  let [begun, last, at] = [null, 0, 0];
  const frame = (now) => {
    begun ??= now;
    if (last) gaps.push(now - last);
    last = now;
    if (now - begun > 1000 * seconds) {
      pointer("pointerup", 0);
      for (const each of [gaps, window.spent]) each.sort((a, b) => a - b);
      resolve({rate: 1000 * window.drawn / (now - begun),
        late: gaps[Math.floor(0.99 * gaps.length)],
        spent: window.spent[window.spent.length >> 1]});
      return;
    }
    acts[how](at += 1);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""
"""Pictures drawn a second, and the time between two frames that one of a hundred takes longer;
milliseconds of the script for a picture, median."""


def rows() -> Iterator[Row]:
    """Every row of this part; none without Chromium."""
    if not CHROMIUM.exists():
        print(f"no {CHROMIUM}: the timeline is not measured", file=sys.stderr)
        return
    port = free_port()
    command = [sys.executable, "-m", "wattcast.app.cli", "serve"]
    with tempfile.TemporaryDirectory() as home, server(command, port, home):
        trace = kineto(Path(home) / "trace.json", many(LAUNCHES))
        yield from _measured(f"http://127.0.0.1:{port}/", trace)


def _measured(url: str, trace: Path) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    what = f"timeline of {LAUNCHES:,} launches"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.add_init_script(_COUNT)
        page.goto(f"{url}#application")
        page.wait_for_selector("html[data-ready=true]")
        page.set_input_files("#application-trace", trace)
        start = page.evaluate("performance.now()")
        with page.expect_response("**/applications") as answered:
            page.click("#application-form button[type=submit]")
        page.wait_for_selector("#application-view:not(:empty)")
        yield fact(
            f"{what}: from file to picture", page.evaluate("performance.now()") - start, "ms"
        )
        told = json.loads(answered.value.body())
        assert len(told["launch_columns"]["start_seconds"]) == LAUNCHES
        sent = int(answered.value.headers["content-length"])
        yield fact(f"{what}: answer as it is sent", sent / 2**20, "MiB")
        for how, closer in (("zoom", 0), ("wheel", 3), ("drag", 3), ("drag", 20), ("keys", 10)):
            page.click("#application-go-all")
            for _ in range(closer):
                page.evaluate(
                    "document.getElementById('application-timeline').dispatchEvent("
                    "new KeyboardEvent('keydown', {bubbles: true, key: 'ArrowUp'}))"
                )
            found = page.evaluate(_DRIVE, [how, SECONDS])
            named = f"{what}: {how}, {1.25**closer:.3g} times as close"
            yield at_least(named, found["rate"], 30.0, "frames/s")
            yield fact(f"{named}, script for a picture", found["spent"], "ms")
            yield fact(f"{named}, 99 % of frames within", found["late"], "ms")
        browser.close()
