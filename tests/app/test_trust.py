"""One mark for each answer, by one rule; GPUs are ranked only where they can be compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import settings_at
from wattcast.models.cards import BoardFacts
from wattcast.models.store import ArtifactStore
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.trust import apart, trust
from wattcast.predictor.predict import predict

FULL = {
    "3": 1048576,
    **{str(at): {"elements": 1048576} for at in range(3)},
}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor(settings_at(tmp_path_factory.mktemp("trust")))


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
    assert trust("unseen_kernel", own, (), [{"how": "assumed"}])["mark"] == "guess"


def test_boards_that_nobody_measured_stand_apart(predictor: Predictor, vector_add: str) -> None:
    gpus = ["tesla-v100", "h100-sxm5", "tesla-p100"]
    answer = asked(predictor, vector_add, gpu=None, gpus=gpus)
    assert [one["gpu"] for one in answer["apart"]] == ["h100-sxm5"]
    assert "nobody measured" in answer["apart"][0]["why"]
    # Where no GPU was measured, they can be compared with each other.
    same = asked(predictor, vector_add, gpu=None, gpus=["h100-sxm5", "a100-sxm4-40gb"])
    assert same["apart"] == []


def test_what_is_extrapolated_or_unknown_stands_apart() -> None:
    def answer(gpu: str, basis: str | None) -> dict[str, Any]:
        mark = None if basis is None else {"mark": "measured board", "why": "-"}
        return {"gpu": gpu, "trust": mark, "power": basis and {"basis": basis}}

    both = [answer("a", "unseen_kernel"), answer("b", "extrapolated"), answer("c", None)]
    assert [one["gpu"] for one in apart(both)] == ["c", "b"]
    assert apart([answer("b", "extrapolated"), answer("d", "extrapolated")]) == []
