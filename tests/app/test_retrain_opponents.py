"""What a retrained model must beat is what users get now, launch by launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.fixtures.ptx_text import stored_ptx
from wattcast.app.services import Services
from wattcast.app.services.measurements.upload import extracted
from wattcast.app.services.retrain.candidates import NOT_ASKED, opponent
from wattcast.app.services.retrain.rows import Launches
from wattcast.app.store.measurements import Measurement, MeasurementStore
from wattcast.predictor.messages.analyze import AnalyzeRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

ATOMIC = stored_ptx("one_counter")


class Texts(MeasurementStore):
    """Stored PTX, each text under itself: what a hash is for does not matter here."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def ptx(self, sha256s: Sequence[str]) -> dict[str, str]:
        return {text: text for text in sha256s if text in self.texts}


def measured(services: Services, ptx: str, gpu: str, grid: int) -> Measurement:
    """A launch as an upload stores it."""
    launch = {"grid": [grid], "block": [256]}
    request = AnalyzeRequest.model_validate({"ptx": ptx, "gpu": gpu, "launch": launch})
    kernel, _, vectors = extracted(services, request)
    return Measurement(
        row=1,
        gpu=gpu,
        board=None,
        kernel=kernel,
        kernel_group=kernel,
        ptx_sha256=ptx,
        launch=launch,
        core_mhz=None,
        memory_mhz=None,
        power_watts=100.0,
        time_seconds=None,
        repeats=1,
        vectors=vectors,
    )


@pytest.mark.parametrize("gpu", ["tesla-v100", "a100-sxm4-80gb", "tesla-k20"])
def test_the_opponent_says_what_a_prediction_says(
    services: Services, gpu: str, vector_add: str
) -> None:
    cases = [(vector_add, 64), (vector_add, 65536), (ATOMIC, 4096)]
    rows = [measured(services, ptx, gpu, grid) for ptx, grid in cases]
    profile = services.gpus.load(gpu)
    launches = Launches(services, profile, Texts(vector_add, ATOMIC)).modelled(rows)
    answering = services.power.default_artifact(gpu)
    (found,), _ = opponent(answering, rows, profile, lambda: launches)
    answers = [
        predict(
            services,
            PredictRequest.model_validate(
                {"ptx": ptx, "gpu": gpu, "launch": {"grid": [grid], "block": [256]}}
            ),
        )
        for ptx, grid in cases
    ]
    assert found.predicted == pytest.approx([each["power"]["watts"] for each in answers])
    assert found.name.startswith(("uncalibrated ", answers[0]["model"]["family"]))
    assert ("uncalibrated" in found.name) == (answers[0]["power"]["basis"] == "uncalibrated")


def test_a_default_that_rows_say_too_little_for_is_not_passed_by(
    services: Services, vector_add: str
) -> None:
    def asked(gpu: str, ptx: str, keep: str) -> tuple[list[str], list[bool], tuple[str, ...]]:
        row = measured(services, ptx, gpu, 64)
        few = {name: each for name, each in row.vectors.items() if name == keep}
        told = Measurement(
            **{name: getattr(row, name) for name in row.__slots__}
            | {"vectors": few, "ptx_sha256": None}
        )
        profile, answering = services.gpus.load(gpu), services.power.default_artifact(gpu)
        launches = Launches(services, profile, Texts()).modelled([told])
        found, notes = opponent(answering, [told], profile, lambda: launches)
        silent = [bool(np.isnan(each.predicted[0])) for each in found]
        return [each.name for each in found], silent, notes

    # The gate refuses a candidate where the model that answers now cannot be asked.
    physical = "physical model that answers now"
    assert asked("tesla-v100", vector_add, "alavani2023") == ([physical], [True], ())
    assert asked("tesla-v100", vector_add, "activity1") == ([physical], [False], ())
    assert asked("tesla-v100", ATOMIC, "activity1") == ([physical], [True], ())
    # Weights of other GPUs are no more than a guess: there the rows need not be told of it.
    assert asked("a100-sxm4-80gb", vector_add, "none") == ([], [], (NOT_ASKED,))
