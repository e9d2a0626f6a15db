"""The page under ``/docs``: Swagger UI, all of it served by us, nothing inline."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from wattcast.app.api.pages import REVALIDATE, sent
from wattcast.app.services import pages
from wattcast.features.errors import ServiceError

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page itself."""
    return sent(request, pages.docs_page(), REVALIDATE)


@router.get("/docs/{name}")
async def get_file(request: Request, name: str) -> Response:
    """A file that the page loads."""
    found = await run_in_threadpool(pages.docs_file, name)
    if found is None:
        raise ServiceError("not-found", f"the documentation has no file {name[:100]!r}")
    return sent(request, found, REVALIDATE)
