"""Brief answers over HTTP (``detail=brief``) and SARIF of hotspots and advice."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run
from tests.app.test_hotspots import predicted, text_of
from tests.app.test_language_model import LLAMA
from wattcast.predictor.reports import brief as briefs

ROOT = Path(__file__).parents[2]
LAUNCH = {"grid": [4096], "block": [256]}
GEMM = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096}
COUNTERS = {"DCGM_FI_PROF_SM_ACTIVE": 0.95, "DCGM_FI_PROF_DRAM_ACTIVE": 0.62,
            "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.3, "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 0}  # fmt: skip
FORMS = tomllib.loads(Path(briefs.__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def asked(ptx: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """A path and a body by the class of the answer."""
    one = {"ptx": ptx, "gpu": "v100", "launch": LAUNCH}
    sides = {"gpu": "v100", "launch": LAUNCH}
    vary = {"m": [64 * n for n in range(1, 40)]}
    space = {
        "tune_params": {"block_size_x": [32 * n for n in range(1, 33)]},
        "problem_size": [4096],
    }
    work = [{"name": f"{n}" * 60, "operator": GEMM} for n in range(8)]
    return {
        "AnalyzeAnswer": ("/analyze", one),
        "FeaturesAnswer": ("/features", {**one, "schema": "activity1"}),
        "BatchAnswer": ("/predict/batch", {"ptx": ptx, "gpu": "v100", "launches": [LAUNCH] * 60}),
        "TuningsAnswer": ("/tunings", {"ptx": ptx, "gpu": "v100", "predictions": 1, **space}),
        "FleetAnswer": ("/fleet", {"jobs": work, "boards": {"h200": 1}, "limits": 1}),
        "LanguageModelAnswer": (
            "/language-models",
            {"config": LLAMA, "gpu": "h200", "batches": [1, 2, 3]},
        ),
        "PredictAnswer": ("/predict", one),
        "PredictAnswers": ("/predict", {"ptx": ptx, "gpus": ["v100", "a100"], "launch": LAUNCH}),
        "CompareAnswer": ("/compare", {"old": {"ptx": ptx}, "new": {"ptx": ptx}, **sides}),
        "JudgeAnswer": ("/judge", {"reference": {"ptx": ptx}, "candidate": {"ptx": ptx}, **sides}),
        "SweepAnswer": ("/sweep", {**one, "blocks": [32 * n for n in range(1, 33)]}),
        "OperatorSweepAnswer": ("/sweep", {"operator": GEMM, "gpu": "h200", "vary": vary}),
        "DvfsAnswer": ("/dvfs", {**one, "clocks": "grid"}),
        "CountedAnswer": ("/dvfs", {"gpu": "v100", "counters": {"values": COUNTERS}}),
        "CostAnswer": (
            "/cost",
            {"ptx": ptx, "gpu": "v100", "kernels": [{"launch": LAUNCH, "launches": 10}] * 60},
        ),
    }


@pytest.mark.parametrize("name", sorted(asked("")))
def test_brief_over_http(client: httpx.Client, vector_add: str, name: str) -> None:
    ptx = vector_add.replace("vector_add", "vector_add" * 100)
    path, body = asked(ptx)[name]
    answer = client.post(path, params={"detail": "brief"}, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.content) <= 1024
    told = answer.json()
    assert told.keys() <= {*FORMS[name], "left_out"}
    assert len(told) >= 2
    full = client.post(path, params={"detail": "full"}, json=body)
    assert len(full.content) > len(answer.content)


def test_a_brief_prediction_leads_to_its_lines_and_advice(
    client: httpx.Client, vector_add: str
) -> None:
    body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH}
    kept = client.post("/predict?detail=brief", json=body).json()
    assert kept["time_seconds"] == pytest.approx(kept["energy_joules"] / kept["power_watts"], 1e-3)
    again = client.get(f"/predictions/{kept['id']}?detail=brief")
    assert again.json() == kept
    for path, name in {
        f"/predictions/{kept['id']}/hotspots?": "HotspotsAnswer",
        f"/predictions/{kept['id']}/advice?": "AdviceAnswer",
        f"/explain?prediction_id={kept['id']}&": "ShapAnswer",
        f"/explain?prediction_id={kept['id']}&method=lime&": "LimeAnswer",
        f"/explain?prediction_id={kept['id']}&target=time&": "TimeShapAnswer",
        f"/explain?prediction_id={kept['id']}&target=time&method=lime&": "TimeLimeAnswer",
        "/gpus?": "GpuSummary",
        "/gpus/v100?": "GpuDetails",
        "/models?": "ModelSummary",
    }.items():
        answer = client.get(f"{path}detail=brief")
        assert answer.status_code == 200, answer.text
        assert (answer.json().keys() - {"id"}) <= {*FORMS[name], "left_out"}
        assert answer.json().keys() - {"id", "warnings", "left_out"}
        assert len(answer.content) <= 1024


def test_brief_on_the_command_line(run: Run, tmp_path: Path, vector_add: str) -> None:
    code, space, jobs = (tmp_path / name for name in ("code/k.ptx", "space.json", "jobs.toml"))
    code.parent.mkdir()
    code.write_text(vector_add.replace("vector_add", "vector_add" * 100))
    sizes = {"block_size_x": [32 * n for n in range(1, 13)]}
    space.write_text(json.dumps({"tune_params": sizes, "problem_size": [4096]}))
    jobs.write_text("[[jobs]]\nname = 'p'\noperator = {name = 'gemm', m = 64, n = 64, k = 64}\n")
    on, launch = ("--gpu", "v100"), ("--grid", "4096", "--block", "256")
    shape = ("--m", "64", "--n", "64", "--k", "64")
    trace = ROOT / "app" / "demo" / "training_step.pt.trace.json.gz"
    for name, words in {
        "AnalyzeAnswer": ("analyze", code, *on, *launch),
        "FeaturesAnswer": ("features", code, *on, *launch),
        "ShapAnswer": ("explain", code, *on, *launch),
        "RankAnswer": ("rank", space, code, *on),
        "Standing": ("tune", space, code, *on, "--workers", "1"),
        "BulkAnswer": ("bulk", code.parent, *on, *launch),
        "FleetAnswer": ("fleet", jobs, "--boards", "h200:1"),
        "PredictAnswer": ("operator", "gemm", *shape, "--gpu", "h200"),
        "ApplicationAnswer": ("app", trace),
        "GpuDetails": ("gpus", "show", "v100"),
    }.items():
        out, _ = run(*map(str, words), "--brief")
        assert len(out.encode()) <= 1025
        assert out.count("\n") == 1
        told = json.loads(out)
        assert told.keys() <= {*FORMS[name], "left_out"} - {"id"}
        assert len(told) >= 3, name


@pytest.mark.parametrize("name", ["GpuSummary", "ModelSummary"])
def test_lists_are_brief_with_and_without_a_subcommand(run: Run, name: str) -> None:
    command = {"GpuSummary": "gpus", "ModelSummary": "models"}[name]
    out, _ = run(command, "--brief")
    assert len(out.encode()) <= 1025
    assert json.loads(out).keys() <= {*FORMS[name], "left_out"}
    assert run(command, "list", "--brief")[0] == out
    assert run(command, "list", "--json")[0] == run(command, "--json")[0]


@pytest.mark.parametrize("detail", ["", "short", "brief\x00", "BRIEF", "b" * 5000])
def test_an_unknown_detail_is_refused(client: httpx.Client, vector_add: str, detail: str) -> None:
    body = {"ptx": vector_add, "gpu": "v100", "launch": LAUNCH}
    kept = client.post("/predict", json=body).json()["id"]
    posted = client.post("/predict", params={"detail": detail}, json=body)
    got = client.get(f"/predictions/{kept}/advice", params={"detail": detail})
    for answer in (posted, got):
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] == "detail"


def test_the_service_describes_it(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/predict", "/judge", "/dvfs", "/features", "/analyze", "/fleet", "/tunings"):
        assert [each["name"] for each in paths[path]["post"]["parameters"]] == ["detail"]
    assert "detail" not in {each["name"] for each in paths["/retrain"]["post"]["parameters"]}


def test_its_names_are_listed() -> None:
    listed = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Brief answers")[2]
    for name, form in FORMS.items():
        line = next(each for each in listed.splitlines() if f"`{name}`" in each)
        for member, of in form.items():
            rows = of if isinstance(of, dict) else {}
            for each in (member, *rows.keys() - {"of", "each"}):
                assert f"`{each}`" in line, (name, each)


# --- SARIF ----------------------------------------------------------------------------------------


def checked(text: str | bytes, uri: str) -> list[dict[str, Any]]:
    """Its results, by what SARIF 2.1.0 and code scanning ask for."""
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    assert "sarif-schema-2.1.0.json" in log["$schema"]
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "wattcast"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        assert "](" not in result["message"]["text"]
        assert result["message"]["text"].isprintable()
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == uri
        assert place["physicalLocation"]["region"]["startLine"] >= 1
    found: list[dict[str, Any]] = run["results"]
    return found


@pytest.mark.parametrize("what", ["hotspots", "advice"])
def test_sarif_over_http_names_lines_of_the_file(client: httpx.Client, what: str) -> None:
    ptx = text_of("transpose")
    kept = predicted(client, ptx=ptx, kernel="transpose_direct", launch={"grid": [64, 64],
                     "block": [32, 8], "arguments": {"2": 2048, "3": 2048}})  # fmt: skip
    of = {"sarif": "src/a b.ptx"}
    answer = client.get(f"/predictions/{kept['id']}/{what}", params=of)
    assert answer.headers["content-type"] == "application/sarif+json"
    results = checked(answer.content, "src/a%20b.ptx")
    assert results
    lines = ptx.splitlines()
    for result in results:
        line = lines[result["locations"][0]["physicalLocation"]["region"]["startLine"] - 1]
        if what == "hotspots":
            assert f'"{" ".join(line.split())}"' in " ".join(result["message"]["text"].split())
        assert line.strip()


@pytest.mark.parametrize("name", ["", "a" * 1025])
def test_a_name_out_of_bounds_is_refused(client: httpx.Client, name: str) -> None:
    kept = predicted(client, ptx=text_of("transpose"), kernel="transpose_direct")
    answer = client.get(f"/predictions/{kept['id']}/hotspots", params={"sarif": name})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "name", ["\x1b]0;x\x07.cu", '"><script>.ptx', "../../etc/passwd", "é\u202e"]
)
def test_hostile_names_are_percent_encoded(client: httpx.Client, name: str) -> None:
    kept = predicted(client, ptx=text_of("transpose"), kernel="transpose_direct")
    answer = client.get(f"/predictions/{kept['id']}/advice", params={"sarif": name})
    assert answer.status_code == 200
    told = json.loads(answer.content)["runs"][0]["results"]
    for result in told:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri.isascii()
        assert not set(uri) & set('\x1b"<> ')


@pytest.mark.parametrize("command", ["hotspots", "advise"])
def test_sarif_on_the_command_line(run: Run, tmp_path: Path, vector_add: str, command: str) -> None:
    link = "add.f32 \t%f3, %f1, %f2; // [see](http://x) \x07"
    assert "add.f32" in vector_add
    lines = [link if "add.f32" in each else each for each in vector_add.splitlines()]
    (tmp_path / "k.ptx").write_text("\n".join(lines), encoding="utf-8")
    words = "--gpu", "v100", "--grid", "4096", "--block", "256", "--sarif"
    out, _ = run(command, str(tmp_path / "k.ptx"), *words)
    checked(out, f"file://{tmp_path / 'k.ptx'}")


# --- what people see ------------------------------------------------------------------------------


def test_the_argument_that_narrows_most_is_told_first_and_by_how_much(client: httpx.Client) -> None:
    ptx, launch = text_of("nbody"), {"grid": [64], "block": [256]}
    unknown = predicted(client, ptx=ptx, gpu="a100", launch=launch)
    known = predicted(client, ptx=ptx, gpu="a100", launch={**launch, "arguments": {"2": 1 << 14}})
    assert known["needs"] == []
    wide, narrow = (each["time"]["high"] / each["time"]["low"] for each in (unknown, known))
    told = re.search(r"interval gets about ([\d,]+) times", unknown["needs"][0]["effect"])
    assert told is not None
    assert float(told[1].replace(",", "")) == pytest.approx(wide / narrow, rel=0.5)
    guard = predicted(client, ptx=text_of("transpose"), kernel="transpose_direct")
    assert guard["needs"]
    assert not any("narrower" in each["effect"] for each in guard["needs"])


def test_lines_of_any_width_are_cut_for_people(run: Run, tmp_path: Path, vector_add: str) -> None:
    wide = f"add.f32 \t%f3, %f1, %f2; // {'w' * 400}"
    lines = [wide if "add.f32" in each else each for each in vector_add.splitlines()]
    (tmp_path / "k.ptx").write_text("\n".join(lines), encoding="utf-8")
    out, _ = run("hotspots", str(tmp_path / "k.ptx"), "--gpu", "v100", "--grid", "4096",
                 "--block", "256")  # fmt: skip
    assert "www..." in out
    assert max(map(len, out.splitlines())) < 200
