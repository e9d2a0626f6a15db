"""The pages under ``/`` and ``/docs`` and the files they load."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from wattcast.app.api.route import json_response
from wattcast.app.services import pages
from wattcast.features.errors import ServiceError

router = APIRouter(include_in_schema=False)

REVALIDATE = "no-cache"
_FOR_GOOD = "public, max-age=31536000, immutable"
"""A file under the hash of its content never changes."""


@router.get("/")
async def get_page(request: Request) -> Response:
    """The page."""
    return sent(request, pages.page(), REVALIDATE)


@router.get("/static/{version}/{name}")
async def get_file(request: Request, version: str, name: str) -> Response:
    """A file of the page; under an older version, which an open page may name, as it is now."""
    found = await run_in_threadpool(pages.find, name)
    if found is None:
        raise ServiceError("not-found", f"the page has no file {name[:100]!r}")
    return sent(request, found, _FOR_GOOD if version == pages.version() else REVALIDATE)


@router.get("/docs")
async def get_docs(request: Request) -> Response:
    """Swagger UI, all of it served by us, nothing inline."""
    return sent(request, pages.docs_page(), REVALIDATE)


@router.get("/docs/{name}")
async def get_docs_file(request: Request, name: str) -> Response:
    """A file that it loads."""
    found = await run_in_threadpool(pages.docs_file, name)
    if found is None:
        raise ServiceError("not-found", f"the documentation has no file {name[:100]!r}")
    return sent(request, found, REVALIDATE)


@router.get("/openapi.json")
def get_openapi(request: Request) -> Response:
    """The description of the API. To make it takes most of a second once: not on the event loop."""
    return json_response(request.app.openapi())


def sent(request: Request, asset: pages.Asset, caching: str) -> Response:
    """A file, compressed where the caller reads that; 304 where it has it already."""
    headers = {"Cache-Control": caching, "ETag": asset.etag, "Vary": "Accept-Encoding"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = asset.zipped
    return Response(content, media_type=asset.media, headers=headers)
