"""Kernel Tuner's files: read, ranked by prediction, and what a top-k choice would have saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import Run
from tests.needs import needs_nvrtc
from wattcast.app.services import Services
from wattcast.features.errors import DataError
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import TuningProblem, macros, preselection, rank
from wattcast.predictor.tuning_files import read_tuning

N = 1 << 20
CUDA = """\
extern "C" __global__ void twice(float* values, int n) {
    for (int k = 0; k < tile; ++k) {
        int i = (blockIdx.x * tile + k) * block_size_x + threadIdx.x;
        if (i < n) values[i] *= 2.0f;
    }
}
"""


def result(x: int, seconds: float | None, **more: Any) -> dict[str, Any]:
    """A row as Kernel Tuner's T4 files hold it; milliseconds."""
    measurements = [] if seconds is None else [
        {"name": "time", "value": seconds * 1e3, "unit": "ms"},
        {"name": "nvml_energy", "value": seconds * 100, "unit": ""},
    ]  # fmt: skip
    return {
        "timestamp": "2024-01-01 00:00:00+00:00",
        "configuration": {"block_size_x": x},
        "times": {"compilation": 1.0, "runtimes": []},
        "invalidity": "correct" if seconds is not None else "runtime",
        "correctness": 1,
        "measurements": measurements,
        "objectives": ["time"],
        **more,
    }


def t4(rows: list[dict[str, Any]]) -> str:
    return json.dumps({"results": rows, "schema_version": "1.0.0"})


MEASURED = [
    (32, 4e-5),
    (64, 2.6e-5),
    (128, 1.95e-5),
    (256, 1.9e-5),
    (512, 1.92e-5),
    (1024, 1.99e-5),
]
RESULTS = t4([*(result(x, seconds) for x, seconds in MEASURED), result(2048, None)])
CACHE = {
    "schema_version": "1.1.0",
    "device_name": "Tesla V100-PCIE-16GB",
    "kernel_name": "vector_add",
    "problem_size": [N],
    "tune_params_keys": ["block_size_x", "tile"],
    "tune_params": {"block_size_x": [64, 128], "tile": [1]},
    "cache": {
        "64,1": {"block_size_x": 64, "tile": 1, "time": 0.026, "energy": 0.0031, "times": [0.026]},
        "128,1": {"block_size_x": 128, "tile": 1, "time": "RuntimeFailedConfig"},
        "256,1": {"block_size_x": 256, "tile": 1, "time": 1e20},
    },
}


# --- files -----------------------------------------------------------------------------------


def test_a_t4_file_is_read() -> None:
    run = read_tuning(RESULTS)
    assert [c.parameters["block_size_x"] for c in run.configurations] == [
        32, 64, 128, 256, 512, 1024, 2048,
    ]  # fmt: skip
    assert run.configurations[0].time_seconds == pytest.approx(4e-5)
    assert run.configurations[0].energy_joules == pytest.approx(4e-3)
    assert not run.configurations[-1].valid
    assert run.configurations[-1].time_seconds is None


def test_a_cache_file_is_read_even_while_it_is_written_to() -> None:
    text = json.dumps(CACHE)
    for given in (text, text[:-2] + ","):
        run = read_tuning(given)
        assert run.kernel == "vector_add"
        assert run.problem_size == (N,)
        first, failed, timeout = run.configurations
        assert first.time_seconds == pytest.approx(2.6e-5)
        assert first.energy_joules == pytest.approx(3.1e-3)
        assert not failed.valid
        assert timeout.time_seconds is None


# --- what a prediction saves -----------------------------------------------------------------


def test_preselection_by_hand() -> None:
    """Predicted order 3, 1, 2, 0. Two lie within 5 % of the best, 10: at ranks 2 and 4."""
    found = preselection([9.0, 2.0, 3.0, 1.0], [10.0, 10.4, 20.0, 30.0], k=1)
    assert found.loss == pytest.approx(2.0)
    assert found.runs_saved == 3
    assert found.runs_needed == 2
    assert found.runs_needed_random == pytest.approx(5 / 3)
    assert found.rank_correlation == pytest.approx(-0.8)
    assert preselection([1, 2, 3], [10, 20, 30], k=2).loss == 0
    assert preselection([1, 2, 3], [10, 20, 30], k=2).rank_correlation == pytest.approx(1)
    assert preselection([1, 1, 1], [10, 20, 30], k=9).rank_correlation == 0
    for predicted, measured in (([1.0], [1.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [1.0])):
        with pytest.raises(DataError):
            preselection(predicted, measured, k=1)


def test_configurations_are_ranked_by_their_prediction(services: Services, vector_add: str) -> None:
    run = read_tuning(RESULTS)
    request = {"ptx": vector_add, "gpu": "tesla-v100", "model": "physical"}
    found = rank(services, run, TuningProblem((N,), request=request), "time", top=3)
    rows = found["configurations"]
    assert [row["rank"] for row in rows] == list(range(1, 7))
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    for row in rows:
        x = row["configuration"]["block_size_x"]
        assert (row["grid"], row["block"]) == ([N // x], [x, 1, 1])
        launch = {"grid": row["grid"], "block": row["block"]}
        alone = predict(services, PredictRequest.model_validate({**request, "launch": launch}))
        assert row["joules"] == alone["energy"]["joules"]
    assert "allows at most 1024" in found["refused"][0]["reason"]
    judged = found["judged"]
    assert judged["configurations"] == 6
    assert judged["runs_saved"] == 3
    assert judged["rank_correlation"] > 0.5
    assert judged["runs_needed"] <= judged["runs_needed_random"]
    energy = rank(services, run, TuningProblem((N,), request=request), "energy")
    assert energy["judged"] is not None
    bare = read_tuning(t4([result(64, None), result(128, None)]))
    assert rank(services, bare, TuningProblem((N,), request=request))["judged"] is None


def test_divisors_make_the_grid(vector_add: str) -> None:
    problem = TuningProblem((1000, 100), (("block_size_x", "tile"), ("4",), ()))
    launch = problem.launch({"block_size_x": 32, "tile": 4})
    assert launch == {"grid": [8, 25], "block": [32, 1, 1]}
    with pytest.raises(DataError, match="is not a tunable parameter"):
        TuningProblem((1000,), (("unroll",), (), ())).launch({"block_size_x": 32})


def test_macros_are_only_macros() -> None:
    text = macros({"block_size_x": 32, "use": True, "type": "float"})
    assert text.splitlines()[1:4] == [
        "#define block_size_x 32",
        "#define use 1",
        "#define type float",
    ]
    assert text.endswith("#line 1\n")
    for name, value in (("a b", 1), ("x", "1\n#include </etc/passwd>"), ("x", "1\\"), ("é", 1)):
        with pytest.raises(DataError):
            macros({name: value})


@needs_nvrtc
@pytest.mark.parametrize(
    "own", ["", "#define tile 4\n#ifndef block_size_x\n#define block_size_x 64\n#endif\n"]
)
def test_parameters_are_macros_of_cuda_source(services: Services, own: str) -> None:
    """What the source defines itself is a default: it does not win over a configuration."""
    rows = [
        result(128, 2e-5, configuration={"block_size_x": 128, "tile": tile}) for tile in (1, 16)
    ]
    request = {"cuda": own + CUDA, "gpu": "tesla-v100", "model": "physical"}
    problem = TuningProblem((N,), (("block_size_x", "tile"), (), ()), request=request)
    found = rank(services, read_tuning(t4(rows)), problem, "energy")
    by_tile = {row["configuration"]["tile"]: row for row in found["configurations"]}
    assert by_tile[16]["grid"] == [N // 128 // 16]
    assert by_tile[1]["joules"] != by_tile[16]["joules"]


def test_on_the_command_line(run: Run, tmp_path: Path, vector_add: str) -> None:
    kernel, results, cache = (tmp_path / name for name in ("k.ptx", "r.json", "c.json"))
    kernel.write_text(vector_add)
    results.write_text(RESULTS)
    cache.write_text(json.dumps(CACHE))
    words = (str(kernel), "--gpu", "v100")
    out, _ = run(
        "rank", str(results), *words, "--problem-size", str(N), "--top", "3", "--by", "time"
    )
    for word in ("block_size_x=", "would have saved 3 runs", "rank correlation", "1 refused"):
        assert word in out
    out, _ = run("rank", str(cache), *words, "--json")
    assert len(json.loads(out)["configurations"]) == 3
    _, err = run("rank", str(results), *words, status=2)
    assert "--problem-size" in err
    _, err = run("rank", str(results), *words, "--by", "luck", status=2)
    assert "--by" in err
    _, err = run("rank", str(kernel), *words, "--problem-size", "64", status=2)
    assert "JSON" in err
