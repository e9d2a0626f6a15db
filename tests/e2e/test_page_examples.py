"""The page in a real browser: it opens on a solved example, and follows what is edited."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.browser import SCHEMES, Watched, needs_chromium, watched
from wattcast.app.demo import examples

pytestmark = needs_chromium

EDITOR = "#editor .cm-content"


def joules(page: Watched) -> str:
    return page.number("energy")


def lines(page: Watched, pane: str, kind: str) -> list[str]:
    """Texts of the lines of a pane that carry a class."""
    found = page.page.locator(f"{pane} .cm-line.{kind}").all_inner_texts()
    return [" ".join(line.split()) for line in found]


def at_line(page: Watched, text: str) -> None:
    """Put the cursor at the end of the line of the editor that holds this."""
    page.page.locator("#editor .cm-line", has_text=text).first.click()
    page.page.keyboard.press("End")


@pytest.mark.parametrize("visit", [1, 2])
def test_it_opens_on_a_solved_example(page: Watched, service: httpx.Client, visit: int) -> None:
    before = service.get("/predictions").json()
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.method))
    for _ in range(visit):
        page.open()
    tab = page.page
    page.settled()
    assert tab.inner_text("#result-title") == "transpose on tesla-v100"
    advice = tab.inner_text("#first-advice")
    assert "energy" in advice
    assert "−3" in advice  # about a third less
    assert "tile[threadIdx.x][threadIdx.y + j]" in lines(page, "#editor", "heat-10")[0]
    assert lines(page, "#code", "heat-10")
    assert "POST" not in asked
    assert service.get("/predictions").json() == before  # nothing was predicted for it
    page.check_quiet()


def test_each_example_shows_itself_and_has_a_link(page: Watched, tmp_path: Path) -> None:
    page.open()
    tab = page.page
    for name, example in examples().items():
        if "file" not in example:
            continue
        tab.click(f"[data-example={name}]")
        tab.wait_for_selector(f"[data-example={name}][aria-pressed=true]")
        page.settled()
        assert example["gpu"] in tab.inner_text("#result-title")
        assert tab.input_value("#gpu") == example["gpu"]
        assert lines(page, "#editor", "hot")
        # PTX has no second pane: the editor holds it.
        assert tab.locator("#code").is_visible() == example["file"].endswith(".cu")
        assert tab.locator("#energy-total .change").count() == 0
        page.check_access(name)
        tab.screenshot(path=tmp_path / f"{name}.png", full_page=True)
    page.open("/?example=matmul")
    assert tab.inner_text("#result-title").startswith("matmul on")
    page.check_quiet()


def test_following_the_advice_gives_what_it_promised(page: Watched) -> None:
    page.open()
    tab = page.page
    promised = tab.inner_text("#first-advice .gain b")
    old = joules(page)
    tab.click("#try")
    expect(tab.locator("#number-energy .change")).to_have_text(promised)
    page.settled()
    assert "tile[TILE][TILE + 1]" in tab.inner_text(EDITOR)
    assert joules(page) != old
    # The difference is kept until the next change, also beside the code.
    assert promised in tab.inner_text("#energy-total")
    page.check_quiet()


def test_advice_is_compared_as_old_and_new_code(page: Watched) -> None:
    page.open()
    tab = page.page
    tab.click("#first-advice button:has-text('Compare old and new')")
    tab.wait_for_selector("#view-diff:visible")
    assert "[TILE][TILE];" in tab.input_value("#diff-old")
    assert "[TILE][TILE + 1];" in tab.input_value("#diff-new")
    tab.click("#diff-form button[type=submit]")
    tab.wait_for_selector("#diff-tables details")
    assert "−3" in tab.inner_text("#diff-tables summary")
    page.check_quiet()


def test_compare_opens_on_two_versions_that_were_compared(page: Watched) -> None:
    page.open()
    tab = page.page
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.method))
    tab.click("#tab-compare")
    tab.wait_for_selector("#diff-tables details[open]")
    told = tab.inner_text("#diff-tables")
    assert "[TILE][TILE + 1];" in tab.input_value("#diff-new")
    assert "−3" in told
    assert "POST" not in asked
    with tab.expect_response("**/compare"):
        tab.click("#diff-form button[type=submit]")
    expect(tab.locator("#diff-busy")).to_be_empty()
    assert tab.inner_text("#diff-tables") == told
    # The new code may have a launch of its own: here a quarter of the tiles.
    tab.fill("#diff-grid", "32x32")
    with tab.expect_response("**/compare"):
        tab.click("#diff-form button[type=submit]")
    tab.wait_for_selector("#diff-tables summary:has-text('energy −8')")
    page.check_quiet()


def test_what_is_typed_is_predicted_again_and_old_results_are_dimmed(page: Watched) -> None:
    page.open()
    tab = page.page
    old = joules(page)
    at_line(page, "x = blockIdx.y")
    tab.keyboard.type(" x = x * 3 / 7;")
    tab.wait_for_selector("#answer.stale")
    tab.wait_for_selector("#ptx-panel.stale")
    page.settled()
    assert tab.locator(".stale").count() == 0
    assert joules(page) != old
    assert "%" in tab.inner_text("#number-energy .change")
    assert "prediction=" in tab.url
    # The form says the same as the editor, and the launch is followed too.
    assert "x = x * 3 / 7;" in tab.input_value("#source")
    now = joules(page)
    tab.fill("#grid", "32x64")
    tab.wait_for_selector("#answer.stale")
    page.settled()
    assert joules(page) != now
    page.check_quiet()


def test_a_late_answer_to_an_older_question_is_never_shown(page: Watched) -> None:
    page.open()
    tab = page.page
    held: list[Route] = []
    tab.route("**/predict", lambda route: held.append(route) if not held else route.continue_())
    tab.fill("#grid", "8x8")
    while not held:
        tab.wait_for_timeout(20)
    tab.fill("#grid", "16x16")
    page.settled()
    shown = joules(page)
    link = tab.url
    held[0].abort()
    tab.wait_for_timeout(300)
    assert (joules(page), tab.url) == (shown, link)
    asked = tab.evaluate("id => fetch(`/predictions/${id}/request`).then((r) => r.json())",
                         link.partition("prediction=")[2])  # fmt: skip
    assert asked["request"]["launch"]["grid"] == [16, 16]
    page.check_quiet()


@pytest.mark.parametrize("screen", [(1440, 900), (390, 800)])
def test_errors_stand_once_in_sight_and_in_the_margin(
    page: Watched, screen: tuple[int, int]
) -> None:
    page.open()
    tab = page.page
    tab.set_viewport_size(dict(zip(("width", "height"), screen, strict=True)))
    old = joules(page)
    at_line(page, "__syncthreads")
    tab.evaluate("() => document.getElementById('editor').scrollIntoView()")
    tab.keyboard.type(" wrong;")
    tab.wait_for_selector("#kernel-error:has-text('wrong')")
    told = tab.inner_text("#kernel-error")
    assert told.count("wrong") == 1
    assert told.startswith("line 15:")
    box = tab.locator("#kernel-error").bounding_box()
    assert box
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= screen[1]
    expect(tab.locator("#editor .cm-lint-marker-error")).to_have_count(1)
    # What is shown is still of the code before, and says so.
    assert joules(page) == old
    assert tab.get_attribute("#result", "data-state") == "stale"
    tab.locator("#editor .cm-lint-marker-error").hover()
    expect(tab.locator("#editor .cm-tooltip-lint")).to_contain_text("wrong")
    tab.locator(EDITOR).focus()
    for _ in " wrong;":
        tab.keyboard.press("Backspace")
    page.settled()
    assert tab.locator("#kernel-error").is_hidden()
    expect(tab.locator("#editor .cm-lint-marker-error")).to_have_count(0)
    assert all("422" in told for told in page.complaints)
    assert not page.foreign


def test_source_ptx_and_energy_are_linked(page: Watched) -> None:
    page.open()
    tab = page.page
    row = tab.locator("#hot-list tbody tr").first
    assert row.get_attribute("data-line") == "20"
    row.hover()
    assert "tile[threadIdx.x]" in lines(page, "#editor", "marked")[0]
    assert any(line.startswith("ld.shared") for line in lines(page, "#code", "marked"))
    # A line has one colour everywhere.
    colour = row.evaluate("row => [...row.classList].find((name) => name.startsWith('link-'))")
    assert any(line.startswith("ld.shared") for line in lines(page, "#code", colour))
    tab.locator("#editor .cm-line", has_text="in[(y + j)").click()
    expect(tab.locator("#hot-list tr.marked")).to_have_attribute("data-line", "13")
    assert any(line.startswith("ld.global") for line in lines(page, "#code", "marked"))
    tab.locator("#code .cm-line", has_text="st.global").first.hover()
    expect(tab.locator("#hot-list tr.marked")).to_have_attribute("data-line", "20")
    # By keyboard: the buttons of the list.
    tab.focus("#hot-list tbody tr:nth-child(2) button")
    assert "in[(y + j)" in lines(page, "#editor", "marked")[0]
    page.check_quiet()


def test_the_editor_has_a_name_and_lets_the_tab_key_pass(page: Watched) -> None:
    page.open()
    tab = page.page
    editor = tab.get_by_role("textbox", name="PTX or CUDA source")
    editor.focus()
    before = tab.input_value("#source")
    tab.keyboard.press("Tab")
    assert tab.input_value("#source") == before
    inside = "document.getElementById('editor').shadowRoot.activeElement"
    assert tab.evaluate(f"{inside} === null")
    tab.click("#source-label")
    assert tab.evaluate(f"{inside} !== null")
    # Its style sheets are constructed, so that the policy of the page stays as it is.
    assert tab.evaluate("document.getElementById('editor').shadowRoot.adoptedStyleSheets.length")
    assert tab.locator("style").count() == 0
    font = tab.locator(EDITOR).evaluate("one => getComputedStyle(one).fontFamily")
    assert "mono" in font
    tokens = "document.getElementById('editor').shadowRoot.querySelectorAll('.cm-line span')"
    colours = tab.evaluate(f"new Set([...{tokens}].map((one) => getComputedStyle(one).color)).size")
    assert colours >= 4
    page.check_quiet()


def test_it_is_pleasant_at_every_width_in_the_dark_too(
    browser: Browser, service: httpx.Client
) -> None:
    grounds = set()
    for width in (360, 1440):
        for scheme in SCHEMES:
            size = {"width": width, "height": 900}
            with watched(browser, service, viewport=size, color_scheme=scheme) as page:
                page.open()
                page.settled()
                grounds.add(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))
                where = f"{width}-{scheme}"
                page.check_width(where)
                if (width == 360) == (scheme == "dark"):  # each once
                    page.check_access(where)
                if width == 1440:  # the picture, the advice and the heat without scrolling
                    hot = page.page.locator("#editor .cm-line.heat-10").first.bounding_box()
                    assert hot is not None
                    assert hot["y"] + hot["height"] < size["height"]
                page.check_quiet()
    assert len(grounds) == 2
