"""Library operators: asked over HTTP, the command line and Python; bounds, limits, explanations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run
from wattcast.features.errors import ServiceError

GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
DECODE = {"name": "attention", "phase": "decode", "batch": 8, "cached_tokens": 4095, "heads": 32,
          "kv_heads": 8}  # fmt: skip


def ask(client: httpx.Client, operator: Any, **more: Any) -> Any:
    return client.post("/predict", json={"operator": operator, "gpu": "h200", **more})


def test_a_product_is_answered_beside_its_peaks(client: httpx.Client) -> None:
    found = ask(client, GEMM).json()
    figures = found["operator"]
    assert figures["flops"] == 2 * 4096**3
    assert figures["flops_per_second"] == pytest.approx(figures["flops"] / found["time"]["seconds"])
    assert 0.4 < figures["flops_per_second"] / figures["peak_flops_per_second"] < 1
    assert figures["bytes_per_second"] < figures["peak_bytes_per_second"]
    assert figures["joules_per_flop"] * figures["flops"] == pytest.approx(found["energy"]["joules"])
    assert 500 < found["power"]["watts"] <= 700
    assert found["trust"]["mark"] == "measured board"


def test_command_python_and_http_answer_alike(client: httpx.Client, run: Run) -> None:
    told = ask(client, DECODE).json()
    shape = {key: value for key, value in DECODE.items() if key != "name"}
    typed = wattcast.operator("attention", gpu="h200", registry=False, **shape)
    many = wattcast.operators([DECODE, GEMM], gpu="h200", registry=False)
    assert len(many) == 2
    assert many[0]["energy"] == typed.energy
    words = [w for key, value in shape.items() for w in (f"--{key.replace('_', '-')}", str(value))]
    printed = json.loads(run("operator", "attention", *words, "--gpu", "h200", "--json")[0])
    for quantity in ("power", "time", "energy"):
        assert printed[quantity] == told[quantity]
        assert getattr(typed, quantity).model_dump(exclude={"widened"}) == told[quantity]


def test_a_lower_power_limit_lengthens_the_call(client: httpx.Client) -> None:
    free, held = (ask(client, GEMM, power_limit_watts=w).json() for w in (700, 500))
    assert held["power"]["watts"] <= 500 < free["power"]["watts"]
    assert held["time"]["seconds"] > 1.03 * free["time"]["seconds"]
    assert held["clocks"]["core_mhz"] < free["clocks"]["core_mhz"]
    assert ask(client, GEMM, power_limit_watts=50).status_code == 422


def test_shap_sums_up_to_the_power_and_is_asked_later_too(client: httpx.Client) -> None:
    found = ask(client, GEMM, explain="shap").json()
    told = found["explanation"]
    total = told["base_watts"] + sum(one["watts"] for one in told["contributions"])
    assert total == pytest.approx(found["power"]["watts"], rel=1e-6)
    later = client.get("/explain", params={"prediction_id": found["id"], "target": "time"}).json()
    total = later["base_seconds"] + sum(one["seconds"] for one in later["contributions"])
    assert total == pytest.approx(found["time"]["seconds"], rel=1e-6)


@pytest.mark.parametrize(
    ("operator", "told"),
    [
        ({"name": "gemm", "m": 0, "n": 8, "k": 8}, "greater than or equal to 1"),
        ({"name": "gemm", "m": 2**40, "n": 8, "k": 8}, "less than or equal"),
        ({"name": "gemm", "m": 8.5, "n": 8, "k": 8}, "integer"),
        ({"name": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "int3"}, "bfloat16"),
        ({"name": "gemm", "m": 8, "n": 8, "k": 8, "rows": 1}, "not permitted"),
        ({"name": "conv", "m": 8}, "gemm"),
        ({**DECODE, "new_tokens": 2}, "decode"),
        ({**DECODE, "kv_heads": 5}, "multiple"),
        ({"name": "norm", "read_bytes": 0, "write_bytes": 0}, "both 0"),
        ({"name": "moe", "tokens": 1, "hidden": 8, "inner": 8, "topk": 9, "experts": 8}, "topk"),
    ],
)
def test_bad_shapes_are_refused_by_field(client: httpx.Client, operator: Any, told: str) -> None:
    answer = ask(client, operator)
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


@pytest.mark.parametrize(
    ("gpu", "dtype", "has"),
    [("a100", "fp8", "float16, bfloat16"), ("h200", "nvfp4", "float16, bfloat16, fp8, fp8_block"),
     ("v100", "bf16", "float16")],
)  # fmt: skip
def test_a_format_that_the_board_does_not_multiply_is_refused_by_every_way(
    client: httpx.Client, gpu: str, dtype: str, has: str
) -> None:
    asked = {**GEMM, "dtype": dtype}
    sweep = {"operator": GEMM, "gpu": gpu, "vary": {"dtype": [dtype]}}
    sides = {"new": {"operator": asked}, "old": {"operator": asked}, "gpu": gpu}
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
              "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 64}  # fmt: skip
    batch = client.post("/predict/batch", json={"operators": [asked], "gpu": gpu}).json()
    problems = [batch["predictions"][0]["problem"]]
    for path, body in (
        ("/predict", {"operator": asked, "gpu": gpu}),
        ("/sweep", sweep),
        ("/compare", sides),
        ("/language-models", {"config": config, "gpu": gpu, "dtype": dtype}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 422, path
        problems.append(answer.json())
    for problem in problems:
        assert "has no units that multiply" in problem["detail"]
        assert problem["detail"].endswith(f"it has {has}")
    plain = {**GEMM, "dtype": "float16"}
    assert client.post("/predict", json={"operator": plain, "gpu": gpu}).status_code == 200


def test_a_call_that_fits_no_memory_is_refused(client: httpx.Client) -> None:
    answer = ask(client, {**GEMM, "m": 2**20, "n": 2**20, "k": 2**20})
    assert answer.status_code == 422
    assert "h200-sxm5 has 151 GB" in answer.json()["detail"]


def test_what_was_not_measured_is_told(client: httpx.Client) -> None:
    wide = ask(client, {**GEMM, "m": 131072}).json()
    assert wide["power"]["basis"] == "extrapolated"
    assert "rows 131072 (measured: 1 to 32768)" in wide["warnings"][0]["detail"]
    norm = ask(client, {"name": "norm", "read_bytes": 10**8, "write_bytes": 10**8}).json()
    assert norm["warnings"][0]["code"] == "stands_in"


def test_watts_of_a_board_without_measured_watts_are_those_of_other_boards(
    client: httpx.Client,
) -> None:
    found = client.post("/predict", json={"operator": GEMM, "gpu": "h100-sxm5"}).json()
    assert found["time"]["basis"] == "unseen_kernel"
    assert found["power"]["basis"] == "uncalibrated"
    assert found["trust"]["mark"] == "estimated board"
    assert 300 < found["power"]["watts"] <= 700
    other = client.post("/predict", json={"operator": GEMM, "gpu": "a40"}).json()
    assert other["time"]["basis"] == "uncalibrated"


@pytest.mark.parametrize(("gpu", "measured"), [("a100-sxm4-40gb", 229.0), ("a40", 206.0)])
def test_a_pass_draws_what_a_copy_by_hand_does(
    client: httpx.Client, gpu: str, measured: float
) -> None:
    """Measured: copies of the sweep of multiply-adds (``modern/fma_sweep_power.csv``)."""
    half = 3_538_944_000
    asked = {"name": "elementwise", "read_bytes": half, "write_bytes": half}
    body = {"operator": asked, "gpu": gpu, "explain": "shap"}
    told = client.post("/predict", json=body).json()
    assert told["power"]["watts"] == pytest.approx(measured, rel=0.1)
    assert any("physical model" in each["detail"] for each in told["warnings"])
    parts = [each["watts"] for each in told["explanation"]["contributions"]]
    whole = told["explanation"]["base_watts"] + sum(parts)
    assert whole == pytest.approx(told["power"]["watts"], rel=1e-6)


def test_lime_is_asked_of_a_stored_prediction(client: httpx.Client) -> None:
    kept = ask(client, DECODE).json()
    told = client.get("/explain", params={"prediction_id": kept["id"], "method": "lime"}).json()
    assert told["prediction_watts"] == pytest.approx(kept["power"]["watts"], rel=1e-6)
    assert {one["feature"] for one in told["contributions"]} >= {"cached", "roofline_seconds"}


SHAPE = {key: value for key, value in GEMM.items() if key != "m"}


def test_a_batch_answers_each_as_alone_and_tells_what_fits_no_memory(client: httpx.Client) -> None:
    large = {**GEMM, "m": 2**20, "n": 2**20, "k": 2**20}
    body = {"operators": [GEMM, large, DECODE], "gpu": "h200"}
    found = client.post("/predict/batch", json=body).json()
    assert (found["kernel"], found["failed"]) == (None, 1)
    assert "h200-sxm5 has 151 GB" in found["predictions"][1]["problem"]["detail"]
    for operator, told in ((GEMM, found["predictions"][0]), (DECODE, found["predictions"][2])):
        alone = ask(client, operator).json()
        assert [told[q] for q in ("power", "time", "energy")] == [
            alone[q] for q in ("power", "time", "energy")
        ]


def test_a_sweep_answers_every_combination_and_ranks_them_by_a_flop(client: httpx.Client) -> None:
    vary = {"m": [1, 4096], "dtype": ["bf16", "fp8_block"]}
    body = {"operator": SHAPE, "vary": vary, "gpus": ["h200", "b200"]}
    found = client.post("/sweep", json=body).json()
    assert [(p["gpu"], *p["values"].values()) for p in found["points"]] == [
        (gpu, m, d) for gpu in ("h200-sxm5", "b200") for m in (1, 4096) for d in vary["dtype"]
    ]
    least = min(found["points"], key=lambda point: point["joules_per_flop"])
    assert found["points"][found["best"]["min_energy"]] == least
    assert least["pareto"]
    alone = ask(client, {**SHAPE, "m": 1, "dtype": "bf16"}).json()
    assert found["points"][0]["time"] == alone["time"]


def test_a_sweep_tells_which_combinations_are_no_operator(client: httpx.Client) -> None:
    experts = {"name": "moe", "tokens": 8, "hidden": 4096, "inner": 1000, "topk": 2, "experts": 8}
    vary = {"tensor_parallel": [1, 2, 16]}
    body = {"operator": experts, "vary": vary, "gpu": "h200"}
    found = client.post("/sweep", json=body).json()
    assert ["problem" in point for point in found["points"]] == [False, False, True]
    assert "multiple of tensor_parallel" in found["points"][2]["problem"]["detail"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"operator": SHAPE, "vary": {"m": [0]}}, "greater than or equal to 1"),
        ({"operator": SHAPE}, "m: Field required"),
        ({"operator": GEMM, "vary": {"rows": [1]}}, "not permitted"),
        ({"operator": SHAPE, "vary": {"m": []}}, "vary"),
        ({"operator": SHAPE, "vary": {"m": [[1]]}}, "vary"),
        ({"operator": SHAPE, "vary": {"m": [*range(1, 1026)]}}, "1024"),
        ({"operator": SHAPE, "vary": {"m": [*range(1, 900)], "n": [8, 16]}}, "1798 points"),
        ({"operator": "gemm"}, "operator"),
        ({"operator": {}}, "name"),
        ({"operator": SHAPE, "vary": {"m": [1]}, "gpus": ["h200"]}, "either gpu or gpus"),
    ],
)
def test_bad_sweeps_are_refused(client: httpx.Client, body: Any, told: str) -> None:
    answer = client.post("/sweep", json={"gpu": "h200", **body})
    assert answer.status_code == 422
    assert told in answer.json()["detail"]


def test_a_comparison_sets_two_operators_beside_each_other(client: httpx.Client) -> None:
    old, new = {"operator": GEMM}, {"operator": {**GEMM, "dtype": "fp8"}}
    limits = {"max_energy_percent": -50}
    body = {"old": old, "new": new, "gpus": ["h200", "h100-sxm5"], "limits": limits}
    found = client.post("/compare", json=body).json()
    first, second = found["comparisons"]
    assert (first["gpu"], second["gpu"]) == ("h200-sxm5", "h100-sxm5")
    assert first["old"]["time"] == ask(client, GEMM).json()["time"]
    share = first["new"]["energy"]["joules"] / first["old"]["energy"]["joules"]
    assert first["change"]["energy_percent"] == pytest.approx(100 * (share - 1))
    assert not found["passed"]
    assert "from shapes" in found["markdown"]
    mixed = client.post("/compare", json={**body, "old": {"ptx": "x"}})
    assert mixed.status_code == 422
    large = {"operator": {**GEMM, "m": 2**20, "n": 2**20, "k": 2**20}}
    refused = client.post("/compare", json={**body, "new": large})
    assert refused.json()["detail"].startswith("new: gemm keeps")


@pytest.mark.parametrize("hostile", [[1], "x", 7, {"operator": 3}, {"operator": [[]]}, None])
def test_no_odd_form_ends_in_an_error_of_the_service(client: httpx.Client, hostile: Any) -> None:
    for path, body in (
        ("/compare", {"old": hostile, "new": hostile}),
        ("/sweep", {"operator": hostile, "vary": hostile}),
        ("/predict/batch", {"operators": hostile}),
    ):
        assert client.post(path, json={**body, "gpu": "h200"}).status_code == 422


def test_python_and_the_command_sweep_and_compare(run: Run, tmp_path: Path) -> None:
    one = wattcast.operator("gemm", m=1, n=4096, k=4096, gpu="h200", registry=False)
    swept, halved = one.sweep(m=[1, 64]), one.compare(dtype="fp8_block")
    assert [point.values for point in swept.points] == [{"m": 1}, {"m": 64}]
    words = ("operator", "gemm", "--m", "1", "--n", "4096", "--k", "4096", "--gpu", "h200")
    told = json.loads(run(*words, "--vary", "m=1,64", "--json")[0])
    assert told["points"] == [point.data() for point in swept.points]
    told = json.loads(run(*words, "--new", "dtype=fp8_block", "--json")[0])
    assert told["comparisons"][0]["change"] == halved.comparisons[0].change.model_dump()
    file = tmp_path / "calls.json"
    file.write_text(json.dumps([GEMM, DECODE]))
    assert (
        len(json.loads(run("operator", str(file), "--gpu", "h200", "--json")[0])["predictions"])
        == 2
    )
    code = Path(wattcast.__file__).parents[1] / "app/demo/vector_add.ptx"
    kernel = wattcast.predict(code, gpu="tesla-v100", grid=4096, block=256, registry=False)
    with pytest.raises(ServiceError, match="not of an operator"):
        kernel.sweep(m=[1])


def test_cards_and_the_schema_of_operators_are_listed(client: httpx.Client) -> None:
    card = ask(client, GEMM).json()["model"]["card"]
    listed = {model["card"] for model in client.get("/models").json()}
    assert card in listed
    assert client.get(card).json()["operators"]["gemm"]["time"]["scores"]
    cards = client.get("/models/h200/operator").json()
    assert [one["gpu"] for one in cards] == ["h200-sxm5"]
    schema = client.get("/schemas/operator1").json()
    assert "roofline_seconds" in [field["name"] for field in schema["fields"]]


def test_stored_operators_are_found_again(client: httpx.Client) -> None:
    kept = ask(client, DECODE).json()
    place = f"/predictions/{kept['id']}"
    assert client.get(place).json() == kept
    first = client.get("/predictions").json()[0]
    assert (first["id"], first["kernel"]) == (kept["id"], "attention")
    again = client.post("/predict", json=client.get(f"{place}/request").json()["request"]).json()
    assert again["energy"] == kept["energy"]
    for part in ("hotspots", "advice"):
        assert client.get(f"{place}/{part}").json()["type"].endswith("no-explanation")
