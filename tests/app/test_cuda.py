"""CUDA source as input: compiled, named, refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run, settings_at
from tests.app.live import running
from tests.app.test_problems import json_of, problem
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from wattcast.features.cuda import CompilerMissingError, compile_cuda
from wattcast.predictor.messages import EXAMPLE_CUDA
from wattcast.predictor.messages.predict import PredictAnswer, PredictAnswers

FIXTURES = Path(__file__).parents[1] / "fixtures" / "cuda"
LAUNCH = {"grid": [4096], "block": [256]}


def body(source: str = EXAMPLE_CUDA, /, **changes: Any) -> dict[str, Any]:
    return {"cuda": source, "gpu": "tesla-v100", "launch": LAUNCH, **changes}


def ask(client: httpx.Client, path: str = "/predict", /, **asked: Any) -> dict[str, Any]:
    return json_of(client.post(path, json=asked))


@needs_nvrtc
def test_source_is_compiled_and_predicted_as_its_ptx(client: httpx.Client) -> None:
    answer = ask(client, **body())
    PredictAnswer.model_validate(answer)
    assert answer["kernel"]["demangled"] == "scale(float*, float, int)"
    assert answer["compiled"] == {
        "compiler": "nvrtc",
        "target": 70,
        "source_sha256": hashlib.sha256(EXAMPLE_CUDA.encode()).hexdigest(),
    }
    ptx = compile_cuda(EXAMPLE_CUDA, (7, 0)).ptx
    same = ask(client, ptx=ptx, gpu="tesla-v100", launch=LAUNCH)
    assert same["compiled"] is None
    for part in ("power", "time", "energy", "features", "registers"):
        assert answer[part] == same[part]
    assert client.get(f"/predictions/{answer['id']}").json() == answer


@needs_nvrtc
def test_every_gpu_gets_its_own_target(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[int, int]] = []

    def counting(source: str, capability: tuple[int, int], **options: Any) -> Any:
        compiled.append(capability)
        return compile_cuda(source, capability, **options)

    monkeypatch.setattr("wattcast.predictor.parts.sources.compile_cuda", counting)
    source = EXAMPLE_CUDA.replace("factor", "by")
    asked = {**body(source), "gpu": None, "gpus": ["v100", "tesla-k20", "v100", "tesla-m60"]}
    answer = ask(client, **asked)
    PredictAnswers.model_validate(answer)
    targets = [one["compiled"]["target"] for one in answer["predictions"]]
    assert targets == [70, 50, 70, 52]
    # The K20 is older than the compiler supports; the others are not.
    raised = [
        "target_raised" in {w["code"] for w in one["warnings"]} for one in answer["predictions"]
    ]
    assert raised == [False, True, False, False]
    assert sorted(compiled) == [(3, 5), (5, 2), (7, 0)]
    ask(client, **asked)
    assert len(compiled) == 3, "known source is not compiled again"


@needs_nvrtc
def test_the_compilers_remarks_are_warnings(client: httpx.Client) -> None:
    source = "\n__global__ void f(float* x) {\n  int unused;\n  x[threadIdx.x] = 1;\n}\n"
    warnings = ask(client, **body(source))["warnings"]
    (remark,) = [w for w in warnings if w["code"] == "compiler_warning"]
    assert (remark["line"], remark["source_line"]) == (None, 3)
    assert "unused" in remark["detail"]


@needs_nvrtc
def test_warnings_tell_the_line_of_the_source(client: httpx.Client) -> None:
    source = (
        "__global__ void f(float* x, const int* n) {\n"
        "  float sum = 0;\n"
        "  for (int i = 0; i < n[threadIdx.x]; ++i)\n"
        "    sum = sum * 3 + x[i];\n"
        "  x[threadIdx.x] = sum;\n"
        "}\n"
    )
    answer = ask(client, **body(source, analysis="symbolic"))
    found = [w for w in answer["warnings"] if w["code"] == "trip_count_assumed"]
    assert found
    assert {w["source_line"] for w in found} <= {3, 4}
    assert all(w["line"] > 4 for w in found)


@needs_nvrtc
@pytest.mark.parametrize("path", ["/predict", "/features", "/analyze"])
def test_compile_errors_name_their_lines(client: httpx.Client, path: str) -> None:
    broken = "__global__ void f(float* x) {\n  x[0] = y;\n  int z = ;\n}\n"
    members = problem(client.post(path, json=body(broken)), 422, "cuda-compile")
    assert [error["line"] for error in members["errors"]] == [2, 3]
    assert '"y"' in members["errors"][0]["message"]
    assert members["line"] == 2


@needs_nvrtc
def test_a_file_with_a_main_is_answered_without_nvcc(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattcast.features.cuda.isolation.find_nvcc", lambda: None)
    whole = (FIXTURES / "with_main.cu").read_text()
    headers = {"own.h": (FIXTURES / "own.h").read_text()}
    given = {**body(whole), "headers": headers, "compiler_options": ["--use_fast_math"]}
    members = problem(client.post("/predict", json=given), 422, "kernel")
    assert len(members["known"]) == 2
    answer = client.post("/predict", json={**given, "kernel": "halve"}).json()
    assert answer["power"]["watts"] > 0
    assert "header_missing" in {warning["code"] for warning in answer["warnings"]}
    # An instance that nothing in the file launches.
    answer = client.post("/predict", json={**given, "kernel": "scale<64, double>"}).json()
    assert answer["kernel"]["demangled"].startswith("void scale<(int)64, double>(")


TILES = stored_cuda("tiles")


@needs_nvrtc
def test_what_the_compiler_ascribes_to_no_line_is_warned_of_without_one(
    client: httpx.Client,
) -> None:
    """NVRTC says line 0 where it made one instruction of several lines."""
    launch = {"grid": [1, 1], "block": [16, 16], "arguments": {"n": 64}}
    answer = client.post("/predict", json={**body(TILES), "launch": launch}).json()
    assert "loop_extrapolated" in {warning["code"] for warning in answer["warnings"]}
    assert all(warning["source_line"] != 0 for warning in answer["warnings"])


@needs_nvrtc
def test_a_source_without_a_kernel_is_told_so(client: httpx.Client) -> None:
    told = problem(client.post("/predict", json=body("int main() { return 0; }\n")), 422, "kernel")
    assert told["detail"].startswith("the source has no __global__ function")
    assert told["known"] == []


@pytest.mark.parametrize(
    ("template", "instance"),
    [
        ("template <int N> __global__ void", "f<256>"),
        ("template <int N, bool B>\n__launch_bounds__(N, max(N / 64, 1))\n__global__ void",
         "f<256, true>"),
        ("template <class T, int N = sizeof(T) * 8> __global__ void", "f<float, 256>"),
        ("template <class T, typename index_t, int N> __global__ void", "f<float, int, 256>"),
        ("struct S { int x; };\nnamespace a { namespace b {\n"
         "template <int M, int N>\nstatic __global__ void", "a::b::f<16, 16>"),
    ],
)  # fmt: skip
def test_templates_without_an_instance_say_what_to_name(
    client: httpx.Client, template: str, instance: str
) -> None:
    text = f"#define max(a, b) (a > b ? a : b)\n{template} f(float *p) {{ p[threadIdx.x] = N; }}"
    text += "}" * template.count("namespace")
    members = problem(client.post("/predict", json=body(text)), 422, "kernel")
    assert members["detail"].endswith(f"'{instance}'")
    for name in (instance, instance.rpartition("::")[2]):
        answer = client.post("/predict", json={**body(text), "kernel": name}).json()
        assert answer["power"]["watts"] > 0
    members = problem(
        client.post("/predict", json={**body(text), "kernel": "g<1>"}), 422, "cuda-compile"
    )
    assert members["detail"].startswith('the source has no such kernel: identifier "g" is undef')


def test_no_compiler_says_how_to_get_one(
    client: httpx.Client, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattcast.features.cuda.isolation.find_nvcc", lambda: None)
    monkeypatch.setattr("wattcast.features.cuda.isolation.find_nvrtc", lambda: None)
    source = EXAMPLE_CUDA + "// nobody compiled this before\n"
    for path in ("/predict", "/features", "/analyze"):
        members = problem(client.post(path, json=body(source)), 501, "compiler-missing")
        assert "pip install 'wattcast[cuda]'" in members["detail"]
    assert ask(client, ptx=vector_add, gpu="v100", launch=LAUNCH)["power"]
    with pytest.raises(CompilerMissingError):
        compile_cuda(source, (7, 0))


@pytest.mark.parametrize("path", ["/predict", "/features", "/analyze"])
def test_ptx_or_cuda_but_not_both(client: httpx.Client, vector_add: str, path: str) -> None:
    for sources in ({}, {"ptx": vector_add, "cuda": EXAMPLE_CUDA}):
        asked = {**sources, "gpu": "v100", "launch": LAUNCH}
        members = problem(client.post(path, json=asked), 422, "validation")
        assert "ptx" in members["detail"]
        assert "cuda" in members["detail"]


def test_limits_of_the_compiler(client: httpx.Client) -> None:
    members = problem(client.post("/predict", json=body("//" + "x" * 2**20)), 413, "too-large")
    assert "at most 1048576" in members["detail"]


@needs_nvrtc
def test_a_compiler_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with running(settings_at(tmp_path, compile_seconds=1e-9)) as client:
        members = problem(client.post("/predict", json=body()), 503, "time-limit")
        assert "compiler" in members["detail"]
        assert "6e-09 s" in members["detail"]


@needs_nvrtc
def test_stored_predictions_keep_the_ptx_and_the_hash_of_the_source(tmp_path: Path) -> None:
    import sqlite3
    import zlib

    with running(settings_at(tmp_path)) as client:
        answer = ask(client, **body())
    with sqlite3.connect(tmp_path / "wattcast.db") as database:
        request, sha256 = database.execute("SELECT request, ptx_sha256 FROM predictions").fetchone()
        (stored,) = database.execute("SELECT * FROM ptx").fetchall()
    database.close()
    asked = json.loads(request)
    assert asked["cuda_sha256"] == answer["compiled"]["source_sha256"]
    assert "cuda" not in asked
    ptx = compile_cuda(EXAMPLE_CUDA, (7, 0)).ptx
    assert hashlib.sha256(ptx.encode()).hexdigest() == sha256
    assert any(
        zlib.decompress(column).decode() == ptx for column in stored if isinstance(column, bytes)
    )


@needs_nvrtc
def test_arguments_by_c_name_position_and_ptx_name_are_one(client: httpx.Client) -> None:
    answers = []
    for name in ("n", "2", "_Z5scalePffi_param_2"):
        launch = {**LAUNCH, "arguments": {name: 1000, "values": {"elements": 5000}}}
        answer = ask(client, "/analyze", **body(launch=launch, analysis="symbolic"))
        assert [a["c_name"] for a in answer["launch"]["arguments"]] == ["values", "factor", "n"]
        assert answer["launch"]["arguments"][2]["given"] == 1000
        assert answer["launch"]["arguments"][0]["given"]["elements"] == 5000
        answers.append({a["name"]: a["value"] for a in answer["activity"]})
    assert answers[0] == answers[1] == answers[2]
    # The first 1,000 threads are 32 warps; without the argument every thread would load.
    assert answers[0]["global_load_requests"] == 32


@needs_nvrtc
def test_c_names_of_a_kernel_in_a_header(client: httpx.Client) -> None:
    asked = {**body('#include "scale.cuh"\n'), "headers": {"scale.cuh": EXAMPLE_CUDA}}
    assert [a["c_name"] for a in ask(client, "/analyze", **asked)["launch"]["arguments"]] == [
        "values",
        "factor",
        "n",
    ]


MATMUL = stored_cuda("matmul_by_names")


@needs_nvrtc
def test_a_size_that_is_missing_is_asked_for_by_its_c_name_before_any_number(
    client: httpx.Client, run: Run, tmp_path: Path
) -> None:
    launch: dict[str, Any] = {"grid": [128, 128], "block": [32, 32]}
    first, *_ = ask(client, **body(MATMUL, launch=launch))["needs"]
    assert (first["argument"], first["position"]) == ("N", 3)
    assert "loop" in first["decides"]
    assert "linearly" in first["effect"]
    (tmp_path / "matmul.cu").write_text(MATMUL)
    where = ["--gpu", "v100", "--grid", "128,128", "--block", "32,32"]
    told, _ = run("predict", str(tmp_path / "matmul.cu"), *where)
    assert told.index("give N (argument 3)") < told.index("power")


@needs_nvrtc
def test_trips_are_given_by_the_line_of_the_loop(client: httpx.Client) -> None:
    launch: dict[str, Any] = {"grid": [128, 128], "block": [32, 32], "arguments": {"N": 4096}}
    times = [
        ask(client, **body(MATMUL, launch=launch, loops={line: trips}))["time"]["seconds"]
        for line, trips in (("5", 64), ("6", 64), ("5", 640))
    ]
    assert times[0] == times[1] < times[2] / 4
    asked = body(MATMUL, launch=launch, loops={"20": 64})
    members = problem(client.post("/predict", json=asked), 422, "launch")
    assert "no loop holds line 20" in members["detail"]


@needs_nvrtc
@pytest.mark.parametrize("path", ["/predict", "/features", "/analyze"])
def test_unknown_arguments_name_the_parameters(client: httpx.Client, path: str) -> None:
    for name in ("m", "3", "-1", "02"):
        asked = body(launch={**LAUNCH, "arguments": {name: 1}})
        members = problem(client.post(path, json=asked), 422, "launch")
        assert members["field"] == "arguments"
        assert members["parameters"] == [
            {
                "position": position,
                "ptx_name": f"_Z5scalePffi_param_{position}",
                "c_name": c_name,
                "type": kind,
            }
            for position, c_name, kind in (
                (0, "values", "u64"),
                (1, "factor", "f32"),
                (2, "n", "u32"),
            )
        ]
        assert "values" in members["detail"]


@needs_nvrtc
def test_ambiguous_names_are_refused(client: httpx.Client) -> None:
    source = (
        "namespace a { __global__ void f(float* x, int count) { x[count] = 1; } }\n"
        "namespace b { __global__ void f(float* x, int size) { x[size] = 2; } }\n"
    )
    both = {"kernel": "a::f", "gpu": "v100"}
    launch = {**LAUNCH, "arguments": {"count": 3}}
    asked = {**body(source, launch=launch), **both}
    members = problem(client.post("/predict", json=asked), 422, "launch")
    assert "ambiguous" in members["detail"]
    assert [p["c_name"] for p in members["parameters"]] == ["x", None]
    agreed = {**LAUNCH, "arguments": {"x": {"elements": 10}, "1": 3}}
    assert ask(client, **{**body(source, launch=agreed), **both})["power"]


def test_ptx_has_no_c_names(client: httpx.Client, vector_add: str) -> None:
    asked = {"ptx": vector_add, "gpu": "v100", "launch": {**LAUNCH, "arguments": {"n": 5}}}
    members = problem(client.post("/predict", json=asked), 422, "launch")
    assert [p["c_name"] for p in members["parameters"]] == [None] * 4
    assert members["parameters"][3]["ptx_name"] == "vector_add_param_3"


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        ({"3": 1.5}, 422, "launch"),
        ({"3": 2**32}, 422, "launch"),
        ({"3": -(2**31) - 1}, 422, "launch"),
        ({"3": {"elements": 5}}, 422, "launch"),
        ({"3": 1, "vector_add_param_3": 1}, 422, "launch"),
        ({"3": "many"}, 422, "validation"),
        ({"3": None}, 422, "validation"),
        ({"3": True}, 422, "validation"),
        ({"0": {"elements": 0}}, 422, "validation"),
        ({"0": {"elements": -5}}, 422, "validation"),
        ({"0": {"values": "gaussian"}}, 422, "validation"),
        ({"0": {"low": 2, "high": 1}}, 422, "validation"),
        ({"0": {"size": 1}}, 422, "validation"),
    ],
)
def test_arguments_that_do_not_fit(
    client: httpx.Client, vector_add: str, arguments: dict[str, Any], status: int, kind: str
) -> None:
    asked = {"ptx": vector_add, "gpu": "v100", "launch": {**LAUNCH, "arguments": arguments}}
    problem(client.post("/predict", json=asked), status, kind)


@pytest.mark.parametrize(
    "arguments",
    [
        {"3": 2**32 - 1},
        {"3": -1},
        {"3": 4.0},
        {"0": {"elements": 100, "values": "index"}, "1": {"values": "zeros"}},
        {"2": {"values": "sorted", "low": -5, "high": 5}, "vector_add_param_3": 7},
    ],
)
def test_arguments_that_fit(
    client: httpx.Client, vector_add: str, arguments: dict[str, Any]
) -> None:
    asked = {"ptx": vector_add, "gpu": "v100", "launch": {**LAUNCH, "arguments": arguments}}
    given = ask(client, "/analyze", **asked)["launch"]["arguments"]
    assert sum(a["given"] is not None for a in given) == len(arguments)


@needs_nvrtc
def test_a_file_as_it_lies_is_answered_by_two_commands(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattcast.features.cuda.isolation.find_nvcc", lambda: None)
    for name in ("with_main.cu", "own.h"):
        (tmp_path / name).write_text((FIXTURES / name).read_text())
    whole, launch = str(tmp_path / "with_main.cu"), ("--gpu", "v100", "--grid", "64")
    asked = ("predict", whole, *launch, "--block", "128")
    _, told = run(*asked, status=2)
    assert "halve" in told
    options = ("-D", "UNUSED=1", "-I", str(tmp_path), "--use_fast_math", "-std=c++17")
    answer, _ = run(*asked, "--kernel", "halve", *options, "--json")
    assert json.loads(answer)["compiled"]["compiler"] == "nvrtc"
    _, told = run(*asked, "--kernel", "halve", "-X", "-o=x", status=2)
    assert "'-o=x' is not taken" in told


@needs_nvrtc
def test_the_new_side_of_a_diff_has_a_launch_of_its_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "scale.cu"
    file.write_text(EXAMPLE_CUDA)
    common = ("diff", str(file), str(file), "--gpu", "v100", "--json", "--arg", "n=1048576")
    same, _ = run(*common, "--grid", "4096", "--block", "256")
    other, _ = run(*common, "--grid", "4096", "--block", "256", "--new-grid", "1")
    (row,) = json.loads(same)["comparisons"]
    assert row["change"]["energy_percent"] == 0
    (row,) = json.loads(other)["comparisons"]
    assert row["change"]["energy_percent"] < -10
