"""What a retrained model must beat is what users get now, launch by launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.app.conftest import settings_at
from wattcast.app.services import Services
from wattcast.app.services.measurements.extraction import Extracted, Launch, extract
from wattcast.app.services.models.artifacts import RegistryArtifacts
from wattcast.app.services.retrain.attempt import NOT_ASKED, opponent, serving
from wattcast.app.services.retrain.launches import Launches
from wattcast.app.store.measurements import Measurement
from wattcast.app.store.registry import Place, Snapshot
from wattcast.models.cards import ModelCard
from wattcast.models.store import Artifact
from wattcast.predictor.messages.analyze import AnalyzeRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

ATOMIC = """\
.version 7.0
.target sm_70
.address_size 64
.visible .entry histogram(.param .u64 p0)
{
 .reg .b32 %r<4>;
 .reg .b64 %rd<4>;
 ld.param.u64 %rd1, [p0];
 cvta.to.global.u64 %rd2, %rd1;
 atom.global.add.u32 %r1, [%rd2], 1;
 st.global.u32 [%rd2+4], %r1;
 ret;
}
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    made = Services(settings_at(tmp_path_factory.mktemp("home")))
    yield made
    made.close()


def default_of(services: Services, gpu: str, home: Path) -> Artifact[ModelCard]:
    artifacts = RegistryArtifacts(home / "registry")
    return serving(services.power, artifacts, Snapshot(1), Place(gpu, "", "power"))


def measured(services: Services, ptx: str, gpu: str, grid: int) -> Measurement:
    """A launch as an upload stores it."""
    launch = {"grid": [grid], "block": [256]}
    request = AnalyzeRequest.model_validate({"ptx": ptx, "gpu": gpu, "launch": launch})
    found = extract(services, Launch(1, ptx, request))
    assert isinstance(found, Extracted)
    return Measurement(
        row=1,
        gpu=gpu,
        board=None,
        kernel=found.kernel,
        kernel_group=found.kernel,
        ptx_sha256=ptx,  # found under itself here: what a hash is for does not matter
        launch=launch,
        core_mhz=None,
        memory_mhz=None,
        power_watts=100.0,
        time_seconds=None,
        repeats=1,
        vectors=found.vectors,
    )


@pytest.mark.parametrize("gpu", ["tesla-v100", "a100-sxm4-80gb", "tesla-k20"])
def test_the_opponent_says_what_a_prediction_says(
    services: Services, gpu: str, vector_add: str, tmp_path: Path
) -> None:
    cases = [(vector_add, 64), (vector_add, 65536), (ATOMIC, 4096)]
    rows = [measured(services, ptx, gpu, grid) for ptx, grid in cases]
    launches = Launches(
        services, services.gpus.load(gpu), lambda texts: {text: text for text in texts}
    )
    found = opponent(default_of(services, gpu, tmp_path), rows, launches)
    answers = [
        predict(
            services,
            PredictRequest.model_validate(
                {"ptx": ptx, "gpu": gpu, "launch": {"grid": [grid], "block": [256]}}
            ),
        )
        for ptx, grid in cases
    ]
    assert found.watts == pytest.approx([each["power"]["watts"] for each in answers])
    assert found.name.startswith(("uncalibrated ", answers[0]["model"]["family"]))
    assert ("uncalibrated" in found.name) == (answers[0]["power"]["basis"] == "uncalibrated")


def test_a_default_that_rows_say_too_little_for_is_not_passed_by(
    services: Services, vector_add: str, tmp_path: Path
) -> None:
    def asked(gpu: str, ptx: str, keep: str) -> tuple[str, bool, str]:
        row = measured(services, ptx, gpu, 64)
        few = {name: each for name, each in row.vectors.items() if name == keep}
        told = Measurement(
            **{name: getattr(row, name) for name in row.__slots__}
            | {"vectors": few, "ptx_sha256": None}
        )
        launches = Launches(services, services.gpus.load(gpu), lambda texts: {})
        found = opponent(default_of(services, gpu, tmp_path), [told], launches)
        return found.name, bool(np.isnan(found.watts[0])), found.note

    # The gate refuses a candidate where the model that answers now cannot be asked.
    physical = "physical model that answers now"
    assert asked("tesla-v100", vector_add, "alavani2023") == (physical, True, "")
    assert asked("tesla-v100", vector_add, "activity1") == (physical, False, "")
    assert asked("tesla-v100", ATOMIC, "activity1") == (physical, True, "")
    # Weights of other GPUs are no more than a guess: there the rows need not be told of it.
    assert asked("a100-sxm4-80gb", vector_add, "none") == ("", True, NOT_ASKED)
