"""Autotuners of Triton, inductor and Helion ask for what is predicted best. Stand-ins take their
places; where they are installed, the last tests ask them."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.app.test_triton_launch import ARGUMENTS, MATRIX, SIDE, gemm, made, programs
from tests.docs.examples import fences
from wattcast.app.tuners import (
    _Asked,
    _helion_forecast,
    helion_autotuner,
    inductor_prune,
    triton_model,
    triton_prune,
)
from wattcast.features.errors import DataError, GpuError

__all__ = ["made"]  # a fixture


class Config(SimpleNamespace):
    """``triton.Config``, as far as it matters."""

    def __init__(self, rows: int, warps: int) -> None:
        tile = {"BLOCK_M": rows, "BLOCK_N": rows}
        super().__init__(kwargs=tile, num_warps=warps, num_stages=4, num_ctas=1)


class Autotuner:
    """Triton 3.9's, from a launch to the pruned configurations (runtime/autotuner.py)."""

    def __init__(self, fn: Any, configs: list[Config], prune: Any) -> None:
        self.fn, self.configs, self.early_config_prune = fn, configs, prune
        self.arg_names = fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> list[Config]:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        return self.prune_configs(kwargs)

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        pruned: list[Config] = self.early_config_prune(self.configs, self.nargs, **kwargs)
        assert pruned
        return pruned


LARGE, SMALL, BROKEN = Config(128, 4), Config(32, 2), Config(64, 16)
"""By their warps ``made`` knows which kernel to give; 16 are more than it compiles."""


def launched(configs: list[Config], keep: float = 5, **more: Any) -> list[Config]:
    tuner = Autotuner(gemm(), configs, triton_prune("a100", keep, registry=False, **more))
    return tuner.run(*ARGUMENTS, grid=programs, warmup=False)


def test_the_best_are_let_through_in_their_order(made: list[Any]) -> None:
    assert launched([SMALL, LARGE], 1) == [LARGE]
    assert launched([SMALL, LARGE]) == [LARGE, SMALL]
    assert launched([SMALL, LARGE], 0.5, by="energy") == [LARGE]
    types, constants, _, target, options = made[0]
    assert target == ("cuda", 80, 32)
    assert constants == {"BLOCK_M": 32, "BLOCK_N": 32, "RELU": False}
    assert types["a"] == "*fp16"
    assert options["num_warps"] == 2


@pytest.mark.usefixtures("made")
def test_what_cannot_be_predicted_is_kept_and_told() -> None:
    with pytest.warns(UserWarning, match=r"1 of 3 .*kept.*out of registers"):
        assert launched([BROKEN, SMALL, LARGE], 1) == [LARGE, BROKEN]
    strange = Autotuner(gemm(), [SMALL], triton_prune("a100", registry=False))
    with pytest.warns(UserWarning, match="argument a is a set"):
        assert strange.run({1}, MATRIX, MATRIX, SIDE, SIDE, SIDE, grid=programs) == [SMALL]


@pytest.mark.usefixtures("made")
def test_a_kernel_may_be_named_where_no_autotuner_calls() -> None:
    named = dict(zip("abcmnk", ARGUMENTS, strict=True))
    tuner = Autotuner(gemm(), [SMALL, LARGE], None)
    prune = triton_prune("a100", 1, kernel=tuner, registry=False)
    assert prune([SMALL, LARGE], named, grid=programs) == [LARGE]

    def elsewhere() -> None:
        triton_prune("a100", registry=False)([SMALL], named, grid=programs)

    with pytest.raises(DataError, match="kernel=the_kernel"):
        elsewhere()


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, True])
def test_a_number_to_keep_that_is_none(keep: float) -> None:
    with pytest.raises(DataError, match="expected how many"):
        triton_prune("a100", keep)


@pytest.mark.usefixtures("made")
def test_an_unknown_gpu_is_no_fault_of_a_configuration() -> None:
    tuner = Autotuner(gemm(), [SMALL], triton_prune("no-such-gpu", registry=False))
    with pytest.raises(GpuError):
        tuner.run(*ARGUMENTS, grid=programs)


@pytest.mark.usefixtures("made")
def test_a_model_tells_seconds_or_joules_of_one_configuration() -> None:
    named = dict(zip("abcmnk", ARGUMENTS, strict=True))
    tuner = Autotuner(gemm(), [SMALL, LARGE], None)

    def told(config: Config, **more: Any) -> float:
        given = {**config.kwargs, "num_warps": config.num_warps, "num_stages": 4}
        asked = triton_model("a100", kernel=tuner, registry=False, **more)
        return asked(**named, grid=programs, **given)

    assert 0 < told(LARGE) < told(SMALL) < 1
    assert told(LARGE, by="energy") / told(LARGE) > 10  # watts
    assert told(BROKEN) == math.inf

    def elsewhere() -> None:
        triton_model("a100", registry=False)(**named, grid=programs)

    with pytest.raises(DataError, match="triton_model"):
        elsewhere()


# --- inductor and Helion -------------------------------------------------------------------------


def choice(warps: int) -> SimpleNamespace:
    """A ``TritonTemplateCaller`` of PyTorch 2.14, as far as it matters."""
    meta = SimpleNamespace(dtype=np.dtype(np.float16), sizes=(SIDE, SIDE))
    asked = SimpleNamespace(
        module_cache_key="key", module_path="path.py", kernel_name="triton_mm", num_warps=warps,
        num_stages=4, input_tensor_meta=[meta, meta], output_tensor_meta=meta,
        extra_args=[SIDE, SIDE, SIDE, 2048 if warps == 2 else 256, 1, 1],
    )  # fmt: skip
    return SimpleNamespace(bmreq=asked)


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = gemm()
    for each in fn.params[6:]:  # a template holds its tiles as numbers of its text
        each.has_default, each.default = True, 32
    told = {"extra_launcher_args": ["_grid_0", "_grid_1", "_grid_2"]}
    module = SimpleNamespace(triton_mm=SimpleNamespace(fn=fn, inductor_meta=told))
    codecache = ModuleType("torch._inductor.codecache")
    load = SimpleNamespace(load_by_key_path=lambda key, path: module)
    codecache.PyCodeCache = load  # type: ignore[attr-defined]
    for name in ("torch", "torch._inductor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, codecache.__name__, codecache)


@pytest.mark.usefixtures("inductor")
def test_templates_of_inductor_predicted_best_are_measured_beside_libraries(
    made: list[Any],
) -> None:
    small, large, broken, library = choice(2), choice(4), choice(16), SimpleNamespace(name="mm")
    prune = inductor_prune("a100", 1, registry=False)
    assert prune([small, library, large]) == [large, library]
    assert made[0][0]["a"] == "*fp16"
    assert {made[0][0][each] for each in "mnk"} == {"i32"}
    assert [each[-1]["num_warps"] for each in made] == [2, 4]
    with pytest.warns(UserWarning, match=r"1 of 2 .*out of registers"):
        assert prune([broken, large]) == [large, broken]


class Bound:
    """Helion 1.5's ``BoundKernel``; its code calls ``_launcher``, here ``launches`` times."""

    def __init__(self, *configs: Config, launches: int = 1) -> None:
        self.configs, self.launches = list(configs), launches
        self.config_spec = self

    def create_config_generation(self) -> Bound:
        return self

    def random_population(self, tried: int) -> list[Config]:
        return self.configs[:tried]

    def compile_config(self, config: Config, allow_print: bool) -> Any:
        assert not allow_print
        if config is BROKEN:
            raise RuntimeError("no such block size")

        def run(*given: Any, _launcher: Any) -> None:
            for _ in range(self.launches):
                tile = (config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"], False)
                _launcher(
                    gemm(), ((SIDE // tile[0]) ** 2,), *given, *tile, num_warps=config.num_warps,
                    num_stages=4, ptx_options=None,
                )  # fmt: skip

        return run


@pytest.mark.usefixtures("made")
def test_helion_takes_the_best_of_its_own_space() -> None:
    asked = helion_autotuner("a100", registry=False)
    bound = Bound(SMALL, BROKEN, LARGE)
    assert asked(bound, ARGUMENTS).autotune(skip_cache=True) is LARGE
    few = helion_autotuner("a100", tried=1, by="energy", registry=False)
    assert few(bound, ARGUMENTS).autotune() is SMALL
    with pytest.raises(DataError, match="no such block size"):
        asked(Bound(BROKEN), ARGUMENTS).autotune()


@pytest.mark.usefixtures("made")
def test_all_launches_of_a_helion_configuration_count() -> None:
    one, two = (
        _helion_forecast(Bound(LARGE, launches=n), LARGE, ARGUMENTS, _Asked("a100", False, {}))
        for n in (1, 2)
    )
    assert (two.seconds, two.joules) == (2 * one.seconds, 2 * one.joules)
    none = _helion_forecast(Bound(LARGE, launches=0), LARGE, ARGUMENTS, _Asked("a100", False, {}))
    assert none.problem == "it launches nothing"


def test_helion_measures_the_best_where_more_are_kept(
    monkeypatch: pytest.MonkeyPatch, made: list[Any]
) -> None:
    def search(bound: Bound, args: Any, configs: list[Config]) -> SimpleNamespace:
        return SimpleNamespace(autotune=lambda skip_cache: (configs, skip_cache))

    helion = ModuleType("helion.autotuner")
    helion.FiniteSearch = search  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "helion", ModuleType("helion"))
    monkeypatch.setitem(sys.modules, helion.__name__, helion)
    asked = helion_autotuner("a100", 2, registry=False)
    found = asked(Bound(SMALL, BROKEN, LARGE), ARGUMENTS).autotune(skip_cache=True)
    assert found == ([LARGE, SMALL], True)
    assert made


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_the_script_of_the_page_measures_two_of_six(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    page = Path(__file__).parents[2] / "docs" / "howto" / "autotuners.md"
    (text,) = (text for _, title, text in fences(page) if title == "pruned.py")
    (tmp_path / "pruned.py").write_text(text, encoding="utf-8")
    tuned = runpy.run_path(str(tmp_path / "pruned.py"))["add"]
    assert len(tuned.configs) == 6
    array, n = np.zeros(1 << 22, np.float32), 1 << 22
    tuned.nargs = {"x": array, "y": array, "out": array, "n": n}
    kept = tuned.prune_configs({"grid": lambda of: (-(-n // of["BLOCK"]),), "warmup": False})
    assert len(kept) == 2
    assert all(config.kwargs["BLOCK"] == 1024 for config in kept)


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_triton_itself_asks() -> None:
    triton = pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    from tests.fixtures.triton import kernels

    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": m, "BLOCK_K": 32, "GROUP": 8}, num_warps=warps)
        for m, warps in ((16, 1), (128, 4), (64, 4))
    ]
    prune = triton_prune("a100", 1, registry=False)
    tuned = triton.autotune(configs, key=["m"], prune_configs_by={"early_config_prune": prune})(
        kernels.gemm
    )
    tuned.nargs = dict(zip("abcmnk", ARGUMENTS, strict=True))

    def programs(of: dict[str, int]) -> tuple[int]:
        return (-(-of["m"] // of["BLOCK_M"]) * -(-of["n"] // of["BLOCK_N"]),)

    kept = tuned.prune_configs({"grid": programs, "warmup": False})
    assert kept in ([configs[1]], [configs[2]])  # a tile of 16 reads four times as much


TEMPLATE = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

@triton_heuristics.template(
    num_stages=2, num_warps=4,
    triton_meta={"signature": {"arg_A": "*fp32", "out_ptr0": "*fp32", "ks0": "i32"},
                 "device": DeviceProperties(type="cuda", index=0, multi_processor_count=108, cc=80),
                 "constants": {}},
    inductor_meta={"kernel_name": "triton_tem", **triton_heuristics.FixedGrid.setup_grid_as_args()},
)
@triton.jit
def triton_tem(arg_A, out_ptr0, ks0):
    BLOCK: tl.constexpr = 1024
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr0 + at, tl.load(arg_A + at, mask=at < ks0) * 2, mask=at < ks0)
"""


@pytest.mark.filterwarnings("ignore")
def test_inductors_own_requests_are_predicted() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    from torch._inductor.autotune_process import TensorMeta, TritonGPUBenchmarkRequest
    from torch._inductor.codecache import PyCodeCache

    key, path = PyCodeCache.write(TEMPLATE)
    n = 1 << 22
    array = TensorMeta(torch.device("cuda"), torch.float32, [n], [1], 0, "a")

    def asked(blocks: int) -> SimpleNamespace:
        request = TritonGPUBenchmarkRequest(
            "triton_tem", [array], array, [n, blocks, 1, 1], path, key, 2, 4
        )
        return SimpleNamespace(bmreq=request, name="triton_tem")

    few, many, library = asked(1 << 10), asked(1 << 12), SimpleNamespace(name="mm")
    kept = inductor_prune("a100", 1, registry=False)([many, library, few])
    assert kept == [few, library]  # a quarter of the programs


@pytest.mark.filterwarnings("ignore")
def test_the_script_of_the_page_asks_helion(tmp_path: Path) -> None:
    pytest.importorskip("helion", reason="Helion is not installed")
    page = Path(__file__).parents[2] / "docs" / "howto" / "autotuners.md"
    (text,) = (text for _, title, text in fences(page) if title == "helion_add.py")
    (tmp_path / "helion_add.py").write_text(text.replace("tried=20", "tried=3"), encoding="utf-8")
    chosen = runpy.run_path(str(tmp_path / "helion_add.py"))["chosen"]
    assert chosen.num_warps >= 1
    (text,) = (text for _, title, text in fences(page) if title == "choices.py")
    (tmp_path / "choices.py").write_text(text, encoding="utf-8")
    runpy.run_path(str(tmp_path / "choices.py"))
    from torch._inductor import select_algorithm

    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    assert functions.pop().__qualname__.startswith("inductor_prune")
