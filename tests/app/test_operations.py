"""What operators rely on: metrics, readiness, limits of time and of requests at once."""

from __future__ import annotations

import io
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_registry_artifacts import PLACE, made
from wattcast.app import logs, metrics
from wattcast.app.api import access, guard
from wattcast.app.services.models.artifacts import RegistryArtifacts, name_of
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.registry import NewVersion, RegistryStore
from wattcast.features.cuda.isolation import in_force
from wattcast.models.cards import CARD_NAME
from wattcast.predictor.parts.power_models import PowerModels


def samples(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values, in the order of the labels' names."""
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_and_predictions_are_counted(client: httpx.Client, vector_add: str) -> None:
    before = samples(client)
    body = {"ptx": vector_add, "gpu": "v100", "launch": {"grid": [64], "block": [128]}}
    answer = client.post("/predict", json=body).json()
    client.get("/gpus/tesla-v100")
    client.get("/gpus/no-such-gpu")
    client.get("/no/such/path")
    after = samples(client)

    def grown(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    basis = answer["power"]["basis"]
    assert grown("wattcast_predictions_total", basis, "tesla-v100") == 1
    assert grown("wattcast_requests_total", "POST", "/predict", "200") == 1
    assert grown("wattcast_request_seconds_count", "POST", "/predict") == 1
    assert grown("wattcast_requests_total", "GET", "/gpus/{gpu}", "200") == 1
    assert grown("wattcast_requests_total", "GET", "/gpus/{gpu}", "404") == 1
    assert grown("wattcast_requests_total", "GET", "none", "404") == 1
    assert after[("process_resident_memory_bytes",)] > 0
    for queue in ("analyses", "uploads", "predictions"):
        assert after[(f"wattcast_waiting_{queue}",)] >= 0


def test_paths_and_methods_of_callers_make_no_time_series(client: httpx.Client) -> None:
    def ask(numbers: range) -> int:
        for n in numbers:
            client.get(f"/unheard/of/{n}")
            client.get(f"/gpus/gpu-{n}")
            client.request(f"VERB{n}", "/gpus")
        return len(samples(client))

    ask(range(1))  # one series each for other methods, for what is no route, and for the metrics
    assert ask(range(1)) == ask(range(1, 20))


def test_a_watched_value_is_looked_up_when_asked(client: httpx.Client) -> None:
    metrics.watch("test_watched", "A value of this test.", lambda: 3)
    assert samples(client)[("wattcast_test_watched",)] == 3
    metrics.watch("test_watched", "A value of this test.", lambda: 4)
    assert samples(client)[("wattcast_test_watched",)] == 4


def test_readiness_tells_what_was_checked(client: httpx.Client) -> None:
    answer = client.get("/readyz").json()
    checked = ("database", "migrations", "artifacts", "promoted", "analyses", "uploads")
    compilers = answer["checks"].pop("compilers")
    assert compilers.startswith("namespaces" if in_force() else "none")
    assert answer["checks"] == dict.fromkeys(checked, "ok")


def test_a_saturated_service_is_not_ready(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: object) -> dict[str, Any]:
        entered.set()
        assert leave.wait(30)
        return {}

    monkeypatch.setattr("wattcast.predictor.analyze.analyze", slow)
    body = {"ptx": vector_add, "gpu": "v100", "launch": {"grid": [64], "block": [128]}}
    settings = settings_at(tmp_path, analyses_at_once=1, waiting_analyses=0)
    with running(settings) as client, ThreadPoolExecutor() as pool:
        assert client.get("/readyz").status_code == 200
        waiting = pool.submit(client.post, "/analyze", json=body)
        assert entered.wait(20)
        answer = client.get("/readyz")
        leave.set()
        waiting.result()
        assert answer.status_code == 503
        assert "saturated" in answer.json()["detail"]
        assert client.get("/readyz").status_code == 200


@contextmanager
def flipped(path: Path) -> Iterator[None]:
    """One bit of a file is another."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        yield
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("of", ["model", "card"])
def test_a_promoted_model_that_does_not_load_is_told(
    of: str, tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattcast.app.services.models.champions.RETRY_SECONDS", 0.1)
    settings = settings_at(tmp_path / "home", job_workers=0)
    card, sha256 = made(tmp_path / "work")
    artifacts = RegistryArtifacts(settings.home / "registry")
    artifacts.adopt(tmp_path / "work", card)
    engine = open_database(settings.sqlalchemy_url)
    new = NewVersion(name_of(card), "", "retrained", sha256)
    RegistryStore(engine).promote_by_hand(PLACE, new, "tests", "")
    engine.dispose()
    body = {"ptx": vector_add, "gpu": card.gpu, "launch": {"grid": [64], "block": [128]}}

    def answered(client: httpx.Client, **more: object) -> tuple[int, list[str]]:
        answer = client.post("/predict", json={**body, **more}).json()
        codes = [w["code"] for w in answer["warnings"] if w["code"] == "promoted_model_missing"]
        return answer["model"]["version"], codes

    folder = settings.home / "registry" / card.folder
    file = folder / (CARD_NAME if of == "card" else "model.onnx")
    with flipped(file), running(settings) as client:
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["type"] == "/problems/not-ready"
        assert "promoted catboost model of power for tesla-k20" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text
        assert answered(client) == (1, ["promoted_model_missing"])
        assert answered(client, model="xgboost") == (1, [])
        assert answered(client, gpu="tesla-v100") == (1, [])
        swept = client.post("/sweep", json={**body, "model": "auto", "blocks": [[64]]}).json()
        assert "promoted_model_missing" in [w["code"] for w in swept["warnings"]]
    with running(settings) as client:
        assert client.get("/readyz").status_code == 200
        assert answered(client) == (card.version, [])


def test_a_promoted_model_that_is_put_back_serves_again(
    tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattcast.app.services.models.champions.RETRY_SECONDS", 0.1)
    settings = settings_at(tmp_path / "home", job_workers=0)
    card, sha256 = made(tmp_path / "work")
    engine = open_database(settings.sqlalchemy_url)
    new = NewVersion(name_of(card), "", "retrained", sha256)
    RegistryStore(engine).promote_by_hand(PLACE, new, "tests", "")
    engine.dispose()
    with running(settings) as client:
        assert client.get("/readyz").status_code == 503
        RegistryArtifacts(settings.home / "registry").adopt(tmp_path / "work", card)
        until = time.monotonic() + 30
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        body = {"ptx": vector_add, "gpu": card.gpu, "launch": {"grid": [64], "block": [128]}}
        assert client.post("/predict", json=body).json()["model"]["version"] == card.version


def test_a_service_over_tables_of_another_program_is_not_ready(tmp_path: Path) -> None:
    import sqlalchemy as sa

    settings = settings_at(tmp_path)
    with running(settings) as client:
        assert client.get("/readyz").status_code == 200
        engine = sa.create_engine(settings.sqlalchemy_url)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        engine.dispose()
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert "9999" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200


def test_a_service_without_models_is_not_ready(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PowerModels, "cards", lambda self: ())
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["type"] == "/problems/not-ready"


def test_a_body_that_does_not_arrive_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    with (
        running(settings_at(tmp_path)) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as sock,
    ):
        sock.settimeout(20)
        sock.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"ptx"'
        )
        answer = b""
        while b"slow-body" not in answer and (part := sock.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"/problems/slow-body" in answer


def test_more_requests_at_once_than_allowed_are_told_to_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "REQUESTS_AT_ONCE", 1)
    with running(settings_at(tmp_path)) as client:
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address, timeout=20) as waiting:
            head = b"POST /features HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
            waiting.sendall(head + b"\r\nContent-Length: 2\r\n\r\n{")
            while (answer := client.get("/gpus")).status_code == 200:
                pass
            assert answer.status_code == 429
            assert answer.headers["Retry-After"] == "1"
            ready = client.get("/readyz")
            assert ready.status_code == 503
            assert "1 requests" in ready.json()["detail"]
            waiting.sendall(b"}")
            assert waiting.recv(100).startswith(b"HTTP/1.1 422")
        assert client.get("/gpus").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"WATTCAST_([A-Z_]+[A-Z])", text))
    known: dict[str, Any] = {name.upper(): field for name, field in Settings.model_fields.items()}
    assert named <= set(known) | {"TEST_POSTGRES", "TEST_KILLS"}
    for name, field in known.items():
        assert field.description, name
    for name in ("HOST", "HOME", "DATABASE_URL", "API_KEYS", "REQUESTS_PER_SECOND"):
        assert name in named


def test_log_lines_go_to_what_stderr_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched, io.StringIO() as for_a_while:
        patched.setattr(sys, "stderr", for_a_while)
        logs.configure(settings_at(tmp_path))
    logs.log().error("still heard")
    assert "still heard" in capsys.readouterr().err
