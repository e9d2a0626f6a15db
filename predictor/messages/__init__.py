"""What goes in and comes out, for HTTP, command line and Python alike: shapes that requests share.

A file of its own for each use case, with its request and its answer. Both are frozen: the use case
takes the one and returns the other, and HTTP, command line and Python are derived from them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from wattcast.features.analysis import Mode
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import L2State, Launch, PointerHint
from wattcast.models import intervals, power
from wattcast.models.clocks import ClockPair, CodeModel, default_clocks
from wattcast.models.time.base import TIME_MODELS
from wattcast.predictor import reports

if TYPE_CHECKING:
    import pandas as pd

MAX_INTEGER = 2**63 - 1
"""Largest integer taken from JSON: every limit of a GPU lies far below."""

MAX_TRIPS = 1e15
"""Most executions of a loop body: beyond 10^15 cycles a kernel runs for weeks on any GPU."""

Dimension = Annotated[int, Field(strict=True, ge=-MAX_INTEGER, le=MAX_INTEGER)]
Dimensions = Annotated[list[Dimension], Field(min_length=1, max_length=3)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
HeaderName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TripCount = Annotated[float, Field(ge=0, le=MAX_TRIPS, allow_inf_nan=False)]
ArgumentNumber = Annotated[int, Field(strict=True, ge=-(2**63), le=2**64 - 1)]
FiniteNumber = Annotated[float, Field(strict=True, allow_inf_nan=False)]


def _one_of(names: tuple[str, ...]) -> Any:
    """Constraint and JSON schema of a name out of a registry."""

    def known(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r} is none of {', '.join(names)}")
        return name

    return AfterValidator(known), WithJsonSchema({"type": "string", "enum": list(names)})


POWER_MODEL_NAMES = ("auto", *power.POWER_FAMILIES)
CODE_MODELS: tuple[CodeModel, ...] = get_args(CodeModel)
TIME_MODEL_NAMES = ("auto", *TIME_MODELS)
ModelChoice = Annotated[str, *_one_of(POWER_MODEL_NAMES)]
TimeModelChoice = Annotated[str, *_one_of(TIME_MODEL_NAMES)]
ScalingChoice = Annotated[str, *_one_of((*POWER_MODEL_NAMES, *CODE_MODELS))]
Count = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Megahertz = Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]
PowerLimit = Annotated[
    float | None,
    Field(
        gt=0,
        allow_inf_nan=False,
        description="Power limit in watts, as `nvidia-smi -pl` sets it: the core clock falls until "
        "the power fits. Default: the board's own.",
    ),
]

Board = Annotated[
    str | None,
    Field(
        max_length=64,
        description="Which of several boards of this GPU, as uploads of measurements label them: "
        "its own champion answers where there is one. Default: the GPU's general champion.",
    ),
]

_FOLDER = Path(__file__).parent
EXAMPLE_PTX = (_FOLDER / "example.ptx").read_text(encoding="utf-8")
EXAMPLE_CUDA = (_FOLDER / "example.cu").read_text(encoding="utf-8")
_STANDS_FOR = {
    "@ptx": EXAMPLE_PTX,
    "@changed": EXAMPLE_PTX.replace("add.f32", "mul.f32"),
    "@cuda": EXAMPLE_CUDA,
}
"""What words in ``examples.json`` stand for."""


@cache
def _examples() -> dict[str, Any]:
    def told(members: dict[str, Any]) -> dict[str, Any]:
        return {
            name: _STANDS_FOR.get(value, value) if isinstance(value, str) else value
            for name, value in members.items()
        }

    text = (_FOLDER / "examples.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, object_hook=told)
    return found


def examples(request: str) -> ConfigDict:
    """The configuration of a class of requests: its examples in the API's description."""
    return ConfigDict(json_schema_extra={"examples": _examples()[request]})


_DESCRIBED = re.compile(
    r'^class (\w+)|^    (\w+): |^    """(.*?)"""|^(?:\)|(?:    )?[\w@])', re.MULTILINE | re.DOTALL
)
"""A class, a field, a docstring; or else the begin of what has no description."""


@cache
def _descriptions(module: str) -> dict[tuple[str, str], str]:
    """Docstrings below fields, by class and field. The text of a module is read once: pydantic's
    own ``use_attribute_docstrings`` reads it for every class, and ``ast`` takes ten times as long,
    a twentieth of a command."""
    found, kind, field = dict[tuple[str, str], str](), "", None
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    for part in _DESCRIBED.finditer(text):
        kind = part[1] or kind
        if field and part[3]:
            found[kind, field] = " ".join(part[3].split())
        field = part[2]
    return found


class Described(BaseModel):
    """A shape of JSON. The docstring below a field is its description in the API, in the help
    of the command line and in Python."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, field in cls.model_fields.items():
            told = _descriptions(cls.__module__).get((cls.__name__, name))
            field.description = told or field.description


class Message(Described):
    """A request or a part of one: what it does not name is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Long lists and dictionaries are refused by their first defect: a million of them take
        10 s to be told."""
        schema = handler(source)
        waiting: list[Any] = [schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if part.get("type") in ("list", "dict") and (part.get("max_length") or 65) > 64:
                    part["fail_fast"] = True
                waiting += part.values()
            elif isinstance(part, list | tuple):
                waiting += part
        return schema


A = TypeVar("A")


class Asks(Generic[A]):
    """A request that one use case answers by an ``A`` (``predictor/answering.py``)."""


class Answer(Described):
    """An answer of a use case, or a part of one.

    Members that the use case does not give are left out of the JSON; in Python they have their
    defaults.
    """

    model_config = ConfigDict(frozen=True, validate_by_name=True)

    @classmethod
    def from_attributes(cls, source: object, **given: Any) -> Self:
        """Made of the attributes of ``source`` that have the members' names, and what is given."""
        left = (name for name in cls.model_fields if name not in given)
        return cls(**{name: getattr(source, name) for name in left}, **given)

    def json_bytes(self) -> bytes:
        """As HTTP answers it; NaN and infinities, which JSON lacks, become ``null``."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True)

    def data(self) -> dict[str, Any]:
        """The same as plain data; numbers stay what they are."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def __getitem__(self, member: str) -> Any:
        """A member by its name in JSON."""
        if member == "schema":
            member = "schema_id"
        if member not in self.model_fields_set:
            raise KeyError(member)
        return getattr(self, member)

    def __contains__(self, member: str) -> bool:
        return member in self.model_fields_set


class Shown:
    """What shows itself: in a terminal, and in a notebook."""

    def report(self) -> reports.Report:
        """What people see of it."""
        raise NotImplementedError

    def show(self) -> None:
        """Print it, as the command line does."""
        print(reports.text(self.report()))

    def _repr_html_(self) -> str:
        from wattcast.predictor.reports.html import card

        return card(self.report())


class Reported(Shown, Answer):
    """An answer as a whole: it shows itself, and becomes a table."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """Its rows, as ``to_frame`` takes them."""
        return [self.data()]

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each part of the answer. Quantities carry their units:
        ``time_seconds``, ``time_low_seconds``. Raises MissingExtraError without pandas (the extra
        ``notebook``)."""
        return reports.frame(self.rows())

    def __str__(self) -> str:
        return reports.text(self.report())


class PointerArgument(Message):
    """What a pointer argument points to."""

    elements: Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)] | None = None
    """Elements of the buffer. Default: the number of threads."""
    values: Literal["uniform", "zeros", "sorted", "index", "near"] = "uniform"
    """Pseudo-random in [low, high), zeros, ascending, whole numbers below `elements`, or whole
    numbers below `high`, each within `low` of its own place (places repeat every `high`):
    neighbours in a mesh."""
    low: FiniteNumber = 0.0
    high: FiniteNumber = 1.0

    @model_validator(mode="after")
    def _in_order(self) -> PointerArgument:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, above high, {self.high:g}")
        return self


SharedBytes = Annotated[Dimension, Field(description="Dynamic shared memory per block, in bytes.")]
Arguments = Annotated[
    dict[str, ArgumentNumber | FiniteNumber | PointerArgument],
    Field(
        max_length=4096,
        description="Kernel arguments by position, PTX parameter name or, for CUDA source, C "
        "name, a number inside a structure by value with the bytes from its start (size+4): "
        "numbers, and hints about what a pointer points to.",
        examples=[{"3": 1048576, "0": {"elements": 1048576, "values": "uniform"}}],
    ),
]


class LaunchRequest(Message):
    """How the kernel is started; missing dimensions are 1."""

    grid: Dimension | Dimensions = Field(examples=[[4096]])
    """Blocks, 1 to 3 dimensions."""
    block: Dimension | Dimensions | None = Field(None, examples=[[256]])
    """Threads per block, 1 to 3 dimensions; may be left out where the kernel fixes it (`.reqntid`).
    """
    dynamic_shared_bytes: SharedBytes = 0
    arguments: Arguments = Field(default_factory=dict)
    l2: L2State = "warm"
    """What L2 holds when the launch starts: `warm`, what an equal launch left, as where launches
    are repeated; `cold`, nothing, as where a benchmark flushes it."""
    reference_threads: Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)] | None = None
    """Threads of the launch that this one is compared with: trips of loops that nobody gave are
    assumed as of it, so that no guess decides between the two."""

    def launch(self) -> Launch:
        """The launch. Raises LaunchError for an impossible dimension."""
        if self.block is None:
            raise LaunchError("launch.block is not given, and nothing fixes it", field="block")
        hints = {
            name: PointerHint(**dict(value)) if isinstance(value, PointerArgument) else value
            for name, value in self.arguments.items()
        }
        launch = Launch.of(self.grid, self.block, self.dynamic_shared_bytes, hints, self.l2)
        return replace(launch, reference_threads=self.reference_threads)

    def beside(self, reference: LaunchRequest) -> Self:
        """This launch, compared with a reference: trips that nobody gave are those of it."""
        threads = self.reference_threads or reference.reference_threads or reference.threads()
        return self.model_copy(update={"reference_threads": threads})

    def threads(self) -> int | None:
        """All its threads; ``None`` where the kernel fixes the block, or no GPU could launch it."""
        dims = self.grid, self.block or 0
        sizes = [size for one in dims for size in (one if isinstance(one, list) else [one])]
        return prod(sizes) if min(sizes) > 0 else None


class KernelCode(Message):
    """A kernel and how it is analysed, whatever its launch.

    Exactly one of its ``sources`` is given.
    """

    ptx: str | None = Field(None, min_length=1)
    """PTX text; or give `cuda`."""
    cuda: str | None = Field(None, min_length=1)
    """CUDA C++ source, compiled for the GPU's compute capability; or give `ptx`."""
    headers: dict[HeaderName, str] = Field(default_factory=dict, max_length=64)
    """Files that `cuda` includes, by the name it includes them by."""
    compiler_options: list[Annotated[str, StringConstraints(max_length=256)]] = Field(
        default_factory=list, max_length=64
    )
    """For `cuda`: -D NAME=VALUE, -std=, --use_fast_math, --fmad=, --ftz=, --prec-div=,
    --prec-sqrt=, --maxrregcount=."""
    kernel: str | None = Field(None, min_length=1, max_length=65_536)
    """Mangled or demangled name; needed if there are several kernels. Of CUDA source also an
    instance of a template: `gemm<32, float>`."""
    loops: dict[str, TripCount] = Field(default_factory=dict, max_length=4096)
    """Executions of loop bodies by label, source line or `default`."""
    registers_per_thread: int | None = Field(None, strict=True, ge=1, le=255)
    """Registers per thread, as the compiler reports them. Default: estimated."""
    static_shared_bytes: int | None = Field(None, strict=True, ge=0, le=2**31 - 1)
    """Static shared memory per block, in bytes. Default: from the PTX."""
    analysis: Mode = "auto"
    """How trip counts and activity are found out. `symbolic` runs the kernel only where it calls
    functions, `executed` runs sampled blocks; `auto` does so only for what it needs."""
    analysis_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Longest the request may take; beyond, it is given up (503). It never changes an answer."""
    analysis_effort: Annotated[int, Field(strict=True, gt=0)] | None = None
    """Budget of the executed analysis in instructions times lanes; what is beyond is extrapolated,
    counted in `coverage` and part of the interval."""

    @model_validator(mode="after")
    def _one_kind_of_source(self) -> Self:
        given = [name for name in self.sources() if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {' and '.join(self.sources())}")
        return self

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """What a kernel may come as."""
        return ("ptx", "cuda")


class KernelRequest(KernelCode):
    """A kernel and how it is launched: common to all calls about kernels."""

    launch: LaunchRequest

    def beside(self, reference: KernelRequest) -> Self:
        """The same, compared with a reference (``LaunchRequest.beside``)."""
        return self.model_copy(update={"launch": self.launch.beside(reference.launch)})


class Clocks(Message):
    """A core and a memory clock; one that is not given is the GPU's default."""

    core_mhz: Megahertz | None = None
    """Core clock in MHz. Default: the GPU's own."""
    memory_mhz: Megahertz | None = None
    """Memory clock in MHz, as NVML reports it. Default: the GPU's own."""

    def pair(self, gpu: GpuProfile) -> ClockPair:
        """The pair, completed by the GPU's default clocks."""
        default = default_clocks(gpu)
        return ClockPair(self.core_mhz or default.core_mhz, self.memory_mhz or default.memory_mhz)


class KnownRequest(Message):
    """A measured launch of the same kernel on the same GPU."""

    launch: LaunchRequest
    time_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Between 100 ns and a day. Corrects the predicted time; give it, `power_watts` or both."""
    power_watts: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Mean power of the board while it ran, at most 1.5 times its limit; corrects the predicted
    power."""
    clocks: Clocks | None = None
    """Clocks it was measured at. Default: the request's."""

    @model_validator(mode="after")
    def _measured(self) -> KnownRequest:
        if self.time_seconds is None and self.power_watts is None:
            raise ValueError("a known launch needs time_seconds, power_watts or both")
        return self


class TimingChoice(Message):
    """By which model time is told."""

    time_model: TimeModelChoice = "auto"
    """Time model: `auto` is `bottleneck`, corrected where measurements of the GPU were promoted; a
    model that is named answers as it is."""


class GpuOrGpus(Message):
    """A request whose ``gpu`` or ``gpus`` is given, not both."""

    gpu: Name | None = None
    """GPU id or alias; see GET /gpus. Or give `gpus`."""
    gpus: Annotated[list[Name], Field(min_length=1)] | None = None
    """Several GPUs, each answered for itself."""

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> Self:
        if (self.gpu is None) == (self.gpus is None):
            raise ValueError("give either gpu or gpus")
        return self

    def names(self) -> list[str]:
        """The GPUs as they were named."""
        return [self.gpu] if self.gpu is not None else list(self.gpus or ())


class Like(Message):
    """What a made-up board has other than the one that is named; its clocks are `clocks`."""

    sms: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    """Streaming multiprocessors of a made-up board that is else like the GPU."""
    memory_gbps: Annotated[float, Field(ge=1, le=100_000, allow_inf_nan=False)] | None = None
    """Peak memory bandwidth in GB/s of a made-up board that is else like the GPU."""


class OwnOrLike(GpuOrGpus):
    """A request whose GPUs may be changed for this question alone."""

    like: Like | None = None
    """Makes up boards like the GPUs named, with other SMs or another memory. Power limit, caches
    and SMs stay; answers are not kept."""


class Conditions(Message):
    """Under which clocks and power limit, and by which model of power."""

    clocks: Clocks | None = None
    """Clocks to predict for. Default: the GPU's own."""
    power_limit_watts: PowerLimit = None
    model: ModelChoice = "physical"
    board: Board = None


class KernelTiming(TimingChoice, KernelRequest):
    """A kernel whose time is asked for, and by which model."""


class _Watts(Answer):
    watts: float


class _Seconds(Answer):
    seconds: float


class _Joules(Answer):
    joules: float


class Interval(Answer):
    """How sure an answer is of a quantity."""

    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    level: float
    """Nominal coverage of [low, high], 0 to 1."""
    basis: intervals.Basis
    """Basis of the interval."""
    widened: float = 1.0
    """How many times as wide, in logarithms, as calibrated: measurements said that it had to be.
    Left out where it is 1."""

    @classmethod
    def of(cls, estimate: intervals.Estimate) -> Self:
        """An estimate as answers hold it; the first member is its value."""
        names = ["low", "high", "level", "basis", *["widened"] * (estimate.widened != 1.0)]
        told: dict[str, Any] = {name: getattr(estimate, name) for name in names}
        told[next(iter(cls.__pydantic_fields__))] = estimate.value
        return cls(**told)


class Power(Interval, _Watts):
    """Mean power while the kernel runs."""


class Time(Interval, _Seconds):
    """Duration of the launch."""


class Energy(Interval, _Joules):
    """Power times time of the same answer."""


class KernelName(Answer):
    """A kernel under both its names."""

    mangled: str
    demangled: str


class Compiled(Answer):
    """How the PTX came about, where the request brought CUDA source."""

    compiler: str
    """`nvrtc`, or `nvcc` for a file with host code."""
    target: int
    """Compute capability compiled for; 70 is 7.0."""
    source_sha256: str
    """SHA-256 of the CUDA source, UTF-8."""


class TimeModel(Answer):
    """How the time came about."""

    family: str
    regime: Literal["compute", "memory", "latency", "launch"] | None
    """What limits the launch; null if the model has no regimes."""
    bound: str | None = None
    """The same in words (DRAM bandwidth, shared-memory bank conflicts); null if the model does not
    tell."""
    parts: dict[str, float]
    """Seconds of the model's own terms: bounds of which the largest counts (bottleneck, roofline,
    volkov), or summands (the others). `launch` comes on top, and so do `calibration` and `known`,
    what measurements correct."""
    model: ModelReference | None = None
    """The correction by launches measured on the GPU or board, if one serves."""


class ClocksAnswer(Answer):
    """The clocks predicted for, in MHz."""

    core_mhz: float
    memory_mhz: float


class MemberReference(Answer):
    """One model of an average."""

    family: str
    version: int


class ModelReference(Answer):
    """The artifact that predicted the power; ``card`` is the path of its model card."""

    family: str
    version: int
    schema_id: str = Field(alias="schema")
    source: str
    gpu: str
    target: str
    members: list[MemberReference]
    card: str


class Occupancy(Answer):
    """Theoretical occupancy (0 to 1] of one SM and the resource that limits it."""

    occupancy: float
    resident_blocks_per_sm: int
    resident_warps_per_sm: int
    limiter: str


class Registers(Answer):
    """Registers per thread; ``how`` they are known. Estimates have ``low`` < ``high``."""

    value: int
    low: int
    high: int
    how: str

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" ({self.low} to {self.high})"
        return f"{self.value} registers per thread{spread}, {self.how}"


class LoopTrips(Answer):
    """Executions of one loop's body and how they are known."""

    loop: str | None
    """Label of the loop's header block."""
    trips: float
    how: str
    line: int
    """Line in the PTX."""
    source_line: int | None
    """Line in the CUDA source, if the PTX has it."""


class WarningLine(Answer):
    """Something guessed, assumed or unknown; ``code`` is stable."""

    model_config = ConfigDict(title="Warning")

    code: str
    detail: str
    line: int | None = None
    """Line in the PTX."""
    column: int | None = None
    source_line: int | None = None
    """Line in the CUDA source of the request."""


class Need(Answer):
    """An argument that was not given and decides the answer: give it first."""

    argument: str
    """Its C name where known, else its name in the PTX; of a number in a structure by value with
    the bytes from the structure's start, as `size+4`."""
    position: int
    """Among the kernel's parameters, from 0."""
    decides: str
    """Loop, guard or address, with its line."""
    effect: str
    """What it does to the answer."""
    assumed: float
    """What stands in for it."""
    assumes: Literal["trips", "value"]
    """Whether `assumed` is the trips of the loops it decides, or its value."""
    by_data: bool = False
    """The data that it points to decide: describe them."""

    def __str__(self) -> str:
        what = "trips" if self.assumes == "trips" else "as its value"
        at = f"--arg {self.position}" + "".join(self.argument.partition("+")[1:])
        option = f"{at}=..."
        if self.by_data:
            option = (
                f"{at}:values=sorted,low=0,high=LAST (offsets) or {at}:low=0,high=MOST (lengths)"
            )
        return (
            f"give {self.argument} (argument {self.position}): it decides the {self.decides}; "
            f"{self.effect}. Assumed: {self.assumed:,.10g} {what}. Pass {option}"
        )


class Coverage(Answer):
    """How the launch's work (executed warp instructions) is known; shares that sum to 1."""

    executed: float
    """Carried out by the executed analysis."""
    extrapolated: float
    """Taken from other blocks or iterations."""
    worked_out: float
    """Exact, from the text, the launch and its arguments."""
    assumed: float
    """Rests on trip counts or branches that nobody knows."""
    error: float
    """Relative half width of a 90 % interval for what is extrapolated; it widens the intervals of
    time, power and energy."""


class KernelParameter(Answer):
    """A parameter of the kernel: what an argument may be addressed by."""

    position: int
    ptx_name: str
    c_name: str | None = None
    """Null if the CUDA source does not show it."""
    type: str
    """Its PTX type, e.g. `u64`."""

    def key(self) -> str:
        """As a launch's arguments name it: its position, of a number inside a structure by value
        with the bytes from the structure's start (`2+4`)."""
        return f"{self.position}" + "".join(self.ptx_name.partition("+")[1:])


_FIXES = {
    ("missing", "('grid',)"): "Field required: the number of blocks (not of threads), as 4096 or "
    "[64, 64]",
    ("string_too_short", "('ptx',)"): "the code is empty: give PTX or CUDA source",
    ("string_too_short", "('cuda',)"): "the code is empty: give PTX or CUDA source",
}
"""What to do, by type and place of an error, where pydantic's words do not say it."""


_MEMBER = re.compile(r"constrained-\w+|float|(?:list|function-\w+)\[.*\]")
"""What pydantic calls a member of a union, in the place of an error."""

_WRONG_KIND = re.compile(r".*_(?:type|parsing)|int_from_float")


def one_line(error: ValidationError, most: int | None = None) -> str:
    """What pydantic says of a request: where and what of each part that does not fit."""
    found = field_problems(error.errors(include_url=False, include_input=False))
    return "; ".join(f"{part['path'] or 'request'}: {part['message']}" for part in found[:most])


def field_problems(errors: Sequence[Any]) -> list[dict[str, str]]:
    """Pydantic's errors as paths and messages; the input itself is not echoed. Of the members of a
    union that of the value's own kind speaks, if there is one."""
    found: dict[str, tuple[bool, dict[str, str]]] = {}
    for number, error in enumerate(errors[:100]):
        places = [str(part) for part in error["loc"] if part not in ("body", "query")]
        own = [part for part in places if not _MEMBER.fullmatch(part)]
        union = next((at for at, part in enumerate(places) if _MEMBER.fullmatch(part)), None)
        key = str(number) if union is None else ".".join(places[:union])
        other_kind = places[-1:] != own[-1:] and bool(_WRONG_KIND.fullmatch(error["type"]))
        message = _FIXES.get((error["type"], str(error["loc"][-1:])), str(error["msg"]))
        if key not in found or (found[key][0] and not other_kind):
            found[key] = (other_kind, {"path": ".".join(own), "message": message})
        elif found[key][0] and message not in found[key][1]["message"]:
            found[key][1]["message"] += message.replace("Input should be", " or", 1)
    return [problem for _, problem in found.values()]
