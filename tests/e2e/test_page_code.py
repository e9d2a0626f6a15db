"""The page in a real browser: old beside new code, and the cost of an application."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.e2e.browser import SCHEMES, Watched, needs_chromium

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
