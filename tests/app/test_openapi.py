"""The OpenAPI document describes what the service really does."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.openapi.models import OpenAPI
from pydantic import BaseModel

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_problems import json_of
from tests.needs import needs_nvrtc
from wattcast.app import problems
from wattcast.features.cuda.isolation import find_nvrtc
from wattcast.predictor import messages
from wattcast.predictor.messages.analyze import (
    EXAMPLE,
    AnalyzeAnswer,
    AnalyzeRequest,
    FeaturesRequest,
)
from wattcast.predictor.messages.compare import CompareRequest, JudgeRequest
from wattcast.predictor.messages.cost import CostRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepRequest

NO_JSON = {
    "/metrics": "text/plain",
    "/measurements/{batch_id}/rows": "text/csv",
    "/jobs/{job_id}/events": "text/event-stream",
}


def described(kind: type[messages.Described]) -> Iterator[type[messages.Described]]:
    """All classes whose fields their docstrings describe."""
    for each in kind.__subclasses__():
        yield each
        yield from described(each)


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    return json_of(client.get("/openapi.json"))


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [r for value in node.values() for r in references(value)]
    if isinstance(node, list):
        return [r for value in node for r in references(value)]
    return []


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_document_is_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    OpenAPI.model_validate(document)
    names = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in names


def test_every_route_documents_its_problems(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        assert operation["summary"], path
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (path, status)
        if method == "post":
            assert {"400", "413", "415", "422", "429", "500"} <= set(operation["responses"])
        for status in {"200", "201", "202"} & set(operation["responses"]):
            media = NO_JSON.get(path, "application/json")
            assert operation["responses"][status]["content"][media]["schema"], path


ASKED: dict[str, type[BaseModel]] = {
    "/predict": PredictRequest,
    "/features": FeaturesRequest,
    "/analyze": AnalyzeRequest,
    "/compare": CompareRequest,
    "/judge": JudgeRequest,
    "/sweep": SweepRequest,
    "/cost": CostRequest,
}


@pytest.mark.parametrize("path", ASKED)
def test_examples_fit_their_schema_and_are_answered(
    client: httpx.Client, document: dict[str, Any], path: str
) -> None:
    media = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = media["schema"]["$ref"].rpartition("/")[2]
    examples = document["components"]["schemas"][name]["examples"]
    assert examples
    for example in examples:
        ASKED[path].model_validate(example)
        answer = client.post(path, json=example)
        compiles = "'cuda'" not in str(example) or find_nvrtc() is not None
        assert answer.status_code == (200 if compiles else 501), answer.text


def test_the_analysis_shown_is_the_one_answered(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    (shown,) = document["components"]["schemas"]["AnalyzeAnswer"]["examples"]
    AnalyzeAnswer.model_validate(shown)  # the document leaves nulls out
    shown = EXAMPLE
    request = document["components"]["schemas"]["AnalyzeRequest"]["examples"][0]
    answer = client.post("/analyze", json=request).json()
    assert list(answer) == list(shown)
    for name, value in shown.items():
        if name in ("accesses", "activity", "lines"):
            assert value[0] in answer[name]
        elif name != "warnings":
            assert answer[name] == value, name


def test_the_problem_example_fits(document: dict[str, Any]) -> None:
    problem = document["components"]["schemas"]["Problem"]
    assert set(problem["required"]) <= set(problem["example"])
    assert set(problem["example"]) <= set(problem["properties"])


def test_the_service_answers_while_its_description_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes most of a second."""
    begun, healthy = threading.Event(), threading.Event()

    def waiting(**_: Any) -> dict[str, Any]:
        begun.set()
        assert healthy.wait(30)
        return {"paths": {}}

    monkeypatch.setattr(problems, "get_openapi", waiting)
    with running(settings_at(tmp_path)) as client, ThreadPoolExecutor() as threads:
        asked = threads.submit(client.get, "/openapi.json")
        assert begun.wait(30)
        assert client.get("/healthz", timeout=20).status_code == 200
        healthy.set()
        assert asked.result().status_code == 200


@pytest.mark.parametrize(
    "name", sorted({each.__module__ for each in described(messages.Described)})
)
def test_fields_are_described_by_the_docstrings_below_them(name: str) -> None:
    """They are found by a pattern: it finds what Python's own parser does."""
    tree = ast.parse(Path(str(sys.modules[name].__file__)).read_bytes())
    told = {
        (kind.name, field.target.id): " ".join(text.value.value.split())
        for kind in tree.body
        if isinstance(kind, ast.ClassDef)
        for field, text in pairwise(kind.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
    assert messages._descriptions(name) == told


# --- docs/api.md: every call is there, and its commands do what it says

ROOT = Path(__file__).parents[2]

TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

COMMANDS = "\n".join(
    line.strip() for line in TEXT.splitlines() if line.startswith("    ") and "wattcast" not in line
)


def test_every_call_has_a_command(client: httpx.Client) -> None:
    written = [line for line in COMMANDS.splitlines() if "curl" in line]
    for path in client.get("/openapi.json").json()["paths"]:
        wanted = re.sub(r"\{prediction_id\}", "$id", path)
        wanted = wanted.replace("/models/{gpu}/{target}/{name}/{version}", "$card")
        pattern = re.sub(r"\\\{\w+\\\}", r"[$\\w-]+", re.escape(wanted))
        assert any(re.search(rf'\$U{pattern}(?=[\s"?]|$)', line) for line in written), path


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@needs_nvrtc
@pytest.mark.slow
def test_the_commands_run(client: httpx.Client) -> None:
    script = COMMANDS.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    done = subprocess.run(
        ["bash", "-euc", script.replace("curl -s", "curl -sS --fail")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert '"power":{"watts":' in done.stdout
    assert '"how":"executed"' in done.stdout
