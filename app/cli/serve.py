"""``wattcast serve`` and ``wattcast settings``: the service, and how it is set."""

from __future__ import annotations

from typing import Annotated

import typer

from wattcast.app.cli.output import console, rows
from wattcast.app.cli.predict import prediction
from wattcast.app.settings import Settings


def serve(
    host: Annotated[str | None, typer.Option(help="Address; default WATTCAST_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default WATTCAST_PORT.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Print one real prediction over HTTP, then serve.")
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
            console().print(f"POST {url}/predict answered:", highlight=False)
            prediction(console(), answer)
        console().print(f"wattcast serves on {url} (documentation: {url}/docs)", highlight=False)

    run(settings, ready)


def settings() -> None:
    """Every setting with its value here and what it means, and how compilers are isolated."""
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
