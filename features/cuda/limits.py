"""Run a compiler with time, memory and output limits.

This file is also the launcher: executed as a script it lowers its own limits and becomes
the compiler, so no limit is set between fork and exec of a threaded service.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """What one compiler run may use: wall seconds, bytes of memory and bytes written."""

    seconds: float = 20.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """A compiler run that ended: exit code (negative: signal), its output, or a time-out."""

    code: int
    stdout: str
    stderr: str
    timed_out: bool


def run_limited(command: list[str], folder: Path, limits: Limits) -> Finished:
    """Run ``command`` in ``folder`` with nothing of our environment but the search path.

    The whole process group is killed at the time limit. Output beyond the limit is cut.
    """
    launcher = [
        sys.executable,
        "-I",
        str(Path(__file__).resolve()),
        str(int(limits.seconds) + 1),
        str(limits.memory_bytes),
        str(limits.output_bytes),
        *command,
    ]
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    with (
        tempfile.TemporaryFile(dir=folder) as out,
        tempfile.TemporaryFile(dir=folder) as err,
        subprocess.Popen(  # noqa: S603 - a fixed compiler; user text is only ever a file
            launcher,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as process,
    ):
        timed_out = False
        try:
            process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Compilers start children of their own; none may outlive the call.
            _kill_group(process.pid)
            process.wait()
        text = []
        for stream in (out, err):
            stream.seek(0)
            text.append(stream.read(limits.output_bytes).decode("utf-8", "replace"))
    return Finished(process.returncode, text[0], text[1], timed_out)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _become(arguments: list[str]) -> None:
    seconds, memory, output = (int(text) for text in arguments[:3])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execvp(arguments[3], arguments[3:])  # noqa: S606 - this is the launcher's purpose


if __name__ == "__main__":
    _become(sys.argv[1:])
