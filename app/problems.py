"""Errors as RFC 9457 problem details: one registry of types, one shape of answer.

    type        status  raised by
    ptx-syntax  422     wattcast.features.errors.PtxError (line, column)
    ...         ...     problems.toml; ``GET /problems`` prints it

A problem never carries internals: what went wrong inside is logged with the request's id.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import ConfigDict, ValidationError
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from wattcast.app.logs import REQUEST_ID, log
from wattcast.features import errors
from wattcast.features.checked import PositiveInt, Strict, Text, read_toml
from wattcast.predictor.messages import Described, KernelParameter, field_problems

MEDIA_TYPE = "application/problem+json"


class ProblemType(Strict):
    """One kind of problem. ``slug`` is the tail of its ``type`` and never changes."""

    slug: Text
    status: PositiveInt
    title: Text
    description: Text

    def members(self, detail: str) -> dict[str, Any]:
        """What every problem of this kind tells."""
        told = {"type": f"/problems/{self.slug}", "title": self.title, "status": self.status}
        return {**told, "detail": detail}


_FILE = Path(__file__).with_name("problems.toml")
TYPES: dict[str, ProblemType] = {
    slug: ProblemType(slug=slug, **described) for slug, described in read_toml(_FILE).items()
}

_BY_STATUS = {
    400: "bad-request",
    404: "not-found",
    405: "method",
    408: "slow-body",
    413: "too-large",
    429: "rate",
}
_RETRY_SECONDS = {"busy": 1, "time-limit": 1, "store": 1, "disk-full": 60}
JSON_BODY = "json too-large media-type validation"
"""What can be wrong with a JSON body before anybody looks at what it asks."""

NOT_STORED = "the database does not answer; nothing was stored"
_IN_PATH = {
    errors.GpuError: "unknown-gpu",
    errors.SchemaError: "unknown-schema",
    errors.ModelError: "unknown-model",
}


class FieldProblem(Described):
    """One defect of a request: where (``launch.block.0``) and what."""

    path: str
    message: str


class CompilerProblem(Described):
    """One error of the compiler: where in the CUDA source and what."""

    line: int
    message: str


class Problem(Described):
    """Problem details (RFC 9457); members beyond these depend on ``type``."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "/problems/ptx-syntax",
                "title": "Not PTX",
                "status": 422,
                "detail": "line 3, column 9: expected an operand, found ';'",
                "line": 3,
                "column": 9,
                "request_id": "5f0c6f0e9d0b4f3f8a0c1a2b3c4d5e6f",
            }
        },
    )

    type: str
    """Path that describes this kind of problem."""
    title: str
    status: int
    detail: str
    """What is wrong with this request, for people."""
    request_id: str | None = None
    """Also in the X-Request-ID header and the log."""
    line: int | None = None
    """Line in the PTX or CUDA source, from 1."""
    column: int | None = None
    """Column in the PTX, from 1."""
    field: str | None = None
    """Part of the launch or request that is wrong."""
    known: list[str] | None = None
    """What could have been named instead."""
    parameters: list[KernelParameter] | None = None
    """What the kernel takes."""
    errors: list[FieldProblem | CompilerProblem] | None = None
    """Each defect of the request or of the CUDA source."""


def response(
    kind: str,
    detail: str,
    extra: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem of this ``kind`` as an HTTP response (RFC 9457, section 3.1)."""
    members = {**TYPES[kind].members(detail), **(extra or {})}
    if (request_id := REQUEST_ID.get()) is not None:
        members["request_id"] = request_id
    return Response(
        to_json(members, inf_nan_mode="null", fallback=str),
        status_code=members["status"],
        media_type=MEDIA_TYPE,
        headers=dict(headers) if headers else None,
    )


def kind_of(error: errors.WattcastError, *, in_path: bool = False) -> str:
    """The slug under which an error is answered; ``in_path``: what it names is the resource."""
    if isinstance(error, errors.ServiceError):
        return error.kind
    if in_path:
        for raised, slug in _IN_PATH.items():
            if isinstance(error, raised):
                return slug
    return error.slug if error.slug in TYPES else "internal"


def from_validation(errors: Sequence[Any]) -> Response:
    """400 for a body that is no JSON, else 422 with every defect."""
    first = errors[0]
    if first["type"] in ("json_invalid", "json_type"):
        reason = first.get("ctx", {}).get("error", first["msg"])
        return response("json", f"the body is not JSON: {reason}")
    found = field_problems(errors)
    summary = "; ".join(f"{e['path'] or 'body'}: {e['message']}" for e in found[:3])
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return response("validation", summary + more, {"errors": found})


# --- full disks -----------------------------------------------------------------

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Full disk, used-up quota, and a file as large as this process may write."""

_DISK_FULL_SQLSTATE = "53100"
"""PostgreSQL's ``disk_full`` (its documentation, appendix A)."""


def is_full(error: BaseException) -> bool:
    """Whether it, or what it was raised from, is for want of room on a disk."""
    found: BaseException | None = error
    while found is not None and not _says_so(found):
        found = found.__cause__
    return found is not None


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    # psycopg's, which need not be installed.
    return getattr(error, "sqlstate", None) == _DISK_FULL_SQLSTATE


# --- handlers -------------------------------------------------------------------


async def _handled(request: Request, error: Exception) -> Response:
    """Any error as a problem."""
    known = errors.WattcastError | OSError | HTTPException
    if isinstance(error, known) and is_full(error):  # a form that could not be spooled, say
        return _no_room(error)
    if isinstance(error, ModuleNotFoundError):
        error = errors.MissingExtraError.of(error) or error
    match error:
        case errors.WattcastError():
            # A GET names its resource in the path; a POST names GPUs and schemas in its body.
            kind = kind_of(error, in_path=request.method == "GET")
            return response(kind, str(error), error.context, _retry_after(kind))
        case RequestValidationError() | ValidationError():
            return from_validation(error.errors())
        case HTTPException(status_code=status):
            kind = _BY_STATUS.get(status, "internal" if status >= 500 else "bad-request")
            details = {
                "not-found": f"nothing lives under {request.url.path}",
                "method": f"{request.url.path} does not take {request.method}",
            }
            return response(kind, details.get(kind, str(error.detail)), headers=error.headers)
    log().error("unexpected error", exc_info=error)
    return internal()


def _retry_after(kind: str) -> dict[str, str] | None:
    seconds = _RETRY_SECONDS.get(kind)
    return None if seconds is None else {"Retry-After": str(seconds)}


def _no_room(error: Exception) -> Response:
    log().error("no room left on a disk", exc_info=error)
    return response("disk-full", no_room(error), headers=_retry_after("disk-full"))


def no_room(error: Exception) -> str:
    """What to say of an error for which ``is_full`` holds."""
    database = isinstance(error, errors.WattcastError | SQLAlchemyError)
    where = "in the database" if database else "for a temporary file"
    return f"there is no room left {where}; nothing was stored"


def internal() -> Response:
    """The answer to a fault of ours: no internals, only the id under which it is logged."""
    return response("internal", "an unexpected error; it is logged under this request's id")


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a problem."""
    invalid, module = (RequestValidationError, ValidationError), ModuleNotFoundError
    for kind in (errors.WattcastError, *invalid, HTTPException, OSError, module, Exception):
        app.add_exception_handler(kind, _handled)


def documented(kinds: str = "") -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: its problems by status, with an example each.

    Whoever needs the database (``store``) may find its disk full.
    """
    by_status: dict[int | str, dict[str, Any]] = {}
    words = kinds.split()
    more = ("disk-full", "internal") if "store" in words else ("internal",)
    for kind in (*words, *more):
        described = TYPES[kind]
        answer = by_status.setdefault(
            described.status,
            {
                "description": "",
                "content": {
                    MEDIA_TYPE: {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        answer["description"] = "; ".join(
            part for part in (answer["description"], described.title) if part
        )
        answer["content"][MEDIA_TYPE]["examples"][kind] = {
            "summary": described.title,
            "value": described.members(described.description),
        }
    return by_status


def described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with ``Problem`` in the place of FastAPI's own error shape."""
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    return made
