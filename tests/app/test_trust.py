"""One mark for each answer, by one rule; GPUs are ranked only where they can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run, settings_at
from wattcast.models.cards import BoardFacts
from wattcast.models.intervals import Basis
from wattcast.models.store import ArtifactStore
from wattcast.predictor import Predictor
from wattcast.predictor.compare import compare
from wattcast.predictor.messages import LoopTrips
from wattcast.predictor.messages.compare import CompareRequest
from wattcast.predictor.messages.predict import PredictRequest, Trust
from wattcast.predictor.messages.sweep import SweepRequest
from wattcast.predictor.parts.trust import Ranked, apart, trust
from wattcast.predictor.predict import predict
from wattcast.predictor.sweep import sweep

FULL = {
    "3": 1048576,
    **{str(at): {"elements": 1048576} for at in range(3)},
}


def asked(predictor: Predictor, ptx: str, **more: Any) -> dict[str, Any]:
    launch = {"grid": [4096], "block": [256], "arguments": more.pop("arguments", FULL)}
    request = {"ptx": ptx, "gpu": "tesla-v100", "launch": launch, **more}
    return predict(predictor, PredictRequest.model_validate(request))


def test_the_mark_follows_what_the_answer_rests_on(predictor: Predictor, vector_add: str) -> None:
    assert asked(predictor, vector_add)["trust"]["mark"] == "measured board"
    assert asked(predictor, vector_add, gpu="h100-sxm5")["trust"]["mark"] == "estimated board"
    guess = asked(predictor, vector_add, arguments={})["trust"]
    assert guess["mark"] == "guess"
    assert "is not given" in guess["why"]
    known = [{"launch": {"grid": [2048], "block": [256], "arguments": FULL}, "power_watts": 130}]
    assert asked(predictor, vector_add, known=known)["trust"]["mark"] == "measured here"


def test_a_model_of_your_own_measurements_is_measured_here() -> None:
    card = ArtifactStore().find("tesla-k20", "power", "catboost", "alavani2023").card
    board = BoardFacts(label="lab-7", watts_factor=1, batches=("1",), base_data=True)
    own = card.model_copy(update={"board": board})
    assert trust("unseen_kernel", card)["mark"] == "measured board"
    assert trust("unseen_kernel", own)["mark"] == "measured here"
    assert "outside" in trust("extrapolated", own)["why"]
    assumed = LoopTrips(loop=None, trips=1, how="assumed", line=1, source_line=None)
    assert trust("unseen_kernel", own, (), [assumed])["mark"] == "guess"


def test_chips_measured_by_operators_serve_code(predictor: Predictor, vector_add: str) -> None:
    """H200 and B200 have energies of their own, H100 and GB200 those of the same chip."""
    for gpu, mark, basis in (
        ("h200-sxm5", "measured board", "unseen_kernel"),
        ("b200", "measured board", "unseen_kernel"),
        ("h100-sxm5", "estimated board", "extrapolated"),
        ("gb200", "estimated board", "extrapolated"),
    ):
        found = asked(predictor, vector_add, gpu=gpu)
        assert (found["trust"]["mark"], found["power"]["basis"]) == (mark, basis)
        assert found["model"]["source"] == "aiconfigurator"
        codes = {one["code"] for one in found["warnings"]}
        assert ("gpu_uncalibrated" in codes) == (mark == "estimated board")


def test_boards_that_nobody_measured_stand_apart(predictor: Predictor, vector_add: str) -> None:
    gpus = ["tesla-v100", "h100-sxm5", "tesla-p100"]
    answer = asked(predictor, vector_add, gpu=None, gpus=gpus)
    assert [one["gpu"] for one in answer["apart"]] == ["h100-sxm5"]
    assert "nobody measured" in answer["apart"][0]["why"]
    # Where no GPU was measured, they can be compared with each other.
    same = asked(predictor, vector_add, gpu=None, gpus=["h100-sxm5", "a100-sxm4-40gb"])
    assert same["apart"] == []


def test_what_is_extrapolated_or_unknown_stands_apart() -> None:
    def answer(gpu: str, basis: Basis | None) -> Ranked:
        mark = None if basis is None else Trust(mark="measured board", why="-")
        return Ranked(gpu, mark, "extratrees", "thesis", basis)

    both = [answer("a", "unseen_kernel"), answer("b", "extrapolated"), answer("c", None)]
    assert [one["gpu"] for one in apart(both)] == ["b", "c"]
    assert apart([answer("b", "extrapolated"), answer("d", "extrapolated")]) == []


TRANSPOSE = (Path(__file__).parents[1] / "fixtures/kernels/ptx/transpose.sm_70.ptx").read_text()

MATRIX: dict[str, Any] = {
    "ptx": TRANSPOSE,
    "kernel": "transpose_direct",
    "gpus": ["tesla-v100", "ampere-84sm", "ada-24sm"],
    "launch": {"grid": [128, 128], "block": [32, 8], "arguments": {"2": 4096, "3": 4096}},
}


def test_a_transpose_does_not_win_by_another_kind_of_model(predictor: Predictor) -> None:
    """Trees that know no traffic told 42 W on an Ampere board: a third of a V100's energy."""
    answer = predict(predictor, PredictRequest.model_validate(MATRIX))
    told = {one["gpu"]: one for one in answer["predictions"]}
    assert told["ampere-84sm"]["model"]["family"] != "physical"
    joules = {gpu: one["energy"]["joules"] for gpu, one in told.items()}
    assert min(joules, key=lambda gpu: joules[gpu]) == "ampere-84sm"
    why = {one["gpu"]: one["why"] for one in answer["apart"]}
    assert set(why) == {"ampere-84sm", "ada-24sm"}
    assert "another kind of model" in why["ampere-84sm"]
    swept = sweep(predictor, SweepRequest.model_validate(MATRIX))
    assert {one["gpu"] for one in swept["apart"]} == set(why)
    assert {best["gpu"] for best in dict(swept["best"]).values()} == {"tesla-v100"}
    assert {shape["gpu"] for shape in swept["pareto"]} == {"tesla-v100"}
    assert all((point["apart"] is None) == (point["gpu"] == "tesla-v100")
               for point in swept["points"])  # fmt: skip
    # The order in which GPUs are named changes none of it; the reference is one that is ranked.
    turned = {**MATRIX, "gpus": MATRIX["gpus"][::-1]}
    again = sweep(predictor, SweepRequest.model_validate(turned))
    assert (again["best"], again["reference"]) == (swept["best"], swept["reference"])
    # By one kind of model boards that nobody measured can be ranked with each other.
    others = {**MATRIX, "gpus": ["ampere-84sm", "ada-24sm"], "model": "physical"}
    assert sweep(predictor, SweepRequest.model_validate(others))["apart"] == []


def test_code_compared_on_several_gpus_says_which_stand_apart(predictor: Predictor) -> None:
    both = {name: {"ptx": TRANSPOSE, "kernel": f"transpose_{kernel}", "launch": MATRIX["launch"]}
            for name, kernel in (("old", "direct"), ("new", "padded"))}  # fmt: skip
    asked = {**both, "gpus": MATRIX["gpus"], "model": "auto"}
    found = compare(predictor, CompareRequest.model_validate(asked))
    assert {one["gpu"] for one in found["apart"]} == {"ampere-84sm", "ada-24sm"}


# --- Boards that a request makes up: like a GPU, with other SMs or another memory

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
