"""Finding the best of a tuning space: the command, the files, and Kernel Tuner itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.app.conftest import Run
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from wattcast.app.cli import app
from wattcast.app.services import Services
from wattcast.app.tuners import KernelTunerStrategy, predicted_best
from wattcast.features.errors import DataError
from wattcast.predictor.forecasts import Forecast
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import TuningProblem, macros, preselection, rank
from wattcast.predictor.tune import Tuning
from wattcast.predictor.tuning_files import read_tuning

KERNEL = stored_cuda("scaled")

SIZE = 1 << 22

PARAMETERS = {"block_size_x": [32, 64, 128, 256, 512], "work": [1, 2, 4, 8]}

SPACE = {
    "tune_params": PARAMETERS,
    "restrictions": ["block_size_x * work <= 2048"],
    "problem_size": [SIZE],
    "kernel_name": "scale",
}

# A board that likes 256 threads and two elements each, whatever a prediction says.
SECONDS = "(1 + abs({block_size_x} - 256) / 1024 + abs({work} - 2) / 8) * 1e-4"

RUN = f"{sys.executable} -c 'print({SECONDS}, 2e-3 * {SECONDS} * 1e4)'"


def seconds(parameters: Mapping[str, Any]) -> float:
    return float(eval(SECONDS.format_map(dict(parameters))))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    space, code = tmp_path / "space.json", tmp_path / "scale.cu"
    space.write_text(json.dumps(SPACE), encoding="utf-8")
    code.write_text(KERNEL, encoding="utf-8")
    return space, code


def tuned(*words: str) -> Any:
    result = CliRunner().invoke(app, ["tune", *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def asked(files: tuple[Path, Path], *words: str) -> Any:
    return tuned(*map(str, files), "--gpu", "a100", "--grid-div-x", "block_size_x,work", *words)


def test_it_proposes_before_anything_is_measured(files: tuple[Path, Path]) -> None:
    answer = asked(files, "--next", "3", "--by", "time")
    assert answer["configurations"] == 19  # 5 x 4, less 512 x 8
    assert answer["best"] is None
    assert len(answer["next"]) == 3
    first = answer["next"][0]
    assert first["expected"] == pytest.approx(first["predicted"])
    assert first["low"] < first["expected"] < first["high"]


@pytest.mark.slow
def test_a_command_measures_until_it_is_not_worth_it(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    keep = tmp_path / "keep.jsonl"
    words = ("--by", "time", "--run", RUN, "--results", str(results), "--keep", str(keep))
    half = asked(files, *words, "--budget", "4")
    assert half["measured"] == 4
    answer = asked(files, *words)
    best = min(seconds(one.parameters) for one in read_tuning(results.read_text()).configurations)
    assert answer["best"]["measured"] == pytest.approx([best] * len(answer["best"]["measured"]))
    every = [{"block_size_x": b, "work": w} for b, w in product(*PARAMETERS.values())]
    assert best <= 1.05 * min(seconds(each) for each in every)
    assert len(keep.read_text().splitlines()) == 19  # predicted once
    # The file alone says the same.
    again = asked(files, "--by", "time", "--results", str(results), "--keep", str(keep))
    assert again == answer


@pytest.mark.slow
def test_of_a_large_space_a_part_is_predicted(files: tuple[Path, Path], tmp_path: Path) -> None:
    keep = tmp_path / "kept.jsonl"
    words = ("--predictions", "10", "--by", "time", "--keep", str(keep), "--next", "2")
    answer = asked(files, *words)
    assert answer["configurations"] == 19
    assert 10 <= answer["predicted"] < 19
    assert len(keep.read_text(encoding="utf-8").splitlines()) == answer["predicted"]
    assert not any(row["emulated"] for row in answer["next"])
    shown = CliRunner().invoke(
        app,
        ["tune", *map(str, files), "--gpu", "a100", "--grid-div-x", "block_size_x,work", *words],
    )
    assert f"{answer['predicted']} predicted, " in shown.stdout
    assert asked(files, *words) == answer


def test_energy_under_a_bound_of_time_and_clocks_as_dimensions(
    files: tuple[Path, Path],
) -> None:
    space = {**SPACE, "tune_params": {**PARAMETERS, "nvml_gr_clock": [1410, 1005, 765]}}
    files[0].write_text(json.dumps(space), encoding="utf-8")
    (first,) = asked(files, "--by", "energy", "--next", "1")["next"]
    assert first["configuration"]["nvml_gr_clock"] < 1410  # a copy is bound by memory
    answer = asked(files, "--by", "energy", "--run", RUN, "--most-seconds", "1.2e-4")
    assert seconds(answer["best"]["configuration"]) <= 1.2e-4


@pytest.mark.slow
def test_runs_that_fail_are_written_down_as_failed(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    fails = f"{sys.executable} -c 'assert {{work}} < 4; print({SECONDS})'"
    answer = asked(files, "--by", "time", "--run", fails, "--results", str(results))
    assert answer["best"]["configuration"]["work"] < 4
    rows = json.loads(results.read_text())["results"]
    assert {row["invalidity"] for row in rows} <= {"correct", "runtime"}
    assert all((row["configuration"]["work"] < 4) == bool(row["correctness"]) for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--by", "speed"), "expected time, energy or edp"),
        (("--run", "bench {block}"), "'block' is no parameter of the space"),
        (("--run", f"{sys.executable} -c 'print(\"fast\")'"), "printed 'fast' last"),
        (("--run", "/no/such/command"), "No such file"),
        (("--most-seconds", "0"), "expected a number above 0"),
    ],
)
def test_what_is_wrong_is_told(files: tuple[Path, Path], words: tuple[str, ...], told: str) -> None:
    few = {"block_size_x": [64, 128], "work": [1]}
    files[0].write_text(json.dumps({**SPACE, "tune_params": few}), encoding="utf-8")
    given = ["tune", *map(str, files), "--gpu", "a100", "--grid-div-x", "block_size_x,work", *words]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_t1_definition_is_the_same_space() -> None:
    document = {
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": name, "Type": "int", "Values": str(values)}
                for name, values in PARAMETERS.items()
            ],
            "Conditions": [{"Expression": SPACE["restrictions"][0], "Parameters": ["work"]}],  # type: ignore[index]
        },
        "KernelSpecification": {"KernelName": "scale", "ProblemSize": [SIZE]},
    }
    assert read_tuning(json.dumps(document)) == read_tuning(json.dumps(SPACE))


def test_a_configuration_the_space_lacks_is_refused() -> None:
    tuning = Tuning([Forecast({"a": 1}, 1.0, 1.0), Forecast({"a": 2}, 2.0, 1.0)], "time")
    tuning.tell({"a": 1.0}, 3.0)  # files write whole numbers either way
    with pytest.raises(DataError, match="has no configuration"):
        tuning.tell({"a": 3}, 1.0)
    with pytest.raises(DataError, match="was not measured"):
        tuning.tell({"a": 1}, None, 2.0)


LARGE = [
    {"tile": tile, "unroll": unroll, "warps": warps, "pad": pad, "stages": stages}
    for tile, unroll, warps, pad, stages in product(
        (8, 16, 32, 64, 128), (1, 2, 4, 8, 16), (1, 2, 4, 8), (False, True), (1, 2, 3, 4, 5)
    )
]  # 1,000 configurations


class Board:
    """Says what configurations of ``LARGE`` are predicted as and take, and counts the asking."""

    def __init__(self, seed: int, refuses: float = 0.0) -> None:
        random = np.random.default_rng(seed)
        columns = np.array([[float(value) for value in row.values()] for row in LARGE])
        places = np.log2(1 + columns)
        liked = random.uniform(places.min(0), places.max(0))
        truth = np.exp(0.1 * ((places - liked) ** 2).sum(1) + random.normal(0, 0.03, len(LARGE)))
        wrong = 0.15 * np.cos(places @ random.normal(size=places.shape[1]))
        self.truth = truth
        self.predicted = truth * np.exp(wrong + random.normal(0, 0.03, truth.size))
        self.refused = random.random(truth.size) < refuses
        self.asked: list[int] = []

    def predict(self, wanted: Sequence[Mapping[str, Any]]) -> list[Forecast]:
        places = [LARGE.index(dict(each)) for each in wanted]
        self.asked += places
        return [
            Forecast(LARGE[place], problem="no")
            if self.refused[place]
            else Forecast(LARGE[place], float(self.predicted[place]), 1.0)
            for place in places
        ]

    def tune(self, most: int) -> Tuning:
        tuning = Tuning((), "time", None, LARGE, self.predict)
        tuning.study(most)
        while not tuning.finished():
            (next_,) = tuning.propose()
            tuning.tell(next_, float(self.truth[LARGE.index(dict(next_))]))
        return tuning


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_space_of_which_a_part_is_predicted(seed: int) -> None:
    board = Board(seed)
    tuning = board.tune(260)
    answer = tuning.answer()
    assert len(board.asked) == len(set(board.asked)) < 0.6 * len(LARGE)
    assert answer["predicted"] == len(board.asked)
    assert answer["configurations"] == len(LARGE)
    best = board.truth[LARGE.index(answer["best"]["configuration"])]
    assert best <= board.truth.min() * 1.10  # of 8 seeds five lose nothing, one 7 %
    assert answer["measured"] < 60
    measured = [tuning.place(LARGE[place]) for place in board.asked]
    assert all(place is not None for place in measured)


def test_what_is_measured_was_predicted_and_what_cannot_be_is_passed_over() -> None:
    board = Board(3, refuses=0.2)
    answer = board.tune(260).answer()
    assert 20 < len(answer["refused"]) < 120
    assert answer["configurations"] + len(answer["refused"]) == len(LARGE)
    assert not answer["best"]["emulated"]


def test_without_a_way_to_predict_the_rest_is_told_and_marked() -> None:
    board = Board(4)
    tuning = Tuning(board.predict(LARGE[::4]), "time", None, LARGE)
    assert {each["emulated"] for each in tuning.answer(20)["next"]} == {True, False}
    wanted = tuning.to_predict(7)
    assert len(wanted) == 7
    for row in board.predict(wanted):
        tuning.add(row)
    assert tuning.to_predict(7) != wanted
    assert tuning.answer()["predicted"] == 257
    # What is told of the others is as wrong as it says: nine in ten within their interval.
    outlook = tuning.search.outlook()
    inside = [
        outlook.low[place] <= board.predicted[number] <= outlook.high[place]
        for number, row in enumerate(LARGE)
        if (place := tuning.place(row)) is not None and place >= 257
    ]
    assert np.mean(inside) > 0.85


def test_the_order_of_asking_does_not_depend_on_what_is_asked_at_once() -> None:
    board = Board(5)
    whole = Tuning((), "time", None, LARGE).to_predict(40)
    tuning = Tuning((), "time", None, LARGE)
    found: list[Mapping[str, Any]] = []
    for _ in range(8):
        some = tuning.to_predict(5)
        found += some
        for row in board.predict(some):
            tuning.add(row)
    assert found == whole


def measured_everywhere(file: Path) -> None:
    """A cache of Kernel Tuner with the whole space, from which its simulation mode answers."""
    rows = {}
    for block, work in product(*PARAMETERS.values()):
        parameters = {"block_size_x": block, "work": work}
        milliseconds = 1e3 * seconds(parameters)
        rows[f"{block},{work}"] = {
            **parameters, "time": milliseconds, "times": [milliseconds], "compile_time": 1.0,
            "verification_time": 0, "benchmark_time": 1.0, "strategy_time": 0,
            "framework_time": 0, "timestamp": "2026-11-23 00:00:00+00:00",
        }  # fmt: skip
    document = {
        "device_name": "Simulation", "kernel_name": "scale", "problem_size": SIZE,
        "tune_params_keys": list(PARAMETERS), "tune_params": PARAMETERS, "cache": rows,
    }  # fmt: skip
    file.write_text(json.dumps(document), encoding="utf-8")


def by_kernel_tuner(tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    from kernel_tuner import tune_kernel

    cache = tmp_path / "cache.json"
    measured_everywhere(cache)
    numbers = np.zeros(SIZE, dtype=np.float32)
    results, _ = tune_kernel(
        "scale", KERNEL, SIZE, [numbers, numbers, np.float32(2), np.int32(SIZE)], PARAMETERS,
        grid_div_x=["block_size_x", "work"], lang="CUDA", simulation_mode=True, cache=str(cache),
        quiet=True, **options,
    )  # fmt: skip
    return list(results)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_kernel_tuner_takes_it_as_a_strategy(tmp_path: Path) -> None:
    keep = tmp_path / "keep.jsonl"
    found = by_kernel_tuner(tmp_path, strategy=KernelTunerStrategy("a100", keep=keep))
    best = min(row["time"] for row in found)
    every = [{"block_size_x": b, "work": w} for b, w in product(*PARAMETERS.values())]
    assert best <= 1.05e3 * min(seconds(each) for each in every)
    assert len(found) < len(every)
    few = by_kernel_tuner(
        tmp_path,
        strategy=KernelTunerStrategy("a100", keep=keep),
        strategy_options={"max_fevals": 3},
    )
    assert [row["time"] for row in few] == [row["time"] for row in found[:3]]


@pytest.mark.filterwarnings("ignore")
def test_kernel_tuner_takes_it_as_a_restriction(tmp_path: Path) -> None:
    space = [
        Forecast({"block_size_x": block, "work": work}, 1e-4 * work, 1.0)
        for block, work in product(*PARAMETERS.values())
    ]
    kept = by_kernel_tuner(tmp_path, restrictions=predicted_best(space, 0.5))
    assert {row["work"] for row in kept} == {1, 2}
    assert len(kept) == 10


def test_objectives_that_nobody_predicts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="objective GFLOP/s"):
        by_kernel_tuner(
            tmp_path,
            strategy=KernelTunerStrategy("a100"),
            objective="GFLOP/s",
            objective_higher_is_better=True,
        )


# --- Kernel Tuner's files: read, ranked by prediction, and what a top-k choice would have saved

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
