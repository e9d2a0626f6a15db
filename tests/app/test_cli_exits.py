"""One table of exit statuses, kept by all commands: what each says to the same mistake."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from tests.app.conftest import Run
from wattcast.app.cli import app
from wattcast.app.cli.exits import MEANINGS, Exit, status_of
from wattcast.app.cli.group import PANELS
from wattcast.app.cli.output import render
from wattcast.features.errors import WattcastError
from wattcast.predictor import reports

FILE, NONE = "FILE", "NONE"
SHAPE = ("--grid", "4096", "--block", "256")
ON = ("--gpu", "v100")
KERNEL = {
    name: (name, FILE, *ON, *SHAPE)
    for name in (
        *("predict", "explain", "hotspots", "analyze", "features"),
        *("advise", "sweep", "dvfs"),
    )
}
"""Commands that take a kernel and a launch, as they are used rightly."""

COMMANDS = {
    **KERNEL,
    "diff": ("diff", FILE, FILE, *ON, *SHAPE),
    "judge": ("judge", FILE, FILE, *ON, *SHAPE),
    "bulk": ("bulk", "FOLDER", *ON, *SHAPE),
}


def words_of(words: tuple[str, ...], tmp_path: Path, vector_add: str) -> list[str]:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "k.ptx").write_text(vector_add, "utf-8")
    stand = {FILE: folder / "k.ptx", NONE: tmp_path / "none.ptx", "FOLDER": folder}
    return [str(stand.get(word, word)) for word in words]


def changed(words: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    at = words.index(option) + 1
    return (*words[:at], value, *words[at + 1 :])


MISSING_FILE = {
    **{name: tuple(NONE if word == FILE else word for word in KERNEL[name]) for name in KERNEL},
    "diff": ("diff", FILE, NONE, *ON, *SHAPE),
    "judge": ("judge", FILE, NONE, *ON, *SHAPE),
    "bulk": ("bulk", NONE, *ON, *SHAPE),
    "counters": ("counters", NONE, *ON),
    "model": ("model", NONE, *ON),
    "rank": ("rank", NONE, FILE, *ON, "--problem-size", "64"),
    "tune": ("tune", NONE, FILE, *ON, "--problem-size", "64"),
    "app": ("app", NONE, *ON),
    "cost": ("cost", NONE),
    "fleet": ("fleet", NONE, "--boards", "v100:1"),
    "gpus add": ("gpus", "add", NONE),
    "onboard": ("onboard", "--replay", NONE),
    "retrain": ("retrain", NONE, *ON),
    "calibrate": ("calibrate", NONE),
    "data check": ("data", "check", NONE),
    "data import": ("data", "import", NONE, "--to", "x.jsonl", "--gpu", "v100"),
    "data pack": ("data", "pack", NONE, "--to", "x.zip", "--attribution", "us"),
}

OTHER_ARGUMENTS = {
    *("schemas", "gpus", "gpus list", "models", "models list", "data", "data fetch", "doctor"),
    *("serve", "worker", "settings", "keys", "keys create", "keys list", "keys revoke", "audit"),
    *("measure", "gpus show", "models registry", "models promote", "models rollback"),
    *("operator", "mcp"),
    "gpus check",  # a check that fails is status 1
}
"""Commands that read no file of the user's."""


@pytest.mark.parametrize("name", MISSING_FILE)
def test_a_missing_file_is_bad_input(run: Run, tmp_path: Path, vector_add: str, name: str) -> None:
    _, err = run(*words_of(MISSING_FILE[name], tmp_path, vector_add), status=Exit.BAD_INPUT)
    assert err.startswith("wattcast: ")
    assert err.count("\n") == 1
    assert "none" in err


def test_every_command_is_held_to_the_table() -> None:
    root = get_command(app)
    known = set()
    for name in [name for panel in PANELS.values() for name in panel]:
        below = getattr(root.commands[name], "commands", {})  # type: ignore[attr-defined]
        known |= {f"{name} {inner}" for inner in below} | ({name} if not below else set())
    groups = {"gpus", "models", "data", "keys"}
    assert known == (set(MISSING_FILE) | OTHER_ARGUMENTS) - groups


UNKNOWN_GPU = {
    **{name: changed(words, "--gpu", "nope") for name, words in COMMANDS.items() if name != "bulk"},
    "counters": ("counters", FILE, "--gpu", "nope"),
    "gpus show": ("gpus", "show", "nope"),
    "gpus list": ("gpus", "list", "nope"),
    "models registry": ("models", "registry", "nope"),
    "models rollback": ("models", "rollback", "nope"),
    "retrain": ("retrain", "--gpu", "nope", "--batch", "00000000-0000-0000-0000-000000000000"),
}


@pytest.mark.parametrize("name", UNKNOWN_GPU)
def test_an_unknown_gpu_is_bad_input(run: Run, tmp_path: Path, vector_add: str, name: str) -> None:
    _, err = run(*words_of(UNKNOWN_GPU[name], tmp_path, vector_add), status=Exit.BAD_INPUT)
    assert err.count("\n") == 1
    assert "nope" in err


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *((name, "--grid", "64x") for name in COMMANDS if name != "bulk"),
        *((name, "--block", "2048") for name in COMMANDS if name != "bulk"),
        *(("predict", *pair) for pair in (("--grid", "0"), ("--block", "-1"), ("--grid", "1e9"))),
    ],
)
def test_a_bad_number_is_bad_input(
    run: Run, tmp_path: Path, vector_add: str, name: str, option: str, value: str
) -> None:
    words = words_of(changed(COMMANDS[name], option, value), tmp_path, vector_add)
    out, err = run(*words, status=Exit.BAD_INPUT)
    assert out == ""
    assert err.count("\n") == 1
    assert option[2:] in err


@pytest.mark.parametrize("name", KERNEL)
def test_no_ptx_and_unknown_options_are_bad_input(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "no.ptx"
    path.write_text("\n\nhello", "utf-8")
    words = [str(path) if word == FILE else word for word in KERNEL[name]]
    out, err = run(*words, status=Exit.BAD_INPUT)
    assert out == ""
    assert err.startswith("wattcast: ")
    assert "line 3, column 1" in err
    run(*words, "--no-such-option", status=Exit.BAD_INPUT)


def test_what_cannot_be_answered_is_another_status(
    run: Run, tmp_path: Path, vector_add: str
) -> None:
    words = words_of((*KERNEL["dvfs"], "--max-power-watts", "1"), tmp_path, vector_add)
    _, err = run(*words, status=Exit.NO_ANSWER)
    assert "constraints" in err or "power" in err


def test_a_run_that_works_is_status_zero(run: Run, tmp_path: Path, vector_add: str) -> None:
    run(*words_of(COMMANDS["bulk"], tmp_path, vector_add), status=Exit.DONE)


def slugs(base: type[WattcastError]) -> set[str]:
    return {base.slug} | {slug for each in base.__subclasses__() for slug in slugs(each)}


def test_every_kind_of_error_has_a_status_and_every_status_a_meaning() -> None:
    from wattcast.app import problems, server  # noqa: F401 - brings errors of its own

    found = {status_of(slug) for slug in slugs(WattcastError)}
    assert found == {Exit.NO_ANSWER, Exit.BAD_INPUT, Exit.GIVEN_UP}
    assert set(MEANINGS) == set(Exit)
    told = get_command(app).get_help(typer.Context(get_command(app), info_name="wattcast"))
    for status, meaning in MEANINGS.items():
        assert re.search(rf"^ +{int(status)} +{re.escape(meaning[:40])}", told, re.M)


def test_a_report_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ``| head`` would break the pipe between two lines, and with it the status."""
    written: list[str] = []

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Pipe())
    render([reports.Line(str(number)) for number in range(50)])
    assert [len(text.splitlines()) for text in written] == [50]


UNREADABLE = {
    ("--gird", "4"): "No such option: --gird (Possible options:",
    ("--arg", "n"): "--arg 'n': expected NAME=number, or for a pointer NAME:elements=N",
    ("--arg", "3=inf"): "launch.arguments.3: Input should be a finite number",
    ("--arg", "0:elements=-5"): "launch.arguments.0.elements: Input should be greater than or",
    ("--arg", "0:values=odd"): "launch.arguments.0.values: Input should be 'uniform', 'zeros'",
    ("--arg", "0:elements=5,foo=1"): "launch.arguments.0.foo: Extra inputs are not permitted",
    ("--grid", "1,2,3,4"): "launch.grid: List should have at most 3 items after validation",
    ("--grid", "4.5"): "--grid '4.5': expected 1 to 3 whole numbers, as in 64,64",
    ("--project", "none"): "none: No such file or directory",
    ("--project", "{"): "compile_commands.json: not JSON: ",
    ("--project", "[" * 10_000): "compile_commands.json: not JSON: ",
    ("--project", "[\xff"): "compile_commands.json: not JSON: ",
    ("--project", "[null, {}, 7]"): "k.cu is none of the files that it compiles",
    ("--project", '[{"directory": "", "file": "k.cu", "command": "a \'"}]'): "No closing quotation",
    ("-I", "\0"): "embedded null byte",
    ("-X", "-O3"): "the compiler option '-O3' is not taken; -D NAME=VALUE",
}
"""What is given beside a right launch, and the line that says what is wrong with it."""


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("words", UNREADABLE, ids=lambda words: "".join(words)[:30])
def test_a_word_that_cannot_be_read_is_told_in_a_line(
    run: Run, tmp_path: Path, words: tuple[str, str], as_json: tuple[str, ...]
) -> None:
    file = tmp_path / "k.cu"
    file.write_text("__global__ void k(float *p, int n) { p[n] = n; }")
    option, value = words
    if option == "--project" and value != "none":
        (tmp_path / "compile_commands.json").write_bytes(value.encode("latin-1"))
        value = str(tmp_path)
    given = ("predict", str(file), *ON, *SHAPE, option, value, *as_json)
    (line,) = run(*given, status=Exit.BAD_INPUT)[1].splitlines()
    told = json.loads(line)["detail"] if as_json else line.removeprefix("wattcast: ")
    assert UNREADABLE[words] in told
