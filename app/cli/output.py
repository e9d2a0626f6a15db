"""What every command needs to answer: the services, a console, JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from rich.console import Console

from wattcast.app.settings import Settings

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

_PIPED_WIDTH = 240
"""Columns when nobody looks: a line that is cut or folded cannot be searched."""


def console() -> Console:
    """Standard output for people."""
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def predictor(*, registry: bool = True) -> Predictor:
    """A predictor that keeps nothing; ``registry``: by promoted models, where any are.

    Nothing is asked of the registry before a model is needed.
    """
    from wattcast.app.services.models.promoted import alone

    return alone(Settings(), registry=registry)


def print_json(value: Any) -> None:
    """An answer as HTTP gives it, indented; NaN and infinities become ``null``."""
    print(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2))
