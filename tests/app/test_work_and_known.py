"""POST /predict from measured work, and corrected by measured launches of the same kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.test_problems import json_of, problem
from wattcast.predictor.messages.predict import PredictAnswer

LAUNCH = {"grid": [4096], "block": [256]}
SMALL = {"grid": [1], "block": [32]}
WORK = {"dram_bytes": 1e9, "int_ops": 4e9, "flops_sp": 2e9}


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    return json_of(
        client.post("/predict", json={"gpu": "rtx-3080", "launch": LAUNCH, **body}), PredictAnswer
    )


def test_work_is_enough_for_time_power_and_energy(client: httpx.Client) -> None:
    answer = ask(client, work=WORK)
    assert answer["kernel"] is None
    assert answer["occupancy"] is None
    assert answer["registers"] is None
    assert answer["time_model"]["family"] == "work"
    assert answer["time"]["basis"] == "unseen_kernel"
    assert answer["time"]["seconds"] > 1e9 / 760e9  # not faster than its bytes at full bandwidth
    assert answer["power"]["basis"] == "uncalibrated"
    assert answer["components"]["dram"] > 0
    assert answer["energy"]["joules"] == pytest.approx(
        answer["power"]["watts"] * answer["time"]["seconds"]
    )
    assert answer["warnings"][0]["code"] == "power_from_work"


def test_a_prediction_from_work_is_kept_and_explained(client: httpx.Client) -> None:
    answer = ask(client, work=WORK, explain="shap")
    again = client.get(f"/predictions/{answer['id']}")
    assert again.json() == answer
    shap = client.get("/explain", params={"prediction_id": answer["id"]}).json()
    total = shap["base_watts"] + sum(part["watts"] for part in shap["contributions"])
    assert total == pytest.approx(answer["power"]["watts"])
    assert {**answer["explanation"], "prediction_id": answer["id"]} == shap


def test_measured_power_makes_work_no_more_certain_than_extrapolated(client: httpx.Client) -> None:
    answer = ask(client, work=WORK, gpu="tesla-v100")
    assert answer["power"]["basis"] == "extrapolated"
    assert answer["time"]["basis"] == "uncalibrated"


def test_more_work_takes_longer_and_slower_clocks_too(client: httpx.Client) -> None:
    base = ask(client, work=WORK)["time"]["seconds"]
    more = ask(client, work={name: 2 * value for name, value in WORK.items()})["time"]["seconds"]
    slow = ask(client, work=WORK, clocks={"core_mhz": 1200, "memory_mhz": 9501})["time"]["seconds"]
    assert more > base
    assert slow >= base


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"work": WORK, "ptx": "x"}, "exactly one of ptx and cuda and work"),
        ({}, "exactly one of ptx and cuda and work"),
        (
            {"work": WORK, "kernel": "k", "loops": {"default": 3}},
            "kernel, loops: not allowed with measured work",
        ),
        (
            {"work": WORK, "launch": {**LAUNCH, "arguments": {"0": 1}}},
            "launch.arguments: not allowed with measured work",
        ),
        ({"work": {"int_ops": 1.0}}, "dram_bytes"),
        ({"work": {**WORK, "flops_sp": -1}}, "greater than or equal to 0"),
        ({"work": {**WORK, "flops_sp": "nan"}}, "finite"),
        ({"ptx": "x", "known": [{"launch": LAUNCH, "time_seconds": 0}]}, "greater than 0"),
        ({"ptx": "x", "known": [{"launch": LAUNCH}]}, "time_seconds"),
        (
            {
                "ptx": "x",
                "known": [{"launch": LAUNCH, "time_seconds": 1}],
                "gpu": None,
                "gpus": ["v100"],
            },
            "known launches are those of one gpu",
        ),
    ],
)
def test_bad_work_and_known_launches_are_told_precisely(
    client: httpx.Client, changes: dict[str, Any], says: str
) -> None:
    body = {"gpu": "rtx-3080", "launch": LAUNCH, **changes}
    found = problem(client.post("/predict", json=body), 422, "validation")
    assert says in json.dumps(found["errors"])


def test_boosted_power_models_need_code(client: httpx.Client) -> None:
    body = {"gpu": "tesla-k20", "launch": LAUNCH, "work": WORK, "model": "xgboost"}
    found = problem(client.post("/predict", json=body), 422, "model")
    assert found["detail"] == "measured work needs model physical, not xgboost"


@pytest.mark.parametrize(
    ("what", "gpu", "factor"),
    [("time.seconds", "rtx-3080", 1.7), ("power.watts", "tesla-k20", 1.3)],
)
def test_a_measured_launch_corrects_its_own_repetition(
    client: httpx.Client, vector_add: str, what: str, gpu: str, factor: float
) -> None:
    quantity, _, unit = what.partition(".")
    plain = ask(client, ptx=vector_add, gpu=gpu)
    measured = factor * plain[quantity][unit]
    known = [{"launch": LAUNCH, f"{quantity}_{unit}": measured}]
    answer = ask(client, ptx=vector_add, gpu=gpu, known=known)
    found, time = answer[quantity], answer["time"]
    assert found[unit] == pytest.approx(measured, rel=0.02)
    assert found["basis"] == "seen_kernel"
    assert found["high"] / found["low"] < 1.2
    assert answer["energy"]["joules"] == pytest.approx(answer["power"]["watts"] * time["seconds"])
    if quantity == "power":
        assert time == plain["time"]  # nobody measured that
        assert "power_anchored" in {one["code"] for one in answer["warnings"]}
    else:
        longer = time["seconds"] - plain["time"]["seconds"]
        assert answer["time_model"]["parts"]["known"] == pytest.approx(longer)


def test_a_launch_measured_at_other_clocks_counts_at_those(
    client: httpx.Client, vector_add: str
) -> None:
    slow = {"core_mhz": 1005, "memory_mhz": 9501}
    seconds = ask(client, ptx=vector_add, clocks=slow)["time"]["seconds"]
    known = [{"launch": LAUNCH, "time_seconds": seconds, "clocks": slow}]
    plain = ask(client, ptx=vector_add)["time"]["seconds"]
    assert ask(client, ptx=vector_add, known=known)["time"]["seconds"] == pytest.approx(plain)


def test_python_takes_work_and_known_launches() -> None:
    shape: dict[str, Any] = {"gpu": "rtx-3080", "grid": 4096, "block": 256}
    from_work = wattcast.predict(work=WORK, **shape)
    assert from_work.time is not None
    assert from_work.kernel is None
    path = Path("app/demo/vector_add.ptx")
    known = [{"launch": LAUNCH, "time_seconds": 1.0}]
    corrected = wattcast.predict(path, known=known, **shape)
    assert corrected.time is not None
    assert corrected.time.basis == "seen_kernel"


@pytest.mark.parametrize("time_model", ["bottleneck", "delay", "volkov"])
def test_power_is_taken_at_the_time_that_is_answered(
    client: httpx.Client, vector_add: str, time_model: str
) -> None:
    """Rates are counts over the duration answered, whichever model it comes from."""
    request = {"ptx": vector_add, "gpu": "tesla-v100", "model": "physical"}
    answer, base = (ask(client, **request, time_model=one) for one in (time_model, "bottleneck"))
    longer = answer["time"]["seconds"] / base["time"]["seconds"]
    moving = answer["components"]["dram"], base["components"]["dram"]
    assert moving[0] * longer == pytest.approx(moving[1], rel=0.02)


def test_a_known_duration_moves_the_power(client: httpx.Client, vector_add: str) -> None:
    request = {"ptx": vector_add, "gpu": "tesla-v100", "model": "physical"}
    free = ask(client, **request)
    known = [{"launch": LAUNCH, "time_seconds": 2 * free["time"]["seconds"]}]
    slower = ask(client, **request, known=known)
    assert slower["time"]["seconds"] == pytest.approx(2 * free["time"]["seconds"], rel=0.05)
    assert slower["power"]["watts"] < 0.9 * free["power"]["watts"]


def test_another_launch_is_corrected_less_and_promised_less(
    client: httpx.Client, vector_add: str
) -> None:
    trees = {"ptx": vector_add, "gpu": "tesla-k20"}
    watts = 1.3 * ask(client, **trees, launch=SMALL)["power"]["watts"]
    known = [{"launch": SMALL, "power_watts": watts}]
    repeated = ask(client, **trees, launch=SMALL, known=known)["power"]
    plain, found = ask(client, **trees), ask(client, **trees, known=known)
    ratio = found["power"]["watts"] / plain["power"]["watts"]
    assert 1.0 < ratio < 1.3
    width = found["power"]["high"] / found["power"]["low"]
    assert width > repeated["high"] / repeated["low"]
    assert width <= plain["power"]["high"] / plain["power"]["low"] * (1 + 1e-9)


def test_the_physical_model_is_anchored_too(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "power_watts": 111.0}]
    found = ask(client, ptx=vector_add, known=known)["power"]
    assert found["watts"] == pytest.approx(111.0, rel=0.01)


def test_time_alone_corrects_no_power(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "time_seconds": 1.0}]
    trees = {"ptx": vector_add, "gpu": "tesla-k20"}
    plain, found = ask(client, **trees), ask(client, **trees, known=known)
    assert found["power"] == plain["power"]
    assert found["time"]["basis"] == "seen_kernel"


def test_the_error_tells_which_known_launch_is_refused(
    client: httpx.Client, vector_add: str
) -> None:
    bad = {"launch": {"grid": [1], "block": [4096]}, "power_watts": 60.0}
    body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH, "known": [bad]}
    found = problem(client.post("/predict", json=body), 422, "launch")
    assert found["detail"].startswith("known[0]: ")


def test_a_power_below_a_tenth_of_idle_is_told(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "power_watts": 1.0}]
    found = ask(client, ptx=vector_add, gpu="titan-v", known=known)
    (note,) = [each for each in found["warnings"] if each["code"] == "power_below_idle"]
    assert note["detail"].startswith("known[0].power_watts: 1 W is below 4.37 W, a tenth of the")
