"""Jobs on boards: predictions, placements and sums alike over HTTP, in Python and on the command
line, and one line for what cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import wattcast
from tests.app.conftest import Run
from tests.app.test_language_model import LLAMA
from tests.app.test_problems import problem
from wattcast.features.errors import ConstraintError, LaunchError, RequestError, WattcastError
from wattcast.models import placement
from wattcast.predictor.fleet import SHARED
from wattcast.predictor.language_model import SHARED as OF_OPERATORS
from wattcast.predictor.messages.fleet import MOST_PLACES, FleetAnswer

GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096}
LAUNCH = {"grid": 4096, "block": 256, "arguments": {"3": 1048576}}


@pytest.fixture
def jobs(vector_add: str) -> list[dict[str, Any]]:
    model = {"config": LLAMA, "batch": 8, "prompt": 512, "generate": 64}
    return [
        {"name": "add", "runs": 10**7, "kernel": {"ptx": vector_add, "launch": LAUNCH}},
        {"name": "product", "runs": 10**6, "operator": GEMM, "boards": ["h200"]},
        {"name": "answers", "runs": 100, "model": model, "deadline_seconds": 400},
        {"name": "steps", "runs": 50, "together": True,
         "model": {"config": LLAMA, "train": True, "batch": 1, "prompt": 512}},
    ]  # fmt: skip


def ask(jobs: Any, **options: Any) -> FleetAnswer:
    options = {"boards": {"h200": 2, "b200": 1}, "limits": 3, **options}
    return wattcast.fleet(jobs, registry=False, **options)


def test_all_runs_are_placed_and_sums_are_their_parts(jobs: list[dict[str, Any]]) -> None:
    answer = ask(jobs, makespan_seconds=900.0)
    assert answer.sought == "energy"
    for job in jobs:
        assert sum(p.runs for p in answer.places if p.job == job["name"]) == job["runs"]
    assert {p.gpu for p in answer.places if p.job == "product"} == {"h200-sxm5"}
    assert len({(p.gpu, p.power_limit_watts) for p in answer.places if p.job == "steps"}) == 1
    for place in answer.places:
        assert place.joules == pytest.approx(place.runs * place.energy.joules)
        assert place.energy.joules == pytest.approx(place.time.seconds * place.power.watts)
    assert answer.energy.joules == pytest.approx(sum(place.joules for place in answer.places))
    assert answer.energy.joules == pytest.approx(sum(each.joules for each in answer.boards))
    ends = {end.job: end.seconds for end in answer.jobs}
    assert max(ends.values()) == answer.makespan.seconds <= 900.0
    assert ends["answers"] <= 400
    for whole in (answer.energy, answer.makespan):
        value = whole.joules if whole is answer.energy else whole.seconds  # type: ignore[union-attr]
        assert whole.low < value < whole.high
    assert answer == ask(jobs, makespan_seconds=900.0)


def test_a_run_is_what_other_calls_predict(jobs: list[dict[str, Any]], vector_add: str) -> None:
    answer = ask(jobs, makespan_seconds=900.0)
    for place in answer.places:
        asked = {"gpu": place.gpu, "power_limit_watts": place.power_limit_watts}
        asked |= {"registry": False}
        if place.job == "add":
            found: Any = wattcast.predict(vector_add, **LAUNCH, model="physical", **asked)  # type: ignore[arg-type]
        elif place.job == "product":
            found = wattcast.operator(**GEMM, **asked)  # type: ignore[arg-type]
        else:
            given = next(job["model"] for job in jobs if job["name"] == place.job)
            found = wattcast.language_model(**given, **asked)
        assert place.time.seconds == pytest.approx(found.time.seconds)
        assert place.energy.joules == pytest.approx(found.energy.joules)
        assert place.energy.high == pytest.approx(found.energy.high)


def test_a_cap_is_kept_and_takes_time(jobs: list[dict[str, Any]]) -> None:
    free, held = ask(jobs), ask(jobs, power_cap_watts=1400.0)
    assert (free.sought, held.sought) == ("makespan", "makespan")
    assert held.power_watts <= 1400 < free.power_watts
    limits = sum(each.boards * each.power_limit_watts for each in held.boards)
    assert limits <= held.power_watts
    assert held.makespan.seconds > free.makespan.seconds
    assert held.gap_percent < 5


def test_errors_in_common_add_up_and_others_average_out(vector_add: str) -> None:
    """Of one job the sum is as unsure as a run; of two on a measured board it is surer."""
    assert SHARED["operator"] == OF_OPERATORS[False] < 1

    def width(*operators: dict[str, Any]) -> float:
        jobs = [{"name": str(at), "operator": each} for at, each in enumerate(operators)]
        energy = ask(jobs, boards={"h200": 1}, limits=1).energy
        return float(energy.high / energy.joules - 1)

    attention = {"name": "attention", "phase": "decode", "batch": 64, "cached_tokens": 4096,
                 "heads": 32, "kv_heads": 8}  # fmt: skip
    alone = wattcast.operator(**GEMM, gpu="h200", registry=False).energy  # type: ignore[arg-type]
    assert alone is not None
    assert width(GEMM) == pytest.approx(alone.high / alone.joules - 1)
    assert width(GEMM, attention) < max(width(GEMM), width(attention))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"makespan_seconds": 1.0}, "makespan_seconds of 1 s is too short for steps"),
        ({"makespan_seconds": 20.0}, "makespan_seconds of 20 s is too short: the shortest"),
        ({"power_cap_watts": 300.0}, "power_cap_watts of 300 W is too low: the fleet takes"),
        (
            {"boards": {"h200": 3}, "makespan_seconds": 250.0, "power_cap_watts": 640.0},
            "to be done in time",
        ),
    ],
)
def test_one_line_says_which_constraint(
    jobs: list[dict[str, Any]], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConstraintError) as caught:
        ask(jobs, **options)
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail
    assert caught.value.about in options


def test_a_deadline_that_no_run_keeps(jobs: list[dict[str, Any]]) -> None:
    jobs[2]["deadline_seconds"] = 0.01
    with pytest.raises(ConstraintError, match="deadline_seconds of 10 ms is too short for answers"):
        ask(jobs)
    jobs[2]["deadline_seconds"], jobs[2]["runs"] = 100.0, 10**6
    with pytest.raises(ConstraintError, match="in time with all of answers"):
        ask(jobs)


def test_boards_that_cannot_run_a_job_are_left_out(jobs: list[dict[str, Any]]) -> None:
    large = {**jobs[2], "model": {"config": LLAMA, "batch": 2048, "prompt": 2048, "generate": 2}}
    with pytest.raises(LaunchError, match=r"jobs\[0\] \(answers\): weights of"):
        ask([large])
    some = {**large, "model": {**large["model"], "batch": 540}}
    answer = ask([{**some, "runs": 1}])
    (note,) = answer.warnings
    assert note.code == "board_left_out"
    assert "answers is not placed on h200-sxm5" in note.detail
    with pytest.raises(WattcastError, match="tesla-v100 is not in the fleet"):
        ask([{**jobs[1], "boards": ["v100"]}])


def test_requests_are_bounded(jobs: list[dict[str, Any]]) -> None:
    def refused(says: str, given: list[dict[str, Any]], **options: Any) -> None:
        with pytest.raises(RequestError, match=says):
            ask(given, **options)

    many = [{**jobs[1], "name": str(at)} for at in range(128)]
    refused(f"at most {MOST_PLACES} are taken", many, limits=9)
    refused("same name", [jobs[1], jobs[1]])
    refused("exactly one of kernel, operator and model", [{"name": "nothing"}])
    refused("exactly one", [{**jobs[1], "model": jobs[2]["model"]}])
    for options in ({"boards": {}}, {"boards": {"h200": 0}}, {"boards": {"h200": 10**9}},
                    {"power_cap_watts": float("inf")}, {"limits": 0}):  # fmt: skip
        refused(f"^{next(iter(options))}", jobs, **options)


def test_what_the_solver_may_do_is_counted(
    jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    import scipy.optimize

    milp = scipy.optimize.milp

    def spied(*given: Any, **more: Any) -> Any:
        told.append(dict(more["options"]))
        return milp(*given, **more)

    monkeypatch.setattr(scipy.optimize, "milp", spied)
    ask(jobs)
    assert 0 < len(told) <= placement.STEPS * placement.TRIES
    assert all(each["node_limit"] == placement.MOST_NODES for each in told)
    assert all(np.isfinite(each["time_limit"]) for each in told)


def test_all_faces_answer_the_same(
    client: httpx.Client, run: Run, tmp_path: Path, jobs: list[dict[str, Any]], vector_add: str
) -> None:
    body = {"jobs": jobs, "boards": {"h200": 2, "b200": 1}, "limits": 3, "makespan_seconds": 900}
    told = client.post("/fleet", json=body)
    assert told.status_code == 200, told.text
    (tmp_path / "add.ptx").write_text(vector_add)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    shutil.copy(Path(__file__).parents[1] / "fixtures" / "jobs.toml", tmp_path)
    words = ("fleet", str(tmp_path / "jobs.toml"), "--boards", "h200:2,b200:1", "--limits", "3")
    out, _ = run(*words, "--makespan", "900", "--json")
    assert json.loads(out) == told.json()
    same = ask(tmp_path / "jobs.toml", makespan_seconds=900)
    assert same.data() == FleetAnswer.model_validate(told.json()).data()
    assert len(same.to_frame()) == len(same.places)
    out, _ = run(*words, "--makespan", "900")
    assert "least energy" in out
    assert "fine" not in out
    _, err = run(*words, "--makespan", "1", status=1)
    assert err.startswith("wattcast: makespan_seconds of 1 s is too short")
    problem(client.post("/fleet", json={**body, "makespan_seconds": 1}), 422, "constraints")
    problem(client.post("/fleet", json={**body, "boards": {"nope": 1}}), 422, "gpu")
    for bad in (
        "jobs = 1",
        "[[jobs]]\nname = 1",
        "=",
        '[[jobs]]\nname = "a"\nkernel = {file = "n"}',
    ):
        (tmp_path / "bad.toml").write_text(bad)
        _, err = run("fleet", str(tmp_path / "bad.toml"), "--boards", "h200", status=2)
        assert err.startswith("wattcast: ")
        assert err.count("\n") == 1
