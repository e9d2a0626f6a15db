"""Requests made up from the OpenAPI document: none is a fault of ours, none is answered in a way
that the document does not tell."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from fastapi.routing import iter_route_contexts
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.conftest import settings_at
from tests.app.live import running
from wattcast.app.main import create_app
from wattcast.app.settings import Settings

EXAMPLES = int(os.environ.get("WATTCAST_TEST_EXAMPLES", "4"))
"""Requests made up for each call; a hunt takes hundreds."""

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def described() -> BaseSchema:
    return schemathesis.openapi.from_dict(create_app(Settings()).openapi())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("home")
    print(f"{EXAMPLES} requests made up for each call, seed {os.environ.get('WATTCAST_TEST_SEED')}")
    with running(
        settings_at(home, max_analysis_effort=20_000_000, analysis_effort=10_000_000)
    ) as client:
        yield client


PAGES = {
    "/": "the page: takes nothing",
    "/docs": "takes nothing",
    "/docs/{name}": "files of the documentation",
    "/openapi.json": "the description itself: takes nothing",
    "/static/{version}/{name}": "files of the page",
}
"""Routes that the description leaves out, and why no made-up request is worth while."""


def test_every_route_has_made_up_requests(described: BaseSchema) -> None:
    """They come from the description: a new route that is not in it must be given a reason here."""
    routes = {
        (method, route.path or "")
        for route in iter_route_contexts(create_app(Settings()).routes)
        for method in route.methods or ()
    }
    calls = [each.ok() for each in described.get_all_operations()]
    told = {(each.method.upper(), each.path) for each in calls}
    left_out = {path for method, path in routes - told if method not in ("HEAD", "OPTIONS")}
    assert told <= routes
    assert left_out == PAGES.keys()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def answered(case: schemathesis.Case, service: httpx.Client) -> None:
    _patient(case.body)  # an allowance of microseconds is answered 503, as it asks for
    case.call_and_validate(checks=CHECKS, base_url=str(service.base_url), timeout=30)


@pytest.mark.slow
def test_no_made_up_request_surprises(described: BaseSchema, service: httpx.Client) -> None:
    """One test, not one for each call: these would be made whenever tests are collected, which
    takes seven seconds."""
    tests = get_all_tests(schema=described, test_func=answered, settings=None, given_kwargs=None)
    asked = 0
    for call, test in (each.ok() for each in tests):
        print(call.label, flush=True)
        test(service=service)
        asked += 1
    assert asked > 40


def _patient(body: object) -> None:
    """Take the request's own time limits out of a body, at any depth."""
    if isinstance(body, dict):
        if isinstance(body.get("analysis_seconds"), int | float):
            del body["analysis_seconds"]
        for part in body.values():
            _patient(part)
    elif isinstance(body, list):
        for part in body:
            _patient(part)
