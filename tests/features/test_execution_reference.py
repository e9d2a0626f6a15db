"""The vectorised engine against the scalar reference interpreter, which shares no code with it.

Every fixture kernel, on its oldest and its newest target, at its three shapes: executed counts,
sectors and shared transactions of every instruction are equal, and memory is equal byte by byte.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.kernels.data import FixtureKernel, Shape, materialise, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.fixtures import run_fixture
from tests.reference.memory import TEXTURE_BASE, buffer_addresses
from tests.reference.memory import TensorMap as OfReference
from wattcast.features.execution import ExactMemory, ExecutionResult, execute
from wattcast.features.execution.tensor_maps import TensorMap
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.wide_loads import joined_loads

CASES = [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}")
    for kernel in KERNELS
    for target in sorted({targets(kernel.source)[0], targets(kernel.source)[-1]})
]


def run_exact(
    kernel: FixtureKernel, shape: Shape, target: str
) -> tuple[ExecutionResult, dict[str, np.ndarray]]:
    """The launch on the engine, and its buffers afterwards by name."""
    made = materialise(kernel.name, shape)
    places = buffer_addresses(made)
    arguments: dict[str, int | float] = {}
    textures: dict[int, np.ndarray] = {}
    by_value: dict[str, bytes] = {}
    module = read_module(ptx_path(kernel.source, target).read_text())
    function = module.kernel(kernel.entry)
    maps: dict[str, TensorMap] = {}
    for index, (name, value) in enumerate(made.items()):
        if isinstance(value, np.ndarray):
            arguments[str(index)] = places[name]
        elif isinstance(value, tuple):
            handle = TEXTURE_BASE + 256 * len(textures)
            textures[handle] = value[0]
            arguments[str(index)] = handle
        elif isinstance(value, bytes):
            by_value[str(index)] = value
        elif isinstance(value, OfReference):
            held = {**vars(value), "address": places[value.address]}
            maps[function.parameters[index].name] = TensorMap(**held)
            by_value[str(index)] = bytes(128)
        else:
            arguments[str(index)] = value.item()
    result = execute(
        function,
        module,
        Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments),
        exact=ExactMemory(
            {places[n]: made[n] for n in places},
            textures=textures,
            parameters=by_value,
            tensor_maps=maps,
        ),
        effort=None,
    )
    after = {
        name: result.contents[place].view(made[name].dtype).reshape(made[name].shape)
        for name, place in places.items()
    }
    return result, after


@pytest.mark.parametrize(("kernel", "target"), CASES)
def test_counts_and_memory_equal_the_reference(kernel: FixtureKernel, target: str) -> None:
    module = read_module(ptx_path(kernel.source, target).read_text())
    joined = {each.name: joined_loads(each.body).bytes for each in module.functions if each.body}
    for number, shape in enumerate(kernel.shapes):
        wanted = run_fixture(kernel, shape, target)
        result, after = run_exact(kernel, shape, target)
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
            where = f"shape {number}, {one.function}, {one.opcode} in line {one.line}"
            if kernel.order_dependent:
                continue
            assert found == expected, where
        for name, memory in after.items():
            np.testing.assert_array_equal(
                memory.view(np.uint8),
                np.ascontiguousarray(wanted.memory[name]).reshape(memory.shape).view(np.uint8),
                err_msg=f"shape {number}, buffer {name}",
            )
