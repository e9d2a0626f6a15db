"""``wattcast serve``, ``mcp`` and ``settings``: the service, tools for agents, how both are set."""

from __future__ import annotations

from typing import Annotated

import typer

from wattcast.app.cli.inputs import expected
from wattcast.app.cli.output import console, line, render, rows
from wattcast.app.settings import Settings


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
            line(console(), f"POST {url}/predict answered:")
            render(PredictAnswer.model_validate(answer).report())
        line(console(), f"wattcast serves on {url} (API documentation: {url}/docs)")

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
    with expected("--http", http, "HOST:PORT, as in 127.0.0.1:8765"):
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
    render(rows(found, ("variable", "value", "meaning")))
    console().print(f"Compilers are isolated by: {isolation(current)}")
