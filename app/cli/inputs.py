"""What the commands take: options made of fields, and how words become a request.

A command that has a parameter of a class such as ``LaunchOptions`` gets the options of that class
on the command line, where the parameter stands; its docstring tells of its other parameters. A
class of options lists fields of a request, whose names, defaults and descriptions hold, and has
fields of its own for what takes other words; ``request`` makes the request of them. A command that
returns an answer has ``--json``, and ``--brief`` where the answer has that form. A word that cannot
be read ends the program with one line on stderr and status 2.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import typer
from pydantic import BaseModel, ConfigDict, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.models import OptionInfo, ParameterInfo

from wattcast.app.cli.exits import fail as fail
from wattcast.app.cli.output import forms_of, predictor, show
from wattcast.app.progress import clear
from wattcast.predictor.answering import answer
from wattcast.predictor.messages import A, Asks, Clocks, Described, KernelCode, LaunchRequest, Like
from wattcast.predictor.messages.dvfs import ConstraintsRequest, DvfsRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepRequest

CUDA_SUFFIXES = (".cu", ".cuh")
LAUNCH, MODELS, OWN = "Launch", "Clocks and models", "Options"
"""Groups of options in a command's help."""

_FILE = typer.Argument(
    metavar="FILE",
    help="PTX file, or CUDA source (.cu; needs the extra cuda). - reads PTX from standard input.",
)
Ptx = Annotated[Path, _FILE]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the HTTP service answers.")]
Brief = Annotated[
    bool, typer.Option("--brief", help="Print one line of JSON, at most 1,024 bytes.")
]
Sarif = Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0, for code scanning.")]
FORMS = {"brief": Brief, "sarif": Sarif, "as_json": AsJson}


def _gpu_names(incomplete: str) -> list[str]:
    from wattcast.features.gpus import gpu_ids

    return [name for name in gpu_ids() if name.startswith(incomplete)]


_GPU = typer.Option("--gpu", autocompletion=_gpu_names)


def progress(line: str) -> None:
    """A line on stderr about work under way."""
    clear()
    print(line, file=sys.stderr, flush=True)


def read_json(file: Path, kind: type = object, what: str = "") -> Any:
    """What a JSON file holds, ``what`` is expected of it; ``-`` is standard input."""
    try:
        found = json.loads(_bytes(file))
    except ValueError as error:
        fail(f"{file}: not JSON: {error}")
    if not isinstance(found, kind):
        fail(f"{file}: expected {what}")
    return found


def read_text(file: Path) -> str:
    """Text that some tool printed; ``-`` is standard input."""
    try:
        return _bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(f"{file}: not UTF-8 text")


def _bytes(file: Path, most: int = -1) -> bytes:
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(most)
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        fail(f"{file}: {error.strerror}")


def _read(file: Path) -> str:
    from wattcast.features.ptx.lexing import text_of_file

    return text_of_file(_bytes(file))


@contextmanager
def expected(option: str, text: str, what: str) -> Iterator[None]:
    """Reads ``text`` inside; where it holds no numbers, says ``what`` was expected and ends."""
    try:
        yield
    except ValueError:
        fail(f"{option} {text!r}: expected {what}")


def check(option: str, given: str, known: Sequence[str]) -> None:
    """Ends the program for a name that is none of those known."""
    if given not in known:
        *first, last = known
        fail(f"{option} {given!r}: expected {', '.join(first)} or {last}")


def dimensions(
    option: str, text: str, example: str = "64,64", least: int | None = None
) -> list[int]:
    """1 to 3 whole numbers. With ``least`` none is below it; without, the request checks them."""
    with expected(option, text, f"1 to 3 whole numbers, as in {example}"):
        found = [int(part) for part in text.replace("x", ",").split(",")]
        if least is not None and (len(found) > 3 or min(found) < least):
            raise ValueError
        return found


def _loops(given: Iterable[str]) -> dict[str, float]:
    trips: dict[str, float] = {}
    for text in given:
        label, _, number = text.rpartition("=")
        with expected("--loops", text, "a number or LABEL=number"):
            trips[label or "default"] = float(number)
    return trips


_POINTER = "NAME:elements=N,values=KIND,low=L,high=H (NAME or its position, any of the four)"


def _arguments(given: Iterable[str]) -> dict[str, Any]:
    """``n=1024`` is a number, ``0:elements=1024,values=index`` a hint about a pointer."""
    found: dict[str, Any] = {}
    for text in given:
        if pointer := re.fullmatch("([^:=]+)[:=](.*=.*)", text):
            name, hints = pointer.groups()
            parts = [part.partition("=") for part in hints.split(",")]
            hint = found.setdefault(name, {})
            if not isinstance(hint, dict) or not all(equals for _, equals, _ in parts):
                fail(f"--arg {text!r}: expected {_POINTER}")
            hint.update(
                {key: value if key == "values" else _number(value, text) for key, _, value in parts}
            )
            continue
        name, _, value = text.rpartition("=")
        if not name:
            fail(f"--arg {text!r}: expected NAME=number, or for a pointer {_POINTER}")
        found[name] = _number(value, text)
    return found


def _number(value: str, text: str, option: str = "--arg") -> int | float:
    try:
        return int(value, 0)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        more = f"; for a pointer {_POINTER}" if option == "--arg" else ""
        fail(f"{option} {text!r}: {value!r} is not a number{more}")


def write(path: Path, content: bytes) -> None:
    """Write a file; ``-`` is standard output."""
    try:
        if str(path) == "-":
            sys.stdout.buffer.write(content)
        else:
            path.write_bytes(content)
    except OSError as error:
        fail(f"{path}: {error.strerror}")


class Reader(NamedTuple):
    """How a value that is no number and no name is written in one word: what it is, an example."""

    read: Callable[[str], Any]
    what: str
    example: str

    def of(self, option: str, text: str) -> Any:
        """What a word says. Ends the program where it cannot be read."""
        with expected(option, text, f"{self.what}, as in {self.example}"):
            return self.read(text)


def _pair(text: str) -> dict[str, float]:
    core, slash, memory = text.partition("/")
    return {"core_mhz": float(core), **({"memory_mhz": float(memory)} if slash else {})}


def _numbers(text: str) -> list[int]:
    """``300..700`` are nine numbers from the one to the other."""
    if ".." in text:
        low, high = (int(part) for part in text.split(".."))
        return [round(low + (high - low) * step / 8) for step in range(9)]
    return [int(part) for part in text.split(",")]


def _shapes(text: str) -> list[list[int]]:
    return [[int(size) for size in shape.split("x")] for shape in text.split(",")]


def _boards(text: str) -> dict[str, int]:
    pairs = [each.rpartition(":") for each in text.split(",")]
    return {name.strip() or number: int(number) if name else 1 for name, _, number in pairs}


BOARDS = Reader(_boards, "boards of each kind", "h100-sxm5:8,l40s:16")
PAIR = Reader(_pair, "CORE/MEMORY in MHz", "1164/3505")
NUMBERS = Reader(_numbers, "whole numbers", "24,32 or 300..700")
SHAPES = Reader(_shapes, "shapes separated by commas", "64,128 or 16x16")


# --- options ----------------------------------------------------------------------------

_NAMES = {
    "launch.dynamic_shared_bytes": "shared",
    "static_shared_bytes": "static_shared",
    "registers_per_thread": "registers",
    "power_limit_watts": "power_limit",
    "power_limits_watts": "power_limits",
    "power_cap_watts": "power_cap",
    "makespan_seconds": "makespan",
    "registers": "try_registers",
    "include_unproven": "all_shapes",
    "most_slowdown": "max_slowdown",
    "counters.clocks": "counted_at",
    "limits.max_energy_percent": "max_energy",
    "limits.max_time_percent": "max_time",
    "limits.max_power_percent": "max_power",
}
"""Options with another name than the member of the request that they give."""


def _word(path: str) -> str:
    return _NAMES.get(path, path.rpartition(".")[2])


class Options(Described):
    """Options of a command: its own fields, and ``members``, fields of a request by their paths in
    it, each of which one word gives. Their names, defaults and descriptions are the request's."""

    model_config = ConfigDict(extra="allow")
    panel: ClassVar[str] = LAUNCH
    members: ClassVar[dict[str, FieldInfo]] = {}
    reader: ClassVar[Reader | None] = None
    """Reads the members, where their types do not tell how."""
    short: ClassVar[Mapping[str, str]] = {}
    """Second names of options."""

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """The options as typer takes them."""
        return [
            *(
                _parameter(name, _hint(each), each.default, each.description, cls.panel)
                for name, each in cls.model_fields.items()
            ),
            *(_member(cls, path, each) for path, each in cls.members.items()),
        ]

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by the options' names."""
        return {**self.__dict__, **(self.model_extra or {})}

    def replaced(self, **changed: Any) -> Self:
        """The same with other words for some options."""
        return self.model_construct(**{**self.given, **changed})

    def body(self) -> dict[str, Any]:
        """The part of a request's body that they tell."""
        found: dict[str, Any] = {}
        for path, field in self.members.items():
            if (value := self.given.get(word := _word(path))) is None:
                continue
            if isinstance(reader := self.reader or _kind(field.annotation), Reader):
                value = reader.of(f"--{word.replace('_', '-')}", value)
            *inside, name = path.split(".")
            part = functools.reduce(lambda at, each: at.setdefault(each, {}), inside, found)
            part[name] = value
        return found


Request = TypeVar("Request", bound=BaseModel)


def body_of(*parts: Options | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The body of a request that options, and members told here, make."""
    body: dict[str, Any] = {}
    for part in (*parts, more):
        for name, value in (part.body() if isinstance(part, Options) else part).items():
            both = isinstance(value, dict) and isinstance(body.get(name), dict)
            body[name] = {**body[name], **value} if both else value
    return body


def request(kind: type[Request], *parts: Options | Mapping[str, Any], **more: Any) -> Request:
    """The same as the request. Raises pydantic.ValidationError."""
    return kind.model_validate(body_of(*parts, **more))


def ask(kind: type[Asks[A]], *parts: Options | Mapping[str, Any], **more: Any) -> A:
    """The answer to it. Raises as ``request``, and what its use case raises."""
    return answer(predictor(), request(kind, *parts, **more))  # type: ignore[type-var]


def fields(request: type[BaseModel], *names: str, under: str = "") -> dict[str, FieldInfo]:
    """Fields of a request, or of the part of one that stands ``under`` a member."""
    inside = f"{under}." if under else ""
    return {f"{inside}{name}": request.model_fields[name] for name in names}


def scalars(
    request: type[BaseModel], *base: type[BaseModel], without: Iterable[str] = (), under: str = ""
) -> dict[str, FieldInfo]:
    """All fields that are numbers, names and switches; those of ``base`` and ``without`` have
    options elsewhere."""
    left_out = {*without, *(name for each in base for name in each.model_fields)}
    names = [
        name
        for name, field in request.model_fields.items()
        if name not in left_out and isinstance(_kind(field.annotation), type)
    ]
    return fields(request, *names, under=under)


def _kind(annotation: Any) -> Any:
    """The type of the word that gives a field, or its reader; ``None`` where one word does not."""
    of = get_origin(annotation)
    if of is Annotated:
        return _kind(get_args(annotation)[0])
    if of is Literal:
        return str
    if of in (Union, UnionType):
        kinds = {_kind(each) for each in get_args(annotation) if each is not NoneType}
        return kinds.pop() if len(kinds) == 1 else None
    if of is list:
        return {int: NUMBERS, float: NUMBERS, None: SHAPES}.get(_kind(get_args(annotation)[0]))
    if annotation is Clocks:
        return PAIR
    return annotation if annotation in (bool, int, float, str) else None


def _hint(field: FieldInfo) -> Any:
    infos = [each for each in field.metadata if isinstance(each, ParameterInfo)]
    return Annotated[field.annotation, infos[0] if infos else typer.Option()]


def _member(options: type[Options], path: str, field: FieldInfo) -> Parameter:
    """The option that gives a field of a request."""
    found, word = options.reader or _kind(field.annotation), _word(path)
    kind: Any = str if isinstance(found, Reader) else found
    names = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    for each in field.metadata:
        if isinstance(each, WithJsonSchema) and each.json_schema:
            names = each.json_schema.get("enum", ())
    told = [(field.description or "").replace("`", "")]
    told += [f"One of {', '.join(names)}."] if names else []
    if isinstance(found, Reader):
        told.append(f"{found.what[0].upper()}{found.what[1:]}, as in {found.example}.")
    default = None if field.is_required() or isinstance(found, Reader) else field.get_default()
    flags = (f"--{word.replace('_', '-')}", options.short[word]) if word in options.short else ()
    of = kind if default is not None else kind | None
    hint = Annotated[of, typer.Option(*flags)]  # type: ignore[valid-type]
    return _parameter(word, hint, default, " ".join(filter(None, told)), options.panel)


def _parameter(name: str, hint: Any, default: Any, told: str | None, panel: str = OWN) -> Parameter:
    """An option or argument, with its help and in a group of the command's help."""
    kind, info, *_ = get_args(hint)
    info = copy.copy(info)
    info.help = " ".join(told.split()) if told else info.help
    if isinstance(info, OptionInfo):
        info.rich_help_panel = info.rich_help_panel or panel
        if kind is bool and default is False and info.default is ...:
            info.param_decls = (f"--{name.replace('_', '-')}",)
    default = Parameter.empty if default is PydanticUndefined else default
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


class OnGpu(Options):
    """The GPU that is asked about."""

    gpu: Annotated[str, _GPU]
    """GPU id or alias; wattcast gpus list WORD finds one."""

    def body(self) -> dict[str, Any]:
        """It, as requests name it."""
        return {"gpu": self.gpu}


class OnGpus(Options):
    """One or several GPUs."""

    gpu: Annotated[list[str], _GPU]
    """GPU id or alias; wattcast gpus list WORD finds one. Repeatable."""

    def body(self) -> dict[str, Any]:
        """They, as requests name them."""
        return {"gpu": self.gpu[0]} if len(self.gpu) == 1 else {"gpus": self.gpu}


class LikeOptions(Options):
    """A made-up board like the GPU."""

    panel = MODELS
    members = scalars(Like, under="like")


class CodeOptions(Options):
    """Of a kernel, whatever its grid and block."""

    members = scalars(LaunchRequest, under="launch") | scalars(
        KernelCode, without=KernelCode.sources()
    )
    loops: list[str] | None = None
    """Loop trip counts: 64 for all loops, LABEL=64 for one. Repeatable."""
    arg: list[str] | None = None
    """Kernel argument by position or name: n=1024. For a pointer: 0:elements=1024,values=index.
    Repeatable."""
    macro: Annotated[list[str] | None, typer.Option("-D", metavar="NAME=VALUE")] = None
    """Macro of CUDA source. Repeatable."""
    include: Annotated[list[Path] | None, typer.Option("-I", metavar="FOLDER")] = None
    """Where headers of CUDA source are. Repeatable."""
    use_fast_math: Annotated[bool, typer.Option("--use_fast_math", "--use-fast-math")] = False
    """As nvcc's option."""
    standard: Annotated[str | None, typer.Option("-std", "--std")] = None
    """C++ standard of CUDA source: c++17."""
    compiler_option: Annotated[list[str] | None, typer.Option("-X")] = None
    """Another option of the compiler: --fmad=false. Repeatable."""
    project: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None
    """A build's compile_commands.json tells options and headers."""

    def of_code(self, file: Path, grid: str = "1", block: str = "1") -> dict[str, Any]:
        """The part of a request's body that tells code and launch.

        Raises PtxError for a file that is no text.
        """
        launch = {**_shape(grid, block), "arguments": _arguments(self.arg or ())}
        told = {"launch": launch, "loops": _loops(self.loops or ())}
        return body_of(self._source(file), Options.body(self), told)

    def _source(self, file: Path) -> dict[str, Any]:
        """PTX; or CUDA source, with the headers beside it and the compiler's options."""
        text = _read(file)
        if file.suffix not in CUDA_SUFFIXES:
            return {"ptx": text}
        from wattcast.features.cuda.own_files import project_options, with_headers

        options = [f"-D{each}" for each in self.macro or ()]
        options += ["--use_fast_math"] * self.use_fast_math
        options += [f"--std={self.standard}"] if self.standard else []
        options += self.compiler_option or []
        try:
            of_project, folders = project_options(self.project, file) if self.project else ([], [])
            text, headers = with_headers(file, [*(self.include or ()), *folders])
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}")
        except ValueError as error:
            fail(str(error))
        found = {"headers": headers, "compiler_options": [*of_project, *options]}
        return {"cuda": text, **{name: value for name, value in found.items() if value}}


def _shape(grid: str, block: str) -> dict[str, Any]:
    sizes = None if block == "auto" else dimensions("--block", block)
    return {"grid": dimensions("--grid", grid), "block": sizes}


class _Shape(Options):
    """Of a launch."""

    grid: Annotated[str, typer.Option()]
    """Blocks in the grid: 4096, 64,64 or 64x64x1."""
    block: Annotated[str, typer.Option()]
    """Threads per block: 256, 16,16 or 16x16; auto: the size fixed by the kernel."""


class LaunchOptions(CodeOptions, _Shape):
    """Of a launch, beside the file with its code."""

    def of(self, file: Path) -> dict[str, Any]:
        """The part of a request's body that tells code and launch. Raises as ``of_code``."""
        return self.of_code(file, self.grid, self.block)


class KernelOptions(LaunchOptions):
    """A file, and a launch of its kernel."""

    file: Ptx

    def body(self) -> dict[str, Any]:
        """The part of a request's body that tells them. Raises as ``of_code``."""
        return self.of(self.file)


class _ShapeOrNone(Options):
    """Of a launch, where the file holds code."""

    grid: str | None = None
    """Blocks in the grid: 4096, 64,64 or 64x64x1. Needed with code."""
    block: str | None = None
    """Threads per block: 256, 16,16 or 16x16; auto: the size fixed by the kernel."""


class KernelOrOther(CodeOptions, _ShapeOrNone):
    """A launch of a file's kernel, or anything else that has watts."""

    file: Annotated[Path, typer.Argument(metavar="FILE")]
    """PTX file or CUDA source; what a profiler printed (ncu --csv, nvprof --csv, dcgmi dmon) or a
    .json of counters by name; a trace as of wattcast app; a config.json as of wattcast model; or a
    .json of an operator as POST /predict takes it. - reads PTX from standard input."""

    def holds(self) -> str:
        """Which of them it is: kernel, counters, trace, language_model or operator."""
        if self.file.is_dir():
            return "language_model"
        if self.file.suffix in (*CUDA_SUFFIXES, ".ptx") or str(self.file) == "-":
            return "kernel"
        from wattcast.predictor.traces import GZIP, REPORTS, SQLITE

        start = _bytes(self.file, HEAD)
        if start.startswith((GZIP, SQLITE)) or self.file.suffix in REPORTS or TRACE.search(start):
            return "trace"
        if b".version" in start and b".target" in start:
            return "kernel"
        if self.file.suffix != ".json":
            return "counters"
        told = read_json(self.file, dict, "a JSON object")
        if "name" in told:
            return "operator"
        numbers = all(isinstance(each, int | float) for each in told.values())
        return "counters" if numbers else "language_model"

    def body(self) -> dict[str, Any]:
        """The part of a request's body that tells the kernel. Raises as ``of_code``."""
        if self.grid is None or self.block is None:
            fail("give --grid and --block, the launch of the kernel")
        return self.of_code(self.file, self.grid, self.block)


HEAD = 1 << 16
TRACE = re.compile(rb'"(?:traceEvents|deviceProperties|distributedInfo)"')
"""Members at the begin of what the PyTorch profiler writes."""


class KernelOrWork(LaunchOptions):
    """A launch of a file's kernel, or measured work in its place; and what is known of it."""

    file: Annotated[Path | None, _FILE] = None
    work: Annotated[str | None, typer.Option(rich_help_panel=OWN)] = None
    """Counts from a profiler instead of FILE: dram_bytes=1e9,int_ops=4e9,flops_sp=2e9."""
    known: Annotated[Path | None, typer.Option(rich_help_panel=OWN)] = None
    """JSON file with measured launches of this kernel, as in POST /predict."""

    def body(self) -> dict[str, Any]:
        """The part of a request's body that tells them. Raises as ``of_code``."""
        if self.file is not None and self.work is None:
            body = self.of(self.file)
        else:
            how = Options.body(self)
            body = {name: how[name] for name in how if name.startswith("analysis")}
            body |= {"work": self._work(), "launch": _shape(self.grid, self.block)}
        return {**body, "known": known(self.known)}

    def _work(self) -> dict[str, Any]:
        if self.work is None or self.file is not None:
            fail("give either FILE or --work")
        parts = [part.partition("=") for part in self.work.split(",")]
        if not all(equals for _, equals, _ in parts):
            fail(f"--work {self.work!r}: expected NAME=NUMBER, separated by commas")
        return {
            name: value if name == "runtime" else _number(value, self.work, "--work")
            for name, _, value in parts
        }


def known(file: Path | None) -> list[Any]:
    """``known`` of a request, from a JSON file."""
    return [] if file is None else read_json(file, list, "a JSON list of measured launches")


class NewOptions(Options):
    """How the launch of new code differs from that of the old one."""

    new_grid: str | None = None
    """Grid of the new code, where it differs."""
    new_block: str | None = None
    """Block of the new code, where it differs."""
    new_shared: int | None = None
    """Dynamic shared memory of the new code, where it differs."""
    new_kernel: str | None = None
    """Name of the new code's kernel, where it differs."""
    new_arg: list[str] | None = None
    """Arguments of the new code, in the place of all of --arg. Repeatable."""

    def sides(
        self, launch: LaunchOptions, old: Path, new: Path, names: tuple[str, str] = ("old", "new")
    ) -> dict[str, Any]:
        """The members of a request's body that tell both sides; headers beside the new file count
        for the old one too. Raises as ``LaunchOptions.of``."""
        if str(old) == str(new) == "-":
            fail("only one of the two files can be standard input")
        beside = launch.replaced(include=[*(launch.include or ()), new.parent])
        changed = {name.removeprefix("new_"): each for name, each in self.given.items()}
        given = {name: each for name, each in changed.items() if each not in (None, [])}
        return dict(zip(names, (beside.of(old), launch.replaced(**given).of(new)), strict=True))


class ClockOptions(Options):
    """At which clocks."""

    panel = MODELS
    members = scalars(Clocks, under="clocks")


class ModelOptions(ClockOptions):
    """At which clocks, under which power limit, and by which models."""

    members = ClockOptions.members | scalars(
        PredictRequest, KernelCode, without=("gpu", "explain", "details")
    )


class PhysicalOptions(ModelOptions):
    """The same where differences count: by the physical model, if none is named."""

    members = ModelOptions.members | scalars(
        SweepRequest, KernelCode, without=("gpu", "grid_stride", "include_unproven")
    )


class ScalingOptions(Options):
    """By which model times and powers are scaled over clocks."""

    panel = MODELS
    members = scalars(DvfsRequest, KernelCode, without=("gpu",))


class Constraints(Options):
    """What the best has to keep to."""

    panel = "Constraints"
    members = scalars(ConstraintsRequest, under="constraints")


def with_options(command: Callable[..., Any]) -> Callable[..., None]:
    """``command`` as typer takes it: each class of options stands as the options in it, what its
    docstring tells of a parameter below ``Args:`` is the help of that option, and an answer that
    it returns is shown.
    """
    signature = inspect.signature(command, eval_str=True)
    text, _, listed = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    helps = dict(_ARGUMENT.findall(listed))
    parameters: list[Parameter] = []
    groups: dict[str, type[Options]] = {}
    for each in signature.parameters.values():
        kind = each.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[each.name] = kind
            parameters += kind.parameters()
        elif kind is typer.Context:
            parameters.append(each)
        else:
            if get_origin(kind) is not Annotated:
                required = each.default is Parameter.empty
                kind = Annotated[kind, typer.Argument() if required else typer.Option()]
            parameters.append(_parameter(each.name, kind, each.default, helps.get(each.name)))
    forms = forms_of(signature.return_annotation)
    added = [name for name in forms if name not in signature.parameters]
    parameters += [_parameter(name, FORMS[name], False, None) for name in added]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        how = {name: given.pop(name) if name in added else given[name] for name in forms}
        for name, kind in groups.items():
            words = {each.name: given.pop(each.name) for each in kind.parameters()}
            given[name] = kind.model_construct(**words)
        found = command(**given)
        if forms:
            show(found, **how)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__doc__ = text
    return called


_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""A parameter in a docstring: its name, and its help in one or more lines."""
