"""A JSON route: FastAPI documents it, pydantic-core reads the body in one pass.

FastAPI's own path parses the body to Python objects, validates those and serialises the
answer again; on a request this size that costs more than the prediction.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import to_json

from wattcast.app import problems
from wattcast.app.services import Services, services_of
from wattcast.app.services.analyses import CALLER
from wattcast.app.store import database

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"

SMALL_BODY_BYTES = 256 * 1024
"""Bodies up to this are read on the event loop, in about a millisecond; others in a thread."""


class JsonRoute(APIRoute):
    """Route of an endpoint ``async def (request: Request, body: SomeModel) -> Response``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        hints = get_type_hints(endpoint)
        names = list(inspect.signature(endpoint).parameters)
        model: type[BaseModel] = hints[names[1]]

        def read(body: bytes) -> BaseModel | Response:
            try:
                return model.model_validate_json(body.removeprefix(_BOM))
            except ValidationError as error:
                errors = error.errors(include_url=False)
                if issubclass(model, RootModel):  # the first place is the form the body has
                    errors = [{**each, "loc": each["loc"][1:]} for each in errors]
                return problems.from_validation(errors)

        async def handle(request: Request) -> Response:
            body = await request.body()
            small = len(body) <= SMALL_BODY_BYTES
            message = read(body) if small else await run_in_threadpool(read, body)
            if isinstance(message, Response):
                return message
            CALLER.set(request.receive)
            return await endpoint(request, message)

        return handle


async def asked(
    request: Request,
    ask: Callable[[Services], T],
    otherwise: str = "the database does not answer",
) -> T:
    """What ``ask`` finds in the database, in a thread. Raises StoreError with ``otherwise``."""
    with database.asked(otherwise):
        return await run_in_threadpool(ask, services_of(request))


def json_response(content: Any, status: int = 200) -> Response:
    """Serialise plain data; NaN and infinities, which JSON lacks, become ``null``."""
    return Response(
        to_json(content, inf_nan_mode="null"), status_code=status, media_type="application/json"
    )
