"""The reader of uploads, a process started by ``readers``.

Orders come on standard input, answers go to standard output."""

from __future__ import annotations

import select
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from pydantic_core import from_json, to_json
from sqlalchemy.exc import SQLAlchemyError

from wattcast.app import logs, problems
from wattcast.app.services import Services
from wattcast.app.services.measurements import readers, upload
from wattcast.app.settings import Settings
from wattcast.app.store.database import Pool, open_database
from wattcast.app.store.repositories import Repositories
from wattcast.features.errors import WattcastError

IDLE_SECONDS = 60.0
"""A reader without work ends after so long: it takes about 90 MB."""


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Do what is ordered until nothing comes any more."""
    settings = Settings()
    logs.configure(settings)  # whatever is logged goes to stderr, out of the way of the answers
    services: Services | None = None
    while select.select([source], [], [], IDLE_SECONDS)[0] and (line := source.readline()):
        order = from_json(line)
        logs.REQUEST_ID.set(order["request_id"])
        with tempfile.SpooledTemporaryFile(readers.IN_MEMORY) as file:
            try:
                _receive(source, file, order["bytes"])
                services = services or _services(settings)
                answer = {"done": _done(services, order, file)}
            except (WattcastError, SQLAlchemyError, OSError) as error:
                answer = {"problem": _problem(error)}
        target.write(to_json(answer, inf_nan_mode="constants", fallback=str) + b"\n")
        target.flush()
    if services is not None:
        services.close()


def _receive(source: IO[bytes], file: IO[bytes], size: int) -> None:
    """All of an upload, also where there is no room to keep it: the next order comes behind it."""
    full: OSError | None = None
    while size > 0:
        part = source.read(min(size, readers.IN_MEMORY))
        if not part:
            raise SystemExit(0)  # the service has gone
        size -= len(part)
        try:
            if full is None:
                file.write(part)
        except OSError as error:
            full = error
    if full is not None:
        raise full
    file.seek(0)


def _services(settings: Settings) -> Services:
    engine = open_database(settings.sqlalchemy_url, Pool(most=1, seconds=settings.database_seconds))
    return Services(settings, data=Repositories(engine))


def _done(services: Services, order: Mapping[str, Any], file: IO[bytes]) -> Any:
    options = upload.UploadOptions(**order["options"])
    if order["what"] == "check":
        return upload.check_upload(services, file, options)
    return upload.store_upload(services, file, options, order["actor"])


def _problem(error: WattcastError | SQLAlchemyError | OSError) -> dict[str, Any]:
    if problems.is_full(error):
        logs.log().error("no room left on a disk", exc_info=error)
        return {"kind": "disk-full", "detail": problems.no_room(error), "context": {}}
    if isinstance(error, SQLAlchemyError):
        return {"kind": "store", "detail": problems.NOT_STORED, "context": {}}
    if isinstance(error, OSError):
        raise error
    return {"kind": problems.kind_of(error), "detail": str(error), "context": error.context}


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
