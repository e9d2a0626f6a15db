"""Processes with limits, and compilers that read their toolkit and nothing else.

    in_force()     whether this kernel isolates compilers, tried once
    run_limited()  one run, isolated; where that is not in force, with limits alone
    running()      the same beside what else is done
    Limited        any program with limits

Whoever runs sources of others asks ``in_force`` first (``predictor.parts.sources``). The doors are
closed by ``jail.py``, in a process between us and the compiler: nothing is set between fork and
exec of a threaded service. Namespaces need Linux 5.12 (docs/operations.md). Landlock and seccomp
are as quick with NVRTC and ptxas, but nvcc took 1.1 to 1.9 s for a file instead of 0.7, as a second
process must answer every path it names, and whether a file exists could leak.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import IO, Any

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.cuda.jail import FAILED
from wattcast.features.errors import GivenUpError, WattcastError, checkpoint

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


def _run(*asked: Any, isolated: bool) -> Finished:
    with _running(*asked, isolated=isolated) as ended:
        return ended()


def running(
    command: Sequence[str], folder: Path, limits: Limits, readable: Sequence[Path] = ()
) -> AbstractContextManager[Callable[[], Finished]]:
    """``run_limited`` in two halves: what is inside goes on beside it, and gets what waits for its
    end. It is killed where nobody waited."""
    return _running(command, folder, limits, readable, isolated=in_force())


@contextlib.contextmanager
def _running(
    command: Sequence[str],
    folder: Path,
    limits: Limits,
    readable: Sequence[Path],
    *,
    isolated: bool,
) -> Iterator[Callable[[], Finished]]:
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
        _started((policy, list(command), environment), out, err) as run,
    ):

        def ended() -> Finished:
            code = run.told(CLOCK_FACTOR * limits.seconds)
            text = []
            for stream in (out, err):
                stream.seek(0)
                text.append(stream.read(LOG_BYTES).decode("utf-8", "replace"))
            return Finished(code, text[0], text[1])

        yield ended


class _Ready:
    """A process of ``jail.py`` that forks for each run, since to start Python anew takes longer
    than ptxas for a small kernel. It ends when nobody holds ``door``."""

    def __init__(self) -> None:
        self.door, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(  # noqa: S603  our own script
                [sys.executable, "-I", "-S", str(_JAIL), "--ready", str(other.fileno())],
                pass_fds=[other.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """End it."""
        self.door.close()
        self._process.wait()


_ready: list[_Ready] = []
_asking = threading.Lock()


@atexit.register
def _closed() -> None:
    while _ready:
        _ready.pop().close()


def _forked() -> None:
    """A process has one of its own: what waits for messages ends with whom it waits for."""
    global _asking
    _asking = threading.Lock()
    while _ready:
        _ready.pop().door.close()


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def _started(message: object, out: IO[bytes], err: IO[bytes]) -> Iterator[_Started]:
    """A run; it is killed where its end is not waited for."""
    ours, theirs = socket.socketpair()
    sent = [json.dumps(message).encode()], [out.fileno(), err.fileno(), theirs.fileno()]
    with ours:
        with theirs, _asking:
            if not _ready:
                _ready.append(_Ready())
            try:
                socket.send_fds(_ready[0].door, *sent)
            except ConnectionError:  # somebody ended it
                _closed()
                _ready.append(_Ready())
                socket.send_fds(_ready[0].door, *sent)
        run = _Started(ours)
        try:
            yield run
        finally:
            run.kill()


class _Started:
    """A run that was asked for: it says its process id, and at its end its exit code."""

    def __init__(self, door: socket.socket) -> None:
        self._door, self._said = door, b""

    def told(self, seconds: float) -> int:
        """The exit code, once it ends. Raises GivenUpError."""
        until = time.monotonic() + seconds
        self._door.settimeout(LOOK_SECONDS)
        while time.monotonic() < until:
            checkpoint()
            with contextlib.suppress(TimeoutError):
                more = self._door.recv(64)
                self._said += more
                if not more or self._said.count(b"\n") == 2:
                    return int(self._said.split()[1]) if more else -signal.SIGKILL
        raise GivenUpError(
            f"a compiler did not end within {seconds:g} s and was given up; try again"
        )

    def kill(self) -> None:
        """End it if it has not ended. One that has not yet said who it is cannot say so any more,
        and does not start (unix(7): a write to a socket shut down fails)."""
        if self._said.count(b"\n") < 2:
            self._door.shutdown(socket.SHUT_RD)
            self._said += self._door.recv(64)
        if self._said.count(b"\n") == 1:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(self._said), signal.SIGKILL)


# Where the compilers are (NVIDIA's wheels, then the machine's), and which files they read.

CUDA_TARGETS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
"""Compute capabilities that NVRTC 12.9 and ptxas 12.9 know (NVRTC 12.9 user guide,
--gpu-architecture; CUDA 12.9 binary utilities, ptxas --gpu-name)."""

PTXAS_READS = (8, 8)
"""Newest PTX version that ptxas 12.9 reads (PTX ISA, release notes: 8.8 came with CUDA 12.9)."""


@lru_cache(maxsize=1)
def wheel_root() -> Path | None:
    """The folder NVIDIA's wheels install into (``site-packages/nvidia``), if any is there."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or not spec.submodule_search_locations:
        return None
    roots = [Path(place) for place in spec.submodule_search_locations]
    return next((root for root in roots if any(root.glob("cuda_*"))), None)


def find_nvrtc() -> Path | None:
    """The NVRTC 12 library of the wheel ``nvidia-cuda-nvrtc-cu12``."""
    root = wheel_root()
    found = sorted((root / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*")) if root else []
    return found[0] if found else None


def include_folders() -> list[Path]:
    """The headers of the runtime and CCCL wheels, for NVRTC."""
    root = wheel_root()
    if root is None:
        return []
    candidates = [
        root / "cuda_runtime" / "include",
        root / "cuda_cccl" / "include" / "cccl",
        root / "cuda_cccl" / "include",
        root / "cuda_nvcc" / "include",
        root / "curand" / "include",
    ]
    return [folder for folder in candidates if folder.is_dir()]


def find_ptxas() -> Path | None:
    """``ptxas`` of the wheel ``nvidia-cuda-nvcc-cu12`` (extra ``cuda``), or ``None``."""
    root = wheel_root()
    path = root / "cuda_nvcc" / "bin" / "ptxas" if root else None
    return path if path and path.is_file() else None


NVCC_PLACES = ("/usr/local/cuda/bin/nvcc", "/usr/lib/nvidia-cuda-toolkit/bin/nvcc")
"""Where nvcc is if the one on the search path is a script that calls it: NVIDIA's installer
(CUDA installation guide for Linux, post-installation actions) and Debian's package."""


@lru_cache(maxsize=1)
def find_nvcc() -> Path | None:
    """An installed ``nvcc`` (the wheels hold no front end for host code) inside its toolkit."""
    found = shutil.which("nvcc")
    if found is None:
        return None
    places = [Path(place).resolve() for place in (found, *NVCC_PLACES)]
    inside = (place for place in places if (place.parents[1] / "nvvm").is_dir())
    return next((place for place in inside if place.is_file()), None)


@lru_cache(maxsize=1)
def find_host_compiler() -> Path | None:
    """The ``gcc`` that nvcc preprocesses with, or ``None``."""
    found = shutil.which("gcc", path="/usr/bin:/bin")
    return Path(found) if found else None


@lru_cache(maxsize=8)
def shared_libraries(*programs: Path) -> tuple[Path, ...]:
    """The loader and the shared libraries of programs, as ``ldd`` lists them (ldd(1))."""
    ldd = shutil.which("ldd", path="/usr/bin:/bin")
    listed = _said(ldd, *map(str, programs)) if ldd is not None else ""
    return tuple(sorted({Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}))


def nvrtc_files(library: Path) -> tuple[Path, ...]:
    """What NVRTC reads once it is loaded: its built-in functions and the headers."""
    return (library.parent, *include_folders())


def ptxas_files(ptxas: Path) -> tuple[Path, ...]:
    """What ``ptxas`` reads."""
    return (ptxas, *shared_libraries(ptxas))


@lru_cache(maxsize=1)
def nvcc_files(nvcc: Path) -> tuple[Path, ...]:
    """What ``nvcc -ptx`` reads: its toolkit, the host compiler, headers, shared libraries."""
    root = nvcc.parents[1]
    shell = Path("/bin/sh")  # nvcc starts cicc by system(3)
    programs = [shell, nvcc, root / "bin" / "cudafe++", root / "nvvm" / "bin" / "cicc"]
    found = [shell, *(root / name for name in ("bin", "nvvm", "include", "targets"))]
    if gcc := find_host_compiler():
        # gcc(1), "Developer Options": -print-prog-name; "Preprocessor Options": -v.
        front_end = Path(_said(str(gcc), "-print-prog-name=cc1plus").strip())
        programs += [gcc, front_end]
        verbose = _said(str(gcc), "-xc++", "-E", "-v", "/dev/null")
        headers = re.findall(r"^ (/\S+)$", verbose.partition("search starts here:")[2], re.M)
        found += [gcc, front_end.parent, *map(Path, headers)]
    return (*found, *shared_libraries(*programs))


def _said(*command: str) -> str:
    """What a tool of the machine prints; nothing of a user's is in the command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout + done.stderr


# The true register count: what ptxas allocates for a compute capability.

LIMITS = Limits(seconds=30)
"""Twice what ptxas takes for the tensor-core product of NVIDIA's samples (1.2 MB of PTX: 13.7 s of
CPU on busy cores); some hundred times what the largest fixture kernel takes."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of what somebody else ended, as a kernel short of memory does."""


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """What ptxas says of one kernel: registers per thread, bytes per thread, bytes per block.

    ``target`` is the compute capability it was assembled for (``70`` is 7.0), which is a newer
    one than asked for where ptxas no longer supports that. ``lowered``: the text says a newer
    version than ``PTXAS_READS`` and was assembled as that.
    """

    registers_per_thread: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    target: int
    lowered: bool = False

    @property
    def spills(self) -> bool:
        """Whether values go to local memory because registers do not suffice."""
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


_VERSION = re.compile(r"^\s*\.version\s+((\d{1,3})\.(\d{1,3}))\b", re.M)
_FUNCTION = re.compile(r"Compiling entry function '([^']+)' for")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def measure_resources(
    ptx: str,
    entry: str,
    compute_capability: tuple[int, int],
    *,
    most_registers: int | None = None,
) -> PtxasReport | None:
    """Assemble ``entry`` and read what it uses; ``None`` without ptxas or if it refuses the PTX.

    ``most_registers`` per thread is the cap that ``-maxrregcount`` sets. Where nothing but its
    ``.version`` is newer than this ptxas, the text is assembled as the newest that it reads.

    A refusal (instructions or a target that ptxas does not know) is no error of the user's:
    the caller falls back to the liveness estimate and says so. What another run might assemble is
    given up instead (GivenUpError), so that the same kernel always has the same registers.
    """
    with measuring(ptx, entry, compute_capability, most_registers=most_registers) as measured:
        return measured()


@contextlib.contextmanager
def measuring(
    ptx: str,
    entry: str,
    compute_capability: tuple[int, int],
    *,
    most_registers: int | None = None,
) -> Iterator[Callable[[], PtxasReport | None]]:
    """``measure_resources`` in two halves: ptxas runs beside what is inside, which gets what waits
    for the report."""
    ptxas = find_ptxas()
    wanted = compute_capability[0] * 10 + compute_capability[1]
    asked = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", ptx, re.M)
    least = max(wanted, int(asked[1]) if asked else 0)
    target = next((known for known in CUDA_TARGETS if known >= least), None)
    if ptxas is None or target is None:
        yield lambda: None
        return
    version = _VERSION.search(ptx)
    lowered = version is not None and (int(version[2]), int(version[3])) > PTXAS_READS
    if version is not None and lowered:
        ptx = f"{ptx[: version.start(1)]}{PTXAS_READS[0]}.{PTXAS_READS[1]}{ptx[version.end() :]}"
    # PTX of one architecture alone (sm_90a) is assembled for that and nothing else.
    alone = asked[2] if asked and int(asked[1]) == target else ""
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
        command = [str(ptxas), f"-arch=sm_{target}{alone}", "-v", "--entry", entry]
        if most_registers is not None:
            command.append(f"--maxrregcount={most_registers}")
        command += ["kernel.ptx", "-o", "kernel.cubin"]
        with running(command, folder, LIMITS, ptxas_files(ptxas)) as ended:

            def measured() -> PtxasReport | None:
                done = ended()
                if done.timed_out or done.not_isolated or done.code in KILLED:
                    raise GivenUpError(
                        "ptxas could not tell the registers of this kernel this time. Try again, "
                        "or give registers_per_thread"
                    )
                if done.code != 0:
                    return None
                return _read(done.stdout + done.stderr, entry, target, lowered)

            yield measured


def _read(log: str, entry: str, target: int, lowered: bool) -> PtxasReport | None:
    parts = _FUNCTION.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = _REGISTERS.search(text)
        if name != entry or registers is None:
            continue
        stack, shared = _STACK.search(text), _SHARED.search(text)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        static = int(shared[1]) if shared else 0
        return PtxasReport(int(registers[1]), frame, stores, loads, static, target, lowered)
    return None
