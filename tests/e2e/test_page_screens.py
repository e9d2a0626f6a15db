"""Every view looks as its reference does: ``make screens`` writes the references anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageFilter
from playwright.sync_api import Browser

from tests.e2e import screens
from tests.e2e.browser import Watched, needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow]

MOST_BYTES = 3_000_000
"""Of all references together."""


@pytest.fixture(scope="module")
def shown(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Watched, dict[str, Image.Image]]]:
    """The page after its last tab, and the pictures of all."""
    for page in screens.opened(browser, tmp_path_factory.mktemp("home")):
        yield page, dict(screens.shots(page))


def reference(name: str) -> Image.Image:
    file = screens.REFERENCES / f"{name}.png"
    assert file.exists(), f"{file.name} is missing: make screens"
    return Image.open(file).convert("RGB")


def test_every_tab_has_its_references_and_they_are_small(
    shown: tuple[Watched, dict[str, Image.Image]],
) -> None:
    page, pictures = shown
    views = page.page.eval_on_selector_all("[id^=view-]", "all => all.map(one => one.id.slice(5))")
    assert set(views) == set(screens.VIEWS)
    files = list(screens.REFERENCES.glob("*.png"))
    assert {file.stem for file in files} == set(screens.names()) == set(pictures)
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
    page.check_quiet()


def test_every_tab_looks_as_its_reference(
    shown: tuple[Watched, dict[str, Image.Image]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong, folder = {}, tmp_path_factory.mktemp("screens")
    for name, picture in shown[1].items():
        if why := screens.different(picture, reference(name)):
            wrong[name] = why
            picture.save(folder / f"{name}.png")
    assert not wrong, f"{wrong}; as they are now: {folder}; make screens if they should be so"


def test_antialiasing_is_no_difference(shown: tuple[Watched, dict[str, Image.Image]]) -> None:
    rng = np.random.default_rng(1)
    for name, picture in shown[1].items():
        soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(0.5)), dtype=float)
        noisy = np.clip(soft + rng.normal(0, 4, soft.shape), 0, 255).astype(np.uint8)
        assert screens.different(Image.fromarray(noisy), reference(name)) is None, name


LEAST = """all => {
  const areas = all.map(one => one.offsetWidth * one.offsetHeight);
  return areas.indexOf(Math.min(...areas.filter(area => area > 0)));
}"""
"""Which of the panels is the smallest: the hardest to miss."""


def test_a_missing_panel_is_a_difference(shown: tuple[Watched, dict[str, Image.Image]]) -> None:
    page, pictures = shown
    tab = page.page
    for view in screens.VIEWS:
        page.view(view)
        for width in screens.WIDTHS:
            screens.set_up(page, width, "light")
            panels = tab.locator(f"#view-{view} .panel:visible")
            at = panels.evaluate_all(LEAST)
            panel = panels.nth(at).element_handle()
            assert panel is not None
            panel.evaluate("panel => panel.style.display = 'none'")
            without = screens.steady(page, view)
            # The same place, empty: nothing below it moves up.
            panel.evaluate("panel => panel.style.cssText = 'visibility: hidden'")
            empty = screens.steady(page, view)
            panel.evaluate("panel => panel.style.cssText = ''")
            whole = pictures[f"{view}-{width}-light"]
            assert screens.different(without, whole), (view, width, at)
            assert screens.different(empty, whole), (view, width, at)
