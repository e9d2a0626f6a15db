"""Configurations of Triton kernels in predicted order: compiled, from a cache, compiled anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import wattcast
from tests.fixtures.triton.build import HERE
from wattcast.app import progress
from wattcast.features.cuda import find_ptxas, measure_resources
from wattcast.features.errors import DataError, LaunchError, MissingExtraError
from wattcast.features.gpus import load_gpu
from wattcast.predictor import triton as reader

PTX = HERE / "ptx"
SIDE = 2048
LARGE, SMALL = "gemm_fp16.sm_80/128x128x32x4x4", "gemm_fp16.sm_80/32x64x32x2x5"
SIZES = {"m": SIDE, "n": SIDE, "k": SIDE, **{each: {"elements": SIDE**2} for each in "abc"}}


def programs(of: Any) -> tuple[int]:
    return (-(-SIDE // of["BLOCK_M"]) * -(-SIDE // of["BLOCK_N"]),)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder as Triton's cache: a folder for each kernel, with a group file."""
    for name in (SMALL, LARGE):
        folder = tmp_path / name.replace("/", "_").upper()
        folder.mkdir()
        for suffix in (".ptx", ".json"):
            shutil.copy(PTX / f"{name}{suffix}", folder / f"gemm{suffix}")
        (folder / "__grp__gemm.json").write_text('{"child_paths": {}}')
    return tmp_path


def test_a_cache_is_ranked_and_the_large_tile_wins(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who waits at a terminal sees how far it is."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is told nothing while it goes on
    found = wattcast.rank_triton(cache, gpu="a100", grid=programs, arguments=SIZES, registry=False)
    assert "1/2" in capsys.readouterr().err
    best, worst = found["configurations"]
    assert (best["rank"], worst["rank"]) == (1, 2)
    assert best["configuration"]["BLOCK_M"] == 128
    assert best["configuration"]["num_stages"] == 4
    assert worst["joules"] > 1.3 * best["joules"]
    assert worst["seconds"] > 1.5 * best["seconds"]
    assert best["joules"] == pytest.approx(best["seconds"] * best["watts"])
    assert best["grid"] == [256]
    assert best["block"] == 128
    told = json.loads((PTX / f"{LARGE}.json").read_text())
    asked = wattcast.predict(
        PTX / f"{LARGE}.ptx", gpu="a100", grid=256, block=128, registry=False,
        dynamic_shared_bytes=told["shared"],
        arguments={str(told["positions"][name]): value for name, value in SIZES.items()},
    )  # fmt: skip
    assert asked.energy is not None
    assert best["joules"] == asked.energy.joules


def test_by_time_and_at_other_clocks(cache: Path) -> None:
    def asked(**more: Any) -> list[dict[str, Any]]:
        found = wattcast.rank_triton(
            cache, gpu="a100", grid=programs, arguments=SIZES, by="time", registry=False, **more
        )
        rows: list[dict[str, Any]] = found["configurations"]
        return rows

    fast, slow = asked(), asked(clocks={"core_mhz": 900, "memory_mhz": 1593})
    assert [row["seconds"] for row in fast] == sorted(row["seconds"] for row in fast)
    assert slow[0]["seconds"] > 1.2 * fast[0]["seconds"]
    assert slow[0]["watts"] < fast[0]["watts"]


def test_what_the_board_cannot_launch_is_refused_with_the_reason(cache: Path) -> None:
    told = next(cache.glob("*128X128*/gemm.json"))
    told.write_text(json.dumps({**json.loads(told.read_text()), "shared": 400_000}))
    found = wattcast.rank_triton(cache, gpu="a100", grid=programs, arguments=SIZES, registry=False)
    assert len(found["configurations"]) == 1
    assert found["refused"][0]["configuration"]["BLOCK_M"] == 128
    assert "shared" in found["refused"][0]["reason"]


def test_an_empty_folder_and_an_unknown_constant_are_told(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no compiled Triton kernel called softmax"):
        wattcast.rank_triton(cache, gpu="a100", grid=1, kernel="softmax", registry=False)
    with pytest.raises(LaunchError, match="BLOCK_Q"):
        wattcast.rank_triton(cache, gpu="a100", grid=lambda of: of["BLOCK_Q"], registry=False)


Metadata = namedtuple("Metadata", "name num_warps num_stages num_ctas shared tensordesc_meta")


def kernel_object(name: str, **more: Any) -> SimpleNamespace:
    """What ``triton.compile`` returns, as far as it matters."""
    told = json.loads((PTX / f"{name}.json").read_text())
    names = [*told["positions"], *told["constants"]]
    return SimpleNamespace(
        asm={"ptx": (PTX / f"{name}.ptx").read_text(), **more},
        metadata=Metadata("gemm", told["num_warps"], told["num_stages"], 1, told["shared"], []),
        src=SimpleNamespace(
            fn=SimpleNamespace(arg_names=names),
            signature=dict.fromkeys(names, "constexpr")
            | dict.fromkeys("abc", "*fp16")
            | dict.fromkeys("mnk", "i32"),
            constants={(names.index(each),): value for each, value in told["constants"].items()},
        ),
    )


def test_compiled_kernels_tell_constants_and_names_themselves(cache: Path) -> None:
    objects = [kernel_object(SMALL), kernel_object(LARGE)]
    found = wattcast.rank_triton(
        objects, gpu="a100", grid=programs, arguments=SIZES, registry=False
    )
    files = wattcast.rank_triton(cache, gpu="a100", grid=programs, arguments=SIZES, registry=False)
    for one, other in zip(found["configurations"], files["configurations"], strict=True):
        assert (one["joules"], one["seconds"]) == (other["joules"], other["seconds"])
        assert one["configuration"]["BLOCK_N"] == other["configuration"]["BLOCK_N"]


def test_a_cluster_is_as_many_blocks_and_descriptors_bring_shape_and_strides() -> None:
    one = reader.TritonKernel(".version 8.8", {"num_warps": 8, "num_ctas": 2, "shared": 1024}, {})
    launch = one.request((10, 3), {})["launch"]
    assert launch == {
        "grid": [20, 3], "block": 256, "dynamic_shared_bytes": 1024, "arguments": {},
    }  # fmt: skip
    descriptors = {"a": "tensordesc<fp16[128, 64]>", "n": "i32"}
    source = SimpleNamespace(
        fn=SimpleNamespace(arg_names=["a", "n"]), signature=descriptors, constants={}
    )
    cases: tuple[tuple[list[Any], int], ...] = (([{}], 5), ([], 7))
    for meta, place in cases:
        metadata = SimpleNamespace(num_warps=4, tensordesc_meta=meta)
        made = reader.compiled(SimpleNamespace(asm={"ptx": ""}, metadata=metadata, src=source))
        assert made.positions == {"a": 0, "n": place}
    ptx = (PTX / "gemm_tma.sm_90.ptx").read_text()
    told = json.loads((PTX / "gemm_tma.sm_90.json").read_text())
    assert f".param .u32 gemm_tma_param_{told['positions']['m']}" in ptx


class _Parameter(SimpleNamespace):
    do_not_specialize = do_not_specialize_on_alignment = is_constexpr = has_default = False


def gemm(*sizes: _Parameter) -> SimpleNamespace:
    """A ``JITFunction``, as far as it matters."""
    relu = _Parameter(name="RELU", is_constexpr=True, has_default=True, default=False)
    parameters = [*(_Parameter(name=name) for name in "abcmnk"), *sizes, relu]
    return SimpleNamespace(params=parameters, arg_names=[each.name for each in parameters])


def compiled_by(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Triton's compiler is given from now on; small tiles are told by their two warps."""
    made: list[Any] = []

    def compiling(source: Any, target: Any, options: Any) -> Any:
        made.append((*source[1:], target, options))
        if options.get("num_warps") == 16:
            raise RuntimeError("out of registers")
        return kernel_object(SMALL if options.get("num_warps") == 2 else LARGE)

    compiler, targets = ModuleType("triton.compiler"), ModuleType("triton.backends.compiler")
    compiler.ASTSource = lambda *given: given  # type: ignore[attr-defined]
    compiler.compile = compiling  # type: ignore[attr-defined]
    targets.GPUTarget = lambda *given: given  # type: ignore[attr-defined]
    for module in (compiler, targets):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def test_a_jit_function_is_compiled_as_its_launch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled_by(monkeypatch)
    function = gemm(_Parameter(name="stride"), _Parameter(name="BLOCK_M", is_constexpr=True))
    configs = [
        SimpleNamespace(kwargs={"BLOCK_M": 128}, num_warps=4, num_stages=4, num_ctas=1),
        SimpleNamespace(kwargs={"BLOCK_M": 64}, num_warps=2, num_stages=5, num_ctas=1),
        SimpleNamespace(kwargs={"BLOCK_M": 64}, num_warps=16, num_stages=5, num_ctas=1),
    ]
    autotuned = SimpleNamespace(fn=function, configs=configs)
    found = wattcast.rank_triton(
        autotuned, gpu="a100", grid=programs, signature=dict.fromkeys("abc", "*fp16"),
        arguments={**SIZES, "k": SIDE + 8, "stride": 1}, registry=False,
    )  # fmt: skip
    assert [row["configuration"]["num_warps"] for row in found["configurations"]] == [4, 2]
    (refused,) = found["refused"]
    assert "out of registers" in refused["reason"]
    types, constants, attributes, target, options = made[0]
    assert target == ("cuda", 80, 32)
    assert options == {"num_warps": 4, "num_stages": 4, "num_ctas": 1}
    assert types == {
        **dict.fromkeys("abc", "*fp16"), **dict.fromkeys("mnk", "i32"),
        **dict.fromkeys(("stride", "BLOCK_M", "RELU"), "constexpr"),
    }  # fmt: skip
    assert constants == {"stride": 1, "BLOCK_M": 128, "RELU": False}
    # Pointers are aligned and m and n multiples of 16; k is not.
    assert sorted(attributes) == [(0,), (1,), (2,), (3,), (4,)]
    with pytest.raises(DataError, match="argument a has no type"):
        wattcast.rank_triton(autotuned, gpu="a100", grid=1, registry=False)


def test_without_triton_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "triton.compiler", None)
    with pytest.raises(MissingExtraError, match=r"wattcast\[triton\]"):
        wattcast.rank_triton(SimpleNamespace(params=[]), gpu="a100", grid=1, registry=False)


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_triton_itself_compiles_what_is_ranked() -> None:
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    from tests.fixtures.triton import kernels

    found = wattcast.rank_triton(
        kernels.softmax, gpu="a100", grid=4096, signature={"x": "*fp32", "y": "*fp32"},
        arguments={"columns": 1008, "x": {"elements": 4096 * 1008}},
        configs=[{"BLOCK": 1024, "num_warps": warps} for warps in (1, 4, 8)], registry=False,
    )  # fmt: skip
    assert len(found["configurations"]) == 3
    assert not found["refused"]


def test_registers_of_a_cubin_are_those_that_ptxas_tells(tmp_path: Path) -> None:
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("ptxas (the extra cuda) is not installed")
    code, cubin = PTX / f"{LARGE}.ptx", tmp_path / "gemm.cubin"
    subprocess.run([ptxas, "-arch=sm_80", code, "-o", cubin], check=True)
    report = measure_resources(code.read_text(), "gemm", (8, 0))
    assert report is not None
    binary = cubin.read_bytes()
    assert reader.cubin_registers(binary) == (report.registers_per_thread, 0)
    assert reader.cubin_registers(b"\x7fELF") is reader.cubin_registers(b"none") is None
    at = binary.index(reader.FRAME_SIZE)
    assert reader.cubin_registers(binary.replace(reader.FRAME_SIZE, bytes(4))) is None
    # Nobody has to assemble it again, unless it has a stack frame: ptxas tells what is spilled.
    shutil.copy(code, tmp_path / "gemm.ptx")
    shutil.copy(PTX / f"{LARGE}.json", tmp_path / "gemm.json")
    (one,) = reader.read_cache(tmp_path)
    assert one.registers_per_thread == report.registers_per_thread
    cubin.write_bytes(binary[: at + 8] + (64).to_bytes(4, "little") + binary[at + 12 :])
    (one,) = reader.read_cache(tmp_path)
    assert one.registers_per_thread is None
    # PTX that our ptxas cannot read is asked about with the registers of its cubin.
    newer = code.read_text().replace(".version 8.8", ".version 9.4")
    (tmp_path / "gemm.ptx").write_text(newer)
    (one,) = reader.read_cache(tmp_path)
    assert one.registers_per_thread == report.registers_per_thread


def test_ptx_of_one_architecture_alone_has_its_true_registers() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas (the extra cuda) is not installed")
    ptx = (PTX / "gemm_fp16.sm_90/128x256x64x8x3.ptx").read_text()
    assert ".target sm_90a" in ptx
    report = measure_resources(ptx, "gemm", (9, 0))
    assert report is not None
    assert report.registers_per_thread >= 128
    assert load_gpu("h100").compute_capability == "9.0"
