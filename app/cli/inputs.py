"""What the commands take: their common options, and how words become a request.

A command decorated by ``with_options`` that has a parameter of a class such as ``LaunchOptions``
gets the options of that class on the command line, where the parameter stands. A word that cannot
be read ends the program with one line on stderr and status 2.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, get_type_hints

import typer
from typer.models import OptionInfo

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.progress import clear
from wattcast.models.power import POWER_FAMILIES
from wattcast.models.time.registry import DEFAULT, TIME_MODELS
from wattcast.predictor.messages import CODE_MODELS

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
PowerLimit = Annotated[
    float | None,
    typer.Option(help="Power limit in watts, as nvidia-smi -pl sets it. Default: the GPU's own."),
]
TimeModel = Annotated[
    str, typer.Option(help=f"Time model: auto (now {DEFAULT}) or {', '.join(TIME_MODELS)}.")
]
PowerModel = Annotated[
    str, typer.Option("--model", help=f"Power model: auto or {', '.join(POWER_FAMILIES)}.")
]
Board = Annotated[str | None, typer.Option(help="Which board, if models are kept per board.")]
ScalingModel = Annotated[
    str,
    typer.Option(
        "--model",
        help=f"Power model: auto or {', '.join(POWER_FAMILIES)}. Or scaling by code alone: "
        f"{' or '.join(CODE_MODELS)}.",
    ),
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
        "launch": {"grid": _dimensions("--grid", grid), "block": _dimensions("--block", block)},
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
    from wattcast.features.errors import PtxError

    data = _bytes(file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        if file.suffix in CUDA_SUFFIXES:
            raise CompileError(f"line {line}: not UTF-8 text", line=line) from error
        column = error.start - before.rfind(b"\n")
        raise PtxError("not UTF-8 text", line=line, column=column) from error


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


def _dimensions(option: str, text: str) -> list[int]:
    with expected(option, text, "1 to 3 whole numbers, as in 64,64"):
        return [int(part) for part in text.replace("x", ",").split(",")]


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


@dataclass(frozen=True)
class CodeOptions:
    """Of a kernel, whatever its grid and block."""

    panel: ClassVar[str] = LAUNCH

    shared: Annotated[int, typer.Option(help="Dynamic shared memory per block, in bytes.")] = 0
    kernel: Annotated[
        str | None, typer.Option(help="Name of the kernel, if the file has several.")
    ] = None
    loops: Annotated[
        list[str] | None,
        typer.Option(help="Loop trip counts: 64 for all loops, LABEL=64 for one. Repeatable."),
    ] = None
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="Kernel argument by position or name: n=1024. For a pointer: "
            "0:elements=1024,values=index. Repeatable."
        ),
    ] = None
    analysis: Annotated[
        str, typer.Option(help="How the kernel is analysed: auto, symbolic or executed.")
    ] = "auto"
    analysis_seconds: Annotated[
        float | None,
        typer.Option(help="Give up the request after this many seconds (exit status 4)."),
    ] = None
    analysis_effort: Annotated[
        int | None, typer.Option(help="Budget of the executed analysis: lanes times steps.")
    ] = None

    def of_code(self, file: Path, grid: str = "1", block: str = "1") -> dict[str, Any]:
        """The part of a request's body that tells code and launch.

        Raises CompileError or PtxError for a file that is not UTF-8 text.
        """
        return {
            "cuda" if file.suffix in CUDA_SUFFIXES else "ptx": _read(file),
            "kernel": self.kernel,
            "launch": {
                "grid": _dimensions("--grid", grid),
                "block": None if block == "auto" else _dimensions("--block", block),
                "dynamic_shared_bytes": self.shared,
                "arguments": _arguments(self.arg or []),
            },
            "loops": _loops(self.loops or []),
            **self.how(),
        }

    def how(self) -> dict[str, Any]:
        """How the kernel is analysed."""
        names = ("analysis", "analysis_seconds", "analysis_effort")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Shape:
    grid: Annotated[str, typer.Option(help="Blocks in the grid: 4096, 64,64 or 64x64x1.")]
    block: Annotated[
        str,
        typer.Option(
            help="Threads per block: 256, 16,16 or 16x16; auto: the size fixed by the kernel."
        ),
    ]


@dataclass(frozen=True)
class LaunchOptions(CodeOptions, _Shape):  # the fields of the last class come first
    """Of a launch, beside the file with its code."""

    registers: Annotated[
        int | None, typer.Option(help="Registers per thread. Default: estimated.")
    ] = None
    static_shared: Annotated[
        int | None,
        typer.Option(help="Static shared memory per block, in bytes. Default: read from the PTX."),
    ] = None

    def request(self, file: Path) -> dict[str, Any]:
        """The part of a request's body that tells code and launch. Raises as ``of_code``."""
        return {
            **self.of_code(file, self.grid, self.block),
            "registers_per_thread": self.registers,
            "static_shared_bytes": self.static_shared,
        }

    def request_or_work(self, file: Path | None, work: str | None) -> dict[str, Any]:
        """The same, or measured ``work`` in the place of code; one of them has to be given."""
        if file is not None and work is None:
            return self.request(file)
        return {**work_request(file, work, self.grid, self.block), **self.how()}


@dataclass(frozen=True)
class _OnOneGpu:
    file: Ptx
    gpu: Gpu


@dataclass(frozen=True)
class KernelOptions(LaunchOptions, _OnOneGpu):
    """A file, a GPU and a launch of the file's kernel on it."""

    def body(self) -> dict[str, Any]:
        """The part of a request's body that tells them. Raises as ``of_code``."""
        return {**self.request(self.file), "gpu": self.gpu}


@dataclass(frozen=True)
class ModelOptions:
    """At which clocks, and by which models."""

    panel: ClassVar[str] = MODELS

    core_mhz: CoreMhz = None
    memory_mhz: MemoryMhz = None
    power_limit: PowerLimit = None
    time_model: TimeModel = "auto"
    model: PowerModel = "auto"
    board: Board = None

    def operating(self) -> dict[str, Any]:
        """The part of a request's body that names clocks and power limit."""
        clocks = clock_request(self.core_mhz, self.memory_mhz)
        return {"clocks": clocks, "power_limit_watts": self.power_limit}

    def request(self) -> dict[str, Any]:
        """The same, the models, and the board."""
        own = {"time_model": self.time_model, "model": self.model, "board": self.board}
        return {**self.operating(), **own}


@dataclass(frozen=True)
class PhysicalOptions(ModelOptions):
    """The same where differences count: by the physical model, if none is named."""

    model: PowerModel = "physical"


@dataclass(frozen=True)
class Constraints:
    """What the best has to keep to."""

    panel: ClassVar[str] = "Constraints"

    max_slowdown: Annotated[
        float | None,
        typer.Option(help="Longest time allowed, relative to the reference, e.g. 1.1."),
    ] = None
    max_power_watts: Annotated[
        float | None, typer.Option(help="Highest power allowed, in watts.")
    ] = None
    deadline_seconds: Annotated[
        float | None, typer.Option(help="Longest time allowed, in seconds.")
    ] = None


def _in_panel(hint: Any, panel: str | None) -> Any:
    """The option, in a group of the command's help."""
    kind, (told, *_) = hint.__origin__, hint.__metadata__
    told = copy.copy(told)
    if isinstance(told, OptionInfo):
        told.rich_help_panel = panel
    return Annotated[kind, told]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it: each class of options stands as the options in it."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=_in_panel(hints[field.name], getattr(kind, "panel", None)),
            )
            for field in fields(kind)
        ]

    @functools.wraps(command)
    def told(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    told.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    told.__annotations__ = {each.name: each.annotation for each in parameters}
    return told
