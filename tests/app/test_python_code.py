"""What the Python functions take for a kernel: text, paths, and kernels of other libraries.

Stand-ins have the attributes that the libraries document, no more; where a library is installed, it
is asked itself (Numba compiles without a GPU).
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wattcast
from tests.app.test_rank_triton import LARGE, PTX, SIDE, SIZES, SMALL, kernel_object, programs
from tests.needs import needs_nvrtc
from wattcast.app.python.code import source
from wattcast.features.errors import DataError, LaunchError

DEMO = Path("app/demo/vector_add.ptx")
LAUNCH: dict[str, Any] = {"gpu": "v100", "grid": 4096, "block": 256, "registry": False}
CUDA = """
extern "C" __global__ void scale(float *data) {
  data[blockIdx.x * blockDim.x + threadIdx.x] *= FACTOR;
}
"""


def joules(code: Any, **more: Any) -> float:
    answer = wattcast.predict(code, **{**LAUNCH, **more})
    assert answer.energy is not None
    return answer.energy.joules


def test_a_path_may_be_a_string_a_path_or_the_text_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DEMO.read_text()
    (tmp_path / "kernel.txt").write_text(text)
    expected = joules(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.ptx").write_text("\ufeff" + text)
    for code in ("kernel.ptx", "kernel.txt", Path("kernel.ptx"), text.encode(), text.strip()):
        assert joules(code) == expected


def test_arrays_tell_their_elements_and_numbers_of_numpy_are_numbers() -> None:
    count = 1 << 16
    hints = {str(at): {"elements": count} for at in range(3)}
    arrays = {str(at): np.zeros((256, 256), np.float32) for at in range(3)}
    expected = joules(DEMO, arguments={**hints, "3": count})
    assert joules(DEMO, arguments={**arrays, "3": np.int64(count)}) == expected
    assert joules(DEMO, arguments={**hints, "3": 1}) != expected
    by_place = {int(at): hint for at, hint in hints.items()}
    assert joules(DEMO, arguments={**by_place, 3: count}) == expected
    grid, block = np.int64(LAUNCH["grid"]), np.array([LAUNCH["block"], 1])
    assert joules(DEMO, arguments={**hints, "3": count}, grid=grid, block=block) == expected


def test_one_line_of_ptx_is_text() -> None:
    one = " ".join(
        [".version 7.0 .target sm_70 .address_size 64 .visible .entry f() { .reg .f32 %f1;",
         "mov.f32 %f1, 0f3F800000; ret; }"]
    )  # fmt: skip
    assert source(one).text == one


@needs_nvrtc
def test_cuda_source_is_known_by_its_file_or_its_text(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(CUDA.replace("FACTOR", "3.0f"))
    expected = joules(None, cuda=path.read_text())
    for code in (str(path), path, path.read_text()):
        assert joules(code) == expected
    assert joules(None, cuda=str(path)) == expected


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("kernel", r"'kernel' is neither an existing file nor PTX or CUDA text"),
        ("nowhere.ptx", "nowhere.ptx: No such file"),
        (Path("nowhere.cu"), "nowhere.cu: No such file"),
        ("kernel.cubin", "machine code, not PTX: cuobjdump --dump-ptx"),
        ("", "empty string"),
        ("x" * 5000, "neither an existing file"),
        (7, "int is no kernel: give PTX"),
        (b"\x7fELF\0\n.version", "the text: line 1 is no text but binary"),
        (SimpleNamespace(asm={"hsaco": b"", "amdgcn": ""}), "holds no PTX .it holds amdgcn, hsaco"),
        (SimpleNamespace(params=[], arg_names=[]), "put @wattcast.estimate"),
    ],
)
def test_what_is_no_kernel_is_told_precisely(code: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        wattcast.predict(code, **LAUNCH)


def test_a_block_nobody_gives_is_missed() -> None:
    with pytest.raises(LaunchError, match="block"):
        wattcast.predict(str(DEMO), gpu="v100", grid=64, registry=False)
    with pytest.raises(LaunchError, match="only a Triton kernel"):
        wattcast.predict(str(DEMO), gpu="v100", grid=lambda of: 64, block=64, registry=False)


# --- Triton and inductor -------------------------------------------------------------------------


def test_a_triton_kernel_tells_its_launch() -> None:
    kernel = kernel_object(LARGE)
    found = wattcast.predict(kernel, gpu="a100", grid=programs, arguments=SIZES, registry=False)
    ranked = wattcast.rank_triton(
        kernel, gpu="a100", grid=programs, arguments=SIZES, registry=False
    )
    assert found.energy is not None
    assert found.energy.joules == ranked["configurations"][0]["joules"]
    by_hand = wattcast.predict(
        kernel, gpu="a100", grid=(SIDE // 128) ** 2, block=32 * kernel.metadata.num_warps,
        dynamic_shared_bytes=kernel.metadata.shared, arguments=SIZES, registry=False,
    )  # fmt: skip
    assert by_hand.energy == found.energy


def test_a_folder_of_kernels_may_be_a_string() -> None:
    launch: dict[str, Any] = {
        "gpu": "a100", "grid": programs, "arguments": SIZES, "registry": False,
    }  # fmt: skip
    folder = PTX / "gemm_fp16.sm_80"
    assert wattcast.rank_triton(str(folder), **launch) == wattcast.rank_triton(folder, **launch)
    with pytest.raises(DataError, match="nowhere holds no compiled Triton kernel"):
        wattcast.rank_triton("nowhere", **launch)


def autotuner(*names: str, launchers: tuple[Any, ...] = ()) -> SimpleNamespace:
    """Inductor's ``CachingAutotuner`` after ``precompile``: a result for each configuration."""
    results = [SimpleNamespace(kernel=kernel_object(name), config=object()) for name in names]
    return SimpleNamespace(compile_results=results, launchers=list(launchers))


def test_a_kernel_of_inductor_is_the_one_that_it_chose() -> None:
    launch: dict[str, Any] = {
        "gpu": "a100", "grid": programs, "arguments": SIZES, "registry": False,
    }  # fmt: skip
    large = wattcast.predict(kernel_object(LARGE), **launch)
    assert wattcast.predict(autotuner(LARGE), **launch).energy == large.energy
    several = autotuner(SMALL, LARGE)
    with pytest.raises(DataError, match="compiled 2 configurations"):
        wattcast.predict(several, **launch)
    assert len(wattcast.rank_triton(several, **launch)["configurations"]) == 2
    several.launchers = [SimpleNamespace(config=several.compile_results[1].config)]
    assert wattcast.predict(several, **launch).energy == large.energy
    with pytest.raises(DataError, match=r"call its precompile\(\)"):
        wattcast.predict(autotuner(), **launch)


def test_a_statically_launched_kernel_has_its_ptx_in_tritons_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = kernel_object(LARGE)
    names = told.src.fn.arg_names
    fixed = [at for at, name in enumerate(names) if name not in SIZES]
    # As StaticallyLaunchedTritonKernel has them; loading it forgets cubin_path.
    static = SimpleNamespace(
        name="gemm", num_warps=4, shared=told.metadata.shared, hash="00ff" * 16, n_regs=None,
        cubin_path=str(tmp_path / "a.cubin"), arg_names=names, full_constexprs=fixed,
    )  # fmt: skip
    config = SimpleNamespace(kwargs={"BLOCK_M": 128, "BLOCK_N": 128}, num_stages=4)
    tuned = SimpleNamespace(compile_results=[SimpleNamespace(kernel=static, config=config)])
    launch: dict[str, Any] = {
        "gpu": "a100", "grid": programs, "arguments": SIZES, "registry": False,
    }  # fmt: skip
    expected = wattcast.predict(told, **launch)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with pytest.raises(DataError, match="TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER=0"):
        wattcast.predict(tuned, **launch)
    text = (PTX / f"{LARGE}.ptx").read_text()
    (tmp_path / "a.ptx").write_text(text)
    assert wattcast.predict(tuned, **launch).energy == expected.energy
    (tmp_path / "a.ptx").unlink()
    static.cubin_path = None
    folder = tmp_path / b32encode(bytes.fromhex(static.hash)).decode().rstrip("=")
    folder.mkdir()
    (folder / "gemm.ptx").write_text(text)
    assert wattcast.predict(tuned, **launch).energy == expected.energy
    static.n_regs = 77
    found = wattcast.predict(tuned, **launch)
    assert found.registers is not None
    assert (found.registers.value, found.registers.how) == (77, "given")
    rows = wattcast.rank_triton(tuned, **launch)["configurations"]
    assert [row["configuration"]["BLOCK_M"] for row in rows] == [128]


# --- Numba and CuPy ------------------------------------------------------------------------------


def dispatcher(found: Callable[[], Any]) -> SimpleNamespace:
    return SimpleNamespace(inspect_asm=lambda signature=None: found())


def test_a_numba_kernel_of_one_signature_is_its_ptx() -> None:
    text = DEMO.read_text()
    expected = joules(text)
    assert joules(dispatcher(lambda: {("float32",): text})) == expected
    assert joules((text, None)) == expected  # what compile_ptx returns
    with pytest.raises(DataError, match=r"compiled for 0 signatures .none yet"):
        joules(dispatcher(dict))
    with pytest.raises(DataError, match=r"compiled for 2 signatures .*a, b"):
        joules(dispatcher(lambda: {"a": text, "b": text}))

    def no_driver() -> Any:
        raise RuntimeError("\nCUDA driver library cannot be found.\n")

    with pytest.raises(DataError, match=r"driver library cannot be found.*compile_ptx"):
        joules(dispatcher(no_driver))


@pytest.mark.filterwarnings("ignore")
def test_numba_itself_compiles_what_is_predicted() -> None:
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")

    def twice(data):
        at = cuda.grid(1)
        if at < data.size:
            data[at] = 2.0 * data[at]

    try:
        code = cuda.compile_ptx(twice, "void(float32[::1])", cc=(8, 0))
    except Exception as error:
        pytest.skip(f"Numba finds no NVVM here: {type(error).__name__}")
    # An array of one dimension is seven parameters: the third is its size, the fifth its data.
    more: dict[str, Any] = {"gpu": "a100", "block": 256, "grid": 16384}
    found = wattcast.predict(code, arguments={"2": 1 << 22}, registry=False, **more)
    least = 2 * 4 * (1 << 22) / 2.039e12  # read and written once at 2,039 GB/s (A100 data sheet)
    assert found.time is not None
    assert least < found.time.seconds < 3 * least


def raw(code: str | None = None, **more: Any) -> SimpleNamespace:
    """``cupy.RawKernel`` as CuPy 14 has it; ``RawModule`` has no ``name``."""
    told = {"code": code, "file_path": None, "options": (), "backend": "nvrtc"}
    return SimpleNamespace(**{**told, **more})


@needs_nvrtc
def test_cupys_kernels_are_compiled_with_their_definitions() -> None:
    expected = joules(CUDA.replace("FACTOR", "3.0f"))
    two = CUDA + CUDA.replace("scale", "other").replace("*=", "+=")
    options = ("-DFACTOR=3.0f", "--std=c++14")
    assert joules(raw(CUDA, name="scale", options=options)) == expected
    assert joules(raw(CUDA, options=options)) == expected  # a RawModule of one kernel
    assert joules(raw(two, name="scale", options=options)) == expected
    with pytest.raises(DataError, match="option --use_fast_math of this"):
        joules(raw(CUDA, name="scale", options=("--use_fast_math",)))
    with pytest.raises(DataError, match="name_expressions"):
        joules(raw(CUDA, name_expressions=("scale<float>",)))


def test_cupys_modules_from_files_are_read_there(tmp_path: Path) -> None:
    assert joules(raw(file_path=str(DEMO), name="vector_add")) == joules(DEMO)
    with pytest.raises(DataError, match="machine code"):
        joules(raw(file_path=str(tmp_path / "kernel.cubin"), name="vector_add"))
    with pytest.raises(DataError, match="neither code nor a file"):
        joules(raw())
