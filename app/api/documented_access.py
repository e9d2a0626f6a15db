"""The access rules in the OpenAPI document: keys, scopes, and what a refused call is answered."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from wattcast.app import problems
from wattcast.app.api.scopes import scope_needed

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
