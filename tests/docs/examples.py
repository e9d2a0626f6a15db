"""The examples of the documentation: run for the tests, and written anew.

    python -m tests.docs.examples            runs every example and writes its output into the page

A fence ```` ```console ```` holds commands after ``$ `` and what they print. A fence with
``title="NAME"`` is a file that later commands of the same page find under that name. Commands are
run in this process by the program's own entry point, so that a page takes seconds. Known are
``wattcast``, ``python FILE`` and ``echo $?`` (the status of the command before); ``| head -N``
shortens an output. The cells of a notebook (``.ipynb``) run one after another, and show what they
print and what their last line is worth, as Jupyter does.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

DOCS = Path(__file__).parents[2] / "docs"
ROOT = DOCS.parent
README = ROOT / "README.md"
PAGES = (README, DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md")),
         *sorted((DOCS / "howto").glob("*.ipynb")))  # fmt: skip

_FENCE = re.compile(r'^```(\w+)(?: title="([\w.-]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"(.*) \| head -(\d+)")
_SECONDS = "60"
"""Cap of executed analyses: an example ends long before, on a busy machine too."""


def rendered(page: Path) -> str:
    """The page with the output that its commands have now."""
    with _workplace():
        if page.suffix == ".ipynb":
            with _own_predictor():
                return _notebook(page)
        return _FENCE.sub(_fence, page.read_text(encoding="utf-8"))


def fences(page: Path) -> Iterator[tuple[str, str | None, str]]:
    """Language, title and text of every fence of a page, in their order."""
    for found in _FENCE.finditer(page.read_text(encoding="utf-8")):
        yield found[1], found[2], found[3]


def has_examples(page: Path) -> bool:
    """Whether there is anything to run."""
    return page.suffix == ".ipynb" or any(told == "console" for told, _, _ in fences(page))


def _notebook(page: Path) -> str:
    """The notebook with what its cells print now (nbformat 4)."""
    notebook = json.loads(page.read_text(encoding="utf-8"))
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            last = _cell("".join(cell["source"]), f"{page.name}[{number}]", names)
        lines = shown.getvalue().splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [stream] if lines else []
        if last is not None:
            display = {"data": _display(last), "metadata": {}, "output_type": "display_data"}
            cell["outputs"].append(display)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(source: str, name: str, names: dict[str, object]) -> object:
    """Runs a cell; what its last line is worth, if that is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


_RICH = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}


def _display(value: object) -> dict[str, list[str]]:
    """How Jupyter shows a value: by the methods that it has, else as text."""
    told = {kind: getattr(value, method, lambda: None)() for kind, method in _RICH.items()}
    texts = {kind: text for kind, text in told.items() if text is not None}
    texts = texts or {"text/plain": repr(value)}
    return {kind: text.splitlines(keepends=True) for kind, text in texts.items()}


def _fence(found: re.Match[str]) -> str:
    language, title, text = found.groups()
    if title is not None:
        Path(title).write_text(text, encoding="utf-8")
    if language != "console":
        return found[0]
    lines: list[str] = []
    status = 0
    for command in _commands(text):
        lines.append("$ " + command)
        words = command.replace("\\\n", " ")
        if words == "echo $?":
            lines.append(str(status))
            continue
        status, output = _run(words)
        lines += output
    return "```console\n" + "".join(line.rstrip() + "\n" for line in lines) + "```"


def _commands(text: str) -> Iterator[str]:
    """Each command, with the lines that a backslash continues it on."""
    open_: list[str] = []
    for line in text.splitlines():
        if open_ or line.startswith("$ "):
            open_.append(line if open_ else line[2:])
            if not line.endswith("\\"):
                yield "\n".join(open_)
                open_ = []


def _run(command: str) -> tuple[int, list[str]]:
    """Exit status, and what stdout and stderr showed."""
    cut = _HEAD.fullmatch(command)
    program, *words = shlex.split(cut[1] if cut else command)
    shown = io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            if program == "wattcast":
                from wattcast.app.cli import main

                with patch.object(sys, "argv", [program, *words]):
                    main()
            elif program == "python":
                with _own_predictor():
                    runpy.run_path(words[0], run_name="__main__")
            else:
                raise ValueError(f"{program}: examples know wattcast, python and echo $?")
        except SystemExit as ended:
            status = ended.code or 0
    lines = shown.getvalue().splitlines()
    return int(str(status)), lines[: int(cut[2])] if cut else lines


@contextlib.contextmanager
def _own_predictor() -> Iterator[None]:
    """Finds no other one's services, and leaves none behind."""
    from wattcast.app.python.predictors import predictor

    predictor.cache_clear()
    try:
        yield
    finally:
        predictor.cache_clear()


@contextlib.contextmanager
def _workplace() -> Iterator[None]:
    """A folder with nothing but the links ``app`` and ``tests``, a ``WATTCAST_HOME`` of its own,
    and no setting from outside."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WATTCAST_") and name not in ("COLUMNS", "FORCE_COLOR")
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        patch.dict(
            os.environ,
            {**kept, "WATTCAST_HOME": f"{folder}/.home", "WATTCAST_EXECUTION_SECONDS": _SECONDS},
            clear=True,
        ),
    ):
        for name in ("app", "tests"):  # pages read files of the demo and of the fixtures
            Path(name).symlink_to(ROOT / name)
        yield


def main() -> None:
    """Write every page anew."""
    for page in PAGES:
        page.write_text(rendered(page), encoding="utf-8")


if __name__ == "__main__":
    main()
