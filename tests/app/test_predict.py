"""POST /predict, its explanations, and what is kept of it."""

from __future__ import annotations

import inspect
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run, settings_at
from tests.app.live import running
from tests.app.test_problems import json_of
from tests.fixtures.tables import table
from wattcast.app.cli import inputs
from wattcast.predictor.messages.explain import LimeAnswer, ShapAnswer
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers, PredictRequest

MODELLED = ("tesla-k20", "tesla-m60", "tesla-v100")


def ask(client: httpx.Client, ptx: str, /, **changes: Any) -> dict[str, Any]:
    body = {
        "ptx": ptx,
        "gpu": "tesla-v100",
        "launch": {"grid": [4096], "block": [256]},
        **changes,
    }
    return json_of(client.post("/predict", json=body))


@pytest.mark.parametrize("gpu", MODELLED)
def test_an_answer_is_whole(client: httpx.Client, vector_add: str, gpu: str) -> None:
    answer = ask(client, vector_add, gpu=gpu, registers_per_thread=12)
    PredictAnswer.model_validate(answer)
    assert answer["gpu"] == gpu
    assert answer["kernel"] == {"mangled": "vector_add", "demangled": "vector_add"}
    for part, unit in (("power", "watts"), ("time", "seconds"), ("energy", "joules")):
        interval = answer[part]
        assert 0 < interval["low"] <= interval[unit] <= interval["high"]
        assert 0 < interval["level"] < 1
        assert interval["basis"] != "seen_kernel"
    assert answer["energy"]["joules"] == pytest.approx(
        answer["power"]["watts"] * answer["time"]["seconds"]
    )
    assert answer["registers"] == {"value": 12, "low": 12, "high": 12, "how": "given"}
    counts = {"alavani2023": ("total_threads", 4096 * 256), "activity1": ("blocks", 4096)}
    name, value = counts[answer["schema"]]
    assert answer["features"][name] == value
    assert 0 < answer["occupancy"]["occupancy"] <= 1
    card = client.get(answer["model"]["card"]).json()
    assert (card["gpu"], card["version"]) == (gpu, answer["model"]["version"])


def test_a_cold_l2_takes_longer_and_the_answer_tells_its_state(
    client: httpx.Client, vector_add: str
) -> None:
    def at(l2: str | None) -> dict[str, Any]:
        state = {} if l2 is None else {"l2": l2}
        return ask(client, vector_add, launch={"grid": [1024], "block": [256], **state})

    unsaid, warm, cold = at(None), at("warm"), at("cold")
    assert (unsaid["l2"], warm["l2"], cold["l2"]) == ("warm", "warm", "cold")
    assert unsaid["time"] == warm["time"]
    assert cold["time"]["seconds"] > 1.2 * warm["time"]["seconds"]
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": {"grid": 1, "block": 1, "l2": "hot"}}
    assert client.post("/predict", json=body).status_code == 422


def test_a_gpu_that_nobody_measured_says_so(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add, gpu="a100")
    PredictAnswer.model_validate(answer)
    for part, unit in (("power", "watts"), ("time", "seconds"), ("energy", "joules")):
        assert answer[part][unit] > 0
        assert answer[part]["basis"] == "uncalibrated"
    ends = answer["power"]["high"] / answer["power"]["low"]
    assert 1.7 < ends <= 2.2  # wider than that of a measured GPU, and still of use
    assert (answer["model"]["family"], answer["model"]["gpu"]) == ("physical", "pooled")
    assert "gpu_uncalibrated" in {warning["code"] for warning in answer["warnings"]}
    assert client.get(answer["model"]["card"]).json()["gpu"] == "pooled"


def test_a_physical_answer_is_split_into_components(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add, model="physical")
    assert answer["model"]["gpu"] == "tesla-v100"
    assert answer["schema"] == "activity1"
    watts = answer["power"]["watts"]
    assert sum(answer["components"].values()) == pytest.approx(watts, rel=1e-9)
    # Streaming: device memory is what it draws most for, beside idling and running at all.
    rest = {n: w for n, w in answer["components"].items() if n not in ("idle", "clock")}
    assert max(rest, key=lambda name: rest[name]) == "dram"
    lime = client.get("/explain", params={"prediction_id": answer["id"], "method": "lime"}).json()
    LimeAnswer.model_validate(lime)
    assert lime["r_squared"] == pytest.approx(1)


def test_several_gpus_answer_in_order(client: httpx.Client, vector_add: str) -> None:
    gpus = ["v100", "GTX-1050", "tesla-k20"]
    answer = ask(client, vector_add, gpu=None, gpus=gpus)
    PredictAnswers.model_validate(answer)
    found = [one["gpu"] for one in answer["predictions"]]
    assert found == ["tesla-v100", "gtx-1050", "tesla-k20"]
    assert len({one["id"] for one in answer["predictions"]}) == 3


def test_families_differ_and_average(client: httpx.Client, vector_add: str) -> None:
    watts = {
        family: ask(client, vector_add, model=family)["power"]["watts"]
        for family in ("xgboost", "catboost", "average")
    }
    mean = (watts["xgboost"] + watts["catboost"]) / 2
    assert watts["average"] == pytest.approx(mean, abs=1e-3)
    assert watts["xgboost"] != watts["catboost"]


@pytest.mark.parametrize(("gpu", "physical"), [("tesla-v100", True), ("tesla-k20", False)])
def test_auto_is_the_model_best_on_unseen_kernels(
    client: httpx.Client, vector_add: str, gpu: str, physical: bool
) -> None:
    listed = [model for model in client.get("/models").json() if model["gpu"] == gpu]
    listed = [model for model in listed if model["target"] == "power"]
    best = min(listed, key=lambda m: m["unseen_kernel_mape_percent"])
    answered = ask(client, vector_add, gpu=gpu)["model"]
    assert answered == {key: best[key] for key in answered}
    assert (best["family"] == "physical") == physical


def test_uncertain_registers_widen_the_interval(client: httpx.Client, vector_add: str) -> None:
    estimated = ask(client, vector_add)
    registers = estimated["registers"]
    assert registers["how"] != "given"
    assert registers["low"] < registers["high"]
    assert "registers_estimated" in {w["code"] for w in estimated["warnings"]}
    lows, highs = [], []
    for count in {registers["value"], registers["low"], registers["high"]}:
        given = ask(client, vector_add, registers_per_thread=count)
        if given["power"]["basis"] == estimated["power"]["basis"]:
            lows.append(given["power"]["low"])
            highs.append(given["power"]["high"])
    assert len(highs) > 1
    assert estimated["power"]["low"] <= min(lows) + 1e-9
    assert estimated["power"]["high"] >= max(highs) - 1e-9


def test_loops_given_and_assumed(client: httpx.Client, looping: str) -> None:
    assumed = ask(client, looping)
    assert [trip["how"] for trip in assumed["trip_counts"]] == ["assumed"]
    assert any(w["code"] == "trip_count_assumed" and w["line"] for w in assumed["warnings"])
    given = ask(client, looping, loops={"$LOOP": 7})
    (trip,) = given["trip_counts"]
    assert (trip["loop"], trip["trips"], trip["how"]) == ("$LOOP", 7, "given")
    assert trip["line"] == 16
    assert ask(client, looping, loops={"default": 7})["time"] == given["time"]
    longer = ask(client, looping, loops={"default": 700})
    assert longer["time"]["seconds"] > given["time"]["seconds"]
    spread = assumed["time"]["high"] / assumed["time"]["low"]
    assert spread > given["time"]["high"] / given["time"]["low"]


def test_mangled_and_demangled_names(client: httpx.Client, vector_add: str, looping: str) -> None:
    both = vector_add + looping.split(".address_size 64")[1]
    for name in ("_Z5sum_nPfi", "sum_n(float*, int)", "sum_n"):
        answer = ask(client, both, kernel=name)
        assert answer["kernel"] == {"mangled": "_Z5sum_nPfi", "demangled": "sum_n(float*, int)"}


@pytest.mark.parametrize("change", ["crlf", "bom", "both"])
def test_line_ends_and_byte_order_marks_change_nothing(
    client: httpx.Client, vector_add: str, change: str
) -> None:
    text = vector_add
    if change != "bom":
        text = text.replace("\n", "\r\n")
    if change != "crlf":
        text = "\ufeff" + text
    plain, other = ask(client, vector_add), ask(client, text)
    for part in ("power", "time", "energy", "features"):
        assert other[part] == plain[part]


def test_a_byte_order_mark_before_the_json(client: httpx.Client, vector_add: str) -> None:
    body = {"ptx": vector_add, "gpu": "k20", "launch": {"grid": 64, "block": 64}}
    content = b"\xef\xbb\xbf" + json.dumps(body).encode()
    answer = client.post(
        "/predict", content=content, headers={"content-type": "application/json; charset=utf-8"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("family", ["xgboost", "catboost", "average"])
def test_shap_sums_to_the_prediction(client: httpx.Client, vector_add: str, family: str) -> None:
    predicted = ask(client, vector_add, model=family, explain="shap")
    inline = predicted["explanation"]
    answer = client.get("/explain", params={"prediction_id": predicted["id"], "method": "shap"})
    explained = answer.json()
    ShapAnswer.model_validate(explained)
    assert explained.pop("prediction_id") == predicted["id"]
    assert explained == inline
    parts = sum(part["watts"] for part in explained["contributions"])
    assert explained["base_watts"] + parts == pytest.approx(predicted["power"]["watts"], abs=1e-3)
    values = {part["feature"]: part["value"] for part in explained["contributions"]}
    assert values["reg_thread"] == predicted["features"]["reg_thread"]
    sizes = [abs(part["watts"]) for part in explained["contributions"]]
    assert sizes == sorted(sizes, reverse=True)


def test_lime_repeats_itself(client: httpx.Client, vector_add: str) -> None:
    predicted = ask(client, vector_add)
    asked = {"prediction_id": predicted["id"], "method": "lime"}
    explained = json_of(client.get("/explain", params=asked), LimeAnswer)
    assert client.get("/explain", params=asked).json() == explained
    assert explained["prediction_watts"] == pytest.approx(predicted["power"]["watts"], abs=1e-3)
    assert any(part["watts"] != 0 for part in explained["contributions"])
    parts = sum(part["watts"] for part in explained["contributions"])
    assert explained["intercept_watts"] + parts == pytest.approx(
        explained["local_prediction_watts"], abs=1e-6
    )
    assert all(part["condition"] for part in explained["contributions"])


def test_nothing_predicted_is_nothing_to_explain(
    client: httpx.Client, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("wattcast.features.execution.execute", fails)
    predicted = ask(client, vector_add, gpu="gtx-1050", launch={"grid": [4093], "block": [96]})
    assert predicted["power"] is None
    assert predicted["time"] is None
    assert predicted["energy"] is None
    codes = {warning["code"] for warning in predicted["warnings"]}
    assert {"power_not_predicted", "no_time_model"} <= codes
    answer = client.get("/explain", params={"prediction_id": predicted["id"]})
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/no-explanation"


def test_predictions_and_explanations_survive_a_restart(tmp_path: Path, vector_add: str) -> None:
    with running(settings_at(tmp_path)) as client:
        predicted = ask(client, vector_add)
        before = client.get("/explain", params={"prediction_id": predicted["id"]}).json()
    with running(settings_at(tmp_path)) as client:
        assert client.get(f"/predictions/{predicted['id']}").json() == predicted
        after = client.get("/explain", params={"prediction_id": predicted["id"]}).json()
    assert after == before


def test_many_at_once_all_answer_alike(client: httpx.Client, vector_add: str) -> None:
    def one(number: int) -> dict[str, Any]:
        return ask(client, vector_add, launch={"grid": [64 + number % 4], "block": [256]})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(one, range(64)))
    assert len({answer["id"] for answer in answers}) == 64
    for number, answer in enumerate(answers):
        assert answer["power"] == answers[number % 4]["power"]
        stored = client.get(f"/predictions/{answer['id']}").json()
        assert stored == answer


def test_too_many_at_once_are_told_to_wait(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_at(tmp_path, analyses_at_once=1, waiting_analyses=0, analysis_seconds=0.3)
    import threading

    hold = threading.Event()
    monkeypatch.setattr("wattcast.app.api.kernels.predict", lambda *_: hold.wait(30))
    body = {"ptx": vector_add, "gpu": "k20", "launch": {"grid": 1, "block": 32}}
    with running(settings) as client:
        try:
            late = client.post("/predict", json=body)
            assert (late.status_code, late.json()["type"]) == (503, "/problems/time-limit")
            busy = client.post("/predict", json=body)
            assert (busy.status_code, busy.json()["type"]) == (429, "/problems/busy")
            assert busy.headers["retry-after"] == "1"
            assert client.get("/healthz").status_code == 200
        finally:
            hold.set()


def test_numbers_json_cannot_hold_become_null(client: httpx.Client, vector_add: str) -> None:
    body = {
        "ptx": vector_add,
        "gpu": "tesla-k20",
        "launch": {"grid": 64, "block": 256},
        "schema": "powerquant2026",
    }
    answer = client.post("/features", json=body)

    def refuse(token: str) -> float:
        raise AssertionError(f"{token} is no JSON")

    found = json.loads(answer.text, parse_constant=refuse)
    values = {field["name"]: field["value"] for field in found["features"]}
    assert values["avg_shar_lat"] is None
    assert all(value is None or math.isfinite(value) for value in values.values())


INTEGERS = table("bodies", "predict")["integers"]


@pytest.mark.parametrize("path", ["predict", "dvfs", "sweep", "compare"])
@pytest.mark.parametrize(("model", "ptx"), [("roofline", INTEGERS), ("volkov", "empty")])
def test_a_time_model_that_cannot_answer_says_so(
    client: httpx.Client, path: str, model: str, ptx: str
) -> None:
    """A roofline counts no integers: 0 s, 0 J and a division by 0 are no answers."""
    if ptx == "empty":
        ptx = INTEGERS.partition("\t.reg")[0] + "\tret;\n}\n"
    code = {"ptx": ptx, "launch": {"grid": [64], "block": [128]}}
    body: dict[str, Any] = {"gpu": "tesla-v100"}
    if path == "compare":
        sides = {**code, "time_model": model}
        body |= {"old": sides, "new": sides}
    else:
        body |= {**code, "time_model": model}
    response = client.post(f"/{path}", json=body)
    assert response.status_code == 422, response.text
    answer = response.json()
    assert answer["type"].endswith("/model")
    assert f"{model} cannot predict the time of this launch" in answer["detail"]
    assert "bottleneck" in answer["detail"]


WHOLE = {"grid": [4096], "block": [256]}


def test_details_tell_how_near_each_unit_comes_to_its_peak(
    client: httpx.Client, vector_add: str
) -> None:
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": WHOLE}
    plain = client.post("/predict", json=body).json()
    assert "speed_of_light" not in plain
    for change in ({}, {"clocks": {"core_mhz": 700}}, {"time_model": "roofline"}):
        answer = client.post("/predict", json={**body, **change, "details": True}).json()
        told = answer["speed_of_light"]
        assert told["bound"] == answer["time_model"]["bound"]
        assert told["seconds"] >= answer["time"]["seconds"]
        assert {each["unit"] for each in told["units"]} >= {"dram", "l1", "shared", "fp32", "int"}
        for each in told["units"]:
            assert 0 <= each["share"] <= 1
            assert 0 <= each["achieved"] <= each["share"] * each["peak"] * (1 + 1e-9)
        assert told["roofline"]["dram_peak"] == 900e9
        assert told["roofline"]["points"][0]["precision"] == "fp32"
    work = {"dram_bytes": 1e9, "int_ops": 1e9}
    measured = {"work": work, "gpu": "tesla-v100", "launch": WHOLE, "details": True}
    refused = client.post("/predict", json=measured)
    assert refused.status_code == 422
    assert "details: not allowed with measured work" in refused.text


def test_a_measured_time_below_the_peak_makes_no_share_above_1(
    client: httpx.Client, vector_add: str
) -> None:
    known = [{"launch": WHOLE, "time_seconds": 1e-7}]
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": WHOLE, "known": known}
    answer = client.post("/predict", json={**body, "details": True}).json()
    told = answer["speed_of_light"]
    assert told["seconds"] > answer["time"]["seconds"]
    assert max(each["share"] for each in told["units"]) == pytest.approx(1.0)


FACES = ("app/api", "app/cli", "app/python")


def test_a_field_of_an_answer_stands_in_its_message_and_where_it_is_computed(
    client: httpx.Client, run: Run, vector_add: str
) -> None:
    """``waves`` was added in predictor/messages/predict.py, predictor/predict.py and this test:
    HTTP, command line and Python answer it, and none of their files names it."""
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": {"grid": [4096], "block": [256]}}
    waves = client.post("/analyze", json=body).json()["occupancy"]["waves"]
    assert waves == 7
    assert client.post("/predict", json=body).json()["waves"] == waves
    out, _ = run("predict", "-", "--gpu", "v100", "--grid", "4096", "--block", "256", "--json",
                 stdin=vector_add)  # fmt: skip
    assert json.loads(out)["waves"] == waves
    answer = wattcast.predict(vector_add, gpu="v100", grid=4096, block=256, registry=False)
    assert answer.waves == waves
    assert answer.to_frame()["waves"].tolist() == [waves]
    root = Path(__file__).parents[2]
    named = [path for face in FACES for path in (root / face).rglob("*.py")
             if re.search(r"\bwaves\b", path.read_text("utf-8"))]  # fmt: skip
    assert named == []


def test_a_field_of_a_request_is_an_option_and_a_keyword() -> None:
    """Names and defaults of simple fields come from the request alone."""
    keywords = inspect.signature(wattcast.predict).parameters
    options = {each.name: each for each in inputs.ModelOptions.parameters()}
    for name in ("time_model", "model", "board"):
        default = PredictRequest.model_fields[name].default
        assert keywords[name].default == options[name].default == default
    for name in set(PredictRequest.model_fields) - {"ptx", "launch", "gpus"}:
        assert name in keywords
    with pytest.raises(TypeError, match="unknown grams"):
        wattcast.predict("a.ptx", gpu="v100", grid=1, block=1, grams=1)
