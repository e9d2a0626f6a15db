"""The reference page of the HTTP calls, out of the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from studies.card_tables import table
from wattcast.app.settings import Settings

_REF = "#/components/schemas/"

Node = Mapping[str, Any]


def api_page(settings: Settings) -> str:
    """Every call with its parameters and answers, and every object that is sent or answered."""
    from wattcast.app.main import create_app

    document = create_app(settings).openapi()
    parts = [
        "# Calls\n",
        "From the OpenAPI document, which the service itself serves at `/openapi.json` and shows "
        "at `/docs`. Examples: [the calls of the service](../api.md).\n",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    parts.append("## Objects\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _object(name, schema)
    return "\n".join(parts)


def _operation(title: str, operation: Node) -> Iterator[str]:
    yield f"## `{title}`\n"
    yield f"{operation['summary']}. {_cell(operation.get('description', ''))}".strip() + "\n"
    rows = [
        (f"`{one['name']}`", one["in"], type_of(one["schema"]), _meaning(one, one["schema"]))
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield table(("parameter", "in", "type", "meaning"), rows)
    body = operation.get("requestBody", {}).get("content", {})
    for media, content in body.items():
        yield f"Body: `{media}`, {type_of(content['schema'])}.\n"
    yield table(
        ("status", "answer"),
        [(status, _answer(found)) for status, found in sorted(operation["responses"].items())],
    )


def _answer(found: Node) -> str:
    told = [
        type_of(content["schema"])
        for media, content in found.get("content", {}).items()
        if content.get("schema") and media != "application/problem+json"
    ]
    return _cell(found["description"]) + (f": {', '.join(told)}" if told else "")


def _object(name: str, schema: Node) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield _cell(schema["description"]) + "\n"
    members = schema.get("properties")
    if not members:
        yield type_of(schema) + "\n"
        return
    needed = schema.get("required", ())
    yield table(
        ("member", "type", "needed", "meaning"),
        [
            (
                f"`{member}`",
                type_of(found),
                "yes" if member in needed else "",
                _meaning(found, found),
            )
            for member, found in members.items()
        ],
    )


def type_of(schema: Node) -> str:
    """The type of a value in words; objects are links into the same page."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{_anchor(name)})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        inner = schema.get("items") or {}
        if not inner and schema.get("prefixItems"):
            return "list of " + ", ".join(type_of(one) for one in schema["prefixItems"])
        return f"list of {type_of(inner)}"
    if kind == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(inner)}"
    return kind


def _meaning(described: Node, schema: Node) -> str:
    """Description, bounds and default."""
    told = [_cell(described.get("description", ""))]
    for key, word in (
        ("exclusiveMinimum", "above"),
        ("minimum", "at least"),
        ("exclusiveMaximum", "below"),
        ("maximum", "at most"),
    ):
        if key in schema:
            told.append(f"{word} {schema[key]:g}")
    if schema.get("default") is not None:
        told.append(f"default `{schema['default']}`")
    return "; ".join(part.rstrip(".") for part in told if part)


def _anchor(heading: str) -> str:
    """The id that Python-Markdown gives a heading."""
    return re.sub(r"[^\w\s-]", "", heading).strip().lower()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
