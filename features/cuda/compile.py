"""CUDA source to PTX, without a GPU.

Device code goes through NVRTC 12.9 (compute capability 5.0 to 12.0); a file with host code
through an installed ``nvcc``. Both run isolated, in an empty folder (``isolation``).
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from wattcast.features.cuda import toolchain
from wattcast.features.cuda.isolation import Finished, Limits, NotIsolatedError, run_limited
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import WattcastError

SOURCE_NAME, OUTPUT_NAME = "kernel.cu", "out.ptx"

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
    source: str, compute_capability: tuple[int, int], *, limits: Limits | None = None
) -> CompiledCuda:
    """Compile CUDA C++ ``source`` to PTX for a compute capability.

    A capability older than the compiler supports is raised to the oldest one it does, with
    the diagnostic ``target_raised``. Raises CompileError (compiler's lines, a forbidden
    include, host code without nvcc, a limit reached), CompilerMissingError, NotIsolatedError, and
    GivenUpError where the machine held it up.
    """
    nvrtc, nvcc = toolchain.find_nvrtc(), toolchain.find_nvcc()
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


def compile_all(
    sources: Sequence[str], compute_capability: tuple[int, int], *, limits: Limits | None = None
) -> list[CompiledCuda | CompileError]:
    """Compile several sources of one author as ``compile_cuda`` would each, in one process that
    starts once: half of what a small kernel takes. ``limits`` are those of each source. Raises
    CompilerMissingError, NotIsolatedError and GivenUpError."""
    nvrtc, limits = toolchain.find_nvrtc(), limits or Limits()
    plain = [
        at
        for at, source in enumerate(sources)
        if "\0" not in source and forbidden_include(source) is None and host_code(source) is None
    ]
    found: dict[int, CompiledCuda | CompileError] = {}
    if nvrtc is not None and len(plain) > 1:
        together = replace(limits, seconds=limits.seconds * len(plain))
        with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
            folder = Path(name)
            places = [folder / str(number) for number in range(len(plain))]
            for place, at in zip(places, plain, strict=True):
                place.mkdir()
                (place / SOURCE_NAME).write_text(sources[at], encoding="utf-8")
            listed = ",".join(f"{place.name}/{SOURCE_NAME}" for place in places)
            target, notes, command = _nvrtc_command(compute_capability, nvrtc, listed)
            run_limited(command, folder, together, toolchain.nvrtc_files(nvrtc))
            for place, at in zip(places, plain, strict=True):
                if not (place / "code").is_file():
                    break  # it ended at this one: what is left is compiled alone, and says why
                log = (place / "log").read_text(encoding="utf-8", errors="replace")
                done = Finished(int((place / "code").read_text()), log, "")
                try:
                    ptx = _result(done, place, limits, folder)
                    found[at] = CompiledCuda(ptx, "nvrtc", target, notes + _remarks(log))
                except CompileError as error:
                    found[at] = error
    for at, source in enumerate(sources):
        if at not in found:
            try:
                found[at] = compile_cuda(source, compute_capability, limits=limits)
            except CompileError as error:
                found[at] = error
    return [found[at] for at in range(len(sources))]


def _nvrtc_command(
    capability: tuple[int, int], library: Path, sources: str
) -> tuple[int, tuple[Diagnostic, ...], list[str]]:
    target, diagnostics = _target(capability, toolchain.CUDA_TARGETS, "NVRTC 12.9")
    child = str(Path(__file__).with_name("nvrtc_child.py"))
    command = [child, str(library), sources, OUTPUT_NAME, "--generate-line-info"]
    command += [f"--gpu-architecture=compute_{target}", "--std=c++17"]
    command += [f"--include-path={folder}" for folder in toolchain.include_folders()]
    return target, diagnostics, command


def _with_nvrtc(
    source: str, capability: tuple[int, int], library: Path, limits: Limits
) -> CompiledCuda:
    target, diagnostics, command = _nvrtc_command(capability, library, SOURCE_NAME)
    ptx, done = _compiled(source, command, toolchain.nvrtc_files(library), limits)
    return CompiledCuda(ptx, "nvrtc", target, diagnostics + _remarks(done.stdout))


def _with_nvcc(
    source: str, capability: tuple[int, int], nvcc: Path, limits: Limits
) -> CompiledCuda:
    targets = tuple(target for target in toolchain.CUDA_TARGETS if target >= NVCC_MINIMUM)
    target, diagnostics = _target(capability, targets, "nvcc 13")
    command = [str(nvcc), "-ptx", "-lineinfo", "-std=c++17", f"-arch=compute_{target}"]
    command += [SOURCE_NAME, "-o", OUTPUT_NAME]
    ptx, done = _compiled(source, command, toolchain.nvcc_files(nvcc), limits)
    return CompiledCuda(ptx, "nvcc", target, diagnostics + _remarks(done.stderr))


def _compiled(
    source: str, command: Sequence[str], readable: Sequence[Path], limits: Limits
) -> tuple[str, Finished]:
    """The PTX that a compiler makes of ``source`` in a folder of its own. Raises CompileError."""
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        (folder / SOURCE_NAME).write_text(source, encoding="utf-8")
        done = run_limited(command, folder, limits, readable)
        return _result(done, folder, limits, folder), done


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


def _result(done: Finished, folder: Path, limits: Limits, ran_in: Path) -> str:
    if done.timed_out:
        raise CompileError(f"the compiler did not finish in {limits.seconds:g} s of CPU time")
    if done.not_isolated:
        raise NotIsolatedError(
            "the compiler could not be isolated this time, so nothing was compiled. Try again, or "
            "send PTX. GET /readyz and wattcast settings show how it is isolated"
        )
    out = folder / OUTPUT_NAME
    if done.code == 0 and out.is_file():
        # Line information names the folder, which is another one each time.
        ptx = out.read_text(encoding="utf-8", errors="replace")
        return ptx.replace(f"{ran_in.resolve()}/", "").replace(f"{ran_in}/", "")
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


# --- a first look at the source: what it may include, and whether it holds host code --------------
# Both answers come from the text without comments, before a compiler sees it, in one pass over it.

MOST_SHOWN = 200
"""Characters of a source that a message repeats."""


class Finding(NamedTuple):
    """Something found in the source: 1-based line and what it is."""

    line: int
    what: str


NOISE = re.compile(
    r"""[/"'R0-9](?:
      (?<=/)/[^\n]*
    | (?<=/)\*.*?(?:\*/|\Z)
    | (?<=R)(?:(?<!\wR)|(?<=\b[uUL]R)|(?<=\bu8R))
      "(?P<end>[^\s()\\"]{0,16})\(.*?(?:\)(?P=end)"|\Z)
    | (?<=")[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?
    | (?<=')[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'?
    | (?<=[0-9])(?<!\w[0-9])(?P<number>(?:[eEpP][+-]|'?\w|\.)*+)
    )""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, strings, characters, and numbers, whose ``'`` opens no character (C++17, [lex]).

What is never closed goes to the end of its line or of the text, so that no text is looked at
twice: the time grows with the text alone.
"""

_SPLICE = re.compile(r"\\[ \t\v\f]*\n")
_DIRECTIVE = re.compile(r"^[^\S\n]*(?:\#|%:|\?\?=)[^\S\n]*(include\w*|import|embed)\b(.*)$", re.M)
_HEADER = re.compile(r"""\s*(?:<([\w.+/-]+)>|"([\w.+/-]+)")\s*""")
_PROBE = re.compile(r"__has_(?:include|embed)\w*")
_HOST = (
    (re.compile(r"<<<"), "a kernel launch (<<<...>>>)"),
    (re.compile(r"\bint\s+main\s*\("), "main()"),
    (
        re.compile(
            r"#[ \t]*include[ \t]*<(?:iostream|vector|string|map|memory|algorithm|fstream|chrono|"
            r"stdio\.h|stdlib\.h|string\.h|sys/\w+\.h|time\.h|c(?:stdio|stdlib|string|time))>"
        ),
        "a host header",
    ),
    (
        re.compile(r"\bcuda(?:Malloc|Free|Memcpy|DeviceSynchronize|EventCreate)\w*\s*\("),
        "a host call",
    ),
)


def forbidden_include(source: str) -> Finding | None:
    """The first include that is no plain relative header name, else ``None``.

    Absolute paths, ``..``, macros as header names and probes (``__has_include``) are refused. This
    is the second line, and a clear message: what a compiler can read at all, ``isolation`` says.
    """
    text, splices = _spliced(source)
    text = NOISE.sub(lambda found: found[0] if found[0][0] != "/" else _blank(found), text)
    for match in _DIRECTIVE.finditer(text):
        header = _HEADER.fullmatch(match[2])
        name = (header[1] or header[2]) if header else ""
        if match[1] != "include" or not name or name.startswith("/") or ".." in name.split("/"):
            what = f"#{match[1]}{match[2].rstrip()}"
            return Finding(_line(text, splices, match.start()), what[:MOST_SHOWN])
    probe = _PROBE.search(text)
    return Finding(_line(text, splices, probe.start()), probe[0]) if probe else None


def host_code(source: str) -> Finding | None:
    """The first sign of host code, else ``None``; such files need ``nvcc``, not NVRTC."""
    text, splices = _spliced(source)
    text = NOISE.sub(lambda found: found[0] if found["number"] is not None else _blank(found), text)
    found = [
        Finding(_line(text, splices, match.start()), what)
        for pattern, what in _HOST
        if (match := pattern.search(text))
    ]
    return min(found, default=None)


def code_alone(source: str) -> str:
    """The source on joined lines, a space for each comment and ``""`` for each string."""

    def short(found: re.Match[str]) -> str:
        if found["number"] is not None:
            return found[0]
        return " " if found[0][0] == "/" else '""'

    return NOISE.sub(short, _spliced(source)[0])


def _spliced(source: str) -> tuple[str, list[int]]:
    """The text with lines joined that end in a backslash, and where in it they were joined."""
    pieces = _SPLICE.split(source.replace("\r\n", "\n"))
    return "".join(pieces), list(accumulate(map(len, pieces[:-1])))


def _blank(found: re.Match[str]) -> str:
    """As many blanks, so that every position and every line break stays."""
    text = found[0]
    if "\n" not in text:
        return " " * len(text)
    return "\n".join(" " * len(line) for line in text.split("\n"))


def _line(text: str, splices: list[int], position: int) -> int:
    return text.count("\n", 0, position) + bisect_right(splices, position) + 1
