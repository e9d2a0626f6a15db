"""The catalogue: ids, time, memory, and application kernels that the analysis understands."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from studies.measuring_kernels import sources
from tests.measure.measuring import board_of, module
from tests.measure.simulated import SimulatedGpu, SimulatedRunner, Truth
from tests.needs import needs_ptxas
from wattcast.features.analysis import analyse
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.gpus import load_gpu
from wattcast.measure.catalogue import APPLICATIONS, applications, micro, worked_out
from wattcast.measure.micro import MODULES
from wattcast.measure.protocol import Settings
from wattcast.measure.run import plan, planned_seconds
from wattcast.measure.workload import Board, Buffer, Pattern, Workload, executed
from wattcast.models.time.bottleneck import dram_bytes

H200, OLD, KEPLER, TURING = map(board_of, ("h200-sxm5", "gtx-980", "tesla-k20", "t4"))
GPU = load_gpu("h200-sxm5")
ALL = applications(H200)
SMALLEST = ALL[: len(APPLICATIONS)]
MINE = [path for path in sources() if path.stem not in MODULES]


@pytest.mark.parametrize("board", [H200, OLD, KEPLER, TURING])
def test_ids_are_unique_and_launches_fit(board: Board) -> None:
    made = [*micro(board), *applications(board)]
    assert len({one.id for one in made}) == len(made)
    for one in made:
        assert math.prod(one.block) <= 1024
        assert math.prod(one.block) <= board.max_threads_per_sm
        assert one.grid[0] < 2**31
        assert max(one.grid[1:]) < 65536
        assert one.buffer_bytes <= board.memory_bytes // 2


def test_ids_of_the_same_purpose_are_the_same_on_every_board() -> None:
    mine, other = ({one.id for one in micro(board)} for board in (H200, OLD))
    assert len(mine & other) > 0.95 * len(mine)
    assert {one.id for one in applications(H200)} >= {one.id for one in applications(OLD)}


def test_the_microbenchmarks_are_planned_within_fifteen_minutes() -> None:
    planned, notes = plan(micro(H200), (9, 0), H200.memory_bytes, get_args(Pattern))
    assert not notes
    assert len(planned) >= 150
    assert planned_seconds(planned, Settings()) <= 15 * 60


@pytest.mark.parametrize("gpu", ["h200-sxm5", "tesla-k20", "t4"])
def test_streams_over_device_memory_move_the_bytes_they_declare(gpu: str) -> None:
    profile = load_gpu(gpu)
    board = SimulatedRunner(SimulatedGpu(Truth(profile))).device().board
    streams = [one for one in micro(board) if one.id.startswith(("bandwidth.dram", "energy.dram"))]
    assert len(streams) == 6
    for one in streams:
        assert one.probe is not None
        declared = (one.probe.operations if one.probe.kind == "bandwidth"
                    else 16.0 * one.mix["ld.global.cg.v4.f32"] * 32)  # fmt: skip
        found = dram_bytes(executed(one, profile).activity)
        assert found == pytest.approx(declared, rel=0.03), one.id


def test_a_board_without_matrix_units_goes_without_their_kernels() -> None:
    planned, notes = plan([*micro(OLD), *applications(OLD)], (5, 2), OLD.memory_bytes)
    assert not any("mma" in one.key or "matrix" in one.key for one in planned)
    assert any("needs compute capability 7.0" in note for note in notes)


def test_kepler_goes_without_half_precision_and_matrix_units_alone() -> None:
    every = [*micro(KEPLER), *applications(KEPLER)]
    planned, notes = plan(every, KEPLER.compute_capability, KEPLER.memory_bytes)
    left_out = {one.id for one in every} - {one.workload.id for one in planned}
    assert len(notes) == len(left_out)
    assert all("f16" in name or "mma" in name or "matrix" in name for name in left_out)
    assert len(planned) > 0.85 * len(every)


@needs_ptxas
@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_hopper_and_blackwell_take_every_module(path: Path, tmp_path: Path) -> None:
    ptxas = find_ptxas()
    assert ptxas is not None
    for target in ("sm_90", "sm_120"):
        made = tmp_path / f"{target}.cubin"
        # -O0: whether it is taken, not how well it is compiled.
        command = [ptxas, "-O0", f"-arch={target}", path.with_suffix(".ptx"), "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert made.stat().st_size > 0


def test_every_kernel_of_the_sources_has_several_launches() -> None:
    entries = {
        function.name
        for path in MINE
        for function in module(path.with_suffix(".ptx").read_text(encoding="utf-8")).kernels
    }
    assert entries == set(APPLICATIONS)
    assert len(APPLICATIONS) >= 60
    assert all(len(set(one.launches)) >= 3 for one in APPLICATIONS.values())


def test_entries_of_the_catalogue_are_arithmetic_and_nothing_else() -> None:
    names = {"n": 10, "t": 4}
    for text, value in (("n", 10), ("-(-n//t)", 3), ("2*n*n-n/t", 197.5), ("f64", "f64")):
        assert worked_out(text, names) == value
    for text in ("m", "n.real", "open(n)", "'n'", "n if t else 1", "[n]", "n@t"):
        with pytest.raises((ValueError, KeyError)):
            worked_out(text, names)


@pytest.mark.parametrize("one", SMALLEST, ids=lambda one: one.id)
def test_an_application_is_understood(one: Workload) -> None:
    analysis = analyse(
        module(one.ptx), one.kernel, one.launch(), GPU, analysis="auto", effort=200_000_000
    )
    symbols = {d.code for d in analysis.diagnostics}
    assert not symbols & {"unknown_opcode", "argument_assumed"}
    assert not analysis.trips_assumed
    parameters = analysis.function.parameters
    assert len(parameters) == len(one.arguments)
    for parameter, given in zip(parameters, one.arguments, strict=True):
        wide = isinstance(given, Buffer) or given.element in ("u64", "f64")
        assert parameter.bytes == (8 if wide else 4)
