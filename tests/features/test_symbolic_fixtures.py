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


def verdict(kernel: FixtureKernel, shape: Shape, target: str) -> str:
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
        return "good"
    return "wrong" if known(said) else "marked"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_called_known_is_as_executed(kernel: FixtureKernel) -> None:
    """Loops called constant or inferred, counts not marked, sectors and conflicts of accesses
    called affine: never wrong on the newest target (the table's test does the oldest)."""
    for shape in kernel.shapes:
        assert verdict(kernel, shape, targets(kernel.source)[-1]) != "wrong"


@pytest.mark.slow
def test_most_launches_are_known() -> None:
    """Counts per class within 2 % for at least 90 % of (fixture, shape) pairs that do not say
    that they depend on data; and most pairs do not say so."""
    verdicts = [
        verdict(kernel, shape, targets(kernel.source)[0])
        for kernel in KERNELS
        for shape in kernel.shapes
    ]
    good, marked = verdicts.count("good"), verdicts.count("marked")
    assert good >= 0.9 * (len(verdicts) - marked)
    assert good >= 0.65 * len(verdicts)


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
