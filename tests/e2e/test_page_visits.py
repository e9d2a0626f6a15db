"""Every visit is like the first: from the cache, reloaded, back, by a link; and /docs offline."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.browser import Watched, needs_chromium

pytestmark = needs_chromium


def check_alive(page: Watched) -> None:
    """Started, styled by our sheets, and quiet."""
    page.page.wait_for_selector("html[data-ready=true]")
    rules = "[...document.styleSheets].reduce((sum, sheet) => sum + sheet.cssRules.length, 0)"
    assert page.page.evaluate(rules) > 50
    page.check_quiet()


def test_the_second_visit_is_like_the_first(page: Watched) -> None:
    page.open()
    check_alive(page)
    tab = page.page
    for _ in range(2):
        tab.goto(page.url + "/")
        check_alive(page)
    tab.reload()
    check_alive(page)


def test_a_browser_asks_again_and_is_told_unchanged(page: Watched, service: httpx.Client) -> None:
    """The tests above mean something only where the browser does revalidate."""
    etag = service.get("/").headers["etag"]
    asked: list[str] = []
    page.open()
    page.page.on(
        "request",
        lambda request: asked.append(request.all_headers().get("if-none-match", "")),
    )
    page.page.goto(page.url + "/")
    check_alive(page)
    assert etag in asked


def test_back_and_forward_and_a_link_to_a_prediction(page: Watched) -> None:
    page.open()
    page.predict_example()
    tab = page.page
    link, energy = tab.url, page.number("energy")
    assert "prediction=" in link
    tab.goto(page.url + "/docs")
    tab.wait_for_selector("#swagger-ui .opblock")
    tab.go_back()
    page.settled()
    assert page.number("energy") == energy
    check_alive(page)
    tab.go_forward()
    tab.wait_for_selector("#swagger-ui .opblock")
    page.check_quiet()
    tab.goto(link)  # by its address, with everything in the cache
    page.settled()
    assert page.number("energy") == energy
    tab.reload()
    page.settled()
    check_alive(page)


@pytest.mark.slow
def test_the_documentation_needs_no_other_machine(page: Watched) -> None:
    tab = page.page
    for visit in range(3):
        if visit < 2:
            tab.goto(page.url + "/docs")
        else:
            tab.reload()
        tab.wait_for_selector("#swagger-ui .opblock")
        assert tab.locator("#swagger-ui .opblock").count() > 20
        page.check_quiet()
    tab.click("#swagger-ui .opblock-summary-path[data-path='/predict']")
    tab.wait_for_selector("#swagger-ui .opblock-body")
    page.check_quiet()


def test_the_link_to_an_operator_is_titled_with_its_name(
    page: Watched, service: httpx.Client
) -> None:
    operator = {"name": "gemm", "m": 512, "n": 512, "k": 512}
    found = service.post("/predict", json={"gpu": "h200", "operator": operator}).json()
    page.open(f"/?prediction={found['id']}")
    page.page.wait_for_selector("#result-title:has-text('gemm on h200-sxm5')")


@pytest.mark.parametrize("visits", [1, 2])
def test_a_link_to_another_place_opens_it_and_keeps_its_address(page: Watched, visits: int) -> None:
    """The first example, which is shown before all else, changes neither."""
    tab = page.page
    for name, place in (("diff", "compare"), ("cost", "application")):
        for _ in range(visits):
            tab.goto("about:blank")
            page.open(f"/#{name}")
        assert tab.locator("[role=tab][aria-selected=true]").get_attribute("id") == f"tab-{place}"
        assert tab.locator(f"#view-{name}").is_visible()
        assert tab.url.endswith(f"/#{name}")
        tab.click("#tab-kernel")
        page.settled()  # the example is there all the same
    page.check_quiet()


def test_the_first_example_is_in_the_page_and_another_is_asked_for(page: Watched) -> None:
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.open()
    page.settled()
    assert not [name for name in asked if name in ("transpose.json", "predict")]
    page.open("/?example=matmul")
    page.settled()
    assert "matmul.json" in asked
    assert "transpose.json" not in asked
    page.check_quiet()
