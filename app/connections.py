"""Connections of the service: what uvicorn's protocol lacks against callers who hold them.

A caller may hold so many connections, must send a request's head and its body in time, and must
read what it asked for; the head and all that is not body has a largest size. What the application
itself limits (bodies it reads, requests at once) is in ``wattcast.app.api``.
"""

from __future__ import annotations

import asyncio
import json
import resource
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wattcast.app.api.rates import Shares, network_of
from wattcast.app.settings import Settings

RESERVED_FILES = 128
"""Open files that are left to the database, uploads and models, of those the system allows."""

MOST_UNPAID_BYTES = 64 * 1024
"""Most bytes of a request that are no body: request line, headers, trailers. What common servers
take is 8 to 64 KiB."""

FRAMING = 8
"""Bytes on the wire for one of a body, at most: a chunk of one byte has six."""

GRACE_SECONDS = 5.0
"""How much later than the application the connection gives up a body, or an answer not read."""

Stage = Literal["", "head", "body"]


@dataclass(frozen=True)
class Limits:
    """Of every connection of one service, in seconds, and who holds how many."""

    head_seconds: float
    body_seconds: float
    open: Shares


def protocol(settings: Settings) -> type[Connection]:
    """The protocol class for ``uvicorn.Config(http=...)``: one for each service."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(2, files - RESERVED_FILES)
    limits = Limits(
        head_seconds=settings.header_seconds,
        body_seconds=settings.body_seconds,
        # Half of what there is leaves the other half to everybody else.
        open=Shares(min(settings.connections_per_address, most // 2), most),
    )
    return type("LimitedConnection", (Connection,), {"limits": limits})


class Connection(HttpToolsProtocol):
    """One connection. For the event loop's thread."""

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._caller: str | None = None
        self._stage: Stage = ""
        self._received = 0
        self._delivered = 0
        self._armed: Stage = ""
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, or refuse it; start the clock of its first head."""
        super().connection_made(transport)
        caller = network_of(self.client[0]) if self.client else "local"
        if not self.limits.open.enter(caller):
            self._refuse(429, "/problems/rate", "this address holds too many connections")
            return
        self._caller = caller
        self._arm("head")

    def connection_lost(self, exc: Exception | None) -> None:
        """Give its place back."""
        super().connection_lost(exc)
        self._arm("")
        self._written()
        if self._caller is not None:
            self.limits.open.leave(self._caller)
            self._caller = None

    def data_received(self, data: bytes) -> None:
        """Feed the parser; clocks run only while a request is not all there."""
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        # A chunk may end one request and begin the next, so the count may be a chunk too small.
        if self._stage and self._received > MOST_UNPAID_BYTES + FRAMING * self._delivered:
            self._refuse(431, "about:blank", "the headers of the request are too large")
            return
        answered = self.cycle is None or self.cycle.response_complete
        # Line ends before a request begin none, and yet have stopped the keep-alive clock.
        self._arm(self._stage or ("head" if answered else ""))

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._stage, self._received, self._delivered = "head", 0, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers, which nothing here reads, are dropped."""
        if self._stage == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there; an answer is begun."""
        self._stage = "body"
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._delivered += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is there."""
        self._stage = ""
        self._arm("")
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The caller does not read as fast as it is answered."""
        super().pause_writing()
        if self._writing is None:
            seconds = self.limits.body_seconds + GRACE_SECONDS
            self._writing = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._written()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        if not self.transport.is_closing():
            self._close()

    def _written(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _arm(self, stage: Stage) -> None:
        """Run the clock of this stage, unless it runs already."""
        if stage == self._armed:
            return
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._armed = stage
        if stage:
            seconds = (
                self.limits.head_seconds
                if stage == "head"
                else self.limits.body_seconds + GRACE_SECONDS
            )
            self._reading = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        stage, self._reading, self._armed = self._armed, None, ""
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # by us, while what came before is answered
            self._arm(stage)
        elif self._stage == "head":
            seconds = f"{self.limits.head_seconds:g} s (WATTCAST_HEADER_SECONDS)"
            said = f"the request's headers did not arrive within {seconds}"
            self._refuse(408, "/problems/slow-body", said)
        else:
            self._close()

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        """Say why, unless an answer is under way, and close."""
        if self.cycle is None or self.cycle.response_complete:
            phrase = HTTPStatus(status).phrase
            facts = {"type": kind, "title": phrase, "status": status, "detail": detail}
            body = json.dumps(facts).encode()
            head = (
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\ncache-control: no-store\r\n"
                + ("retry-after: 1\r\n" if status == 429 else "")
                + "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        """Close; who does not read what is left is cut off a little later."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(GRACE_SECONDS, self.transport.abort)
