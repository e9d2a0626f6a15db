"""One uploaded row: which columns there are, and what each may hold.

Rows come in two forms. With ``ptx`` they say how a kernel was launched, and its features are
extracted from the code; with the features of a named schema they are taken as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from wattcast.app.store.measurements import Measurement
from wattcast.features import gpus, schemas
from wattcast.features.checked import check_measured
from wattcast.predictor.messages import Described, TripCount, analyze
from wattcast.predictor.parts import members

Defect = tuple[str | None, str]
"""Column (``None``: the row as a whole), and what is wrong with it."""

TAKEN = "taken, but "
"""Begins the reason of a row that is listed among the rejected ones and counts as accepted."""

LAUNCH = ("grid", "block", "dynamic_shared_bytes", "arguments")
KERNEL = ("loops", "registers_per_thread", "static_shared_bytes")
"""Columns of the launch and of the kernel's code, as ``AnalyzeRequest`` names them."""

LARGEST_FEATURE = 3.4e38
"""Largest number of the 32 bits in which models take their inputs (IEEE 754)."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("is true or false; a number is wanted")
    return value


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("contains characters that cannot be printed")
    return text


def _dimensions(value: object) -> object:
    """``4096``, ``64x8``, ``[64, 8]``, as text or not."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            return _json(text)
        return [_whole(part) for part in re.split(r"[x,]", text)]
    if isinstance(value, list):
        return [_whole(part) for part in value]
    return [_whole(value)]


def _whole(value: object) -> object:
    """A number that is whole, as tables have it: ``"64"``, ``64.0``."""
    _no_bool(value)
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return from_json(value)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error


Text = Annotated[
    str, StringConstraints(strip_whitespace=True, max_length=4096), AfterValidator(_printable)
]
Label = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=64),
    AfterValidator(_printable),
]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_whole)]
Dimensions = Annotated[list[int], BeforeValidator(_dimensions), Field(min_length=1, max_length=3)]


class Measured(Described):
    """The columns of both forms: what was measured, where, and of what."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    gpu: Label
    """GPU id or alias."""
    board: Label | None = None
    """Serial number or label of the very board."""
    kernel: Text | None = None
    """Its name; for PTX needed if there are several."""
    kernel_group: Text | None = None
    """What evaluation keeps together; else the kernel's name without types."""
    core_mhz: Annotated[Number, Field(gt=0, le=1e5)] | None = None
    memory_mhz: Annotated[Number, Field(gt=0, le=1e5)] | None = None
    power_watts: Number | None = None
    """Mean power of the board while the kernel ran; or `energy_log`, a log in the zip."""
    time_seconds: Number | None = None
    """Time of one launch."""
    repeats: Annotated[Whole, Field(ge=1, le=10**9)] = 1
    """Launches that were averaged."""

    @model_validator(mode="after")
    def _something_measured(self) -> Measured:
        if self.power_watts is None and self.time_seconds is None:
            raise ValueError("has neither power_watts nor time_seconds")
        return self

    def doubts(self, gpu: gpus.GpuProfile) -> list[Defect]:
        """What is odd about a row that is taken. Raises DataError (``field``, ``reason``) for what
        cannot have been measured on this GPU."""
        notes = check_measured(gpu, power_watts=self.power_watts, time_seconds=self.time_seconds)
        return [("power_watts", f"{TAKEN}{note.detail}") for note in notes]


class PtxRow(Measured):
    """A row that names its PTX."""

    ptx: Text = Field(min_length=1)
    """Name of the PTX in the zip, or its SHA-256."""
    grid: Dimensions
    """Blocks: 4096, 64x8 or [64, 8]."""
    block: Dimensions
    """Threads per block."""
    dynamic_shared_bytes: Whole = 0
    arguments: Annotated[dict[str, Any], BeforeValidator(_json)] = Field(default_factory=dict)
    """As `launch.arguments` of POST /predict; JSON text."""
    loops: Annotated[dict[str, TripCount], BeforeValidator(_json)] = Field(default_factory=dict)
    """As `loops` of POST /predict; JSON text."""
    registers_per_thread: Whole | None = None
    static_shared_bytes: Whole | None = None

    def request(self, ptx: str) -> analyze.AnalyzeRequest:
        """The same as a request about the kernel. Raises pydantic.ValidationError."""
        return analyze.AnalyzeRequest.model_validate(
            {
                **members(self, "gpu", *KERNEL),
                "ptx": ptx,
                "kernel": self.kernel or None,
                "launch": members(self, *LAUNCH),
            }
        )

    def launch(self, request: analyze.AnalyzeRequest) -> dict[str, Any]:
        """``Measurement.launch`` of this row and the request about it."""
        return {
            **request.launch.model_dump(mode="json", include=set(LAUNCH)),
            **request.model_dump(mode="json", include=set(KERNEL), exclude_defaults=True),
        }


def request_of(row: Measurement, ptx: str) -> analyze.AnalyzeRequest:
    """The request about a stored row that was launched from ``ptx``."""
    launch = dict(row.launch or {})
    kernel = {name: launch.pop(name) for name in KERNEL if name in launch}
    return analyze.AnalyzeRequest.model_validate(
        {**kernel, "ptx": ptx, "gpu": row.gpu, "kernel": row.kernel, "launch": launch}
    )


class FeatureRow(Measured):
    """The columns besides the features themselves, which ``FeatureColumns`` checks."""

    kernel: Text = Field(min_length=1)


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a schema's features."""

    schema: schemas.AnySchema

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every field, in the schema's order."""
        return tuple(field.name for field in self.schema.fields)

    def read(self, cells: Mapping[str, Any]) -> tuple[tuple[float, ...], list[Defect]]:
        """The vector of a row in the schema's order, NaN where a cell is missing; and what is
        wrong with it. A model's inputs must all be there."""
        defects: list[Defect] = []
        vector = []
        for name in self.names:
            value = cells.get(name)
            number = math.nan if value is None else _number(value)
            if number is None:
                defects.append((name, f"{str(value)[:60]!r} is not a number"))
            elif value is None and name in self.schema.model_fields:
                defects.append((name, f"is missing; {self.schema.id} needs it"))
            elif abs(number) > LARGEST_FEATURE:
                defects.append((name, "is infinite or beyond 32 bits"))
            vector.append(math.nan if number is None else number)
        return tuple(vector), defects


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def defects_of(error: ValidationError) -> list[Defect]:
    """A row's validation errors by column."""
    reasons = {"extra_forbidden": "is no column that is known", "missing": "is missing"}
    defects: list[Defect] = []
    for each in error.errors(include_url=False, include_input=False)[:16]:
        path = [str(part) for part in each["loc"] if part != "launch"]
        reason = reasons.get(each["type"], each["msg"].removeprefix("Value error, "))
        below = ".".join(path[1:])
        defects.append((path[0] if path else None, f"{below}: {reason}" if below else reason))
    return defects


def group_of(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters.

    Instances of one template do nearly the same, so evaluation must not learn from one and ask
    about another; the same name in another program joins them, which errs on the safe side.
    """
    name = kernel.replace("(anonymous namespace)::", "")
    depth, plain = 0, []
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif character == "(" and depth == 0:
            break
        elif depth == 0:
            plain.append(character)
    words = "".join(plain).split()
    return words[-1].rpartition("::")[2] if words else kernel
