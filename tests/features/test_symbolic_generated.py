"""Generated programs: what the symbolic analysis calls known is what the interpreters do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.execution_kernels import BASE, kernel
from tests.features.symbolic_programs import affine_programs, count_errors, known, loop_errors
from tests.features.whole_runs import run_whole
from tests.generated.compare import run_engine
from tests.generated.programs import program
from tests.reference.machine import run as run_reference
from wattcast.features.execution import ExecutionResult
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import SymbolicResult, analyse_symbolically

SHARED = ".shared .align 4 .b8 s[512];"
MANY = ".reg .b32 %r<400>;"


def check(said: SymbolicResult, executed: ExecutionResult, text: str) -> None:
    """Compare with execution."""
    assert not loop_errors(said, executed, "k"), text
    assert not count_errors(said, executed), text


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=affine_programs(), block=st.sampled_from([32, 48, 65]), n=st.integers(0, 140))
def test_affine_programs_are_known_whole(body: str, block: int, n: int) -> None:
    text = kernel(body, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    module = read_module(text)
    out = np.zeros(1024, dtype=np.uint32)
    real = run_reference(text, "k", (2,), (block,), {"out": out, "n": np.uint32(n)})
    launch = Launch.of(2, block, 0, {"out": BASE, "n": n})
    said = analyse_symbolically(module, module.kernel("k"), launch)
    assert known(said)
    counts = said.functions["k"]
    for one in real.per_instruction:
        found = (
            counts.warp_executions[one.index], counts.active_lanes[one.index],
            counts.sectors[one.index], counts.shared_transactions[one.index],
        )  # fmt: skip
        wanted = (one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions)
        if not counts.access_known[one.index]:
            found, wanted = found[:2], wanted[:2]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, err_msg=f"line {one.line}: {text}")
    executed, _ = run_whole(module.kernel("k"), module, launch, {BASE: out})
    check(said, executed, text)


@pytest.mark.parametrize("seed", range(32))
def test_programs_that_depend_on_data_are_marked(seed: int) -> None:
    generated = program(seed)
    executed, _, module, launch = run_engine(generated)
    said = analyse_symbolically(module, module.kernel("k"), launch)
    check(said, executed, generated.ptx)
