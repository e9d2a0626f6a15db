"""Where the compilers are (NVIDIA's wheels, then the machine's), and which files they read."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from wattcast.features.cuda.isolation import Limits, run_limited
from wattcast.features.errors import GivenUpError

CUDA_TARGETS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
"""Compute capabilities that NVRTC 12.9 and ptxas 12.9 know (NVRTC 12.9 user guide,
--gpu-architecture; CUDA 12.9 binary utilities, ptxas --gpu-name)."""


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

LIMITS = Limits(seconds=10)
"""Some hundred times what the largest fixture kernel takes."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of what somebody else ended, as a kernel short of memory does."""


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """What ptxas says of one kernel: registers per thread, bytes per thread, bytes per block.

    ``target`` is the compute capability it was assembled for (``70`` is 7.0), which is a newer
    one than asked for where ptxas no longer supports that.
    """

    registers_per_thread: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int
    target: int

    @property
    def spills(self) -> bool:
        """Whether values go to local memory because registers do not suffice."""
        return self.spill_store_bytes > 0 or self.spill_load_bytes > 0


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
    ptxas: Path | None = None,
    limits: Limits | None = None,
) -> PtxasReport | None:
    """Assemble ``entry`` and read what it uses; ``None`` without ptxas or if it refuses the PTX.

    ``most_registers`` per thread is the cap that ``-maxrregcount`` sets.

    A refusal (PTX newer than this ptxas, a target it does not know) is no error of the user's:
    the caller falls back to the liveness estimate and says so. What another run might assemble is
    given up instead (GivenUpError), so that the same kernel always has the same registers.
    """
    ptxas = ptxas or find_ptxas()
    if ptxas is None:
        return None
    wanted = compute_capability[0] * 10 + compute_capability[1]
    asked = re.search(r"^\s*\.target\s+sm_(\d+)([af]?)", ptx, re.M)
    least = max(wanted, int(asked[1]) if asked else 0)
    target = next((known for known in CUDA_TARGETS if known >= least), None)
    if target is None:
        return None
    # PTX of one architecture alone (sm_90a) is assembled for that and nothing else.
    alone = asked[2] if asked and int(asked[1]) == target else ""
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
        command = [str(ptxas), f"-arch=sm_{target}{alone}", "-v", "--entry", entry]
        if most_registers is not None:
            command.append(f"--maxrregcount={most_registers}")
        command += ["kernel.ptx", "-o", "kernel.cubin"]
        done = run_limited(command, folder, limits or LIMITS, ptxas_files(ptxas))
    if done.timed_out or done.not_isolated or done.code in KILLED:
        raise GivenUpError(
            "ptxas could not tell the registers of this kernel this time. Try again, or give "
            "registers_per_thread"
        )
    if done.code != 0:
        return None
    return _read(done.stdout + done.stderr, entry, target)


def _read(log: str, entry: str, target: int) -> PtxasReport | None:
    parts = _FUNCTION.split(log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = _REGISTERS.search(text)
        if name != entry or registers is None:
            continue
        stack, shared = _STACK.search(text), _SHARED.search(text)
        frame, stores, loads = map(int, stack.groups()) if stack else (0, 0, 0)
        static = int(shared[1]) if shared else 0
        return PtxasReport(int(registers[1]), frame, stores, loads, static, target)
    return None
