"""CUDA source to PTX, without a GPU.

Device code goes through NVRTC 12.9 (compute capability 5.0 to 12.0); a file with host code
through an installed ``nvcc``. Both run isolated, in an empty folder (``isolation``).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wattcast.features.cuda import isolation
from wattcast.features.cuda.isolation import Finished, Limits, NotIsolatedError, run_limited
from wattcast.features.cuda.source import (
    AS_NVCC,
    AS_NVCC_HEADER,
    LIBRARY,
    MOST_SHOWN,
    TEXTURE,
    TEXTURE_HEADER,
    device_code,
    forbidden_include,
    host_code,
    includes_of,
    is_header_name,
    standard_headers,
)
from wattcast.features.errors import Diagnostic, WattcastError

SOURCE_NAME, OUTPUT_NAME, HEADERS = "kernel.cu", "out.ptx", "headers"

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
    """PTX text, the compiler that made it, its target (``80`` is 8.0) and its remarks;
    ``instances``: names in the PTX by what was asked for."""

    ptx: str
    compiler: str
    target: int
    diagnostics: tuple[Diagnostic, ...]
    instances: Mapping[str, str] = field(default_factory=dict[str, str])


def compile_cuda(
    source: str,
    compute_capability: tuple[int, int],
    *,
    limits: Limits | None = None,
    headers: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    instances: Sequence[str] = (),
) -> CompiledCuda:
    """Compile CUDA C++ ``source`` to PTX for a compute capability.

    A capability older than the compiler supports is raised to the oldest one it does, with
    the diagnostic ``target_raised``. ``headers`` are files that the source includes, by the name
    it includes them by; a source among them that nothing includes is another translation unit,
    compiled instead where this one does not compile or has no kernel: the source is a part of it,
    or launches what it holds. ``options`` are compiler options (``checked_options``), ``instances``
    instances of template kernels, such as ``gemm<32, float>``. Host code is compiled by an
    installed nvcc, else left out (``device_code``). Raises CompileError (compiler's lines, a
    forbidden include or option, a limit reached), CompilerMissingError, NotIsolatedError, and
    GivenUpError where the machine held it up.
    """
    if isolation.find_nvrtc() is None and isolation.find_nvcc() is None:
        raise CompilerMissingError(NO_COMPILER)
    included = set(includes_of("\n".join((source, *(headers or {}).values()))))
    units = {n for n in headers or () if n.endswith(".cu") and n not in included}
    rest = {name: text for name, text in (headers or {}).items() if name not in units}
    tried = [("", source, rest)]
    tried += [
        (name, (headers or {})[name], {**rest, SOURCE_NAME: source})
        for name in sorted(units)[:MOST_UNITS]
    ]
    told = (compute_capability, limits or Limits(), checked_options(options), instances)
    made, refused = None, None
    for name, text, beside in tried:
        try:
            made = _compile_unit(text, beside, *told)
        except CompileError as error:
            refused = refused or error
            continue
        if ".entry" in made.ptx:
            why = f"{name} includes the source or holds what it launches, so that was compiled"
            notes = (Diagnostic("other_unit_compiled", why),) if name else ()
            return replace(made, diagnostics=made.diagnostics + notes)
    if made is not None:
        return made
    assert refused is not None  # each compiles or does not
    raise refused


MOST_UNITS = 3
"""Other translation units that are tried."""


def _compile_unit(
    source: str,
    headers: Mapping[str, str],
    compute_capability: tuple[int, int],
    limits: Limits,
    options: Sequence[str],
    instances: Sequence[str],
) -> CompiledCuda:
    """One translation unit."""
    nvrtc, nvcc = isolation.find_nvrtc(), isolation.find_nvcc()
    if "\0" in source:
        raise CompileError(
            "the source holds a NUL byte", line=source.count("\n", 0, source.find("\0")) + 1
        )
    if SOURCE_NAME in headers:  # as this calls the source
        own = re.compile(rf'(#[ \t]*include[ \t]*)["<]{re.escape(SOURCE_NAME)}[">]')
        source = own.sub(rf'\1"own/{SOURCE_NAME}"', source)
        headers = {
            f"own/{name}" if name == SOURCE_NAME else name: own.sub(rf'\1"own/{SOURCE_NAME}"', text)
            for name, text in headers.items()
        }
    _refuse_includes(SOURCE_NAME, source)
    for name, text in headers.items():
        _refuse_includes(name, text)
    for name in headers:
        if inside := next((one for one in headers if one.startswith(f"{name}/")), None):
            raise CompileError(f"{name!r} is a header and the folder of {inside!r}")
    given = (source, *headers.values())
    host = any(host_code(text) or TEXTURE.search(text) for text in given)
    if nvcc is not None and (nvrtc is None or (host and not instances)):
        try:
            return _with_nvcc(source, compute_capability, nvcc, limits, headers, options)
        except CompileError:
            if nvrtc is None:
                raise
    assert nvrtc is not None  # one of the two is there
    if not host and not headers and _stands_alone(source):
        asked = [*options, *(f"--instance={each}" for each in instances)]
        return _with_nvrtc({SOURCE_NAME: source}, compute_capability, nvrtc, limits, asked)
    return _device_side(source, compute_capability, nvrtc, limits, headers, options, instances)


def _stands_alone(source: str) -> bool:
    """Whether NVRTC knows all that device code names."""
    known = standard_headers().keys().isdisjoint(includes_of(source))
    return known and AS_NVCC.search(source) is None


def _refuse_includes(name: str, text: str) -> None:
    if not is_header_name(name):
        raise CompileError(f"{name[:MOST_SHOWN]!r} is no plain relative header name")
    if refused := forbidden_include(text):
        where = "line" if name == SOURCE_NAME else f"{name}, line"
        raise CompileError(
            f"{where} {refused.line}: {refused.what.strip()} is refused; "
            "only plain header names such as <cuda_fp16.h> may be included",
            line=refused.line,
        )


UNMARKED = "unmarked.h"
AS_HOST = {
    UNMARKED: ("not allowed in JIT mode", "#undef __host__\n#define __host__\n"),
    "as_std.h": (
        'namespace "std" has no member', "".join(f"#include <{name}>\n" for name in LIBRARY)
    ),
}  # fmt: skip
"""Headers that take the place of what nvcc's host side knows, by what NVRTC says without: members
and ``constexpr`` functions of the host are the device's too, and headers bring one another."""

MOST_ROUNDS = 8
"""Compilations of one source: each but the last found declarations of the host side, or headers
that nobody gave."""


def _device_side(
    source: str,
    capability: tuple[int, int],
    library: Path,
    limits: Limits,
    headers: Mapping[str, str],
    options: Sequence[str],
    instances: Sequence[str],
) -> CompiledCuda:
    """The device code of files with host code. What only the host can mean (its functions, and
    types and variables that do not compile) is blanked; a header that nobody gave is empty."""
    files = {name: device_code(text) for name, text in {SOURCE_NAME: source, **headers}.items()}
    launched = [name for code in files.values() for name in code.launched]
    standard, missing = standard_headers(), list[str]()
    for _ in range(MOST_ROUNDS):
        texts = {name: code.text for name, code in files.items()}
        included = set(includes_of("\n".join(texts.values())))
        stubs = {n: each for n, each in standard.items() if n in {*AS_HOST, *included} - set(texts)}
        brought = not standard.keys().isdisjoint(missing)  # by NVIDIA's own headers
        if brought:
            stubs |= {name: text for name, text in standard.items() if name not in texts}
        stubs |= {name: standard.get(name, "") for name in missing}
        stubs |= {
            n: standard[n] for text in [*stubs.values()] for n in includes_of(text) if n in standard
        }
        asked = [*options, *(f"--instance={each}" for each in (*instances, *launched))]
        asked += [f"--pre-include={name}" for name in AS_HOST if name in stubs]
        asked += ["--device-as-default-execution-space"] * (UNMARKED in stubs)
        for pattern, header in ((TEXTURE, TEXTURE_HEADER), (AS_NVCC, AS_NVCC_HEADER)):
            if brought or any(pattern.search(text) for text in texts.values()):
                stubs |= header
                asked += [f"--pre-include={name}" for name in header]
        try:
            made = _with_nvrtc(texts | stubs, capability, library, limits, asked)
        except CompileError as error:
            said = "\n".join(str(row["message"]) for row in _rows(error))
            again = {n for n, (says, _) in AS_HOST.items() if says in said} - standard.keys()
            if again:
                standard |= {name: AS_HOST[name][1] for name in again}
                last = error
                continue
            absent = _absent_headers(error, texts | stubs)
            lines = _lines_by_file(error)
            shorter = {
                name: code
                for name, at in lines.items()
                if name in files and (code := files[name].without(at)) is not None
            }
            if not absent and not shorter and not launched:
                if "expected an expression" in said and not any("-std=" in o for o in options):
                    options, last = [*options, "--std=c++20"], error  # nvcc takes it in C++17
                    continue
                raise _with_missing(error, missing) from None
            if not absent and not shorter:  # its own launches may name what only the host knows
                wrong = {"".join(name.split()) for name in _NO_INSTANCE.findall(said)}
                left = [each for each in launched if "".join(each.split()) not in wrong]
                launched = left if len(left) < len(launched) else []
            missing += absent
            files |= shorter
            last = error
            continue
        notes = tuple(
            Diagnostic("header_missing", f"{name} was not given; it was taken as empty")
            for name in missing
            if name not in standard
        )
        return replace(made, diagnostics=made.diagnostics + notes)
    raise _with_missing(last, missing)


def _with_missing(error: CompileError, missing: Sequence[str]) -> CompileError:
    """The same error, with the headers that were taken as empty and may be its cause."""
    if not missing:
        return error
    absent = ", ".join(missing[:8])
    how = "-I FOLDER gives those of a folder, headers of a request gives them by name"
    detail = f"{error.detail}. Not given and taken as empty: {absent}; {how}"
    return CompileError(detail, **error.context)


def compile_all(
    sources: Sequence[str], compute_capability: tuple[int, int], *, limits: Limits | None = None
) -> list[CompiledCuda | CompileError]:
    """Compile several sources of one author as ``compile_cuda`` would each, in one process that
    starts once: half of what a small kernel takes. ``limits`` are those of each source. Raises
    CompilerMissingError, NotIsolatedError and GivenUpError."""
    nvrtc, limits = isolation.find_nvrtc(), limits or Limits()
    plain = [
        at
        for at, source in enumerate(sources)
        if "\0" not in source
        and forbidden_include(source) is None
        and not host_code(source)
        and _stands_alone(source)
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
            run_limited(command, folder, together, isolation.nvrtc_files(nvrtc))
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
    target, diagnostics = _target(capability, isolation.CUDA_TARGETS, "NVRTC 12.9")
    child = str(Path(__file__).with_name("nvrtc_child.py"))
    command = [child, str(library), sources, OUTPUT_NAME, "--generate-line-info"]
    command += [f"--gpu-architecture=compute_{target}", "--std=c++17"]
    command += [f"--include-path={folder}" for folder in isolation.include_folders()]
    return target, diagnostics, command


def _with_nvrtc(
    files: Mapping[str, str],
    capability: tuple[int, int],
    library: Path,
    limits: Limits,
    options: Sequence[str] = (),
) -> CompiledCuda:
    target, diagnostics, command = _nvrtc_command(capability, library, SOURCE_NAME)
    if any(option.startswith("--std=") for option in options):
        command.remove("--std=c++17")
    if len(files) > 1:
        command.insert(4, f"--include-path={HEADERS}")
    ptx, done, names = _compiled(
        files, [*command, *options], isolation.nvrtc_files(library), limits
    )
    return CompiledCuda(ptx, "nvrtc", target, diagnostics + _remarks(done.stdout), names)


def _with_nvcc(
    source: str,
    capability: tuple[int, int],
    nvcc: Path,
    limits: Limits,
    headers: Mapping[str, str],
    options: Sequence[str],
) -> CompiledCuda:
    targets = tuple(target for target in isolation.CUDA_TARGETS if target >= NVCC_MINIMUM)
    target, diagnostics = _target(capability, targets, "nvcc 13")
    command = [str(nvcc), "-ptx", "-lineinfo", f"-arch=compute_{target}", f"-I{HEADERS}"]
    if not any(option.startswith("--std=") for option in options):
        command.append("-std=c++17")
    command += [*options, SOURCE_NAME, "-o", OUTPUT_NAME]
    files = {SOURCE_NAME: source, **headers}
    ptx, done, _ = _compiled(files, command, isolation.nvcc_files(nvcc), limits)
    return CompiledCuda(ptx, "nvcc", target, diagnostics + _remarks(done.stderr))


def _compiled(
    files: Mapping[str, str], command: Sequence[str], readable: Sequence[Path], limits: Limits
) -> tuple[str, Finished, dict[str, str]]:
    """The PTX that a compiler makes of ``files`` in a folder of their own, and the names of the
    instances asked for. Raises CompileError."""
    with tempfile.TemporaryDirectory(prefix="wattcast-") as name:
        folder = Path(name)
        for file, text in files.items():
            place = folder / file if file == SOURCE_NAME else folder / HEADERS / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        done = run_limited(command, folder, limits, readable)
        ptx, names = _result(done, folder, limits, folder), dict[str, str]()
        if (folder / "names").is_file():
            rows = (folder / "names").read_text(encoding="utf-8").splitlines()
            names = dict(row.split("\t", 1) for row in rows if "\t" in row)
        return ptx, done, names


OPTIONS = re.compile(
    r"-D\s*(?P<macro>[A-Za-z_]\w*(?:=[\w.+\-*/()<>,: ]{0,200})?)"
    r"|-?-std=(?P<std>c\+\+(?:11|14|17|20))"
    r"|-?-(?P<flag>use_fast_math|extra-device-vectorization|device-as-default-execution-space)"
    r"|-?-(?P<switch>fmad|ftz|prec-div|prec-sqrt)=(?P<on>true|false)"
    r"|-?-maxrregcount[= ](?P<registers>\d{1,3})"
)
"""Compiler options that change the code and reach no file (NVRTC user guide, section 3)."""

MOST_OPTIONS = 64


def checked_options(options: Sequence[str]) -> list[str]:
    """Options as NVRTC and nvcc both take them. Raises CompileError for any other one."""
    if len(options) > MOST_OPTIONS:
        raise CompileError(f"{len(options)} compiler options; at most {MOST_OPTIONS} are taken")
    taken = list[str]()
    for option in options:
        match = OPTIONS.fullmatch(option.strip())
        if match is None:
            raise CompileError(
                f"the compiler option {option[:MOST_SHOWN]!r} is not taken; -D NAME=VALUE, -std=, "
                "--use_fast_math, --fmad=, --ftz=, --prec-div=, --prec-sqrt=, --maxrregcount= are"
            )
        if match["macro"]:
            taken.append(f"-D{match['macro']}")
        elif match["std"]:
            taken.append(f"--std={match['std']}")
        elif match["flag"]:
            taken.append(f"--{match['flag']}")
        elif match["switch"]:
            taken.append(f"--{match['switch']}={match['on']}")
        else:
            taken.append(f"--maxrregcount={match['registers']}")
    return taken


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
    errors = _errors(done.stdout + "\n" + done.stderr, last_line, ran_in)
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        if first.get("file") == NAME_MAP:
            raise CompileError(f"the source has no such kernel: {first['message']}", errors=errors)
        where = f"{first['file']}, line" if "file" in first else "line"
        raise CompileError(
            f"{where} {first['line']}: {first['message']}{more}", line=first["line"], errors=errors
        )
    if done.code < 0 or done.code == 2 or done.code > 128:
        raise CompileError(
            "the compiler reached a limit (memory, CPU time or output size) or crashed"
        )
    tail = (done.stderr or done.stdout).strip().splitlines()
    raise CompileError(f"the compiler failed: {tail[-1][:200] if tail else done.code}")


_MESSAGE = re.compile(
    r"^(?:(\S+?)[(:](\d+)(?:[:,]\d+)?\)?|At end of source):\s*"
    r"(?:catastrophic |fatal )?(error|warning)[^:]*:\s*(.*)$",
    re.M,
)
NAME_MAP = "__nv_name_map"
"""Where NVRTC says that an instance asked for is none (its user guide, section 4)."""

_NO_INSTANCE = re.compile(r"Input name expression was: \"([^\"\n]*)\"")
_ABSENT = re.compile(r"(?:could not|cannot) open source file \"([^\"]+)\"")


def _errors(log: str, last_line: int, folder: Path) -> list[dict[str, object]]:
    found = list[dict[str, object]]()
    for file, line, kind, message in _MESSAGE.findall(log):
        if kind != "error":
            continue
        name = file.removeprefix(f"{folder.resolve()}/").removeprefix(f"{folder}/")
        name = name.removeprefix(f"{HEADERS}/") or SOURCE_NAME
        row: dict[str, object] = {"line": int(line or last_line), "message": message.strip()}
        found.append(row if name == SOURCE_NAME else {**row, "file": name})
    return found


def _lines_by_file(error: CompileError) -> dict[str, set[int]]:
    """Lines with errors, by the file they are in."""
    found = dict[str, set[int]]()
    for row in _rows(error):
        found.setdefault(str(row.get("file", SOURCE_NAME)), set()).add(int(str(row["line"])))
    return found


def _absent_headers(error: CompileError, given: Mapping[str, str]) -> list[str]:
    """Plain header names that the compiler looked for in vain."""
    names = (name for row in _rows(error) for name in _ABSENT.findall(str(row["message"])))
    return [name for name in dict.fromkeys(names) if is_header_name(name) and name not in given]


def _rows(error: CompileError) -> list[dict[str, object]]:
    rows = error.context.get("errors")
    return [*rows] if isinstance(rows, list) else []


def _remarks(log: str) -> tuple[Diagnostic, ...]:
    return tuple(
        Diagnostic("compiler_warning", message.strip(), int(line))
        for file, line, kind, message in _MESSAGE.findall(log)
        if kind == "warning" and file.endswith(SOURCE_NAME)
    )
