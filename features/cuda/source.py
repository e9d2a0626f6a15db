"""A first look at CUDA source: what it may include, and whether it holds host code.

Both answers come from the text without comments, before any compiler sees it, in one pass over it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

MOST_SHOWN = 200
"""Characters of a source that a message repeats."""


class Finding(NamedTuple):
    """Something found in the source: 1-based line and what it is."""

    line: int
    what: str


NOISE = re.compile(
    r"""[/"'R0-9](?:
      (?<=/)/[^\n]*
    | (?<=/)\*.*?(?:\*/|\Z)
    | (?<=R)(?:(?<!\wR)|(?<=\b[uUL]R)|(?<=\bu8R))
      "(?P<end>[^\s()\\"]{0,16})\(.*?(?:\)(?P=end)"|\Z)
    | (?<=")[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?
    | (?<=')[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'?
    | (?<=[0-9])(?<!\w[0-9])(?P<number>(?:[eEpP][+-]|'?\w|\.)*+)
    )""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, strings, characters, and numbers, whose ``'`` opens no character (C++17, [lex]).

What is never closed goes to the end of its line or of the text, so that no text is looked at
twice: the time grows with the text alone.
"""

_SPLICE = re.compile(r"\\[ \t\v\f]*\n")
_DIRECTIVE = re.compile(r"^[^\S\n]*(?:\#|%:|\?\?=)[^\S\n]*(include\w*|import|embed)\b(.*)$", re.M)
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

    Absolute paths, ``..``, macros as header names and probes (``__has_include``) are refused. This
    is the second line, and a clear message: what a compiler can read at all, ``isolation`` says.
    """
    text, splices = _spliced(source)
    text = NOISE.sub(lambda found: found[0] if found[0][0] != "/" else _blank(found), text)
    for match in _DIRECTIVE.finditer(text):
        header = _HEADER.fullmatch(match[2])
        name = (header[1] or header[2]) if header else ""
        if match[1] != "include" or not name or name.startswith("/") or ".." in name.split("/"):
            what = f"#{match[1]}{match[2].rstrip()}"
            return Finding(_line(text, splices, match.start()), what[:MOST_SHOWN])
    probe = _PROBE.search(text)
    return Finding(_line(text, splices, probe.start()), probe[0]) if probe else None


def host_code(source: str) -> Finding | None:
    """The first sign of host code, else ``None``; such files need ``nvcc``, not NVRTC."""
    text, splices = _spliced(source)
    text = NOISE.sub(lambda found: found[0] if found["number"] is not None else _blank(found), text)
    found = [
        Finding(_line(text, splices, match.start()), what)
        for pattern, what in _HOST
        if (match := pattern.search(text))
    ]
    return min(found, default=None)


def code_alone(source: str) -> str:
    """The source on joined lines, a space for each comment and ``""`` for each string."""

    def short(found: re.Match[str]) -> str:
        if found["number"] is not None:
            return found[0]
        return " " if found[0][0] == "/" else '""'

    return NOISE.sub(short, _spliced(source)[0])


def _spliced(source: str) -> tuple[str, list[int]]:
    """The text with lines joined that end in a backslash, and where in it they were joined."""
    pieces = _SPLICE.split(source.replace("\r\n", "\n"))
    return "".join(pieces), list(accumulate(map(len, pieces[:-1])))


def _blank(found: re.Match[str]) -> str:
    """As many blanks, so that every position and every line break stays."""
    text = found[0]
    if "\n" not in text:
        return " " * len(text)
    return "\n".join(" " * len(line) for line in text.split("\n"))


def _line(text: str, splices: list[int], position: int) -> int:
    return text.count("\n", 0, position) + bisect_right(splices, position) + 1
