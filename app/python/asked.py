"""The predictor of the Python functions, those of its workers, and its answers as messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from wattcast.predictor import Predictor

if TYPE_CHECKING:
    from wattcast.predictor.forecasts import Crew

Message = TypeVar("Message", bound=BaseModel)


@cache
def predictor(registry: bool = True) -> Predictor:
    """The predictor of this process; ``registry``: promoted models answer."""
    # Here: pydantic-settings and the registry take a third of the time to import everything.
    from wattcast.app.services.models.promoted import alone
    from wattcast.app.settings import Settings

    return alone(Settings(), registry=registry)


WORKER_BYTES = 32 * 2**20
"""What a worker keeps: it is done with a kernel before the next one comes."""


@cache
def _worker(registry: bool) -> Predictor:
    """The predictor of a worker, which is asked for many kernels, each once."""
    from wattcast.app.services.models.promoted import alone
    from wattcast.app.settings import Settings

    settings = Settings()
    least = min(WORKER_BYTES, settings.cache_bytes)
    return alone(settings.model_copy(update={"cache_bytes": least}), registry=registry)


@contextmanager
def crew(
    workers: int | None = None, dask: str | None = None, registry: bool = True
) -> Iterator[Crew | None]:
    """Who predicts many configurations: ``workers`` processes (default: the cores this process may
    use; 1: none but this one), or those of the Dask scheduler at ``dask``.

    Raises ClusterError where the scheduler does not answer or has no worker, and MissingExtraError
    where Dask or joblib is not installed.
    """
    from wattcast.predictor.forecasts import Crew
    from wattcast.training.engine import OnDask, cores, open_engine, open_processes

    make = partial(_worker, registry)
    if dask is None:
        if (count := workers or cores()) == 1:
            yield None
            return
        with open_processes(count) as processes:
            yield Crew(processes, make, count)
        return
    with open_engine(dask) as engine:
        assert isinstance(engine, OnDask)
        yield Crew(engine, make, engine.workers(), elsewhere=True)


def typed(kind: type[Message], answer: dict[str, Any]) -> Message:
    """An answer as its message; infinities and NaN become ``None``."""
    return kind.model_validate_json(to_json(answer, inf_nan_mode="null"))
