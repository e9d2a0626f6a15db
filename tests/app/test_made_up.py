"""Boards that a request makes up: like a GPU, with other SMs or another memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run, settings_at
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

TILED = Path(__file__).parents[1] / "fixtures" / "kernels" / "time" / "tiled_matmul.ptx"
LAUNCH = {"grid": [128, 128], "block": [32, 32], "arguments": {"3": 4096}}


def body(**more: Any) -> dict[str, Any]:
    return {"ptx": TILED.read_text(encoding="utf-8"), "gpu": "v100", "launch": LAUNCH, **more}


def test_half_of_the_sms_take_twice_as_long_and_nobody_measured_them(client: httpx.Client) -> None:
    own = client.post("/predict", json=body()).json()
    half = client.post("/predict", json=body(like={"sms": 40})).json()
    assert half["time"]["seconds"] == pytest.approx(2 * own["time"]["seconds"], rel=0.1)
    assert half["gpu"] == "tesla-v100-like"
    assert half["trust"]["mark"] == "estimated board"
    assert "made-up board" in half["trust"]["why"]
    assert half["power"]["basis"] == "uncalibrated"
    assert half["power"]["watts"] < own["power"]["watts"]
    assert client.get(f"/predictions/{half['id']}").status_code == 404
    again = client.post("/predict", json=body()).json()
    assert [again[each] for each in ("time", "power")] == [own[each] for each in ("time", "power")]


def test_a_faster_memory_moves_more(client: httpx.Client, vector_add: str) -> None:
    launch = {"grid": [65536], "block": [256], "arguments": {"3": 1 << 24}}
    asked = {"ptx": vector_add, "gpu": "v100", "launch": launch}
    own = client.post("/predict", json=asked).json()["time"]["seconds"]
    fast = client.post("/predict", json={**asked, "like": {"memory_gbps": 1800}}).json()
    assert fast["time"]["seconds"] == pytest.approx(own / 2, rel=0.15)


def test_compare_asks_the_made_up_board(client: httpx.Client, vector_add: str) -> None:
    sides = {"old": {"ptx": vector_add}, "new": {"ptx": vector_add}}
    asked = {**sides, "gpus": ["v100", "a100"], "launch": LAUNCH | {"arguments": {}}}
    answer = client.post("/compare", json={**asked, "like": {"sms": 10}}).json()
    boards = {each["gpu"] for each in answer["comparisons"]}
    assert boards == {"tesla-v100-like", "a100-sxm4-80gb-like"}


@pytest.mark.parametrize(
    "like",
    [{"sms": 0}, {"sms": 1025}, {"sms": 1.5}, {"sms": "80"}, {"sms": True}, {"memory_gbps": 0},
     {"memory_gbps": 1e6}, {"memory_gbps": -1}, {"id": "mine"}, [], "v100", 7],
)  # fmt: skip
def test_what_is_no_board_is_refused(client: httpx.Client, like: Any) -> None:
    answer = client.post("/predict", json=body(like=like))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith("like")


def test_many_made_up_boards_leave_one_model_behind(tmp_path: Path) -> None:
    predictor = Predictor(settings_at(tmp_path))
    for sms in range(1, 12):
        predict(predictor, PredictRequest.model_validate(body(like={"sms": sms})))
    kept = [key for key in predictor.power._physical if key[0] == "tesla-v100-like"]
    assert len(kept) == 1


def test_on_the_command_line(run: Run) -> None:
    words = "--gpu", "a100", "--grid", "128,128", "--block", "32,32", "--arg", "3=4096"
    out, _ = run("predict", str(TILED), *words, "--sms", "54", "--core-mhz", "1200",
                 "--memory-gbps", "900")  # fmt: skip
    assert "on a100-sxm4-80gb-like" in out
    assert "a made-up board" in out
    assert "at 1200/" in out
