"""Command line: ``wattcast serve | predict | features | analyze | gpus | models | schemas | ...``.

Errors are one line on stderr; exit status 1 where the request cannot be answered, 2 where the
command was used wrongly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from pydantic_core import to_json
from rich.console import Console

from app.settings import Settings
from features.errors import WattcastError

app = typer.Typer(
    name="wattcast",
    help="Power, time and energy of a CUDA kernel from its PTX or source, before anyone runs it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
gpus = typer.Typer(help="GPU profiles: list, show, check.", invoke_without_command=True)
app.add_typer(gpus, name="gpus")

_PIPED_WIDTH = 240
"""Columns when nobody looks: a line that is cut or folded cannot be searched."""

CUDA_SUFFIXES = (".cu", ".cuh")

Ptx = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="PTX, or CUDA source (.cu, needs the extra cuda); - reads PTX from standard input.",
    ),
]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU id or alias (wattcast gpus).")]
Grid = Annotated[str, typer.Option("--grid", help="Blocks: 4096 or 64,64 or 64x64x1.")]
Block = Annotated[str, typer.Option("--block", help="Threads per block: 256 or 16,16.")]
Shared = Annotated[int, typer.Option("--shared", help="Dynamic shared memory, bytes.")]
Kernel = Annotated[
    str | None, typer.Option("--kernel", help="Name, if the PTX holds several kernels.")
]
Loops = Annotated[
    list[str] | None,
    typer.Option("--loops", help="Loop trips: 64, or LABEL=64; may be given again."),
]
Registers = Annotated[
    int | None, typer.Option("--registers", help="Registers per thread; else estimated.")
]
StaticShared = Annotated[
    int | None, typer.Option("--static-shared", help="Static shared memory, bytes; else from PTX.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        help="Kernel argument by position or name: n=1024, or for a pointer "
        "0:elements=1024,values=index; may be given again.",
    ),
]
Analysis = Annotated[
    str, typer.Option("--analysis", help="How trips are found out: auto, symbolic or executed.")
]
Seconds = Annotated[
    float | None, typer.Option("--analysis-seconds", help="Time cap of the executed analysis.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as HTTP answers it.")]


def main() -> NoReturn:
    """Entry point: every foreseen error is one line on stderr and an exit status."""
    try:
        app()
    except ValidationError as error:
        _fail(_one_line(error))
    except WattcastError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; say nothing more
        sys.exit(1)
    sys.exit(0)


def _fail(message: str, status: int = 1) -> NoReturn:
    print(f"wattcast: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _one_line(error: ValidationError) -> str:
    from app.problems import field_problems

    found = field_problems(error.errors(include_url=False))
    return "; ".join(f"{part['path'] or 'request'}: {part['message']}" for part in found)


def _show_version(wanted: bool) -> None:
    if wanted:
        from app.services import installed_version

        print(f"wattcast {installed_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address; default WATTCAST_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default WATTCAST_PORT.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Print one real prediction over HTTP, then serve.")
    ] = False,
) -> None:
    """Run the HTTP service until interrupted."""
    from app import report
    from app.server import demonstrate
    from app.server import serve as run

    given = {"host": host, "port": port}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def ready(url: str) -> None:
        if demo:
            prediction = demonstrate(url)
            _console().print(f"POST {url}/predict answered:", highlight=False)
            report.prediction(_console(), prediction)
        _console().print(f"wattcast serves on {url} (documentation: {url}/docs)", highlight=False)

    run(settings, ready)


@app.command()
def predict(
    file: Ptx,
    gpu: Annotated[list[str], typer.Option("--gpu", help="GPU id or alias; may be given again.")],
    grid: Grid,
    block: Block,
    shared: Shared = 0,
    kernel: Kernel = None,
    loops: Loops = None,
    registers: Registers = None,
    static_shared: StaticShared = None,
    arg: Arguments = None,
    analysis: Analysis = "auto",
    analysis_seconds: Seconds = None,
    model: Annotated[str, typer.Option(help="auto, xgboost, catboost or average.")] = "auto",
    explain: Annotated[bool, typer.Option("--explain", help="Add SHAP contributions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict power, time and energy of a kernel launch."""
    from app import report
    from app.messages import PredictRequest
    from app.services.prediction import predict as run

    body: dict[str, Any] = {
        **_kernel_request(file, grid, block, shared, kernel, loops, registers, static_shared, arg),
        "analysis": analysis,
        "analysis_seconds": analysis_seconds,
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        "model": model,
        "explain": "shap" if explain else None,
    }
    answer = run(_services(), PredictRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    for number, one in enumerate(answer.get("predictions", [answer])):
        if number:
            _console().print()
        report.prediction(_console(), one)


@app.command()
def features(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    schema: Annotated[str, typer.Option(help="Feature schema (wattcast schemas).")] = "alavani2023",
    shared: Shared = 0,
    kernel: Kernel = None,
    loops: Loops = None,
    registers: Registers = None,
    static_shared: StaticShared = None,
    arg: Arguments = None,
    analysis: Analysis = "auto",
    analysis_seconds: Seconds = None,
    as_json: AsJson = False,
) -> None:
    """Print the feature vector of a kernel launch."""
    from app import report
    from app.messages import FeaturesRequest
    from app.services.features import features as run

    body = {
        **_kernel_request(file, grid, block, shared, kernel, loops, registers, static_shared, arg),
        "analysis": analysis,
        "analysis_seconds": analysis_seconds,
        "gpu": gpu,
        "schema": schema,
    }
    answer = run(_services(), FeaturesRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    report.rows(_console(), answer["features"], ("name", "value", "unit"))
    report.warnings(_console(), answer["warnings"])


@app.command()
def analyze(
    file: Ptx,
    gpu: Gpu,
    grid: Grid,
    block: Block,
    shared: Shared = 0,
    kernel: Kernel = None,
    loops: Loops = None,
    registers: Registers = None,
    static_shared: StaticShared = None,
    arg: Arguments = None,
    analysis: Analysis = "auto",
    analysis_seconds: Seconds = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a launch does: loops, memory accesses, mix, occupancy, hot source lines."""
    from app import report
    from app.messages import AnalyzeRequest
    from app.services.analysis import analyze as run

    body = {
        **_kernel_request(file, grid, block, shared, kernel, loops, registers, static_shared, arg),
        "analysis": analysis,
        "analysis_seconds": analysis_seconds,
        "gpu": gpu,
    }
    answer = run(_services(), AnalyzeRequest.model_validate(body))
    if as_json:
        _print_json(answer)
        return
    report.analysis(_console(), answer)


@gpus.callback()
def gpus_default(context: typer.Context) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        gpus_list()


@gpus.command("list")
def gpus_list(as_json: AsJson = False) -> None:
    """All GPUs with a profile."""
    from app import report
    from app.services import catalog

    services = _services()
    found = catalog.gpu_summaries(services.gpus, services.power.cards())
    if as_json:
        _print_json(found)
        return
    columns = ("id", "name", "compute_capability", "sm_count", "power_models", "schemas")
    report.rows(_console(), found, columns)


@gpus.command("show")
def gpus_show(gpu: Annotated[str, typer.Argument(help="GPU id or alias.")]) -> None:
    """One GPU with every fact, unit and source, as JSON."""
    from app.services import catalog

    services = _services()
    _print_json(catalog.gpu_details(services.gpus, gpu, services.power.cards()))


@gpus.command("check")
def gpus_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Profile files; default: all known ones.")
    ] = None,
) -> None:
    """Check GPU profiles; exit status 1 if one does not hold."""
    from features.gpus import check_profile

    if not files:
        found = _services().gpus.all()
        _console().print(f"{len(found)} profiles hold", highlight=False)
        return
    broken = False
    for path in files:
        problems = check_profile(path)
        broken = broken or bool(problems)
        for problem in problems:
            print(f"{path}: {problem}", file=sys.stderr)
        if not problems:
            _console().print(f"{path}: holds", highlight=False)
    if broken:
        raise typer.Exit(1)


@app.command()
def models(as_json: AsJson = False) -> None:
    """Trained models and their error on kernels they were not trained on."""
    from app import report
    from app.services import catalog

    power = _services().power
    found = [catalog.model_summary(card) for card in power.cards()]
    if as_json:
        _print_json(found)
    else:
        columns = ("gpu", "target", "family", "version", "schema", "unseen_kernel_mae_watts")
        report.rows(_console(), found, columns)
    for problem in power.problems():
        print(f"wattcast: left out: {problem}", file=sys.stderr)


@app.command()
def schemas(as_json: AsJson = False) -> None:
    """Feature schemas and the GPUs they have tables for."""
    from app import report
    from app.services import catalog

    found = catalog.schema_summaries()
    if as_json:
        _print_json(found)
        return
    report.rows(_console(), found, ("id", "version", "title", "gpus"))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """Train the power models (python -m training; --help lists its options)."""
    from training.__main__ import main as run

    raise typer.Exit(run(context.args))


@app.command()
def settings() -> None:
    """Every setting with its value here and what it means."""
    from app import report

    current = Settings()
    rows = [
        {
            "variable": f"WATTCAST_{name.upper()}",
            "value": str(getattr(current, name)),
            "meaning": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]
    report.rows(_console(), rows, ("variable", "value", "meaning"))


def _console() -> Console:
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def _services() -> Any:
    from app.services import Services

    return Services(Settings())


def _kernel_request(
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
    return {
        "cuda" if file.suffix in CUDA_SUFFIXES else "ptx": _read(file),
        "kernel": kernel,
        "launch": {
            "grid": _dimensions("--grid", grid),
            "block": _dimensions("--block", block),
            "dynamic_shared_bytes": shared,
            "arguments": _arguments(arguments or []),
        },
        "loops": _loops(loops or []),
        "registers_per_thread": registers,
        "static_shared_bytes": static_shared,
    }


def _read(file: Path) -> str:
    from features.cuda import CompileError
    from features.errors import PtxError

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        _fail(f"{file}: {error.strerror}", 2)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        if file.suffix in CUDA_SUFFIXES:
            raise CompileError(f"line {line}: not UTF-8 text", line=line) from error
        column = error.start - before.rfind(b"\n")
        raise PtxError("not UTF-8 text", line=line, column=column) from error


def _dimensions(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        _fail(f"{option} {text!r}: expected 1 to 3 whole numbers, as in 64,64", 2)


def _loops(given: list[str]) -> dict[str, float]:
    trips: dict[str, float] = {}
    for text in given:
        label, _, number = text.rpartition("=")
        try:
            trips[label or "default"] = float(number)
        except ValueError:
            _fail(f"--loops {text!r}: expected a number or LABEL=number", 2)
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
                _fail(f"--arg {text!r}: expected NAME:elements=N,values=KIND,low=L,high=H", 2)
            hint.update(
                {key: value if key == "values" else _number(value, text) for key, _, value in parts}
            )
            continue
        name, _, value = text.rpartition("=")
        if not name:
            _fail(f"--arg {text!r}: expected NAME=number or NAME:elements=N", 2)
        found[name] = _number(value, text)
    return found


def _number(value: str, text: str) -> int | float:
    try:
        return int(value, 0)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        _fail(f"--arg {text!r}: {value!r} is no number", 2)


def _print_json(value: Any) -> None:
    print(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2))


if __name__ == "__main__":
    main()
