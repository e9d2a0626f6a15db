"""What a kernel may come as, and what it tells of its launch.

PTX or CUDA text; the path of a file; what ``triton.compile`` or a launch of Triton returns; a
kernel of torch's inductor; what ``numba.cuda.compile_ptx`` returns or a kernel of
``numba.cuda.jit``; CuPy's ``RawKernel`` and ``RawModule``. Objects are known by the attributes that
their libraries document, so that none of these needs to be installed:

    asm, metadata        triton.compiler.CompiledKernel (Triton 3)
    compile_results      torch._inductor.runtime.triton_heuristics.CachingAutotuner (PyTorch 2.7 on)
    inspect_asm          numba.cuda.dispatcher.CUDADispatcher (numba-cuda, Numba)
    code, file_path      cupy.RawKernel, cupy.RawModule (CuPy 9 on)
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from base64 import b32encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

from wattcast.features.errors import DataError, LaunchError, PtxError
from wattcast.features.ptx.lexing import text_of_file
from wattcast.predictor.messages import LaunchRequest
from wattcast.predictor.triton import Grid, TritonKernel, compiled

CUDA_SUFFIXES = (".cu", ".cuh")
SUFFIXES = (".ptx", *CUDA_SUFFIXES)

MACHINE_CODE = (".cubin", ".fatbin", ".o", ".so")
"""Files of machine code: what PTX they hold, ``cuobjdump --dump-ptx`` tells."""


class Compiled(Protocol):
    """A compiled kernel that tells its PTX, as Triton's do."""

    @property
    def asm(self) -> Mapping[str, Any]: ...


class Dispatcher(Protocol):
    """A kernel of ``numba.cuda.jit``."""

    def inspect_asm(self, signature: Any = None) -> Any: ...


class RawCuda(Protocol):
    """A ``cupy.RawKernel`` or ``cupy.RawModule``."""

    @property
    def code(self) -> str | None: ...
    @property
    def file_path(self) -> str | None: ...


class Autotuner(Protocol):
    """A kernel of torch's inductor."""

    @property
    def compile_results(self) -> Sequence[Any]: ...


Code = (
    str | bytes | os.PathLike[str] | tuple[str, Any] | Compiled | Dispatcher | RawCuda | Autotuner
)
"""PTX or CUDA text, the path of a file, what ``numba.cuda.compile_ptx`` returns, or a kernel of
Triton, inductor, Numba or CuPy."""

Dimensions = int | Sequence[int]
"""Blocks of a grid or threads of a block: one number, or up to three."""

Blocks = Dimensions | Grid
Threads = Dimensions | None


@dataclass(frozen=True)
class Source:
    """A kernel as requests hold it. ``member`` is ``ptx`` or ``cuda``; ``triton`` is there where a
    compiled kernel tells its launch too."""

    member: str
    text: str
    kernel: str | None = None
    triton: TritonKernel | None = None
    headers: Mapping[str, str] | None = None


def request_of(
    code: Code | None, grid: Dimensions | Grid, block: Dimensions | None, **options: Any
) -> dict[str, Any]:
    """A request's body: code, launch, and ``options``, its other members by their names; what is
    ``None`` is left out.

    ``cuda`` is CUDA source, or the path of a file, in the place of PTX; ``loops`` may be one number
    for all loops; an argument may be an array, which tells its elements. A kernel of Triton tells
    its block, shared memory and name where they are not given; its ``grid`` counts programs, and
    may be a function of its constants and metadata. Raises DataError for what is no kernel,
    LaunchError for a grid or block that nobody tells.
    """
    given = {name: value for name, value in options.items() if value is not None}
    launch = {name: given.pop(name) for name in LaunchRequest.model_fields if name in given}
    arguments = {str(name): argument(value) for name, value in launch.pop("arguments", {}).items()}
    if block is not None:
        launch["block"] = _dimensions(block)
    kernels = sources(code, given.pop("cuda", None))
    triton = kernels[0].triton if kernels else None
    if triton is not None:
        body = triton.request(grid, arguments)
        body["launch"].update(launch)
    else:
        if callable(grid):
            raise LaunchError("only a Triton kernel tells what a grid function asks", field="grid")
        body = {
            **{each.member: each.text for each in kernels},
            "launch": {"grid": _dimensions(grid), "arguments": arguments, **launch},
        }
        if kernels and kernels[0].kernel is not None:
            body["kernel"] = kernels[0].kernel
        if kernels and kernels[0].headers:
            body["headers"] = dict(kernels[0].headers)
    if isinstance(given.get("loops"), int | float):
        given["loops"] = {"default": given["loops"]}
    return {**body, **given}


def _dimensions(size: Any) -> Any:
    """A grid or block as requests hold it; numbers may be NumPy's."""
    return [argument(each) for each in size] if hasattr(size, "__len__") else argument(size)


def argument(value: Any) -> Any:
    """An argument as requests hold it: of an array (PyTorch's, NumPy's, CuPy's) its elements, of a
    number of NumPy's the number."""
    if isinstance(value, Mapping):
        return {name: argument(each) for name, each in value.items()}
    shape = getattr(value, "shape", None)
    if shape is None or not hasattr(value, "dtype"):
        return value
    return {"elements": max(1, prod(int(size) for size in shape))} if len(shape) else value.item()


def sources(code: Code | None, cuda: str | os.PathLike[str] | None = None) -> list[Source]:
    """What ``code`` and ``cuda`` bring, none to two: how many may be is for the request to say.
    Raises DataError for what is no kernel."""
    found = [] if code is None else [source(code)]
    if cuda is not None:
        found.append(replace(_from_text(cuda), member="cuda"))
    return found


def file_name(code: Code | None, cuda: str | os.PathLike[str] | None = None) -> str | None:
    """The name of the file that a kernel is read from, if it is read from one."""
    given = code if code is not None else cuda
    if isinstance(given, os.PathLike):
        return Path(given).name
    path = isinstance(given, str) and "\n" not in given
    return Path(given).name if path and isinstance(given, str) and Path(given).suffix else None


def source(code: Code) -> Source:
    """The text of a kernel and what its object tells of it. Raises DataError for what is none."""
    if isinstance(code, str | bytes | os.PathLike):
        return _from_text(code)
    if isinstance(code, tuple) and len(code) == 2 and isinstance(code[0], str):
        return Source("ptx", code[0])  # numba.cuda.compile_ptx: the text and the type returned
    if isinstance(getattr(code, "asm", None), Mapping):
        return _from_triton(code)
    if hasattr(code, "compile_results"):
        return _from_inductor(code)
    if hasattr(code, "inspect_asm"):
        return _from_numba(code)
    if hasattr(code, "code") and hasattr(code, "file_path"):
        return _from_cupy(code)
    if hasattr(code, "params") and hasattr(code, "arg_names"):
        raise DataError(
            "a @triton.jit function is not compiled yet: put @wattcast.estimate(gpu=...) above it "
            "and launch it, or ask wattcast.rank_triton"
        )
    raise DataError(
        f"{type(code).__name__} is no kernel: give PTX or CUDA text, the path of a file, or a "
        "compiled kernel of Triton, inductor, Numba or CuPy"
    )


# --- text and files ------------------------------------------------------------------------------


def _from_text(given: str | bytes | os.PathLike[str]) -> Source:
    if isinstance(given, bytes):  # as nvrtcGetPTX and Triton's own files hold it
        return _of_kind(_decoded(given, "the text"))
    if not isinstance(given, str):
        return _from_file(Path(given))
    if "\n" in given or re.search(r"[;{]|^\s*(?:\.version|//)", given):
        return _of_kind(given)
    path = Path(given)
    if path.suffix.lower() in (*SUFFIXES, *MACHINE_CODE) or _is_file(path):
        return _from_file(path)
    if not given.strip():
        raise DataError("the kernel is an empty string")
    raise DataError(
        f"{given[:80]!r} is neither an existing file nor PTX or CUDA text: a path ends in "
        f"{', '.join(SUFFIXES)} or is there"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte
        return False


def _from_file(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix in MACHINE_CODE:
        raise DataError(
            f"{path} is machine code, not PTX: cuobjdump --dump-ptx shows the PTX it holds"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", file=str(path)) from error
    text = _decoded(data, str(path))
    if suffix in CUDA_SUFFIXES:
        from wattcast.features.cuda.own_files import with_headers

        try:
            text, headers = with_headers(path)
        except ValueError as error:
            raise DataError(str(error), file=str(path)) from error
        return Source("cuda", text, headers=headers)
    return Source("ptx", text) if suffix == ".ptx" else _of_kind(text)


def _decoded(data: bytes, name: str) -> str:
    if not data.strip():
        raise DataError(f"{name} is empty: give PTX or CUDA source")
    try:
        return text_of_file(data)
    except PtxError as error:
        raise DataError(f"{name}: line {error.line} is {error.detail}") from error


def _of_kind(text: str) -> Source:
    """CUDA source where it has a kernel and no ``.version``, which every PTX module begins with."""
    cuda = "__global__" in text and not re.search(r"^\s*\.version\b", text, re.M)
    return Source("cuda" if cuda else "ptx", text)


# --- files of jobs -------------------------------------------------------------------------------


def read_jobs(path: Path) -> dict[str, Any]:
    """The body of a fleet's request from a TOML file. Raises DataError."""
    try:
        body = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", file=str(path)) from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise DataError(f"{path}: not TOML: {error}", file=str(path)) from error
    jobs = body.get("jobs")
    return {**body, "jobs": placed_jobs(jobs, path.parent) if isinstance(jobs, list) else jobs}


def placed_jobs(jobs: Sequence[Any], folder: Path = Path()) -> list[Any]:
    """Jobs of a fleet with their files read: ``file`` of a kernel, and the path of a ``config``.
    What is no job is left to the request to refuse. Raises DataError."""
    return [_job(each, folder) for each in jobs]


def _job(job: Any, folder: Path) -> Any:
    if not isinstance(job, Mapping):
        return job
    kernel, model = job.get("kernel"), job.get("model")
    if isinstance(kernel, Mapping) and isinstance(kernel.get("file"), str | os.PathLike):
        code = _from_file(folder / kernel["file"])
        read = {code.member: code.text, **({"headers": code.headers} if code.headers else {})}
        named = {name: each for name, each in kernel.items() if name != "file"}
        return {**job, "kernel": {**read, **named}}
    if isinstance(model, Mapping) and isinstance(model.get("config"), str | os.PathLike):
        return {**job, "model": {**model, "config": read_config(folder / model["config"])}}
    return job


def read_config(path: Path) -> Any:
    """A language model's ``config.json``, or that of its folder. Raises DataError."""
    try:
        return json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", file=str(path)) from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}", file=str(path)) from error


# --- compiled kernels ----------------------------------------------------------------------------


def _from_triton(kernel: Any) -> Source:
    if "ptx" not in kernel.asm:
        has = ", ".join(sorted(kernel.asm)) or "nothing"
        raise DataError(f"the compiled kernel holds no PTX (it holds {has}): is it for an AMD GPU?")
    if getattr(kernel, "metadata", None) is None:
        return Source("ptx", str(kernel.asm["ptx"]))
    known = compiled(kernel)
    return Source("ptx", known.ptx, known.settings.get("name"), known)


def _statically_launched(kernel: Any, config: Any) -> TritonKernel:
    """A kernel that inductor launches by itself (``StaticallyLaunchedTritonKernel``). It holds
    machine code; its PTX lies in Triton's cache, beside that and under the kernel's hash."""
    places = []
    if getattr(kernel, "cubin_path", None):  # until the kernel is loaded
        places.append(Path(kernel.cubin_path).with_suffix(".ptx"))
    try:
        folder = b32encode(bytes.fromhex(kernel.hash)).decode().rstrip("=")  # Triton's spelling
        cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
        places.append(cache / folder / f"{kernel.name}.ptx")
    except (AttributeError, ValueError):
        pass
    code = next((place for place in places if _is_file(place)), None)
    if code is None:
        raise DataError(
            f"inductor kept only machine code of {getattr(kernel, 'name', 'the kernel')}, and "
            "TRITON_CACHE_DIR does not hold its PTX: set TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER=0 "
            "before it compiles"
        )
    constants = dict(getattr(config, "kwargs", None) or {})
    told = {name: getattr(kernel, name, None) for name in ("name", "num_warps", "shared")}
    told["num_stages"] = getattr(config, "num_stages", None)
    known = {name: value for name, value in told.items() if value is not None}
    fixed = set(getattr(kernel, "full_constexprs", ()))
    names = [n for at, n in enumerate(getattr(kernel, "arg_names", ())) if at not in fixed]
    asked: tuple[str, ...] = ("num_warps", "num_stages")
    options = {name: known[name] for name in asked if name in known}
    registers = getattr(kernel, "n_regs", None)  # told by the driver, once it is loaded
    return TritonKernel(
        code.read_text(encoding="utf-8"),
        {**known, **constants},
        {**constants, **options},
        {name: at for at, name in enumerate(names)},
        registers if isinstance(registers, int) and registers > 0 else None,
    )


def inductor_kernels(autotuner: Any) -> list[TritonKernel]:
    """The kernels that a ``CachingAutotuner`` compiled, one for each configuration; after tuning
    the chosen one alone. Raises DataError where none is compiled."""
    results = list(autotuner.compile_results)
    launchers = list(getattr(autotuner, "launchers", ()))
    if len(launchers) == 1 < len(results):  # tuned: the others are dropped
        chosen = getattr(launchers[0], "config", None)
        results = [one for one in results if getattr(one, "config", None) is chosen] or results
    if not results:
        raise DataError("inductor has not compiled this kernel yet: call its precompile()")
    return [
        compiled(one.kernel)
        if isinstance(getattr(one.kernel, "asm", None), Mapping)
        else _statically_launched(one.kernel, getattr(one, "config", None))
        for one in results
    ]


def _from_inductor(autotuner: Any) -> Source:
    found = inductor_kernels(autotuner)
    if len(found) > 1:
        raise DataError(
            f"inductor compiled {len(found)} configurations of this kernel and chose none yet: "
            "give the kernel of one of its compile_results, or ask wattcast.rank_triton"
        )
    return Source("ptx", found[0].ptx, found[0].settings.get("name"), found[0])


def _from_numba(kernel: Any) -> Source:
    how = "numba.cuda.compile_ptx(kernel.py_func, signature, cc=(8, 0)) compiles without a GPU"
    try:
        found = kernel.inspect_asm()
    except Exception as error:  # Numba asks the driver for the GPU, and raises what it likes
        raise DataError(f"Numba tells no PTX of this kernel ({_first(error)}); {how}") from error
    if isinstance(found, str):
        return Source("ptx", found)
    if len(found) != 1:
        given = ", ".join(str(each) for each in found) or "none yet"
        raise DataError(
            f"the Numba kernel is compiled for {len(found)} signatures ({given}): launch it with "
            f"one, or give kernel.inspect_asm(signature). {how}"
        )
    return Source("ptx", next(iter(found.values())))


def _first(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


_DEFINE = re.compile(r"(?:-D|--define-macro=)\s*(?P<name>\w+)(?:=(?P<value>.*))?")
_HARMLESS = re.compile(r"-?-std=.*|-?-(?:generate-)?line-?info|-?-gpu-architecture=.*|-arch=.*")
"""Options that change nothing of a prediction: it compiles C++17 for the GPU that is asked about,
with line numbers."""


def _from_cupy(kernel: Any) -> Source:
    name = getattr(kernel, "name", None)
    if kernel.code is None:
        if kernel.file_path is None:
            raise DataError(f"this {type(kernel).__name__} has neither code nor a file")
        return replace(_from_file(Path(kernel.file_path)), kernel=name)
    if getattr(kernel, "name_expressions", None):
        raise DataError(
            "kernels from templates (name_expressions) cannot be compiled here: instantiate the "
            "template in the source, or give PTX"
        )
    macros: dict[str, str] = {}
    for option in getattr(kernel, "options", None) or ():
        defined = _DEFINE.fullmatch(option)
        if defined:
            macros[defined["name"]] = defined["value"] or "1"
        elif not _HARMLESS.fullmatch(option):
            raise DataError(
                f"the compiler option {option} of this {type(kernel).__name__} cannot be passed "
                f"on: compile to PTX with it (nvcc -ptx {option}) and give that"
            )
    lines = [f"#define {macro} {value}" for macro, value in macros.items()]
    ahead = "\n".join([*lines, "#line 1", ""]) if lines else ""
    return Source("cuda", ahead + kernel.code, name)
