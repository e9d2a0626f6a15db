"""No answer has an end that cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from studies.interval_ends import check, impossible
from tests.app.conftest import settings_at
from wattcast.features.gpus import load_gpu
from wattcast.predictor import Predictor

MANY = int(os.environ.get("ENDS_TEST_REQUESTS", "3000"))
"""100,000 take half an hour of a core."""


@pytest.mark.parametrize("count", [60, pytest.param(MANY, marks=pytest.mark.slow)])
def test_random_requests_have_ends_that_can_be(count: int, tmp_path: Path) -> None:
    found = check(Predictor(settings_at(tmp_path)), count, seed=count)
    assert found.wrong == []
    assert found.answers > count / 2


def test_the_check_finds_what_cannot_be() -> None:
    gpu = load_gpu("tesla-v100")

    def told(**changed: Any) -> list[str]:
        answer = {
            "power": {"low": 40.0, "watts": 100.0, "high": 200.0},
            "time": {"low": 1e-5, "seconds": 2e-5, "high": 4e-5},
            "energy": {"low": 1e-3, "joules": 2e-3, "high": 4e-3},
        }
        return [*impossible({**answer, **changed}, gpu, 30.0, 300.0)]

    assert told() == []
    assert told(power={"low": 20.0, "watts": 100.0, "high": 200.0})
    assert told(power={"low": 40.0, "watts": 100.0, "high": 320.0})
    assert told(power={"low": 110.0, "watts": 100.0, "high": 200.0})
    assert told(time={"low": 1e-7, "seconds": 2e-5, "high": 4e-5})
    assert told(energy={"low": 1e-9, "joules": 2e-3, "high": 4e-3})
    assert told(energy={"low": 1e-3, "joules": 2e-3, "high": 1.0})
