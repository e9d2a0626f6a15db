"""Launches run whole on memory that a test gives: every block, every iteration, every value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np

from wattcast.features.execution import ExecutionResult, engine
from wattcast.features.execution.arguments import Bound, _pack, bind, initial_bytes
from wattcast.features.execution.machine import Machine
from wattcast.features.execution.program import Program
from wattcast.features.execution.sampling import whole
from wattcast.features.execution.spaces import PARAMETER_BASE, DenseRegion, GlobalMemory
from wattcast.features.launch import Launch
from wattcast.features.ptx.ir import Function, Module

Array = np.ndarray[Any, Any]


def _never(*_: Any) -> bool:
    return False


def run_whole(
    function: Function, module: Module, launch: Launch, buffers: Mapping[int, Array],
    *, by_value: Mapping[str, bytes] | None = None, every_value: bool = True, **options: Any,
) -> tuple[ExecutionResult, dict[int, Array]]:  # fmt: skip
    """The result, and the buffers afterwards as bytes; both by base address.

    Pointer arguments of the launch are plain integers, the addresses; ``by_value`` are the bytes
    of parameters passed by value. What matrix units, tensor copies and textures give is unknown.
    Without ``every_value`` what decides no count is left out, as where nobody looks at memory.
    """
    held = {
        base: DenseRegion(f"0x{base:x}", base, np.ascontiguousarray(data).reshape(-1).view("u1"))
        for base, data in buffers.items()
    }

    def given(program: Program, launch: Launch, seed: int) -> Bound:
        found = bind(program, launch, seed)
        packed = bytearray(found.parameters)
        for index, parameter in enumerate(function.parameters):
            value = launch.arguments.get(parameter.name, launch.arguments.get(str(index)))
            data = (by_value or {}).get(str(index))
            if data is None and isinstance(value, int | float):
                data = _pack(value, parameter)
            if data is not None:
                start = program.parameters[parameter.name]
                packed[start : start + len(data)] = data
        kept = [
            DenseRegion(name, placed.address, initial_bytes(placed.variable, program.address_of))
            for name, placed in program.globals.items()
        ]
        of_parameters = DenseRegion("", PARAMETER_BASE, np.frombuffer(bytes(packed), dtype="u1"))
        told = tuple(each for each in found.diagnostics if each.code != "argument_assumed")
        return Bound(bytes(packed), GlobalMemory([*held.values(), *kept, of_parameters]), told)

    with (
        patch.object(engine, "bind", given),
        patch.object(engine, "compiled", Program),
        patch.object(Program, "_is_idle", _never if every_value else Program._is_idle),
        patch.object(Machine, "clock", lambda _: 0),
    ):
        result = engine.execute(
            function, module, launch,
            **{"plan": whole(launch), "effort": None, "extrapolate": False, **options},
        )  # fmt: skip
    return result, {base: region.flat[: region.size] for base, region in held.items()}
