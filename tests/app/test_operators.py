"""Library operators: asked over HTTP, the command line and Python; bounds, limits, explanations."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run

GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
DECODE = {"name": "attention", "phase": "decode", "batch": 8, "cached_tokens": 4095, "heads": 32,
          "kv_heads": 8}  # fmt: skip


def ask(client: httpx.Client, operator: Any, **more: Any) -> Any:
    return client.post("/predict", json={"operator": operator, "gpu": "h200", **more})


def test_a_product_is_answered_beside_its_peaks(client: httpx.Client) -> None:
    found = ask(client, GEMM).json()
    figures = found["operator"]
    assert figures["flops"] == 2 * 4096**3
    assert figures["flops_per_second"] == pytest.approx(figures["flops"] / found["time"]["seconds"])
    assert 0.4 < figures["flops_per_second"] / figures["peak_flops_per_second"] < 1
    assert figures["bytes_per_second"] < figures["peak_bytes_per_second"]
    assert figures["joules_per_flop"] * figures["flops"] == pytest.approx(found["energy"]["joules"])
    assert 500 < found["power"]["watts"] <= 700
    assert found["trust"]["mark"] == "measured board"


def test_command_python_and_http_answer_alike(client: httpx.Client, run: Run) -> None:
    told = ask(client, DECODE).json()
    shape = {key: value for key, value in DECODE.items() if key != "name"}
    typed = wattcast.operator("attention", gpu="h200", registry=False, **shape)
    words = [w for key, value in shape.items() for w in (f"--{key.replace('_', '-')}", str(value))]
    printed = json.loads(run("operator", "attention", *words, "--gpu", "h200", "--json")[0])
    for quantity in ("power", "time", "energy"):
        assert printed[quantity] == told[quantity]
        assert getattr(typed, quantity).model_dump(exclude={"widened"}) == told[quantity]


def test_a_lower_power_limit_lengthens_the_call(client: httpx.Client) -> None:
    free, held = (ask(client, GEMM, power_limit_watts=w).json() for w in (700, 500))
    assert held["power"]["watts"] <= 500 < free["power"]["watts"]
    assert held["time"]["seconds"] > 1.03 * free["time"]["seconds"]
    assert held["clocks"]["core_mhz"] < free["clocks"]["core_mhz"]
    assert ask(client, GEMM, power_limit_watts=50).status_code == 422


def test_shap_sums_up_to_the_power_and_is_asked_later_too(client: httpx.Client) -> None:
    found = ask(client, GEMM, explain="shap").json()
    told = found["explanation"]
    total = told["base_watts"] + sum(one["watts"] for one in told["contributions"])
    assert total == pytest.approx(found["power"]["watts"], rel=1e-6)
    later = client.get("/explain", params={"prediction_id": found["id"], "target": "time"}).json()
    total = later["base_seconds"] + sum(one["seconds"] for one in later["contributions"])
    assert total == pytest.approx(found["time"]["seconds"], rel=1e-6)


@pytest.mark.parametrize(
    ("operator", "told"),
    [
        ({"name": "gemm", "m": 0, "n": 8, "k": 8}, "greater than or equal to 1"),
        ({"name": "gemm", "m": 2**40, "n": 8, "k": 8}, "less than or equal"),
        ({"name": "gemm", "m": 8.5, "n": 8, "k": 8}, "integer"),
        ({"name": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "int3"}, "bfloat16"),
        ({"name": "gemm", "m": 8, "n": 8, "k": 8, "rows": 1}, "not permitted"),
        ({"name": "conv", "m": 8}, "gemm"),
        ({**DECODE, "new_tokens": 2}, "decode"),
        ({**DECODE, "kv_heads": 5}, "multiple"),
        ({"name": "norm", "read_bytes": 0, "write_bytes": 0}, "both 0"),
        ({"name": "moe", "tokens": 1, "hidden": 8, "inner": 8, "topk": 9, "experts": 8}, "topk"),
    ],
)
def test_bad_shapes_are_refused_by_field(client: httpx.Client, operator: Any, told: str) -> None:
    answer = ask(client, operator)
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


def test_a_call_that_fits_no_memory_is_refused(client: httpx.Client) -> None:
    answer = ask(client, {**GEMM, "m": 2**20, "n": 2**20, "k": 2**20})
    assert answer.status_code == 422
    assert "h200-sxm5 has 151 GB" in answer.json()["detail"]


def test_what_was_not_measured_is_told(client: httpx.Client) -> None:
    wide = ask(client, {**GEMM, "m": 131072}).json()
    assert wide["power"]["basis"] == "extrapolated"
    assert "rows 131072 (measured: 1 to 32768)" in wide["warnings"][0]["detail"]
    norm = ask(client, {"name": "norm", "read_bytes": 10**8, "write_bytes": 10**8}).json()
    assert norm["warnings"][0]["code"] == "stands_in"


def test_watts_of_a_board_without_measured_watts_are_those_of_other_boards(
    client: httpx.Client,
) -> None:
    found = client.post("/predict", json={"operator": GEMM, "gpu": "h100-sxm5"}).json()
    assert found["time"]["basis"] == "unseen_kernel"
    assert found["power"]["basis"] == "uncalibrated"
    assert found["trust"]["mark"] == "estimated board"
    assert 300 < found["power"]["watts"] <= 700
    other = client.post("/predict", json={"operator": GEMM, "gpu": "a40"}).json()
    assert other["time"]["basis"] == "uncalibrated"


def test_lime_is_asked_of_a_stored_prediction(client: httpx.Client) -> None:
    kept = ask(client, DECODE).json()
    told = client.get("/explain", params={"prediction_id": kept["id"], "method": "lime"}).json()
    assert told["prediction_watts"] == pytest.approx(kept["power"]["watts"], rel=1e-6)
    assert {one["feature"] for one in told["contributions"]} >= {"cached", "roofline_seconds"}
