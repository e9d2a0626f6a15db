"""``POST /tunings``: a search in a tuning space whose state the caller keeps, over real HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.app.test_problems import json_of, problem
from tests.app.test_tune import KERNEL, SIZE, SPACE
from tests.needs import needs_nvrtc
from wattcast.predictor.messages.tunings import MOST_PREDICTIONS, TuningsAnswer
from wattcast.predictor.tuning_files import Configuration, t4_text

BLOCKS = [64, 128, 256, 512]
T1 = {
    "ConfigurationSpace": {
        "TuningParameters": [{"Name": "block_size_x", "Type": "int", "Values": str(BLOCKS)}],
        "Conditions": [{"Expression": "block_size_x <= 512", "Parameters": ["block_size_x"]}],
    },
    "KernelSpecification": {"KernelName": "vector_add", "ProblemSize": [SIZE]},
}
T4: dict[str, list[Any]] = {
    "results": [{"configuration": {"block_size_x": block}} for block in BLOCKS]
}
CACHE = {
    "problem_size": SIZE, "tune_params_keys": ["block_size_x"],
    "cache": {str(block): {"block_size_x": block} for block in BLOCKS},
}  # fmt: skip
OWN = {"tune_params": {"block_size_x": BLOCKS}, "problem_size": [SIZE]}


@pytest.fixture
def body(vector_add: str) -> dict[str, Any]:
    return {
        "ptx": vector_add,
        "gpu": "a100",
        "tune_params": {"block_size_x": BLOCKS},
        "problem_size": [SIZE],
        "objective": "time",
        "predictions": MOST_PREDICTIONS,
    }


def asked(client: httpx.Client, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return json_of(client.post("/tunings", json={**body, **changes}), TuningsAnswer)


def refused(client: httpx.Client, body: dict[str, Any], kind: str = "data", **changes: Any) -> str:
    given = {name: value for name, value in {**body, **changes}.items() if value is not None}
    told = problem(client.post("/tunings", json=given), 422, kind)
    return str(told["detail"]) + str(told.get("errors", ""))


def test_a_search_step_by_step(client: httpx.Client, body: dict[str, Any]) -> None:
    rows: list[Any] = []
    for waiting in (3, 2, 1, 0):
        answer = asked(client, body, predicted=rows, predictions=1)
        assert answer["waiting"] == waiting
        assert len(answer["forecasts"]) == 1
        rows += answer["forecasts"]
    assert asked(client, body, predicted=rows, predictions=1)["forecasts"] == []
    once = asked(client, body)
    assert once["forecasts"] == rows  # one by one or all at once
    assert asked(client, body) == once
    assert {**asked(client, body, predicted=rows), "forecasts": rows} == once
    assert once["best"] is None
    columns = once["columns"]
    assert columns["parameters"] == {"block_size_x": BLOCKS}
    by_block = {row["configuration"]["block_size_x"]: row["seconds"] for row in rows}
    assert columns["predicted"] == [by_block[block] for block in BLOCKS]
    assert columns["status"] == ["predicted"] * 4
    first = once["next"][0]
    assert first["predicted"] == min(columns["predicted"])
    measured = [{"configuration": first["configuration"], "seconds": 2 * first["predicted"]}]
    answer = asked(client, body, predicted=rows, measured=measured)
    assert answer["measured"] == 1
    assert answer["best"]["configuration"] == first["configuration"]
    assert answer["best"]["measured"] == [measured[0]["seconds"]]
    assert answer["next"][0]["configuration"] != first["configuration"]
    # All were predicted too low, as far as one measurement tells.
    place = columns["parameters"]["block_size_x"].index(
        answer["next"][0]["configuration"]["block_size_x"]
    )
    assert answer["columns"]["expected"][place] > columns["expected"][place]
    assert answer["columns"]["status"].count("measured") == 1
    fails = [*measured, {"configuration": {"block_size_x": 64.0}, "failed": True}]
    answer = asked(client, body, predicted=rows, measured=fails)
    assert (answer["measured"], answer["failed"]) == (1, 1)
    assert answer["columns"]["status"][0] == "failed"
    assert not answer["finished"]
    every = [{"configuration": {"block_size_x": block}, "seconds": 3e-5} for block in BLOCKS]
    assert asked(client, body, predicted=rows, measured=every)["finished"]


def test_nothing_of_it_is_kept(client: httpx.Client, body: dict[str, Any]) -> None:
    before = client.get("/predictions").json()
    asked(client, body)
    assert client.get("/predictions").json() == before


def test_the_space_comes_as_any_file(client: httpx.Client, body: dict[str, Any]) -> None:
    columns = asked(client, body)["columns"]
    for document in (T1, T4, CACHE, OWN):
        given = {**body, "space": json.dumps(document)}
        del given["tune_params"]
        if document is not T4:
            del given["problem_size"]
        assert asked(client, given)["columns"] == columns
    measured = {"results": [*T4["results"], measurement(64, 3e-5), measurement(64, 3e-5)]}
    given["space"] = json.dumps(measured)
    assert asked(client, given, problem_size=[SIZE])["best"]["measured"] == [3e-5, 3e-5]


def measurement(block: int, taken: float) -> dict[str, Any]:
    one = {"name": "time", "value": taken, "unit": "s"}
    return {"configuration": {"block_size_x": block}, "measurements": [one]}


def test_a_file_of_measurements_and_rows_count_alike(
    client: httpx.Client, body: dict[str, Any]
) -> None:
    rows: list[Any] = [
        {"configuration": {"block_size_x": 128}, "seconds": 3e-5, "joules": 0.004, "failed": False},
        {"configuration": {"block_size_x": 64}, "seconds": None, "joules": None, "failed": True},
    ]
    text = t4_text(
        [
            Configuration(r["configuration"], r["seconds"], r["joules"], not r["failed"])
            for r in rows
        ]
    )
    by_file = asked(client, body, results=text)
    assert by_file["measurements"] == rows
    assert asked(client, body, measured=rows) == by_file
    # What was measured is predicted first.
    few = asked(client, body, results=text, predictions=2)
    assert [row["configuration"]["block_size_x"] for row in few["forecasts"]] == [128, 64]


@needs_nvrtc
def test_a_variant_that_does_not_compile_is_a_row(client: httpx.Client) -> None:
    broken = KERNEL.replace("int first", '#if work == 3\n#error "not three"\n#endif\nint first')
    given = {
        "cuda": broken, "gpu": "a100", "space": json.dumps(SPACE), "problem_size": [SIZE],
        "grid_divisors": [["block_size_x", "work"]], "objective": "energy",
    }  # fmt: skip
    space = {"tune_params": {"block_size_x": [128, 2048], "work": [1, 3]}, "kernel_name": "scale"}
    answer = asked(client, given, space=json.dumps(space))
    assert (answer["predicted"], answer["refused"]) == (1, 3)
    problems = {tuple(r["configuration"].values()): r["problem"] for r in answer["forecasts"]}
    assert problems[128, 1] is None
    assert "not three" in problems[128, 3]
    assert "2048" in problems[2048, 1]
    assert answer["columns"]["predicted"][1:] == [None] * 3
    every = asked(client, given, predictions=MOST_PREDICTIONS)
    assert every["waiting"] == 19 - MOST_PREDICTIONS
    only = {"tune_params": {"work": [3], "block_size_x": [32]}, "kernel_name": "scale"}
    assert "none of 1 configurations can be predicted: " in refused(
        client, given, space=json.dumps(only)
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"restrictions": ["work > 1"]}, "work is no tunable parameter"),
        (
            {"tune_params": {"block_size_x": [64], "a": [*range(150)], "b": [*range(150)]}},
            "22,500 configurations of 3 parameters; at most 20,000",
        ),
        ({"tune_params": {"block_size_x": ["wide"]}}, "invalid literal for int"),
        ({"tune_params": {"block_size_x": [64], "core_mhz": [-5]}}, "core_mhz"),
        ({"grid_divisors": [["work"]]}, "grid divisor 'work' is not a tunable parameter"),
        (
            {"measured": [{"configuration": {"block_size_x": 96}, "seconds": 1.0}]},
            "measured: the space has no configuration {'block_size_x': 96}",
        ),
        (
            {"measured": [{"configuration": {"block_size_x": 64}, "joules": 1.0}]},
            "time of {'block_size_x': 64} was not measured",
        ),
        (
            {"predicted": [{"configuration": {"block": 64}, "problem": "no"}]},
            "predicted[0]: the space has no {'block': 64}",
        ),
        (
            {"predicted": [{"configuration": {"block_size_x": 64}, "problem": "no"}] * 2},
            "predicted[1]: {'block_size_x': 64} was given before",
        ),
        ({"results": "no JSON"}, "not JSON"),
        ({"tune_params": None, "space": "[" * 100_000}, "not JSON"),
        ({"tune_params": None, "space": "{}"}, "neither T4 results"),
    ],
)
def test_what_does_not_fit_is_told(
    client: httpx.Client, body: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    assert told in refused(client, body, **changes)


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"gpu": "a1000000"}, "gpu", "a1000000"),
        ({"kernel": "other"}, "kernel", "other"),
        ({"tune_params": None}, "validation", "either space or tune_params"),
        ({"predictions": MOST_PREDICTIONS + 1}, "validation", f"equal to {MOST_PREDICTIONS}"),
        ({"problem_size": None}, "validation", "problem_size: the space does not tell it"),
        ({"objective": "speed"}, "validation", "'time', 'energy' or 'edp'"),
        (
            {"measured": [{"configuration": {"block_size_x": 64}}]},
            "validation",
            "give seconds, joules or both; or failed",
        ),
        (
            {"predicted": [{"configuration": {"block_size_x": 64}, "seconds": 1.0}]},
            "validation",
            "give seconds and joules, or problem",
        ),
        ({"space": "{}"}, "validation", "either space or tune_params"),
        (
            {"tune_params": None, "space": "{}", "restrictions": ["a > 1"]},
            "validation",
            "restrictions go with tune_params",
        ),
    ],
)
def test_what_is_no_request_is_told(
    client: httpx.Client, body: dict[str, Any], changes: dict[str, Any], kind: str, told: str
) -> None:
    assert told in refused(client, body, kind, **changes)


@pytest.mark.parametrize(
    ("blocks", "numbers", "taken"), [([32, 64], 10_000, 150), ([32], 301, 300)]
)
def test_too_many_measurements_for_the_space_are_refused(
    client: httpx.Client, body: dict[str, Any], blocks: list[int], numbers: int, taken: int
) -> None:
    rows = [
        {"configuration": {"block_size_x": 32, "a": number}, "seconds": 1.0}
        for number in range(taken + 1)
    ]
    space = {"block_size_x": blocks, "a": [*range(numbers)]}
    told = refused(client, body, tune_params=space, measured=rows)
    limit = f"{taken + 1} configurations are measured; at most {taken} of so many are taken"
    assert told == limit


def test_a_large_space_is_told_from_what_is_predicted(
    client: httpx.Client, body: dict[str, Any]
) -> None:
    space = {"block_size_x": [32, 64, 128, 256], "a": [*range(5000)]}
    few = asked(client, body, tune_params=space, predictions=2)
    assert (few["configurations"], few["waiting"], few["enough"]) == (20_000, 19_998, False)
    assert few["columns"]["status"].count("waiting") == 19_998
    given = {"tune_params": space, "predicted": few["forecasts"]}
    answer = asked(client, body, **given)
    assert (answer["predicted"], answer["waiting"]) == (18, 19_982)
    columns = answer["columns"]
    assert columns["status"].count("emulated") == 19_982
    widths: dict[str, list[float]] = {"emulated": [], "predicted": []}
    for status, low, high in zip(columns["status"], columns["low"], columns["high"], strict=True):
        widths[status].append(high / low)
    assert min(widths["emulated"]) > max(widths["predicted"])
    brief = asked(client, body, **given, outlook=False)
    assert brief["forecasts"] == answer["forecasts"]
    assert (brief["columns"], brief["next"], brief["best"]) == (None, [], None)
