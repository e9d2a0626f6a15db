"""Keys on the command line: shown once, listed without their secret, revoked by id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wattcast.app.cli import app


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTCAST_HOME", str(tmp_path))
    monkeypatch.delenv("WATTCAST_DATABASE_URL", raising=False)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["keys", *arguments])
    return result.exit_code, result.output


def test_a_key_is_made_listed_and_revoked() -> None:
    code, token = run("create", "lab", "--scope", "read", "--scope", "write")
    assert code == 0
    token = token.strip()
    assert token.startswith("wk_")
    _, listed = run("list", "--json")
    (row,) = json.loads(listed)
    assert row["scopes"] == ["read", "write"]
    assert row["revoked"] is None
    assert token.split("_", 2)[2] not in listed
    assert run("revoke", row["id"])[0] == 0
    assert run("revoke", row["id"])[0] == 2
    assert "revoked" in run("list")[1]
    log = CliRunner().invoke(app, ["audit"]).output.splitlines()
    assert [line.split()[2] for line in log] == ["keys.revoke", "keys.create"]
    assert all(line.split()[1].startswith("cli:") and row["id"] in line for line in log)


def test_what_makes_no_key() -> None:
    assert run("create", "lab", "--scope", "admin")[0] == 2
    assert run("create", "")[0] == 2
    assert run("revoke", "nonsense")[0] == 2
    assert json.loads(run("list", "--json")[1]) == []
