"""What the text of a CUDA source tells before a compiler sees it, and its device code alone.

    forbidden_include(source)   includes that reach outside: refused
    host_code(source)           whether it holds host code
    device_code(source)         the source with its host functions blanked out, line by line
    code_alone(source)          without comments and strings

One pass over the text each; no parser. What is blanked keeps its line breaks, so every line of a
message or of the PTX is a line of the user's file.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
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
_HEADER = re.compile(r"""\s*(?:<([\w.+/-]+)>|"([\w.+/-]+)")\s*(?:/[/*].*)?""")
_NAME = re.compile(r"[\w.+-]{1,128}")
_PROBE = re.compile(r"__has_(?:include|embed)\w*")
_HOST = re.compile(
    r"<<<|\bint\s+main\s*\(|\bcuda(?:Malloc|Free|Memcpy|DeviceSynchronize|EventCreate)\w*\s*\("
    r"|#[ \t]*include[ \t]*<(?:iostream|vector|string|map|memory|algorithm|fstream|chrono|"
    r"stdio\.h|stdlib\.h|string\.h|sys/\w+\.h|time\.h|c(?:stdio|stdlib|string|time))>"
)
"""Launches, ``main``, calls of the runtime, headers of the host."""


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


def is_header_name(name: str) -> bool:
    """Whether it is a plain relative path: no folder above, none twice."""
    parts = name.split("/")
    return len(parts) <= 16 and all(_NAME.fullmatch(each) and each.strip(".") for each in parts)


def includes_of(text: str) -> list[str]:
    """The names of the headers that a text includes."""
    headers = (_HEADER.fullmatch(match[2]) for match in _DIRECTIVE.finditer(text))
    return [header[1] or header[2] for header in headers if header]


def host_code(source: str) -> bool:
    """Whether there is host code; such files need ``nvcc``, or to be cut (``device_code``)."""
    text, _ = _spliced(source)
    text = NOISE.sub(lambda found: found[0] if found["number"] is not None else _blank(found), text)
    return _HOST.search(text) is not None


def code_alone(source: str) -> str:
    """The source on joined lines, a space for each comment and ``""`` for each string."""

    def short(found: re.Match[str]) -> str:
        if found["number"] is not None:
            return found[0]
        return " " if found[0][0] == "/" else '""'

    return NOISE.sub(short, _spliced(source)[0])


_PARENTHESIS = re.compile(r"[()]")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_MOST_NAME = 256
"""Characters of a name."""


def closing_of(text: str, opening: int, most: int) -> int | None:
    """The position of the parenthesis that closes the one at ``opening``, within ``most``
    characters."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, opening, opening + most):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return None


def parts_of(text: str, *, angles: bool) -> list[str] | None:
    """The parts between top-level commas; ``None`` where brackets do not match. With ``angles``,
    those of templates are brackets."""
    parts: list[str] = []
    waiting: list[str] = []
    start = deep = 0
    for position, char in enumerate(text):
        if char in "([{" or (
            char == "<"
            and angles
            and not deep
            and word_before(text[max(0, position - _MOST_NAME) : position])
        ):
            waiting.append(_CLOSING[char])
            deep += char != "<"
        elif char in ")]}":
            if not waiting or waiting.pop() != char:
                return None
            deep -= 1
        elif char == ">" and waiting and waiting[-1] == ">":
            waiting.pop()
        elif char == "," and not waiting:
            parts.append(text[start:position])
            start = position + 1
    return None if waiting else [*parts, text[start:]]


def word_before(text: str) -> str:
    """The identifier that ends ``text``, or nothing."""
    end = len(text.rstrip())
    start = end
    least = max(0, end - _MOST_NAME)
    while start > least and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return text[start:end].lstrip("0123456789")


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


# --- device code alone: what NVRTC takes of a file with host code ---------------------------------

_HEADERS = tomllib.loads(Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"))


LIBRARY: list[str] = _HEADERS["libcudacxx"]
"""The standard's headers that libcu++ has for device code."""


def standard_headers() -> dict[str, str]:
    """Stand-ins, by name, for the headers that NVRTC lacks: libcu++ under the standard's names for
    what device code may use, empty for the rest."""
    stubs = dict.fromkeys(_HEADERS["host"]["names"], "#pragma once\n")
    for name in _HEADERS["libcudacxx"]:
        stubs[name] = (
            f"#pragma once\n#if __has_include(<cuda/std/{name}>)\n#include <cuda/std/{name}>\n"
            f"#else\n#include <cuda/std/__{name}_>\n#endif\n"
            "namespace cuda { namespace std {} }\nnamespace std { using namespace ::cuda::std; }\n"
        )
    stubs["cstdint"] += (
        "".join(
            f"using ::cuda::std::{sign}int{bits}_t;\n"
            for sign in ("", "u")
            for bits in (8, 16, 32, 64)
        )
        + "using ::cuda::std::uintptr_t;\nusing ::cuda::std::intptr_t;\n"
    )
    own = "".join(f"using ::{name}; " for name in _HEADERS["of_cmath"])
    stubs["cmath"] += f"namespace std {{ {own}}}\n"
    for name, standard in _HEADERS["of_c"].items():
        stubs[name] = f"#pragma once\n#include <{standard}>\n"
    for name, parts in _HEADERS["cub"].items():
        lines = (f"#include <cub/{part.partition('_')[0]}/{part}.cuh>\n" for part in parts)
        stubs[name] = "#pragma once\n" + "".join(lines)
    return stubs


TEXTURE = re.compile(r"\btexture\s*<[^;(){}]{1,200}>\s*\w[^;(){}<>&]{0,200};")
"""A texture reference at namespace scope (CUDA before 12)."""

AS_NVCC = re.compile(
    r"\b(?:register|__const__|__volatile__|ushort|uint|ulong|M_[A-Z]\w*|HUGE_VALF?|RAND_MAX|SIZE_MAX|(?:FLT|DBL)_[A-Z]\w*)\b"
)
"""What sources have under nvcc, and NVRTC does not know."""

AS_NVCC_HEADER: dict[str, str] = _HEADERS["nvcc"]
"""The header, by its name, that tells NVRTC so."""

TEXTURE_HEADER: dict[str, str] = _HEADERS["texture_references"]
"""The header, by its name, that makes a texture reference of a texture object."""

_DEVICE = re.compile(r"\b__(?:global|device|constant|managed|shared)__\b")
_KEPT = re.compile(
    r"\s*(?:template\s*<|struct\b|class\b|union\b|enum\b|typedef\b|using\b|constexpr\b|concept\b|"
    r"static_assert\b|(?:static\s+|inline\s+)*(?:const|constexpr|consteval)\b)"
)
_TYPE = re.compile(
    r"\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:struct|class|union|enum)\b", re.DOTALL
)
_IN_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]{0,99}\)){0,99}\)){0,99}\)"
_ALIGNED = re.compile(rf"\b(?:__align__|alignas|__attribute__)\s*{_IN_PARENTHESES}")
_MACRO = re.compile(r"\w+\s*\(")
_CONSTEXPR = re.compile(r"\bconst(?:expr|eval)\b")
_SCOPE = re.compile(r"\s*(?:inline\s+)?(?:namespace(?:\s+[\w:]+)?|extern\s*\"\s*\")\s*\Z")
_DEFINE = re.compile(r"^[^\S\n]*#[^\S\n]*define[^\S\n]+(\w+)((?:\\\n|[^\n])*)", re.M)
_DECIDES = re.compile(
    r"^[^\S\n]*#[^\S\n]*(?:if|ifn?def|elif|else|endif|define|undef)\b(?:\\\n|[^\n])*", re.M
)
_STOP = re.compile(r"[{}()\[\];]|^[^\S\n]*#(?:\\\n|[^\n])*", re.M)
_LAUNCH = re.compile(r"\b(\w+(?:::\w+)*\s*<[\w\s,:+*()\\-]{1,200}>)\s*<<<")
_USE = re.compile(r"\b(\w+)\s*<([\w\s,:+*-]{1,200})>\s*\(")
_FUNCTION = re.compile(r"\btemplate\s*<([^<>]{1,200})>[\w\s*&:]*?\b(\w+)\s*\(")
_ALIAS = re.compile(
    r"\b(?:using|const(?:expr)?\s+(?:auto|bool|int|unsigned|size_t))\s+(\w+)\s*=\s*([\w:+*-]{1,99})\s*;"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A declaration at namespace scope: characters ``start`` to ``end`` and whether a device may
    need it: ``device`` says so itself, ``shared`` may be of either side (types, constants)."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A source without its host functions. ``pieces`` are those that either side may need, which
    may be blanked too where they do not compile; ``launched`` are template kernels as launched."""

    text: str
    pieces: tuple[Piece, ...]
    launched: tuple[str, ...]

    def without(self, lines: set[int]) -> DeviceCode | None:
        """Without the pieces that these 1-based lines are in; ``None`` if they are in none."""
        starts = [0, *(at + 1 for at, char in enumerate(self.text) if char == "\n")]
        places = [starts[line - 1] for line in lines if line <= len(starts)]
        ends = [starts[line] if line < len(starts) else len(self.text) for line in lines]
        out = {
            piece
            for piece in self.pieces
            for start, end in zip(places, ends, strict=False)
            if piece.start < end and start < piece.end
        }
        if not out:
            return None
        text = self.text
        for piece in out:
            text = text[: piece.start] + _blanked(text[piece.start : piece.end]) + text[piece.end :]
        return DeviceCode(text, tuple(p for p in self.pieces if p not in out), self.launched)


def device_code(source: str) -> DeviceCode:
    """The source with each host function, host prototype and host variable blanked out."""
    text = TEXTURE.sub(r"__constant__ \g<0>", source.replace("\r\n", "\n"))
    clean = _clean(text)
    macros = _device_macros(clean)
    kept, cut = list[Piece](), list[Piece]()
    for piece in _pieces(clean, macros):
        (cut if piece.kind == "host" else kept).append(piece)
    out, launched, at, host = list[str](), dict[str, None](), 0, list[str]()
    for piece in cut:
        out += [text[at : piece.start], _blanked(text[piece.start : piece.end])]
        launched |= dict.fromkeys(
            " ".join(name.split()) for name in _LAUNCH.findall(clean, piece.start, piece.end)
        )
        at = piece.end
        host.append(clean[piece.start : piece.end])
    launched = _as_called(launched, "\n".join(host))
    shared = tuple(piece for piece in kept if piece.kind == "shared")
    return DeviceCode("".join([*out, text[at:]]), shared, tuple(launched)[:MOST_LAUNCHED])


def host_functions(source: str) -> tuple[str, list[tuple[int, int]]]:
    """The source with blanks for comments and texts, and where in it its host functions are."""
    clean = _clean(source.replace("\r\n", "\n"))
    found = _pieces(clean, _device_macros(clean))
    return clean, [(piece.start, piece.end) for piece in found if piece.kind == "host"]


def _as_called(launched: Iterable[str], host: str) -> dict[str, None]:
    """Instances with what parameters of host templates and names of host code stand for:
    ``kernel<T>`` in ``run<T>`` is ``kernel<int>`` where ``run<int>(...)`` is called."""
    meanings = {name: [value] for name, value in _ALIAS.findall(host)}
    uses = dict[str, list[list[str]]]()
    for name, given in _USE.findall(host):
        uses.setdefault(name, []).append([each.strip() for each in given.split(",")])
    for parameters, name in _FUNCTION.findall(host):
        for at, parameter in enumerate(re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", parameters)):
            values = [use[at] for use in uses.get(name, ())[:MOST_LAUNCHED] if at < len(use)]
            meanings.setdefault(parameter, []).extend(values)
    found = list(dict.fromkeys(launched))[:MOST_LAUNCHED]
    for _ in range(4):  # parameters of parameters
        told = list[str]()
        for instance in found:
            kernel, bracket, given = instance.partition("<")
            name = next((n for n in re.findall(r"\b[A-Za-z_]\w*", given) if n in meanings), None)
            if name is None:
                told.append(instance)
                continue
            stands = dict.fromkeys(meanings[name][:MOST_LAUNCHED])
            meant = [re.sub(rf"\b{name}\b", each, given) for each in stands if each != name]
            told += [kernel + bracket + each for each in meant if len(each) <= MOST_SHOWN]
        found = list(dict.fromkeys(told))[:MOST_LAUNCHED]
    return dict.fromkeys(found)


MOST_LAUNCHED = 64
"""Instances of template kernels that a source's own launches ask for."""


def _clean(text: str) -> str:
    """The text with blanks for comments and for what strings hold."""
    return NOISE.sub(_quoted, text)


def _quoted(found: re.Match[str]) -> str:
    """As ``_blank``, but numbers stay, and the quotes of ``extern "C"``."""
    if found["number"] is not None:
        return found[0]
    blank = _blank(found)
    return f'"{blank[1:-1]}"' if found[0][:1] == '"' == found[0][-1:] and len(blank) > 1 else blank


def _blanked(text: str) -> str:
    """As many blanks; what decides or defines for the preprocessor stays."""
    clean, out, at = _clean(text), list[str](), 0
    for kept in _DECIDES.finditer(clean):
        out += [re.sub(r"[^\n]", " ", text[at : kept.start()]), kept[0]]
        at = kept.end()
    return "".join([*out, re.sub(r"[^\n]", " ", text[at:])])


def _device_macros(clean: str) -> re.Pattern[str]:
    """A pattern of ``__global__`` and its like, and of macros that stand for one."""
    names, bodies = set[str](), _DEFINE.findall(clean)
    for _ in range(4):  # macros of macros
        known = re.compile(rf"{_DEVICE.pattern}|\b(?:{'|'.join(sorted(names)) or '(?!)'})\b")
        names |= {name for name, body in bodies if known.search(body)}
    return re.compile(rf"{_DEVICE.pattern}|\b(?:{'|'.join(sorted(names)) or '(?!)'})\b")


def _pieces(clean: str, device: re.Pattern[str]) -> list[Piece]:
    """Declarations at namespace scope. ``namespace`` and ``extern "C"`` are walked into."""
    found = list[Piece]()
    start = depth = scopes = 0
    body = -1  # where the outermost brace of the declaration opened
    for stop in _STOP.finditer(clean):
        char = stop[0]
        if char[0] not in "{}()[];":  # a directive
            if depth == 0 and not clean[start : stop.start()].strip():
                start = stop.end()
            continue
        if char in "{([":
            if char == "{" and depth == 0:
                if _SCOPE.fullmatch(clean, start, stop.start()):
                    scopes, start = scopes + 1, stop.end()
                    continue
                body = stop.start()
            depth += 1
        elif char in "})]":
            if depth == 0:
                if char == "}" and scopes:
                    scopes, start = scopes - 1, stop.end()
                continue
            depth -= 1
            if depth == 0 and char == "}" and _is_function(clean, start, body):
                found.append(_piece(clean, start, stop.end(), body, device))
                start, body = stop.end(), -1
        elif depth == 0:
            found.append(_piece(clean, start, stop.end(), body, device))
            start, body = stop.end(), -1
    return found


def _is_function(clean: str, start: int, body: int) -> bool:
    head = _ALIGNED.sub("", clean[start:body]).rstrip()
    if _TYPE.match(head) and not head.endswith(")"):
        return False
    return ")" in head and not head.endswith(("=", ","))


def _piece(clean: str, start: int, end: int, body: int, device: re.Pattern[str]) -> Piece:
    begin = start + len(clean[start:end]) - len(clean[start:end].lstrip())
    head = clean[begin : body if body >= 0 else end]
    if device.search(clean, begin, end) and (device.search(head) or _TYPE.match(head)):
        return Piece(begin, end, "device")
    is_function = body >= 0 and _is_function(clean, begin, body)
    if _TYPE.match(head) and not is_function:
        return Piece(begin, end, "shared")
    if _KEPT.match(head) and (not is_function or _CONSTEXPR.search(head)):
        return Piece(begin, end, "shared")
    if body < 0 and ("(" not in head or _MACRO.match(head)):
        return Piece(begin, end, "shared")  # a variable, a constant, or what a macro declares
    return Piece(begin, end, "host")
