"""Events of single instructions sum to the activity of their launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattcast.features.activity.instructions import InstructionEvents, measure_instructions
from wattcast.features.analysis import KernelAnalysis, Mode, analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

PTX = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"
KERNELS = {
    "atomics": None,
    "bitonic": None,
    "black_scholes": None,
    "device_calls": "device_calls",
    "dot_fp64": None,
    "histogram": None,
    "transpose": "transpose_direct",
}


def analysed(name: str, mode: Mode) -> KernelAnalysis:
    module = read_module((PTX / f"{name}.sm_70.ptx").read_text(encoding="utf-8"))
    launch = Launch.of(64, 128)
    return analyse(module, KERNELS[name], launch, load_gpu("tesla-v100"), analysis=mode)


def events_of(analysis: KernelAnalysis) -> dict[str, InstructionEvents]:
    functions = analysis.counts.functions(analysis.counts.factors())
    return measure_instructions(analysis.module, functions, analysis.activity)


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "executed") for name in sorted(KERNELS)),
     *((name, "symbolic") for name in ("black_scholes", "dot_fp64", "transpose"))],
)  # fmt: skip
def test_events_sum_to_the_activity(name: str, mode: Mode) -> None:
    analysis = analysed(name, mode)
    activity = analysis.activity
    events = events_of(analysis)
    conflicts = max(0.0, activity.shared_transactions - activity.shared_requests)
    for event, total in (
        ("warp_executions", activity.warp_instructions_ptx),
        ("machine_instructions", activity.warp_instructions_sass),
        ("fma", activity.fma_pipe_instructions),
        ("fp32", activity.fp32_instructions),
        ("alu", activity.alu_pipe_instructions),
        ("fp64", activity.fp64_instructions),
        ("sfu", activity.sfu_instructions),
        ("load_store_passes", activity.lsu_requests + conflicts),
        ("atomic_requests", activity.atomic_requests),
        ("texture_requests", activity.texture_requests),
        ("l2_sectors", activity.l2_sectors),
        ("dram_sectors", activity.dram_read_sectors + activity.dram_write_sectors),
    ):
        summed = sum(float(getattr(each, event).sum()) for each in events.values())
        assert summed == pytest.approx(total, rel=1e-9), event


def test_only_accesses_move_sectors_and_only_stores_go_straight_to_l2() -> None:
    analysis = analysed("transpose", "executed")
    (events,) = events_of(analysis).values()
    for one in analysis.function.body.instructions:
        if not one.opcode.startswith(("ld.global", "st.global")):
            assert events.l2_sectors[one.position] == 0, one.opcode
        if one.opcode.startswith("st.global"):
            assert events.l2_sectors[one.position] == events.global_sectors[one.position]


def test_scaled_trip_counts_scale_the_events() -> None:
    module = read_module((PTX / "collatz.sm_70.ptx").read_text(encoding="utf-8"))
    gpu, launch = load_gpu("tesla-v100"), Launch.of(4, 128)
    few, many = (
        analyse(module, None, launch, gpu, loops={"default": trips}) for trips in (10, 1000)
    )
    (first,), (second,) = (events_of(each).values() for each in (few, many))
    growth = second.machine_instructions.sum() / first.machine_instructions.sum()
    expected = many.activity.warp_instructions_sass / few.activity.warp_instructions_sass
    assert growth == pytest.approx(expected)
    assert growth > 20
