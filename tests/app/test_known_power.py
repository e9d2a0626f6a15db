"""Measured power of a kernel's launches corrects what is predicted of its others."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.test_problems import json_of, problem

LAUNCH = {"grid": [4096], "block": [256]}
SMALL = {"grid": [1], "block": [32]}


def ask(client: httpx.Client, ptx: str, **changes: Any) -> dict[str, Any]:
    body = {"ptx": ptx, "gpu": "tesla-k20", "launch": LAUNCH, **changes}
    return json_of(client.post("/predict", json=body))


def test_a_measured_launch_corrects_its_own_repetition(
    client: httpx.Client, vector_add: str
) -> None:
    plain = ask(client, vector_add)
    watts = 1.3 * plain["power"]["watts"]
    found = ask(client, vector_add, known=[{"launch": LAUNCH, "power_watts": watts}])
    assert found["power"]["watts"] == pytest.approx(watts, rel=0.01)
    assert found["power"]["basis"] == "seen_kernel"
    assert found["power"]["high"] / found["power"]["low"] < 1.2
    assert found["time"] == plain["time"]  # nobody measured that
    assert "power_anchored" in {one["code"] for one in found["warnings"]}
    assert found["energy"]["joules"] == pytest.approx(
        found["power"]["watts"] * found["time"]["seconds"]
    )


def test_another_launch_is_corrected_less_and_promised_less(
    client: httpx.Client, vector_add: str
) -> None:
    watts = 1.3 * ask(client, vector_add, launch=SMALL)["power"]["watts"]
    known = [{"launch": SMALL, "power_watts": watts}]
    repeated = ask(client, vector_add, launch=SMALL, known=known)["power"]
    plain, found = ask(client, vector_add), ask(client, vector_add, known=known)
    ratio = found["power"]["watts"] / plain["power"]["watts"]
    assert 1.0 < ratio < 1.3
    width = found["power"]["high"] / found["power"]["low"]
    assert width > repeated["high"] / repeated["low"]
    assert width <= plain["power"]["high"] / plain["power"]["low"] * (1 + 1e-9)


def test_the_physical_model_is_anchored_too(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "power_watts": 111.0}]
    found = ask(client, vector_add, gpu="rtx-3080", known=known)["power"]
    assert found["watts"] == pytest.approx(111.0, rel=0.01)


def test_time_alone_corrects_no_power(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "time_seconds": 1.0}]
    plain, found = ask(client, vector_add), ask(client, vector_add, known=known)
    assert found["power"] == plain["power"]
    assert found["time"]["basis"] == "seen_kernel"


def test_the_error_tells_which_known_launch_is_refused(
    client: httpx.Client, vector_add: str
) -> None:
    bad = {"launch": {"grid": [1], "block": [4096]}, "power_watts": 60.0}
    body = {"ptx": vector_add, "gpu": "tesla-k20", "launch": LAUNCH, "known": [bad]}
    found = problem(client.post("/predict", json=body), 422, "launch")
    assert found["detail"].startswith("known[0]: ")


def test_a_power_below_a_tenth_of_idle_is_told(client: httpx.Client, vector_add: str) -> None:
    known = [{"launch": LAUNCH, "power_watts": 1.0}]
    found = ask(client, vector_add, gpu="titan-v", known=known)
    (note,) = [each for each in found["warnings"] if each["code"] == "power_below_idle"]
    assert note["detail"].startswith("known[0].power_watts: 1 W is below 4.37 W, a tenth of the")
