"""GET /explain: power and time, SHAP and LIME, as JSON, SVG, PNG and HTML."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from tests.app.conftest import Run
from tests.app.test_problems import json_of, problem
from tests.fixtures.tables import rows
from wattcast.app.api.predictions import MEDIA, chosen
from wattcast.predictor.explain.pictures import Chart, draw, png, svg
from wattcast.predictor.messages.explain import (
    LimeAnswer,
    ShapAnswer,
    TimeLimeAnswer,
    TimeShapAnswer,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"
MATMUL = (FIXTURES / "time" / "tiled_matmul.ptx").read_text(encoding="utf-8")
MATMUL_LAUNCH = {"grid": [8, 8], "block": [32, 32], "arguments": {"3": 256}}
TIME_MODELS = (
    "bottleneck", "scheduling", "delay", "queueing", "queueing-cases", "roofline", "volkov",
)  # fmt: skip


def predicted(client: httpx.Client, ptx: str, **body: Any) -> dict[str, Any]:
    launch = {"grid": [4096], "block": [256]}
    return json_of(
        client.post("/predict", json={"ptx": ptx, "gpu": "v100", "launch": launch, **body})
    )


def explain(
    client: httpx.Client, prediction: dict[str, Any], accept: str = "*/*", **query: Any
) -> httpx.Response:
    asked = {"prediction_id": prediction["id"], **query}
    return client.get("/explain", params=asked, headers={"Accept": accept})


# --- power -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["physical", "catboost"])
def test_every_part_says_what_it_means_and_its_energy(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    prediction = predicted(client, vector_add, model=model)
    found = explain(client, prediction).json()
    ShapAnswer.model_validate(found)
    total = found["base_watts"] + sum(part["watts"] for part in found["contributions"])
    assert total == pytest.approx(prediction["power"]["watts"], abs=1e-3)
    for part in found["contributions"]:
        assert part["joules"] == pytest.approx(part["watts"] * prediction["time"]["seconds"])
        assert ("programmer can change it" in part["meaning"]) == part["changeable"]


def test_shares_at_other_clocks_sum_to_the_power_there(
    client: httpx.Client, vector_add: str
) -> None:
    prediction = predicted(client, vector_add, model="catboost", clocks={"core_mhz": 705})
    assert "power_scaled" in {warning["code"] for warning in prediction["warnings"]}
    found = explain(client, prediction).json()
    total = found["base_watts"] + sum(part["watts"] for part in found["contributions"])
    assert total == pytest.approx(prediction["power"]["watts"], abs=1e-3)
    lime = explain(client, prediction, method="lime").json()
    assert lime["prediction_watts"] == pytest.approx(prediction["power"]["watts"], abs=1e-3)


@pytest.mark.parametrize("model", ["physical", "catboost"])
def test_several_seeds_tell_how_stable_lime_is(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    prediction = predicted(client, vector_add, model=model)
    alone = explain(client, prediction, method="lime").json()
    assert alone["stability"] is None
    found = explain(client, prediction, method="lime", seeds=3).json()
    LimeAnswer.model_validate(found)
    assert found["stability"]["seeds"] == 3
    assert 0 <= found["stability"]["selection"] <= 1
    assert all(part["spread"] >= 0 for part in found["contributions"])
    bare = [{**part, "spread": None} for part in found["contributions"]]
    assert bare == alone["contributions"]
    problem(explain(client, prediction, method="lime", seeds=1000), 422, "validation")


# --- time --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TIME_MODELS)
def test_parts_of_the_time_sum_to_it(client: httpx.Client, family: str) -> None:
    prediction = predicted(client, MATMUL, launch=MATMUL_LAUNCH, time_model=family)
    found = explain(client, prediction, target="time").json()
    TimeShapAnswer.model_validate(found)
    seconds = prediction["time"]["seconds"]
    assert found["prediction_seconds"] == seconds
    total = sum(part["seconds"] for part in found["contributions"])
    assert total == pytest.approx(seconds, rel=1e-6)
    lime = explain(client, prediction, target="time", method="lime").json()
    TimeLimeAnswer.model_validate(lime)
    shares = {part["feature"]: part["seconds"] for part in found["contributions"]}
    strongest = [part for part in lime["contributions"] if part["seconds"]][:5]
    assert all(part["seconds"] * shares[part["feature"]] > 0 for part in strongest)


def test_what_binds_sums_to_the_time_too(client: httpx.Client, vector_add: str) -> None:
    prediction = predicted(client, vector_add)
    found = explain(client, prediction, target="time").json()
    binding = {part["feature"]: part["binding_seconds"] for part in found["contributions"]}
    assert sum(binding.values()) == pytest.approx(prediction["time"]["seconds"])
    assert max(binding, key=lambda name: binding[name]) == "dram"
    others = predicted(client, vector_add, time_model="roofline")
    found = explain(client, others, target="time").json()
    assert {part["binding_seconds"] for part in found["contributions"]} == {None}


# --- formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["power", "time"])
@pytest.mark.parametrize("method", ["shap", "lime"])
@pytest.mark.parametrize("chart", ["waterfall", "bar"])
def test_pictures_and_pages(
    client: httpx.Client, vector_add: str, target: str, method: str, chart: str
) -> None:
    prediction = predicted(client, vector_add, model="physical")
    asked = {"target": target, "method": method, "chart": chart}
    picture = explain(client, prediction, format="svg", **asked)
    assert picture.headers["content-type"].startswith("image/svg+xml")
    root = ElementTree.fromstring(picture.text)
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith(f"{target} in ") for text in texts)
    assert any("dram" in text for text in texts)
    assert ("prediction" in texts) == (chart == "waterfall" and method == "shap")
    assert "style" not in {name for node in root.iter() for name in node.attrib}
    if chart == "waterfall":
        image = explain(client, prediction, format="png", **asked)
        assert image.headers["content-type"] == "image/png"
        assert image.content.startswith(b"\x89PNG\r\n\x1a\n")
    page = explain(client, prediction, format="html", **asked)
    assert page.headers["content-type"].startswith("text/html")
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    assert "<svg" in page.text
    assert "programmer" in page.text
    assert "<script" not in page.text


def test_content_negotiation(client: httpx.Client, vector_add: str) -> None:
    prediction = predicted(client, vector_add, model="physical")
    for accept, media in (
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
        ("image/avif,image/webp,image/*", "image/svg+xml"),
        ("image/png", "image/png"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("application/x-nothing", "application/json"),
    ):
        answer = explain(client, prediction, accept=accept)
        assert answer.headers["content-type"].startswith(media), accept
        assert "Accept" in answer.headers["vary"]
    asked = explain(client, prediction, accept="text/html", format="json")
    assert asked.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        (None, "json"),
        ("", "json"),
        ("image/png;q=0.9, image/svg+xml;q=0.2", "png"),
        ("*/*;q=0.1, text/html", "html"),
        ("application/json;q=0, */*", "svg"),
        ("text/html;q=nonsense, image/*;q=0.5", "svg"),
    ],
)
def test_the_accept_header_is_read_as_rfc_9110_says(accept: str | None, name: str) -> None:
    assert chosen(accept, MEDIA) == name


def test_hostile_names_are_text_in_pictures_and_pages(
    client: httpx.Client, vector_add: str
) -> None:
    assert ".entry vector_add(" in vector_add
    hostile = vector_add.replace("vector_add", "$script$alert$1$")
    prediction = predicted(client, hostile, model="physical")
    for format_ in ("svg", "html"):
        answer = explain(client, prediction, format=format_)
        assert answer.status_code == 200
        assert "$script$alert$1$" in answer.text
    assert explain(client, prediction, format="png").status_code == 200
    chart = Chart("<script>\x00&", "\x1b", "power", "W", ("a", 1.0), [("<b>", 1.0)], ("c", 2.0))
    ElementTree.fromstring(svg(draw(chart)))
    assert "<script>" not in svg(draw(chart))
    assert png(draw(chart)).startswith(b"\x89PNG")


def test_a_waterfall_goes_from_start_to_end() -> None:
    bars = [(f"part {number}", 1.0) for number in range(40)]
    drawing = draw(Chart("t", "s", "power", "W", ("base", 10.0), bars, ("end", 50.0)))
    drawn = [shape.sizes for shape in drawing.shapes if shape.tag == "rect"][1:]
    assert len(drawn) == 1 + 15 + 1 + 1  # base, parts, the others together, end
    for before, after in pairwise(drawn[1:-1]):
        assert after["x"] == pytest.approx(before["x"] + before["width"])
    ends = [each["x"] + each["width"] for each in drawn]
    assert ends[-1] == pytest.approx(ends[-2])


# --- on the command line -----------------------------------------------------------------

LAUNCH = ("--gpu", "v100", "--grid", "4096", "--block", "256")


@pytest.mark.parametrize("model", ["physical", "catboost"])
@pytest.mark.parametrize("method", ["shap", "lime"])
@pytest.mark.parametrize("target", ["power", "time"])
def test_the_command_tells_without_a_server_what_http_answers(
    client: httpx.Client,
    run: Run,
    file: str,
    vector_add: str,
    model: str,
    method: str,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WATTCAST_PTXAS", "off")  # as the service of these tests
    asked = ("--model", model, "--method", method, "--target", target)
    told = json.loads(run("explain", file, *LAUNCH, *asked, "--json")[0])
    prediction = predicted(client, vector_add, model=model)
    answer = explain(client, prediction, method=method, target=target).json()
    assert told.pop("prediction_id") != answer.pop("prediction_id")
    assert told == answer


def test_the_command_s_table_for_people(run: Run, file: str) -> None:
    out, _ = run("explain", file, *LAUNCH, "--model", "physical")
    for word in ("Power of vector_add on tesla-v100", "SHAP", "dram", "base", "prediction", " W "):
        assert word in out
    out, _ = run("explain", file, *LAUNCH, "--target", "time", "--rows", "2")
    assert "launch" in out
    assert re.search(r"\+[\d.]+ .s +\d more", out)
    seeds = ("--model", "catboost", "--method", "lime", "--seeds", "3")
    out, _ = run("explain", file, *LAUNCH, *seeds)
    assert "Over 3 seeds" in out
    assert "linear model" in out
    out, _ = run("explain", "--work", "dram_bytes=1e9,int_ops=4e9", *LAUNCH)
    assert "Power of measured work" in out


def test_the_command_writes_pictures_and_pages(run: Run, file: str, tmp_path: Path) -> None:
    out, _ = run("explain", file, *LAUNCH, "--output", str(tmp_path / "why.svg"))
    assert out == ""
    ElementTree.fromstring((tmp_path / "why.svg").read_text(encoding="utf-8"))
    run("explain", file, *LAUNCH, "--output", str(tmp_path / "why.png"), "--chart", "bar")
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    run("explain", file, *LAUNCH, "--format", "html", "--output", str(tmp_path / "why"))
    assert (tmp_path / "why").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "said"),
    rows("mistakes", "explain"),
)
def test_what_the_command_does_not_know_is_one_line(
    run: Run, file: str, words: tuple[str, ...], said: str
) -> None:
    out, err = run("explain", file, *LAUNCH, *words, status=2)
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_one_line(run: Run, file: str, tmp_path: Path) -> None:
    _, err = run("explain", file, *LAUNCH, "--output", str(tmp_path / "no" / "why.svg"), status=2)
    assert "No such file or directory" in err
