"""Applications and services over a home of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Defaults over an empty home; no environment variable is looked at."""
    return Settings(home=tmp_path / "home", access_log=False, log_level="error")


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """A client that never sees the server's exceptions: only what HTTP answers."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as opened:
        yield opened
