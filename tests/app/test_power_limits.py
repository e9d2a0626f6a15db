"""``power_limit_watts`` of predict, batch, sweep, compare and dvfs: what always holds under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.test_problems import problem
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.predictor import Predictor
from wattcast.predictor.compare import compare
from wattcast.predictor.dvfs import dvfs
from wattcast.predictor.messages.compare import CompareRequest
from wattcast.predictor.messages.dvfs import DvfsRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepRequest
from wattcast.predictor.parts.time_and_power import ABOVE_LIMIT, OVER_LIMIT, BoardModels
from wattcast.predictor.predict import predict, predict_one
from wattcast.predictor.sweep import sweep

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"
KERNELS: Mapping[str, dict[str, Any]] = {
    "vector_add": {
        "ptx": (FIXTURES.parents[2] / "app" / "demo" / "vector_add.ptx").read_text(),
        "launch": {"grid": [65536], "block": [256]},
    },
    "matmul": {
        "ptx": (FIXTURES / "time" / "tiled_matmul.ptx").read_text(encoding="utf-8"),
        "launch": {"grid": [128, 128], "block": [32, 32], "arguments": {"3": 4096}},
    },
    "work": {
        "work": {"dram_bytes": 1e9, "int_ops": 1e10, "flops_sp": 4e12},
        "launch": {"grid": [65536], "block": [256]},
    },
}
GPUS = (
    "a40",
    "a100-sxm4-40gb",
    "gtx-titan-x",
    "tesla-v100",
    "tesla-k20",
    "ampere-84sm",
    "rtx-4090",
)


@cache
def answered(predictor: Predictor, kernel: str, gpu: str, limit: float | None) -> dict[str, Any]:
    body = {**KERNELS[kernel], "gpu": gpu, "power_limit_watts": limit}
    return predict(predictor, PredictRequest.model_validate(body))


def codes(answer: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in answer["warnings"]}


limits = st.tuples(
    st.sampled_from(sorted(KERNELS)), st.sampled_from(GPUS), st.floats(0, 1), st.floats(0, 1)
)


@settings(max_examples=25, deadline=None)
@given(case=limits)
def test_what_holds_under_two_limits(
    predictor: Predictor, case: tuple[str, str, float, float]
) -> None:
    kernel, gpu, *shares = case
    profile = load_gpu(gpu)
    low, high = profile.limit_range_watts or (0.5 * profile.tdp_watts, profile.tdp_watts)
    lower, higher = (
        answered(predictor, kernel, gpu, round(low + share * (high - low)))
        for share in sorted(shares)
    )
    free = answered(predictor, kernel, gpu, None)
    assert lower["power_limit_watts"] <= higher["power_limit_watts"] <= free["power_limit_watts"]
    for one in (lower, higher, free):
        power, time, energy = one["power"], one["time"], one["energy"]
        assert power["watts"] <= one["power_limit_watts"] * (1 + 1e-12)
        assert power["high"] <= one["power_limit_watts"] * (1 + ABOVE_LIMIT) * (1 + 1e-12)
        assert energy["joules"] == pytest.approx(power["watts"] * time["seconds"])
        if one["components"] is not None:
            assert sum(one["components"].values()) == pytest.approx(power["watts"])
        for part, unit in ((power, "watts"), (time, "seconds"), (energy, "joules")):
            assert 0 < part["low"] <= part[unit] <= part["high"]
        slowed = one["clocks"]["core_mhz"] < free["clocks"]["core_mhz"]
        assert "power_limited" in codes(one) or not slowed
    assert lower["time"]["seconds"] >= higher["time"]["seconds"] * (1 - 1e-12)
    assert higher["time"]["seconds"] >= free["time"]["seconds"] * (1 - 1e-12)
    assert lower["clocks"]["core_mhz"] <= higher["clocks"]["core_mhz"]


def test_a_launch_at_the_limit_is_no_surer_than_a_reading(predictor: Predictor) -> None:
    """An L4 that nobody measured was told 71.7 to 72.7 W: its lower end was the limit itself."""
    ptx = (FIXTURES / "ptx" / "nbody.sm_70.ptx").read_text(encoding="utf-8")
    launch = {"grid": [4096], "block": [256], "arguments": {"2": 1 << 14}}
    body = {"ptx": ptx, "gpu": "l4", "launch": launch, "power_limit_watts": 60}
    found = predict_one(predictor, PredictRequest.model_validate(body))
    assert found.power is not None
    assert found.power.watts == pytest.approx(60, rel=0.01)
    assert found.power.low <= 60 * (1 - OVER_LIMIT) * (1 + 1e-9)
    assert found.power.high >= 60 * (1 + OVER_LIMIT)


def test_the_warning_tells_what_the_limit_costs(predictor: Predictor) -> None:
    free, capped = (answered(predictor, "matmul", "a100-sxm4-40gb", at) for at in (None, 150))
    assert "power_limited" not in codes(free)
    (told,) = [each["detail"] for each in capped["warnings"] if each["code"] == "power_limited"]
    longer = 100 * (capped["time"]["seconds"] / free["time"]["seconds"] - 1)
    saved = 100 * (1 - capped["energy"]["joules"] / free["energy"]["joules"])
    assert f"{longer:.1f} % longer and {saved:.1f} % less energy" in told
    assert told.startswith("at 150 W instead of 400 W")
    assert f"from 1410 to {capped['clocks']['core_mhz']:g} MHz" in told


def test_a_limit_far_from_binding_changes_nothing(predictor: Predictor) -> None:
    free, capped = (answered(predictor, "vector_add", "rtx-4090", at) for at in (None, 440))
    for part in ("time", "clocks", "components", "features"):
        assert free[part] == capped[part]
    assert free["power"]["watts"] == capped["power"]["watts"]


def test_below_the_lowest_clock_the_board_holds_back(predictor: Predictor) -> None:
    lowest = min(core for core, _ in load_gpu("gtx-titan-x").supported_pairs)
    answer = answered(predictor, "matmul", "gtx-titan-x", 90)
    assert answer["clocks"]["core_mhz"] == lowest
    assert answer["power"]["watts"] == pytest.approx(90)
    parts = answer["time_model"]["parts"]
    assert parts["power_limit"] > 0
    assert answer["time"]["seconds"] > parts["power_limit"]


def test_clocks_that_several_limits_come_down_to_are_predicted_once(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ClockPair] = []
    plain = BoardModels.at

    def at(models: BoardModels, analysis: Any, pairs: Sequence[ClockPair]) -> Any:
        asked.extend(pairs)
        return plain(models, analysis, pairs)

    monkeypatch.setattr(BoardModels, "at", at)
    body = {**KERNELS["matmul"], "gpu": "a100", "power_limit_watts": [*range(100, 400, 3)]}
    dvfs(predictor, DvfsRequest.model_validate(body))
    assert 1 < len(asked) == len(set(asked))


def test_dvfs_over_power_limits(predictor: Predictor) -> None:
    body = {**KERNELS["matmul"], "gpu": "a100-sxm4-40gb", "power_limit_watts": [400, 150, 100, 150]}
    body["constraints"] = {"max_slowdown": 1.3}
    answer = dvfs(predictor, DvfsRequest.model_validate(body))
    points = answer["points"]
    assert [point["power_limit_watts"] for point in points] == [100, 150, 400]
    assert [point["core_mhz"] for point in points] == [1410] * 3
    for point in points:
        alone = answered(predictor, "matmul", "a100-sxm4-40gb", point["power_limit_watts"])
        assert point["time"] == alone["time"]
        assert point["energy"] == alone["energy"]
        assert point["runs_at_core_mhz"] == alone["clocks"]["core_mhz"]
    assert answer["reference"]["power_limit_watts"] == 400
    feasible = [point for point in points if point["feasible"]]
    assert 0 < len(feasible) < len(points)
    cheapest = min(feasible, key=lambda point: point["energy"]["joules"])
    assert answer["best"]["min_energy"]["power_limit_watts"] == cheapest["power_limit_watts"]


def test_sweep_and_compare_under_a_limit(predictor: Predictor) -> None:
    common = {**KERNELS["matmul"], "gpu": "a100-sxm4-40gb", "power_limit_watts": 150}
    common["analysis"] = "executed"  # a sweep may work shapes out symbolically otherwise
    alone = answered(predictor, "matmul", "a100-sxm4-40gb", 150)
    swept = sweep(predictor, SweepRequest.model_validate({**common, "blocks": [[32, 32]]}))
    assert swept["points"][0]["power"]["watts"] == pytest.approx(alone["power"]["watts"], rel=1e-3)
    assert swept["points"][0]["time"]["seconds"] == pytest.approx(
        alone["time"]["seconds"], rel=1e-3
    )
    assert "power_limited" in codes(swept)
    text = common.pop("ptx")
    body = {**common, "old": {"ptx": text}, "new": {"ptx": text}}
    (found,) = compare(predictor, CompareRequest.model_validate(body))["comparisons"]
    assert found["new"]["power"]["watts"] == pytest.approx(alone["power"]["watts"], rel=1e-3)
    assert found["change"]["time_percent"] == 0


def test_over_http(client: httpx.Client) -> None:
    body = {**KERNELS["matmul"], "gpu": "a40"}
    answer = client.post("/predict", json={**body, "power_limit_watts": 99})
    found = problem(answer, 422, "clocks")
    assert found["field"] == "power_limit_watts"
    assert "a40 can be set to 100 to 300 W" in found["detail"]
    for wrong in (0, -5, "much"):
        assert client.post("/predict", json={**body, "power_limit_watts": wrong}).status_code == 422
    batch = {"ptx": body["ptx"], "gpu": "a40", "launches": [body["launch"]]}
    one = client.post("/predict/batch", json={**batch, "power_limit_watts": 120}).json()
    assert one["predictions"][0]["power"]["watts"] <= 120
    assert "power_limited" in {warning["code"] for warning in one["warnings"]}
