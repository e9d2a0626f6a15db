"""The page in a real browser: old beside new code, and the cost of an application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.app.test_sweep import TILED
from tests.e2e.browser import SCHEMES, Watched, needs_chromium, watched
from tests.needs import needs_nvrtc
from wattcast.app.demo import examples
from wattcast.features.launch import usual_blocks

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def slower(vector_add: str) -> str:
    """The example with a double-precision detour."""
    added = "add.f32 \t%f3, %f2, %f1;"
    assert added in vector_add
    detour = "".join(
        f"cvt.f64.f32 %fd{at}, %f3;\nfma.rn.f64 %fd{at}, %fd{at}, %fd{at}, %fd{at};\n"
        f"cvt.rn.f32.f64 %f3, %fd{at};\n"
        for at in range(1, 33)
    )
    return vector_add.replace(".reg .b64", ".reg .f64 %fd<33>;\n.reg .b64", 1).replace(
        added, f"{added}\n{detour}"
    )


def compared(page: Watched) -> Any:
    """The answer to a press on Compare, once it is shown."""
    with page.page.expect_response("**/compare") as answer:
        page.page.click("#diff-form button[type=submit]")
    page.page.wait_for_selector("#diff-tables details")
    return answer.value.json()


def looked_at(page: Watched, name: str) -> None:
    """Both widths and colour schemes: nothing sticks out, no serious violation."""
    tab = page.page
    for width in (360, 1440):
        tab.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            tab.emulate_media(color_scheme=scheme)
            where = f"{name}-{width}-{scheme}"
            page.check_width(where)
            if (width == 360) == (scheme == "dark"):  # each once
                page.check_access(where)


def test_old_and_new_code(
    page: Watched, service: httpx.Client, vector_add: str, slower: str
) -> None:
    page.open("/#diff")
    tab = page.page
    tab.wait_for_selector("#diff-tables details")  # the solved example
    tab.fill("#diff-old", "")
    tab.click("#diff-form button[type=submit]")
    tab.wait_for_selector("#diff-error:has-text('Paste the old code')")
    # Old from the form, new from a file.
    page.vector_add()
    page.view("diff")
    tab.click("#diff-old-take")
    assert "vector_add.ptx · PTX · 1 kernel" in tab.inner_text("#diff-old-note")
    file: Any = {"name": f"{HOSTILE}.ptx", "mimeType": "text/plain", "buffer": slower.encode()}
    tab.set_input_files("#diff-new-file", file)
    tab.wait_for_selector("#diff-new-note:has-text('onerror')")
    tab.fill("#diff-energy", "+5 %")
    answer = compared(page)
    (one,) = answer["comparisons"]
    assert one["exceeded"] == ["max_energy_percent"]
    assert "Beyond the limits" in tab.inner_text("#diff-verdict")
    energy = tab.inner_text("#diff-tables tbody tr:has-text('Energy') >> nth=0")
    assert f"+{one['change']['energy_percent']:.3g} %" in energy
    assert "+5 %" in energy
    assert "beyond" in energy
    assert "none" in tab.inner_text("#diff-tables tbody tr:has-text('Time') >> nth=0")
    assert "fp64" in tab.inner_text("#diff-tables table.bars")
    assert tab.input_value("#diff-markdown") == answer["markdown"]
    looked_at(page, "diff")
    # The service says the same of the same request.
    body = {"old": {"ptx": vector_add}, "new": {"ptx": slower}, "gpu": "tesla-v100",
            "launch": {"grid": 4096, "block": 256}}  # fmt: skip
    again = service.post("/compare", json=body).json()["comparisons"][0]
    assert again["change"] == one["change"]
    page.check_quiet()


def test_a_change_within_its_limits_on_several_gpus(
    page: Watched, vector_add: str, slower: str
) -> None:
    page.open("/#diff")
    tab = page.page
    tab.fill("#diff-old", slower)
    tab.fill("#diff-new", vector_add)
    tab.fill("#diff-energy", "−1")
    tab.click("#diff-form summary:has-text('Several GPUs')")
    for gpu in ("tesla-p100", "tesla-v100"):
        tab.fill("#diff-gpus input[type=search]", gpu)
        tab.press("#diff-gpus input[type=search]", "Enter")
        tab.wait_for_selector(f"#diff-gpus [data-gpu={gpu}]")
    answer = compared(page)
    assert [one["gpu"] for one in answer["comparisons"]] == ["tesla-p100", "tesla-v100"]
    assert answer["passed"]
    assert tab.inner_text("#diff-verdict") == "Within the limits"
    assert tab.locator("#diff-tables details").count() == 2
    tab.fill("#diff-energy", "much")  # the browser refuses what is no percentage
    assert not tab.evaluate("document.getElementById('diff-form').checkValidity()")
    tab.fill("#diff-energy", "")
    compared(page)
    assert tab.inner_text("#diff-verdict") == "What changes"
    page.check_quiet()


def test_what_differs_in_its_kernels_is_told(page: Watched, vector_add: str) -> None:
    page.open("/#diff")
    tab = page.page
    other = vector_add[vector_add.index(".visible .entry") :].replace("vector_add", "another")
    tab.fill("#diff-old", vector_add)
    tab.fill("#diff-new", vector_add + other)
    compared(page)
    assert "Only in the new code: another" in tab.inner_text("#diff-sub")
    tab.fill("#diff-new", "not PTX at all")
    tab.click("#diff-form button[type=submit]")
    tab.wait_for_selector("#diff-error:has-text('new:')")


def test_cost_of_an_application(page: Watched, slower: str) -> None:
    page.open("/#cost")
    tab = page.page
    tab.click("#cost-form button[type=submit]")
    tab.wait_for_selector("#cost-error:has-text('Add a kernel first')")
    page.vector_add()
    page.view("cost")
    tab.click("#cost-add")
    tab.fill("#cost-list tbody tr:nth-child(1) input", "1000000000")
    page.view("predict")
    tab.fill("#source", slower)
    tab.fill("#grid", "512")
    page.view("cost")
    tab.click("#cost-add")
    # The keyboard is in the field of the new row already.
    assert "512 x 256" in (tab.evaluate("document.activeElement.ariaLabel") or "")
    tab.keyboard.type("20")
    tab.click("#cost-add")
    tab.click("#cost-list tbody tr:nth-child(3) button")
    with tab.expect_response("**/cost") as first:
        tab.click("#cost-form button[type=submit]")
    answer = first.value.json()
    tab.wait_for_selector("#cost-table tbody tr")
    assert [one["launches"] for one in answer["kernels"]] == [10**9, 20]
    assert answer["price"] is answer["co2"] is None
    # Nothing is assumed of what was not given.
    assert "Give a price" in tab.inner_text("#cost-amount")
    assert "Give a carbon intensity" in tab.inner_text("#cost-co2")
    tab.fill("#cost-price", "0.32")
    tab.click("#cost-form button[type=submit]")
    tab.wait_for_selector("#cost-error:has-text('currency')")
    tab.fill("#cost-currency", HOSTILE[:16])
    tab.fill("#cost-carbon", "380")
    with tab.expect_response("**/cost") as second:
        tab.click("#cost-form button[type=submit]")
    answer = second.value.json()
    tab.wait_for_selector("#cost-amount:has-text('img')")
    assert tab.inner_text("#cost-energy .value").split()[0] in f"{answer['energy']['joules']:.3g}"
    assert f"{answer['kwh']:.4g}" in tab.inner_text("#cost-energy h3")
    assert f"{answer['co2']['grams']:.3g}" in tab.inner_text("#cost-co2")
    assert tab.locator("#cost-table tbody tr").count() == 2
    looked_at(page, "cost")
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.click("#cost-table tbody tr:nth-child(2) button")
    tab.wait_for_selector("#waterfall")
    assert tab.input_value("#grid") == "512"
    page.check_quiet()


# --- The page in a real browser: it opens on a solved example, and follows what is edited

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


# --- The tab Sweep in a real browser: what it proposes, what it leaves out, and how it draws both

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
