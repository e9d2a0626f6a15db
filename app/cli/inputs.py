"""What the commands take: their common options, and how words become a request.

A command that has a parameter of a class such as ``LaunchOptions`` gets the options of that class
on the command line, where the parameter stands; its docstring tells of its other parameters. A word
that cannot be read ends the program with one line on stderr and status 2.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin

import typer
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.progress import clear
from wattcast.predictor.messages import KernelCode, LaunchRequest
from wattcast.predictor.messages.application import ApplicationRequest
from wattcast.predictor.messages.dvfs import ConstraintsRequest, DvfsRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepRequest

CUDA_SUFFIXES = (".cu", ".cuh")

_FILE = typer.Argument(
    metavar="FILE",
    help="PTX file, or CUDA source (.cu; needs the extra cuda). - reads PTX from standard input.",
)
Ptx = Annotated[Path, _FILE]
MaybePtx = Annotated[Path | None, _FILE]


def _gpu_names(incomplete: str) -> list[str]:
    from wattcast.features.gpus import gpu_ids

    return [name for name in gpu_ids() if name.startswith(incomplete)]


def _gpu(told: str) -> Any:
    return typer.Option("--gpu", help=told, autocompletion=_gpu_names, rich_help_panel=LAUNCH)


LAUNCH, MODELS = "Launch", "Clocks and models"
"""Groups of options in a command's help."""

Gpu = Annotated[str, _gpu("GPU id or alias; wattcast gpus list WORD finds one.")]
Gpus = Annotated[list[str], _gpu("GPU id or alias; wattcast gpus list WORD finds one. Repeatable.")]
CoreMhz = Annotated[float | None, typer.Option(help="Core clock in MHz. Default: the GPU's own.")]
MemoryMhz = Annotated[
    float | None,
    typer.Option(help="Memory clock in MHz, as NVML reports it. Default: the GPU's own."),
]
Work = Annotated[
    str | None,
    typer.Option(
        help="Counts from a profiler instead of FILE: dram_bytes=1e9,int_ops=4e9,flops_sp=2e9."
    ),
]
Known = Annotated[
    Path | None,
    typer.Option(help="JSON file with measured launches of this kernel, as in POST /predict."),
]
Brief = Annotated[
    bool, typer.Option("--brief", help="Print one line of JSON, at most 1,024 bytes.")
]
Sarif = Annotated[bool, typer.Option("--sarif", help="Print SARIF 2.1.0, for code scanning.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the HTTP service answers.")]


def fail(message: str, status: int = Exit.BAD_INPUT) -> NoReturn:
    """One line on stderr, and the end of the program."""
    clear()
    print(f"wattcast: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def progress(line: str) -> None:
    """A line on stderr about work under way."""
    clear()
    print(line, file=sys.stderr, flush=True)


def work_request(file: Path | None, text: str | None, grid: str, block: str) -> dict[str, Any]:
    """``work`` and ``launch`` of a request that brings no kernel."""
    if text is None or file is not None:
        fail("give either FILE or --work")
    parts = [part.partition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in parts):
        fail(f"--work {text!r}: expected NAME=NUMBER, separated by commas")
    return {
        "work": {
            name: value if name == "runtime" else _number(value, text, "--work")
            for name, _, value in parts
        },
        "launch": {"grid": dimensions("--grid", grid), "block": dimensions("--block", block)},
    }


def known_request(file: Path | None) -> list[Any]:
    """``known`` of a request, from a JSON file."""
    found = [] if file is None else read_json(file)
    if not isinstance(found, list):
        fail(f"{file}: expected a JSON list of measured launches")
    return found


def read_json(file: Path) -> Any:
    """What a JSON file holds; ``-`` is standard input."""
    import json

    try:
        return json.loads(_bytes(file))
    except ValueError as error:
        fail(f"{file}: not JSON: {error}")


def read_text(file: Path) -> str:
    """Text that some tool printed; ``-`` is standard input."""
    try:
        return _bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(f"{file}: not UTF-8 text")


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}")


def _read(file: Path) -> str:
    from wattcast.features.cuda import CompileError
    from wattcast.features.errors import NO_TEXT, PtxError

    data = _bytes(file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        if file.suffix in CUDA_SUFFIXES:
            raise CompileError(f"line {line}: {NO_TEXT}", line=line) from error
        column = error.start - before.rfind(b"\n")
        raise PtxError(NO_TEXT, line=line, column=column) from error


def clock_request(
    core_mhz: float | None, memory_mhz: float | None
) -> dict[str, float | None] | None:
    """``clocks`` of a request; ``None`` where none was given."""
    if core_mhz is None and memory_mhz is None:
        return None
    return {"core_mhz": core_mhz, "memory_mhz": memory_mhz}


def pair_request(option: str, text: str) -> dict[str, float]:
    """A pair of clocks written CORE/MEMORY, or CORE alone."""
    with expected(option, text, "CORE/MEMORY in MHz, as in 1164/3505"):
        core, slash, memory = text.partition("/")
        pair = {"core_mhz": float(core)}
        return {**pair, "memory_mhz": float(memory)} if slash else pair


@contextmanager
def expected(option: str, text: str, what: str) -> Iterator[None]:
    """Reads ``text`` inside; where it holds no numbers, says ``what`` was expected and ends."""
    try:
        yield
    except ValueError:
        fail(f"{option} {text!r}: expected {what}")


def dimensions(
    option: str, text: str, example: str = "64,64", least: int | None = None
) -> list[int]:
    """1 to 3 whole numbers. With ``least`` none is below it; without, the request checks them."""
    with expected(option, text, f"1 to 3 whole numbers, as in {example}"):
        found = [int(part) for part in text.replace("x", ",").split(",")]
        if least is not None and (len(found) > 3 or min(found) < least):
            raise ValueError
        return found


def write(path: Path, content: bytes) -> None:
    """Write a file; ``-`` is standard output."""
    try:
        if str(path) == "-":
            sys.stdout.buffer.write(content)
        else:
            path.write_bytes(content)
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _loops(given: list[str]) -> dict[str, float]:
    trips: dict[str, float] = {}
    for text in given:
        label, _, number = text.rpartition("=")
        with expected("--loops", text, "a number or LABEL=number"):
            trips[label or "default"] = float(number)
    return trips


def _arguments(given: list[str]) -> dict[str, Any]:
    """``n=1024`` is a number, ``0:elements=1024,values=index`` a hint about a pointer."""
    found: dict[str, Any] = {}
    for text in given:
        name, colon, hints = text.partition(":")
        if colon and "=" not in name:
            parts = [part.partition("=") for part in hints.split(",")]
            hint = found.setdefault(name, {})
            if not isinstance(hint, dict) or not all(equals for _, equals, _ in parts):
                fail(f"--arg {text!r}: expected NAME:elements=N,values=KIND,low=L,high=H")
            hint.update(
                {key: value if key == "values" else _number(value, text) for key, _, value in parts}
            )
            continue
        name, _, value = text.rpartition("=")
        if not name:
            fail(f"--arg {text!r}: expected NAME=number or NAME:elements=N")
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
        fail(f"{option} {text!r}: {value!r} is not a number")


_NAMES = {
    "dynamic_shared_bytes": "shared",
    "static_shared_bytes": "static_shared",
    "registers_per_thread": "registers",
    "power_limit_watts": "power_limit",
}
"""Options with a shorter name than the member of the request that they give."""


class Options:
    """Options made of the fields of a request: their defaults, and their descriptions as help.

    ``members`` are fields that one word gives, ``others`` the options of what takes more words.
    """

    panel: ClassVar[str] = LAUNCH
    members: ClassVar[Mapping[str, FieldInfo]] = {}
    others: ClassVar[Sequence[Parameter]] = ()

    def __init__(self, **given: Any) -> None:
        defaults = {each.name: each.default for each in self.parameters()}
        self.given: dict[str, Any] = {**defaults, **given}

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """The options as typer takes them."""
        return [*cls.others, *(_option(name, each) for name, each in cls.members.items())]

    def replaced(self, **changed: Any) -> Self:
        """The same with other words for some options."""
        return type(self)(**{**self.given, **changed})

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Members of a request by their names."""
        return {name: self.given[_NAMES.get(name, name)] for name in names}


def scalars(
    request: type[BaseModel], *base: type[BaseModel], without: Iterable[str] = ()
) -> dict[str, FieldInfo]:
    """Fields of a request that one word gives: numbers, names and switches; those of ``base`` and
    ``without`` have options elsewhere."""
    left_out = {*without, *(name for each in base for name in each.model_fields)}
    return {
        name: field
        for name, field in request.model_fields.items()
        if name not in left_out and _kind(field.annotation) is not None
    }


def _kind(annotation: Any) -> Any:
    """The type of the word that gives a field; ``None`` where one word does not."""
    of = get_origin(annotation)
    if of is Annotated:
        return _kind(get_args(annotation)[0])
    if of is Literal:
        return str
    if of in (Union, UnionType):
        kinds = {_kind(each) for each in get_args(annotation) if each is not NoneType}
        return kinds.pop() if len(kinds) == 1 else None
    return annotation if annotation in (bool, int, float, str) else None


def _option(name: str, field: FieldInfo) -> Parameter:
    kind, word = _kind(field.annotation), _NAMES.get(name, name)
    flags = [f"--{word.replace('_', '-')}"] if kind is bool else []
    names = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    for each in field.metadata:
        names = (
            (each.json_schema or {}).get("enum", ()) if isinstance(each, WithJsonSchema) else names
        )
    help_text = (field.description or "").replace("`", "")
    help_text += f" One of {', '.join(names)}." if names else ""
    default = Parameter.empty if field.is_required() else field.get_default()
    option = typer.Option(*flags, help=help_text)
    of = kind if default is not None else kind | None
    annotated = Annotated[of, option]  # type: ignore[valid-type]
    return Parameter(word, Parameter.KEYWORD_ONLY, default=default, annotation=annotated)


def _own(
    name: str,
    kind: Any,
    help_text: str,
    default: Any = None,
    flags: Sequence[str] = (),
    metavar: str | None = None,
) -> Parameter:
    option = Annotated[kind, typer.Option(*flags, help=help_text, metavar=metavar)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)


class CodeOptions(Options):
    """Of a kernel, whatever its grid and block."""

    launch = scalars(LaunchRequest)
    code = scalars(KernelCode, without=KernelCode.sources())
    members: ClassVar[Mapping[str, FieldInfo]] = {**launch, **code}
    others: ClassVar[Sequence[Parameter]] = (
        _own(
            "loops", list[str] | None,
            "Loop trip counts: 64 for all loops, LABEL=64 for one. Repeatable.",
        ),
        _own(
            "arg", list[str] | None,
            "Kernel argument by position or name: n=1024. For a pointer: "
            "0:elements=1024,values=index. Repeatable.",
        ),
        _own(
            "macro", list[str] | None, "Macro of CUDA source. Repeatable.",
            flags=("-D",), metavar="NAME=VALUE",
        ),
        _own(
            "include", list[Path] | None, "Where headers of CUDA source are. Repeatable.",
            flags=("-I",), metavar="FOLDER",
        ),
        _own(
            "use_fast_math", bool, "As nvcc's option.", False,
            flags=("--use_fast_math", "--use-fast-math"),
        ),
        _own(
            "standard", str | None, "C++ standard of CUDA source: c++17.", flags=("-std", "--std"),
        ),
        _own(
            "compiler_option", list[str] | None,
            "Another option of the compiler: --fmad=false. Repeatable.", flags=("-X",),
        ),
        _own(
            "project", Path | None,
            "A build's compile_commands.json tells options and headers.", metavar="FOLDER",
        ),
    )  # fmt: skip

    def of_code(self, file: Path, grid: str = "1", block: str = "1") -> dict[str, Any]:
        """The part of a request's body that tells code and launch.

        Raises CompileError or PtxError for a file that is not UTF-8 text.
        """
        return {
            **self._source(file),
            "launch": {
                "grid": dimensions("--grid", grid),
                "block": None if block == "auto" else dimensions("--block", block),
                "arguments": _arguments(self.given["arg"] or []),
                **self.of(self.launch),
            },
            "loops": _loops(self.given["loops"] or []),
            **self.of(self.code),
        }

    def _source(self, file: Path) -> dict[str, Any]:
        """PTX; or CUDA source, with the headers beside it and the compiler's options."""
        text = _read(file)
        if file.suffix not in CUDA_SUFFIXES:
            return {"ptx": text}
        from wattcast.features.cuda.own_files import project_options, with_headers

        given = self.given
        options = [f"-D{each}" for each in given["macro"] or ()]
        options += ["--use_fast_math"] * given["use_fast_math"]
        options += [f"--std={given['standard']}"] if given["standard"] else []
        options += given["compiler_option"] or []
        project = given["project"]
        try:
            of_project, folders = project_options(project, file) if project else ([], [])
            text, headers = with_headers(file, [*(given["include"] or ()), *folders])
        except (OSError, ValueError) as error:
            fail(str(error))
        found = {"headers": headers, "compiler_options": [*of_project, *options]}
        return {"cuda": text, **{name: value for name, value in found.items() if value}}


class LaunchOptions(CodeOptions):
    """Of a launch, beside the file with its code."""

    others: ClassVar[Sequence[Parameter]] = (
        _own("grid", str, "Blocks in the grid: 4096, 64,64 or 64x64x1.", Parameter.empty),
        _own(
            "block", str,
            "Threads per block: 256, 16,16 or 16x16; auto: the size fixed by the kernel.",
            Parameter.empty,
        ),
        *CodeOptions.others,
    )  # fmt: skip

    @property
    def grid(self) -> str:
        """As it was written."""
        return str(self.given["grid"])

    @property
    def block(self) -> str:
        """As it was written."""
        return str(self.given["block"])

    def request(self, file: Path) -> dict[str, Any]:
        """The part of a request's body that tells code and launch. Raises as ``of_code``."""
        return self.of_code(file, self.grid, self.block)

    def request_or_work(self, file: Path | None, work: str | None) -> dict[str, Any]:
        """The same, or measured ``work`` in the place of code; one of them has to be given."""
        if file is not None and work is None:
            return self.request(file)
        how = self.of(name for name in self.code if name.startswith("analysis"))
        return {**work_request(file, work, self.grid, self.block), **how}


class NewOptions(Options):
    """How the launch of new code differs from that of the old one."""

    others: ClassVar[Sequence[Parameter]] = (
        _own("new_grid", str | None, "Grid of the new code, where it differs."),
        _own("new_block", str | None, "Block of the new code, where it differs."),
        _own("new_shared", int | None, "Dynamic shared memory of the new code, where it differs."),
        _own("new_kernel", str | None, "Name of the new code's kernel, where it differs."),
        _own(
            "new_arg", list[str] | None,
            "Arguments of the new code, in the place of all of --arg. Repeatable.",
        ),
    )  # fmt: skip

    def sides(self, launch: LaunchOptions, old: Path, new: Path, time_model: Any) -> list[Any]:
        """The parts of a request's body that tell both sides; headers beside the new file count
        for the old one too. Raises as ``LaunchOptions.request``."""
        if str(old) == str(new) == "-":
            fail("only one of the two files can be standard input")
        beside = launch.replaced(include=[*(launch.given["include"] or ()), new.parent])
        changed = {name.removeprefix("new_"): each for name, each in self.given.items()}
        given = {name: each for name, each in changed.items() if each not in (None, [])}
        both = (old, beside), (new, launch.replaced(**given))
        return [{**each.request(file), "time_model": time_model} for file, each in both]


class KernelOptions(LaunchOptions):
    """A file, a GPU and a launch of the file's kernel on it."""

    others: ClassVar[Sequence[Parameter]] = (
        Parameter("file", Parameter.KEYWORD_ONLY, annotation=Ptx),
        Parameter("gpu", Parameter.KEYWORD_ONLY, annotation=Gpu),
        *LaunchOptions.others,
    )

    @property
    def file(self) -> Path:
        """The file with the kernel."""
        return Path(self.given["file"])

    def body(self) -> dict[str, Any]:
        """The part of a request's body that tells them. Raises as ``of_code``."""
        return {**self.request(self.file), "gpu": self.given["gpu"]}


class ModelOptions(Options):
    """At which clocks, and by which models."""

    panel = MODELS
    members: ClassVar[Mapping[str, FieldInfo]] = scalars(
        PredictRequest, KernelCode, without=("gpu", "explain", "details")
    )
    others: ClassVar[Sequence[Parameter]] = (
        Parameter("core_mhz", Parameter.KEYWORD_ONLY, default=None, annotation=CoreMhz),
        Parameter("memory_mhz", Parameter.KEYWORD_ONLY, default=None, annotation=MemoryMhz),
    )

    def request(self) -> dict[str, Any]:
        """The part of a request's body that names clocks, power limit, models and board."""
        clocks = clock_request(self.given["core_mhz"], self.given["memory_mhz"])
        return {"clocks": clocks, **self.of(self.members)}


class PhysicalOptions(ModelOptions):
    """The same where differences count: by the physical model, if none is named."""

    members: ClassVar[Mapping[str, FieldInfo]] = {
        **ModelOptions.members,
        **{name: SweepRequest.model_fields[name] for name in ModelOptions.members},
    }


class ScalingOptions(Options):
    """By which model times and powers are scaled over clocks."""

    panel = MODELS
    members: ClassVar[Mapping[str, FieldInfo]] = scalars(DvfsRequest, KernelCode, without=("gpu",))

    def request(self) -> dict[str, Any]:
        """The part of a request's body that names models and board."""
        return self.of(self.members)


class TraceOptions(ScalingOptions):
    """By which models the power of a trace's launches is predicted."""

    members: ClassVar[Mapping[str, FieldInfo]] = scalars(
        ApplicationRequest, without=("gpu", "launches", "most_slowdown", "grams_co2_per_kwh")
    )


class Constraints(Options):
    """What the best has to keep to."""

    panel = "Constraints"
    members: ClassVar[Mapping[str, FieldInfo]] = scalars(ConstraintsRequest)

    def request(self) -> dict[str, Any]:
        """The member ``constraints`` of a request."""
        return self.of(self.members)


def _in_panel(hint: Any, panel: str | None) -> Any:
    """The option, in a group of the command's help."""
    kind, (told, *_) = hint.__origin__, hint.__metadata__
    told = copy.copy(told)
    if isinstance(told, OptionInfo):
        told.rich_help_panel = panel
    return Annotated[kind, told]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it: each class of options stands as the options in it, and what
    its docstring tells of a parameter below ``Args:`` is the help of that option.
    """
    signature = inspect.signature(command, eval_str=True)
    text, _, listed = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    helps = dict(_ARGUMENT.findall(listed))
    parameters: list[Parameter] = []
    groups: dict[str, type[Options]] = {}
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if not (isinstance(kind, type) and issubclass(kind, Options)):
            told = _told(parameter, helps.get(parameter.name))
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=told))
            continue
        groups[parameter.name] = kind
        parameters += [
            each.replace(annotation=_in_panel(each.annotation, kind.panel))
            for each in kind.parameters()
        ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in kind.parameters()})
        command(**given)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__doc__ = text
    return called


_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""A parameter in a docstring: its name, and its help in one or more lines."""


def _told(parameter: Parameter, told: str | None) -> Any:
    """The parameter's annotation with its help, if the docstring tells one."""
    if told is None:
        return parameter.annotation
    hint = parameter.annotation
    if get_origin(hint) is not Annotated:
        required = parameter.default is Parameter.empty
        hint = Annotated[hint, typer.Argument() if required else typer.Option()]
    kind, option = hint.__origin__, copy.copy(hint.__metadata__[0])
    option.help = " ".join(told.split())
    return Annotated[kind, option]
