"""POST /dvfs and ``clocks`` in POST /predict: the semantics of frequency scaling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.conftest import Run
from tests.app.test_problems import json_of, problem
from tests.fixtures.tables import rows
from wattcast.app.services import Services
from wattcast.features.gpus import load_gpu
from wattcast.models.papers.scaling.card import scaling_store
from wattcast.models.papers.scaling.code import code_scaling
from wattcast.predictor.dvfs import dvfs
from wattcast.predictor.messages import Clocks
from wattcast.predictor.messages.dvfs import DvfsAnswer, DvfsRequest

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"

LAUNCH = {"grid": [4096], "block": [256]}

MATMUL = (FIXTURES / "time" / "tiled_matmul.ptx").read_text(encoding="utf-8")

MATMUL_LAUNCH = {"grid": [32, 32], "block": [32, 32], "arguments": {"3": 1024}}

TITAN_X = load_gpu("gtx-titan-x")


def ask(client: httpx.Client, ptx: str, /, **changes: Any) -> dict[str, Any]:
    body = {"ptx": ptx, "gpu": "gtx-titan-x", "launch": LAUNCH, "clocks": "grid", **changes}
    return json_of(client.post("/dvfs", json=body), DvfsAnswer)


def pairs(answer: dict[str, Any]) -> list[tuple[float, float]]:
    return [(point["core_mhz"], point["memory_mhz"]) for point in answer["points"]]


def at(answer: dict[str, Any], core_mhz: float, memory_mhz: float) -> dict[str, Any]:
    for point in answer["points"]:
        if (point["core_mhz"], point["memory_mhz"]) == (core_mhz, memory_mhz):
            found: dict[str, Any] = point
            return found
    raise AssertionError(f"no point at {core_mhz}/{memory_mhz}")


def test_the_grid_is_every_pair_of_the_profile(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add)
    assert pairs(answer) == sorted(TITAN_X.supported_pairs)
    assert not any(point["extrapolated"] for point in answer["points"])
    assert answer["assumptions"]["one_memory_clock"] is False
    assert answer["assumptions"]["time_model"] == "bottleneck"


def test_power_never_falls_when_the_core_of_a_core_bound_kernel_runs_faster(
    client: httpx.Client,
) -> None:
    answer = ask(client, MATMUL, launch=MATMUL_LAUNCH)
    assert {point["regime"] for point in answer["points"] if point["memory_mhz"] > 3000} == {
        "compute"
    }
    by_memory: dict[float, list[float]] = {}
    for point in answer["points"]:
        by_memory.setdefault(point["memory_mhz"], []).append(point["power"]["watts"])
    for memory_mhz, watts in by_memory.items():
        if memory_mhz > 3000:
            assert watts == sorted(watts)
    idle = TITAN_X.idle_watts
    assert idle is not None
    for point in answer["points"]:  # idle power was measured at 975/3505 MHz
        if point["core_mhz"] >= 975 and point["memory_mhz"] >= 3505:
            assert point["power"]["watts"] >= idle


def test_constraints_choose_among_feasible_pairs(client: httpx.Client, vector_add: str) -> None:
    free = ask(client, vector_add)
    bound = ask(client, vector_add, constraints={"max_slowdown": 1.05})
    for point in bound["points"]:
        assert point["feasible"] == (point["scale"]["time"] <= 1.05 * (1 + 1e-12))
    best = bound["best"]["min_energy"]
    assert best["time_penalty_percent"] <= 5 + 1e-9
    assert best["energy_saved_percent"] <= free["best"]["min_energy"]["energy_saved_percent"]
    watts = sorted(point["power"]["watts"] for point in free["points"])[10]
    capped = ask(client, vector_add, constraints={"max_power_watts": watts})
    assert sum(point["feasible"] for point in capped["points"]) >= 11
    fastest = capped["best"]["max_performance"]
    assert at(capped, fastest["core_mhz"], fastest["memory_mhz"])["power"]["watts"] <= watts


def test_constraints_nobody_can_keep_are_an_error(client: httpx.Client, vector_add: str) -> None:
    body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH, "clocks": "grid"}
    answer = client.post("/dvfs", json={**body, "constraints": {"deadline_seconds": 1e-9}})
    found = problem(answer, 422, "constraints")
    assert "deadline_seconds 1e-09 (the least of any point is" in found["detail"]


def test_a_pair_beside_the_grid_is_extrapolated_and_one_far_off_refused(
    client: httpx.Client, vector_add: str
) -> None:
    beside = ask(client, vector_add, clocks={"core_mhz": 1000, "memory_mhz": 2000})
    assert [point["extrapolated"] for point in beside["points"]] == [True]
    assert "clocks_extrapolated" in {warning["code"] for warning in beside["warnings"]}
    for clocks, field in (
        ({"core_mhz": 290, "memory_mhz": 3505}, "core_mhz"),
        ({"core_mhz": 1000, "memory_mhz": 9000}, "memory_mhz"),
    ):
        body = {"ptx": vector_add, "gpu": "gtx-titan-x", "launch": LAUNCH, "clocks": clocks}
        found = problem(client.post("/dvfs", json=body), 422, "clocks")
        assert found["field"] == field


def test_a_gpu_with_one_memory_clock_says_so(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add, gpu="tesla-v100")
    assert answer["assumptions"]["one_memory_clock"] is True
    assert "one_memory_clock" in {warning["code"] for warning in answer["warnings"]}
    assert answer["assumptions"]["voltage_curve"] == "fitted"
    assert answer["model"]["gpu"] == "tesla-v100"


@pytest.mark.parametrize(
    ("changes", "where"),
    rows("mistakes", "dvfs"),
)
def test_requests_that_make_no_sense_are_refused(
    client: httpx.Client, vector_add: str, changes: dict[str, Any], where: str
) -> None:
    body = {"ptx": vector_add, "gpu": "gtx-titan-x", "launch": LAUNCH, **changes}
    assert where in problem(client.post("/dvfs", json=body), 422, "validation")["detail"]


def test_other_time_models_answer_too(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add, gpu="tesla-v100", time_model="scheduling")
    assert answer["assumptions"]["time_model"] == "scheduling"
    body = {"ptx": vector_add, "gpu": "h100", "launch": LAUNCH, "time_model": "scheduling"}
    problem(client.post("/dvfs", json=body), 422, "model")


# --- clocks in /predict ------------------------------------------------------------------
def predicted(client: httpx.Client, ptx: str, **changes: Any) -> dict[str, Any]:
    body = {"ptx": ptx, "gpu": "tesla-v100", "launch": LAUNCH, **changes}
    return json_of(client.post("/predict", json=body))


def test_a_prediction_at_other_clocks_agrees_with_the_curve(
    client: httpx.Client, vector_add: str
) -> None:
    curve = ask(client, vector_add, gpu="tesla-v100")
    point = at(curve, 802, 877)
    alone = predicted(client, vector_add, model="physical", clocks={"core_mhz": 802})
    assert alone["clocks"] == {"core_mhz": 802, "memory_mhz": 877}
    for name, unit in (("time", "seconds"), ("power", "watts"), ("energy", "joules")):
        assert alone[name][unit] == point[name][unit]


def test_a_boosted_model_is_scaled_to_other_clocks(client: httpx.Client, vector_add: str) -> None:
    usual = predicted(client, vector_add, model="catboost")
    slow = predicted(client, vector_add, model="catboost", clocks={"core_mhz": 705})
    curve = ask(client, vector_add, gpu="tesla-v100")
    ratio = at(curve, 705, 877)["power"]["watts"] / at(curve, 1380, 877)["power"]["watts"]
    assert slow["power"]["watts"] == pytest.approx(usual["power"]["watts"] * ratio)
    assert slow["power"]["basis"] == "extrapolated"
    # The ratio is the less sure the farther the clocks are.
    near = predicted(client, vector_add, model="catboost", clocks={"core_mhz": 1237})
    widths = [one["power"]["high"] / one["power"]["watts"] for one in (usual, near, slow)]
    assert 1.01 * widths[0] < 1.01 * widths[1] < widths[2]
    assert "power_scaled" in {warning["code"] for warning in slow["warnings"]}


# --- any kernel, any clocks --------------------------------------------------------------
KERNELS = sorted((FIXTURES / "ptx").glob("*.sm_70.ptx"))[::6]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ptx=st.sampled_from(KERNELS),
    gpu=st.sampled_from(["tesla-v100", "gtx-titan-x", "gtx-980", "rtx-4090"]),
    blocks=st.integers(1, 5000),
    data=st.data(),
)
def test_invariants_hold_for_any_kernel(
    services: Services, ptx: Path, gpu: str, blocks: int, data: st.DataObject
) -> None:
    known = load_gpu(gpu).supported_pairs
    drawn = st.lists(st.sampled_from(known), min_size=1, max_size=6)
    highest = max(known, key=lambda pair: pair[::-1])
    wanted = [highest, *data.draw(drawn)]
    request = DvfsRequest(
        ptx=ptx.read_text(encoding="utf-8"),
        gpu=gpu,
        launch={"grid": [blocks], "block": [128]},  # type: ignore[arg-type]
        clocks=[{"core_mhz": core, "memory_mhz": memory} for core, memory in wanted],  # type: ignore[misc]
        analysis_seconds=10,
    )
    answer = dvfs(services, request)
    reference = answer["reference"]
    assert (reference["core_mhz"], reference["memory_mhz"]) == highest
    assert pairs(answer) == sorted(set(wanted))
    for point in answer["points"]:
        scale = point["scale"]
        if (point["core_mhz"], point["memory_mhz"]) == (
            reference["core_mhz"],
            reference["memory_mhz"],
        ):
            assert scale.data() == {"time": 1.0, "power": 1.0, "energy": 1.0}
            assert (point["speedup"], point["energy_saved_percent"]) == (1.0, 0.0)
        seconds = point["time"]["seconds"]
        joules = seconds * point["power"]["watts"]
        assert point["energy"]["joules"] == pytest.approx(joules, rel=1e-9)
        assert point["edp_joule_seconds"] == pytest.approx(joules * seconds, rel=1e-9)
        assert scale["energy"] == pytest.approx(scale["time"] * scale["power"], rel=1e-9)
        for name, unit in (("time", "seconds"), ("power", "watts"), ("energy", "joules")):
            assert point[name]["low"] <= point[name][unit] <= point[name]["high"]
        lower = (
            point["core_mhz"] <= reference["core_mhz"]
            and point["memory_mhz"] <= reference["memory_mhz"]
        )
        bound = max(
            reference["core_mhz"] / point["core_mhz"],
            reference["memory_mhz"] / point["memory_mhz"],
        )
        if lower:
            assert 1 - 1e-9 <= scale["time"] <= bound * (1 + 1e-9)
    # A pair is answered as it is alone.
    core, memory = wanted[-1]
    one = request.model_copy(update={"clocks": Clocks(core_mhz=core, memory_mhz=memory)})
    (alone,) = dvfs(services, one)["points"]
    beside = answer["points"][sorted(set(wanted)).index(wanted[-1])]
    for name in ("time", "power", "energy", "scale", "regime", "extrapolated"):
        assert alone[name] == beside[name]


# --- command line ------------------------------------------------------------------------
def test_the_command_prints_a_table_and_json(run: Run) -> None:
    words = ("dvfs", "-", "--grid", "32,32", "--block", "32,32", "--arg", "3=1024", "--gpu", "v100")
    table, _ = run(*words, "--max-slowdown", "1.3", stdin=MATMUL)
    assert "reference 1380/877 MHz" in table
    assert "infeasible" in table
    assert "min energy:" in table
    told, _ = run(*words, "--clocks", "802/877", "--clocks", "1380", "--json", stdin=MATMUL)
    assert pairs(json.loads(told)) == [(802, 877), (1380, 877)]
    out, err = run(*words, "--clocks", "fast", stdin=MATMUL, status=2)
    assert out == ""
    assert "expected CORE/MEMORY" in err


def test_a_proposal_names_what_it_saves_and_risks(client: httpx.Client) -> None:
    v100 = {"gpu": "tesla-v100", "launch": MATMUL_LAUNCH}
    answer = ask(client, MATMUL, **v100)
    told, best = answer["proposal"], answer["best"]["min_energy"]
    assert told["stay"] is False
    assert told["core_mhz"] == best["core_mhz"] < answer["reference"]["core_mhz"]
    assert told["energy_saved_percent"] == best["energy_saved_percent"] > told["cost_percent"]
    tight = ask(client, MATMUL, **v100, constraints={"max_slowdown": 1.0})["proposal"]
    assert tight["stay"] is True
    assert (tight["core_mhz"], tight["memory_mhz"]) == (1380, 877)
    assert tight["why"].startswith("stay at 1380/877 MHz")


def test_a_reference_that_breaks_the_constraints_is_not_stayed_at(client: httpx.Client) -> None:
    v100 = {"gpu": "tesla-v100", "launch": MATMUL_LAUNCH}
    cap = 0.97 * ask(client, MATMUL, **v100)["reference"]["power"]["watts"]
    told = ask(client, MATMUL, **v100, constraints={"max_power_watts": cap})["proposal"]
    assert told["stay"] is False
    assert "breaks the constraints" in told["why"]
    slow = {**v100, "reference": {"core_mhz": 952, "memory_mhz": 877}}
    seconds = 0.8 * ask(client, MATMUL, **slow)["reference"]["time"]["seconds"]
    sooner = ask(client, MATMUL, **slow, constraints={"deadline_seconds": seconds})["proposal"]
    assert sooner["energy_saved_percent"] < 0
    assert f"cost {-sooner['energy_saved_percent']:.1f} % more energy" in sooner["why"]


# --- ``POST /dvfs`` with a model that scales by the code alone

MODELS = ("tokens", "sequence")


@pytest.mark.parametrize("model", MODELS)
def test_a_grid_holds_the_clocks_that_were_measured(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    answer = ask(client, vector_add, model=model)
    assert {memory for _, memory in pairs(answer)} == {810, 3505}
    assert len(answer["points"]) == 32
    assert answer["reference"]["core_mhz"] == 1164
    assert answer["reference"]["memory_mhz"] == 3505
    assert answer["model"]["family"] == answer["assumptions"]["time_model"] == model
    card = client.get(answer["model"]["card"])
    assert card.status_code == 200
    assert card.json()["family"] == model


@pytest.mark.parametrize("model", MODELS)
def test_absolute_values_are_the_reference_times_the_scale(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    answer = ask(client, vector_add, model=model)
    base = answer["reference"]
    told = ask(client, vector_add, clocks={"core_mhz": 1164, "memory_mhz": 3505})
    (usual,) = told["points"]
    assert base["time"]["seconds"] == pytest.approx(usual["time"]["seconds"], rel=1e-12)
    for point in answer["points"]:
        for name, unit in (("time", "seconds"), ("power", "watts"), ("energy", "joules")):
            found = point[name]
            assert found[unit] == pytest.approx(base[name][unit] * point["scale"][name], rel=1e-9)
            assert found["low"] <= found[unit] <= found["high"]
    assert at(answer, 1164, 3505)["scale"] == {"time": 1, "power": 1, "energy": 1}
    wide = at(answer, 1164, 810)["time"]
    assert wide["high"] / wide["low"] > base["time"]["high"] / base["time"]["low"]


def test_the_service_tells_what_the_model_does(client: httpx.Client) -> None:
    from wattcast.features.analysis import analyse
    from wattcast.features.gpus import load_gpu
    from wattcast.features.launch import Launch
    from wattcast.features.ptx.reader import read_module
    from wattcast.models.clocks import ClockPair
    from wattcast.models.papers.scaling.code import stream_of

    answer = ask(client, MATMUL, launch=MATMUL_LAUNCH, model="tokens")
    launch = Launch(grid=(32, 32, 1), block=(32, 32, 1), arguments={"3": 1024})
    analysis = analyse(read_module(MATMUL), None, launch, load_gpu("gtx-titan-x"))
    stream = stream_of(analysis)
    inner = max(stream.repeats)
    assert inner >= 1024 / 32  # its loop over tiles ran
    model = code_scaling(scaling_store(), "gtx-titan-x", "tokens").scaling
    asked = [ClockPair(*pair) for pair in pairs(answer)]
    scales = model.scales([stream], asked, ClockPair(1164, 3505))
    for point, scale in zip(answer["points"], scales, strict=True):
        assert point["scale"]["time"] == pytest.approx(scale.time, rel=1e-9)
        assert point["scale"]["power"] == pytest.approx(scale.power, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"power_limit_watts": 200}, "knows no power limits"),
        ({"clocks": {"core_mhz": 1000, "memory_mhz": 3300}}, "810 or 3505 MHz memory"),
        ({"gpu": "tesla-v100"}, "gtx-titan-x"),
        ({"model": "lstm"}, "sequence"),
    ],
)
def test_what_they_cannot_answer_is_refused(
    client: httpx.Client, vector_add: str, changes: dict[str, Any], says: str
) -> None:
    body = {"ptx": vector_add, "gpu": "gtx-titan-x", "launch": {"grid": 64, "block": 64}}
    answer = client.post("/dvfs", json={**body, "model": "tokens", **changes})
    assert 400 <= answer.status_code < 500
    assert says in answer.text


def test_the_command_takes_them(run: Run) -> None:
    words = ("dvfs", "-", "--grid", "32,32", "--block", "32,32", "--arg", "3=1024")
    told, _ = run(*words, "--gpu", "gtx-titan-x", "--model", "sequence", "--json", stdin=MATMUL)
    answer = json.loads(told)
    assert answer["model"]["family"] == "sequence"
    assert len(answer["points"]) == 32


@pytest.mark.parametrize("model", MODELS)
def test_models_that_read_code_alone_are_not_trusted_with_a_choice(
    client: httpx.Client, vector_add: str, model: str
) -> None:
    told = ask(client, vector_add, model=model)["proposal"]
    assert told["stay"] is True
    assert told["cost_percent"] > 20
