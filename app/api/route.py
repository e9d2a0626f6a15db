"""A JSON route: FastAPI documents it, pydantic-core reads the body in one pass.

FastAPI's own path parses the body to Python objects, validates those and serialises the
answer again; on a request this size that costs more than the prediction.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_type_hints
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import to_json

from wattcast.app import problems, services
from wattcast.app.services.analyses import CALLER
from wattcast.app.store import database
from wattcast.features.checked import MOST_VALUES, many_values
from wattcast.features.errors import ServiceError
from wattcast.predictor.messages import Answer
from wattcast.predictor.reports.brief import brief, briefs

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Any])

Limit = Annotated[int, Query(ge=1, le=1000)]
Before = Annotated[UUID | None, Query(description="The last one of the previous page.")]
"""A page of what is stored: how much of it, and where it begins."""

_BOM = b"\xef\xbb\xbf"

SMALL_BODY_BYTES = 32 * 1024
"""Bodies up to this are read on the event loop: in 20 ms where all of it is wrong, in 0.1 ms else.
Others are read in a thread."""


MOST_DEFECTS = 1_000
"""Defects of a body that are told one by one; more only by their number: listing a million takes
10 s in which nobody else is answered."""


Detail = Annotated[
    Literal["full", "brief"],
    Query(description="`brief`: the answer's main members, at most 1,024 bytes (docs/api.md)."),
]


def detail(detail: Detail = "full") -> None:
    """What a route depends on whose answer has a brief form: it documents the parameter."""


async def message(model: type[M], body: bytes | str) -> M | Response:
    """A body as its model, or the answer that says what is wrong with it. The one way in for JSON:
    what takes more than a moment is read in a thread."""
    if len(body) <= SMALL_BODY_BYTES:
        return _read(model, body)
    return await run_in_threadpool(_read, model, body)


def _read(model: type[M], body: bytes | str) -> M | Response:
    if many_values(body):
        return problems.response("too-large", f"the body has more than {MOST_VALUES:,} values")
    try:
        return model.model_validate_json(
            body.removeprefix(_BOM) if isinstance(body, bytes) else body
        )
    except ValidationError as error:
        if error.error_count() > MOST_DEFECTS:
            told = f"the body has {error.error_count():,} defects"
            return problems.response("validation", told, {"errors": []})
        errors = error.errors(include_url=False, include_input=False)
        if issubclass(model, RootModel):  # the first place is the form the body has
            errors = [{**each, "loc": each["loc"][1:]} for each in errors]
        return problems.from_validation(errors)


class Router(APIRouter):
    """Routes on one line each: path, model of the answer, and kinds of problems by their slugs.

    The first paragraph of an endpoint's docstring is the route's summary, the rest describes it.
    """

    def answers(
        self,
        path: str,
        answer: Any,
        kinds: str = "",
        method: str = "GET",
        also: dict[int | str, dict[str, Any]] | None = None,
        **more: Any,
    ) -> Callable[[F], F]:
        """Declares an endpoint, with ``detail`` where its answer has a brief form; ``also`` are
        answers besides, ``more`` goes to FastAPI."""
        short = briefs(answer)
        if short and "validation" not in kinds:
            kinds = f"{kinds} validation".strip()
        responses = {**(also or {}), **(problems.documented(kinds) if kinds else {})}

        def declare(endpoint: F) -> F:
            summary, _, told = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=Union[(answer, *short)] if short else answer,
                dependencies=[Depends(detail)] if short else None,
                responses=responses,
                summary=summary.removesuffix("."),
                description=told,
                **more,
            )
            return endpoint

        return declare


class JsonRoute(APIRoute):
    """Route of an endpoint ``async def (request: Request, body: SomeModel) -> Response``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        hints = get_type_hints(endpoint)
        names = list(inspect.signature(endpoint).parameters)
        model: type[BaseModel] = hints[names[1]]
        details = get_args(get_args(Detail)[0]) if self.dependencies else ()

        async def handle(request: Request) -> Response:
            if details and request.query_params.get("detail", "full") not in details:
                told = {
                    "loc": ("query", "detail"),
                    "msg": f"Input should be {' or '.join(details)}",
                }
                raise RequestValidationError([{"type": "literal_error", **told}])
            body = await message(model, await request.body())
            if isinstance(body, Response):
                return body
            CALLER.set(request.receive)
            return await endpoint(request, body)

        return handle


async def query(
    request: Request,
    ask: Callable[[services.Services], T],
    otherwise: str = "the database does not answer",
) -> T:
    """What ``ask`` finds in the database, in a thread. Raises StoreError with ``otherwise``."""
    with database.store_errors(otherwise):
        return await run_in_threadpool(ask, services.services_of(request))


def told(request: Request, answer: Answer | Sequence[Answer]) -> Response:
    """An answer, in its brief form where it has one and the query asks for that."""
    if request.query_params.get("detail") == "brief":
        return Response(brief(answer, kept=True), media_type="application/json")
    return json_response(answer)


async def existing(
    request: Request,
    ask: Callable[[services.Services], T | None],
    missing: tuple[str, str],
    otherwise: str = "the database does not answer",
) -> T:
    """As ``query``. Raises ServiceError with the kind and detail of ``missing`` for nothing."""
    found = await query(request, ask, otherwise)
    if not found:
        raise ServiceError(*missing)
    return found


def json_response(content: Any, status: int = 200) -> Response:
    """An answer, or plain data; NaN and infinities, which JSON lacks, become ``null``."""
    body = (
        content.json_bytes()
        if isinstance(content, Answer)
        else to_json(content, inf_nan_mode="null")
    )
    return Response(body, status_code=status, media_type="application/json")
