"""Every bad request is answered by a problem that names what and where; the service goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.conftest import settings_at
from tests.app.live import running
from wattcast.app.problems import TYPES
from wattcast.app.settings import Settings
from wattcast.predictor.messages import Message

JSON = {"content-type": "application/json"}


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The members of a problem, after checking its form (RFC 9457) and that we still live."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members: dict[str, Any] = answer.json()
    assert members["type"] == f"/problems/{kind}"
    assert members["status"] == status
    assert members["title"] == TYPES[kind].title
    assert members["detail"]
    assert members["request_id"] == answer.headers["x-request-id"]
    return members


def json_of(answer: httpx.Response, kind: type[Message] | None = None) -> dict[str, Any]:
    """What was answered without a problem, after checking that it is a message of its ``kind``."""
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    if kind is not None:
        kind.model_validate(found)
    return found


def body(ptx: str, /, **changes: Any) -> dict[str, Any]:
    return {
        "ptx": ptx,
        "gpu": "tesla-k20",
        "launch": {"grid": [64], "block": [256]},
        **changes,
    }


@pytest.fixture(autouse=True)
def _still_alive(client: httpx.Client) -> Iterator[None]:
    yield
    assert client.get("/healthz").json()["status"] == "ok"


@pytest.fixture(params=["/predict", "/features"])
def path(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.mark.parametrize(
    ("content", "headers", "status", "kind"),
    [
        (b"", JSON, 400, "json"),
        (b"", {}, 400, "json"),
        (b"\x00\x01\xff\xfe" * 100, JSON, 400, "json"),
        (b"\x7fELF\x02\x01", {"content-type": "application/octet-stream"}, 415, "media-type"),
        (b"<!doctype html><p>hello", JSON, 400, "json"),
        (b"<!doctype html><p>hello", {"content-type": "text/html"}, 415, "media-type"),
        (b'{"ptx": "', JSON, 400, "json"),
        (b'{"ptx": "\\ud800"}', JSON, 400, "json"),
        (b"[" * 1_000_000, JSON, 400, "json"),
        (b'{"a":' * 200_000, JSON, 400, "json"),
        (b'{"ptx"=1}', {}, 415, "media-type"),
        (b"null", JSON, 422, "validation"),
        (b"[]", JSON, 422, "validation"),
        (b"{}", JSON, 422, "validation"),
        (b'{"launch": {"grid": 1' + b"0" * 5000 + b"}}", JSON, 400, "json"),
    ],
)
def test_bodies_that_are_no_request(
    client: httpx.Client,
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
    kind: str,
) -> None:
    problem(client.post(path, content=content, headers=headers), status, kind)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"launch": None}, "launch"),
        ({"launch": {"block": [1]}}, "launch.grid"),
        ({"launch": {"grid": [1, 1, 1, 1], "block": 1}}, "launch.grid"),
        ({"launch": {"grid": [], "block": 1}}, "launch.grid"),
        ({"launch": {"grid": 1.5, "block": 1}}, "launch.grid"),
        ({"launch": {"grid": "64", "block": 1}}, "launch.grid"),
        ({"launch": {"grid": True, "block": 1}}, "launch.grid"),
        ({"loops": {"default": -1}}, "loops.default"),
        ({"loops": {"default": 1e300}}, "loops.default"),
        ({"loops": {"default": "many"}}, "loops.default"),
        ({"loops": 3}, "loops"),
        ({"registers_per_thread": 0}, "registers_per_thread"),
        ({"registers_per_thread": 256}, "registers_per_thread"),
        ({"static_shared_bytes": -1}, "static_shared_bytes"),
        ({"kernel": ""}, "kernel"),
        ({"ptx": ""}, "ptx"),
        ({"ptx": 7}, "ptx"),
        ({"gpu": 7}, "gpu"),
        ({"gpu": "x" * 100}, "gpu"),
        ({"grid": 3}, "grid"),
    ],
)
def test_fields_that_do_not_fit_are_named(
    client: httpx.Client, vector_add: str, changes: dict[str, Any], where: str
) -> None:
    members = problem(client.post("/predict", json=body(vector_add, **changes)), 422, "validation")
    assert any(error["path"].startswith(where) for error in members["errors"]), members
    assert where in members["detail"]


@pytest.mark.parametrize(
    "changes", [{"gpus": ["tesla-k20"]}, {"gpu": None}, {"model": "magic"}, {"explain": "why"}]
)
def test_choices_of_a_prediction(
    client: httpx.Client, vector_add: str, changes: dict[str, Any]
) -> None:
    problem(client.post("/predict", json=body(vector_add, **changes)), 422, "validation")


@pytest.mark.parametrize(
    ("ptx", "line"),
    [
        ("<!doctype html>\n<p>hello</p>\n", 1),
        ("\n\n}\n", 3),
        ("{" * 50_000 + "}" * 50_000, 1),
    ],
)
def test_text_that_is_no_ptx_is_located(client: httpx.Client, ptx: str, line: int) -> None:
    members = problem(client.post("/predict", json=body(ptx)), 422, "ptx-syntax")
    assert members["line"] >= line
    assert members["column"] >= 1
    assert f"line {members['line']}, column {members['column']}" in members["detail"]


def test_kernels_that_cannot_be_told(client: httpx.Client, vector_add: str, looping: str) -> None:
    header = ".version 7.0\n.target sm_70\n.address_size 64\n"
    problem(client.post("/predict", json=body(header)), 422, "kernel")
    both = vector_add + looping.split(".address_size 64")[1]
    members = problem(client.post("/predict", json=body(both)), 422, "kernel")
    assert len(members["known"]) == 2
    members = problem(client.post("/predict", json=body(vector_add, kernel="nope")), 422, "kernel")
    assert members["known"] == ["vector_add"]
    assert "nope" in members["detail"]


def test_an_unknown_gpu_lists_the_known(client: httpx.Client, vector_add: str) -> None:
    members = problem(client.post("/predict", json=body(vector_add, gpu="rtx-9999")), 422, "gpu")
    assert "tesla-v100" in members["known"]
    members = problem(client.get("/gpus/a100-40gb"), 404, "unknown-gpu")
    assert "tesla-v100" in members["known"]
    assert members["near"] == ["a100-pcie-40gb", "a100-sxm4-40gb"]
    assert "a100-sxm4-40gb" in members["detail"]


def test_no_path_of_a_request_touches_the_file_system(
    client: httpx.Client, vector_add: str
) -> None:
    for name in ("../../secret", "/etc/passwd", "..", "compute_capability", "a\0b"):
        problem(client.post("/predict", json=body(vector_add, gpu=name)), 422, "gpu")


@pytest.mark.parametrize(
    ("launch", "field"),
    [
        ({"grid": [64], "block": [1025]}, "block"),
        ({"grid": [64], "block": [0]}, "block"),
        ({"grid": [0], "block": [64]}, "grid"),
        ({"grid": [2**31], "block": [64]}, "grid"),
        ({"grid": [64], "block": [64], "dynamic_shared_bytes": 49_153}, "dynamic_shared_bytes"),
        ({"grid": [64], "block": [64], "dynamic_shared_bytes": -1}, "dynamic_shared_bytes"),
    ],
)
def test_launches_the_gpu_refuses(
    client: httpx.Client, vector_add: str, launch: dict[str, Any], field: str
) -> None:
    members = problem(client.post("/predict", json=body(vector_add, launch=launch)), 422, "launch")
    assert members["field"].startswith(field) or "shared" in members["field"]


def test_a_block_with_too_many_registers_is_refused(client: httpx.Client, vector_add: str) -> None:
    asked = body(
        vector_add, launch={"grid": 1, "block": 1024}, registers_per_thread=128, gpu="tesla-v100"
    )
    members = problem(client.post("/predict", json=asked), 422, "launch")
    assert members["field"] == "registers_per_thread"


def test_a_schema_without_this_gpu(client: httpx.Client, vector_add: str) -> None:
    for schema, gpu in (("nope", "tesla-k20"), ("alavani2023", "gtx-1050")):
        asked = body(vector_add, gpu=gpu, schema=schema)
        members = problem(client.post("/features", json=asked), 422, "schema")
        assert members["known"]
    problem(client.get("/schemas/nope"), 404, "unknown-schema")


@pytest.mark.parametrize("chunked", [False, True])
def test_twenty_megabytes_of_ptx_are_too_large(
    client: httpx.Client, vector_add: str, chunked: bool
) -> None:
    content = json.dumps(body("//" + "x" * 20_000_000 + "\n" + vector_add)).encode()
    pieces = (content[at : at + 65_536] for at in range(0, len(content), 65_536))
    answer = client.post("/predict", content=pieces if chunked else content, headers=JSON)
    assert "WATTCAST_MAX_BODY_BYTES" in problem(answer, 413, "too-large")["detail"]


def test_a_body_that_lies_about_its_length_is_cut(client: httpx.Client) -> None:
    url = client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=30) as raw:
        raw.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 999999999999\r\n\r\n{"
        )
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]


def test_paths_and_methods_that_do_not_exist(client: httpx.Client) -> None:
    problem(client.get("/nope"), 404, "not-found")
    problem(client.get("/predict/"), 404, "not-found")
    answer = client.get("/predict")
    problem(answer, 405, "method")
    assert answer.headers["allow"] == "POST"
    problem(client.post("/nope", json={}), 404, "not-found")
    problem(client.get("/problems/nope"), 404, "not-found")


def test_explanations_of_nothing(client: httpx.Client) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    problem(client.get("/explain"), 422, "validation")
    problem(client.get("/explain", params={"prediction_id": "x"}), 422, "validation")
    problem(client.get("/explain", params={"prediction_id": unknown}), 404, "unknown-prediction")
    problem(client.get(f"/predictions/{unknown}"), 404, "unknown-prediction")
    for name, value in (("method", "magic"), ("target", "colour"), ("format", "exe")):
        asked = {"prediction_id": unknown, name: value}
        members = problem(client.get("/explain", params=asked), 422, "validation")
        assert members["errors"][0]["path"] == name


def test_types_of_problems_are_described(client: httpx.Client) -> None:
    listed = client.get("/problems").json()
    assert {kind["type"] for kind in listed} == {f"/problems/{slug}" for slug in TYPES}
    for kind in listed:
        assert client.get(kind["type"]).json() == kind


def test_a_request_id_is_kept_if_it_is_sane(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == (
        "abc-1"
    )
    made = client.get("/healthz", headers={"x-request-id": "a b<script>"}).headers["x-request-id"]
    assert len(made) == 32


def test_faults_of_ours_are_hidden(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr("wattcast.predictor.catalog.schema_summaries", broken)
    settings: Settings = settings_at(tmp_path, log_level="error")
    with running(settings) as client:
        answer = client.get("/schemas")
        problem(answer, 500, "internal")
        assert "secret" not in answer.text
        assert client.get("/healthz").status_code == 200
