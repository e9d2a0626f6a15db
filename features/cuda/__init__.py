"""NVIDIA's compilers as isolated subprocesses: CUDA source to PTX, PTX to true registers.

They come with the extra ``cuda`` (``pip install 'wattcast[cuda]'``) and need no GPU:

    compile   compile_cuda(source, compute_capability) -> CompiledCuda     NVRTC, else nvcc;
              compile_all: the sources of one author by one process;
              what the text itself tells: includes that are refused, host code
    ptxas     measure_resources(ptx, entry, compute_capability) -> PtxasReport;
              isolation.measuring: the same beside what else is done
    isolation every compiler runs in an empty folder, sees its toolkit and no other file, no network
              and no process, and has limits on time, memory and output; jail, syscalls.toml: how
"""

from wattcast.features.cuda.compile import (
    CompiledCuda,
    CompileError,
    CompilerMissingError,
    compile_all,
    compile_cuda,
)
from wattcast.features.cuda.isolation import PtxasReport, find_ptxas, measure_resources

__all__ = [
    "CompileError", "CompiledCuda", "CompilerMissingError", "PtxasReport", "compile_all",
    "compile_cuda", "find_ptxas", "measure_resources",
]  # fmt: skip
