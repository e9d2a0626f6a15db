"""Who may call what: every route of the service without a key, a wrong one, and with each scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from tests.app.conftest import settings_at
from tests.app.databases import KINDS, database
from tests.app.live import running
from wattcast.app.api import access
from wattcast.app.api.access import PUBLIC, PUBLIC_BELOW, scope_needed
from wattcast.app.main import create_app
from wattcast.app.settings import Settings
from wattcast.app.store.database import open_database
from wattcast.app.store.keys import SCOPES, KeyRing, KeyStore, Scope
from wattcast.app.store.tables import entries

ROUTES = sorted(
    {
        (method, route.path or "")
        for route in iter_route_contexts(create_app(Settings()).routes)
        for method in route.methods or ()
    }
)
"""Every call of the service, from its router: a new one is tested without being named here."""

PROTECTED = [(m, path) for m, path in ROUTES if scope_needed(m, path) is not None]

READING_POSTS = {
    "/predict", "/predict/batch", "/features", "/analyze", "/dvfs", "/sweep", "/cost", "/compare",
    "/judge", "/applications", "/tunings", "/language-models", "/fleet",
}  # fmt: skip
"""Calls that take a body and need no more than ``read``: each changes nothing that is stored but
the record of what was answered."""


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "00000000-0000-0000-0000-000000000000", path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    return settings_at(home, api_keys="required", requests_per_second=0)


@pytest.fixture(scope="module")
def guarded(settings: Settings) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wattcast.app.store.keys.KEPT_SECONDS", 0)
        patch.setattr(access, "WRONG_KEY_SECONDS", 0)
        with running(settings) as client:
            yield client


@pytest.fixture(scope="module")
def keys(settings: Settings) -> dict[Scope, str]:
    """A key of each scope alone."""
    engine = open_database(settings.sqlalchemy_url)
    made = {scope: KeyStore(engine).create(scope, [scope], "test")[1] for scope in SCOPES}
    engine.dispose()
    return made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_router_has_calls_of_every_scope() -> None:
    needed = {scope_needed(method, path) for method, path in ROUTES}
    assert {None, "read"} <= needed
    assert len(ROUTES) > 20
    for method, path in PROTECTED:
        if method != "GET" and scope_needed(method, path) == "read":
            assert path in READING_POSTS
    public = {path for method, path in ROUTES if scope_needed(method, path) is None}
    assert all(path in PUBLIC or path.startswith(PUBLIC_BELOW) for path in public)


@pytest.mark.parametrize(("method", "path"), PROTECTED)
def test_a_protected_call_needs_a_key(guarded: httpx.Client, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Basic dTpw"}, {"Authorization": "Bearer"}):
        answer = guarded.request(method, filled(path), headers=headers)
        assert answer.status_code == 401, answer.text
        assert answer.json()["type"] == "/problems/unauthorized"
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for wrong in ("nonsense", f"wk_{'0' * 12}_{'A' * 43}", "wk__"):
        answer = guarded.request(method, filled(path), headers=bearer(wrong))
        assert answer.status_code == 401, answer.text


@pytest.mark.parametrize(("method", "path"), PROTECTED)
def test_a_key_without_the_scope_is_refused(
    guarded: httpx.Client, keys: dict[Scope, str], method: str, path: str
) -> None:
    needed = scope_needed(method, path)
    for scope in SCOPES:
        answer = guarded.request(method, filled(path), headers=bearer(keys[scope]))
        assert answer.status_code != 401, answer.text
        assert (answer.status_code == 403) == (scope != needed), answer.text
        if scope != needed:
            assert answer.json()["needed"] == needed


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if r not in PROTECTED])
def test_a_public_call_needs_none(guarded: httpx.Client, method: str, path: str) -> None:
    assert guarded.request(method, filled(path)).status_code in (200, 404)


def test_an_unknown_path_tells_nothing_without_a_key(guarded: httpx.Client) -> None:
    assert guarded.get("/nothing").status_code == 401
    assert guarded.post("/nothing", json={}).status_code == 401


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_checked_until_it_is_revoked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(kind, tmp_path) as url:
        engine = open_database(url)
        store = KeyStore(engine)
        key, token = store.create("lab", ["write", "read"], "cli")
        assert key.scopes == {"read", "write"}
        ring = KeyRing(store)
        ring.read()
        assert ring.find(token) == key
        assert ring.find(token[:-1] + ("A" if token[-1] != "A" else "B")) is None
        assert ring.find("") is None
        monkeypatch.setattr("wattcast.app.store.keys.KEPT_SECONDS", 3600)
        patient = KeyRing(store)
        patient.read()
        assert store.revoke(key.id, "cli")
        assert not store.revoke(key.id, "cli")
        assert patient.read_in(token) is None
        assert patient.find(token) == key
        monkeypatch.setattr("wattcast.app.store.keys.KEPT_SECONDS", 0)
        assert ring.read_in(token) == 0
        ring.read()
        assert ring.find(token) is None
        (listed,) = store.all()
        assert listed.revoked is not None
        log = entries(engine)
        assert [entry.action for entry in log] == ["keys.revoke", "keys.create"]
        with engine.connect() as connection:
            everything = str(
                [
                    connection.exec_driver_sql(f"SELECT * FROM {table}").all()
                    for table in ("api_keys", "audit_log")
                ]
            )
        assert token not in everything
        assert token.split("_", 2)[2] not in everything
        engine.dispose()


def test_a_key_is_never_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vector_add: str
) -> None:
    settings = settings_at(
        tmp_path, api_keys="required", access_log=True, log_level="debug", log_format="json"
    )
    with running(settings) as client:
        engine = open_database(settings.sqlalchemy_url)
        _, token = KeyStore(engine).create("lab", ["read"], "cli")
        engine.dispose()
        wrong = f"wk_{'1' * 12}_{'s' * 43}"
        assert client.get("/gpus", headers=bearer(token)).status_code == 200
        assert client.get("/gpus", headers=bearer(wrong)).status_code == 401
    lines = capsys.readouterr().err
    assert '"path":"/gpus"' in lines
    assert "wrong API key" in lines
    for secret in (token, wrong):
        assert secret not in lines
        assert secret.split("_", 2)[2] not in lines


def test_a_caller_that_asks_too_often_is_told_when_to_return(tmp_path: Path) -> None:
    with running(settings_at(tmp_path, requests_per_second=0.3)) as client:
        answers = [client.get("/gpus") for _ in range(8)]  # a second window may begin meanwhile
        assert [answer.status_code for answer in answers][:3] == [200, 200, 200]
        assert answers[-1].status_code == 429
        assert answers[-1].json()["type"] == "/problems/rate"
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 20
        assert client.get("/healthz").status_code == 200


def test_only_the_loopback_is_open() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert not Settings(host=host, api_keys="auto").keys_required
    for host in ("0.0.0.0", "::", "192.168.0.7", "wattcast.example"):
        assert Settings(host=host, api_keys="auto").keys_required
    assert not Settings(host="0.0.0.0", api_keys="off").keys_required
    assert Settings(host="127.0.0.1", api_keys="required").keys_required


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "attacker.example"},
        {"Host": "["},
    ],
)
def test_a_foreign_page_cannot_use_a_service_without_keys(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    answer = client.post("/features", json={}, headers=headers)
    assert answer.status_code == 403, answer.text
    assert answer.json()["type"] == "/problems/forbidden"


def test_a_page_of_this_service_can(client: httpx.Client) -> None:
    own = str(client.base_url).rstrip("/")
    headers = {"Origin": own, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/features", json={}, headers=headers).status_code == 422


@pytest.mark.parametrize("path", ["/gpus", "/docs", "/docs/start.js", "/nothing", "/metrics"])
def test_every_answer_carries_security_headers(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert len(headers.get_list("Content-Security-Policy")) == 1


def test_the_documentation_has_nothing_inline(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)
    loaded = re.findall(r'<(?:link|script)[^>]*(?:href|src)="(/docs/[^"]+)"', page)
    assert len(loaded) == 3
    assert "https://" not in page
    for path in loaded:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["Cache-Control"] == "no-cache"
    assert client.get("/docs/nothing.js").status_code == 404
    assert "/openapi.json" in client.get("/docs/start.js").text
