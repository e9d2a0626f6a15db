"""CUDA source to PTX and PTX to registers through NVIDIA's wheels, without a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.ptx_text import stored_cuda
from tests.fixtures.tables import rows
from tests.needs import needs_nvrtc, needs_ptxas
from tests.wide import wide
from wattcast.features.analysis import analyse
from wattcast.features.cuda import (
    CompileError,
    CompilerMissingError,
    compile_all,
    compile_cuda,
    isolation,
    measure_resources,
)
from wattcast.features.cuda import isolation as ptxas
from wattcast.features.cuda import isolation as toolchain
from wattcast.features.cuda.isolation import (
    PTXAS_READS,
    Finished,
    Limits,
    find_nvcc,
    in_force,
    run_limited,
    shared_libraries,
)
from wattcast.features.cuda.own_files import project_options, with_headers
from wattcast.features.cuda.source import (
    device_code,
    forbidden_include,
    host_code,
    standard_headers,
)
from wattcast.features.errors import GivenUpError, giving_up
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.runs import Runs
from wattcast.features.statics import RegisterEstimate

FIXTURES = Path(__file__).parents[1] / "fixtures" / "cuda"


SAXPY = """#include <cuda_fp16.h>
extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
HOST = """#include <cstdio>
__global__ void fill(int *p) { p[threadIdx.x] = 1; }
int main() {
    int *p; cudaMalloc(&p, 128);
    fill<<<1, 32>>>(p);
    return cudaDeviceSynchronize();
}
"""


@needs_nvrtc
@pytest.mark.parametrize("capability", [(5, 0), (5, 2), (7, 0), (8, 0), (9, 0), (12, 0)])
def test_device_code_compiles_for_every_generation(capability):
    compiled = compile_cuda(SAXPY, capability)
    assert compiled.compiler == "nvrtc"
    assert compiled.target == capability[0] * 10 + capability[1]
    assert f".target sm_{compiled.target}" in compiled.ptx
    assert ".visible .entry saxpy" in compiled.ptx
    assert ".loc" in compiled.ptx
    assert compiled.diagnostics == ()


@needs_nvrtc
def test_compile_errors_carry_the_compilers_lines():
    with pytest.raises(CompileError) as caught:
        compile_cuda("__global__ void f(int *p) {\n  p[0] = missing;\n  q = 1;\n}\n", (7, 0))
    assert caught.value.context["line"] == 2
    assert [error["line"] for error in caught.value.context["errors"]] == [2, 3]
    assert "missing" in caught.value.detail


@needs_nvrtc
def test_sources_that_are_compiled_together_are_as_each_alone(monkeypatch: pytest.MonkeyPatch):
    """Good ones, an error, a warning, host code, a forbidden include, a NUL byte."""
    sources = [
        SAXPY,
        "\nbroken {",
        SAXPY.replace("int i", "int unused; int i"),
        HOST,
        '#include "/etc/passwd"',
        SAXPY + "\0",
        SAXPY.replace("saxpy", "axpy"),
    ]

    def alone(source: str) -> object:
        try:
            return compile_cuda(source, (8, 0))
        except CompileError as error:
            return error.detail, error.context

    each = [alone(source) for source in sources]
    together = [
        (one.detail, one.context) if isinstance(one, CompileError) else one
        for one in compile_all(sources, (8, 0))
    ]
    assert together == each
    # Where the process ends early, what is left is compiled alone.
    ran = []

    def ending(command, folder, limits, readable=()):
        ran.append(command)
        done = run_limited(command, folder, limits, readable)
        if "," in command[2]:
            (folder / "2" / "code").unlink()
        return done

    monkeypatch.setattr("wattcast.features.cuda.compile.run_limited", ending)
    good = compile_all([SAXPY] * 4, (8, 0))
    assert good == [each[0]] * 4
    assert len(ran) == 3


@pytest.fixture
def wheels_only(monkeypatch):
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)


WHOLE = FIXTURES / "whole_file.cu"
WITH_MAIN = (FIXTURES / "with_main.cu").read_text()
OWN = {"own.h": (FIXTURES / "own.h").read_text()}


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_a_whole_file_with_its_headers_compiles_without_nvcc():
    compiled = compile_cuda(WHOLE.read_text(), (8, 0), headers=OWN)
    assert compiled.compiler == "nvrtc"
    assert re.findall(r"\.entry (\w+)", compiled.ptx) == [
        "halve",
        compiled.instances["scale<128, float>"],  # as main launches it
    ]
    assert [note.code for note in compiled.diagnostics] == ["header_missing"]
    assert "not_given.h" in compiled.diagnostics[0].detail
    # Lines are those of the file.
    line = 1 + WHOLE.read_text().split("\n").index("  if (i < n) p[i] = tools::half_of(p[i]);")
    assert re.search(rf"\.loc\s+1 {line} ", compiled.ptx)


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_an_instance_of_a_template_is_compiled_by_name():
    text = "template <int B, typename T> __global__ void f(T *p) { p[threadIdx.x] = B; }"
    assert ".entry" not in compile_cuda(text, (8, 0)).ptx
    compiled = compile_cuda(text, (8, 0), instances=["f<32, float>"])
    assert (
        read_module(compiled.ptx).kernel("f<32, float>").name == compiled.instances["f<32, float>"]
    )


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
@pytest.mark.parametrize("before", ["", "typedef unsigned int uint;\n", "#define M_PI 3.14\n"])
def test_what_nvcc_knows_without_an_include_is_known(before: str):
    text = "#include <math.h> // for fmaf\n#include <float.h>  /* FLT_MAX */\n" + before
    text += "__global__ void f(uint *p, ushort s, ulong l) {\n"
    text += "  register float x = FLT_MAX * M_PI; p[threadIdx.x] = x * s + l; }\n"
    compiled = compile_cuda(text, (8, 0))
    assert re.search(rf"\.loc\s+\d+ {text.count(chr(10))} ", compiled.ptx)
    assert compile_all([text, SAXPY], (8, 0))[0] == compiled


UNMARKED = stored_cuda("unmarked")


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_members_that_nobody_marks_and_what_headers_of_the_host_bring_are_known():
    """As nvcc has them: ``constexpr`` functions and members without ``__device__``, ``std::max``
    without ``<algorithm>``, a keyword of GCC."""
    found = compile_cuda(UNMARKED, (8, 0)).ptx
    assert found.count("ld.global.f32") >= 2
    assert "cvt.rmi.f32.f32" in found  # not by doubles
    with pytest.raises(CompileError, match='namespace "std" has no member "most"'):
        compile_cuda(UNMARKED.replace("std::max", "std::most"), (8, 0))


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_functions_of_cmath_are_the_devices():
    calls = "x = std::round(x); x += std::fmod(x, 2.0f) + std::trunc(x); y = std::fma(y, y, y);"
    text = "#include <cmath>\n__global__ void f(float *a, double *b) { "
    text += f"float x = *a; double y = *b; {calls} *a = x; *b = y; }}\nint main() {{}}\n"
    found = compile_cuda(text, (8, 0)).ptx
    assert found.count("fma.rn.f64") == 1
    assert "cvt.f64.f32" not in found


@needs_nvrtc
@pytest.mark.parametrize("include", ['"kernel.cu"', "<kernel.cu>"])
def test_a_header_may_be_called_as_the_source_is_here(include: str):
    main = f"#include {include}\nint main() {{ scale<<<1, 32>>>(nullptr); }}\n"
    kernel = "__global__ void scale(float *out) { out[threadIdx.x] *= 2.0f; }\n"
    assert "st.global.f32" in compile_cuda(main, (8, 0), headers={"kernel.cu": kernel}).ptx


OLD_TEXTURES = """
static texture<uchar4, 1, cudaReadModeNormalizedFloat> colours;
texture<float, 2> image;
__global__ void blend(float *out) {
  out[threadIdx.x] = tex2D(image, threadIdx.x, blockIdx.x) * tex1Dfetch(colours, threadIdx.x).w;
}
"""


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_texture_references_of_older_sources_are_read_as_texture_objects():
    compiled = compile_cuda(OLD_TEXTURES, (7, 0))
    fetches = re.findall(r"\t(tex\.\S+)", compiled.ptx)
    assert sorted(fetches) == ["tex.1d.v4.f32.s32", "tex.2d.v4.f32.f32"]
    assert "ld.const" in compiled.ptx  # the objects, as references were
    assert re.search(r"\.loc\s+\d+ 5 ", compiled.ptx)  # lines are those of the file


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_macros_defined_twice_and_aligned_types_are_kept_beside_host_code():
    text = stored_cuda("macros_defined_twice")
    assert "ld.global.v4.f32" in compile_cuda(text, (8, 0), options=["-DINLINED"]).ptx


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_an_error_in_device_code_names_its_line_beside_host_code():
    text = WITH_MAIN.replace("tools::half_of(p[i]);", "tools::half_of(q[i]);")
    with pytest.raises(CompileError) as caught:
        compile_cuda(text, (8, 0), headers=OWN)
    assert caught.value.context["line"] == 1 + text.split("\n").index(
        "  if (i < n) p[i] = tools::half_of(q[i]);"
    )
    assert "q" in caught.value.detail
    assert "taken as empty: not_given.h" in caught.value.detail
    with pytest.raises(CompileError) as caught:
        compile_cuda(WITH_MAIN, (8, 0), headers={"own.h": OWN["own.h"] + "__device__ Bad x;"})
    assert caught.value.detail.startswith("own.h, line ")


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
@pytest.mark.parametrize("names", [["cassert"], ["cuda.h"], sorted(standard_headers())])
def test_standard_headers_compile(names):
    text = "".join(f"#include <{name}>\n" for name in names)
    text += "__global__ void f(int *p) { p[0] = 1; }\nint main() {}\n"
    assert ".entry" in compile_cuda(text, (8, 0)).ptx


@needs_nvrtc
def test_options_change_the_code():
    text = "__global__ void f(float *p) { p[0] = sqrtf(p[1]) * N; }"
    plain = compile_cuda(text, (8, 0), options=["-D N=3", "-std=c++20"]).ptx
    fast = compile_cuda(text, (8, 0), options=["-DN=3", "--use_fast_math"]).ptx
    assert "sqrt.rn.f32" in plain
    assert "sqrt.approx.ftz.f32" in fast


@pytest.mark.parametrize(
    "option",
    [
        "-include /etc/passwd",
        "-I/etc",
        "--include-path=/",
        "-DX=$(id)",
        "@file",
        "-o x",
        "-DX=a\nb",
    ],
)
def test_options_that_reach_files_are_refused(option):
    with pytest.raises(CompileError, match="is not taken"):
        compile_cuda(SAXPY, (8, 0), options=[option])


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../own.h",
        "a//b.h",
        "a/../b.h",
        "",
        " ",
        "a\nb",
        ".",
        "a/.",
        "/".join("a" * 40),
    ],
)
def test_header_names_are_plain(name):
    with pytest.raises(CompileError, match="no plain relative header name"):
        compile_cuda(SAXPY, (8, 0), headers={name: ""})


def test_a_header_is_no_folder_of_another():
    with pytest.raises(CompileError, match="is a header and the folder of"):
        compile_cuda(SAXPY, (8, 0), headers={"a": "", "a/b": ""})


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_headers_beside_a_file_are_found(tmp_path):
    for name, text in {
        "app/main.cu": '#include "own.h"\n#include "../common/book.h"\n#include <lib/x.cuh>\n'
        "__global__ void f(int *p) { p[0] = own(book(x(N))); }\nint main() { return 0; }\n",
        "app/own.h": '#include "deep/er.h"\n__device__ int own(int i) { return er(i); }\n',
        "app/deep/er.h": '#pragma once\n#include "est.h"\n'
        "__device__ int er(int i) { return i + EST; }\n",
        "app/deep/est.h": '#pragma once\n#include "er.h"\n#define EST 3\n',
        "common/book.h": '#include "page.h"\n__device__ int book(int i) { return page(i); }\n',
        "common/page.h": "__device__ int page(int i) { return 2 * i; }\n",
        "inc/lib/x.cuh": "#define N 7\n__device__ int x(int i) { return i; }\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace('#include "deep', '#pragma once\n#include "deep'))
    text, headers = with_headers(tmp_path / "app" / "main.cu", [tmp_path / "inc"])
    assert sorted(headers) == [
        "deep/er.h", "deep/est.h", "lib/x.cuh", "own.h", "up/common/book.h", "up/common/page.h",
    ]  # fmt: skip
    assert text.count("\n") == 5
    assert ".entry" in compile_cuda(text, (8, 0), headers=headers).ptx


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
@pytest.mark.parametrize(
    ("asked", "kernel"),
    [("part/part.cu", "halve"), ("calls.cu", "elsewhere"), ("deep.cu", "inner")],
)
def test_a_file_is_compiled_in_the_unit_that_holds_what_it_lacks(tmp_path, asked, kernel):
    """Parts that another source includes, and a kernel that is only declared where it is
    launched: of 392 sources of HeCBench, 40 are no translation units of their own."""
    for name, text in {
        "main.cu": '#define N 3\n#include "part/part.cu"\n#include "deep.h"\nint main() {}\n',
        "part/part.cu": "__global__ void halve(int *p) { p[0] = N; }\n",
        "deep.h": '#include "deep.cu"\n',
        "deep.cu": "__global__ void inner(int *p) { p[1] = N; }\n",
        "calls.cu": '#include "calls.h"\nint main() { elsewhere<<<1, 32>>>(0); }\n',
        "calls.h": "__global__ void elsewhere(int *p);\n",
        "other.cu": '#include "calls.h"\n__global__ void elsewhere(int *p) { p[0] = 1; }\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    text, headers = with_headers(tmp_path / asked)
    made = compile_cuda(text, (8, 0), headers=headers)
    kernels = [each.demangled.partition("(")[0] for each in read_module(made.ptx).kernels]
    assert kernel in kernels
    assert [note.code for note in made.diagnostics] == ["other_unit_compiled"]


@pytest.mark.parametrize("locked", ["x/other.cu", "."])
def test_what_is_not_ours_to_read_beside_a_file_is_left_alone(tmp_path, monkeypatch, locked):
    (tmp_path / "x").mkdir()
    for name in ("own.cu", "other.cu"):
        (tmp_path / "x" / name).write_text("__global__ void k() {}\n")
    for method in ("iterdir", "read_text"):
        allowed = getattr(Path, method)

        def asked(path: Path, *args: Any, allowed: Any = allowed, **kwargs: Any) -> Any:
            if path == tmp_path / locked:
                raise PermissionError(13, "Permission denied", str(path))
            return allowed(path, *args, **kwargs)

        monkeypatch.setattr(Path, method, asked)
    assert with_headers(tmp_path / "x" / "own.cu") == ("__global__ void k() {}\n", {})


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
def test_instances_are_those_that_host_templates_launch():
    text = """template <class T, int n> __global__ void k(T *a) { atomicAnd(a, n); }
template <class T> void run(T *a) { constexpr int n = 4; k<T, n><<<1, 32>>>(a); }
template <class U> void outer(U *a) { run<U>(a); k<Absent, 1><<<1, 1>>>(a); }
int main() { outer<int>(0); run<unsigned>(0); }
"""
    assert {*compile_cuda(text, (8, 0)).instances} == {"k<int, 4>", "k<unsigned, 4>"}


def test_instances_of_hostile_templates_stay_few():
    run = "template <class T, = 3> void run(T *a) { k<T, T><<<1, 1>>>(a); }\n"
    calls = "".join(f"run<{'A' * 40}{at}>(0);" for at in range(5000))
    launched = device_code(f"{run * 2000} void main() {{ {calls} }}").launched
    assert 0 < len(launched) <= 64
    assert max(map(len, launched)) < 300


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
@pytest.mark.parametrize(
    "text",
    [
        "void host() {\n#if 1\n#define N 3\n}\n#else\n/*\n#endif\n*/ }\n#endif\n"
        "__global__ void f(int *p) { p[0] = N; }\nint main() {}\n",
        "#include <cstdint>\n__global__ void f(int32_t *p) { p[0] = 1; }\n",
        "struct V { int a, b; };\n"
        "__global__ void f(V *p) { V v[1] = {{.a = 1, .b = 2}}; *p = v[0]; }\nint main() {}\n",
        "#include <thrust/complex.h>\n"
        "__global__ void f(thrust::complex<float> *p) { p[0] *= p[1]; }\nint main() {}\n",
        '#include "../absent.h"\n__global__ void f(int *p) { p[0] = 1; }\nint main() {}\n',
    ],
    ids=["conditions in host functions", "device code alone", "names", "thrust", "above"],
)
def test_what_nvcc_takes_is_taken(text, tmp_path):
    (tmp_path / "x.cu").write_text(text)
    source, headers = with_headers(tmp_path / "x.cu")
    assert ".entry" in compile_cuda(source, (8, 0), headers=headers).ptx


@needs_nvrtc
@pytest.mark.usefixtures("wheels_only")
@pytest.mark.skipif(
    not any(folder.parent.name == "curand" for folder in toolchain.include_folders()),
    reason="the extra cuda is installed without cuRAND",
)
def test_random_numbers_of_curand_are_device_code():
    text = stored_cuda("random_numbers")
    assert (
        compile_cuda(text, (8, 0)).ptx.count("mul.hi.u32") >= 18
    )  # ten rounds of Philox, two each, some of constants


def test_options_of_a_build_are_taken_over(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "build").mkdir()
    kernel = tmp_path / "src" / "k.cu"
    kernel.write_text("")
    command = "nvcc -DN=3 -D M=4 -I../inc -isystem /opt/x -std=c++17 -O3 --use_fast_math -c k.cu"
    rows = [
        {"directory": "/elsewhere", "file": "a.cu", "command": "nvcc"},
        {"directory": str(tmp_path / "build"), "file": "../src/k.cu", "command": command},
    ]
    (tmp_path / "build" / "compile_commands.json").write_text(json.dumps(rows))
    options, folders = project_options(tmp_path / "build", kernel)
    assert options == ["-DN=3", "-DM=4", "-std=c++17", "--use_fast_math"]
    assert folders == [tmp_path / "build" / "../inc", Path("/opt/x")]
    with pytest.raises(ValueError, match="none of the files"):
        project_options(tmp_path / "build", tmp_path / "src" / "other.cu")


def test_too_many_headers_are_refused(tmp_path):
    for number in range(70):
        (tmp_path / f"h{number}.h").write_text("")
    source = tmp_path / "k.cu"
    source.write_text("".join(f'#include "h{number}.h"\n' for number in range(70)))
    with pytest.raises(ValueError, match="more than 64 headers"):
        with_headers(source)


@given(st.lists(st.sampled_from([*"{}()[];<>#\n \"'/*", "__global__ ", "void f", "namespace a ",
    "struct S ", "template <int N> ", "extern \"C\" ", "= ", "int x", "#define X ", "\\\n"]),
    max_size=60))  # fmt: skip
def test_device_code_keeps_lines_and_kernels_of_any_text(parts):
    text = "".join(parts)
    cut = device_code(text).text
    assert cut.count("\n") == text.count("\n")
    assert len(cut) == len(text)


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc on this machine")
def test_a_whole_file_with_host_code_goes_through_nvcc():
    compiled = compile_cuda(HOST, (8, 0))
    assert compiled.compiler == "nvcc"
    assert "fill" in compiled.ptx


def test_without_any_compiler_the_error_says_how_to_install_one(monkeypatch):
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "find_nvrtc", lambda: None)
    with pytest.raises(CompilerMissingError, match=r"wattcast\[cuda\]"):
        compile_cuda(SAXPY, (8, 0))


@pytest.mark.parametrize(
    ("source", "line"),
    rows("mistakes", "includes"),
)
def test_no_include_may_reach_a_file_of_the_machine(source, line):
    found = forbidden_include(source)
    assert found is not None
    assert found.line == line
    with pytest.raises(CompileError, match="refused"):
        compile_cuda(source, (8, 0))


def test_ordinary_includes_pass():
    source = '#include <cuda_fp16.h>\n  #  include "mma.h"\n// #include "/etc/passwd"\n'
    assert forbidden_include(source) is None


@pytest.mark.parametrize(
    ("source", "is_there"),
    [
        ("__global__ void f();\nvoid g() { f<<<1, 1>>>(); }", True),
        ("\n\nint main(void) { return 0; }", True),
        ("#include <iostream>", True),
        ("void f(float *p) { cudaMallocHost(&p, 4); }", True),
        ("// int main() is not here\n__device__ int x;", False),
        ('__device__ const char *s = "<<<";', False),
    ],
)
def test_host_code_is_found_outside_comments_and_strings(source, is_there):
    assert host_code(source) is is_there


@needs_nvrtc
def test_a_compiler_that_the_machine_holds_up_is_given_up():
    with pytest.raises(GivenUpError, match="6e-09 s"):
        compile_cuda(SAXPY, (8, 0), limits=Limits(seconds=1e-9))


@needs_nvrtc
def test_a_compiler_that_needs_too_much_time_is_stopped(monkeypatch: pytest.MonkeyPatch):
    """Its own time, however long that takes."""
    monkeypatch.setattr(isolation, "CLOCK_FACTOR", 100.0)
    body = "".join(f" x = x * {i}.5f + sinf(x) / (x + {i});\n" for i in range(20_000))
    with pytest.raises(CompileError, match="did not finish in 1 s of CPU time"):
        compile_cuda(
            f"__global__ void f(float *p) {{ float x = *p;\n{body} *p = x; }}", (8, 0),
            limits=Limits(seconds=1),
        )  # fmt: skip


@needs_nvrtc
def test_a_compiler_that_needs_too_much_memory_is_stopped():
    with pytest.raises(CompileError):
        compile_cuda(SAXPY, (8, 0), limits=Limits(memory_bytes=64 << 20))


def run_tool(tool: str, *arguments: str, folder: Path, seconds: float = 10) -> Finished:
    """A tool of the machine, run as a compiler is."""
    program = Path(tool)
    readable = (program, *shared_libraries(program.resolve()))
    return run_limited([tool, *arguments], folder, Limits(seconds=seconds), readable)


def test_a_limited_run_gets_none_of_our_environment(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WATTCAST_API_SECRET", "hunter2")
    done = run_tool("/usr/bin/env", folder=tmp_path)
    assert done.code == 0
    assert "hunter2" not in done.stdout


def test_what_stands_ready_is_started_once_and_again_where_somebody_ended_it(tmp_path: Path):
    true = partial(run_tool, "/bin/true", folder=tmp_path)
    assert true().code == 0
    (ready,) = isolation._ready
    assert true().code == 0
    assert isolation._ready == [ready]
    ready._process.kill()
    ready._process.wait()
    assert true().code == 0
    assert isolation._ready != [ready]


def test_a_process_that_was_forked_has_its_own_and_leaves_ours(tmp_path: Path):
    script = f"""
import os
from pathlib import Path
from wattcast.features.cuda import isolation
def ran():
    true = Path("/bin/true").resolve()
    readable = (true, *isolation.shared_libraries(true))
    folder, limits = Path({str(tmp_path)!r}), isolation.Limits()
    return isolation.run_limited([str(true)], folder, limits, readable).code == 0
assert ran()
ours = isolation._ready[0]._process
if (child := os.fork()) == 0:
    assert not isolation._ready
    os._exit(not ran() or isolation._ready[0]._process is ours)
assert os.waitpid(child, 0)[1] == 0
assert ran() and isolation._ready[0]._process is ours and ours.poll() is None
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_a_limited_run_cannot_leave_children_behind(tmp_path: Path):
    script = "(while :; do :; done) & while :; do :; done"
    with contextlib.suppress(GivenUpError):  # by the clock, where others take the machine
        assert run_tool("/bin/sh", "-c", script, folder=tmp_path, seconds=0.5).timed_out
    assert become(tmp_path, running=False)


def become(folder: Path, *, running: bool) -> bool:
    """Whether processes of a folder run, or none, within a moment: they are killed at once, and
    take one to end."""
    until = time.monotonic() + 20
    while (as_asked := bool(of_folder(folder)) == running) is False and time.monotonic() < until:
        time.sleep(0.05)
    return as_asked


def of_folder(folder: Path) -> list[str]:
    """Processes whose environment names a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return [name for name in found if name != str(os.getpid())]


def test_a_run_whose_request_is_given_up_ends(tmp_path: Path):
    with pytest.raises(GivenUpError), giving_up(seconds=0.2):
        run_tool("/bin/sh", "-c", "while :; do :; done", folder=tmp_path, seconds=60)


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_nobody_waits_for_ends(tmp_path: Path, begun: bool):
    """Whether or not it has begun when what is beside it ends."""
    shell, endless = Path("/bin/sh"), "echo > begun; while :; do :; done"
    readable, limits = (shell, *shared_libraries(shell.resolve())), Limits(seconds=60)
    with isolation.running([str(shell), "-c", endless], tmp_path, limits, readable):
        while begun and not (tmp_path / "begun").exists():
            time.sleep(0.01)
    time.sleep(0.5)  # one that begins all the same takes a moment
    assert become(tmp_path, running=False)


@pytest.mark.skipif(not in_force(), reason="this kernel isolates no compiler")
def test_a_limited_run_sees_its_folder_and_nothing_else(tmp_path: Path):
    folder = tmp_path / "own"
    folder.mkdir()
    (tmp_path / "canary").write_text("hunter2")
    (folder / "mine").write_text("mine")
    script = (
        f"while read line; do echo $line; done < mine; echo made > new; "
        f"read line < {tmp_path}/canary; echo $line; echo over > {tmp_path}/canary; "
        f"test -e {tmp_path}/canary && echo there; test -e /proc/1 && echo proc; "
        f"kill -9 {os.getpid()} && echo killed; echo null > /dev/null && echo end"
    )
    done = run_tool("/bin/sh", "-c", script, folder=folder)
    assert done.stdout.split() == ["mine", "end"]
    assert (folder / "new").read_text() == "made\n"
    assert (tmp_path / "canary").read_text() == "hunter2"


def test_the_numbers_of_system_calls_are_those_of_the_headers():
    """Where the kernel's headers for this architecture are installed."""
    machine = platform.machine()
    headers = [
        Path(f"/usr/include/{machine}-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm/unistd_64.h"),
    ]
    header = next((path for path in headers if path.is_file()), None)
    if machine != "x86_64" or header is None:
        pytest.skip("no kernel headers for x86_64")
    found = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", header.read_text(), re.M))
    calls = isolation.system_calls().x86_64
    listed = {
        **calls.denied,
        **calls.unknown,
        "clone": calls.clone,
        "prlimit64": calls.prlimit,
        "pivot_root": calls.pivot_root,
        "seccomp": calls.seccomp,
    }
    newer = {"fchmodat2"}  # Linux 6.6
    known = {name: number for name, number in listed.items() if name in found}
    assert set(listed) - set(known) <= newer
    assert known == {name: int(found[name]) for name in known}


@needs_ptxas
def test_ptxas_tells_what_a_cap_of_registers_spills():
    ptx = wide(40)
    free = measure_resources(ptx, "wide", (7, 0))
    capped = measure_resources(ptx, "wide", (7, 0), most_registers=32)
    assert free is not None
    assert capped is not None
    assert free.registers_per_thread > capped.registers_per_thread == 32
    assert not free.spills
    assert capped.spills
    assert capped.spill_store_bytes >= 4 * 8  # at least the 40 values less 32 registers
    assert capped.spill_load_bytes >= capped.spill_store_bytes


@needs_ptxas
def test_ptx_of_which_only_the_version_is_newer_is_assembled_as_the_newest_that_is_read():
    ptx = wide(40)
    known = measure_resources(ptx, "wide", (7, 0))
    assert known is not None
    assert not known.lowered
    (version,) = re.findall(r"^\.version .*$", ptx, re.M)
    reads = ".".join(map(str, PTXAS_READS))
    assert measure_resources(ptx.replace(version, f".version {reads}"), "wide", (7, 0)) == known
    for newer in ("8.9", "9.0", "9.1", "10.0"):
        report = measure_resources(ptx.replace(version, f".version {newer}"), "wide", (7, 0))
        assert report == replace(known, lowered=True)
    analysis = analyse(
        read_module(ptx.replace(version, ".version 9.0")), "wide", Launch.of((8,), (32,)),
        load_gpu("tesla-v100"), ptxas=True,
    )  # fmt: skip
    assert analysis.registers.how == "ptxas"
    (told,) = [each for each in analysis.diagnostics if each.code == "ptx_version_lowered"]
    for said in (f"{known.registers_per_thread} registers", "PTX 9.0", f"PTX {reads}"):
        assert said in told.detail


@needs_ptxas
@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (".target sm_70", ".target sm_88"),  # came with PTX 9.0
        (".target sm_70", ".target sm_999"),
        ("ret;", "newer.instruction; ret;"),
        (".version 9.0", f".version {'9' * 5000}.0"),
        (".version 9.0", ".version"),
    ],
)
def test_ptx_that_ptxas_refuses_gives_no_report(written: str, instead: str):
    ptx = re.sub(r"(?m)^\.version .*$", ".version 9.0", wide(40))
    assert written in ptx
    assert measure_resources(ptx, "wide", (7, 0)) is not None
    assert measure_resources(ptx.replace(written, instead), "wide", (7, 0)) is None


def slow(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Path:
    """A tool in place of ptxas that works on and on, and may do so for some seconds."""
    tool = folder / "ptxas"
    tool.write_text("#!/bin/sh\nwhile :; do :; done\n")
    tool.chmod(0o755)
    shell = Path("/bin/sh")
    files = (tool, shell, *shared_libraries(shell.resolve()))
    monkeypatch.setattr(ptxas, "ptxas_files", lambda _: files)
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: tool)
    monkeypatch.setattr(ptxas, "LIMITS", Limits(seconds=seconds))
    return tool


@needs_ptxas
@pytest.mark.parametrize(("seconds", "factor"), [(60.0, 0.005), (1.0, 100.0)])
def test_a_kernel_has_the_registers_of_ptxas_or_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, factor: float
):
    """Held up by others, or too slow by itself: never those of liveness instead."""
    module, launch = read_module(wide(40)), Launch.of((8,), (32,))
    gpu = load_gpu("tesla-v100")

    def asked() -> RegisterEstimate:
        return analyse(module, "wide", launch, gpu, ptxas=True).registers

    with monkeypatch.context() as held_up:
        slow(tmp_path, held_up, seconds)
        held_up.setattr(isolation, "CLOCK_FACTOR", factor)
        for _ in range(2):  # it is not kept that there was no answer
            with pytest.raises(GivenUpError):
                asked()
    assert asked().how == "ptxas"


@needs_ptxas
def test_a_launch_is_looked_at_while_ptxas_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Here it runs until that is done; and what is given up meanwhile leaves no compiler."""
    module, launch = read_module(wide(40)), Launch.of((8,), (32,))
    slow(tmp_path, monkeypatch, 60)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def executed(runs: Runs) -> NoReturn:
        assert become(tmp_path, running=True)
        raise GivenUpError("looked at")

    monkeypatch.setattr(Runs, "all_known", False)
    monkeypatch.setattr(Runs, "executed", property(executed))
    with pytest.raises(GivenUpError, match="looked at"):
        analyse(module, "wide", launch, load_gpu("tesla-v100"), ptxas=True, ahead=True)
    assert become(tmp_path, running=False)
