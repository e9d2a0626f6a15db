"""The predictor of the Python functions, and its answers as messages."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from wattcast.predictor import Predictor

Message = TypeVar("Message", bound=BaseModel)


@cache
def predictor(registry: bool = True) -> Predictor:
    """The predictor of this process; ``registry``: promoted models answer."""
    # Here: pydantic-settings and the registry take a third of the time to import everything.
    from wattcast.app.services.models.promoted import alone
    from wattcast.app.settings import Settings

    return alone(Settings(), registry=registry)


def typed(kind: type[Message], answer: dict[str, Any]) -> Message:
    """An answer as its message; infinities and NaN become ``None``."""
    return kind.model_validate_json(to_json(answer, inf_nan_mode="null"))
