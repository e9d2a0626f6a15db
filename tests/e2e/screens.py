"""Pictures of every view, in both colour schemes and two widths: ``python -m tests.e2e.screens``.

It writes ``tests/e2e/screens/<view>-<width>-<scheme>.png`` (or into a folder given as argument), at
half size and with 256 colours: the references that ``test_page_screens.py`` compares with. What the
page shows is fixed: the same requests, the history's dates and ids, the clock's zone and language.
Fonts are those that Debian's chromium brings (DejaVu).
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Route

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.e2e.browser import SCHEMES, Watched, chromium, watched
from tests.fixtures.ptx_text import stored_ptx

REFERENCES = Path(__file__).with_suffix("")
WIDTHS = (1440, 390)
HEIGHT = 900
CONTEXT = {
    "locale": "en-GB",
    "timezone_id": "UTC",
    "reduced_motion": "reduce",
    "viewport": {"width": WIDTHS[0], "height": HEIGHT},
}
FIXED_ID = "00000000-0000-4000-8000-{:012d}"
FIXED_TIME = "2026-01-{:02d}T12:00:00+00:00"
_STEADY_MILLISECONDS = 250
_MOST_LOOKS = 20


DIFFERENT = 64
"""Levels of 255 by which a channel of a pixel must differ to count: more than antialiasing and the
256 colours of a reference leave at half size, less than a stroke of text that is gone."""
SQUARE = 24
"""Side in pixels of the squares that are looked at one by one, at half size."""
MOST_DIFFERENT = 0.06
"""Share of such pixels in a square from which on pictures are different: a blur of 0.6 pixels
leaves 4.5 %, a short line of text that is gone 9 %."""
MOST_HEIGHT = 0.01
"""Share by which the height of a page may differ."""


def solved(page: Watched) -> None:
    """The example that the page opens on; its link is fixed."""
    page.open()
    page.settled()
    page.page.locator("#roofline").scroll_into_view_if_needed()
    page.page.wait_for_selector("#roofline .scatterlayer .trace", state="attached")
    page.page.evaluate("document.getElementById('share').value = 'https://wattcast.example/'")


def swept(page: Watched) -> None:
    """Of a kernel in PTX, as on all tabs that follow, so that no compiler is needed."""
    page.predict_example()
    tab = page.page
    page.view("sweep")
    tab.click("#sweep-form button[type=submit]")
    tab.wait_for_selector("#sweep-map .heatmaplayer image", state="attached")


def clocked(page: Watched) -> None:
    tab = page.page
    given = tab.input_value("#gpu")
    tab.select_option("#gpu", "gtx-titan-x")  # several memory clocks
    page.view("clocks")
    tab.click("#clocks-form button[type=submit]")
    tab.wait_for_selector("#clocks-map .heatmaplayer image", state="attached")
    tab.wait_for_selector("#clocks-pareto .scatterlayer .trace")
    tab.select_option("#gpu", given)


def tuned(page: Watched) -> None:
    tab = page.page
    page.view("tune")
    space = {"block_size_x": [64, 128, 256, 512, 2048], "core_mhz": [1380, 1005]}
    tab.fill("#tune-space", json.dumps({"tune_params": space, "problem_size": [1 << 20]}))
    tab.click("#tune-form button[type=submit]")
    tab.wait_for_selector("#tune-parallel svg .pieces line", state="attached")
    tab.wait_for_selector("#tune-stop", state="hidden")
    tab.fill("#tune-next tbody tr:nth-child(1) [name=joules]", "1.1 mJ")
    tab.click("#tune-take")
    tab.wait_for_selector("#tune-best .scatterlayer .trace", state="attached")
    tab.wait_for_selector("#tune-scatter .scatterlayer .trace", state="attached")


def compared(page: Watched) -> None:
    tab = page.page
    page.view("compare")
    tab.wait_for_selector("#compare-figure .scatterlayer .trace")


OLD = stored_ptx("doubled")


def changed(page: Watched) -> None:
    tab = page.page
    page.view("diff")
    tab.fill("#diff-old", OLD)
    more = " mul.f32 %f2, %f1, 0f40000000;\n"
    tab.fill("#diff-new", OLD.replace(more, more + " sqrt.rn.f32 %f2, %f2;\n" * 8))
    tab.fill("#diff-energy", "+2")
    tab.click("#diff-form button[type=submit]")
    tab.wait_for_selector("#diff-tables details")


def costed(page: Watched) -> None:
    tab = page.page
    page.view("cost")
    tab.click("#cost-add")
    tab.wait_for_selector("#cost-list tbody tr")
    tab.click("#cost-form button[type=submit]")
    tab.wait_for_selector("#cost-table tbody tr")


def traced(page: Watched) -> None:
    """The sample of the documentation, one of whose kernels has code."""
    tab, root = page.page, Path(__file__).parents[2]
    page.view("application")
    trace = root / "tests" / "fixtures" / "traces" / "training_step.pt.trace.json.gz"
    tab.set_input_files("#application-trace", trace)
    tab.set_input_files("#application-code", root / "app" / "demo" / "vector_add.ptx")
    tab.click("#application-form button[type=submit]")
    tab.wait_for_selector("#application-view:not(:empty)")


def remembered(page: Watched) -> None:
    """Two predictions of fixed ids and dates, side by side."""
    tab = page.page
    found = httpx.get(f"{page.url}/predictions", params={"limit": 1}).json()[0]
    answer = httpx.get(f"{page.url}/predictions/{found['id']}").json()
    less = {**answer, "components": {name: 0.9 * one for name, one in answer["components"].items()}}
    for part, unit in (("power", "watts"), ("time", "seconds"), ("energy", "joules")):
        less[part] = {**answer[part], **{x: 0.9 * answer[part][x] for x in (unit, "low", "high")}}
    answers = {FIXED_ID.format(1): answer, FIXED_ID.format(2): less}
    rows = [
        {**found, "id": key, "created": FIXED_TIME.format(at + 1), "grid": [4096 >> at]}
        | {unit: one[part][unit] for part, unit in
           (("power", "watts"), ("time", "seconds"), ("energy", "joules"))}
        for at, (key, one) in enumerate(answers.items())
    ]  # fmt: skip

    def told(route: Route) -> None:
        key = route.request.url.partition("?")[0].rpartition("/")[2]
        body = rows[::-1] if key == "predictions" else answers[key]
        route.fulfill(content_type="application/json", body=json.dumps(body))

    tab.route("**/predictions?*", told)
    tab.route(f"**/predictions/{FIXED_ID.format(0)[:24]}*", told)
    page.view("history")
    for row in (1, 2):
        tab.check(f"#history-table tbody tr:nth-child({row}) input")
    tab.click("#history-compare")
    tab.wait_for_selector("#history-sides table")
    tab.unroute_all()


def trusted(page: Watched) -> None:
    page.view("accuracy")
    page.page.wait_for_selector("#accuracy-points .scatterlayer .trace")


def measured(page: Watched) -> None:
    tab = page.page
    page.view("measurements")
    tab.wait_for_selector("#upload-schema option:nth-child(2)", state="attached")
    rows = "gpu,kernel,power_watts\nv100,a,120\nno-such-gpu,b,90\n"
    tab.set_input_files(
        "#upload-file", {"name": "rows.csv", "mimeType": "text/csv", "buffer": rows.encode()}
    )
    tab.wait_for_selector("#upload-check table")


def modelled(page: Watched) -> None:
    page.view("models")
    page.page.wait_for_selector("#versions tbody tr")


def worked_out(page: Watched, view: str) -> None:
    """A view on the solved example that it opens on."""
    page.view(view)
    page.page.wait_for_selector(f"#{view}-result:not([hidden])")


VIEWS: dict[str, Callable[[Watched], None]] = {
    "predict": solved,
    "sweep": swept,
    "clocks": clocked,
    "tune": tuned,
    "compare": compared,
    "diff": changed,
    "cost": costed,
    "application": traced,
    "operator": partial(worked_out, view="operator"),
    "language": partial(worked_out, view="language"),
    "history": remembered,
    "accuracy": trusted,
    "measurements": measured,
    "models": modelled,
}
"""What brings each view to what is shown, in this order on one page."""


def names() -> list[str]:
    """Names of all pictures."""
    return [f"{view}-{width}-{scheme}" for view in VIEWS for width in WIDTHS for scheme in SCHEMES]


def shots(page: Watched) -> Iterator[tuple[str, Image.Image]]:
    """Every picture by its name, as it is compared."""
    for view, bring in VIEWS.items():
        bring(page)
        for width in WIDTHS:
            for scheme in SCHEMES:
                set_up(page, width, scheme)
                yield f"{view}-{width}-{scheme}", steady(page, view)
        set_up(page, WIDTHS[0], SCHEMES[0])


def set_up(page: Watched, width: int, scheme: str) -> None:
    """The window and colours of a picture."""
    page.page.set_viewport_size({"width": width, "height": HEIGHT})
    page.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]


ON_A_PIXEL = """one => {
  one.style.cssText = "position: relative; top: 0";
  const top = one.getBoundingClientRect().top + scrollY;
  one.style.top = `${Math.ceil(top) - top}px`;
}"""
"""Moves a view to where a pixel begins: text is drawn otherwise between two."""


def steady(page: Watched, view: str) -> Image.Image:
    """The whole page, or of a view that unfolds in its place that alone, half as large, once it no
    longer changes."""
    tab, before = page.page, b""
    folded = tab.locator(f"details#view-{view}")
    shot = folded.screenshot if folded.count() else partial(tab.screenshot, full_page=True)
    tab.evaluate("document.activeElement?.blur(); scrollTo(0, 0); document.fonts.ready")
    for _ in range(_MOST_LOOKS):
        tab.wait_for_timeout(_STEADY_MILLISECONDS)
        folded.evaluate_all(f"all => all.forEach({ON_A_PIXEL})")
        now = shot(animations="disabled", caret="hide")
        if now == before:
            break
        before = now
    return halved(Image.open(io.BytesIO(now)).convert("RGB"))


def halved(picture: Image.Image) -> Image.Image:
    """Half as wide and high: each pixel the mean of four."""
    return picture.reduce(2)


def different(picture: Image.Image, reference: Image.Image) -> str | None:
    """In what two pictures differ beyond the tolerance; ``None`` where they do not."""
    (width, height), (wanted, tall) = picture.size, reference.size
    if width != wanted or abs(height - tall) > MOST_HEIGHT * tall:
        return f"{width} x {height} pixels instead of {wanted} x {tall}"
    rows = min(height, tall)
    a, b = (np.asarray(one.convert("RGB"), dtype=np.int16)[:rows] for one in (picture, reference))
    counted = np.abs(a - b).max(axis=2) > DIFFERENT
    padded = np.pad(counted, [(0, -size % SQUARE) for size in counted.shape])
    down, across = (size // SQUARE for size in padded.shape)
    shares = padded.reshape(down, SQUARE, across, SQUARE).mean(axis=(1, 3))
    wrong = np.argwhere(shares > MOST_DIFFERENT)
    if not len(wrong):
        return None
    y, x = wrong[0] * SQUARE * 2
    return f"{len(wrong)} squares differ, the first at {x}, {y}"


def keep(picture: Image.Image, file: Path) -> None:
    """Write a reference."""
    # An octree keeps colours that are rare, such as those of a warning; the median cut does not.
    few = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def opened(browser: Browser, home: Path) -> Iterator[Watched]:
    """The page of a service of its own."""
    with (
        running(settings_at(home, job_workers=0)) as client,
        watched(browser, client, **CONTEXT) as page,
    ):
        yield page


def main(arguments: list[str]) -> int:
    """Write every reference; the exit status."""
    folder = Path(arguments[0]) if arguments else REFERENCES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        for page in opened(browser, Path(home)):
            for name, picture in shots(page):
                keep(picture, folder / f"{name}.png")
                print(folder / f"{name}.png", flush=True)
    for file in set(folder.glob("*.png")) - {folder / f"{name}.png" for name in names()}:
        file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
