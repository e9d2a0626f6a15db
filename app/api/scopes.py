"""Which scope a call needs, and what the OpenAPI document says of it. What no rule names needs the
strictest: a new route cannot be open because somebody forgot it.

    public   liveness, readiness, kinds of problems, documentation of the API
    read     looking, and predicting (which changes nothing but the record of answers)
    write    measurements
    train    everything else that changes something: jobs, models
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from wattcast.app import problems
from wattcast.app.store.keys import Scope

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/problems"})
"""Paths anyone may look at: they tell nothing of what is stored."""

PUBLIC_BELOW = ("/docs/", "/problems/", "/static/")

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})

PREDICTING = frozenset(
    {"/predict", "/predict/batch", "/features", "/analyze", "/dvfs", "/sweep", "/cost", "/compare"}
)
"""Calls that take a body and change nothing."""

UPLOADING = frozenset({"/measurements", "/measurements/check", "/retrain"})
"""Calls that take files: their bodies may be larger, and multipart."""


def scope_needed(method: str, path: str) -> Scope | None:
    """The scope that a call needs; ``None`` for a public one."""
    if method in LOOKING:
        return None if path in PUBLIC or path.startswith(PUBLIC_BELOW) else "read"
    if method == "POST" and path in PREDICTING:
        return "read"
    if path == "/measurements" or path.startswith("/measurements/"):
        return "write"
    return "train"


_SCHEME = "apiKey"


def describe(app: FastAPI) -> None:
    """Add to every operation its scope and its refusals, from the rules that are enforced."""
    plain = app.openapi
    refusals = problems.documented("unauthorized", "forbidden", "rate", "busy", "slow-body")

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        made = plain()
        made["components"]["securitySchemes"] = {
            _SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "A key of `wattcast keys create`; needed unless the service "
                "listens on the loopback only.",
            }
        }
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                scope = scope_needed(method.upper(), path)
                if scope is None:
                    continue
                operation["security"] = [{}, {_SCHEME: []}]
                operation["x-scope"] = scope
                statuses = ["401", "403", "429"]
                if "requestBody" in operation:
                    statuses.append("408")
                for status in statuses:
                    _merge(operation["responses"], status, refusals[int(status)])
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _merge(responses: dict[str, Any], status: str, refusal: dict[str, Any]) -> None:
    """Add a refusal beside what an operation documents for the same status."""
    there = responses.setdefault(status, {"description": refusal["description"], "content": {}})
    content = there["content"].setdefault(
        problems.MEDIA_TYPE, {"schema": refusal["content"][problems.MEDIA_TYPE]["schema"]}
    )
    examples = content.setdefault("examples", {})
    examples |= {**refusal["content"][problems.MEDIA_TYPE]["examples"], **examples}
