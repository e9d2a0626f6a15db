"""PTX written by hand for the tests of the execution engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.features.whole_runs import run_whole
from wattcast.features.execution import ExecutionResult, SamplingPlan, execute
from wattcast.features.isa import classify
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module

BASE = 0x7F0000000000

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"
PARAMETERS = ".param .u64 out, .param .u32 n"
REGISTERS = """
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<8>;
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r5, %r3, %r4, %r2;
    mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2;
"""


def kernel(body: str, before: str = "", declarations: str = "") -> str:
    """A module with one kernel ``k(out, n)``: %r2 tid, %r5 global index, %rd3 its element."""
    return (
        f"{HEAD}{before}\n.visible .entry k({PARAMETERS})\n{{{declarations}{REGISTERS}{body}\n}}\n"
    )


def run(
    body: str, *, grid: int = 1, block: int = 32, n: int = 0, before: str = "",
    declarations: str = "", words: int | None = None, exact: bool = True, **options: Any,
) -> tuple[ExecutionResult, np.ndarray]:  # fmt: skip
    """Run ``kernel(body)``; the 32-bit words of ``out`` afterwards (empty if not exact)."""
    options.setdefault("effort", None)
    module = read_module(kernel(body, before, declarations))
    out = np.zeros(words or grid * block, dtype=np.uint32)
    arguments: dict[str, Any] = {"n": n}
    if not exact:
        launch = Launch.of(grid, block, 0, arguments)
        return execute(module.kernel("k"), module, launch, **options), out[:0]
    launch = Launch.of(grid, block, 0, {"out": BASE, **arguments})
    result, after = run_whole(module.kernel("k"), module, launch, {BASE: out}, **options)
    return result, after[BASE].view(np.uint32)


@contextmanager
def counted_by_block() -> Iterator[list[np.ndarray]]:
    """What every sampled block executed, ``int64[blocks, counts, instructions]`` for each function
    of each execution: warp executions, active lanes, ..., distinct sectors."""
    found: list[np.ndarray] = []
    estimate = SamplingPlan.estimate

    def noted(plan: SamplingPlan, per_block: np.ndarray) -> np.ndarray:
        if per_block.ndim == 3:
            found.append(per_block)
        return estimate(plan, per_block)

    with patch.object(SamplingPlan, "estimate", noted):
        yield found


def of_class(module: Module, counts: Any, opcode_class: str) -> dict[str, float]:
    """Launch totals of the instructions of an opcode class in one function."""
    function = module.function(counts.function)
    assert function is not None
    own = [classify(one.opcode).opcode_class == opcode_class for one in function.body.instructions]
    names = ("warp_executions", "active_lanes", "requests", "sectors")
    return {name: float(getattr(counts, name)[own].sum()) for name in names}
