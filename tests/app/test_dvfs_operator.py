"""``POST /dvfs`` of a library operator: power limits in the place of clocks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run
from tests.app.test_problems import problem

GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
DECODE = {"name": "attention", "phase": "decode", "batch": 8, "cached_tokens": 4095, "heads": 32,
          "kv_heads": 8}  # fmt: skip
BOARDS = ("h200", "b200", "h100-sxm5", "a100", "v100", "l4", "a40")


def asked(client: httpx.Client, operator: Any = GEMM, gpu: str = "h200", **more: Any) -> Any:
    return client.post("/dvfs", json={"operator": operator, "gpu": gpu, **more})


def answered(client: httpx.Client, *of: Any, **more: Any) -> Any:
    found = asked(client, *of, **more)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize("operator", [GEMM, DECODE], ids=["gemm", "decode"])
@pytest.mark.parametrize("gpu", BOARDS)
def test_a_point_is_the_prediction_under_its_limit(
    client: httpx.Client, gpu: str, operator: Any
) -> None:
    found = answered(client, operator, gpu)
    body = {"operator": operator, "gpu": gpu}
    places = [found["reference"], *found["points"]]
    limits = [None, *(point["power_limit_watts"] for point in found["points"])]
    for point, limit in zip(places, limits, strict=True):
        alone = client.post("/predict", json={**body, "power_limit_watts": limit}).json()
        assert {name: point[name] for name in ("time", "power", "energy")} == {
            name: alone[name] for name in ("time", "power", "energy")
        }
        assert point["power_limit_watts"] == alone["power_limit_watts"]
        assert (
            point.get("runs_at_core_mhz", alone["clocks"]["core_mhz"])
            == (alone["clocks"]["core_mhz"])
        )
    own = found["reference"]["power_limit_watts"]
    assert limits[1:] == sorted(set(limits[1:]))
    assert 1 < len(limits[1:]) <= 9
    assert limits[1] >= own / 2 - 1
    assert limits[-1] == own


@pytest.mark.parametrize("gpu", BOARDS)
def test_what_is_proposed_saves_and_else_the_board_stays(client: httpx.Client, gpu: str) -> None:
    for operator in (GEMM, DECODE):
        found = answered(client, operator, gpu)
        told, base = found["proposal"], found["reference"]
        least = min(point["energy"]["joules"] for point in found["points"])
        saving = 100 * (1 - least / base["energy"]["joules"])
        assert told["energy_saved_percent"] == pytest.approx(saving, abs=1e-9)
        # The bound of a board without a power model of its own: 1.145 to the power of 1.5.
        cost = 100 * (least / base["energy"]["joules"] * 1.145**1.5 - 1)
        assert told["cost_percent"] == pytest.approx(cost)
        assert told["stay"] == (saving <= max(cost, 0))
        if told["stay"]:
            assert told["power_limit_watts"] == base["power_limit_watts"]


def test_where_every_limit_loses_the_board_stays(client: httpx.Client) -> None:
    """Memory binds this call: a lower clock saves next to nothing, and 200 W cost energy."""
    found = answered(client, DECODE, power_limit_watts=[200, 250])
    assert all(point["energy_saved_percent"] < 0 for point in found["points"])
    told = found["proposal"]
    assert told["stay"]
    assert told["power_limit_watts"] == 700
    assert told["energy_saved_percent"] < 0
    assert told["why"].endswith("nothing else is expected to save energy")


def test_the_pareto_set_and_the_best_keep_to_the_constraints(client: httpx.Client) -> None:
    free = answered(client, power_limit_watts=[*range(300, 701, 20)])
    points = free["points"]
    for point in points:
        cost = point["time"]["seconds"], point["energy"]["joules"]
        beaten = any(
            each["time"]["seconds"] <= cost[0]
            and each["energy"]["joules"] <= cost[1]
            and (each["time"]["seconds"], each["energy"]["joules"]) != cost
            for each in points
        )
        assert point["pareto"] == (not beaten)
    base = free["reference"]
    for constraints, unit, bound in (
        ({"max_slowdown": 1.1}, ("time", "seconds"), 1.1 * base["time"]["seconds"]),
        ({"deadline_seconds": 2.2e-4}, ("time", "seconds"), 2.2e-4),
        ({"max_power_watts": 500}, ("power", "watts"), 500),
    ):
        found = answered(client, power_limit_watts=[*range(300, 701, 20)], constraints=constraints)
        able = [each for each in found["points"] if each["feasible"]]
        assert 0 < len(able) < len(points)
        assert all(each[unit[0]][unit[1]] <= bound for each in able)
        thrifty = min(able, key=lambda each: each["energy"]["joules"])
        best = found["best"]["min_energy"]
        assert best["power_limit_watts"] == thrifty["power_limit_watts"]
    no = problem(asked(client, constraints={"deadline_seconds": 1e-9}), 422, "constraints")
    assert "deadline_seconds 1e-09" in no["detail"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"clocks": "grid"}, "no clocks are modelled for operators; give power_limit_watts"),
        ({"reference": {"core_mhz": 1}}, "no clocks are modelled for operators"),
        ({"power_limit_watts": []}, "at least 1"),
        ({"power_limit_watts": [300] * 4097}, "at most 4096"),
        ({"power_limit_watts": [300, 0]}, "greater than 0"),
        ({"launch": {"grid": [1]}}, "launch"),
        ({"operator": {"name": "conv"}}, "gemm"),
    ],
)
def test_what_is_not_asked_of_an_operator_is_refused(
    client: httpx.Client, more: dict[str, Any], told: str
) -> None:
    found = problem(client.post("/dvfs", json={"operator": GEMM, "gpu": "h200", **more}), 422,
                    "validation")  # fmt: skip
    assert told in found["detail"]
    assert "\n" not in found["detail"]


def test_a_limit_the_board_cannot_be_set_to_is_refused(client: httpx.Client) -> None:
    found = problem(asked(client, power_limit_watts=[300, 90]), 422, "clocks")
    assert "h200-sxm5 can be set to 200 to 700 W" in found["detail"]


def test_an_operator_without_watts_is_refused(client: httpx.Client) -> None:
    mamba = {"name": "linear_attention", "kind": "mamba2", "batch": 1, "new_tokens": 512,
             "heads": 64, "key_heads": 8}  # fmt: skip
    found = problem(asked(client, mamba), 422, "model")
    assert "no watts of linear_attention were measured" in found["detail"]


def test_python_refuses_code_and_clocks_beside_an_operator() -> None:
    for more in ({"grid": 64}, {"ptx": "x"}, {"clocks": {"core_mhz": 1005}}):
        with pytest.raises(ValueError, match=r"not permitted|no clocks are modelled"):
            wattcast.dvfs(**more, operator=GEMM, gpu="h200", registry=False)


def test_command_python_and_http_answer_alike(client: httpx.Client, run: Run) -> None:
    more = {"power_limit_watts": [300, 350, 400], "constraints": {"max_slowdown": 1.6}}
    told = answered(client, **more)
    shape = [word for key in "mnk" for word in (f"--{key}", str(GEMM[key]))]
    product = ["operator", "gemm", *shape, "--dtype", "bf16", "--gpu", "h200"]
    words = [*product, "--max-slowdown", "1.6"]
    text = run(*words, "--power-limits", "300,350,400", "--json")[0]
    assert json.loads(text) == told
    typed = wattcast.dvfs(operator=GEMM, gpu="h200", registry=False, **more)
    assert json.loads(json.dumps(typed.data())) == told
    assert len(typed.to_frame()) == 3
    table = run(*product, "--power-limits", "default")[0]
    assert table.startswith("gemm m=4096 n=4096 k=4096 on h200-sxm5\n")
    assert "\nproposal: " in table
    refused = run(*words, status=2)[1]
    assert "--power-limits" in refused
