"""``POST /dvfs`` of what is no kernel: an operator, a language model, a trace; and one command."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run
from tests.app.test_application import SOLVER, TRAINING
from tests.app.test_language_model import LLAMA
from tests.app.test_problems import json_of, problem
from tests.generated.traces import Gpu, Launch, kineto
from wattcast.models.choice import Point, outweighs, pareto
from wattcast.predictor.messages.dvfs import DvfsAnswer

GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}
DECODE = {"name": "attention", "phase": "decode", "batch": 8, "cached_tokens": 4095, "heads": 32,
          "kv_heads": 8, "dtype": "float16"}  # fmt: skip
BOARDS = ("h200", "b200", "h100-sxm5", "a100", "v100", "l4", "a40")


def asked(client: httpx.Client, operator: Any = GEMM, gpu: str = "h200", **more: Any) -> Any:
    return client.post("/dvfs", json={"operator": operator, "gpu": gpu, **more})


def answered(client: httpx.Client, *of: Any, **more: Any) -> Any:
    return json_of(asked(client, *of, **more))


@pytest.mark.parametrize("operator", [GEMM, DECODE], ids=["gemm", "decode"])
@pytest.mark.parametrize("gpu", BOARDS)
def test_a_point_is_the_prediction_under_its_limit(
    client: httpx.Client, gpu: str, operator: Any
) -> None:
    found = answered(client, operator, gpu)
    body = {"operator": operator, "gpu": gpu}
    places = [found["reference"], *found["points"]]
    limits = [None, *(point["power_limit_watts"] for point in found["points"])]
    for point, limit in zip(places, limits, strict=True):
        alone = client.post("/predict", json={**body, "power_limit_watts": limit}).json()
        assert {name: point[name] for name in ("time", "power", "energy")} == {
            name: alone[name] for name in ("time", "power", "energy")
        }
        assert point["power_limit_watts"] == alone["power_limit_watts"]
        assert (
            point.get("runs_at_core_mhz", alone["clocks"]["core_mhz"])
            == (alone["clocks"]["core_mhz"])
        )
    own = found["reference"]["power_limit_watts"]
    assert limits[1:] == sorted(set(limits[1:]))
    assert 1 < len(limits[1:]) <= 9
    assert limits[1] >= own / 2 - 1
    assert limits[-1] == own


@pytest.mark.parametrize("gpu", BOARDS)
def test_what_is_proposed_saves_and_else_the_board_stays(client: httpx.Client, gpu: str) -> None:
    for operator in (GEMM, DECODE):
        found = answered(client, operator, gpu)
        told, base = found["proposal"], found["reference"]
        least = min(point["energy"]["joules"] for point in found["points"])
        saving = 100 * (1 - least / base["energy"]["joules"])
        assert told["energy_saved_percent"] == pytest.approx(saving, abs=1e-9)
        # The bound of a board without a power model of its own: 1.14 to the power of 1.5.
        cost = 100 * (least / base["energy"]["joules"] * 1.14**1.5 - 1)
        assert told["cost_percent"] == pytest.approx(cost)
        assert told["stay"] == (not outweighs(1 - saving / 100, 1.14**1.5))
        if told["stay"]:
            assert told["power_limit_watts"] == base["power_limit_watts"]


def test_where_every_limit_loses_the_board_stays(client: httpx.Client) -> None:
    """Memory binds this call: a lower clock saves next to nothing, and 200 W cost energy."""
    found = answered(client, DECODE, power_limit_watts=[200, 250])
    assert all(point["energy_saved_percent"] < 0 for point in found["points"])
    told = found["proposal"]
    assert told["stay"]
    assert told["power_limit_watts"] == 700
    assert told["energy_saved_percent"] < 0
    assert told["why"].endswith("nothing else is expected to save energy")


def test_the_pareto_set_and_the_best_keep_to_the_constraints(client: httpx.Client) -> None:
    free = answered(client, power_limit_watts=[*range(300, 701, 20)])
    points = free["points"]
    costs = [Point(n, p["time"]["seconds"], p["power"]["watts"]) for n, p in enumerate(points)]
    front = {each.key for each in pareto(costs)}
    assert [point["pareto"] for point in points] == [n in front for n in range(len(points))]
    base = free["reference"]
    for constraints, unit, bound in (
        ({"max_slowdown": 1.1}, ("time", "seconds"), 1.1 * base["time"]["seconds"]),
        ({"deadline_seconds": 2.2e-4}, ("time", "seconds"), 2.2e-4),
        ({"max_power_watts": 500}, ("power", "watts"), 500),
    ):
        found = answered(client, power_limit_watts=[*range(300, 701, 20)], constraints=constraints)
        able = [each for each in found["points"] if each["feasible"]]
        assert 0 < len(able) < len(points)
        assert all(each[unit[0]][unit[1]] <= bound for each in able)
        thrifty = min(able, key=lambda each: each["energy"]["joules"])
        best = found["best"]["min_energy"]
        assert best["power_limit_watts"] == thrifty["power_limit_watts"]
    no = problem(asked(client, constraints={"deadline_seconds": 1e-9}), 422, "constraints")
    assert "deadline_seconds 1e-09" in no["detail"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"clocks": "grid"}, "no clocks are modelled for operators; give power_limit_watts"),
        ({"reference": {"core_mhz": 1}}, "no clocks are modelled for operators"),
        ({"power_limit_watts": []}, "at least 1"),
        ({"power_limit_watts": [300] * 4097}, "at most 4096"),
        ({"power_limit_watts": [300, 0]}, "greater than 0"),
        ({"launch": {"grid": [1]}}, "launch"),
        ({"operator": {"name": "conv"}}, "gemm"),
    ],
)
def test_what_is_not_asked_of_an_operator_is_refused(
    client: httpx.Client, more: dict[str, Any], told: str
) -> None:
    found = problem(client.post("/dvfs", json={"operator": GEMM, "gpu": "h200", **more}), 422,
                    "validation")  # fmt: skip
    assert told in found["detail"]
    assert "\n" not in found["detail"]


def test_a_limit_the_board_cannot_be_set_to_is_refused(client: httpx.Client) -> None:
    found = problem(asked(client, power_limit_watts=[300, 90]), 422, "clocks")
    assert "h200-sxm5 can be set to 200 to 700 W" in found["detail"]


def test_a_limit_below_idle_is_refused_and_does_not_take_for_ever(client: httpx.Client) -> None:
    for what in ({"operator": GEMM}, {"language_model": WORK}):
        body = {**what, "gpu": "b200", "power_limit_watts": 240}
        assert "W idle" in problem(client.post("/dvfs", json=body), 422, "clocks")["detail"]


def test_an_operator_without_watts_is_refused(client: httpx.Client) -> None:
    mamba = {"name": "linear_attention", "kind": "mamba2", "batch": 1, "new_tokens": 512,
             "heads": 64, "key_heads": 8}  # fmt: skip
    found = problem(asked(client, mamba), 422, "model")
    assert "no watts of linear_attention were measured" in found["detail"]


def test_python_refuses_code_and_clocks_beside_an_operator() -> None:
    for more in ({"grid": 64}, {"ptx": "x"}, {"clocks": {"core_mhz": 1005}}):
        with pytest.raises(ValueError, match=r"not permitted|no clocks are modelled"):
            wattcast.dvfs(**more, operator=GEMM, gpu="h200", registry=False)


def test_command_python_and_http_answer_alike(client: httpx.Client, run: Run) -> None:
    more = {"power_limit_watts": [300, 350, 400], "constraints": {"max_slowdown": 1.6}}
    told = answered(client, **more)
    shape = [word for key in "mnk" for word in (f"--{key}", str(GEMM[key]))]
    product = ["operator", "gemm", *shape, "--dtype", "float16", "--gpu", "h200"]
    words = [*product, "--max-slowdown", "1.6"]
    text = run(*words, "--power-limits", "300,350,400", "--json")[0]
    assert json.loads(text) == told
    typed = wattcast.dvfs(operator=GEMM, gpu="h200", registry=False, **more)
    assert json.loads(json.dumps(typed.data())) == told
    assert len(typed.to_frame()) == 3
    table = run(*product, "--power-limits", "default")[0]
    assert table.startswith("gemm m=4096 n=4096 k=4096 dtype=float16 on h200-sxm5\n")
    assert "\nproposal: " in table
    refused = run(*words, status=2)[1]
    assert "--power-limits" in refused


WORK = {"config": LLAMA, "batch": 8, "prompt": 512, "generate": 64}
QUANTITIES = ("time", "power", "energy")


def test_a_language_model_under_a_limit_is_its_forecast(client: httpx.Client) -> None:
    body = {"language_model": WORK, "gpu": "h200", "tensor_parallel": 2}
    found = json_of(client.post("/dvfs", json={**body, "power_limit_watts": [350, 500, 700]}))
    for point in found["points"]:
        alone = {**WORK, "gpu": "h200", "tensor_parallel": 2}
        alone["power_limit_watts"] = point["power_limit_watts"]
        told = client.post("/language-models", json=alone).json()
        assert {name: point[name] for name in QUANTITIES} == {
            name: told[name] for name in QUANTITIES
        }
    own = found["points"][-1]
    assert own["scale"] == {"time": 1, "power": 1, "energy": 1}
    typed = wattcast.dvfs(**body, registry=False)
    assert isinstance(typed, DvfsAnswer)
    assert len(typed.points) == 9
    huge = {**body, "language_model": {**WORK, "batch": 4096, "prompt": 1 << 20}}
    assert "do not fit" in problem(client.post("/dvfs", json=huge), 422, "launch")["detail"]


@pytest.mark.parametrize("file", [TRAINING, SOLVER], ids=["training", "solver"])
@pytest.mark.parametrize("limits", [None, [100.0, 130.0, 250.0]], ids=["clocks", "limits"])
def test_a_trace_over_clocks_or_limits(file: Path, limits: list[float] | None) -> None:
    whole = wattcast.application(file, gpu="v100", registry=False)
    found = wattcast.dvfs(trace=file, gpu="v100", registry=False, power_limit_watts=limits)
    assert isinstance(found, DvfsAnswer)
    base, points = found.reference, found.points
    assert base.energy.joules == pytest.approx(whole.energy.joules, rel=1e-9)
    assert base.time.seconds == pytest.approx(whole.span_seconds, rel=1e-9)
    assert points[-1].scale.energy == pytest.approx(1, rel=1e-12)  # the clock or limit of its own
    times = [point.time.seconds for point in points]
    assert times == sorted(times, reverse=True)
    for point in points:
        for name, unit in zip(QUANTITIES, ("seconds", "watts", "joules"), strict=True):
            each = getattr(point, name)
            assert each.low <= getattr(each, unit) <= each.high
        assert point.power.watts * point.time.seconds == pytest.approx(point.energy.joules)
        slowest = 1380 / point.core_mhz if limits is None else 1380 / 405 * 10
        assert 1 - 1e-9 <= point.scale.time <= slowest * (1 + 1e-9)
        if limits is not None:
            assert point.power.watts <= point.power_limit_watts * (1 + 1e-9)
    told = found.proposal
    scale = 1 - told.energy_saved_percent / 100
    assert told.stay == (not outweighs(scale, (1 + told.cost_percent / 100) / scale))


def test_kernels_with_code_follow_it_and_operators_their_share(tmp_path: Path) -> None:
    """One kernel alone in a trace: its ratios are those of ``dvfs`` of its code."""
    code = Path(__file__).parents[1] / "fixtures" / "kernels" / "time" / "tiled_matmul.ptx"
    name = next(line.split()[2].strip("(") for line in code.read_text().splitlines()
                if line.startswith(".visible .entry"))  # fmt: skip
    launch = Launch(name, 0, 5_000_000, grid=(32, 32, 1), block=(32, 32, 1))
    own = {"grid": (32, 32), "block": (32, 32), "registers_per_thread": launch.registers}
    file = kineto(tmp_path / "one.json", [launch])
    told = wattcast.dvfs(trace=file, gpu="v100", code=[code], registry=False)
    kernel = wattcast.dvfs(code, gpu="v100", **own, registry=False)
    assert isinstance(told, DvfsAnswer)
    assert isinstance(kernel, DvfsAnswer)
    scales = {point.core_mhz: point.scale for point in kernel.points}
    for point in told.points:
        assert point.scale.time == pytest.approx(scales[point.core_mhz].time, rel=1e-6)
        assert point.scale.power == pytest.approx(scales[point.core_mhz].power, rel=1e-6)


def test_what_is_no_trace_of_one_kind_of_board_is_refused(
    client: httpx.Client, tmp_path: Path
) -> None:
    for trace, kind, said in (("!", "data", "is empty"), ("e30=", "data", "traceEvents")):
        answer = client.post("/dvfs", json={"trace": trace, "gpu": "v100"})
        assert said in problem(answer, 422, kind)["detail"]
    launches = [Launch("a", 0, 1000), Launch("b", 2000, 1000, device=1)]
    boards = [Gpu("Tesla V100-SXM2-16GB"), Gpu("NVIDIA H200")]
    file = kineto(tmp_path / "two.json", launches, [], boards)
    sent = {"trace": base64.b64encode(file.read_bytes()).decode()}
    found = problem(client.post("/dvfs", json=sent), 422, "validation")
    assert "several" in found["detail"]


def test_one_command_takes_every_source(client: httpx.Client, run: Run, tmp_path: Path) -> None:
    counted = {"DCGM_FI_PROF_SM_ACTIVE": 0.95, "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 0.0,
               "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.31, "DCGM_FI_PROF_DRAM_ACTIVE": 0.62}  # fmt: skip
    for name, told in (("counters", counted), ("config", LLAMA), ("gemm", GEMM)):
        (tmp_path / f"{name}.json").write_text(json.dumps(told))

    def dvfs(file: Path, *words: str) -> Any:
        return json.loads(run("dvfs", str(file), *words, "--json")[0])

    on_v100 = ("--gpu", "v100")
    told = dvfs(tmp_path / "counters.json", *on_v100)
    assert told == json.loads(
        run("counters", str(tmp_path / "counters.json"), *on_v100, "--json")[0]
    )
    limits = ("--gpu", "h200", "--power-limit", "400")
    assert dvfs(tmp_path / "gemm.json", *limits) == answered(client, power_limit_watts=[400])
    work = ("--batch", "8", "--prompt", "512", "--generate", "64")
    body = {"language_model": WORK, "gpu": "h200", "power_limit_watts": [400]}
    assert dvfs(tmp_path / "config.json", *limits, *work) == client.post("/dvfs", json=body).json()
    sent = {"trace": base64.b64encode(SOLVER.read_bytes()).decode(), "gpu": "v100"}
    assert dvfs(SOLVER, *on_v100) == client.post("/dvfs", json=sent).json()
    (tmp_path / "kernel.ptx").write_text(".version 7.0")
    refused = run("dvfs", str(tmp_path / "kernel.ptx"), *on_v100, status=2)[1]
    assert "--grid and --block" in refused
