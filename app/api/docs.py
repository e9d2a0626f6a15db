"""The page under ``/docs``: Swagger UI without inline script, so that the policy can forbid it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from wattcast.app.api.headers import DOCS_POLICY, SWAGGER

router = APIRouter(include_in_schema=False)

_UI = f"{SWAGGER}/npm/swagger-ui-dist@5.35.0"
_STYLE_HASH = "sha384-WlYgdmXYOOBWL5apwjDEZwN+U3HmXSSu5R6V5aGxEcf7z+KuRNwBhoxKVN1i3D5I"
_SCRIPT_HASH = "sha384-gjRm0bEPMeTmMh5jT2cHccIwCUZSTd8YC+j0d0sXw0MdGEfScduGpSyF3ZSSLkX9"
"""Of the two files in npm's package of this version: a browser runs nothing else, whatever the
network delivers, on a page where people enter their keys."""

_PAGE = f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Wattcast: the API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{_UI}/swagger-ui.css" integrity="{_STYLE_HASH}" crossorigin>
</head>
<body>
<div id="swagger-ui"></div>
<noscript>The same as JSON: <a href="/openapi.json">/openapi.json</a></noscript>
<script src="{_UI}/swagger-ui-bundle.js" integrity="{_SCRIPT_HASH}" crossorigin></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

_START = """\
window.ui = SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true});
"""


@router.get("/docs")
async def page() -> Response:
    """The page itself."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": DOCS_POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    """What starts Swagger UI on the page."""
    return Response(_START, media_type="text/javascript")
