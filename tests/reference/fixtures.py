"""Run a fixture kernel on the reference interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.fixtures.kernels.data import FixtureKernel, Shape, materialise, ptx_path
from tests.reference.machine import ReferenceResult, run
from tests.reference.memory import Texture


def reference_arguments(kernel: str, shape: Shape) -> dict[str, Any]:
    """Arguments as ``machine.run`` takes them."""
    made = materialise(kernel, shape)
    return {n: Texture(v[0]) if isinstance(v, tuple) else v for n, v in made.items()}


@cache
def ptx_text(source: str, target: str) -> str:
    return ptx_path(source, target).read_text()


def run_fixture(kernel: FixtureKernel, shape: Shape, target: str) -> ReferenceResult:
    """The kernel's launch on the reference interpreter."""
    return run(
        ptx_text(kernel.source, target),
        kernel.entry,
        shape.grid,
        shape.block,
        reference_arguments(kernel.name, shape),
        shape.dynamic_shared_bytes,
    )
