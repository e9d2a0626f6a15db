"""One mark for each answer, by one rule; GPUs are ranked only where they can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
