"""The predictor of the Python functions, those of its workers, and its answers as messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from wattcast.features.errors import RequestError
from wattcast.predictor import Predictor, messages

if TYPE_CHECKING:
    from wattcast.predictor.rank import Crew


WORKER_BYTES = 32 * 2**20
"""What a worker keeps: it is done with a kernel before the next one comes."""


@cache
def predictor(registry: bool = True, most_bytes: int | None = None) -> Predictor:
    """The predictor of this process; ``registry``: promoted models answer. It remembers
    ``most_bytes`` at the most, and what the settings say."""
    # Here: pydantic-settings and the registry take a third of the time to import everything.
    from wattcast.app.services.models.standalone import standalone_predictor
    from wattcast.app.settings import Settings

    settings = Settings()
    if most_bytes is not None:
        least = min(most_bytes, settings.cache_bytes)
        settings = settings.model_copy(update={"cache_bytes": least})
    return standalone_predictor(settings, registry=registry)


@contextmanager
def crew(
    workers: int | None = None,
    dask: str | None = None,
    registry: bool = True,
    variants: int | None = None,
) -> Iterator[Crew | None]:
    """Who predicts many configurations: ``workers`` processes (default: the cores this process may
    use; 1: none but this one), or those of the Dask scheduler at ``dask``. For ``variants`` no more
    than are worth it; none without joblib, where ``workers`` does not ask for them.

    Raises ClusterError where the scheduler does not answer or has no worker, and MissingExtraError
    where Dask or joblib is not installed.
    """
    from wattcast.predictor.rank import WORTH, Crew
    from wattcast.training.engine import OnDask, cores, open_engine, open_processes

    make = partial(predictor, registry, WORKER_BYTES)
    most = inf if variants is None else max(1, variants // WORTH)
    if dask is None:
        if (count := int(min(workers or cores(), most))) == 1:
            yield None
            return
        with open_processes(count) as processes:
            yield Crew(processes.map, make, count)
        return
    with open_engine(dask) as engine:
        assert isinstance(engine, OnDask)
        yield Crew(engine.map, make, engine.workers(), elsewhere=True)


Function = TypeVar("Function", bound=Callable[..., Any])
Request = TypeVar("Request", bound=BaseModel)


def checked(kind: type[Request], body: Any) -> Request:
    """The request of a body. Raises RequestError, in one line."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestError(messages.one_line(error)) from None


_KERNEL = ("ptx", "launch", "gpus")
"""Members of requests that functions take in another form."""


def takes(*requests: type[BaseModel]) -> Callable[[Function], Function]:
    """A function whose keywords are the members of its request: the signature tells their names and
    defaults, the docstring what each is, both from the fields of the request."""

    def documented(function: Function) -> Function:
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        if "registry" not in own.parameters:
            kept.append(inspect.Parameter("registry", inspect.Parameter.KEYWORD_ONLY, default=True))
        fields: dict[str, FieldInfo] = {}
        every: tuple[type[BaseModel], ...] = (*requests, messages.LaunchRequest)
        for request in every:
            fields |= request.model_fields
        names = {each.name for each in kept}
        fields = {n: field for n, field in fields.items() if n not in names and n not in _KERNEL}
        added = [
            inspect.Parameter(
                field.alias or name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty
                if field.is_required()
                else field.get_default(call_default_factory=True, validated_data={}),
            )
            for name, field in fields.items()
        ]

        @wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            if unknown := options.keys() - names - {each.name for each in added}:
                raise TypeError(f"{function.__name__}: unknown {', '.join(sorted(unknown))}")
            return function(*args, **options)

        called.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        lines = [
            f"    {field.alias or name}: {field.description}"
            for name, field in fields.items()
            if field.description
        ]
        called.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Keywords:", *lines])
        return cast(Function, called)

    return documented
