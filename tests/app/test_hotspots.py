"""Hotspots of stored predictions, and what an application costs."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.test_fuzz import mutated
from tests.app.test_problems import json_of, problem
from tests.features.test_activity import SMALL_KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.needs import needs_nvrtc
from wattcast.app.services import Services
from wattcast.features.errors import WattcastError
from wattcast.predictor.hotspots import hotspots_of
from wattcast.predictor.messages.cost import CostAnswer
from wattcast.predictor.messages.explain import HotspotsAnswer
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"
LAUNCH = {"grid": [64], "block": [128]}


def text_of(name: str) -> str:
    return (FIXTURES / "ptx" / f"{name}.sm_70.ptx").read_text(encoding="utf-8")


def predicted(client: httpx.Client, **body: Any) -> dict[str, Any]:
    return json_of(client.post("/predict", json={"gpu": "tesla-v100", "launch": LAUNCH, **body}))


def hotspots(client: httpx.Client, prediction: dict[str, Any], **query: int) -> dict[str, Any]:
    return json_of(
        client.get(f"/predictions/{prediction['id']}/hotspots", params=query), HotspotsAnswer
    )


def summed(found: dict[str, Any], ranking: str, unit: str) -> float:
    rows = sum(row[unit] for row in found[ranking]["rows"])
    return float(rows + found[ranking]["rest"][unit] + found["start"][unit])


@pytest.mark.parametrize("name", sorted(SMALL_KERNELS))
@pytest.mark.parametrize("model", ["physical", "catboost"])
def test_hotspots_sum_to_the_kernel_s_energy_and_time(
    client: httpx.Client, name: str, model: str
) -> None:
    prediction = predicted(client, ptx=text_of(name), kernel=SMALL_KERNELS[name], model=model)
    found = hotspots(client, prediction)
    assert found["joules"] == prediction["energy"]["joules"]
    assert found["seconds"] == prediction["time"]["seconds"]
    for ranking in ("blocks", "lines"):
        for unit in ("joules", "seconds"):
            assert summed(found, ranking, unit) == pytest.approx(found[unit], rel=1e-9)
        for row in found[ranking]["rows"]:
            assert sum(row["components"].values()) == pytest.approx(row["joules"], rel=1e-9)
            assert row["energy_share"] == pytest.approx(row["joules"] / found["joules"])
            assert 0 <= row["active_lane_fraction"] <= 1


def test_rankings_start_with_the_costliest_and_sum_the_rest_up(client: httpx.Client) -> None:
    prediction = predicted(client, ptx=text_of("black_scholes"), model="physical")
    whole, short = hotspots(client, prediction), hotspots(client, prediction, rows=3)
    joules = [row["joules"] for row in whole["lines"]["rows"]]
    assert joules == sorted(joules, reverse=True)
    assert [row["rank"] for row in whole["lines"]["rows"]] == list(range(1, len(joules) + 1))
    assert short["lines"]["rows"] == whole["lines"]["rows"][:3]
    assert short["lines"]["rest"]["rows"] == len(joules) - 3
    assert short["lines"]["rest"]["joules"] == pytest.approx(sum(joules[3:]))


def test_a_streaming_kernel_spends_its_energy_on_its_loads_and_its_store(
    client: httpx.Client, vector_add: str
) -> None:
    launch = {"grid": [65536], "block": [256]}
    prediction = predicted(client, ptx=vector_add, launch=launch, model="physical")
    found = hotspots(client, prediction)
    top = found["lines"]["rows"][:3]
    assert {row["text"].split()[0] for row in top} == {"ld.global.f32", "st.global.f32"}
    assert sum(row["energy_share"] for row in top) > 0.5
    assert all(next(iter(row["components"])) == "dram" for row in top)


def test_a_loop_costs_more_than_what_stands_around_it(client: httpx.Client, looping: str) -> None:
    asked = {"ptx": looping, "model": "physical", "analysis": "symbolic"}
    prediction = predicted(client, **asked, loops={"default": 1000})
    found = hotspots(client, prediction)
    assert found["blocks"]["rows"][0]["label"] == "$LOOP"
    assert found["blocks"]["rows"][0]["energy_share"] > 0.8
    again = predicted(client, **asked, loops={"default": 5000})
    assert hotspots(client, again)["blocks"]["rows"][0]["energy_share"] > 0.9


LOCATED = stored_ptx("located").replace('"scale.cu"', '"/somewhere/scale.cu"')


def test_source_lines_are_ranked_where_the_ptx_tells_them(
    client: httpx.Client, vector_add: str
) -> None:
    launch = {"grid": [65536], "block": [256]}
    found = hotspots(client, predicted(client, ptx=LOCATED, launch=launch, model="physical"))
    rows = found["source_lines"]["rows"]
    assert rows[0]["line"] == 12
    assert rows[0]["file"] == "/somewhere/scale.cu"
    assert {row["line"] for row in rows} == {10, 11, 12}
    assert summed(found, "source_lines", "joules") == pytest.approx(found["joules"], rel=1e-9)
    plain = hotspots(client, predicted(client, ptx=vector_add, model="physical"))
    assert plain["source_lines"]["rows"] == []


def test_what_another_model_predicted_is_shared_out_and_says_so(
    client: httpx.Client, vector_add: str
) -> None:
    boosted = predicted(client, ptx=vector_add, model="catboost", time_model="scheduling")
    found = hotspots(client, boosted)
    told = [w["detail"] for w in found["warnings"] if w["code"] == "shares_of_another_model"]
    assert len(told) == 2
    assert found["shares_by"]["family"] == "physical"


@needs_nvrtc
def test_cuda_source_with_arguments_by_c_name(client: httpx.Client) -> None:
    source = "__global__ void twice(float* v, int n) {\n  int i = threadIdx.x;\n"
    source += "  for (int k = 0; k < n; ++k)\n    v[i] += k;\n}\n"
    launch = {"grid": [64], "block": [128], "arguments": {"n": 50, "v": {"elements": 128}}}
    prediction = predicted(client, cuda=source, launch=launch, model="physical")
    assert prediction["trip_counts"][0]["how"] != "assumed"
    found = hotspots(client, prediction)
    assert found["joules"] == prediction["energy"]["joules"]
    assert not {w["code"] for w in found["warnings"]} & {"trip_count_assumed"}
    files = {row["file"] for row in found["source_lines"]["rows"]}
    assert not any("/" in file for file in files if file)


def test_mutated_ptx_is_shared_out_whole_or_refused(tmp_path: Path) -> None:
    services = Services(settings_at(tmp_path))
    random = Random(7)
    whole = 0
    for _ in range(40):
        body = {"ptx": mutated(random), "gpu": "tesla-v100", "launch": LAUNCH}
        more = {"model": "physical"}
        try:
            request = PredictRequest.model_validate({**body, **more})
            answer = predict(services, request)
            if answer["energy"] is None:
                continue
            found = hotspots_of(services, request, answer)
        except WattcastError:
            continue
        for ranking in ("blocks", "lines"):
            assert summed(found, ranking, "joules") == pytest.approx(found["joules"], rel=1e-9)
        whole += 1
    assert whole >= 5


def test_nothing_to_share_out_is_a_problem(client: httpx.Client) -> None:
    problem(client.get(f"/predictions/{uuid4()}/hotspots"), 404, "unknown-prediction")
    work = {"dram_bytes": 1e9, "int_ops": 1e9}
    measured = predicted(client, work=work)
    problem(client.get(f"/predictions/{measured['id']}/hotspots"), 422, "no-explanation")
    path = f"/predictions/{measured['id']}/hotspots"
    problem(client.get(path, params={"rows": 0}), 422, "validation")


# --- an application's cost -----------------------------------------------------------------


def cost(client: httpx.Client, **body: Any) -> dict[str, Any]:
    return json_of(client.post("/cost", json={"gpu": "tesla-v100", **body}), CostAnswer)


def test_an_application_costs_its_launches(client: httpx.Client, vector_add: str) -> None:
    other = text_of("black_scholes")
    kernels = [
        {"launch": LAUNCH, "launches": 1000},
        {"ptx": other, "launch": LAUNCH, "launches": 7},
    ]
    found = cost(client, ptx=vector_add, kernels=kernels, model="physical")
    alone = [
        predicted(client, ptx=ptx, model="physical")["energy"]["joules"]
        for ptx in (vector_add, other)
    ]
    assert [row["energy"]["joules"] for row in found["kernels"]] == alone
    total = 1000 * alone[0] + 7 * alone[1]
    assert found["energy"]["joules"] == pytest.approx(total)
    assert found["kwh"] == pytest.approx(total / 3.6e6)
    assert sum(row["energy_share"] for row in found["kernels"]) == pytest.approx(1)
    assert found["energy"]["low"] < total < found["energy"]["high"]
    stored = client.get(f"/predictions/{found['kernels'][0]['prediction_id']}")
    assert stored.json()["energy"]["joules"] == alone[0]


def test_price_and_carbon_are_only_told_at_rates_that_are_given(
    client: httpx.Client, vector_add: str
) -> None:
    kernels = [{"launch": LAUNCH, "launches": 10**9}]
    bare = cost(client, ptx=vector_add, kernels=kernels)
    assert bare["price"] is None
    assert bare["co2"] is None
    tariff = {"price_per_kwh": 0.32, "currency": "EUR"}
    found = cost(client, ptx=vector_add, kernels=kernels, tariff=tariff, grams_co2_per_kwh=380)
    assert found["price"]["amount"] == pytest.approx(0.32 * found["kwh"])
    assert found["price"]["currency"] == "EUR"
    assert found["co2"]["grams"] == pytest.approx(380 * found["kwh"])
    assert found["co2"]["low"] < found["co2"]["grams"] < found["co2"]["high"]


def test_an_error_tells_which_kernel(client: httpx.Client, vector_add: str) -> None:
    kernels = [
        {"launch": LAUNCH, "launches": 1},
        {"launch": {"grid": [1], "block": [4096]}, "launches": 1},
    ]
    answer = client.post("/cost", json={"ptx": vector_add, "gpu": "v100", "kernels": kernels})
    assert problem(answer, 422, "launch")["detail"].startswith("kernels[1]: ")
    answer = client.post("/cost", json={"gpu": "v100", "kernels": kernels})
    assert "give exactly one of ptx and cuda" in problem(answer, 422, "validation")["detail"]


@pytest.mark.parametrize("name", ["transpose", "black_scholes"])
def test_cycles_of_lines_sum_to_the_units_of_the_prediction(
    client: httpx.Client, name: str
) -> None:
    """The resource table of the lines and the speed of light of the launch are one account."""
    prediction = predicted(client, ptx=text_of(name), kernel=SMALL_KERNELS[name], details=True)
    told = prediction["speed_of_light"]
    assert told["seconds"] == prediction["time"]["seconds"]
    found = hotspots(client, prediction)
    shares = {each["unit"]: each["share"] for each in told["units"] if each["share"]}
    assert set(found["unit_cycles"]) == set(shares)
    for unit, cycles in found["unit_cycles"].items():
        assert cycles / found["cycles"] == pytest.approx(shares[unit], rel=1e-9)
        for ranking in ("blocks", "lines"):
            rows = sum(row["unit_cycles"].get(unit, 0.0) for row in found[ranking]["rows"])
            assert rows == pytest.approx(cycles, rel=1e-9)


def test_only_shared_memory_is_called_shared(client: httpx.Client) -> None:
    """A kernel without any was told to use less of it (issue 22)."""
    stream = predicted(client, ptx=text_of("black_scholes"), model="physical")["components"]
    assert stream["shared"] == 0.0
    assert stream["l1"] > 0.0
    tile = {"ptx": text_of("transpose"), "kernel": "transpose_shared", "model": "physical"}
    prediction = predicted(client, **tile)
    parts = prediction["components"]
    assert parts["shared"] > parts["l1"] > 0.0
    assert sum(parts.values()) == pytest.approx(prediction["power"]["watts"])
    for row in hotspots(client, prediction)["lines"]["rows"]:
        assert ("shared" in row["components"]) == (".shared." in row["text"]), row["text"]
