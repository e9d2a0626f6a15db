"""The page in a real browser: from pasted PTX to a link that says the same elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.e2e.browser import Watched, needs_chromium, watched
from tests.fixtures.ptx_text import stored_ptx

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

TWO_KERNELS = stored_ptx("two_kernels")


def test_what_to_give_stands_above_the_numbers_that_rest_on_its_absence(page: Watched) -> None:
    page.open()
    tab = page.page
    tab.fill("#source", TWO_KERNELS)
    tab.wait_for_selector("#source-note:has-text('2 kernels')")
    tab.select_option("#kernel", "second")
    tab.fill("#grid", "64")
    tab.click("#predict")
    tab.wait_for_selector("#needs li")
    (told,) = tab.locator("#needs li").all_inner_texts()
    assert told.startswith("Give n (argument 1): it decides the loop in line 21")
    assert "time grows about linearly with it" in told
    above, below = (tab.locator(each).bounding_box() for each in ("#needs", "#numbers"))
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]
    tab.fill("#source", TWO_KERNELS.replace("setp.lt.s32 %p1, %r2, %r1", "setp.lt.s32 %p1, %r2, 7"))
    tab.wait_for_selector("#source-note:has-text('2 kernels')")
    tab.select_option("#kernel", "second")
    tab.click("#predict")
    expect(tab.locator("#needs li")).to_have_count(0)
    assert tab.locator("#number-time").is_visible()


def test_from_paste_to_a_link_that_says_the_same(
    page: Watched, browser: Browser, service: httpx.Client, vector_add: str
) -> None:
    page.open()
    tab = page.page
    tab.fill("#source", vector_add)
    tab.wait_for_selector("#source-note:has-text('1 kernel')")
    tab.fill("#grid", "2048")
    tab.fill("#block", "256")
    page.predict()
    answer = service.get(f"/predictions/{tab.url.partition('prediction=')[2]}").json()
    assert page.number("power").split()[0] == f"{answer['power']['watts']:.3g}"
    assert "Not measured before" in tab.inner_text("#number-power")
    # The parts are the explanation's own, largest first.
    asked = {"prediction_id": answer["id"], "target": "power"}
    told = service.get("/explain", params=asked).json()["contributions"]
    shown = tab.locator("#waterfall tbody th").all_inner_texts()
    assert [name.split()[0] for name in shown[1:4]] == [one["feature"] for one in told[:3]]
    tab.select_option("#explain-target", "time")
    tab.wait_for_selector("#waterfall caption:has-text('What makes the time')")
    # The costliest line is first in the list, and hot in the code.
    hot = service.get(f"/predictions/{answer['id']}/hotspots").json()["lines"]["rows"][0]
    listed = tab.inner_text(f"#hot-list tr[data-line='{hot['line']}']")
    assert " ".join(hot["text"].split()) in listed
    assert hot["text"].split()[0] in tab.inner_text("#editor .cm-line.heat-10 >> nth=0")
    # Sweep: as many cells as shapes, and a shape goes back into the form.
    page.view("sweep")
    tab.fill("#sweep-registers", "32, 255")
    with tab.expect_response("**/sweep") as swept:
        tab.click("#sweep-form button[type=submit]")
    tab.wait_for_selector("#sweep-map .heatmaplayer image", state="attached")
    tab.click("#sweep-result summary:has-text('All shapes')")
    points = swept.value.json()["points"]
    assert tab.locator("#sweep-table tbody tr").count() == len(points) > 8
    assert "left out" in tab.inner_text("#sweep-left-out-title")
    assert "cannot be launched" in tab.inner_text("#sweep-infeasible-title")
    tab.click("#sweep-best tbody button >> nth=0")
    assert tab.input_value("#registers_per_thread") == "32"
    page.check_access("sweep")
    # The link: another session, which knows nothing, sees the same numbers and the same code.
    link = tab.input_value("#share")
    numbers = [page.number(name) for name in ("power", "time", "energy")]
    with watched(browser, service) as other:
        other.open(link.removeprefix(other.url))
        other.settled()
        assert [other.number(name) for name in ("power", "time", "energy")] == numbers
        assert other.page.input_value("#grid") == "2048"
        assert other.page.input_value("#source") == vector_add
        other.check_quiet()
    page.check_quiet()


def test_a_gpu_is_found_by_any_of_its_names(page: Watched) -> None:
    page.open()
    tab, search = page.page, page.page.locator("#gpu-search")
    options = tab.locator("#gpu-names option")
    assert options.count() == tab.locator("#gpu option").count() > 100
    for typed, gpu in (
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("10de:2684", "rtx-4090"),
        ("rtx a6000", "rtx-a6000"),
    ):
        search.fill(typed)
        search.press("Enter")
        expect(tab.locator("#gpu")).to_have_value(gpu)
        assert search.input_value() == ""
    page.view("compare")
    tab.wait_for_selector("#compare-table tbody tr")
    chips = tab.locator("#compare-gpus [data-gpu]")
    assert chips.count() == 10
    add = tab.locator("#compare-gpus input[type=search]")
    for _ in range(2):  # the second time it is there already
        add.fill("rtx a5000")
        add.press("Enter")
        expect(add).to_have_value("")
    assert chips.count() == 11
    tab.click("#compare-gpus [data-gpu=t4]")
    assert chips.count() == 10
    assert tab.evaluate("document.activeElement.ariaLabel") == "Add a GPU"
    with tab.expect_response("**/compare") as answered:
        tab.click("#compare-form button[type=submit]")
    told = [one["gpu"] for one in answered.value.json()["comparisons"]]
    assert "rtx-a5000" in told
    assert "t4" not in told
    row = answered.value.json()["comparisons"][told.index("l4")]["new"]
    for given, name, text in (
        ("l4", "error", "l4: a board with its price"),
        ("L4=.72 kWh=.36", "table", ""),
    ):
        tab.fill("#compare-prices", given)
        tab.press("#compare-prices", "Tab")
        expect(tab.locator(f"#compare-{name}")).to_contain_text(text or "A million launches cost")
    priced = tab.locator(
        "#compare-table tbody tr", has=tab.get_by_role("rowheader", name="l4", exact=True)
    )
    dear = 1e6 * (row["time"]["seconds"] / 3600 * 0.72 + row["energy"]["joules"] / 3.6e6 * 0.36)
    assert float(priced.locator("td").nth(3).inner_text()) == pytest.approx(dear, rel=0.01)
    page.check_access("compare")
    page.check_quiet()
    search.fill("a100-40gb")
    with tab.expect_response("**/gpus/a100-40gb"):
        search.press("Enter")
    expect(tab.locator("#gpu-search:invalid")).to_have_count(1)
    told = search.evaluate("field => field.validationMessage")
    assert "a100-pcie-40gb, a100-sxm4-40gb" in told
    assert tab.input_value("#gpu") == "rtx-a6000"


def test_clocks_gpus_and_history(page: Watched) -> None:
    page.open()
    page.predict_example()
    tab = page.page
    kept, asked = page.number("energy"), tab.url.partition("prediction=")[2]
    tab.select_option("#gpu", "gtx-titan-x")
    page.view("clocks")
    tab.fill("#clocks-slowdown", "10")
    tab.click("#clocks-form button[type=submit]")
    tab.wait_for_selector("#clocks-map .heatmaplayer image", state="attached")
    tab.wait_for_selector("#clocks-pareto .scatterlayer .trace")
    least = tab.inner_text("#clocks-best tr:has-text('Least energy') td:last-child")
    assert float(least.split()[0]) <= 10
    page.check_access("clocks")
    page.view("compare")  # asks by itself
    tab.wait_for_selector("#compare-figure .scatterlayer .trace")
    assert tab.locator("#compare-table tbody tr").count() == 10
    page.check_access("compare")
    tab.fill("#grid", "1")  # the form takes what was asked then
    page.view("history")
    with tab.expect_response(f"**/predictions/{asked}/hotspots*"):
        tab.click(f"#history-table a[href$='{asked}']")
    assert tab.input_value("#grid") == "4096"
    assert page.number("energy") == kept
    page.check_quiet()


def test_clocks_from_a_profile(page: Watched) -> None:
    page.open()
    tab = page.page
    tab.select_option("#gpu", "quadro-rtx-8000")
    page.view("clocks")
    tab.fill("#counted-profile", "nothing a profiler prints")
    tab.click("#counted-form button[type=submit]")
    expect(tab.locator("#counted-error")).to_contain_text("no counters found")
    tab.fill("#counted-profile", "#Entity SMACT FP64A FP32A DRAMA\nGPU 0 0.95 0.0 0.31 0.62\n")
    tab.fill("#clocks-slowdown", "10")
    tab.click("#counted-form button[type=submit]")
    tab.wait_for_selector("#counted-best tr:has-text('Least energy')")
    best = tab.inner_text("#counted-best tr:has-text('Least energy') td:last-child")
    assert 0 < float(best.split()[0]) <= 10
    expect(tab.locator("#counted-error")).to_be_hidden()
    tab.click("#counted-result summary")
    assert tab.locator("#counted-table tbody tr").count() == 10
    page.check_access("profile")
    assert not page.foreign, page.foreign  # the refusal above is a console error


def test_the_keyboard_is_enough(page: Watched, vector_add: str) -> None:
    page.open()
    tab = page.page
    tab.focus("#editor .cm-content")
    tab.keyboard.press("Control+a")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.evaluate("text => navigator.clipboard.writeText(text)", vector_add)
    tab.keyboard.press("Control+v")
    tab.focus("#grid")
    with tab.expect_response("**/predict"):
        tab.keyboard.press("Enter")
    page.settled()
    tab.focus("#view-sweep > summary")
    tab.keyboard.press("Enter")
    expect(tab.locator("#sweep-form")).to_be_visible()
    tab.focus("#tab-kernel")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.id") == "tab-compare"
    assert tab.is_visible("#view-diff")
    assert not tab.is_visible("#answer")
    tab.keyboard.press("End")
    assert tab.evaluate("document.activeElement.id") == "tab-admin"
    # One tab is a stop of the Tab key, and what follows is inside its place.
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "place-admin"
    page.check_quiet()


def test_kernels_loops_and_arguments_are_found(page: Watched) -> None:
    page.open()
    tab = page.page
    tab.fill("#source", TWO_KERNELS)
    tab.wait_for_selector("#source-note:has-text('2 kernels')")
    assert tab.locator("#kernel option").all_inner_texts() == ["Choose a kernel", "first", "second"]
    tab.select_option("#kernel", "second")
    tab.click("#loops-box summary")
    tab.click("#inspect")
    tab.wait_for_selector("#arguments input")
    assert "$LOOP" in tab.inner_text("#loops")
    trips = tab.locator("#loops input")
    trips.fill("1000")
    page.predict()
    assert "1000 trips (given)" in tab.inner_text("#facts")
    few = page.number("energy")
    trips.fill("100000")
    with tab.expect_response("**/predict"):
        tab.click("#predict")
    tab.wait_for_selector("#facts:has-text('100000 trips (given)')")
    assert page.number("energy") != few
    page.check_quiet()


def test_hostile_text_is_text(page: Watched, service: httpx.Client) -> None:
    page.open()
    tab = page.page
    # A file's name and the comments in it.
    file: Any = {"name": f"{HOSTILE}.ptx", "mimeType": "text/plain", "buffer": TWO_KERNELS.encode()}
    tab.set_input_files("#source-file", file)
    tab.wait_for_selector("#source-note:has-text('onerror')")
    tab.select_option("#kernel", "first")
    tab.click("#predict")
    page.settled()
    assert "<script>" in tab.inner_text("#editor .cm-content")
    # Cells of a table, told back by the checks.
    page.view("measurements")
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    cells = f"gpu,ptx,grid,block,power_watts,{quoted}\nk20,a,1,1,50,{quoted}\n"
    table: Any = {"name": f"{HOSTILE}.csv", "mimeType": "text/csv", "buffer": cells.encode()}
    tab.set_input_files("#upload-file", table)
    tab.wait_for_selector("#upload-check td:has-text('onerror')")
    assert "0 rows would be taken, 1 refused" in tab.inner_text("#upload-check")
    assert HOSTILE.replace('"', '""') in tab.inner_text("#upload-check pre")
    # Names of kernels: no compiler lets these pass, so the answers are made up.
    shown = service.get("/predictions?limit=1").json()
    shown[0] |= {"kernel": HOSTILE, "gpu": HOSTILE}
    tab.route("**/predictions?*", lambda route: route.fulfill(json=shown))
    answer = service.get(f"/predictions/{shown[0]['id']}").json()
    answer["kernel"] = {"mangled": HOSTILE, "demangled": HOSTILE}
    answer["warnings"] = [{"code": "a", "detail": HOSTILE, "line": 1}]
    whole = json.dumps(answer)
    tab.route(f"**/predictions/{answer['id']}", lambda route: route.fulfill(body=whole))
    page.view("history")
    tab.click("#history-table a:has-text('onerror')")
    tab.wait_for_selector("#result-title:has-text('onerror')")
    assert HOSTILE in tab.inner_text("#result-title")
    assert tab.locator("img").count() == 1  # the sign in the corner
    assert tab.title() == "Wattcast"
    page.check_quiet()


def test_a_job_is_followed_to_its_end(page: Watched) -> None:
    page.open()
    tab = page.page
    states = iter(["queued", "running", "running", "done"])
    job = {"id": "x", "stage": "fold", "progress": 0.5, "error": None}
    tab.route("**/jobs/x", lambda route: route.fulfill(json={**job, "state": next(states)}))
    seen = tab.evaluate("""async () => {
        const script = document.querySelector("script[type=module]").src;
        const { follow } = await import(script.replace("main.js", "api.js"));
        const seen = [];
        const ended = await follow("x", (told) => seen.push(told.state));
        return [...seen, ended.state];
    }""")
    assert seen == ["queued", "running", "running", "done", "done"]
    page.check_quiet()


def test_where_keys_are_needed_the_page_asks_for_one(
    browser: Browser, tmp_path: Path, vector_add: str
) -> None:
    from wattcast.app.store.database import open_database
    from wattcast.app.store.keys import KeyStore

    settings = settings_at(tmp_path, api_keys="required", job_workers=0)
    with running(settings) as client, watched(browser, client) as page:
        engine = open_database(settings.sqlalchemy_url)
        _, token = KeyStore(engine).create("page", ["read"], "test")
        engine.dispose()
        tab = page.page
        tab.goto(page.url)
        tab.wait_for_selector("#key:focus")
        assert "no API key" in tab.inner_text("#key-error")
        tab.fill("#key", token)
        tab.keyboard.press("Enter")
        tab.wait_for_selector("html[data-ready=true]")
        page.predict_example()
        assert tab.locator("#tab-admin").is_hidden()  # the key may only read
        assert tab.locator("#tab-accuracy").is_visible()
        stored = tab.evaluate("[Object.values({...sessionStorage}), {...localStorage}]")
        assert stored == [[token], {}]
        assert all("401" in told for told in page.complaints)
        assert not page.foreign


def test_the_speed_of_light_says_what_binds_and_how_near_the_peaks_it_is(
    browser: Browser, service: httpx.Client
) -> None:
    """A transpose with bank conflicts, on a first visit and from its link on a second one."""
    text = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx" / "transpose.sm_70.ptx"
    link = "/"
    for width, scheme in ((1440, "light"), (390, "dark")):
        with watched(
            browser, service, viewport={"width": width, "height": 900}, color_scheme=scheme
        ) as page:
            page.open(link)
            tab = page.page
            if link == "/":
                tab.fill("#source", text.read_text(encoding="utf-8"))
                tab.wait_for_selector("#source-note:has-text('kernels')")
                tab.select_option("#kernel", "transpose_shared")
                tab.select_option("#gpu", "gtx-1080-ti")
                tab.fill("#grid", "128x128")
                tab.fill("#block", "32x8")
                page.predict()
            page.settled()
            tab.locator("#roofline").scroll_into_view_if_needed()
            tab.wait_for_selector("#roofline .scatterlayer .point", state="attached")
            link = tab.input_value("#share").removeprefix(page.url)
            answer = service.get(f"/predictions/{link.partition('=')[2]}").json()
            told = answer["speed_of_light"]
            assert tab.inner_text("#speed-bound") == "shared-memory bank conflicts"
            used = {one["name"]: one["share"] for one in told["units"] if one["share"]}
            rows = tab.locator("#speed tbody tr")
            assert rows.locator("th").all_inner_texts() == list(used)
            for share, shown in zip(
                used.values(), rows.locator("td:nth-child(3)").all_inner_texts(), strict=True
            ):
                assert float(shown.split()[0]) == float(f"{100 * share:.3g}")
            # The longest bar is that of what binds.
            widths = rows.locator("svg rect:last-child").evaluate_all(
                "bars => bars.map((bar) => bar.getBoundingClientRect().width)"
            )
            assert max(zip(widths, used, strict=True))[1] == "shared memory"
            # The point lies below the roof: further down the picture.
            point, roof = (
                tab.locator(f"#roofline .scatterlayer {part}").first.bounding_box()
                for part in (".point", ".js-line")
            )
            assert point is not None
            assert roof is not None
            assert roof["y"] < point["y"]
            assert "under the memory roof" in (tab.get_attribute("#roofline", "aria-label") or "")
            assert "under the memory roof" in tab.inner_text("#roofline-said")
            page.check_access(f"speed of light, {scheme}")
            page.check_width(f"speed of light at {width}")
            page.check_quiet()
