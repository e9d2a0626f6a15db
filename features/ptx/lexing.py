"""Text level of PTX: decoding, comments, positions, names and numbers.

Comments and the insides of strings are overwritten by spaces, so that every later stage
may search for ``{``, ``}`` and ``;`` without meeting a false one, and every offset still
points into the text as the user sent it.
"""

from __future__ import annotations

import re
import struct
from typing import NoReturn

from wattcast.features.errors import (
    DEFAULT_LIMITS,
    MOST_DIAGNOSTICS,
    Diagnostic,
    PtxError,
    SizeLimits,
    checkpoint,
)
from wattcast.features.ptx.ir import Immediate

# PTX ISA 9.0, 4.4 "Identifiers": followsym is [a-zA-Z0-9_$], the first may also be %.
NAME = r"[A-Za-z_$%][A-Za-z0-9_$]*+"

PIECE_CHARACTERS = 1_000_000
"""How much text is searched in one go, some 20 ms: other threads run in between."""

# Each alternative ends in one way only, so no text makes the search go back.
_COMMENT_STRING_OR_PIECE = re.compile(
    r'//[^\n]*+|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]++|\\[^\n])*+"?'
    rf'|[^/"]{{1,{PIECE_CHARACTERS}}}+',
    re.DOTALL,
)


def decode(text: str | bytes) -> str:
    """Text of what the user sent: UTF-8, UTF-16 with a mark, else Latin-1 (never fails)."""
    if isinstance(text, str):
        return text
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return bytes(text).decode("utf-16", errors="replace")
    try:
        return bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        return bytes(text).decode("latin-1")


def text_of_file(data: bytes) -> str:
    """PTX or CUDA source as it lies on a disk, in whatever encoding its comments are.

    Raises PtxError, with the line, for a zero byte: a program or an object file."""
    text = decode(data).removeprefix("\ufeff")
    end = len(text.rstrip("\0 \t\r\n\f\v"))
    if (at := text.find("\0", 0, end)) >= 0:
        raise PtxError(
            "no text but binary data: give PTX or source; `cuobjdump --dump-ptx` takes PTX out "
            "of a program",
            line=text.count("\n", 0, at) + 1,
        )
    return text


class Source:
    """The text and its ``clean`` twin of equal length, without comments and strings."""

    __slots__ = ("clean", "limits", "newline", "text")

    def __init__(self, text: str, limits: SizeLimits = DEFAULT_LIMITS) -> None:
        """Raises PtxError for a NUL inside the text and for a comment that never ends, and
        TooComplexError for a line that is too long."""
        self.text = text
        self.limits = limits
        self.newline = "\n" if "\n" in text or "\r" not in text else "\r"
        clean = text if self.newline == "\n" else text.replace("\r", "\n")
        self._check_lines(clean)
        end = len(clean.rstrip("\0 \t\r\n\f\v"))
        if "\0" in clean:
            nul = clean.find("\0", 0, end)
            if nul >= 0:
                self.fail("binary data: the text contains a NUL byte", nul)
            clean = clean.replace("\0", " ")
        if clean.startswith("\ufeff"):
            clean = " " + clean[1:]
        if "/" in clean or '"' in clean:
            clean = _COMMENT_STRING_OR_PIECE.sub(self._blank, clean)
        self.clean = clean

    def _check_lines(self, clean: str) -> None:
        most, start = self.limits.max_line_characters, 0
        while len(clean) - start > most:
            newline = clean.rfind("\n", start, start + most + 1)
            if newline < 0:
                line = clean.count("\n", 0, start) + 1
                what = "characters before the line ends"
                self.limits.hold("max_line_characters", most + 1, what, line)
            start = newline + 1

    def _blank(self, match: re.Match[str]) -> str:
        checkpoint()
        found = match.group()
        if found[0] not in '/"':
            return found
        if found.startswith("//"):
            return " " * len(found)
        if found[0] == '"':
            if len(found) == 1 or found[-1] != '"':
                return " " * len(found)
            return '"' + " " * (len(found) - 2) + '"'
        if len(found) < 4 or not found.endswith("*/"):
            self.fail("the comment that begins here has no end", match.start())
        return "\n".join(" " * len(line) for line in found.split("\n"))

    def tracker(self, offset: int = 0, line: int = 1) -> Tracker:
        """A tracker that starts at an offset whose line is known."""
        return Tracker(self.text, self.newline, offset, line)

    def fail(self, detail: str, offset: int) -> NoReturn:
        """Raise PtxError at an offset."""
        line, column = self.tracker().at(offset)
        raise PtxError(detail, line=line, column=column)


class Tracker:
    """Turns offsets into 1-based (line, column); cheap when the offsets mostly ascend."""

    __slots__ = ("_line", "_line_start", "_newline", "_offset", "_text")

    def __init__(self, text: str, newline: str, offset: int, line: int) -> None:
        self._text, self._newline, self._offset, self._line = text, newline, offset, line
        self._line_start = text.rfind(newline, 0, offset) + 1

    def at(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both 1-based; the column counts characters."""
        text, newline = self._text, self._newline
        if offset < self._line_start:
            self._line -= text.count(newline, offset, self._offset)
            self._line_start = text.rfind(newline, 0, offset) + 1
            self._offset = offset
        elif offset > self._offset:
            breaks = text.count(newline, self._offset, offset)
            if breaks:
                self._line += breaks
                self._line_start = text.rfind(newline, self._offset, offset) + 1
            self._offset = offset
        return self._line, offset - self._line_start + 1


class Diagnostics:
    """Collects warnings; bounded, because hostile text could yield one per character."""

    def __init__(self) -> None:
        self._kept: list[Diagnostic] = []
        self._dropped = 0

    @property
    def full(self) -> bool:
        """No more are kept (they are still counted)."""
        return len(self._kept) >= MOST_DIAGNOSTICS

    def add(self, code: str, detail: str, tracker: Tracker, offset: int) -> None:
        """Keep one warning at an offset of the tracker's text."""
        if self.full:
            self._dropped += 1
            return
        line, column = tracker.at(offset)
        self._kept.append(Diagnostic(code, detail, line, column))

    def result(self) -> tuple[Diagnostic, ...]:
        """Those kept, in the order found, and one more that counts the rest."""
        if not self._dropped:
            return tuple(self._kept)
        rest = Diagnostic("more_diagnostics", f"{self._dropped} further warnings are not listed")
        return (*self._kept, rest)


# PTX ISA 9.0, 4.5 "Constants". Lengths are bounded: no literal of PTX is longer, and
# Python converts longer digit strings in quadratic time.
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*+(?:"
    r"0[xX](?P<hex>[0-9a-fA-F]{1,32})U?"
    r"|0[bB](?P<binary>[01]{1,128})U?"
    r"|0[fF](?P<single>[0-9a-fA-F]{8})"
    r"|0[dD](?P<double>[0-9a-fA-F]{16})"
    r"|0(?P<octal>[0-7]{1,44})U?"
    r"|(?P<decimal>[0-9]{1,40})U?"
    r"|(?P<float>(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}|[0-9]{1,40}(?=[eE]))"
    r"(?:[eE][+-]?[0-9]{1,6})?)"
    r")"
)
_RADIX = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}


def number(text: str) -> Immediate | None:
    """The literal a text is, or ``None``; ``value`` is exact, ``text`` is kept as written."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    kind = match.lastgroup or ""
    digits = match.group(kind)
    value: int | float
    if kind in _RADIX:
        value = int(digits, _RADIX[kind])
    elif kind == "single":
        value = struct.unpack(">f", bytes.fromhex(digits))[0]
    elif kind == "double":
        value = struct.unpack(">d", bytes.fromhex(digits))[0]
    else:
        value = float(digits)
    return Immediate(-value if match.group("sign") == "-" else value, text)
