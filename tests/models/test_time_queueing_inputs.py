"""What a launch is to Wang and Chu's model: by hand from PTX, from counters, and parameters."""

from __future__ import annotations

from typing import Any

import pytest

from studies.papers.wang_chu.forms import counters_to_inputs
from tests.fixtures.tables import table
from tests.models.time_works import KERNELS
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import DataError, ModelError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.sections import MemoryTiming
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.inputs import chain_of, gpu_parameters, launch_of
from wattcast.models.papers.wang_chu.network import delays

GTX_980 = load_gpu("gtx-980")
V100 = load_gpu("tesla-v100")


def analysed(
    name: str, launch: Launch, gpu: GpuProfile = GTX_980, **options: Any
) -> KernelAnalysis:
    module = read_module((KERNELS / name).read_text(encoding="utf-8"))
    return analyse(module, None, launch, gpu, analysis="symbolic", **options)


def kernel(body: str, launch: Launch, gpu: GpuProfile, target: str = "sm_52") -> KernelAnalysis:
    text = (
        f".version 7.0\n.target {target}\n.address_size 64\n"
        ".visible .entry k(.param .u64 p, .param .u32 n)\n{\n"
        ".reg .pred %p<9>;\n.reg .f32 %f<99>;\n.reg .f64 %fd<9>;\n.reg .b32 %r<99>;\n"
        f".reg .b64 %rd<99>;\n.shared .align 4 .b8 s[4096];\n{body}\nret;\n}}\n"
    )
    return analyse(read_module(text), None, launch, gpu, analysis="symbolic")


ADDRESS = (
    "ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, %tid.x;\n"
    "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd2, %rd3;\n"
)


# --- from an analysis ------------------------------------------------------------------------


def test_a_vector_addition_by_hand() -> None:
    """Two loads and a store of 4 sectors each; both loads wait together; all data stay in L2."""
    found = launch_of(analysed("vector_add.ptx", Launch.of(196, 256)), GTX_980, 28)
    assert found.transactions == 12
    assert found.hit_rate == 1
    assert (found.blocks, found.warps_per_block) == (196, 8)
    assert found.resident_warps == pytest.approx(0.9 * 64)
    # 13.55 machine instructions of a warp (ptxas makes 15), three of them accesses
    assert found.instructions == pytest.approx(10.55)
    assert found.mlp == 12
    assert found.shared_transactions == found.extra_cycles == found.texture_cycles == 0
    assert found.outer_iterations == 1


def test_a_tiled_multiplication_works_through_shared_memory() -> None:
    analysis = analysed(
        "tiled_matmul.ptx", Launch.of((32, 32), (32, 32)), loops={"default": 32},
        registers_per_thread=32,
    )  # fmt: skip
    found = launch_of(analysis, GTX_980, 28)
    # 32 tiles, each of two transfers, two shared stores and 64 shared loads, of which 32 are read
    # four at a time by lanes that read alike: two passes for each four
    assert found.outer_iterations == pytest.approx(32)
    assert found.inner_iterations == pytest.approx(50)
    assert found.shared_transactions == pytest.approx(32 * 50)
    # Each tile: one wait for both loads; then a shared load and 32 dependent multiply-adds.
    chain = chain_of(analysis, GTX_980, 28)
    assert chain.waits == pytest.approx(32)
    assert chain.cycles >= 32 * (28 + 32 * 6)
    assert found.mlp == pytest.approx(found.transactions / 32)


def test_arithmetic_on_64_lanes_takes_longer_than_its_issue() -> None:
    body = ADDRESS + "ld.global.f32 %f1, [%rd4];\n" + "fma.rn.f32 %f1, %f1, %f1, %f1;\n" * 1000
    body += "st.global.f32 [%rd4], %f1;"
    on_980 = launch_of(kernel(body, Launch.of(64, 256), GTX_980), GTX_980, 28)
    on_v100 = launch_of(kernel(body, Launch.of(64, 256), V100), V100, 19)
    assert on_980.extra_cycles == 0
    assert on_v100.instructions == on_980.instructions
    # Two cycles a schedule of four: half a cycle each of 1000 on top of a quarter's issue
    assert on_v100.extra_cycles == pytest.approx(1000 / 2 - on_v100.instructions / 4, rel=0.01)


def test_matrices_without_tensor_cores_are_refused() -> None:
    body = ADDRESS + (
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r2, %r3}, "
        "{%r4}, {%f1, %f2, %f3, %f4};\nst.global.f32 [%rd4], %f1;"
    )
    with pytest.raises(ModelError, match="no tensor cores"):
        launch_of(kernel(body, Launch.of(1, 32), GTX_980, "sm_80"), GTX_980, 28)
    found = launch_of(kernel(body, Launch.of(1, 32), V100, "sm_80"), V100, 19)
    # 16 x 8 x 8 multiply-adds at 512 a cycle and SM
    assert found.extra_cycles == pytest.approx(1024 / 512)


# --- from counters ---------------------------------------------------------------------------

COUNTERS: dict[str, object] = table("queueing", "counters")


def test_counters_by_hand() -> None:
    """200 blocks of 96 threads: 600 warps."""
    found = counters_to_inputs(COUNTERS, GTX_980)
    assert (found.blocks, found.warps_per_block) == (200, 3)
    assert found.transactions == 15
    assert found.hit_rate == pytest.approx(2 / 3)
    assert found.resident_warps == 32
    assert found.shared_transactions == 21
    # requests of a warp: 1 and 1 of global memory, 10 and 1 of shared
    assert found.instructions == 187
    # threads' instructions, of which half a warp's lanes are on: 4 FP64 and 32 SFU lanes
    assert found.extra_cycles == pytest.approx((12800 / 4 + 19200 / 32) / 0.5 / 600)
    assert found.texture_cycles == pytest.approx(1200 * 4 / 8 / 600)
    assert found.mlp is None
    assert found.outer_iterations is None


def test_double_precision_from_operations_where_instructions_are_not_counted() -> None:
    counters = {name: value for name, value in COUNTERS.items() if name != "inst_fp_64"}
    operations = {"flop_count_dp": 16000, "flop_count_dp_fma": 3200}
    assert counters_to_inputs({**counters, **operations}, GTX_980) == counters_to_inputs(
        COUNTERS, GTX_980
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("inst_per_warp", None, "missing"),
        ("achieved_occupancy", "", "missing"),
        ("l2_read_transactions", "many", "no number"),
        ("dram_write_transactions", -1, "not negative"),
        ("blocks", "(100 2 1)", "grid and block"),
        ("blocks", "(100 2 1) (0 1 1)", "grid and block"),
    ],
)
def test_counters_that_do_not_do_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        counters_to_inputs({**COUNTERS, name: value}, GTX_980)
    assert caught.value.context["column"] == name


# --- parameters of GPUs ------------------------------------------------------------------------


def test_the_gtx_980_has_the_papers_parameters_and_no_stand_in_but_the_start() -> None:
    gpu = gpu_parameters(GTX_980)
    assert (gpu.sm_count, gpu.issue_cycles) == (16, 0.25)
    assert (gpu.latency_core_cycles, gpu.latency_memory_cycles) == (277.32, 222.78)
    assert (gpu.l2_latency, gpu.l2_service, gpu.shared_latency, gpu.shared_service) == (
        222,
        1,
        28,
        1,
    )
    assert gpu.launch_seconds == pytest.approx(1.4489e-6)  # thesis section 3.4, Tesla K20
    assert [each.code for each in gpu.diagnostics] == ["launch_overhead_assumed"]


def test_another_gpu_has_its_own_latency_at_its_default_clocks() -> None:
    gpu = gpu_parameters(V100)
    default = ClockPair(V100.core_mhz, V100.memory_mhz)
    assert delays(gpu, default, 0).dram_latency == pytest.approx(V100.dram_latency_cycles)
    # The share of the memory clock is that of the GTX 980 at its own default clocks.
    halved = delays(gpu, ClockPair(V100.core_mhz, V100.memory_mhz / 2), 0).dram_latency
    share = 222.78 * 1216 / 3505 / (277.32 + 222.78 * 1216 / 3505)
    assert halved == pytest.approx(V100.dram_latency_cycles * (1 + share))


def test_another_gpu_serves_at_the_bandwidth_its_streams_reach() -> None:
    gpu = gpu_parameters(V100)
    assert V100.streaming_share is not None
    peak = 80 * 32 / (4096 / 8 * 2)
    assert gpu.service.at(V100.memory_mhz) == pytest.approx(peak / V100.streaming_share)
    # Table III: 9.0 cycles at the top, a little more at two fifths of it
    assert gpu.service.at(V100.memory_mhz * 0.4) / gpu.service.at(V100.memory_mhz) == pytest.approx(
        10.06 / 9.0, rel=0.01
    )


def test_a_gpu_without_a_published_latency_says_whose_it_uses() -> None:
    nothing_timed = load_gpu("gtx-1080-ti").model_copy(update={"memory_timing": MemoryTiming()})
    found = gpu_parameters(nothing_timed)
    assert (found.l2_latency, found.shared_latency) == (222, 28)
    default = ClockPair(nothing_timed.core_mhz, nothing_timed.memory_mhz)
    assert delays(found, default, 0).dram_latency == pytest.approx(277.32 + 222.78 * 1216 / 3505)
    assert "latency_assumed" in [each.code for each in found.diagnostics]
    assert any("gtx-980" in each.detail for each in found.diagnostics)
