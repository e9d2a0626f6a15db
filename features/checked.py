"""Data that is checked as it is read: the package's own tables (by pydantic), and the fields of
files that others send, each of which comes in by ``whole``, ``real`` or ``text``."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from wattcast.features.errors import DataError, Diagnostic

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, strict=True)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]

MOST_WHOLE = 1 << 62
"""Size of any whole number of a file: what columns of 64 bits hold."""

MOST_REAL = 1e19
"""Size of any other number: 1e20 is what tuners write where there is none (Kernel Tuner)."""

MOST_TEXT = 4096
"""Characters of a name that are kept."""

MOST_VALUES = 1_000_000
"""Values of one JSON text: as objects of Python or of its parser they take some 300 bytes each."""


def whole(value: object, otherwise: int = 0, most: int = MOST_WHOLE) -> int:
    """A field as a whole number, also from a text of one; ``otherwise`` for anything else, and for
    what is ``most`` or larger."""
    if isinstance(value, str | float):
        try:
            number = float(value)
            value = int(number) if abs(number) < most else None
        except ValueError:
            return otherwise
    if not isinstance(value, int) or isinstance(value, bool):
        return otherwise
    return value if -most < value < most else otherwise


def real(value: object, least: float = 0.0, most: float = MOST_REAL) -> float | None:
    """A field as a number above ``least`` and below ``most``; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least < value < most and math.isfinite(value) else None


def text(value: object, most: int = MOST_TEXT) -> str:
    """A field as a text of at most so many characters that can be written anywhere (no lone
    surrogates); empty for what is neither a text nor a whole number."""
    if isinstance(value, int):
        return str(whole(value))
    if not isinstance(value, str):
        return ""
    short = value[:most]
    return short if short.isascii() else short.encode("utf-8", "replace").decode()


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def harmless(cell: str) -> str:
    """A cell of a table that a spreadsheet shows and does not execute.

    One that begins with one of ``= + - @`` is taken for a formula; an apostrophe before it makes it
    text (OWASP, "CSV Injection"). Control characters become blanks: ``csv`` leaves a carriage
    return as it is, which ends a row.
    """
    plain = _CONTROL.sub(" ", cell)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain


_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STRING_BYTES = re.compile(_STRING.pattern.encode(), re.DOTALL)


def many_values(given: str | bytes) -> bool:
    """Whether a JSON text has more than ``MOST_VALUES`` values, told before it is parsed, and in
    steps that let others at the interpreter."""
    if isinstance(given, bytes):
        return _many(given, _STRING_BYTES.finditer(given), (b",", b"[", b"{"))
    return _many(given, _STRING.finditer(given), (",", "[", "{"))


def _many(given: Any, strings: Iterator[re.Match[Any]], marks: tuple[Any, ...]) -> bool:
    if sum(map(given.count, marks)) <= MOST_VALUES:
        return False
    found: int = 0
    at = 0
    for string in strings:
        found += sum(given.count(mark, at, string.start()) for mark in marks)
        if found > MOST_VALUES:
            return True
        at = string.end()
    found += sum(given.count(mark, at) for mark in marks)
    return found > MOST_VALUES


def json_value(given: str, file: str = "") -> Any:
    """What a JSON text of others holds. Raises DataError for what is none, for more than
    ``MOST_VALUES`` values and for what is nested too deep."""
    name = f"{file}: " if file else ""
    if many_values(given):
        raise DataError(f"{name}more than {MOST_VALUES:,} values", file=file)
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}not JSON: {error}", file=file) from error


class Frozen(BaseModel):
    """Frozen, and refusing keys it does not know: a misspelt key is an error."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


class Strict(Frozen):
    """The same, and every number finite."""

    model_config = ConfigDict(allow_inf_nan=False)


Table = TypeVar("Table", bound=Strict)
Row = TypeVar("Row", bound=tuple[Any, ...])


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """What does not validate: each key (``groups.add.opcodes.3``) with what is wrong there.

    Missing keys come last: a misspelt one is why another is missing.
    """
    found = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"] if part != "[key]") or "(file)"
        plain = {"extra_forbidden": "unknown key", "missing": "missing"}.get(item["type"])
        message = item["msg"].removeprefix("Value error, ")
        found.append((key, plain or f"{message} (is {item['input']!r})"))
    return sorted(found, key=lambda problem: problem[1] == "missing")


def read_toml(path: Path) -> dict[str, Any]:
    """The file as plain data. Raises DataError for what is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name} is not TOML: {error}", file=path.name) from error


def read_rows(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    """The rows of a CSV file of the package, which hold the fields of a tuple ``kind``."""
    with path.open(encoding="utf-8", newline="") as file:
        return TypeAdapter(tuple[kind, ...]).validate_python(list(csv.DictReader(file)))  # type: ignore[valid-type]


def checked(kind: type[Table], raw: Mapping[str, Any], file: str) -> Table:
    """The table that ``raw`` holds. Raises DataError naming the file and the keys at fault."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise defect(file, problems_of(error)) from error


def defect(file: str, problems: list[tuple[str, str]]) -> DataError:
    """The error that names every key at fault; its context has the first as ``key``."""
    told = "; ".join(f"{key}: {what}" for key, what in problems)
    return DataError(f"{file}: {told}", file=file, key=problems[0][0])


# What a measured power or time can be: one rule for every way in which it comes.
#
#     notes = check_measured(gpu, power_watts=200, time_seconds=1e-3, where="known[0]")
#
# Known launches of requests, uploaded rows, ``wattcast calibrate`` and recordings, our own as
# imported ones, all ask here. Bounds are wide: they catch another unit (milliwatts, nanoseconds),
# not a bad sensor.

MOST_POWER_OF_LIMIT = 1.5
"""Watts above this share of the board's limit are no watts: NVML reports milliwatts, and boards
exceed their limit by a few percent for moments only."""

MOST_POWER_WATTS = 3000.0
"""The same where no profile tells the limit: about twice the 1,400 W of a GB300, the highest power
of one GPU that NVIDIA has announced (2025)."""

LEAST_POWER_WATTS = 1e-3
"""Above 0, as far as a sensor tells: NVML reports whole milliwatts (nvmlDeviceGetPowerUsage)."""

LEAST_POWER_OF_IDLE = 0.1
"""Watts below this share of the idle power are doubtful: a kernel takes more than no kernel."""

SHORTEST_SECONDS = 1e-7
"""100 ns: an empty kernel takes microseconds (Zhang et al., "A Study of Single and Multi-device
Synchronization Methods in Nvidia GPUs", IPDPS 2020), so this is another unit."""

LONGEST_SECONDS = 86_400.0
"""A day: no single launch of a kernel takes as long."""


class Board(Protocol):
    """What must be known of a board: its name, limit and idle power. Every GpuProfile is one."""

    @property
    def id(self) -> str: ...
    @property
    def tdp_watts(self) -> float: ...
    @property
    def idle_watts(self) -> float | None: ...


def check_measured(
    gpu: Board | None,
    *,
    power_watts: float | None = None,
    time_seconds: float | None = None,
    where: str = "",
) -> tuple[Diagnostic, ...]:
    """Warnings of a measured launch; ``gpu`` is ``None`` where nobody knows the board.

    Power must be above 0 (1 mW) and at most 1.5 times the board's limit, time between 100 ns and a
    day.
    Raises DataError naming the field (after ``where``), the value and the bound; its context has
    ``field`` and ``reason``, the sentence without the field.
    """
    if time_seconds is not None:
        _check_time(time_seconds, _named(where, "time_seconds"))
    if power_watts is None:
        return ()
    field = _named(where, "power_watts")
    _check_power(gpu, power_watts, field)
    idle = None if gpu is None else gpu.idle_watts
    if gpu is None or idle is None or power_watts >= LEAST_POWER_OF_IDLE * idle:
        return ()
    detail = (
        f"{field}: {power_watts:g} W is below {LEAST_POWER_OF_IDLE * idle:g} W, a tenth of the "
        f"idle power of {gpu.id} ({idle:g} W). It was accepted as given; check its unit"
    )
    return (Diagnostic("power_below_idle", detail),)


def _named(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _check_time(seconds: float, field: str) -> None:
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:  # also where it is no number
        raise _implausible(
            field,
            f"{seconds:g} s is not between {SHORTEST_SECONDS:g} s (100 ns) and "
            f"{LONGEST_SECONDS:g} s (a day); give the time of one launch in seconds",
        )


def _check_power(gpu: Board | None, watts: float, field: str) -> None:
    if not (watts >= LEAST_POWER_WATTS and isfinite(watts)):
        raise _implausible(field, f"{watts:g} W is too low; give at least {LEAST_POWER_WATTS:g} W")
    most = MOST_POWER_WATTS if gpu is None else MOST_POWER_OF_LIMIT * gpu.tdp_watts
    if watts > most:
        limit = (
            f"{most:g} W, more than any board draws"
            if gpu is None
            else f"{most:g} W, {MOST_POWER_OF_LIMIT:g} times the limit of {gpu.id} "
            f"({gpu.tdp_watts:g} W)"
        )
        raise _implausible(field, f"{watts:g} W is more than {limit}; is it in milliwatts?")


def _implausible(field: str, reason: str) -> DataError:
    return DataError(f"{field}: {reason}", field=field, reason=reason)
