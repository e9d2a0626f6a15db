"""Uploads read beside the service: in processes of their own, so that predictions keep the
interpreter to themselves, and so that an upload that takes too much ends its reader alone.

    to a reader     {"what": "store", "bytes": 51234, "options": {...}, "actor": ...} and the bytes
    from it         {"done": ...} or {"problem": {"kind": ..., "detail": ..., "context": {...}}}

A reader is started with the first upload and ends when none comes for a while, or when the service
does. What a reader that died had under way is given to another once: a batch is stored whole or
not at all, and the same rows are the same batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from shutil import copyfileobj
from typing import IO, TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from wattcast.app.logs import REQUEST_ID, log
from wattcast.app.services.measurements.tables import late
from wattcast.app.services.measurements.upload import (
    UploadOptions,
    check_upload,
    counted,
    store_upload,
)
from wattcast.app.settings import Settings, foreign_environment
from wattcast.app.store.measurements import Batch
from wattcast.features.cuda.isolation import Limited
from wattcast.features.errors import GivenUpError, ServiceError

if TYPE_CHECKING:
    from wattcast.app.services import Services

GRACE_SECONDS = 5.0
"""A reader minds the time limit itself; one that does not is killed so much later."""

NICENESS = 19
"""Predictions come first where a reader shares their cores: at 10, 32 uploads at once held some of
them up for 60 to 90 ms (``python -m benchmarks load``)."""

IN_MEMORY = 2**20
"""Bytes of an upload that are kept in memory, or moved at a time."""

_STORED: TypeAdapter[tuple[Batch, bool]] = TypeAdapter(tuple[Batch, bool])


class _DiedError(Exception):
    """A reader ended before it answered."""


class UploadReaders:
    """Stores and checks uploads for ``services``, in readers where its settings want that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._idle: list[_Reader] = []
        self._busy: set[_Reader] = set()
        self._closing = False
        self._lock = threading.Lock()

    def store(self, file: IO[bytes], options: UploadOptions, actor: str) -> tuple[Batch, bool]:
        """``store_upload``. Raises as that does, and ServiceError ``internal``."""
        if self._services.settings.upload_readers == "threads":
            stored, is_new = store_upload(self._services, file, options, actor)
        else:
            said = self._ask({"what": "store", "options": asdict(options), "actor": actor}, file)
            stored, is_new = _STORED.validate_python(said, strict=False)
        if is_new:
            counted(stored)
        return stored, is_new

    def check(self, file: IO[bytes], options: UploadOptions) -> dict[str, Any]:
        """``check_upload``. Raises as ``store``."""
        if self._services.settings.upload_readers == "threads":
            return check_upload(self._services, file, options)
        said: dict[str, Any] = self._ask({"what": "check", "options": asdict(options)}, file)
        return said

    def stop(self) -> None:
        """Start no more readers and end those that read; what they read is stored whole or not."""
        with self._lock:
            self._closing = True
            busy = list(self._busy)
        for reader in busy:
            reader.end()

    def close(self) -> None:
        """End all readers."""
        self.stop()
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.kill()

    def _ask(self, order: Mapping[str, Any], file: IO[bytes]) -> Any:
        settings = self._services.settings
        asked = {**order, "request_id": REQUEST_ID.get()}
        for _ in range(2):
            reader = self._begun()
            try:
                answer = reader.ask(asked, file, settings.upload_seconds + GRACE_SECONDS)
            except _DiedError:
                log().warning("a reader of uploads died", code=reader.kill())
                continue
            except BaseException:
                reader.kill()
                raise
            finally:
                with self._lock:
                    self._busy.discard(reader)
            with self._lock:
                self._idle.append(reader)
            if "problem" in answer:
                problem = answer["problem"]
                raise ServiceError(problem["kind"], problem["detail"], **problem["context"])
            return answer["done"]
        raise ServiceError("internal", "the reading of the upload broke off")

    def _begun(self) -> _Reader:
        """A reader for one order. Raises GivenUpError where the service ends."""
        reader = self._taken()
        with self._lock:
            if not self._closing:
                reader = reader or _Reader(self._services.settings)
                self._busy.add(reader)
                return reader
        if reader is not None:
            reader.kill()
        raise GivenUpError("the service is shutting down; nothing was stored")

    def _taken(self) -> _Reader | None:
        """A reader that waits; those that ended for want of work are cleared away."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                reader = self._idle.pop()
            if reader.alive:
                return reader
            reader.kill()


class _Reader:
    """One process; used by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        # A session of its own: Ctrl-C is for the service, which then sees to its readers.
        self._process = Limited(
            [sys.executable, "-P", "-m", "wattcast.app.services.measurements"],
            {"niceness": NICENESS},
            stdin=subprocess.PIPE,  # closes with this process: the reader's sign to end
            stdout=subprocess.PIPE,
            env={**foreign_environment(), **settings.environment(), "OMP_NUM_THREADS": "1"},
        )

    def ask(self, order: Mapping[str, Any], file: IO[bytes], seconds: float) -> dict[str, Any]:
        """The answer to one order. Raises _DiedError, and ServiceError ``time-limit``."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        to, source = self._process.stdin, self._process.stdout
        assert to is not None
        assert source is not None
        over = threading.Event()

        def end() -> None:
            over.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            to.write(to_json({**order, "bytes": size}) + b"\n")
            copyfileobj(file, to, IN_MEMORY)
            to.flush()
            line = source.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if over.is_set():
            raise late()
        if not line.endswith(b"\n"):
            raise _DiedError
        found: dict[str, Any] = from_json(line)
        return found

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it at once, from whichever thread; whoever waits for its answer finds out."""
        self._process.kill()

    def kill(self) -> int:
        """End it at once; its exit status."""
        self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was left in its buffer finds no reader
                    pipe.close()
        return code
