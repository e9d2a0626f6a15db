"""Processes with limits, and compilers that read their toolkit and nothing else.

    in_force()     whether this kernel isolates compilers, tried once
    run_limited()  one run, isolated; where that is not in force, with limits alone
    Limited        any program with limits

Whoever runs sources of others asks ``in_force`` first (``predictor.parts.sources``). The doors are
closed by ``jail.py``, in a process between us and the compiler: nothing is set between fork and
exec of a threaded service. Namespaces need Linux 5.12 (docs/operations.md). Landlock and seccomp
are as quick with NVRTC and ptxas, but nvcc took 1.1 to 1.9 s for a file instead of 0.7, as a second
process must answer every path it names, and whether a file exists could leak.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.cuda.jail import FAILED
from wattcast.features.effort import checkpoint
from wattcast.features.errors import GivenUpError, WattcastError

_JAIL = Path(__file__).with_name("jail.py").resolve()
_PROBE = Path(__file__).with_name("probe.py").resolve()

PROBE_SECONDS = 10.0
"""Far beyond the 0.1 s that a probe takes on two busy cores."""

CLOCK_FACTOR = 6.0
"""How much longer than its CPU time a run may take: what four busy processes beside it on one core
make of it, and some."""

LOG_BYTES = 1 << 20
"""How much is read of what a compiler prints: 100 errors, NVRTC's most, with long lines."""

LOOK_SECONDS = 0.05
"""How often a run looks whether its request was given up."""


SYSCALLS = Path(__file__).with_name("syscalls.toml")


class NotIsolatedError(WattcastError):
    """Nothing was compiled, since the compiler could not be kept from the machine's files."""

    slug = "compiler-not-isolated"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one compiler run may use: seconds of CPU time, so that a busy machine changes no answer,
    bytes of memory and bytes written. By the clock it is given up after CLOCK_FACTOR times as long.
    """

    seconds: float = 20.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """A compiler run that ended: exit code (128 + signal, or the signal negative), its output."""

    code: int
    stdout: str
    stderr: str

    @property
    def timed_out(self) -> bool:
        """Whether it used up its CPU time."""
        return self.code in (-signal.SIGXCPU, 128 + signal.SIGXCPU)

    @property
    def not_isolated(self) -> bool:
        """Whether the program was not started, since its isolation could not be set up."""
        return self.code == FAILED


class Calls(Strict):
    """Numbers of system calls of one architecture, which seccomp calls ``architecture``."""

    architecture: int
    clone: int
    prlimit: int
    pivot_root: int
    seccomp: int
    denied: Mapping[str, int]
    unknown: Mapping[str, int]


class SystemCalls(Strict):
    """``syscalls.toml``, by architecture."""

    x86_64: Calls
    aarch64: Calls


@lru_cache(maxsize=1)
def system_calls() -> SystemCalls:
    """The table of system calls. Raises DataError for one that does not hold what it must."""
    return checked(SystemCalls, read_toml(SYSCALLS), SYSCALLS.name)


def filter_tables() -> dict[str, object] | None:
    """What ``jail.py`` needs of the table here; ``None`` on another architecture."""
    table = system_calls()
    calls = {"x86_64": table.x86_64, "aarch64": table.aarch64}.get(platform.machine())
    if calls is None:
        return None
    return {
        **calls.model_dump(),
        "denied": list(calls.denied.values()),
        "unknown": list(calls.unknown.values()),
    }


@lru_cache(maxsize=1)
def in_force() -> bool:
    """Whether compilers run isolated here, tried out once."""
    if sys.platform != "linux" or filter_tables() is None:
        return False
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        command = [str(_PROBE), sys.executable, str(os.getpid())]
        limits = Limits(seconds=PROBE_SECONDS)
        return _run(command, Path(name), limits, (), isolated=True).code == 0


class Limited(subprocess.Popen[bytes]):
    """A program with limits, in a session of its own; to kill it ends what it started too, and so
    does to leave its block. It ends with the thread that starts it (prctl(2), PR_SET_PDEATHSIG).

    ``policy``: ``seconds`` (whole, of its CPU time), ``clock_seconds`` (by the clock; default:
    ``seconds``), ``memory_bytes``, ``output_bytes`` of one file, ``niceness``; what is not
    there is not limited.
    """

    def __init__(self, command: Sequence[str], policy: Mapping[str, Any], **popen: Any) -> None:
        said = json.dumps({**policy, "parent": os.getpid()})
        launcher = [sys.executable, "-I", "-S", str(_JAIL), said]
        super().__init__([*launcher, *command], start_new_session=True, **popen)

    def kill(self) -> None:
        """End it and all of its process group, which may outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def __exit__(self, *raised: Any) -> None:
        self.kill()
        super().__exit__(*raised)


def run_limited(
    command: Sequence[str], folder: Path, limits: Limits, readable: Sequence[Path] = ()
) -> Finished:
    """Run ``command`` in ``folder`` with nothing of our environment.

    Where an isolation is in force it sees ``readable`` (files, and folders with all below them),
    /dev/null and ``folder``, where it may write. Its process group is killed at its limits. Raises
    GivenUpError where the clock ends it, or its request's. Of what it prints, LOG_BYTES are kept.
    """
    return _run(command, folder, limits, readable, isolated=in_force())


def _run(
    command: Sequence[str],
    folder: Path,
    limits: Limits,
    readable: Sequence[Path],
    *,
    isolated: bool,
) -> Finished:
    folder = folder.resolve()
    policy = {
        "isolated": isolated,
        "folder": str(folder),
        "readable": sorted({str(path.absolute()) for path in readable if path.exists()}),
        **asdict(limits),
        "seconds": ceil(limits.seconds),
        "clock_seconds": ceil(CLOCK_FACTOR * limits.seconds) + 1,
        **(filter_tables() or {}),
    }
    environment = {
        # Where a compiler looks for others: beside itself, and where it may read.
        "PATH": os.pathsep.join([str(Path(command[0]).parent), "/usr/bin", "/bin"]),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    with (
        tempfile.TemporaryFile(dir=folder) as out,
        tempfile.TemporaryFile(dir=folder) as err,
        Limited(
            command,
            policy,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        ) as process,
    ):
        _wait(process, CLOCK_FACTOR * limits.seconds)
        process.kill()  # compilers start children of their own
        process.wait()
        text = []
        for stream in (out, err):
            stream.seek(0)
            text.append(stream.read(LOG_BYTES).decode("utf-8", "replace"))
    return Finished(process.returncode, text[0], text[1])


def _until_ended(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Sleep until a process ends, at most so long. What Popen.wait sleeps between its looks is as
    much as ptxas takes for a small kernel."""
    try:
        watched = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # ended and collected, or no Linux that can
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll(1000 * seconds)
    finally:
        os.close(watched)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for its end. Raises GivenUpError."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        checkpoint()
        _until_ended(process, min(left, LOOK_SECONDS))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0)
            return
    raise GivenUpError(f"a compiler did not end within {seconds:g} s and was given up; try again")
