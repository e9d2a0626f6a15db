"""The page and what it loads, ready to be sent: rendered, hashed and compressed once.

template -> page            names every file under the hash of all of them
static/* -> Asset by name   so that a browser may keep what it has for good
plotly   -> Asset           4.8 MB, read only when a figure asks for it
swagger  -> Asset by name   1.7 MB, read only when somebody opens /docs
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as version_of
from importlib.resources import files
from pathlib import PurePosixPath

from wattcast.app.settings import installed_version
from wattcast.predictor.messages import POWER_MODEL_NAMES, TIME_MODEL_NAMES

PLOTLY = "plotly.js"
"""The bundled script of the installed plotly package, under this name."""

_SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")
"""Files of Swagger UI that the documentation of the API loads, out of the package fastapi-offline
(MIT; Swagger UI itself is Apache-2.0), which follows Swagger UI's releases."""

_MEDIA = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".ptx": "text/plain",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent; ``zipped`` is the same under gzip."""

    content: bytes
    zipped: bytes
    media: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media: str) -> Asset:
        """Hash and compress ``content``."""
        etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, gzip.compress(content, 6, mtime=0), media, etag)


@cache
def assets() -> dict[str, Asset]:
    """Our own files by name: modules, style sheets, pictures, and the example's PTX."""
    found = [
        file for file in files("wattcast.app.web").joinpath("static").iterdir() if file.is_file()
    ]
    found.append(files("wattcast.app.demo").joinpath("vector_add.ptx"))
    return {
        file.name: Asset.of(file.read_bytes(), _MEDIA[PurePosixPath(file.name).suffix])
        for file in sorted(found, key=lambda file: file.name)
    }


@cache
def plotly() -> Asset:
    """Plotly's script, from its Python package (what ``plotly.offline.get_plotlyjs`` reads)."""
    bundle = files("plotly").joinpath("package_data", "plotly.min.js")
    return Asset.of(bundle.read_bytes(), _MEDIA[".js"])


@cache
def version() -> str:
    """Hash of everything that the page loads: part of its files' paths."""
    digest = hashlib.sha256(version_of("plotly").encode())
    for name, asset in assets().items():
        digest.update(f"{name} {asset.etag}\n".encode())
    return digest.hexdigest()[:16]


@cache
def page() -> Asset:
    """The page under ``/``. It holds nothing of what is stored, so anyone may load it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("wattcast.app.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    modules = [name for name in assets() if name.endswith(".js")]
    rendered = environment.get_template("page.html.j2").render(
        static=f"/static/{version()}",
        modules=modules,
        version=installed_version(),
        power_models=POWER_MODEL_NAMES,
        time_models=TIME_MODEL_NAMES,
    )
    return Asset.of(rendered.encode(), "text/html")


def find(name: str) -> Asset | None:
    """A file that the page loads; takes its time for plotly's."""
    return plotly() if name == PLOTLY else assets().get(name)


def _beside(name: str) -> bytes:
    return files("wattcast.app.web").joinpath(name).read_bytes()


@cache
def docs_page() -> Asset:
    """The page under ``/docs``."""
    return Asset.of(_beside("docs.html"), "text/html")


@cache
def _swagger(name: str) -> Asset:
    file = files("fastapi_offline").joinpath("static", name)
    return Asset.of(file.read_bytes(), _MEDIA[PurePosixPath(name).suffix])


@cache
def _start() -> Asset:
    return Asset.of(_beside("docs_start.js"), _MEDIA[".js"])


def docs_file(name: str) -> Asset | None:
    """A file that ``docs_page`` loads; takes its time for Swagger UI's, once."""
    if name == "start.js":
        return _start()
    return _swagger(name) if name in _SWAGGER else None
