"""``wattcast diff``: what a change of code changes; fails where it costs more than allowed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import console, line, plain_table, predictor, print_json, warnings
from wattcast.app.cli.progress import advance, clear
from wattcast.models.estimate import quantity

NOTHING = 1e-6
"""Share of the energy below which a change is rounding and not shown."""

_PERCENT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*")

Percent = Annotated[
    str | None, typer.Option(help="Largest change allowed: +5%; -2% asks for a saving of 2 %.")
]


@inputs.with_options
def diff(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="OLD and NEW, PTX or CUDA source before the change and after it; - reads PTX from "
            "standard input. With --against: the files to compare with their older versions.",
        ),
    ],
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION", help="Compare each file with itself in a Git revision, e.g. HEAD."
        ),
    ] = None,
    max_energy: Percent = None,
    max_time: Percent = None,
    max_power: Percent = None,
    *,
    models: inputs.PhysicalOptions,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a pull request.")
    ] = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Compare old and new code; exit with 3 if a limit is exceeded."""
    from wattcast.predictor.compare import compare
    from wattcast.predictor.messages.compare import CompareRequest

    body: dict[str, Any] = {
        "gpus": gpu,
        **models.operating(),
        "model": models.model,
        "board": models.board,
        "limits": {
            "max_energy_percent": _percent("--max-energy", max_energy),
            "max_time_percent": _percent("--max-time", max_time),
            "max_power_percent": _percent("--max-power", max_power),
        },
    }
    opened = predictor()

    def compared(old: Path, new: Path) -> dict[str, Any]:
        sides = {
            side: {**launch.request(file), "time_model": models.time_model}
            for side, file in (("old", old), ("new", new))
        }
        return compare(opened, CompareRequest.model_validate({**body, **sides}))

    if against is not None:
        _against(against, files, compared, markdown=markdown, as_json=as_json)
        return
    if len(files) != 2:
        inputs.fail("expected OLD and NEW, or files and --against REVISION")
    old, new = files
    if str(old) == str(new) == "-":
        inputs.fail("only one of OLD and NEW can be standard input")
    answer = compared(old, new)
    if as_json:
        print_json(answer)
    elif markdown:
        clear()
        print(answer["markdown"], end="")
    else:
        _report(answer)
    if not answer["passed"]:
        raise typer.Exit(Exit.EXCEEDED)


def _against(
    revision: str,
    files: list[Path],
    compared: Callable[[Path, Path], dict[str, Any]],
    *,
    markdown: bool,
    as_json: bool,
) -> None:
    """Each file beside its version in a Git revision. What cannot be compared is told and
    exceeds no limit: a new file, or one without a kernel that both versions have."""
    from wattcast.features.errors import KernelError
    from wattcast.predictor.compare import plain

    answers: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="wattcast-") as folder:
        for number, new in enumerate(files):
            old = Path(folder) / f"{number}{new.suffix}"
            if not _checked_out(revision, new, old):
                left_out[str(new)] = f"not in {revision}"
                continue
            try:
                answers[str(new)] = compared(old, new)
            except KernelError as error:
                left_out[str(new)] = error.detail
            advance(number + 1, len(files))
    clear()
    passed = all(answer["passed"] for answer in answers.values())
    if as_json:
        told = [{"file": name, **answer} for name, answer in answers.items()]
        print_json({"files": told, "left_out": left_out, "passed": passed})
    for name, answer in answers.items() if not as_json else ():
        if markdown:
            heading = "### Predicted energy"
            print(answer["markdown"].replace(heading, f"{heading} of {plain(name)}", 1))
        else:
            line(console(), name)
            _report(answer)
    for name, why in left_out.items() if not as_json else ():
        named, reason = (plain(name), plain(why)) if markdown else (name, why)
        print(f"{named}: not compared: {reason}")
    if not passed:
        raise typer.Exit(Exit.EXCEEDED)


def _checked_out(revision: str, file: Path, to: Path) -> bool:
    """Write a file's version in a revision; whether there is one. Fails for no revision or file."""
    if not file.is_file():
        inputs.fail(f"{file}: No such file or directory")

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 - Git, with words of the caller
                ["git", *words],  # noqa: S607
                cwd=file.parent,
                capture_output=True,
                check=False,
            )
        except OSError as error:
            inputs.fail(f"--against needs git: {error.strerror}")

    known = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if known.returncode != 0:
        inputs.fail(f"--against {revision!r}: no such revision in the Git repository of {file}")
    found = git("show", "--end-of-options", f"{revision}:./{file.name}")
    if found.returncode == 0:
        to.write_bytes(found.stdout)
    return found.returncode == 0


def _percent(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = _PERCENT.fullmatch(text)
    if found is None:
        inputs.fail(f"{option} {text!r}: expected a percentage, as in +5% or -2%")
    return float(found[1])


def _report(answer: dict[str, Any]) -> None:
    table = plain_table("kernel", "GPU", "energy", "", "time", "", "power", "", "")
    for each in answer["comparisons"]:
        cells = [Text(each["new"]["kernel"]["demangled"]), Text(each["gpu"])]
        for name, unit, symbol in (
            ("energy", "joules", "J"), ("time", "seconds", "s"), ("power", "watts", "W"),
        ):  # fmt: skip
            before, after = each["old"][name][unit], each["new"][name][unit]
            cells.append(Text(f"{quantity(before, symbol)} -> {quantity(after, symbol)}"))
            cells.append(Text(f"{each['change'][f'{name}_percent']:+.1f} %"))
        broken = ", ".join(name.replace("_", " ") for name in each["exceeded"])
        table.add_row(*cells, Text(f"breaks {broken}" if broken else "", "red"))
    out = console()
    out.print(table)
    for each in answer["comparisons"]:
        largest = [
            f"{name} {quantity(joules, 'J') if joules < 0 else '+' + quantity(joules, 'J')}"
            for name, joules in list((each["components"] or {}).items())[:4]
            if abs(joules) > NOTHING * each["old"]["energy"]["joules"]
        ]
        if largest:
            told = f"{each['gpu']}, {each['new']['kernel']['demangled']}: {', '.join(largest)}"
            line(out, told)
    for what in ("added", "removed"):
        for kernel in answer[what]:
            line(out, f"{what}: {kernel['demangled']}")
    warnings(out, answer["warnings"])
