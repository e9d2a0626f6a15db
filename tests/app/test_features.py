"""POST /features: the published worked example, and the catalogue around it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.app.test_problems import json_of
from wattcast.predictor.messages.analyze import FeaturesAnswer

CLOCK = Path(__file__).parents[1] / "fixtures" / "ptx" / "clock.ptx"

PUBLISHED = {
    "comp_inst_kernel": 37,
    "avg_comp_lat": 12.837837837837839,
    "glob_inst_kernel": 5,
    "avg_glob_lat": 312.606208,
    "avg_shar_lat": 36,
    "misc_inst_kernel": 5,
    "branch": 8,
    "glob_load_sm": 2,
    "glob_store_sm": 3,
    "inst_issue_cycles": 48,
    "cache_penalty": 75.25,
}
"""The authors' worked example: clock.ptx on the K20, grid 64, block 256 (spec, section 7)."""


def test_the_published_example_is_reproduced(client: httpx.Client) -> None:
    body = {
        "ptx": CLOCK.read_text(encoding="utf-8"),
        "gpu": "tesla-k20",
        "launch": {"grid": [64], "block": [256]},
        "schema": "powerquant2026",
    }
    found = json_of(client.post("/features", json=body), FeaturesAnswer)
    values = {field["name"]: field["value"] for field in found["features"]}
    assert {name: values[name] for name in PUBLISHED} == pytest.approx(PUBLISHED, rel=1e-15)


def test_a_vector_is_that_of_its_schema(client: httpx.Client, vector_add: str) -> None:
    body = {"ptx": vector_add, "gpu": "K20", "launch": {"grid": 64, "block": 256}}
    found = client.post("/features", json=body).json()
    assert (found["schema"], found["gpu"]) == ("alavani2023", "tesla-k20")
    schema = client.get("/schemas/alavani2023").json()
    assert [f["name"] for f in found["features"]] == [f["name"] for f in schema["fields"]]
    for field in found["features"]:
        assert field["unit"]
        assert field["source"]
    inputs = [f["name"] for f in found["features"] if f["model_input"]]
    assert sorted(inputs) == sorted(schema["model_inputs"])
    assert len(inputs) == 15


def test_the_catalogue_holds_together(client: httpx.Client) -> None:
    gpus = client.get("/gpus").json()
    assert {"tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050", "tesla-v100"} <= {
        gpu["id"] for gpu in gpus
    }
    schemas = [schema["id"] for schema in client.get("/schemas").json()]
    covered = {one: client.get(f"/schemas/{one}").json()["gpus"] for one in schemas}
    for gpu in gpus:
        for name in (gpu["id"].upper(), *gpu["aliases"][-1:]):  # every name: test_gpus_facts.py
            assert client.get(f"/gpus/{name}").json()["id"] == gpu["id"]
        for schema in gpu["schemas"]:
            assert gpu["id"] in covered[schema]
    for model in client.get("/models").json():
        cards = client.get(f"/models/{model['gpu']}/{model['target']}").json()
        assert client.get(model["card"]).json() in cards


def test_a_board_nobody_measured_says_so_and_stays_within_its_limit(
    client: httpx.Client, vector_add: str
) -> None:
    """One board of each compute capability without a power model of its own."""
    boards = {
        gpu["compute_capability"]: gpu["id"]
        for gpu in client.get("/gpus").json()
        if not gpu["power_models"]
    }
    assert len(boards) >= 12
    for gpu in boards.values():
        body = {"ptx": vector_add, "gpu": gpu, "launch": {"grid": [65536], "block": [256]}}
        answer = client.post("/predict", json=body).json()
        assert answer["power"]["basis"] == "uncalibrated", gpu
        assert "gpu_uncalibrated" in {one["code"] for one in answer["warnings"]}, gpu
        facts = client.get(f"/gpus/{gpu}").json()["profile"]
        assert 0 < answer["power"]["watts"] <= facts["power"]["tdp_watts"]["value"], gpu
        moved = 3 * 4 * 65536 * 256 / facts["memory"]["bandwidth_bytes_per_second"]["value"]
        assert moved < answer["time"]["seconds"] < 4 * moved, gpu
