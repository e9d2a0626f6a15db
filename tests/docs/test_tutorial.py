"""docs/tutorial.md followed to the letter, from ``make run`` on, by a shell with nothing on its
PATH but the system's own tools and Python."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.examples import DOCS, ROOT, fences
from wattcast.features.cuda.isolation import find_nvrtc, find_ptxas

SYSTEM = ("/usr/bin", "/bin")
MARK = "--- end of the command, with status "

pytestmark = [
    pytest.mark.skipif(find_nvrtc() is None, reason="the extra cuda (NVRTC) is not installed"),
    pytest.mark.skipif(find_ptxas() is None, reason="the extra cuda (ptxas) is not installed"),
    pytest.mark.skipif(not Path("/usr/bin/make").exists(), reason="make is not installed"),
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of the files as they are, without what git ignores."""
    told = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    folder = tmp_path / "checkout"
    for name in filter(None, told.split("\0")):
        source, target = ROOT / name, folder / name
        if not source.is_symlink() and not source.is_file():
            continue  # deleted, and not yet said so to git
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of this one but what pip needs to reach its index: no PATH beyond the system's and
    ``python3.11``, no settings, an empty home, and a free port."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3.11").symlink_to(Path(sys.base_prefix) / "bin" / "python3.11")
    home = tmp_path / "home"
    home.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    index = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w*_proxy", re.IGNORECASE)
    return {
        **{name: value for name, value in os.environ.items() if index.fullmatch(name)},
        "PATH": ":".join([str(tools), *SYSTEM]),
        "HOME": str(home),
        "WATTCAST_PORT": str(port),
    }


def prepared(checkout: Path) -> None:
    """What ``make run`` would build: an environment of its own with the packages of this one, in
    which ``wattcast`` is the checkout."""
    venv = checkout / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    here = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (packages / "tutorial.pth").write_text("\n".join([str(checkout), *here]) + "\n")
    script = venv / "bin" / "wattcast"
    script.write_text(f"#!{venv}/bin/python\nfrom wattcast.app.cli import main\nmain()\n")
    script.chmod(0o755)
    for stamp in (".installed", ".installed-cuda"):
        (venv / stamp).touch()


def steps() -> Iterator[tuple[str, str, str]]:
    """``file``, ``serve``, ``sh`` or ``console``, a file's name, and the text, in order."""
    for language, title, text in fences(DOCS / "tutorial.md"):
        if title is not None:
            yield "file", title, text
        elif language == "sh":
            yield ("serve" if text == "make run\n" else "sh"), "", text
        elif language == "console":
            yield "console", "", text


def commands(text: str) -> list[tuple[str, list[str]]]:
    """What a ``console`` fence has typed after each ``$ ``, and the lines printed."""
    found: list[tuple[str, list[str]]] = []
    going_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif going_on:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found[-1][1].append(line)
            continue
        going_on = line.endswith("\\")
    return found


class Terminal:
    """A shell that commands are typed into, one after another."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh"], cwd=folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def type(self, command: str) -> tuple[int, list[str]]:
        """Status of a command and the lines it printed; ``$?`` is kept for the next one."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        asked = f'{command}\nstatus=$?\nprintf "%s%s\\n" "{MARK}" "$status"\n(exit "$status")\n'
        self._shell.stdin.write(asked)
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            before, mark, status = line.partition(MARK)
            if mark:
                return int(status), [*lines, before.rstrip()] if before else lines
            lines.append(line.rstrip())
        raise AssertionError(f"the shell ended at {command!r}: {lines}")

    def wait_for(self, text: str, command: str, seconds: float) -> str:
        """What a command that keeps running printed until a line holds ``text``."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(command)
        self._shell.stdin.flush()
        printed, until = "", time.monotonic() + seconds
        for line in self._shell.stdout:
            printed += line
            if text in line:
                return printed
            assert time.monotonic() < until, printed
            assert "Error" not in line, printed
        raise AssertionError(printed)

    def close(self) -> None:
        """Ends the shell and all that it started, as closing its window does."""
        os.killpg(self._shell.pid, signal.SIGHUP)
        os.killpg(self._shell.pid, signal.SIGTERM)
        try:
            self._shell.wait(20)
        finally:
            for pipe in (self._shell.stdin, self._shell.stdout):
                if pipe is not None:
                    pipe.close()


def served(shell: Terminal, environment: dict[str, str], command: str, seconds: float) -> None:
    """``make run`` prints one prediction and serves."""
    printed = shell.wait_for("wattcast serves on http://", command, seconds)
    assert "vector_add on tesla-v100" in printed
    assert environment["WATTCAST_PORT"] in printed


def follow(checkout: Path, environment: dict[str, str]) -> None:
    """The page, step by step; what is typed prints what the page shows."""
    first, second = Terminal(checkout, environment), Terminal(checkout, environment)
    try:
        assert second.type("wattcast --version")[0] == 127  # not found: nothing is on the PATH
        for kind, name, text in steps():
            if kind == "file":
                (checkout / name).write_text(text, encoding="utf-8")
            elif kind == "serve":
                served(first, environment, text, 120)
            elif kind == "sh":
                for command in text.splitlines():
                    status, lines = second.type(command)
                    assert status == 0, (command, lines)
            else:
                for command, expected in commands(text):
                    _, lines = second.type(command)
                    assert lines == expected, command
    finally:
        first.close()
        second.close()


def test_the_tutorial_begins_with_make_run_and_ends_with_a_decision() -> None:
    kinds = [kind for kind, _, _ in steps()]
    assert kinds[:2] == ["serve", "sh"]
    typed = [c for kind, _, text in steps() if kind == "console" for c, _ in commands(text)]
    assert len(typed) >= 9
    assert typed[-1] == "echo $?"


@pytest.mark.slow
def test_the_tutorial_is_followed_to_the_letter(
    checkout: Path, environment: dict[str, str]
) -> None:
    prepared(checkout)
    follow(checkout, environment)


@pytest.mark.slow
def test_make_run_installs_an_environment_and_serves(
    checkout: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Installs all that is locked (some minutes); what is typed then, the test above follows."""
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "itanium-demangler"]
    reached = subprocess.run([*asked, "-d", str(tmp_path)], capture_output=True, env=environment)
    if reached.returncode:
        pytest.skip("the package index cannot be reached")
    shell = Terminal(checkout, environment)
    try:
        served(shell, environment, "make run\n", 1800)
    finally:
        shell.close()
