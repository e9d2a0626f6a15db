"""The vectorised engine against the scalar reference interpreter, which shares no code with it.

Every fixture kernel, on its oldest and its newest target, at its three shapes: executed counts,
sectors and shared transactions of every instruction are equal, and so is memory where neither
matrix units nor textures give what is stored (floats but for how products are rounded). Where
arithmetic that decides no count is left out, as in every answer, all counts stay the same.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from tests.features.whole_runs import run_whole
from tests.fixtures.kernels.data import FixtureKernel, Shape, materialise, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.reference.fixtures import run_fixture
from tests.reference.memory import TEXTURE_BASE, TensorMap, buffer_addresses
from wattcast.features.execution import ExecutionResult
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Function
from wattcast.features.wide_loads import joined_loads

CASES = [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}")
    for kernel in KERNELS
    for target in sorted({targets(kernel.source)[0], targets(kernel.source)[-1]})
] + [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}", marks=pytest.mark.slow)
    for kernel in TENSOR_KERNELS
    for target in targets(kernel.source)
]

TENSOR = {kernel.name for kernel in TENSOR_KERNELS}
"""Their copies give what the engine does not follow."""

NOT_FOLLOWED = {"mma", "wmma", "ldmatrix", "tex"}


def opcodes(function: Function) -> set[str]:
    return {one.base for one in function.body.instructions} if not function.declaration else set()


def run_exact(
    kernel: FixtureKernel, shape: Shape, target: str, *, every_value: bool = True
) -> tuple[ExecutionResult, dict[str, np.ndarray]]:
    """The launch on the engine, and its buffers afterwards by name."""
    made = materialise(kernel.name, shape)
    places = buffer_addresses(made)
    arguments: dict[str, int | float] = {}
    textures = 0
    by_value: dict[str, bytes] = {}
    module = read_module(ptx_path(kernel.source, target).read_text())
    function = module.kernel(kernel.entry)
    for index, (name, value) in enumerate(made.items()):
        if isinstance(value, np.ndarray):
            arguments[str(index)] = places[name]
        elif isinstance(value, tuple):
            arguments[str(index)] = TEXTURE_BASE + 256 * textures
            textures += 1
        elif isinstance(value, bytes):
            by_value[str(index)] = value
        else:
            arguments[str(index)] = value.item()
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    held = {places[name]: made[name] for name in places}
    result, contents = run_whole(
        function, module, launch, held, by_value=by_value, every_value=every_value
    )
    after = {
        name: contents[place].view(made[name].dtype).reshape(made[name].shape)
        for name, place in places.items()
    }
    return result, after


def plain(value: Any) -> Any:
    """A result as plain data, but for its effort: what decides no count is not charged."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "effort"}
    return value


@pytest.mark.parametrize(("kernel", "target"), CASES)
def test_counts_and_memory_equal_the_reference(kernel: FixtureKernel, target: str) -> None:
    module = read_module(ptx_path(kernel.source, target).read_text())
    followed = kernel.name not in TENSOR and not any(
        one in NOT_FOLLOWED for each in module.functions for one in opcodes(each)
    )
    joined = {each.name: joined_loads(each.body).bytes for each in module.functions if each.body}
    for number, shape in enumerate(kernel.shapes):
        if any(isinstance(value, TensorMap) for value in shape.arguments.values()):
            continue  # what a map holds is not known to the engine
        wanted = run_fixture(kernel, shape, target)
        result, after = run_exact(kernel, shape, target)
        counts_alone, _ = run_exact(kernel, shape, target, every_value=False)
        alone, every = plain(counts_alone), plain(result)
        if not followed:  # divisions by sums of products that nobody computes: zeros, a long way
            for each in (*alone["functions"].values(), *every["functions"].values()):
                del each["constant_transactions"]
        assert alone == every
        assert result.sampling.completed
        assert result.diagnostics == ()
        for one in wanted.per_instruction:
            counts = result.functions[one.function]
            place = one.index
            found = (
                counts.warp_executions[place],
                counts.active_lanes[place],
                counts.sectors[place],
                counts.shared_transactions[place],
            )
            expected = (
                one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions,
            )  # fmt: skip
            if joined[one.function][place]:  # one load of ptxas (test_wide_loads.py)
                found, expected = found[:3], expected[:3]
            if one.opcode.startswith("tex"):  # the reference counts no sectors of texels
                found, expected = found[:2], expected[:2]
            where = f"shape {number}, {one.function}, {one.opcode} in line {one.line}"
            if kernel.order_dependent:
                continue
            assert found == expected, where
        for name, memory in after.items() if followed else ():
            np.testing.assert_allclose(
                memory, wanted.memory[name].reshape(memory.shape), 1e-3, 1e-5,
                err_msg=f"shape {number}, buffer {name}",
            )  # fmt: skip
