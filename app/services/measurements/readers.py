"""Uploads read beside the service: in a process of their own, so that predictions keep the
interpreter to themselves, and so that an upload that takes too much ends its reader alone.

    to the reader   {"what": "store", "bytes": 51234, "options": {...}, "actor": ...} and the bytes
    from it         {"done": ...} or {"problem": {"kind": ..., "detail": ..., "context": {...}}}

The reader (``python -m wattcast.app.services.measurements``) is started with the first
upload and ends when none comes for a while, or when the service does. What a reader that died was
reading is given to another once: a batch is stored whole or not at all, and the same rows are the
same batch.
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

from wattcast.app import logs, settings
from wattcast.app.services.measurements import tables, upload
from wattcast.app.store.measurements import Batch
from wattcast.features.cuda.isolation import Limited
from wattcast.features.errors import GivenUpError, ServiceError

if TYPE_CHECKING:
    from wattcast.app.services import Services

GRACE_SECONDS = 5.0
"""A reader keeps the time limit itself; one that does not is killed so much later."""

NICENESS = 19
"""Predictions come first where a reader shares their cores: at 10, 32 uploads at once held some of
them up for 60 to 90 ms (``python -m benchmarks load``)."""

IN_MEMORY = 2**20
"""Bytes of an upload that are kept in memory, or moved at a time."""

_STORED: TypeAdapter[tuple[Batch, bool]] = TypeAdapter(tuple[Batch, bool])


class UploadReader:
    """Stores and checks uploads for ``services``, one at a time, in a reader where its settings
    want that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._process: Limited | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def store(
        self, file: IO[bytes], options: upload.UploadOptions, actor: str
    ) -> tuple[Batch, bool]:
        """``store_upload``. Raises as that does, and ServiceError ``internal``."""
        if self._services.settings.upload_readers == "threads":
            stored, is_new = upload.store_upload(self._services, file, options, actor)
        else:
            answer = self._ask({"what": "store", "options": asdict(options), "actor": actor}, file)
            stored, is_new = _STORED.validate_python(answer, strict=False)
        if is_new:
            upload.counted(stored)
        return stored, is_new

    def check(self, file: IO[bytes], options: upload.UploadOptions) -> dict[str, Any]:
        """``check_upload``. Raises as ``store``."""
        if self._services.settings.upload_readers == "threads":
            return upload.check_upload(self._services, file, options)
        answer: dict[str, Any] = self._ask({"what": "check", "options": asdict(options)}, file)
        return answer

    def stop(self) -> None:
        """End the reader at once and start no other; what it reads is stored whole or not."""
        with self._lock:
            self._closing = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """The same, and wait for its end."""
        self.stop()
        self._end()

    def _ask(self, order: Mapping[str, Any], file: IO[bytes]) -> Any:
        seconds = self._services.settings.upload_seconds + GRACE_SECONDS
        size = file.seek(0, os.SEEK_END)
        head = to_json({**order, "request_id": logs.REQUEST_ID.get(), "bytes": size}) + b"\n"
        with self._turn:
            for _ in range(2):
                line = self._exchange(self._running(), head, file, seconds)
                if line:
                    answer = from_json(line)
                    if "problem" in answer:
                        problem = answer["problem"]
                        raise ServiceError(problem["kind"], problem["detail"], **problem["context"])
                    return answer["done"]
        raise ServiceError("internal", "the reading of the upload broke off")

    def _exchange(self, process: Limited, head: bytes, file: IO[bytes], seconds: float) -> bytes:
        """The reader's answer to an order, empty if it died. Raises ServiceError ``time-limit``."""
        assert process.stdin is not None
        assert process.stdout is not None
        over = threading.Event()

        def give_up() -> None:
            over.set()
            process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        line = b""
        try:
            with suppress(OSError):
                file.seek(0)
                process.stdin.write(head)
                copyfileobj(file, process.stdin, IN_MEMORY)
                process.stdin.flush()
                line = process.stdout.readline()
        finally:
            timer.cancel()
            if not line.endswith(b"\n"):
                line = b""
                logs.log().warning("a reader of uploads died", code=self._end())
        if over.is_set():
            raise tables.late()
        return line

    def _running(self) -> Limited:
        """The reader, started if need be. Raises GivenUpError where the service ends."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        with self._lock:
            if self._closing:
                raise GivenUpError("the service is shutting down; nothing was stored")
            if self._process is None:
                # A session of its own: Ctrl-C is for the service, which then ends its reader.
                self._process = Limited(
                    [sys.executable, "-P", "-m", __package__],
                    {"niceness": NICENESS},
                    stdin=subprocess.PIPE,  # closes with this process: the reader's sign to end
                    stdout=subprocess.PIPE,
                    env={
                        **settings.foreign_environment(),
                        **self._services.settings.environment(),
                        "OMP_NUM_THREADS": "1",
                    },
                )
            return self._process

    def _end(self) -> int | None:
        """End the reader at once; its exit status."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was left in its buffer finds no reader
                    pipe.close()
        return code
