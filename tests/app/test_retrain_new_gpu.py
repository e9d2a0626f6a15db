"""A GPU that nobody measured: its power and time from uploads, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run, settings_at
from tests.app.live import running
from tests.app.measured import result_of, upload
from tests.app.new_gpu import GPU, OPTIONS, SECONDS, WATTS, answer, body_of, measured, retrained
from wattcast.app.services.models.standalone import standalone_predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

embedded = pytest.mark.parametrize("home", ["sqlite"], indirect=True)
"""What PostgreSQL could do otherwise is held by test_retrain.py and test_registry_store.py."""

CASES = [
    {"ptx": "add.ptx", "grid": 1000, "block": 256, "loops": {}},
    {"ptx": "loop.ptx", "grid": 2048, "block": 256, "loops": {"default": 100}},
]


def but_widths(told: dict[str, Any]) -> dict[str, Any]:
    """An answer without its widths: measurements that come in for it may widen those at any time
    (tests/app/test_observed_coverage.py), whoever answers."""
    widths = {"low", "high", "level", "widened"}
    parts = {
        name: {key: value for key, value in told[name].items() if key not in widths}
        for name in ("power", "time", "energy")
    }
    notes = [note for note in told["warnings"] if note["code"] != "interval_widened"]
    return {**told, **parts, "warnings": notes}


def answers(client: httpx.Client, kernels: dict[str, str]) -> list[dict[str, Any]]:
    return [
        but_widths(answer(client, kernels, case, **more))
        for case in CASES
        for more in ({}, {"board": "b"})
    ]


@embedded
@pytest.mark.slow
def test_power_and_time_are_calibrated_promoted_served_and_rolled_back(
    service: httpx.Client, home: dict[str, Any], kernels: dict[str, str]
) -> None:
    before = answers(service, kernels)
    assert before[0]["power"]["basis"] == before[0]["time"]["basis"] == "uncalibrated"
    results = retrained(service, measured(service, kernels))
    opponents = {
        "power": "uncalibrated physical model that answers now",
        "time": "default time model",
    }
    for target, name in opponents.items():
        verdict = results[target]["verdict"]
        assert results[target]["promoted"], verdict["reasons"]
        assert verdict["comparisons"][0]["opponent"] == name
    after = answers(service, kernels)
    for old, new in zip(before, after, strict=True):
        watts, seconds = new["power"]["watts"], new["time"]["seconds"]
        assert watts / old["power"]["watts"] == pytest.approx(WATTS, rel=0.05)
        assert seconds / old["time"]["seconds"] == pytest.approx(SECONDS, rel=0.05)
        assert new["energy"]["joules"] == pytest.approx(watts * seconds)
        assert new["power"]["basis"] == new["time"]["basis"] == "unseen_kernel"
        assert sum(new["components"].values()) == pytest.approx(watts)
        assert new["time_model"]["parts"]["calibration"] == pytest.approx(
            seconds - old["time"]["seconds"]
        )
        assert not any(note["code"] == "gpu_uncalibrated" for note in new["warnings"])
    listed = [one for one in service.get("/models").json() if one["gpu"] == GPU]
    by_target = {one["target"]: one for one in listed if one["source"] == "uploads"}
    assert by_target["power"]["unseen_kernel_mape_percent"] < 3
    assert by_target["power"]["unseen_kernel_time_median_ape_percent"] is None
    assert by_target["time"]["unseen_kernel_mae_watts"] is None
    assert by_target["time"]["unseen_kernel_time_median_ape_percent"] < 3
    for reference in (after[0]["model"], after[0]["time_model"]["model"]):
        card = service.get(reference["card"]).json()
        assert (reference["source"], reference["gpu"]) == ("uploads", GPU)
        assert card["training"]["kernel_groups"] == 24
        assert len(card["board"]["batches"]) == 1
    # A model that is named answers as it is; other clocks than the measured are beyond it.
    plain = but_widths(answer(service, kernels, CASES[0], time_model="bottleneck"))
    assert plain["time"] == before[0]["time"]
    slow = answer(service, kernels, CASES[0], clocks={"core_mhz": 900})
    assert slow["power"]["basis"] == slow["time"]["basis"] == "extrapolated"
    explained = service.post(
        "/predict",
        json={"ptx": kernels["add.ptx"], "gpu": GPU, "launch": {"grid": [64], "block": [256]}},
    ).json()
    for target in ("power", "time"):
        shares = service.get(
            "/explain", params={"prediction_id": explained["id"], "target": target}
        )
        assert shares.status_code == 200, shares.text
    with running(settings_at(**home, job_workers=0)) as replica:
        assert answers(replica, kernels) == after
    own = standalone_predictor(settings_at(**home))
    asked = PredictRequest.model_validate(body_of(kernels, CASES[0]))
    told = but_widths(predict(own, asked).data())
    assert [told[name] for name in ("power", "time")] == [after[0][n] for n in ("power", "time")]
    # The same measurements again are the same batch, and tell nothing new.
    batch = card["board"]["batches"]
    result = result_of(service, service.post("/retrain", json={**OPTIONS, "batches": batch}))
    for one in (result, *result["also"]):
        assert "0 kernel groups" in one["verdict"]["reasons"][0]
    for target in ("power", "time"):
        undone = service.post(f"/models/{GPU}/{target}/rollback", json={})
        assert undone.status_code == 200, undone.text
    assert answers(service, kernels) == before
    model = after[0]["time_model"]["model"]
    name = {key: model[key] for key in ("family", "schema", "source", "version")}
    by_hand = service.post(f"/models/{GPU}/time/promote", json=name)
    assert by_hand.status_code == 200, by_hand.text
    assert [one["time"] for one in answers(service, kernels)] == [one["time"] for one in after]
    # Power is taken at the time that is answered: corrected times move the default's, too.
    assert [one["power"] for one in answers(service, kernels)] != [one["power"] for one in before]
    service.post(f"/models/{GPU}/time/rollback", json={})
    assert answers(service, kernels) == before


@embedded
def test_what_cannot_be_calibrated_is_refused_at_once(
    service: httpx.Client, kernels: dict[str, str]
) -> None:
    batch = upload(service, measured(service, kernels, time=False))

    def refused(**options: object) -> str:
        found = service.post("/retrain", json={**OPTIONS, "batches": [batch], **options})
        assert found.status_code == 422, found.text
        return json.dumps(found.json())

    assert "target time needs rows with time_seconds; the batches hold none of" in refused()
    assert "board 'x'" in refused(board="x")
    assert "mode full takes any schema" in refused(targets=["power"], schema="alavani2023")
    assert "families" in refused(targets=["power"], families=["xgboost"])
    assert "families" in refused(mode="full", targets=["time"], families=["xgboost"])
    assert "named twice" in refused(targets=["time", "time"])


def test_the_command_line_looks_at_times_too(run: Run) -> None:
    shown, _ = run("models", "registry", "a100", "--target", "time")
    assert [json.loads(shown)[name] for name in ("gpu", "target", "places")] == [GPU, "time", []]
    _, why = run("models", "rollback", "a100", "--target", "time", status=1)
    assert "time model" in why
