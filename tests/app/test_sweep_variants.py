"""``POST /sweep`` and ``wattcast sweep`` over macros of a CUDA source: its variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.app.conftest import Run
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from wattcast.app.services import Services
from wattcast.features.errors import LaunchError, ServiceError
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepAnswer, SweepRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.sweep import sweep
from wattcast.predictor.variants import dimensions


def asked(services: Services, /, **changes: Any) -> dict[str, Any]:
    body = {**VARIANTS, "gpu": "tesla-v100", **changes}
    answer = sweep(services, SweepRequest.model_validate(body))
    SweepAnswer.model_validate(answer)
    return answer


TILED = stored_cuda("tiled_by_macro")
VARIANTS: dict[str, Any] = {
    "cuda": TILED,
    "launch": {"grid": [1], "block": [1], "arguments": {"n": 4096}},
    "block_formula": ["TILE", "TILE"],
    "grid_formula": ["n / TILE", "n / TILE"],
}


@needs_nvrtc
def test_each_variant_is_what_predict_answers_for_its_source(services: Services) -> None:
    answer = asked(services, defines={"TILE": [8, 16, 32], "PAD": [0, 1]})
    found = [point["defines"] for point in answer["points"]]
    assert found == [{"TILE": t, "PAD": p} for t in (8, 16, 32) for p in (0, 1)]
    assert answer["reference"]["defines"] == found[0]
    for point in answer["points"]:
        size, pad = point["defines"].values()
        assert point["block"] == [size, size, 1]
        assert point["grid"] == [4096 // size, 4096 // size, 1]
        source = TILED.replace("TILE 4", f"TILE {size}").replace("PAD", str(pad))
        request = PredictRequest.model_validate(
            {"cuda": source, "gpu": "tesla-v100", "model": "physical",
             "launch": {**VARIANTS["launch"], "grid": point["grid"], "block": point["block"]}}
        )  # fmt: skip
        assert predict(services, request)["energy"] == point["energy"]
    # The textbook: a padded tile of 32 has no bank conflicts.
    plain, padded = (p["time"]["seconds"] for p in answer["points"][-2:])
    assert padded < 0.9 * plain
    assert answer["warnings"][0]["code"] == "variants_not_compared"


@needs_nvrtc
def test_a_variant_that_fails_is_listed_and_the_others_are_predicted(services: Services) -> None:
    answer = asked(services, defines={"TILE": [16, 24, 64, "wide"], "PAD": [1, "oops"]})
    assert [point["defines"] for point in answer["points"]] == [{"TILE": 16, "PAD": 1}]
    reasons = {tuple(one["defines"].values()): one["reason"] for one in answer["infeasible"]}
    assert len(reasons) == 7
    assert '"oops" is undefined' in reasons[16, "oops"]
    assert "ceil(n / TILE) rounds up" in reasons[24, 1]
    assert "4096" in reasons[64, 1]
    assert "TILE is no macro" in reasons["wide", 1]
    with pytest.raises(LaunchError, match="none of 1 variants"):
        asked(services, defines={"TILE": [24], "PAD": [1]})


def test_what_is_no_variant_is_refused(services: Services) -> None:
    for changes, told in (
        ({"defines": {"TILE": [8], "OTHER": [1]}}, "does not use OTHER"),
        ({"defines": {"TILE": list(range(1, 41)), "PAD": [1, 2]}}, "at most 64"),
    ):
        with pytest.raises(ServiceError, match=told):
            asked(services, **changes)
    for changes in (
        {"ptx": "x", "cuda": None, "defines": {"TILE": [8]}},
        {"defines": {"TILE": [8]}, "blocks": [64]},
        {"defines": {"TI LE": [8]}},
        {"defines": {"TILE": ["8\n#include </etc/passwd>"]}},
        {"defines": None},
    ):
        with pytest.raises(ValidationError):
            asked(services, **changes)


@pytest.mark.parametrize(
    ("formula", "value"),
    [("N/TILE", 8), ("ceil(N/48)", 6), ("N // 48 + 1", 6), ("min(N, 2*TILE)", 64), ("N % 48", 16),
     ("-(-N // 48)", 6), ("max(1, N - 300)", 1)],
)  # fmt: skip
def test_formulas_come_to_whole_numbers(formula: str, value: int) -> None:
    assert dimensions("grid", [formula], {"N": 256, "TILE": 32}) == [value]


@pytest.mark.parametrize(
    ("formula", "told"),
    [("N/48", "not whole"), ("M", "M is no macro"), ("N - N", "not 1 or more"), ("N/0", "by zero"),
     ("N**N", "not understood"), ("__import__('os')", "not understood"), ("N.real", "understood"),
     ("(" * 150, "no expression"), ("N*" * 60 + "N", "too large"), ("1" * 201, "200 characters"),
     ("", "no expression"), ("1.5", "no whole number"), ("N > 3", "no number")],
)  # fmt: skip
def test_what_is_no_formula_says_why(formula: str, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        dimensions("grid", [formula], {"N": 256, "TILE": 32})


@needs_nvrtc
def test_variants_on_the_command_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tiled.cu"
    file.write_text(TILED)
    launch = ("--gpu", "v100", "--block", "TILE,TILE", "--grid", "ceil(n/TILE),ceil(n/TILE)",
              "--arg", "n=1024", "--define", "PAD=0,1")  # fmt: skip
    out, _ = run("sweep", str(file), *launch, "--define", "TILE=16,32,99", "--json")
    answer = json.loads(out)
    assert [point["block"][0] for point in answer["points"]] == [16, 32, 16, 32]
    out, _ = run("sweep", str(file), *launch, "--define", "TILE=16,32,99")
    for word in (
        "PAD=0, TILE=16:",
        "not tesla-v100 PAD=0, TILE=99",
        "whether all compute the same",
    ):
        assert word in out
    _, err = run("sweep", str(file), *launch, "--define", "TILE", status=2)
    assert "--define" in err
