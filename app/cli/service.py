"""``wattcast serve``, ``mcp`` and ``settings``: the service, tools for agents, how both are set;
``keys`` and ``audit``: who may call, who changed what."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattcast.app.cli import inputs, output
from wattcast.app.settings import Settings
from wattcast.predictor.reports import members_table

if TYPE_CHECKING:
    from wattcast.app.store.keys import ApiKey, KeyStore


def serve(
    host: str | None = None,
    port: int | None = None,
    demo: Annotated[bool, typer.Option("--demo")] = False,
) -> None:
    """Run the HTTP service until interrupted.

    Args:
        host: Address to listen on. Default: WATTCAST_HOST.
        port: Port to listen on. Default: WATTCAST_PORT.
        demo: First print a real prediction made over HTTP.
    """
    from wattcast.app.server import demonstrate
    from wattcast.app.server import serve as run
    from wattcast.predictor.messages.predict import PredictAnswer

    given = {"host": host, "port": port}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def ready(url: str) -> None:
        if demo:
            answer = demonstrate(url)
            output.line(output.console(), f"POST {url}/predict answered:")
            output.render(PredictAnswer.model_validate(answer).report())
        output.line(output.console(), f"wattcast serves on {url} (API documentation: {url}/docs)")

    run(settings, ready)


def mcp(http: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None) -> None:
    """Serve tools to agents (MCP), on standard input and output.

    Args:
        http: Serve streamable HTTP at /mcp instead, as on 127.0.0.1:8765.
    """
    from wattcast.app.agents import serve_http, serve_stdio

    if http is None:
        return serve_stdio(Settings())
    host, _, port = http.rpartition(":")
    with inputs.expected("--http", http, "HOST:PORT, as in 127.0.0.1:8765"):
        return serve_http(Settings(host=host.strip("[]") or "127.0.0.1", port=int(port)))


def settings() -> None:
    """List every setting, its current value and its meaning.

    Also says how compilers are isolated on this machine.
    """
    from wattcast.predictor.parts.sources import isolation

    current = Settings()
    found = [
        {
            "variable": f"WATTCAST_{name.upper()}",
            "value": str(getattr(current, name)),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    output.render([members_table(found, ("variable", "value", "meaning"))])
    output.console().print(f"Compilers are isolated by: {isolation(current)}")


# --- who may call, who changed what ---

keys = typer.Typer(help="Create, list or revoke API keys.", no_args_is_help=True)


@keys.command()
def create(
    name: str,
    scope: Annotated[list[str], typer.Option("--scope")] = ["read"],  # noqa: B006 - Typer copies it
) -> output.Shown[Any]:
    """Create a key and print it once. Only its hash is stored.

    Args:
        name: What the key is for, or who owns it.
        scope: read (predictions and look-ups), write (measurements) or train (models, jobs).
            Repeatable.
    """
    from wattcast.app.store.keys import SCOPES

    unknown = sorted(set(scope) - set(SCOPES))
    if unknown:
        inputs.fail(f"no scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    if not 0 < len(name) <= 100 or not name.isprintable():
        inputs.fail("a key's name has 1 to 100 printable characters")
    with _store() as store:
        key, token = store.create(name, [s for s in SCOPES if s in scope], _actor())
    return output.told({**_row(key), "key": token}, token)


@keys.command("list")
def list_keys() -> output.Shown[Any]:
    """List all keys by id, name, scopes and state. The keys themselves are never shown."""
    with _store() as store:
        rows = [_row(key) for key in store.all()]
    lines = [
        f"{row['id']}  {','.join(row['scopes']):16}  {row['created']}  "
        f"{'revoked ' + row['revoked'] if row['revoked'] else 'in use'}  {row['name']}"
        for row in rows
    ]
    return output.told(rows, *lines)


@keys.command()
def revoke(key_id: str) -> None:
    """Revoke a key for good. Services notice within five seconds.

    Args:
        key_id: Id of the key; wattcast keys list shows it.
    """
    with _store() as store:
        if not store.revoke(key_id, _actor()):
            inputs.fail(f"no key {key_id!r} that is in use")
    print(f"revoked {key_id}")


def audit(limit: Annotated[int, typer.Option(min=1, max=100_000)] = 50) -> output.Shown[Any]:
    """List changes, newest first: keys, measurements, jobs, models.

    Args:
        limit: Number of entries shown.
    """
    from dataclasses import asdict

    from wattcast.app.store.tables import entries

    with output.database() as engine:
        found = entries(engine, limit=limit)
    lines = []
    for entry in found:
        at = entry.at.isoformat(timespec="seconds")
        said = " ".join(f"{name}={value}" for name, value in entry.detail.items())
        lines.append(f"{at}  {entry.actor}  {entry.action}  {entry.subject}  {said}".rstrip())
    return output.told([asdict(entry) for entry in found], *lines)


def _actor() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"cli:{user}"[:100]


def _row(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created": key.created.isoformat(timespec="seconds"),
        "revoked": None if key.revoked is None else key.revoked.isoformat(timespec="seconds"),
    }


@contextmanager
def _store() -> Iterator[KeyStore]:
    from wattcast.app.store.keys import KeyStore

    with output.database() as engine:
        yield KeyStore(engine)
