"""``wattcast serve`` and ``wattcast settings``: the service, and how it is set."""

from __future__ import annotations

from typing import Annotated

import typer

from wattcast.app.cli.output import console, line, rows
from wattcast.app.cli.predict import prediction
from wattcast.app.settings import Settings


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: WATTCAST_HOST.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: WATTCAST_PORT.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="First print a real prediction made over HTTP.")
    ] = False,
) -> None:
    """Run the HTTP service until interrupted."""
    from wattcast.app.server import demonstrate
    from wattcast.app.server import serve as run

    given = {"host": host, "port": port}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def ready(url: str) -> None:
        if demo:
            answer = demonstrate(url)
            line(console(), f"POST {url}/predict answered:")
            prediction(console(), answer)
        line(console(), f"wattcast serves on {url} (API documentation: {url}/docs)")

    run(settings, ready)


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
    rows(console(), found, ("variable", "value", "meaning"))
    console().print(f"Compilers are isolated by: {isolation(current)}")
