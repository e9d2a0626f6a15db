"""The pages under ``/`` and ``/docs`` and the files they load: rendered, hashed, compressed once.

template -> page            names every file under the hash of all of them
static/* -> Asset by name   so that a browser may keep what it has for good
modules  -> main.js         one script of all of ours: a request in place of thirty
plotly   -> Asset           4.8 MB, read only when a figure asks for it
swagger  -> Asset by name   1.7 MB, read only when somebody opens /docs
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as version_of
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from wattcast.app import demo, settings
from wattcast.app.api.route import json_response
from wattcast.features.errors import ServiceError
from wattcast.predictor.messages import POWER_MODEL_NAMES, TIME_MODEL_NAMES
from wattcast.predictor.messages.language_model import LanguageModelRequest
from wattcast.predictor.messages.operators import OperatorRequest

FIRST = "transpose.json"
"""The solved example that the page opens with (``predict.js``)."""

PLOTLY = "plotly.js"
"""The bundled script of the installed plotly package, under this name."""

_SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")
"""Files of Swagger UI that the documentation of the API loads, out of the package fastapi-offline
(MIT; Swagger UI itself is Apache-2.0), which follows Swagger UI's releases."""

_MEDIA = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".ptx": "text/plain",
    ".gz": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent; ``zipped`` is the same under gzip."""

    content: bytes
    zipped: bytes
    media: str
    etag: str

    @classmethod
    def of(cls, content: bytes, name: str) -> Asset:
        """Hash and compress ``content``, whose kind the ending of ``name`` tells."""
        etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        media = _MEDIA[PurePosixPath(name).suffix]
        return cls(content, gzip.compress(content, 6, mtime=0), media, etag)


@cache
def _file(package: str, *path: str) -> Asset:
    """A file of a package; takes its time for large ones, once."""
    return _read(files(package).joinpath(*path))


def _read(file: Traversable) -> Asset:
    return Asset.of(file.read_bytes(), file.name)


@cache
def assets() -> dict[str, Asset]:
    """Our own files by name: modules, style sheets, pictures, solved examples, CodeMirror."""
    web = files("wattcast.app.web")
    found = [file for file in web.joinpath("static").iterdir() if file.is_file()]
    found += [file for file in demo.SOLVED.iterdir() if file.name.endswith(".json")]
    for example in demo.examples().values():
        found += [demo.FOLDER.joinpath(name) for name in example.get("files", {}).values()]
    found.append(web.joinpath("codemirror", "codemirror.js"))
    read = {file.name: _read(file) for file in sorted(found, key=lambda file: file.name)}
    ours = [file for file in found if file.name.endswith(".js") and file.name != "codemirror.js"]
    modules = {file.name.removesuffix(".js"): file.read_text(encoding="utf-8") for file in ours}
    return read | {"main.js": Asset.of(bundle("main", modules).encode(), "main.js")}


_IMPORTED = re.compile(r'^import (?:\* as (\w+)|(\{[^}]*\})) from "\./(\w+)\.js";$', re.M)
_EXPORTED = re.compile(r"^export (?=(?:async )?(?:const|class|function) (\w+))", re.M)


def bundle(entry: str, modules: Mapping[str, str]) -> str:
    """A module and all that it imports as one script, each a function that answers what it exports;
    none may import itself by way of others. What is not among ``modules`` stays an import."""
    made: dict[str, str] = {}

    def bound(found: re.Match[str]) -> str:
        whole, names, module = found.groups()
        add(module)
        return f"const {whole or names.replace(' as ', ': ')} = ${module};"

    def add(module: str) -> None:
        if module in made:
            return
        if module not in modules:
            made[module] = f'import * as ${module} from "./{module}.js";'
            return
        body = _IMPORTED.sub(bound, modules[module])
        exported = ", ".join(_EXPORTED.findall(body))
        body = _EXPORTED.sub("", body)
        made[module] = f"const ${module} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"

    add(entry)
    return "\n".join(made.values())


@cache
def current_version() -> str:
    """Hash of everything that the page loads: part of its files' paths."""
    digest = hashlib.sha256(version_of("plotly").encode())
    for name, asset in assets().items():
        digest.update(f"{name} {asset.etag}\n".encode())
    return digest.hexdigest()[:16]


@cache
def page(*, first: bool = True) -> Asset:
    """The page under ``/``; the ``first`` example comes along where no other is asked for. It holds
    nothing of what is stored, so anyone may load it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    solved = assets()[FIRST].content.decode().replace("<", "\\u003c")  # the same, as JSON

    environment = Environment(
        loader=PackageLoader("wattcast.app.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rendered = environment.get_template("page.html.j2").render(
        static=f"/static/{current_version()}",
        first=(FIRST, solved) if first else None,
        version=settings.installed_version(),
        power_models=POWER_MODEL_NAMES,
        time_models=TIME_MODEL_NAMES,
        examples=demo.examples(),
        operator=OperatorRequest.model_json_schema(),
        language=LanguageModelRequest.model_json_schema(),
    )
    return Asset.of(rendered.encode(), "page.html")


def find(name: str) -> Asset | None:
    """A file that the page loads; plotly's is what ``plotly.offline.get_plotlyjs`` reads."""
    if name == PLOTLY:
        return _file("plotly", "package_data", "plotly.min.js")
    return assets().get(name)


def docs_file(name: str) -> Asset | None:
    """A file that the page under ``/docs`` loads."""
    if name == "start.js":
        return _file("wattcast.app.web", "docs_start.js")
    return _file("fastapi_offline", "static", name) if name in _SWAGGER else None


router = APIRouter(include_in_schema=False)

REVALIDATE = "no-cache"
_FOR_GOOD = "public, max-age=31536000, immutable"
"""A file under the hash of its content never changes."""


@router.get("/")
async def get_page(request: Request) -> Response:
    """The page."""
    return sent(request, page(first=not request.query_params), REVALIDATE)


@router.get("/static/{version}/{name}")
async def get_file(request: Request, version: str, name: str) -> Response:
    """A file of the page; under an older version, which an open page may name, as it is now."""
    found = await run_in_threadpool(find, name)
    if found is None:
        raise ServiceError("not-found", f"the page has no file {name[:100]!r}")
    return sent(request, found, _FOR_GOOD if version == current_version() else REVALIDATE)


@router.get("/docs")
async def get_docs(request: Request) -> Response:
    """Swagger UI, all of it served by us, nothing inline."""
    return sent(request, _file("wattcast.app.web", "docs.html"), REVALIDATE)


@router.get("/docs/{name}")
async def get_docs_file(request: Request, name: str) -> Response:
    """A file that it loads."""
    found = await run_in_threadpool(docs_file, name)
    if found is None:
        raise ServiceError("not-found", f"the documentation has no file {name[:100]!r}")
    return sent(request, found, REVALIDATE)


@router.get("/openapi.json")
def get_openapi(request: Request) -> Response:
    """The description of the API. To make it takes most of a second once: not on the event loop."""
    return json_response(request.app.openapi())


def sent(request: Request, asset: Asset, caching: str) -> Response:
    """A file, compressed where the caller reads that; 304 where it has it already."""
    headers = {"Cache-Control": caching, "ETag": asset.etag, "Vary": "Accept-Encoding"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = asset.zipped
    return Response(content, media_type=asset.media, headers=headers)
