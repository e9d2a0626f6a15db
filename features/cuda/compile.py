"""CUDA source to PTX, without a GPU.

Device code goes through NVRTC 12.9 (compute capability 5.0 to 12.0); a file with host code
through an installed ``nvcc``. Both run isolated, in an empty folder (``isolation``).
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wattcast.features.cuda.isolation import Finished, Limits, NotIsolatedError, run_limited
from wattcast.features.cuda.source import forbidden_include, host_code
from wattcast.features.cuda.toolchain import (
    find_nvcc,
    find_nvrtc,
    include_folders,
    nvcc_files,
    nvrtc_files,
)
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import WattcastError

SOURCE_NAME = "kernel.cu"

NVRTC_TARGETS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
"""Compute capabilities NVRTC 12.9 compiles for (NVRTC 12.9 user guide, --gpu-architecture)."""

NVCC_MINIMUM = 75
"""The oldest target of nvcc 13 (CUDA 13.0 release notes: Maxwell, Pascal, Volta removed)."""

NO_COMPILER = "no CUDA compiler is installed; install one with: pip install 'wattcast[cuda]'"


class CompilerMissingError(WattcastError):
    """No compiler for CUDA source is installed; the message says how to get one."""

    slug = "compiler-missing"


class CompileError(WattcastError):
    """The source does not compile; ``line`` is the compiler's, ``errors`` lists them all."""

    slug = "cuda-compile"


@dataclass(frozen=True, slots=True)
class CompiledCuda:
    """PTX text, the compiler that made it, its target (``80`` is 8.0) and its remarks."""

    ptx: str
    compiler: str
    target: int
    diagnostics: tuple[Diagnostic, ...]


def compile_cuda(
    source: str,
    compute_capability: tuple[int, int],
    *,
    limits: Limits | None = None,
) -> CompiledCuda:
    """Compile CUDA C++ ``source`` to PTX for a compute capability.

    A capability older than the compiler supports is raised to the oldest one it does, with
    the diagnostic ``target_raised``. Raises CompileError (compiler's lines, a forbidden
    include, host code without nvcc, a limit reached), CompilerMissingError, NotIsolatedError.
    """
    nvrtc, nvcc = find_nvrtc(), find_nvcc()
    if nvrtc is None and nvcc is None:
        raise CompilerMissingError(NO_COMPILER)
    limits = limits or Limits()
    if "\0" in source:
        raise CompileError(
            "the source holds a NUL byte", line=source.count("\n", 0, source.find("\0")) + 1
        )
    if refused := forbidden_include(source):
        raise CompileError(
            f"line {refused.line}: {refused.what.strip()} is refused; "
            "only plain header names such as <cuda_fp16.h> may be included",
            line=refused.line,
        )
    host = host_code(source)
    if host is None and nvrtc is not None:
        return _with_nvrtc(source, compute_capability, nvrtc, limits)
    if nvcc is not None:
        return _with_nvcc(source, compute_capability, nvcc, limits)
    assert host is not None  # NVRTC took device code above
    raise CompileError(
        f"line {host.line} holds {host.what}; only device code can be compiled here, "
        "because no nvcc is installed. Send the kernels without host code.",
        line=host.line,
    )


def _with_nvrtc(
    source: str, capability: tuple[int, int], library: Path, limits: Limits
) -> CompiledCuda:
    target, diagnostics = _target(capability, NVRTC_TARGETS, "NVRTC 12.9")
    options = [
        f"--gpu-architecture=compute_{target}",
        "--generate-line-info",
        "--std=c++17",
        *(f"--include-path={folder}" for folder in include_folders()),
    ]
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        child = str(Path(__file__).with_name("nvrtc_child.py"))
        command = [child, str(library), SOURCE_NAME, "out.ptx", *options]
        done = run_limited(command, folder, limits, nvrtc_files(library))
        ptx = _result(done, folder, limits)
    return CompiledCuda(ptx, "nvrtc", target, diagnostics + _remarks(done.stdout))


def _with_nvcc(
    source: str, capability: tuple[int, int], nvcc: Path, limits: Limits
) -> CompiledCuda:
    targets = tuple(target for target in NVRTC_TARGETS if target >= NVCC_MINIMUM)
    target, diagnostics = _target(capability, targets, "nvcc 13")
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        command = [str(nvcc), "-ptx", "-lineinfo", "-std=c++17", f"-arch=compute_{target}"]
        command += [SOURCE_NAME, "-o", "out.ptx"]
        done = run_limited(command, folder, limits, nvcc_files(nvcc))
        ptx = _result(done, folder, limits)
    return CompiledCuda(ptx, "nvcc", target, diagnostics + _remarks(done.stderr))


def _target(
    capability: tuple[int, int], supported: tuple[int, ...], compiler: str
) -> tuple[int, tuple[Diagnostic, ...]]:
    wanted = capability[0] * 10 + capability[1]
    lower = [target for target in supported if target <= wanted]
    if lower:
        return lower[-1], ()
    oldest = supported[0]
    detail = (
        f"{compiler} cannot compile for compute capability {capability[0]}.{capability[1]}; "
        f"compiled for {oldest // 10}.{oldest % 10} instead"
    )
    return oldest, (Diagnostic("target_raised", detail),)


def _result(done: Finished, folder: Path, limits: Limits) -> str:
    if done.timed_out:
        raise CompileError(f"the compiler did not finish in {limits.seconds:g} s")
    if done.not_isolated:
        raise NotIsolatedError(
            "the compiler could not be isolated this time, so nothing was compiled. Try again, or "
            "send PTX. GET /readyz and wattcast settings show how it is isolated"
        )
    out = folder / "out.ptx"
    if done.code == 0 and out.is_file():
        # Line information names the folder, which is another one each time.
        ptx = out.read_text(encoding="utf-8", errors="replace")
        return ptx.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    last_line = (folder / SOURCE_NAME).read_text(encoding="utf-8").count("\n") + 1
    errors = _errors(done.stdout + "\n" + done.stderr, last_line)
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise CompileError(
            f"line {first['line']}: {first['message']}{more}", line=first["line"], errors=errors
        )
    if done.code < 0 or done.code == 2 or done.code > 128:
        raise CompileError(
            "the compiler reached a limit (memory, CPU time or output size) or crashed"
        )
    tail = (done.stderr or done.stdout).strip().splitlines()
    raise CompileError(f"the compiler failed: {tail[-1][:200] if tail else done.code}")


_MESSAGE = re.compile(
    rf"^(?:(?:\S*/)?{re.escape(SOURCE_NAME)}[(:](\d+)(?:[:,]\d+)?\)?|At end of source):\s*"
    r"(?:catastrophic |fatal )?(error|warning)[^:]*:\s*(.*)$",
    re.M,
)


def _errors(log: str, last_line: int) -> list[dict[str, object]]:
    return [
        {"line": int(line or last_line), "message": message.strip()}
        for line, kind, message in _MESSAGE.findall(log)
        if kind == "error"
    ]


def _remarks(log: str) -> tuple[Diagnostic, ...]:
    return tuple(
        Diagnostic("compiler_warning", message.strip(), int(line))
        for line, kind, message in _MESSAGE.findall(log)
        if kind == "warning" and line
    )
