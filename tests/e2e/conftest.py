"""A browser for all, a service for each module of tests and a page of it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import httpx
import pytest
from playwright.sync_api import Browser

from tests.app.conftest import ended as ended
from tests.app.conftest import looping as looping
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.e2e.browser import Watched, chromium, watched


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(settings_at(tmp_path_factory.mktemp("home"), job_workers=0)) as client:
        yield client


@pytest.fixture(scope="module")
def vector_add() -> str:
    """PTX of the demonstration's kernel, which is the page's example."""
    return files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, service: httpx.Client) -> Iterator[Watched]:
    with watched(browser, service, viewport={"width": 1440, "height": 900}) as opened:
        yield opened
