"""Forms that take no code, in a real browser: a library operator, and a language model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser import Watched, needs_chromium
from wattcast.app.demo import SOLVED

pytestmark = needs_chromium


def opened(page: Watched, name: str) -> Page:
    """The view with the example that it opens on."""
    page.open()
    page.view(name)
    page.page.wait_for_selector(f"#{name}-result:not([hidden])")
    return page.page


def answered(tab: Page, name: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Press the button: what was sent, and what came back once it is shown."""
    with tab.expect_response(f"**{path}") as response:
        tab.click(f"#{name}-form button[type=submit]")
    answer: dict[str, Any] = json.loads(response.value.body())
    sent: dict[str, Any] = json.loads(response.value.request.post_data or "")
    tab.wait_for_selector(f"#{name}-busy:empty", state="attached")
    return sent, answer


@pytest.mark.parametrize("name", ["operator", "language"])
def test_each_opens_on_its_solved_example_and_asks_the_same(page: Watched, name: str) -> None:
    solved = json.loads(SOLVED.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    tab = opened(page, name)
    shown = tab.inner_text(f"#{name}-numbers")
    sent, answer = answered(tab, name, "/predict" if name == "operator" else "/language-models")
    ends = [[each["energy"][end] for end in ("joules", "low", "high")]
            for each in (answer, solved["prediction"])]  # fmt: skip
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)  # last digits are the processor's
    assert tab.inner_text(f"#{name}-numbers") == shown
    asked = solved["request"]
    for member in (set(asked) & set(sent)) - {"operator"}:
        assert sent[member] == asked[member]
    assert sent.get("operator") == asked.get("operator")
    page.check_access(name)
    assert not page.complaints
    assert not page.foreign


def test_an_operator_of_another_kind_is_asked_with_its_own_fields(
    page: Watched, service: httpx.Client
) -> None:
    tab = opened(page, "operator")
    tab.select_option("#operator-name", "attention")
    shape = tab.locator("#operator-form fieldset:not([hidden])")
    assert shape.count() == 1
    shape.locator("[name=phase]").select_option("decode")
    shape.locator("[name=heads]").fill("32")
    shape.locator("[name=kv_heads]").fill("8")
    shape.locator("[name=cached_tokens]").fill("4096")
    tab.fill("#operator-form [name=gpu]", "h200")
    sent, answer = answered(tab, "operator", "/predict")
    assert sent == {
        "gpu": "h200",
        "operator": {
            **{"name": "attention", "phase": "decode", "heads": 32, "kv_heads": 8},
            **{"cached_tokens": 4096, "causal": True, "dtype": "bfloat16", "kv_dtype": "bfloat16"},
        },
    }
    assert "attention on h200-sxm5" in tab.inner_text("#operator-title")
    tab.click("#operator-facts a")
    tab.wait_for_selector("#result-title:has-text('attention')")
    tab.wait_for_selector("#waterfall")
    assert f"prediction={answer['id']}" in tab.url
    assert not page.complaints


def test_errors_stand_beside_the_button(page: Watched) -> None:
    tab = opened(page, "operator")
    tab.fill("#operator-form [name=gpu]", "no-such-board")
    answered(tab, "operator", "/predict")
    assert "no-such-board" in tab.inner_text("#operator-error")
    tab = opened(page, "language")
    tab.fill("#language-config", "{")
    tab.click("#language-form button[type=submit]")
    tab.wait_for_selector("#language-error:has-text('JSON')")
    tab.fill("#language-config", '{"hidden_size": "<b>4</b>"}')
    answered(tab, "language", "/language-models")
    assert "not '<b>4</b>'" in tab.inner_text("#language-error")


def test_a_config_from_a_file_over_power_limits(page: Watched) -> None:
    tab = opened(page, "language")
    config = json.loads(tab.input_value("#language-config")) | {"num_hidden_layers": 2}
    file: Any = {"name": "config.json", "mimeType": "application/json"}
    tab.set_input_files("#language-file", {**file, "buffer": json.dumps(config).encode()})
    expect(tab.locator("#language-config")).to_have_value(json.dumps(config))
    tab.fill("#language-form [name=batches]", "")
    tab.fill("#language-form [name=power_limits_watts]", "400, 500, 700")
    sent, answer = answered(tab, "language", "/language-models")
    assert sent["power_limits_watts"] == [400, 500, 700]
    assert answer["model"]["layers"] == 2
    tab.wait_for_selector("#language-curve:has-text('Power limit, W') .scatterlayer .trace")
    tab.wait_for_selector("#language-operators .barlayer .trace")
    rows = tab.locator("#language-tables tbody").last.locator("tr")
    assert rows.count() == 3
    assert not page.complaints
