"""``wattcast diff``: what a change of code changes; fails where it costs more than allowed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from wattcast.app.cli import exits, inputs, output
from wattcast.app.progress import advance
from wattcast.predictor import answering, reports
from wattcast.predictor.messages.compare import CompareAnswer, CompareRequest, JudgeRequest, Limits


def _percent(text: str) -> float:
    found = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*", text)
    if found is None:
        raise ValueError
    return float(found[1])


class LimitOptions(inputs.Options):
    """What new code may cost."""

    panel = inputs.OWN
    reader = inputs.Reader(_percent, "a percentage", "+5% or -2%")
    members = inputs.scalars(Limits, under="limits")


def diff(
    files: Annotated[list[Path], typer.Argument(metavar="FILE")],
    on: inputs.OnGpus,
    launch: inputs.LaunchOptions,
    new: inputs.NewOptions,
    models: inputs.PhysicalOptions,
    like: inputs.LikeOptions,
    limits: LimitOptions,
    against: Annotated[str | None, typer.Option(metavar="REVISION")] = None,
    markdown: bool = False,
    brief: inputs.Brief = False,
) -> output.Shown[CompareAnswer]:
    """Compare old and new code; exit with 3 if a limit is exceeded.

    Args:
        files: OLD and NEW, PTX or CUDA source before the change and after it; - reads PTX from
            standard input. With --against: the files to compare with their older versions.
        against: Compare each file with itself in a Git revision, e.g. HEAD.
        markdown: Print Markdown for a pull request.
    """
    opened = output.predictor()

    def compared(old: Path, changed: Path) -> CompareAnswer:
        sides = new.sides(launch, old, changed)
        return answering.answer(
            opened, inputs.request(CompareRequest, sides, models, like, limits, gpus=on.gpu)
        )

    if against is not None:
        if brief:
            inputs.fail("--brief is of two files; with --against use --json")
        return _against(against, files, compared, markdown=markdown)
    if len(files) != 2:
        inputs.fail("expected OLD and NEW, or files and --against REVISION")
    found = compared(*files)
    status = exits.Exit.DONE if found.passed else exits.Exit.EXCEEDED
    if markdown:
        return output.told(found, found.markdown.removesuffix("\n"), status=status)
    return output.Shown(found, status=status)


def _against(
    revision: str,
    files: list[Path],
    compared: Callable[[Path, Path], CompareAnswer],
    *,
    markdown: bool,
) -> output.Shown[Any]:
    """Each file beside its version in a Git revision. What cannot be compared is told and
    exceeds no limit: a new file, or one without a kernel that both versions have."""
    from wattcast.features.errors import KernelError
    from wattcast.predictor.reports import markdown_name

    answers: dict[str, CompareAnswer] = {}
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
    blocks: list[reports.Block] = []
    for name, each in answers.items():
        if markdown:
            heading = "### Predicted energy"
            named = each.markdown.replace(heading, f"{heading} of {markdown_name(name)}", 1)
            blocks.append(reports.Line(named))
        else:
            blocks += [reports.Line(name), *each.report()]
    for name, why in left_out.items():
        parts = map(markdown_name, (name, why)) if markdown else (name, why)
        blocks.append(reports.Line(": not compared: ".join(parts)))
    passed = all(each.passed for each in answers.values())
    listed = [{"file": name, **each.data()} for name, each in answers.items()]
    data = {"files": listed, "left_out": left_out, "passed": passed}
    return output.Shown(data, lambda: blocks, exits.Exit.DONE if passed else exits.Exit.EXCEEDED)


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


# ``wattcast judge``: whether a candidate is better than a reference, in one line of JSON.


class LeastOptions(inputs.Options):
    """What a candidate has to reach."""

    panel = inputs.OWN
    members = inputs.fields(JudgeRequest, "min_speedup", "min_saving")


def judge(
    reference: inputs.Ptx,
    candidate: inputs.Ptx,
    on: inputs.OnGpu,
    launch: inputs.LaunchOptions,
    new: inputs.NewOptions,
    least: LeastOptions,
    models: inputs.PhysicalOptions,
    brief: inputs.Brief = False,
) -> None:
    """Judge a candidate beside its reference; exit with 3 if it is refused."""
    sides = new.sides(launch, reference, candidate, ("reference", "candidate"))
    found = inputs.ask(JudgeRequest, sides, on, models, least)
    if brief:
        output.show(found, as_json=True, brief=True)
    else:
        print(found.json_bytes().decode())
    if not found.accepted:
        raise typer.Exit(exits.Exit.EXCEEDED)
