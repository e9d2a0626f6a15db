"""What the commands take: their common options, and how words become a request.

A command decorated by ``with_options`` that has a parameter of a class such as ``LaunchOptions``
gets the options of that class on the command line, where the parameter stands. A word that cannot
be read ends the program with one line on stderr and status 2.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from wattcast.models.power import POWER_FAMILIES
from wattcast.models.time.registry import DEFAULT, TIME_MODELS

CUDA_SUFFIXES = (".cu", ".cuh")

_FILE = typer.Argument(
    metavar="FILE",
    help="PTX file, or CUDA source (.cu; needs the extra cuda). - reads PTX from standard input.",
)
Ptx = Annotated[Path, _FILE]
MaybePtx = Annotated[Path | None, _FILE]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU id or alias; wattcast gpus lists them.")]
Grid = Annotated[str, typer.Option("--grid", help="Blocks in the grid: 4096, 64,64 or 64x64x1.")]
Block = Annotated[
    str,
    typer.Option(
        "--block",
        help="Threads per block: 256, 16,16 or 16x16; auto: the size fixed by the kernel.",
    ),
]
Shared = Annotated[int, typer.Option("--shared", help="Dynamic shared memory per block, in bytes.")]
Kernel = Annotated[
    str | None, typer.Option("--kernel", help="Name of the kernel, if the file has several.")
]
Loops = Annotated[
    list[str] | None,
    typer.Option(
        "--loops", help="Loop trip counts: 64 for all loops, LABEL=64 for one. Repeatable."
    ),
]
Registers = Annotated[
    int | None, typer.Option("--registers", help="Registers per thread. Default: estimated.")
]
StaticShared = Annotated[
    int | None,
    typer.Option(
        "--static-shared",
        help="Static shared memory per block, in bytes. Default: read from the PTX.",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        help="Kernel argument by position or name: n=1024. For a pointer: "
        "0:elements=1024,values=index. Repeatable.",
    ),
]
Analysis = Annotated[
    str, typer.Option("--analysis", help="How the kernel is analysed: auto, symbolic or executed.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--analysis-seconds", help="Give up the request after this many seconds (exit status 4)."
    ),
]
Effort = Annotated[
    int | None,
    typer.Option("--analysis-effort", help="Budget of the executed analysis: lanes times steps."),
]
CoreMhz = Annotated[
    float | None, typer.Option("--core-mhz", help="Core clock in MHz. Default: the GPU's own.")
]
MemoryMhz = Annotated[
    float | None,
    typer.Option(
        "--memory-mhz", help="Memory clock in MHz, as NVML reports it. Default: the GPU's own."
    ),
]
TimeModel = Annotated[
    str,
    typer.Option(
        "--time-model",
        help=f"Time model: auto (now {DEFAULT}) or {', '.join(TIME_MODELS)}.",
    ),
]
PowerModel = Annotated[
    str, typer.Option("--model", help=f"Power model: auto or {', '.join(POWER_FAMILIES)}.")
]
Work = Annotated[
    str | None,
    typer.Option(
        "--work",
        help="Counts from a profiler instead of FILE: dram_bytes=1e9,int_ops=4e9,flops_sp=2e9.",
    ),
]
Known = Annotated[
    Path | None,
    typer.Option(
        "--known", help="JSON file with measured launches of this kernel, as in POST /predict."
    ),
]
Gpus = Annotated[list[str], typer.Option("--gpu", help="GPU id or alias. Repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the HTTP service answers.")]


def fail(message: str, status: int = 1) -> NoReturn:
    """One line on stderr, and the end of the program."""
    print(f"wattcast: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def work_request(file: Path | None, text: str | None, grid: str, block: str) -> dict[str, Any]:
    """``work`` and ``launch`` of a request that brings no kernel."""
    if text is None or file is not None:
        fail("give either FILE or --work", 2)
    parts = [part.partition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in parts):
        fail(f"--work {text!r}: expected NAME=NUMBER, separated by commas", 2)
    return {
        "work": {
            name: value if name == "runtime" else _number(value, text, "--work")
            for name, _, value in parts
        },
        "launch": {"grid": _dimensions("--grid", grid), "block": _dimensions("--block", block)},
    }


def known_request(file: Path | None) -> list[Any]:
    """``known`` of a request, from a JSON file."""
    import json

    if file is None:
        return []
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        fail(f"{file}: {error.strerror}", 2)
    except ValueError as error:
        fail(f"{file}: not JSON: {error}", 2)
    if not isinstance(found, list):
        fail(f"{file}: expected a JSON list of measured launches", 2)
    return found


def kernel_request(
    file: Path,
    grid: str,
    block: str,
    shared: int,
    kernel: str | None,
    loops: list[str] | None,
    registers: int | None,
    static_shared: int | None,
    arguments: list[str] | None,
) -> dict[str, Any]:
    """The part of a request's body that every command on a kernel shares.

    Raises CompileError or PtxError for a file that is not UTF-8 text.
    """
    return {
        "cuda" if file.suffix in CUDA_SUFFIXES else "ptx": _read(file),
        "kernel": kernel,
        "launch": {
            "grid": _dimensions("--grid", grid),
            "block": None if block == "auto" else _dimensions("--block", block),
            "dynamic_shared_bytes": shared,
            "arguments": _arguments(arguments or []),
        },
        "loops": _loops(loops or []),
        "registers_per_thread": registers,
        "static_shared_bytes": static_shared,
    }


def _read(file: Path) -> str:
    from wattcast.features.cuda import CompileError
    from wattcast.features.errors import PtxError

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}", 2)
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
    core, slash, memory = text.partition("/")
    try:
        pair = {"core_mhz": float(core)}
        return {**pair, "memory_mhz": float(memory)} if slash else pair
    except ValueError:
        fail(f"{option} {text!r}: expected CORE/MEMORY in MHz, as in 1164/3505", 2)


def _dimensions(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        fail(f"{option} {text!r}: expected 1 to 3 whole numbers, as in 64,64", 2)


def _loops(given: list[str]) -> dict[str, float]:
    trips: dict[str, float] = {}
    for text in given:
        label, _, number = text.rpartition("=")
        try:
            trips[label or "default"] = float(number)
        except ValueError:
            fail(f"--loops {text!r}: expected a number or LABEL=number", 2)
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
                fail(f"--arg {text!r}: expected NAME:elements=N,values=KIND,low=L,high=H", 2)
            hint.update(
                {key: value if key == "values" else _number(value, text) for key, _, value in parts}
            )
            continue
        name, _, value = text.rpartition("=")
        if not name:
            fail(f"--arg {text!r}: expected NAME=number or NAME:elements=N", 2)
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
        fail(f"{option} {text!r}: {value!r} is not a number", 2)


@dataclass(frozen=True)
class LaunchOptions:
    """Of a launch, beside its code, grid and block."""

    shared: Shared = 0
    kernel: Kernel = None
    loops: Loops = None
    registers: Registers = None
    static_shared: StaticShared = None
    arg: Arguments = None
    analysis: Analysis = "auto"
    analysis_seconds: Seconds = None
    analysis_effort: Effort = None

    def request(self, file: Path, grid: str, block: str) -> dict[str, Any]:
        """The part of a request's body that tells code and launch. Raises as ``kernel_request``."""
        code = (self.shared, self.kernel, self.loops, self.registers, self.static_shared, self.arg)
        return {**kernel_request(file, grid, block, *code), **self._how()}

    def request_or_work(
        self, file: Path | None, work: str | None, grid: str, block: str
    ) -> dict[str, Any]:
        """The same, or measured ``work`` in the place of code; one of them has to be given."""
        if file is not None and work is None:
            return self.request(file, grid, block)
        return {**work_request(file, work, grid, block), **self._how()}

    def _how(self) -> dict[str, Any]:
        return {
            "analysis": self.analysis,
            "analysis_seconds": self.analysis_seconds,
            "analysis_effort": self.analysis_effort,
        }


@dataclass(frozen=True)
class ModelOptions:
    """At which clocks, and by which models."""

    core_mhz: CoreMhz = None
    memory_mhz: MemoryMhz = None
    time_model: TimeModel = "auto"
    model: PowerModel = "auto"

    def request(self) -> dict[str, Any]:
        """The part of a request's body that names clocks and models."""
        clocks = clock_request(self.core_mhz, self.memory_mhz)
        return {"clocks": clocks, "time_model": self.time_model, "model": self.model}


@dataclass(frozen=True)
class PhysicalOptions(ModelOptions):
    """The same where differences count: by the physical model, if none is named."""

    model: PowerModel = "physical"


@dataclass(frozen=True)
class Constraints:
    """What the best has to keep to."""

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
                default=field.default,
                annotation=hints[field.name],
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
