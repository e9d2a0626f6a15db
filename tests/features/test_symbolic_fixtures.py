"""The symbolic analysis against execution, on every fixture kernel.

Execution is itself proven against the scalar reference (``test_execution_reference.py``).
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.execution import launch_of
from tests.features.symbolic_programs import count_errors, known, loop_errors
from tests.features.test_execution_reference import run_exact
from tests.fixtures.kernels.data import FixtureKernel, Shape, materialise, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.memory import buffer_addresses
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.isa import classify
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import SymbolicResult, analyse_symbolically

WITHIN = 0.02
"""Counts per class may differ from executed ones by this share."""


def symbolic(kernel: FixtureKernel, shape: Shape, target: str) -> SymbolicResult:
    """The symbolic analysis of a fixture's launch, with the arguments a caller can give."""
    made = materialise(kernel.name, shape)
    places = buffer_addresses(made)
    arguments: dict[str, int | float] = {}
    for index, (name, value) in enumerate(made.items()):
        if isinstance(value, np.ndarray):
            arguments[str(index)] = places[name]
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    module = read_module(ptx_path(kernel.source, target).read_text())
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    return analyse_symbolically(module, module.kernel(kernel.entry), launch)


def verdict(kernel: FixtureKernel, shape: Shape, target: str) -> tuple[str, SymbolicResult]:
    """``good``: counts of all classes as executed; ``marked``: where not, it is said."""
    said = symbolic(kernel, shape, target)
    executed, _ = run_exact(kernel, shape, target)
    if not kernel.order_dependent:
        assert not loop_errors(said, executed, kernel.entry)
        assert not count_errors(said, executed)
    module = read_module(ptx_path(kernel.source, target).read_text())
    sums: dict[str, np.ndarray] = {}
    for name, real in executed.functions.items():
        function = module.function(name)
        assert function is not None
        ours = said.functions.get(name)
        for one in function.body.instructions:
            row = sums.setdefault(classify(one.opcode).opcode_class, np.zeros(4))
            row[:2] += real.warp_executions[one.position], real.active_lanes[one.position]
            if ours is not None:
                row[2:] += ours.warp_executions[one.position], ours.active_lanes[one.position]
    good = all(
        abs(row[2:] - row[:2]).max() <= WITHIN * max(1.0, row[:2].max()) for row in sums.values()
    )
    if good:
        return "good", said
    return "wrong" if known(said) else "marked", said


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_called_known_is_as_executed(kernel: FixtureKernel) -> None:
    """Loops called constant or inferred, counts not marked, sectors and conflicts of accesses
    called affine: never wrong on the newest target (the table's test does the oldest)."""
    for shape in kernel.shapes:
        found, _ = verdict(kernel, shape, targets(kernel.source)[-1])
        assert found != "wrong"


@pytest.mark.slow
def test_most_launches_are_known(record_property: object) -> None:
    """Counts per class within 2 % for at least 90 % of (fixture, shape) pairs that do not say
    that they depend on data; and most pairs do not say so."""
    rows = []
    for kernel in KERNELS:
        target = targets(kernel.source)[0]
        verdicts = []
        loops = known_loops = accesses = affine = 0
        for shape in kernel.shapes:
            found, said = verdict(kernel, shape, target)
            verdicts.append(found)
            loops += len(said.loops)
            known_loops += sum(loop.exact for loop in said.loops)
            accesses += len(said.accesses)
            affine += sum(access.affine for access in said.accesses)
        rows.append((kernel.name, verdicts, known_loops, loops, affine, accesses))
    good = sum(v.count("good") for _, v, *_ in rows)
    marked = sum(v.count("marked") for _, v, *_ in rows)
    pairs = sum(len(v) for _, v, *_ in rows)
    lines = [f"{'symbolic against executed':26s} {'shapes':22s} loops known  accesses affine"]
    lines += [
        f"  {name:24s} {' '.join(v):22s} {known:4d} of {total:2d}   {affine:4d} of {count:3d}"
        for name, v, known, total, affine, count in rows
    ]
    lines.append(
        f"  {good} of {pairs} pairs within {WITHIN:.0%}; {marked} marked as depending on data"
    )
    record_property("table", "\n".join(lines))  # type: ignore[operator]
    assert good >= 0.9 * (pairs - marked)
    assert good >= 0.65 * pairs


@pytest.mark.slow
def test_where_nothing_is_run_an_execution_counts_the_same() -> None:
    """Every quantity of ``activity1``, for each fixture that ``auto`` does not run."""
    gpu, answered = load_gpu("tesla-v100"), []
    for kernel in KERNELS:
        module = read_module(ptx_path(kernel.source, targets(kernel.source)[-1]).read_text())
        function, launch = module.kernel(kernel.entry), launch_of(kernel.large)
        found = analyse(module, function, launch, gpu)
        if found.activity_how == "executed":
            continue
        answered.append(kernel.name)
        ran = analyse(module, function, launch, gpu, analysis="executed")
        for name, ours in found.activity.values().items():
            theirs = ran.activity.values()[name]
            assert ours == pytest.approx(theirs, rel=WITHIN, abs=2.0), (kernel.name, name)
        l1_cycles = ran.extras.l1_cycles_per_sector
        assert found.extras.l1_cycles_per_sector == pytest.approx(l1_cycles, rel=WITHIN), kernel
    assert len(answered) >= 22, answered
