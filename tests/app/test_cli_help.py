"""Help that can be followed: every command shows examples, and each of them runs."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from tests.app.conftest import Run
from tests.needs import needs_nvrtc
from wattcast.app.cli import app, inputs
from wattcast.app.cli.exits import MEANINGS, Exit, status_of
from wattcast.app.cli.group import PANELS, examples
from wattcast.app.cli.output import render
from wattcast.features.errors import WattcastError
from wattcast.predictor import reports
from wattcast.predictor.messages import Clocks, Message

FIXTURES = Path(__file__).parents[1] / "fixtures"

SCALE = """__global__ void scale(float *data, float factor, int n)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) data[at] = data[at] * factor;
}
"""


def paths() -> Iterator[str]:
    """Every command and group below ``wattcast``, and itself."""
    yield ""
    root = get_command(app)
    for name in [name for panel in PANELS.values() for name in panel]:
        yield name
        below = root.commands[name]  # type: ignore[attr-defined]
        yield from (f"{name} {inner}" for inner in getattr(below, "commands", {}))


PATHS = tuple(paths())


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(examples()) == set(PATHS)
    for path, lines in examples().items():
        assert lines
        for line in lines:
            assert line.startswith("wattcast")
            assert not path or path.split()[0] == shlex.split(line)[1], line


class Inner(Message):
    at: Clocks | None = None
    """Where it runs."""


class Wanted(Message):
    trips: list[int] | None = None
    """Trips to try."""
    quick: bool = False
    """Do it quickly."""
    inner: Inner = Inner()


class WantedOptions(inputs.Options):
    members = inputs.fields(Wanted, "trips", "quick") | inputs.fields(Inner, "at", under="inner")


def test_a_field_of_a_request_is_an_option_by_its_name_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Name, default, help and reading follow from the field; what is not given is the request's."""
    made: list[Wanted] = []

    def command(asked: WantedOptions) -> None:
        made.append(inputs.request(Wanted, asked))

    holder = typer.Typer(rich_markup_mode=None)
    holder.command()(inputs.with_options(command))
    wanted = get_command(holder)
    for words in ([], ["--trips", "8,16", "--quick", "--at", "900/877"], ["--trips", "a"]):
        with pytest.raises(SystemExit) as ended:
            wanted.main(words)
        assert ended.value.code == (Exit.BAD_INPUT if "a" in words else Exit.DONE)
    assert made[0] == Wanted()
    pair = Clocks(core_mhz=900, memory_mhz=877)
    assert made[1:] == [Wanted(trips=[8, 16], quick=True, inner=Inner(at=pair))]
    assert "--trips 'a': expected whole numbers" in capsys.readouterr().err
    helps = {each.name: each.help for each in wanted.params if each.name != "help"}
    assert helps["quick"] == "Do it quickly."
    assert helps["trips"].startswith("Trips to try. Whole numbers, as in ")
    assert helps["at"].startswith("Where it runs. CORE/MEMORY in MHz, as in ")


def shown(run: Run, path: str) -> list[str]:
    """The examples in a command's help, each as one line of a shell."""
    out, _ = run(*path.split(), "--help")
    section = re.search(r"^Examples:\n((?:  .*\n?)+)", out, re.M)
    assert section is not None, out
    return [line.strip() for line in section[1].replace("\\\n", "").splitlines() if line.strip()]


@pytest.mark.parametrize("path", PATHS)
def test_help_shows_examples_and_cuts_nothing(run: Run, path: str) -> None:
    told = shown(run, path)
    assert [shlex.split(line) for line in told] == [shlex.split(one) for one in examples()[path]]
    out, _ = run(*path.split(), "--help")
    assert max(map(len, out.splitlines())) <= 80
    command = get_command(app)
    for name in path.split():
        command = command.commands[name]  # type: ignore[attr-defined]
    for below in getattr(command, "commands", {}).values():
        sentence = below.help.split("\n\n")[0].split(". ")[0]
        assert " ".join(sentence.split()) in " ".join(out.split())


ELSEWHERE = {
    "measure": "a GPU to measure",
    "onboard": "a GPU to measure",
    "gpus add": "a GPU, or a dump",
    "data fetch": "the network",
    "serve": "runs until it is interrupted (tests/e2e/test_serve.py)",
    "mcp": "runs until it is interrupted (tests/app/test_agents.py)",
    "worker": "runs until it is interrupted (tests/e2e)",
    "calibrate": "training data (tests/app/test_cli_models.py)",
    "data check": "training data (tests/app/test_cli_data.py)",
    "data": "the network, or training data",
    "data pack": "a recording (tests/app/test_cli_measure.py)",
}
"""Commands whose examples are only parsed here, and what running them takes."""

REFUSED = {
    "models promote": (Exit.NO_ANSWER, "1001"),
    "models rollback": (Exit.NO_ANSWER, "tesla-k20"),
    "keys revoke": (Exit.BAD_INPUT, "3f2a9c"),
    "gpus check": (Exit.NO_ANSWER, "my-gpu.toml"),
}
"""What the examples say that name something an empty home does not have."""

LINES = [(path, at) for path in PATHS for at in range(len(examples()[path]))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vector_add: str) -> Path:
    """A folder with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    for name in ("kernel.ptx", "kernels/one.ptx"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(vector_add, "utf-8")
    for name in ("kernel.cu", "old.cu"):
        Path(name).write_text(SCALE, "utf-8")
    Path("new.cu").write_text(SCALE.replace("* factor", "* factor + 1.0f"), "utf-8")
    Path("launches.csv").write_text("file,grid,block\none.ptx,4096,256\n", "utf-8")
    Path("dmon.txt").write_text(
        "#Entity   SMACT        FP64A        FP32A        DRAMA\nID\n"
        "GPU 0     0.950        0.000        0.310        0.620\n", "utf-8"
    )  # fmt: skip
    kernel = {"launch": {"grid": [4096], "block": [256]}, "launches": 1000}
    application = {"ptx": vector_add, "gpu": "v100", "kernels": [kernel]}
    llama = tomllib.loads((FIXTURES / "language_models.toml").read_text())["llama-3-8b"]
    Path("llama-3-8b.json").write_text(json.dumps(llama["config"]), "utf-8")
    Path("application.json").write_text(json.dumps(application), "utf-8")
    Path("jobs.toml").write_text(
        '[[jobs]]\nname = "products"\noperator = {name = "gemm", m = 64, n = 64, k = 64}\n', "utf-8"
    )
    measured = {
        str(size): {"block_size_x": size, "time": 2.0 + size / 1e4, "nvml_energy": 0.3}
        for size in (64, 128, 256)
    }
    tuning = {
        "device_name": "V100",
        "kernel_name": "vector_add",
        "problem_size": 1048576,
        "tune_params_keys": ["block_size_x"],
        "cache": measured,
    }
    Path("tuning.json").write_text(json.dumps(tuning), "utf-8")
    Path("nvidia-smi.txt").write_bytes((FIXTURES / "dumps" / "nvidia_smi.txt").read_bytes())
    trace = FIXTURES / "traces" / "training_step.pt.trace.json.gz"
    Path("trace.json.gz").write_bytes(trace.read_bytes())
    Path("my-gpu.toml").write_text('id = "my-gpu"\n', "utf-8")
    table = "ptx,gpu,board,grid,block,core_mhz,power_watts,time_seconds\n"
    table += "kernel.ptx,v100,lab-7,4096,256,1380,71.3,1.9e-5\n"
    with zipfile.ZipFile("measured.zip", "w") as packed:
        packed.writestr("measured.csv", table)
        packed.writestr("kernel.ptx", vector_add)
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -q -m kernels"):
        subprocess.run(["git", *words.split()], check=True)
    return tmp_path


@needs_nvrtc
@pytest.mark.parametrize(("path", "at"), LINES)
def test_every_example_runs(run: Run, folder: Path, path: str, at: int) -> None:
    line = shown(run, path)[at]
    words = shlex.split(line)[1:]
    parsed(words)
    if path in ELSEWHERE:
        return
    status, said = REFUSED.get(path, (Exit.DONE, ""))
    if line == "wattcast gpus check":
        status, said = Exit.DONE, ""
    out, err = run(*words, status=status)
    assert said in err
    assert out or status or path == "audit" or {"--out", "--output"} & set(words)
    for written in ("why.svg", "table.csv", "imported.jsonl"):
        assert (folder / written).is_file() == (written in words)


def parsed(words: list[str]) -> None:
    """Whether the command takes these words. Raises typer's usage errors."""
    command = get_command(app)
    context = typer.Context(command, info_name="wattcast")
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
        context = typer.Context(command, info_name=name, parent=context)
    command.make_context(command.name, words, parent=context)


def test_completion_knows_commands_options_and_gpus(tmp_path: Path) -> None:
    def completed(words: str) -> str:
        given = {
            **os.environ,
            "_WATTCAST_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
            "WATTCAST_HOME": str(tmp_path),
        }
        code = "from wattcast.app.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False
        )
        return done.stdout

    assert {"predict"} == set(completed("wattcast pred").split())
    assert "--power-limit" in completed("wattcast predict --pow")
    assert {"rtx-3090", "rtx-3090-ti"} == set(completed("wattcast predict --gpu rtx-3090").split())


# --- One table of exit statuses, kept by all commands: what each says to the same mistake

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
    run(name, status=Exit.BAD_INPUT)


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
