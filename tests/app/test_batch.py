"""``POST /predict/batch``, ``wattcast.predict_many`` and ``wattcast bulk --analysis``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

import wattcast
from tests.app.conftest import Run
from tests.app.same_answers import body
from tests.app.test_problems import problem
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.app.services import Services
from wattcast.features.analysis import Mode
from wattcast.features.errors import KernelError
from wattcast.predictor.batch import predict_many
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import MOST_LAUNCHES, BatchAnswer, BatchRequest
from wattcast.predictor.predict import predict

LAUNCH = {"grid": [4096], "block": [256]}
SHARED = ("power", "time", "energy", "coverage")


def asked(services: Services, ptx: str, launches: list[Any], **more: Any) -> dict[str, Any]:
    request = {"ptx": ptx, "gpu": "tesla-v100", "launches": launches, **more}
    answer = predict_many(services, BatchRequest.model_validate(request))
    BatchAnswer.model_validate(answer)
    return answer


def check_same(services: Services, requests: list[dict[str, Any]], analysis: Mode) -> None:
    """A batch of the requests' launches answers what each of them does, to the last bit."""
    one = {**requests[0], "analysis": analysis}
    del one["launch"]
    found = asked(services, launches=[each["launch"] for each in requests], **one)
    for request, got in zip(requests, found["predictions"], strict=True):
        alone = predict(services, PredictRequest.model_validate({**request, "analysis": analysis}))
        if alone["time"] is None:  # symbols refuse it
            alone = predict(services, PredictRequest.model_validate(request))
        assert {name: got[name] for name in SHARED} == {name: alone[name] for name in SHARED}
        assert got["regime"] == alone["time_model"]["regime"]
        assert got["occupancy"] == alone["occupancy"]["occupancy"]
        assert set(got["warnings"]) <= {each["code"] for each in alone["warnings"]}
        assert found["model"] == alone["model"]
        assert found["clocks"] == alone["clocks"]


@pytest.mark.parametrize("kernel", KERNELS[::8], ids=lambda kernel: kernel.name)
def test_each_launch_is_answered_as_it_is_alone(services: Services, kernel: Any) -> None:
    """Launches walked as one are those walked alone for every fixture: test_symbolic_together.py"""
    check_same(services, [body(kernel, each) for each in (*kernel.shapes, kernel.large)],
               "symbolic")  # fmt: skip


@pytest.mark.parametrize("name", ["matmul_tiled", "triangular"])
def test_so_it_is_where_blocks_are_run(services: Services, name: str) -> None:
    kernel = next(each for each in KERNELS if each.name == name)
    check_same(services, [body(kernel, each) for each in kernel.shapes], "auto")


def test_one_bad_launch_among_many_has_its_problem(services: Services, vector_add: str) -> None:
    launches = [{"grid": [1024 + n], "block": [256]} for n in range(20)]
    launches[7] = {"grid": [4], "block": [2048]}
    answer = asked(services, vector_add, launches)
    assert [n for n, each in enumerate(answer["predictions"]) if "problem" in each] == [7]
    assert answer["failed"] == 1
    assert answer["predictions"][7]["problem"]["kind"] == "launch"
    assert answer["predictions"][7]["problem"]["field"] == "block"


def test_a_launch_without_a_block_needs_a_kernel_that_fixes_it(
    services: Services, vector_add: str
) -> None:
    fixed = vector_add.replace(")\n{", ")\n.reqntid 128\n{", 1)
    assert fixed != vector_add
    launches = [{"grid": [4096]}, {"grid": [4096], "block": [128]}]
    first, second = asked(services, fixed, launches)["predictions"]
    assert first == second
    assert first["power"] is not None
    answer = asked(services, vector_add, launches)
    assert answer["predictions"][0]["problem"]["field"] == "block"
    assert answer["predictions"][1]["time"] is not None


def test_what_all_launches_share_is_refused_at_once(services: Services, vector_add: str) -> None:
    with pytest.raises(KernelError):
        asked(services, vector_add, [LAUNCH], kernel="nothing")
    with pytest.raises(ValidationError, match="launches"):
        asked(services, vector_add, [])
    with pytest.raises(ValidationError, match="launches"):
        asked(services, vector_add, [LAUNCH] * (MOST_LAUNCHES + 1))


def test_over_http(client: httpx.Client, vector_add: str) -> None:
    request: dict[str, Any] = {"ptx": vector_add, "gpu": "tesla-v100", "launches": [LAUNCH] * 3}
    answer = client.post("/predict/batch", json=request)
    assert answer.status_code == 200, answer.text
    found = BatchAnswer.model_validate_json(answer.content)
    assert len(found.predictions) == 3
    assert not found.failed
    assert found.needs
    assert found.analysis == "symbolic"
    request["launches"][2] = {"grid": ["many"], "block": [256]}
    refused = problem(client.post("/predict/batch", json=request), 422, "validation")
    assert "launches.2.grid" in refused["errors"][0]["path"]


def test_from_python(vector_add: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path))
    launches = [{"grid": 1024 * n, "block": 256} for n in (1, 2, 3)]
    found = wattcast.predict_many(vector_add, gpu="tesla-v100", launches=launches, registry=False)
    times = [each.time.seconds for each in found.predictions if each.time is not None]
    assert times == sorted(times)
    assert len(times) == 3


def test_from_the_command_line(run: Run, vector_add: str, tmp_path: Path) -> None:
    (tmp_path / "add.ptx").write_text(vector_add, encoding="utf-8")
    rows = "".join(f"add.ptx,{1024 * n},256\n" for n in (1, 2, 3))
    (tmp_path / "launches.csv").write_text("file,grid,block\n" + rows, encoding="utf-8")
    words = ("bulk", str(tmp_path), "--gpu", "tesla-v100", "--jobs", "1",
             "--launches", str(tmp_path / "launches.csv"), "--analysis", "symbolic")  # fmt: skip
    out, _ = run(*words)
    assert len(out.splitlines()) == 4
    assert "argument_assumed" in out
