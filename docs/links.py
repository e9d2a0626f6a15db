"""MkDocs hook: where a page names another one as docs/power.md, the site has a link.

In the repository the name says where to look; links relative to the site would not read as well.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_FENCE = re.compile(r"^(```|~~~)")
_CODE_OR_NAME = re.compile(r"`[^`]*`|(?<![\w/\[])(?<!\]\()docs/(?P<page>[\w/-]+)\.md")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with links; code stays as it is. A name without a page fails a strict build."""
    here = posixpath.dirname(page.file.src_uri)
    fenced = False
    lines = []
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        keep = fenced or line.startswith("    ")
        lines.append(line if keep else _CODE_OR_NAME.sub(lambda m: _link(m, here), line))
    return "\n".join(lines)


def _link(found: re.Match[str], here: str) -> str:
    page = found["page"]
    if page is None:
        return found[0]
    return f"[{page}]({posixpath.relpath(page + '.md', here or '.')})"
