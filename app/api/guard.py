"""The outermost layer of every request, as pure ASGI: id, limits of the body, security headers,
metrics, log line, last resort."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattcast.app import logs, metrics, problems
from wattcast.app.api.access import UPLOADING
from wattcast.app.settings import Settings

BODY_SECONDS = 60.0
"""Longest time a body may take to arrive: 256 MiB at 36 Mbit/s."""

HUNG_UP = 499
"""Status in log lines and metrics of a request whose caller hung up before all of it had come
(nginx's number): no fault of ours, and nobody is there to be answered."""

_SANE_ID, _DIGITS = re.compile(r"[A-Za-z0-9._-]{1,64}"), re.compile(r"[0-9]+")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyTooLarge(HTTPException):
    """Raised from ``receive``: passes through frameworks as the 413 it is."""


class SlowBody(HTTPException):
    """Raised from ``receive`` where the body is late."""


class Guard:
    """Gives each request an id, counts its body as it streams in, logs it, hides our faults.

    A caller's ``X-Request-ID`` is kept if it is a plain word, and returned either way.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._limit = settings.max_body_bytes
        self._upload_limit = settings.max_upload_bytes
        self._logs = settings.access_log and settings.log_level in ("debug", "info")
        self._as_json = logs.is_json(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = Headers(scope=scope)
        given, size = headers.get("x-request-id", ""), headers.get("content-length", "")
        media = headers.get("content-type", "")
        length = int(size) if _DIGITS.fullmatch(size) else None
        request_id = given if _SANE_ID.fullmatch(given) else uuid4().hex
        token = logs.REQUEST_ID.set(request_id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message.get("headers", ())
                identity = (b"x-request-id", request_id.encode())
                message["headers"] = [*own, identity, *security_headers(status, own)]
            await send(message)

        try:
            if scope["method"] in _WITH_BODY:
                takes_files = scope["path"] in UPLOADING
                limit = self._upload_limit if takes_files else self._limit
                setting = "WATTCAST_MAX_UPLOAD_BYTES" if takes_files else "WATTCAST_MAX_BODY_BYTES"
                if length is not None and length > limit:
                    why = _too_large(length, limit, setting)
                    await problems.response("too-large", why)(scope, receive, send_with_id)
                elif length != 0 and not _is_taken(media, takes_files):
                    await _unsupported(media, takes_files)(scope, receive, send_with_id)
                else:
                    body = _Body(receive, limit, setting)
                    await self._app(scope, body.receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = HUNG_UP
        except Exception as error:
            logs.log().error("unexpected error", exc_info=error, path=scope["path"])
            if status:
                raise  # the answer has begun; the server can only close the connection
            await problems.internal()(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - start
            metrics.served(scope, status, seconds)
            if self._logs:
                logs.access(scope["method"], scope["path"], status, seconds, self._as_json)
            logs.REQUEST_ID.reset(token)


class _Body:
    """A body as it arrives: counted, and given up when it is late."""

    def __init__(self, receive: Receive, limit: int, setting: str) -> None:
        self._receive, self._limit, self._setting = receive, limit, setting
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS
        self._seen = 0
        self._complete = False

    async def receive(self) -> Message:
        """The ASGI server's next message. Raises SlowBody and BodyTooLarge."""
        if self._complete:  # what comes now is the caller hanging up, at any time
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            why = f"the body did not arrive within {BODY_SECONDS:g} s"
            raise SlowBody(408, why) from None
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._seen > self._limit:
                raise BodyTooLarge(413, _too_large(None, self._limit, self._setting))
        return message


def _too_large(size: int | None, limit: int, setting: str) -> str:
    what = "the body" if size is None else f"the body has {size} bytes; it"
    return f"{what} may have at most {limit} bytes ({setting})"


def _is_taken(media: str, takes_files: bool) -> bool:
    kind = media.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return takes_files
    json = kind.startswith("application/") and kind.endswith("+json")
    return json or kind == "application/json"


def _unsupported(media: str, takes_files: bool) -> Response:
    said = f"the body is called {media[:100]!r}" if media else "the body has no Content-Type"
    wanted = "multipart/form-data" if takes_files else "application/json"
    return problems.response("media-type", f"{said}; send {wanted}")


_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_DATA = (
    *_ALWAYS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""What is no page runs nothing and is kept by no cache: answers belong to whoever has the key."""

_PAGE = (
    *_ALWAYS,
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
)
"""Pages of our own load scripts and styles from here alone; nothing is inline."""

_OF_PAGES = (b"text/html", b"text/css", b"text/javascript", b"application/javascript", b"image/")

_NOT_MODIFIED = 304


def security_headers(
    status: int, headers: Sequence[tuple[bytes, bytes]]
) -> Sequence[tuple[bytes, bytes]]:
    """What to add to an answer with this status and these headers; one it has set itself stays.

    Headers of a 304 replace those that the browser stored (RFC 9111, 3.2), and nothing but pages
    and their files is ever answered so: it carries the policy of a page, which also mends pages
    that were stored with another.
    """
    own = dict(headers)
    page = status == _NOT_MODIFIED or own.get(b"content-type", b"").startswith(_OF_PAGES)
    return tuple((name, value) for name, value in (_PAGE if page else _DATA) if name not in own)
