"""The outermost layer of every request, as pure ASGI: id, body limit, log line, last resort."""

from __future__ import annotations

import re
import time
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import problems
from app.logs import REQUEST_ID, access, is_json, log
from app.settings import Settings

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyTooLarge(HTTPException):
    """Raised from ``receive``: passes through frameworks as the 413 it is."""


class Guard:
    """Gives each request an id, counts its body as it streams in, logs it, hides our faults.

    A caller's ``X-Request-ID`` is kept if it is a plain word, and returned either way.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._limit = settings.max_body_bytes
        self._logs = settings.access_log and settings.log_level in ("debug", "info")
        self._as_json = is_json(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        given, media, length = b"", b"", None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                given = value
            elif name == b"content-type":
                media = value
            elif name == b"content-length":
                length = int(value) if value.isdigit() else None
        request_id = given.decode() if _SANE_ID.fullmatch(given) else uuid4().hex
        token = REQUEST_ID.set(request_id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                ]
            await send(message)

        try:
            if scope["method"] in _WITH_BODY:
                if length is not None and length > self._limit:
                    await problems.response("too-large", self._too_large(length))(
                        scope, receive, send_with_id
                    )
                elif length != 0 and not _is_json(media):
                    await _unsupported(media)(scope, receive, send_with_id)
                else:
                    await self._app(scope, self._counting(receive), send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except Exception as error:
            log().error("unexpected error", exc_info=error, path=scope["path"])
            if status:
                raise  # the answer has begun; the server can only close the connection
            await problems.internal()(scope, receive, send_with_id)
        finally:
            if self._logs:
                seconds = time.perf_counter() - start
                access(scope["method"], scope["path"], status, seconds, self._as_json)
            REQUEST_ID.reset(token)

    def _counting(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._limit:
                    raise BodyTooLarge(413, self._too_large(None))
            return message

        return counted

    def _too_large(self, size: int | None) -> str:
        what = "the body" if size is None else f"the body has {size} bytes; it"
        return f"{what} may have at most {self._limit} bytes (WATTCAST_MAX_BODY_BYTES)"


def _is_json(media: bytes) -> bool:
    kind = media.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def _unsupported(media: bytes) -> Response:
    given = media.decode("latin-1")[:100]
    said = f"the body is called {given!r}" if given else "the body has no Content-Type"
    return problems.response("media-type", f"{said}; send application/json")
