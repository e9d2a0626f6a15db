"""Who may call what, and how often: pure ASGI, between the guard and the routes.

In order: a call from a web page of another site is refused, the caller's key is checked, the rate
is limited, the key's scope is compared with the call's, and the caller's share of requests and
event streams at once is taken. Public calls take no place of others'; `/healthz` and `/readyz` are
always answered.

Which scope a call needs, and what the OpenAPI document says of it, are told here too. What no rule
names needs the strictest: a new route cannot be open because somebody forgot it.

    public   liveness, readiness, kinds of problems, documentation of the API
    read     looking, and predicting (which changes nothing but the record of answers)
    write    measurements
    train    everything else that changes something: jobs, models
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattcast.app import logs, problems
from wattcast.app.services import Services, analyses
from wattcast.app.settings import Settings, is_loopback
from wattcast.app.store import database, keys

# How often a caller may call, and how much one may hold at once: in memory of this process.

REQUESTS_AT_ONCE = 512
"""Requests that one process serves at the same time: each may hold a connection and a database
file, and 1,024 open files are what systems give a process by default."""

STREAMS_AT_ONCE = 16
"""Jobs that one caller follows by events: what two people with a page each look at."""

RATE_SECONDS = 10
"""A rate is kept on average over so long: what a page or a script asks for at once passes."""

WRONG_KEYS, WRONG_KEY_SECONDS = 5, 2.0
"""Wrong keys of one address within RATE_SECONDS that are answered at once, and how late the answer
to each further one is."""


class Rate:
    """At most ``count`` calls of each caller within ``RATE_SECONDS``; 0 sets no limit.

    For one thread: the event loop's.
    """

    def __init__(self, count: float) -> None:
        self._item = RateLimitItemPerSecond(max(1, round(count)), RATE_SECONDS) if count else None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def take(self, caller: str) -> float:
        """Count a call: 0 if it may be made, else the seconds until one may."""
        if self._item is None or await self._limiter.hit(self._item, caller):
            return 0.0
        window = await self._limiter.get_window_stats(self._item, caller)
        return max(1.0, window.reset_time - time.time())


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What counts as one caller: an IPv4 address, or the /64 that one IPv6 subscriber has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class Load:
    """What one service serves at this moment, by caller."""

    def __init__(self, settings: Settings) -> None:
        each = settings.requests_at_once_per_caller
        self.requests = analyses.Shares(each, REQUESTS_AT_ONCE)
        self.streams = analyses.Shares(STREAMS_AT_ONCE)
        self.wrong_keys = analyses.Shares(each)
        self.wrong = Rate(WRONG_KEYS)


CALLER = "wattcast.caller"
"""Where the ASGI scope holds the ``Caller``."""

DEFAULT_RATE = 100.0
"""Requests a second of one caller where keys are required and no setting says otherwise."""

_ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz"})

_EVENTS = re.compile(r"/jobs/[^/]+/events")

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/problems"})
"""Paths anyone may look at: they tell nothing of what is stored."""

PUBLIC_BELOW = ("/docs/", "/problems/", "/static/")

LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})

PREDICTING = frozenset(
    {
        *("/predict", "/predict/batch", "/features", "/analyze", "/dvfs", "/sweep", "/cost"),
        *("/compare", "/judge", "/applications", "/tunings", "/language-models", "/fleet"),
    }
)
"""Calls that take a body and change nothing."""

UPLOADING = frozenset({"/measurements", "/measurements/check", "/retrain", "/applications"})
"""Calls that take files: their bodies may be larger, and multipart."""


def scope_needed(method: str, path: str) -> keys.Scope | None:
    """The scope that a call needs; ``None`` for a public one."""
    if method in LOOKING:
        return None if path in PUBLIC or path.startswith(PUBLIC_BELOW) else "read"
    if method == "POST" and path in PREDICTING:
        return "read"
    if path == "/measurements" or path.startswith("/measurements/"):
        return "write"
    return "train"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the key where one was shown, and the address."""

    key: keys.ApiKey | None
    address: str

    @property
    def name(self) -> str:
        """The caller as the audit log and the rate limit know it."""
        return f"key:{self.key.id}" if self.key is not None else f"address:{self.address}"


def actor_of(request: Request) -> str:
    """Who makes this request, for the audit log."""
    caller = request.scope.get(CALLER)
    return caller.name if isinstance(caller, Caller) else "unknown"


class Access:
    """Answers 401, 403 and 429 itself; lets everything else through."""

    def __init__(self, app: ASGIApp, settings: Settings, load: Load) -> None:
        self._app = app
        self._load = load
        self._public = analyses.Shares(settings.requests_at_once_per_caller)
        self._required = settings.keys_required
        self._own_names_only = settings.api_keys == "auto" and not self._required
        per_second = settings.requests_per_second
        if per_second is None:
            per_second = DEFAULT_RATE if self._required else 0.0
        self._rate = Rate(per_second * RATE_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        caller = scope[CALLER].name
        analyses.CALLER_NAME.set(caller)
        if scope[CALLER].key is not None:
            send = _telling_scopes(send, scope[CALLER].key)
        taken: list[analyses.Shares] = []
        try:
            for shares in self._shares(scope):
                if not shares.enter(caller):
                    await _full(shares, caller)(scope, receive, send)
                    return
                taken.append(shares)
            await self._app(scope, receive, send)
        finally:
            for shares in taken:
                shares.leave(caller)

    def _shares(self, scope: Scope) -> Iterator[analyses.Shares]:
        """What a call takes a part of."""
        path = scope["path"]
        if scope_needed(scope["method"], path) is None:
            if path not in _ALWAYS_ANSWERED:
                yield self._public
            return
        yield self._load.requests
        if _EVENTS.fullmatch(path):
            yield self._load.streams

    async def _refusal(self, scope: Scope) -> Response | None:
        needed = scope_needed(scope["method"], scope["path"])
        client = scope.get("client")
        address = network_of(client[0]) if client else "local"
        if not self._required:
            foreign = self._foreign(scope)
            if foreign is not None:
                return problems.response("forbidden", foreign)
        key = None
        if needed is not None and self._required:
            key, refusal = await self._checked(scope, _token(scope), address)
            if refusal is not None:
                return refusal
        caller = scope[CALLER] = Caller(key, address)
        if needed is None:
            return None
        wait = await self._rate.take(caller.name)
        if wait:
            return _later("too many requests (WATTCAST_REQUESTS_PER_SECOND)", wait)
        if key is not None and needed not in key.scopes:
            return problems.response(
                "forbidden",
                f"the key has no scope {needed!r}",
                {"needed": needed, "scopes": sorted(key.scopes)},
            )
        return None

    async def _checked(
        self, scope: Scope, token: str | None, address: str
    ) -> tuple[keys.ApiKey | None, Response | None]:
        """The key that a token stands for, or why there is none."""
        if token is None:
            return None, _unauthorized("no API key; send Authorization: Bearer <key>")
        services: Services = scope["app"].state.services
        ring = services.database.key_ring
        wait = ring.read_in(token)
        if wait is not None:
            await asyncio.sleep(wait)
            try:
                await run_in_threadpool(ring.read)
            except database.StoreError as error:
                headers = {"Retry-After": "1"}
                return None, problems.response("store", error.detail, headers=headers)
        key = ring.find(token)
        if key is None:
            logs.log().warning("wrong API key", address=address)
            return None, await self._wrong(address)
        return key, None

    async def _wrong(self, address: str) -> Response:
        """The answer to a wrong key, late if there were many. Right ones never wait: who shares
        the address (behind a proxy everybody does) is not held up."""
        if await self._load.wrong.take(address):
            held = self._load.wrong_keys
            if not held.enter(address):
                return _later("too many wrong API keys", WRONG_KEY_SECONDS)
            try:
                await asyncio.sleep(WRONG_KEY_SECONDS)
            finally:
                held.leave(address)
        return _unauthorized("the API key is unknown or has been revoked")

    def _foreign(self, scope: Scope) -> str | None:
        """Why a call without a key does not come from a user of this machine, if it does not.

        A page of any site can make its visitor's browser post to 127.0.0.1, and through a name
        that it points there read the answers. Browsers tell by ``Origin`` and ``Host``.
        """
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._own_names_only and not _is_own(host):
            said = host[:100]
            return f"the host {said!r} is not this machine; behind a proxy set WATTCAST_API_KEYS"
        if scope["method"] in LOOKING:
            return None
        cross = headers.get("sec-fetch-site") == "cross-site"
        if cross or (origin is not None and not _is_same(origin, host)):
            return "calls from web pages of other sites need an API key"
        return None


@lru_cache(maxsize=1024)
def _is_own(host: str) -> bool:
    """Whether a ``Host`` header names the loopback."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _is_same(origin: str, host: str) -> bool:
    """Whether an ``Origin`` is the page's own: that of the ``Host`` it calls."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _telling_scopes(send: Send, key: keys.ApiKey) -> Send:
    """Answers tell what their key may do: the page hides what it may not."""
    header = (b"wattcast-scopes", " ".join(sorted(key.scopes)).encode())

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], header]
        await send(message)

    return tell


def _token(scope: Scope) -> str | None:
    kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token else None


def _unauthorized(why: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="wattcast"'}
    return problems.response("unauthorized", why, headers=headers)


def _full(shares: analyses.Shares, caller: str) -> Response:
    if shares.full:
        return _later(f"{shares.held} requests are being served already", 1.0)
    return _later(f"{shares.of(caller)} such requests of this caller are open already", 1.0)


def _later(why: str, seconds: float) -> Response:
    headers = {"Retry-After": str(max(1, int(seconds + 0.999)))}
    return problems.response("rate", why, headers=headers)


_SCHEME = "apiKey"


def describe(app: FastAPI) -> None:
    """The API's description: every operation with its scope and its refusals, from the rules that
    are enforced."""
    refusals = problems.documented("unauthorized forbidden rate busy slow-body")

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        made = app.openapi_schema = problems.described(app)
        made["components"]["securitySchemes"] = {
            _SCHEME: {
                "type": "http",
                "scheme": "bearer",
                "description": "A key of `wattcast keys create`; needed unless the service "
                "listens on the loopback only.",
            }
        }
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                scope = scope_needed(method.upper(), path)
                if scope is None:
                    continue
                operation["security"] = [{}, {_SCHEME: []}]
                operation["x-scope"] = scope
                statuses = ["401", "403", "429"]
                if "requestBody" in operation:
                    statuses.append("408")
                for status in statuses:
                    _merge(operation["responses"], status, refusals[int(status)])
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _merge(responses: dict[str, Any], status: str, refusal: dict[str, Any]) -> None:
    """Add a refusal beside what an operation documents for the same status."""
    there = responses.setdefault(status, {"description": refusal["description"], "content": {}})
    content = there["content"].setdefault(
        problems.MEDIA_TYPE, {"schema": refusal["content"][problems.MEDIA_TYPE]["schema"]}
    )
    examples = content.setdefault("examples", {})
    examples |= {**refusal["content"][problems.MEDIA_TYPE]["examples"], **examples}
