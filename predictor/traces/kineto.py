"""Traces of the PyTorch profiler (``export_chrome_trace``, ``tensorboard_trace_handler``).

The Chrome trace format's complete events (``ph: X``; "Trace Event Format", Google, 2016) with the
members that Kineto writes (pytorch/kineto, ``libkineto/src/output_json.cpp``, schemaVersion 1;
PyTorch 1.8 to 2.9): ``ts`` and ``dur`` in microseconds with up to three decimals, in ``args`` of
kernels ``grid``, ``block``, ``registers per thread``, ``shared memory``, ``device``, ``stream``,
``correlation`` and ``External id``.

The file is never held in memory: a window slides over the text, and the standard library's
decoder takes one event after the other. ijson (3.6.0) would do the same at the same speed, but its
parser in C ends the process with a segmentation fault at a whole number of more than 4,300 digits.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from wattcast.features.checked import text, whole
from wattcast.features.errors import DataError, ServiceError, checkpoint
from wattcast.predictor.traces import trace as rows
from wattcast.predictor.traces.library import operator_called

if TYPE_CHECKING:
    from wattcast.predictor.traces import Progress

CHUNK = 1 << 18
MOST_VALUE = 1 << 20
"""Characters of one event, or of one member beside them: as Python's objects some 30 MB at worst.
The largest events of PyTorch hold a call stack, some 100 kB."""

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = JSONDecoder(parse_float=str)
"""Numbers with decimals stay text: microseconds since 1970 as floats are 0.25 us apart."""

KERNELS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
OPERATORS = ("cpu_op", "operator", "user_annotation")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
MOST_CATEGORY = 32
"""Characters of a category that are looked at."""

MOST_DIGITS = 20
"""Of microseconds: more than ``MOST_TIME`` has."""

EVERY = 100_000
"""Events between two signs of progress."""


@contextmanager
def _opened(path: Path, name: str, most_characters: int | None) -> Iterator[_Window]:
    """A file, gzipped or not. Raises DataError, and ServiceError ``too-large``."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            opened: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            decoded = io.TextIOWrapper(opened, encoding="utf-8-sig", errors="replace")
            yield _Window(name, decoded, most_characters)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: the gzip is cut off: {error}", file=name) from error


def read(
    path: Path, name: str, progress: Progress, most_characters: int | None = None
) -> rows.Trace:
    """The trace of a file. Raises DataError, and ServiceError ``too-large``."""
    with _opened(path, name, most_characters) as window:
        return _Reader(name, window, progress, most_characters is not None).trace()


def own_events(path: Path, most: int) -> list[dict[str, Any]]:
    """The first so many events as they stand, with microseconds that count from the first launch.
    Numbers with decimals among their arguments are text. Raises DataError."""
    found: list[tuple[dict[str, Any], int]] = []
    first: int | None = None
    with _opened(path, path.name, None) as window:
        for member, event in _Reader(path.name, window, lambda what, count: None, False).members():
            if member is not None or not isinstance(event, dict):
                continue
            start, length = (_nanoseconds(event.get(each)) for each in ("ts", "dur"))
            if length is not None:
                event["dur"] = length / 1000
                if start is not None and text(event.get("cat"), MOST_CATEGORY).lower() in KERNELS:
                    first = start if first is None else min(first, start)
            if len(found) < most and (start is not None or "ts" not in event):
                found.append((event, start or 0))
    return [
        {**event, "ts": (start - (first or 0)) / 1000} if "ts" in event else event
        for event, start in found
    ]


_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")


def _goes_on(error: JSONDecodeError) -> bool:
    """Whether a text was left before its end."""
    short = len(error.doc) - error.pos < 8  # an escape has 6 characters
    return error.msg.startswith("Unterminated") or (short and error.msg.startswith("Invalid \\"))


class _Window:
    """Text that is read as it is needed."""

    def __init__(self, name: str, file: IO[str], most: int | None) -> None:
        self._name, self._file, self._most = name, file, most
        self._text, self._at, self._before = "", 0, 0
        self._ended = False

    def _more(self) -> bool:
        chunk = "" if self._ended else self._file.read(CHUNK)
        self._ended = not chunk
        self._before += self._at
        self._text, self._at = self._text[self._at :] + chunk, 0
        if self._most is not None and self._before + len(self._text) > self._most:
            raise ServiceError(
                "too-large",
                f"the trace unpacks to more than {self._most:,} characters "
                "(WATTCAST_MAX_UNPACKED_BYTES)",
            )
        checkpoint()
        return bool(chunk)

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        if self._at < len(self._text) and (found := self._text[self._at]) > " ":
            return found
        while True:
            match = _BLANK.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> None:
        """Pass one of the characters expected. Raises DataError."""
        found = self.peek()
        if not found or found not in expected:
            wanted = " or ".join(expected)
            raise self.wrong(f"expected {wanted}, found {found!r}" if found else "it is cut off")
        self._at += 1

    def value(self) -> Any:
        """The next JSON value. Raises DataError."""
        if not self.peek():
            raise self.wrong("it is cut off")
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except JSONDecodeError as error:
                if len(self._text) - self._at > MOST_VALUE:
                    raise self.wrong(f"a value is longer than {MOST_VALUE:,} characters") from error
                # What is wrong far from the end of what was read is no value that goes on.
                inside = len(self._text) - error.pos > CHUNK and not _goes_on(error)
                if inside or not self._more():
                    cut = not inside and self._cut(error)
                    raise self.wrong("it is cut off" if cut else error.msg) from error
            except (RecursionError, ValueError) as error:
                raise self.wrong(f"not a trace: {error}") from error
            else:
                if end == len(self._text) and self._more():
                    continue  # a number may go on
                if end - self._at > MOST_VALUE:
                    raise self.wrong(f"a value is longer than {MOST_VALUE:,} characters")
                self._at = end
                return found

    def _cut(self, error: JSONDecodeError) -> bool:
        """Whether the text ends within a value that was right so far."""
        rest = error.doc[error.pos :].strip()
        return _goes_on(error) or any(word.startswith(rest) for word in _WORDS)

    def wrong(self, why: str) -> DataError:
        """What to raise where the text is at now."""
        at = self._before + self._at
        return DataError(f"{self._name}: character {at:,}: {why}", file=self._name, character=at)


class _Reader:
    def __init__(self, name: str, window: _Window, progress: Progress, limited: bool) -> None:
        self._window = window
        self._progress = progress
        ranges = rows.MOST_RANGES if limited else None
        self._build = rows.Builder(
            name, "PyTorch profiler", rows.MOST_LAUNCHES if limited else None
        )
        self._operators, self._calls = rows.Ranges(ranges), rows.Ranges(ranges)
        self._external = array("q")
        self._steps: list[tuple[int, int, str]] = []

    def trace(self) -> rows.Trace:
        events = 0
        for member, value in self.members():
            if member is None:
                events += 1
                if isinstance(value, dict) and value.get("ph") == "X":
                    self._event(value)
                if events % EVERY == 0:
                    self._progress("events", events)
            elif member == "deviceProperties" and isinstance(value, list):
                self._devices(value)
        operator, launched, called = self._linked()
        known = self._operators.called.all()
        return self._build.built(operator, launched, self._steps, called, known)

    def members(self) -> Iterator[tuple[str | None, Any]]:
        """Members of the file, and events under the name ``None``."""
        window = self._window
        if window.peek() == "[":  # the format's other form: a list of events
            yield from ((None, each) for each in self._listed())
            return
        window.take("{")
        traced = False
        while window.peek() != "}":
            name = window.value()
            if not isinstance(name, str):
                raise window.wrong("expected the name of a member")
            window.take(":")
            if name == "traceEvents" and window.peek() == "[":
                traced = True
                yield from ((None, each) for each in self._listed())
            else:
                yield name, window.value()
            if window.peek() != "}":
                window.take(",")
        if not traced:
            raise window.wrong("no member traceEvents: not a trace of the PyTorch profiler")

    def _listed(self) -> Iterator[Any]:
        window = self._window
        window.take("[")
        while window.peek() != "]":
            yield window.value()
            if window.peek() != "]":
                window.take(",")
        window.take("]")

    def _devices(self, found: list[Any]) -> None:
        for each in found:
            number = whole(each.get("id"), rows.NONE) if isinstance(each, dict) else rows.NONE
            if number != rows.NONE:
                sms = whole(each.get("numSms"), 0, rows.MOST_SIZE) or None
                self._build.devices[number] = rows.Device(number, text(each.get("name")), sms)

    def _event(self, event: Mapping[str, Any]) -> None:
        category = text(event.get("cat"), MOST_CATEGORY).lower()
        if category not in KERNELS and category not in OPERATORS and category not in CALLS:
            return
        start = _nanoseconds(event.get("ts"))
        length = _nanoseconds(event.get("dur"))
        given = event.get("args")
        told: Mapping[str, Any] = given if isinstance(given, dict) else {}
        name = text(event.get("name"))
        external = whole(told.get("External id", told.get("external id")), rows.NONE)
        if category in KERNELS:
            end = rows.NONE if start is None or length is None else start + length
            self._launch(KERNELS[category], name, (start, end), told, external, event)
            return
        if start is None or length is None:
            return
        thread = f"{text(event.get('pid'))} {text(event.get('tid'))}"
        if category in CALLS:
            link = whole(told.get("correlation"), rows.NONE)
            self._calls.add(thread, start, start + length, "", link)
        elif rows.STEP.match(name):
            self._build.step(self._steps, start, start + length, name)
        else:
            called = operator_called(name, told)
            self._operators.add(thread, start, start + length, name, external, called)

    def _launch(
        self,
        what: Any,
        name: str,
        times: tuple[int | None, int],
        told: Mapping[str, Any],
        external: int,
        event: Mapping[str, Any],
    ) -> None:
        device = whole(told.get("device", event.get("pid")))
        stream = told.get("stream", event.get("tid"))
        link = whole(told.get("correlation"), rows.NONE)
        kind = rows.Kind(
            name or "unnamed kernel",
            "",
            what,
            _three(told.get("grid")),
            _three(told.get("block")),
            whole(told.get("registers per thread"), 0, rows.MOST_SIZE),
            0,
            whole(told.get("shared memory"), 0, rows.MOST_SIZE),
        )
        before = len(self._build)
        where = text(stream)
        where = where if where.startswith("stream") else f"stream {where}"
        self._build.add(kind, *times, device, where, link)
        if len(self._build) > before:
            self._external.append(external)

    def _linked(self) -> tuple[rows.Integers, rows.Integers, rows.Integers]:
        """Each launch's operator: that of its External id, else the innermost around the call that
        launched it; when that call began; and which library operator it is."""
        link = self._build.column("link")
        external = np.array(self._external, dtype=np.int64)
        found, launched, call = (np.full(len(link), rows.NONE, dtype=np.int64) for _ in range(3))
        # Before PyTorch 2.1 (kineto's first schema) the External id repeated the correlation.
        repeats = len(link) > 0 and np.mean(external == link) > 0.5
        if not repeats:
            met, at = self._operators.found(external, last=True)
            found[met] = at
        met, at = self._calls.found(link, last=True)
        launched[met], call[met] = self._calls.column("start")[at], at
        left = met & (found == rows.NONE)
        if left.any():
            threads = self._operators.threads_of(self._calls, call[left])
            found[left] = self._operators.innermost(threads, launched[left])
        named = self._build.named(self._operators, found)
        return named, launched, self._operators.at("called", found)


def _three(value: Any) -> tuple[int, int, int]:
    given = (
        [whole(each, 0, rows.MOST_SIZE) for each in value[:3]] if isinstance(value, list) else []
    )
    padded = (*given, *(1 for _ in range(3 - len(given)))) if given else (0, 0, 0)
    return padded[0], padded[1], padded[2]


def _nanoseconds(value: Any) -> int | None:
    """Microseconds as whole nanoseconds, exactly; ``None`` for what is no number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000 if abs(value) < rows.MOST_TIME // 2000 else None
    if not isinstance(value, str):
        return None
    whole, _, rest = value.partition(".")
    if len(rest) == 3 and len(whole) < 17 and whole.isdecimal() and rest.isdecimal():
        found = int(whole + rest)  # as Kineto writes it; Decimal takes three times as long
    else:
        try:
            number = Decimal(value)
            if number.adjusted() > MOST_DIGITS:  # its whole number may have millions
                return None
            found = int((number * 1000).to_integral_value())
        except (ArithmeticError, ValueError):  # NaN, infinities; "1e999999999999"
            return None
    return found if abs(found) < rows.MOST_TIME // 2 else None
