"""``POST /dvfs`` with a model that scales by the code alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run
from tests.app.test_dvfs import MATMUL, MATMUL_LAUNCH, ask, at, pairs
from wattcast.models.papers.scaling.card import scaling_store
from wattcast.models.papers.scaling.code import code_scaling

MODELS = ("tokens", "sequence")


@pytest.mark.parametrize("model", MODELS)
def test_a_grid_holds_the_clocks_that_were_measured(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    answer = ask(client, vector_add, model=model)
    assert {memory for _, memory in pairs(answer)} == {810, 3505}
    assert len(answer["points"]) == 32
    assert answer["reference"]["core_mhz"] == 1164
    assert answer["reference"]["memory_mhz"] == 3505
    assert answer["model"]["family"] == answer["assumptions"]["time_model"] == model
    card = client.get(answer["model"]["card"])
    assert card.status_code == 200
    assert card.json()["family"] == model


@pytest.mark.parametrize("model", MODELS)
def test_absolute_values_are_the_reference_times_the_scale(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    answer = ask(client, vector_add, model=model)
    base = answer["reference"]
    told = ask(client, vector_add, clocks={"core_mhz": 1164, "memory_mhz": 3505})
    (usual,) = told["points"]
    assert base["time"]["seconds"] == pytest.approx(usual["time"]["seconds"], rel=1e-12)
    for point in answer["points"]:
        for name, unit in (("time", "seconds"), ("power", "watts"), ("energy", "joules")):
            found = point[name]
            assert found[unit] == pytest.approx(base[name][unit] * point["scale"][name], rel=1e-9)
            assert found["low"] <= found[unit] <= found["high"]
    assert at(answer, 1164, 3505)["scale"] == {"time": 1, "power": 1, "energy": 1}
    wide = at(answer, 1164, 810)["time"]
    assert wide["high"] / wide["low"] > base["time"]["high"] / base["time"]["low"]


def test_the_service_tells_what_the_model_does(client: httpx.Client) -> None:
    from wattcast.features.analysis import analyse
    from wattcast.features.gpus import load_gpu
    from wattcast.features.launch import Launch
    from wattcast.features.ptx.reader import read_module
    from wattcast.models.clocks import ClockPair
    from wattcast.models.papers.scaling.code import stream_of

    answer = ask(client, MATMUL, launch=MATMUL_LAUNCH, model="tokens")
    launch = Launch(grid=(32, 32, 1), block=(32, 32, 1), arguments={"3": 1024})
    analysis = analyse(read_module(MATMUL), None, launch, load_gpu("gtx-titan-x"))
    stream = stream_of(analysis)
    inner = max(stream.repeats)
    assert inner >= 1024 / 32  # its loop over tiles ran
    model = code_scaling(scaling_store(), "gtx-titan-x", "tokens").scaling
    asked = [ClockPair(*pair) for pair in pairs(answer)]
    scales = model.scales([stream], asked, ClockPair(1164, 3505))
    for point, scale in zip(answer["points"], scales, strict=True):
        assert point["scale"]["time"] == pytest.approx(scale.time, rel=1e-9)
        assert point["scale"]["power"] == pytest.approx(scale.power, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"power_limit_watts": 200}, "knows no power limits"),
        ({"clocks": {"core_mhz": 1000, "memory_mhz": 3300}}, "810 or 3505 MHz memory"),
        ({"gpu": "tesla-v100"}, "gtx-titan-x"),
        ({"model": "lstm"}, "sequence"),
    ],
)
def test_what_they_cannot_answer_is_refused(
    client: httpx.Client, vector_add: str, changes: dict[str, Any], says: str
) -> None:
    body = {"ptx": vector_add, "gpu": "gtx-titan-x", "launch": {"grid": 64, "block": 64}}
    answer = client.post("/dvfs", json={**body, "model": "tokens", **changes})
    assert 400 <= answer.status_code < 500
    assert says in answer.text


def test_the_command_takes_them(run: Run) -> None:
    words = ("dvfs", "-", "--grid", "32,32", "--block", "32,32", "--arg", "3=1024")
    told, _ = run(*words, "--gpu", "gtx-titan-x", "--model", "sequence", "--json", stdin=MATMUL)
    answer = json.loads(told)
    assert answer["model"]["family"] == "sequence"
    assert len(answer["points"]) == 32


@pytest.mark.parametrize("model", MODELS)
def test_models_that_read_code_alone_are_not_trusted_with_a_choice(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    told = ask(client, vector_add, model=model)["proposal"]
    assert told["stay"] is True
    assert told["cost_percent"] > 20
