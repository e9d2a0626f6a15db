"""Measurements of launches that were predicted before: what their intervals held, and what then."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any

import httpx

from tests.app.conftest import settings_at
from tests.app.measured import upload, zipped
from tests.app.test_problems import json_of
from wattcast.app.services.models.standalone import standalone_predictor
from wattcast.features.ptx import read_module
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

GPU = "tesla-v100"
PTX = (Path(__file__).parents[2] / "measure/kernels/stencil.ptx").read_text("utf-8")
KERNELS = [each.name for each in read_module(PTX).functions if each.is_entry][:6]
LAUNCH: dict[str, Any] = {"grid": [2048], "block": [256]}


def body(kernel: str, board: str) -> dict[str, Any]:
    loops = {"default": 16}
    return {"ptx": PTX, "kernel": kernel, "gpu": GPU, "board": board, "launch": LAUNCH,
            "loops": loops}  # fmt: skip


def asked(client: httpx.Client, kernel: str, board: str) -> dict[str, Any]:
    return json_of(client.post("/predict", json=body(kernel, board)))


def measured(client: httpx.Client, board: str, watts: dict[str, float], block: int = 256) -> str:
    """Upload one launch of each kernel; the batch."""
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["ptx", "kernel", "gpu", "board", "grid", "block", "loops", "power_watts"])
    for kernel, power in watts.items():
        writer.writerow(["s.ptx", kernel, GPU, board, 2048, block, '{"default": 16}', power])
    return upload(client, zipped({"rows.csv": rows.getvalue(), "s.ptx": PTX}))


def registered(client: httpx.Client, board: str, kernels: int) -> dict[str, Any]:
    """What the registry says of the board's power, once replicas have seen so many kernels."""
    until = time.monotonic() + 10
    while True:
        found = client.get(f"/models/{GPU}/power/registry").json()["observed"]
        metrics = client.get("/metrics").text
        mine: list[dict[str, Any]] = [one for one in found if one["board"] == board]
        line = f'wattcast_observed_kernels{{board="{board}",gpu="{GPU}"'
        served = [one for one in metrics.splitlines() if one.startswith(line)]
        if (
            mine
            and mine[0]["kernels"] == kernels
            and served
            and served[0].endswith(f" {kernels}.0")
        ):
            return mine[0]
        assert time.monotonic() < until, (mine, served)
        time.sleep(0.05)


def half_widths(answer: dict[str, Any]) -> tuple[float, float]:
    power = answer["power"]
    return power["watts"] / power["low"], power["high"] / power["watts"]


def test_a_board_that_leaves_its_intervals_widens_them_until_its_measurements_are_gone(
    service: httpx.Client, home: dict[str, Any]
) -> None:
    before = {kernel: asked(service, kernel, "lab-7") for kernel in KERNELS}
    assert not any("widened" in each["power"] for each in before.values())
    # A kernel or two outside happen with honest intervals, too.
    first = {name: each["power"]["low"] / 1.3 for name, each in list(before.items())[:2]}
    batch = measured(service, "lab-7", first)
    told = registered(service, "lab-7", 2)
    assert (told["inside"], told["widened"]) == (0, 1.0)
    rest = {name: each["power"]["low"] / 1.3 for name, each in list(before.items())[2:5]}
    measured(service, "lab-7", rest)
    told = registered(service, "lab-7", 5)
    assert (told["inside"], told["promised"]) == (0, 0.9)
    assert told["widened"] > 1
    new = KERNELS[5]
    after = asked(service, new, "lab-7")
    assert after["power"]["watts"] == before[new]["power"]["watts"]
    assert after["power"]["widened"] == told["widened"]
    assert after["power"]["level"] == 0.83  # as many as five kernels support
    assert all(a > b for a, b in zip(half_widths(after), half_widths(before[new]), strict=True))
    warnings = {each["code"]: each["detail"] for each in after["warnings"]}
    assert "0 of 5 kernels" in warnings["interval_widened"]
    # The measurements themselves would now be held.
    for name, watts in {**first, **rest}.items():
        again = asked(service, name, "lab-7")["power"]
        assert again["low"] <= watts * (1 + 1e-9), name
    # Another board of this kind has nothing to do with it.
    assert asked(service, new, "lab-8")["power"] == before[new]["power"]
    summary = next(
        one for one in service.get("/models").json() if one["card"] == after["model"]["card"]
    )
    assert [one["board"] for one in summary["observed"]] == ["lab-7"]
    # The command line and Python answer the same.
    settings = settings_at(**home)
    request = PredictRequest.model_validate(body(new, "lab-7"))
    same = predict(standalone_predictor(settings), request).data()
    assert same["power"] == after["power"]
    # Measurements that were wrong take the alarm with them.
    assert service.delete(f"/measurements/{batch}").status_code in (200, 204)
    told = registered(service, "lab-7", 3)
    assert told["widened"] > 1


def test_a_board_that_keeps_to_its_intervals_changes_nothing(service: httpx.Client) -> None:
    before = {kernel: asked(service, kernel, "good") for kernel in KERNELS}
    measured(service, "good", {name: each["power"]["high"] for name, each in before.items()})
    told = registered(service, "good", len(KERNELS))
    assert (told["inside"], told["widened"]) == (len(KERNELS), 1.0)
    assert asked(service, KERNELS[0], "good")["power"] == before[KERNELS[0]]["power"]


def test_another_launch_says_nothing_of_an_answer(service: httpx.Client) -> None:
    low = {kernel: asked(service, kernel, "other")["power"]["low"] / 2 for kernel in KERNELS}
    measured(service, "other", low, block=128)
    observed = service.get(f"/models/{GPU}/power/registry").json()["observed"]
    assert "other" not in {one["board"] for one in observed}


def test_an_answer_for_a_cold_l2_is_not_compared_with_a_warm_launch(service: httpx.Client) -> None:
    cold = {**body(KERNELS[0], "cold"), "launch": {**LAUNCH, "l2": "cold"}}
    answer = service.post("/predict", json=cold)
    assert answer.status_code == 200, answer.text
    measured(service, "cold", {KERNELS[0]: answer.json()["power"]["watts"]})
    observed = service.get(f"/models/{GPU}/power/registry").json()["observed"]
    assert all(each["board"] != "cold" for each in observed)
