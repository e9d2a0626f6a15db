"""The outermost layer of every request, as pure ASGI: id, limits of the body, security headers,
metrics, log line, last resort."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattcast.app import metrics, problems
from wattcast.app.api.access import CALLER, UPLOADING
from wattcast.app.api.rates import Load, Shares
from wattcast.app.logs import REQUEST_ID, access, is_json, log
from wattcast.app.settings import Settings

SLOW_SECONDS = 2.0
"""A body that takes longer than this to arrive is slow: 16 MiB at 70 Mbit/s."""

HUNG_UP = 499
"""Status in log lines and metrics of a request whose caller hung up before all of it had come
(nginx's number): no fault of ours, and nobody is there to be answered."""

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyTooLarge(HTTPException):
    """Raised from ``receive``: passes through frameworks as the 413 it is."""


class SlowBody(HTTPException):
    """Raised from ``receive`` where the body is late, or is one slow body too many."""


class Guard:
    """Gives each request an id, counts its body as it streams in, logs it, hides our faults.

    A caller's ``X-Request-ID`` is kept if it is a plain word, and returned either way.
    """

    def __init__(self, app: ASGIApp, settings: Settings, load: Load) -> None:
        self._app = app
        self._slow_bodies = load.slow_bodies
        self._limit = settings.max_body_bytes
        self._upload_limit = settings.max_upload_bytes
        self._body_seconds = settings.body_seconds
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
                headers = message.get("headers", ())
                message["headers"] = [
                    *headers,
                    (b"x-request-id", request_id.encode()),
                    *security_headers(status, headers),
                ]
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
                    body = _Body(scope, receive, self._slow_bodies, self._body_seconds)
                    body.limit, body.setting = limit, setting
                    try:
                        await self._app(scope, body.receive, send_with_id)
                    finally:
                        body.end()
            else:
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = HUNG_UP
        except Exception as error:
            log().error("unexpected error", exc_info=error, path=scope["path"])
            if status:
                raise  # the answer has begun; the server can only close the connection
            await problems.internal()(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - start
            metrics.served(scope, status, seconds)
            if self._logs:
                access(scope["method"], scope["path"], status, seconds, self._as_json)
            REQUEST_ID.reset(token)


class _Body:
    """A body as it arrives: counted, given up when it is late, and few at once that are slow."""

    def __init__(self, scope: Scope, receive: Receive, slow: Shares, seconds: float) -> None:
        self.limit = 0
        self.setting = ""
        self._scope = scope
        self._receive = receive
        self._shares = slow
        self._seconds = seconds
        self._start = asyncio.get_running_loop().time()
        self._seen = 0
        self._complete = False
        self._slow: str | None = None

    async def receive(self) -> Message:
        """The ASGI server's next message. Raises SlowBody and BodyTooLarge."""
        if self._complete:  # what comes now is the caller hanging up, at any time
            return await self._receive()
        message = await self._next()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._seen > self.limit:
                raise BodyTooLarge(413, _too_large(None, self.limit, self.setting))
            if self._complete:
                self.end()
        return message

    def end(self) -> None:
        """It is slow no longer."""
        if self._slow is not None:
            self._shares.leave(self._slow)
            self._slow = None

    async def _next(self) -> Message:
        if self._slow is None and self._seconds > SLOW_SECONDS:
            try:
                async with asyncio.timeout_at(self._start + SLOW_SECONDS):
                    return await self._receive()
            except TimeoutError:
                self._enter()
        try:
            async with asyncio.timeout_at(self._start + self._seconds):
                return await self._receive()
        except TimeoutError:
            raise SlowBody(
                408,
                f"the body did not arrive within {self._seconds:g} s (WATTCAST_BODY_SECONDS)",
            ) from None

    def _enter(self) -> None:
        caller = self._scope[CALLER].name
        if not self._shares.enter(caller):
            raise SlowBody(
                429,
                f"{self._shares.of(caller)} other bodies of this caller arrive slowly "
                "(WATTCAST_SLOW_BODIES_PER_CALLER)",
                headers={"Retry-After": "1"},
            )
        self._slow = caller


def _too_large(size: int | None, limit: int, setting: str) -> str:
    what = "the body" if size is None else f"the body has {size} bytes; it"
    return f"{what} may have at most {limit} bytes ({setting})"


def _is_taken(media: bytes, takes_files: bool) -> bool:
    kind = media.partition(b";")[0].strip().lower()
    if kind == b"multipart/form-data":
        return takes_files
    json = kind.startswith(b"application/") and kind.endswith(b"+json")
    return json or kind == b"application/json"


def _unsupported(media: bytes, takes_files: bool) -> Response:
    given = media.decode("latin-1")[:100]
    said = f"the body is called {given!r}" if given else "the body has no Content-Type"
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

_NAMES = frozenset(name for name, _ in (*_DATA, *_PAGE))


_NOT_MODIFIED = 304


def security_headers(
    status: int, headers: Sequence[tuple[bytes, bytes]]
) -> Sequence[tuple[bytes, bytes]]:
    """What to add to an answer with this status and these headers; one it has set itself stays.

    Headers of a 304 replace those that the browser stored (RFC 9111, 3.2), and nothing but pages
    and their files is ever answered so: it carries the policy of a page, which also mends pages
    that were stored with another.
    """
    media, has_own = b"", False
    for name, value in headers:
        if name == b"content-type":
            media = value
        elif name in _NAMES:
            has_own = True
    chosen = _PAGE if status == _NOT_MODIFIED or media.startswith(_OF_PAGES) else _DATA
    if not has_own:
        return chosen
    own = {name for name, _ in headers}
    return tuple((name, value) for name, value in chosen if name not in own)
