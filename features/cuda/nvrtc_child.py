"""Compile CUDA files with NVRTC; ``jail.py`` loads this script and then closes the doors.

usage: nvrtc_child.py LIBRARY SOURCE[,SOURCE...] PTX_OUT [OPTION ...]
Prints the compiler's log; exit code 0 with the PTX written, 1 on compile errors, 2 otherwise. Of
several sources, each in a folder of its own, PTX_OUT, ``log`` and ``code`` are written beside each.
The option --instance=EXPRESSION instantiates a template; ``names`` beside the source says under
which names (NVRTC user guide, section 4, "Accessing lowered names").
Uses the standard library only, through NVRTC's C interface (NVRTC user guide, section 3).
"""

import ctypes
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

NVRTC_SUCCESS = 0
NVRTC_ERROR_COMPILATION = 6
INSTANCE = "--instance="


def prepare(arguments: list[str]) -> Callable[[], int]:
    """Load the library; the answer compiles and returns the exit code."""
    library, source, out, *options = arguments
    nvrtc = ctypes.CDLL(library)
    # NVRTC opens these by itself later, when their own libraries are out of reach.
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))
    paths = [Path(each) for each in source.split(",")]
    if len(paths) > 1:
        return lambda: _compile_all(nvrtc, paths, out, options)
    return lambda: _compile(nvrtc, paths[0], Path(out), options)


def _compile_all(nvrtc: ctypes.CDLL, sources: list[Path], out: str, options: list[str]) -> int:
    for source in sources:
        with (
            source.with_name("log").open("w", encoding="utf-8") as log,
            redirect_stdout(log),
            redirect_stderr(log),
        ):
            code = _compile(nvrtc, source, source.with_name(out), options)
        source.with_name("code").write_text(str(code))
    return 0


def _compile(nvrtc: ctypes.CDLL, source: Path, out: Path, options: list[str]) -> int:
    program = ctypes.c_void_p()
    text = source.read_bytes()
    name = source.name.encode()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None)
    if status != NVRTC_SUCCESS:
        print(f"NVRTC could not create the program (status {status})", file=sys.stderr)
        return 2
    instances = [each[len(INSTANCE) :].encode() for each in options if each.startswith(INSTANCE)]
    for expression in instances:
        nvrtc.nvrtcAddNameExpression(program, expression)
    encoded = [option.encode() for option in options if not option.startswith(INSTANCE)]
    status = nvrtc.nvrtcCompileProgram(
        program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
    )
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, log)
    print(log.value.decode("utf-8", "replace"))
    if status == NVRTC_ERROR_COMPILATION:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        return 1
    if status != NVRTC_SUCCESS:
        print(f"NVRTC failed (status {status})", file=sys.stderr)
        return 2
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    lowered = ctypes.c_char_p()
    with source.with_name("names").open("wb") as names:
        for expression in instances:
            nvrtc.nvrtcGetLoweredName(program, expression, ctypes.byref(lowered))
            names.write(expression + b"\t" + (lowered.value or b"") + b"\n")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    out.write_bytes(ptx.value)
    return 0
