"""Microbenchmarks execute what their description states; committed PTX is what sources give."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from studies.measuring_kernels import compile_source, sources, without_comments
from tests.measure.measuring import module
from tests.needs import needs_nvrtc
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.measure.catalogue import micro
from wattcast.measure.micro import body, modules, ptx_text
from wattcast.measure.workload import Board, Workload

TINY = Board(
    sm_count=1,
    compute_capability=(9, 0),
    l2_bytes=2**18,
    memory_bytes=2**33,
    max_threads_per_sm=2048,
    core_mhz=1e-3,  # so slow that every loop turns but a few times
)
GPU = load_gpu("h200-sxm5")
PASCAL = [
    one
    for one in micro(TINY.model_copy(update={"compute_capability": (6, 1)}))
    if "_nc" in one.kernel
]
"""What a board has of its own whose L1 holds only what ``ld.global.nc`` reads."""
MICRO = [*micro(TINY), *PASCAL]


@pytest.mark.parametrize("one", MICRO, ids=lambda one: one.id)
def test_a_microbenchmark_executes_exactly_its_mix(one: Workload) -> None:
    # No cap worth the name: a busy machine must not cut an execution short.
    analysis = analyse(
        module(one.ptx), one.kernel, one.launch(), GPU, analysis="executed", effort=None
    )
    found: dict[str, float] = {}
    counts = analysis.executed.functions[one.kernel].warp_executions
    for instruction, number in zip(analysis.function.body.instructions, counts, strict=True):
        found[instruction.opcode] = found.get(instruction.opcode, 0.0) + float(number)
    assert found == pytest.approx(one.mix)
    assert analysis.executed.sampling.completed
    codes = {d.code for d in (*analysis.diagnostics, *analysis.executed.diagnostics)}
    assert not codes & {"argument_assumed", "unknown_opcode", "unsupported", "execution_cut_short"}


def test_every_kernel_is_measured() -> None:
    assert {one.kernel for one in MICRO} == set(modules())


def test_operations_of_a_probe_are_in_the_mix() -> None:
    for one in MICRO:
        probe = one.probe
        assert probe is not None
        threads = math.prod(one.grid) * math.prod(one.block)
        if probe.kind == "throughput" and not probe.target.startswith(("wmma", "mma.")):
            opcode = next(iter(body(one.kernel)))
            assert 0 <= one.mix[opcode] * 32 - probe.operations <= 16 * threads


@needs_nvrtc
@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_committed_ptx_is_what_the_source_gives(path: Path) -> None:
    committed = path.with_suffix(".ptx").read_text(encoding="utf-8")
    assert without_comments(committed) == without_comments(compile_source(path))


@pytest.mark.parametrize(
    ("name", "needed"),
    [("micro", (3, 5)), ("micro_half", (5, 3)), ("micro_tensor", (7, 0)), ("micro_mma", (8, 0))],
)
def test_the_target_of_the_ptx_is_the_capability_the_catalogue_asks_for(
    name: str, needed: tuple[int, int]
) -> None:
    assert module(ptx_text(name)).target == f"sm_{needed[0]}{needed[1]}"
    asked = {one.minimum_capability for one in MICRO if modules()[one.kernel] == name}
    assert asked == {needed}
