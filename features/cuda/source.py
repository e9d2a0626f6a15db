"""A first look at CUDA source: what it may include, and whether it holds host code.

Both answers come from the text without comments, before any compiler sees it. A user's
source must never read files of the service, so an include is a plain relative header name.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Finding(NamedTuple):
    """Something found in the source: 1-based line and what it is."""

    line: int
    what: str


_NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*(?:\#|%:|\?\?=)[ \t]*(include\w*|import|embed)\b(.*)$", re.M)
_HEADER = re.compile(r"""\s*(?:<([\w.+/-]+)>|"([\w.+/-]+)")\s*""")
_PROBE = re.compile(r"__has_(?:include|embed)\w*")
_HOST = (
    (re.compile(r"<<<"), "a kernel launch (<<<...>>>)"),
    (re.compile(r"\bint\s+main\s*\("), "main()"),
    (
        re.compile(
            r"#[ \t]*include[ \t]*<(?:iostream|vector|string|map|memory|algorithm|fstream|chrono|"
            r"stdio\.h|stdlib\.h|string\.h|sys/\w+\.h|time\.h|c(?:stdio|stdlib|string|time))>"
        ),
        "a host header",
    ),
    (
        re.compile(r"\bcuda(?:Malloc|Free|Memcpy|DeviceSynchronize|EventCreate)\w*\s*\("),
        "a host call",
    ),
)


def forbidden_include(source: str) -> Finding | None:
    """The first include that is no plain relative header name, else ``None``.

    Absolute paths, ``..``, macros as header names and probes (``__has_include``) are refused:
    each could read or test a file of the machine that compiles.
    """
    text = _without_comments(_spliced(source))
    for match in _DIRECTIVE.finditer(text):
        header = _HEADER.fullmatch(match[2])
        name = (header[1] or header[2]) if header else ""
        if match[1] != "include" or not name or name.startswith("/") or ".." in name.split("/"):
            return Finding(_line(text, match.start()), f"#{match[1]}{match[2].rstrip()}")
    probe = _PROBE.search(text)
    return Finding(_line(text, probe.start()), probe[0]) if probe else None


def host_code(source: str) -> Finding | None:
    """The first sign of host code, else ``None``; such files need ``nvcc``, not NVRTC."""
    text = _without_comments(_spliced(source), strings=True)
    found = [
        Finding(_line(text, match.start()), what)
        for pattern, what in _HOST
        if (match := pattern.search(text))
    ]
    return min(found, default=None)


def _spliced(source: str) -> str:
    """Join lines that end in a backslash, keeping the number of lines before each token."""
    joined = source.replace("\r\n", "\n")
    return re.sub(r"((?:[^\n]*\\[ \t]*\n)+)([^\n]*\n?)", _splice, joined)


def _splice(match: re.Match[str]) -> str:
    lines = match[0]
    flat = re.sub(r"\\[ \t]*\n", "", lines)
    return flat + "\n" * (lines.count("\n") - flat.count("\n"))


def _without_comments(source: str, strings: bool = False) -> str:
    """Blank out comments (and string contents), keeping every line break."""

    def blank(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] in "\"'":
            return '""' if strings else token
        return " " + "\n" * token.count("\n")

    return _NOISE.sub(blank, source)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
