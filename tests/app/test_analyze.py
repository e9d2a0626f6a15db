"""POST /analyze: the whole analysis, kept for the next request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_problems import json_of, problem
from tests.needs import needs_ptxas
from wattcast.app.services import Services
from wattcast.predictor import parts
from wattcast.predictor.analyze import analyze, features
from wattcast.predictor.messages.analyze import AnalyzeAnswer, AnalyzeRequest, FeaturesRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import is_quick, predict

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"
LAUNCH = {"grid": [4096], "block": [256]}


def ask(client: httpx.Client, ptx: str, /, path: str = "/analyze", **changes: Any) -> Any:
    body = {"ptx": ptx, "gpu": "tesla-v100", "launch": LAUNCH, **changes}
    return json_of(client.post(path, json=body))


def quantities(answer: dict[str, Any]) -> dict[str, float]:
    return {quantity["name"]: quantity["value"] for quantity in answer["activity"]}


@pytest.mark.parametrize("analysis", ["auto", "symbolic", "executed"])
def test_a_streaming_kernel(client: httpx.Client, vector_add: str, analysis: str) -> None:
    answer = ask(
        client,
        vector_add,
        analysis=analysis,
        registers_per_thread=12,
        launch={**LAUNCH, "arguments": {"3": 1048576}},
    )
    AnalyzeAnswer.model_validate(answer)
    assert answer["how"] == ("executed" if analysis == "executed" else "symbolic")
    assert answer["loops"] == []
    assert answer["launch"]["threads"] == 1048576
    assert answer["launch"]["arguments"][3]["given"] == 1048576
    # Three accesses of four bytes by neighbouring lanes: 32 x 4 / 32 sectors for each request.
    assert [a["opcode"] for a in answer["accesses"]] == [
        "ld.global.f32",
        "ld.global.f32",
        "st.global.f32",
    ]
    for access in answer["accesses"]:
        assert access["requests"] == 32768
        assert access["sectors_per_request"] == 4
        assert access["transactions_per_request"] is None
        assert access["stride_bytes"] == 4
        assert access["affine"] is True
    assert answer["mix"]["global_load"] == 65536
    assert list(answer["mix"].values()) == sorted(answer["mix"].values(), reverse=True)
    measured = quantities(answer)
    assert measured["global_load_sectors"] == 4 * 65536
    assert measured["registers_per_thread"] == 12
    assert sum(answer["mix"].values()) == measured["warp_instructions_ptx"]
    lines = sum(line["warp_instructions_ptx"] for line in answer["lines"])
    assert lines == measured["warp_instructions_ptx"]
    occupancy = answer["occupancy"]
    assert occupancy["limiter"] == "warps"
    assert occupancy["limits"]["warps"] == 8
    assert occupancy["waves"] == 7
    sampling = answer["sampling"]
    if analysis != "executed":  # symbols know all of it: nothing is run
        assert sampling is None
    else:
        assert 0 < sampling["sampled_blocks"] <= 64
        assert sampling["launch_blocks"] == 4096
        assert sampling["completed"] is True


@pytest.mark.parametrize(
    ("arguments", "analysis", "how", "trips"),
    [
        ({}, "symbolic", "assumed", 32),
        ({"1": 50}, "symbolic", "inferred", 50),
        ({"p1": 50}, "auto", "inferred", 50),
    ],
)
def test_trip_counts_say_how_they_are_known(
    client: httpx.Client,
    looping: str,
    arguments: dict[str, int],
    analysis: str,
    how: str,
    trips: float,
) -> None:
    launch = {"grid": 16, "block": 64, "arguments": arguments}
    answer = ask(client, looping, launch=launch, analysis=analysis)
    (loop,) = answer["loops"]
    assert (loop["loop"], loop["depth"], loop["how"], loop["trips"]) == ("$LOOP", 1, how, trips)
    if analysis == "auto":
        assert loop["observed"]["mean"] == trips
        assert loop["observed"]["lowest"] == loop["observed"]["highest"] == trips
    else:
        assert loop["observed"] is None
    predicted = ask(client, looping, "/predict", launch=launch, analysis=analysis)
    assert (predicted["trip_counts"][0]["how"], predicted["trip_counts"][0]["trips"]) == (
        how,
        trips,
    )


@pytest.mark.parametrize(("kernel", "most"), [("transpose_shared", 32), ("transpose_padded", 1)])
def test_bank_conflicts_are_told(client: httpx.Client, kernel: str, most: int) -> None:
    text = (FIXTURES / "transpose.sm_70.ptx").read_text(encoding="utf-8")
    answer = ask(client, text, kernel=kernel, launch={"grid": [8, 8], "block": [32, 8]})
    assert max(each["transactions_per_request"] or 0 for each in answer["accesses"]) == most


def test_the_same_launch_is_analysed_once(tmp_path: Path, vector_add: str) -> None:
    """The very same analysis answers /analyze, /predict and /features."""
    services = Services(settings_at(tmp_path))
    made: list[int] = []
    held: list[object] = []  # so that no id is used twice

    def analysed(**changes: Any) -> int:
        body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": LAUNCH, **changes}
        request = PredictRequest.model_validate(body)
        gpu = services.gpus.load("tesla-v100")
        found = parts.analysed(services, request, services.sources.read(request, gpu), gpu)
        made.append(id(found))
        held.append(found)
        return id(found)

    first = analysed()
    assert analysed() == first
    assert analysed(gpu="V100") == first
    assert analysed(kernel="vector_add") == first
    assert analysed(launch={"grid": 4096, "block": [256, 1]}) == first
    given = analysed(launch={**LAUNCH, "arguments": {"3": 5}})
    assert given != first
    assert analysed(launch={**LAUNCH, "arguments": {"vector_add_param_3": 5}}) == given
    for different in (
        {"launch": {"grid": [4095], "block": [256]}},
        {"launch": {**LAUNCH, "arguments": {"3": 6}}},
        {"launch": {**LAUNCH, "dynamic_shared_bytes": 4}},
        {"loops": {"default": 3}},
        {"registers_per_thread": 40},
        {"static_shared_bytes": 16},
        {"analysis": "symbolic"},
        {"analysis_effort": 10**6},
    ):
        assert analysed(**different) not in made[:-1], different


def test_a_launch_seen_before_is_not_executed_again(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattcast.features import execution

    runs: list[object] = []
    execute = execution.execute

    def counting(*given: Any, **named: Any) -> Any:
        runs.append(given)
        return execute(*given, **named)

    monkeypatch.setattr("wattcast.features.execution.execute", counting)
    services = Services(settings_at(tmp_path))
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": LAUNCH}
    published = {**body, "time_model": "scheduling", "model": "average"}
    predict(services, PredictRequest.model_validate(published))
    assert not runs, "neither the published schema nor the thesis' time model needs execution"
    predict(services, PredictRequest.model_validate(body))
    assert len(runs) == 1, "the default time model does"
    first = analyze(services, AnalyzeRequest.model_validate(body))
    again = analyze(services, AnalyzeRequest.model_validate(body))
    vector = features_of(services, {**body, "schema": "activity1"})
    predict(services, PredictRequest.model_validate({**published, "analysis": "executed"}))
    assert first == again
    assert vector == quantities(first)
    assert len(runs) == 1


def features_of(services: Services, body: dict[str, Any]) -> dict[str, float]:
    answer = features(services, FeaturesRequest.model_validate(body))
    return {field["name"]: field["value"] for field in answer["features"]}


def test_what_may_take_long_stays_off_the_event_loop(tmp_path: Path, looping: str) -> None:
    services = Services(settings_at(tmp_path))

    def quick(**changes: Any) -> bool:
        body = {"ptx": looping, "gpu": "v100", "launch": LAUNCH, **changes}
        request = PredictRequest.model_validate(body)
        source = services.sources.read(request, services.gpus.load("v100"))
        kind = (None, "v100", request.analysis, (len(request.loops), False), True, ("auto", "auto"))
        source.known.took(kind, 0.0001)
        return is_quick(services, request)

    assert quick()
    assert not quick(analysis="executed")
    assert not quick(launch={**LAUNCH, "arguments": {"1": 5}})
    assert not quick(explain="shap")


def test_activity1_of_every_capability(client: httpx.Client, vector_add: str) -> None:
    (schema,) = [s for s in client.get("/schemas").json() if s["id"] == "activity1"]
    listed = client.get("/gpus").json()
    assert sorted(schema["gpus"]) == sorted(gpu["id"] for gpu in listed)
    gpus = {gpu["compute_capability"]: gpu["id"] for gpu in listed}.values()  # one of each
    names = [field["name"] for field in client.get("/schemas/activity1").json()["fields"]]
    launch = {**LAUNCH, "arguments": {"3": 2**19, "0": {"values": "zeros"}}}
    for gpu in gpus:
        answer = ask(
            client, vector_add, "/features", gpu=gpu, launch=launch, schema="activity1",
            analysis="symbolic",
        )  # fmt: skip
        found = {field["name"]: field["value"] for field in answer["features"]}
        assert list(found) == names
        assert found["global_store_requests"] == 2**19 / 32
        assert all(field["unit"] for field in answer["features"])


@pytest.mark.parametrize("path", ["/predict", "/features", "/analyze"])
@pytest.mark.parametrize(
    "change",
    [
        {"analysis": "magic"},
        {"analysis": None},
        {"analysis_seconds": 0},
        {"analysis_seconds": -1},
        {"analysis_seconds": "soon"},
        {"analysis_seconds": 31},
        {"analysis_effort": 0},
        {"analysis_effort": 1.5},
        {"analysis_effort": 10**12},
    ],
)
def test_analysis_that_is_not_offered(
    client: httpx.Client, vector_add: str, path: str, change: dict[str, Any]
) -> None:
    body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH, **change}
    members = problem(client.post(path, json=body), 422, "validation")
    assert next(iter(change)) in members["detail"]


def test_the_budget_is_the_settings_or_the_requests(tmp_path: Path, vector_add: str) -> None:
    settings = settings_at(tmp_path, analysis_effort=10**8, max_analysis_effort=10**9)
    with running(settings) as client:
        assert ask(client, vector_add, analysis_effort=10**9)["sampling"]["completed"] is True
        assert ask(client, vector_add, analysis_effort=1)["how"] == "symbolic"
        body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH, "analysis_effort": 10**9 + 1}
        members = problem(client.post("/analyze", json=body), 422, "validation")
        assert "WATTCAST_MAX_ANALYSIS_EFFORT" in members["detail"]
        assert members["field"] == "analysis_effort"
    services = Services(settings)
    request = PredictRequest.model_validate(
        {k: v for k, v in body.items() if k in ("ptx", "gpu", "launch")}
    )
    gpu = services.gpus.load("v100")
    made = parts.analysed(services, request, services.sources.read(request, gpu), gpu)
    assert made.runs.effort == 10**8


def test_seconds_give_a_request_up_and_change_no_answer(client: httpx.Client) -> None:
    ptx = (FIXTURES / "nbody.sm_70.ptx").read_text()
    launch = {"grid": [512], "block": [128], "arguments": {"2": 65536}}
    body = {"ptx": ptx, "gpu": "v100", "launch": launch, "analysis": "executed"}
    problem(client.post("/predict", json={**body, "analysis_seconds": 1e-4}), 503, "time-limit")
    answers = [
        client.post("/predict", json={**body, **more}).json()
        for more in ({}, {"analysis_seconds": 29})
    ]
    for answer in answers:
        del answer["id"]
    assert answers[0] == answers[1]


@needs_ptxas
def test_ptxas_counts_registers_unless_they_are_given(tmp_path: Path, vector_add: str) -> None:
    # The demonstration's PTX is newer than ptxas 12.9, which is told by its version alone. What it
    # does not know is estimated.
    older = vector_add.replace(".version 9.0", ".version 8.0")
    newer = vector_add.replace("ret;", "newer.instruction; ret;")
    with running(settings_at(tmp_path, ptxas="auto")) as client:
        codes = {}
        for name, ptx in {"older": older, "newer": newer, "own": vector_add}.items():
            answer = ask(client, ptx)
            assert answer["registers"]["how"] == ("liveness" if name == "newer" else "ptxas")
            codes[name] = {warning["code"] for warning in answer["warnings"]}
        assert "ptx_version_lowered" in codes["own"]
        assert "registers_estimated" in codes["newer"]
        assert not codes["older"] & {"ptx_version_lowered", "registers_estimated"}
        assert ask(client, vector_add)["registers"] == ask(client, older)["registers"]
        for path in ("/analyze", "/predict"):
            registers = ask(client, older, path)["registers"]
            assert registers["how"] == "ptxas"
            assert registers["low"] == registers["value"] == registers["high"]
            given = ask(client, older, path, registers_per_thread=33)["registers"]
            assert (given["how"], given["value"]) == ("given", 33)
        assert ask(client, older, "/features")["registers"]["how"] == "liveness"


def test_without_ptxas_registers_are_estimated(client: httpx.Client, vector_add: str) -> None:
    answer = ask(client, vector_add)
    assert answer["registers"]["how"] == "liveness"
    assert answer["registers"]["low"] < answer["registers"]["high"]
    assert "registers_estimated" in {warning["code"] for warning in answer["warnings"]}


def test_a_launch_that_the_kernel_refuses_and_a_block_it_fixes(client: httpx.Client) -> None:
    fixed = (
        ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p)\n"
        ".reqntid 256\n{\nret;\n}\n"
    )
    body = {"ptx": fixed, "gpu": "v100", "launch": {"grid": [8], "block": [128]}}
    members = problem(client.post("/predict", json=body), 422, "launch")
    assert (members["directive"], members["line"], members["wanted"]) == (
        ".reqntid",
        5,
        [256, 1, 1],
    )
    for path in ("/analyze", "/predict", "/features"):
        extra = {"schema": "activity1"} if path == "/features" else {}
        answer = client.post(path, json={**body, **extra, "launch": {"grid": [8]}})
        assert answer.status_code == 200, answer.text
    loose = fixed.replace(".reqntid 256\n", "")
    refused = client.post("/predict", json={**body, "ptx": loose, "launch": {"grid": [8]}})
    assert problem(refused, 422, "launch")["field"] == "block"


EFFORT_PTX = Path(__file__).parents[1] / "fixtures" / "ptx" / "effort" / "kernels.ptx"


def test_what_decides_is_asked_for_first_and_warnings_tell_causes(client: httpx.Client) -> None:
    ptx = EFFORT_PTX.read_text(encoding="utf-8")
    launch: dict[str, Any] = {"grid": [128, 128], "block": [32, 32]}
    body = {"ptx": ptx, "kernel": "product", "gpu": "v100", "launch": launch}
    guessed = {}
    for analysis in ("auto", "symbolic"):
        answer = client.post("/predict", json={**body, "analysis": analysis}).json()
        (first,) = answer["needs"]
        assert (first["argument"], first["position"]) == ("product_param_3", 3)
        assert first["decides"] == "loop in line 99"
        assert "linearly" in first["effect"]
        assert (first["assumed"], first["assumes"]) == (4096, "value")  # as the guards say
        causes = [(w["code"], w["detail"].split(" (")[0]) for w in answer["warnings"]]
        assert len(causes) == len(set(causes)) <= 9
        shares = answer["coverage"]
        parts_of_it = [shares[n] for n in ("executed", "extrapolated", "worked_out", "assumed")]
        assert sum(parts_of_it) == pytest.approx(1)
        assert shares["assumed"] > 0.75
        guessed[analysis] = answer["time"]["seconds"]
    launch["arguments"] = {"3": 4096}
    answer = client.post("/predict", json=body).json()
    assert answer["needs"] == []
    assert answer["coverage"]["assumed"] == 0
    assert answer["time"]["seconds"] == guessed["auto"]


def test_a_grid_that_fills_a_board_tells_no_argument(client: httpx.Client) -> None:
    """A loop over a grid of many threads goes round once; over a small one nobody knows."""
    ptx = (FIXTURES / "grid_stride.sm_70.ptx").read_text(encoding="utf-8")
    for blocks, assumed in ((4096, (1 << 20, "value")), (256, (32, "trips"))):
        launch = {"grid": [blocks], "block": [256]}
        answer = client.post("/predict", json={"ptx": ptx, "gpu": "v100", "launch": launch}).json()
        (need,) = answer["needs"]
        assert (need["assumed"], need["assumes"]) == assumed
        told = [w["detail"] for w in answer["warnings"] if w["code"] == "trip_count_assumed"]
        assert told[0].endswith("1 is assumed" if blocks == 4096 else "32 is assumed")
        assert ("1,048,576 is assumed" in str(answer["warnings"])) == (blocks == 4096)
        assert (answer["trip_counts"][0]["trips"] == 1) == (blocks == 4096)


def test_shapes_of_a_sweep_do_the_work_that_is_assumed_of_the_first(client: httpx.Client) -> None:
    ptx = (FIXTURES / "grid_stride.sm_70.ptx").read_text(encoding="utf-8")
    shapes = {"grids": [[2048], [4096]], "blocks": [[256]], "grid_stride": True}
    body = {"ptx": ptx, "gpu": "v100", "launch": {"grid": [4096], "block": [256]}, **shapes}
    half, whole = client.post("/sweep", json=body).json()["points"]
    assert half["time"]["seconds"] == pytest.approx(whole["time"]["seconds"], rel=0.1)


@pytest.mark.parametrize(
    ("kernel", "given", "argument", "decides"),
    [
        ("csr_rows", {"5": 262144}, "csr_rows_param_1", "loop in line 30, by the data"),
        ("csr_rows", {}, "csr_rows_param_1", "loop in line 30, by the data"),
        ("causal", {}, "causal_param_3", "address"),
        ("ragged", {}, "ragged_param_1", "loop in line 39, by the data"),
    ],
)
def test_what_else_may_decide(
    client: httpx.Client, kernel: str, given: dict[str, int], argument: str, decides: str
) -> None:
    launch = {"grid": [1024], "block": [256], "arguments": given}
    body = {"ptx": EFFORT_PTX.read_text(encoding="utf-8"), "kernel": kernel, "gpu": "v100",
            "launch": launch}  # fmt: skip
    needs = client.post("/analyze", json=body).json()["needs"]
    assert needs[0]["argument"] == argument
    assert decides in needs[0]["decides"]
    assert needs[0]["by_data"] == ("by the data" in decides)
