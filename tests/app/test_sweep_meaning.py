"""What a sweep proposes computes what the launch computes: memory compared, launch for launch.

The scalar reference interpreter runs every fixture kernel it can under the asked launch and under
each shape that ``POST /sweep`` has points for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.fixtures.kernels.data import Buffer, FixtureKernel, Shape, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.fixtures import ptx_text, reference_arguments, run_fixture
from tests.reference.machine import run
from wattcast.app.services import Services
from wattcast.predictor.messages.sweep import SweepRequest
from wattcast.predictor.sweep import sweep

MOST_RUN = 6
"""Shapes of one launch that are interpreted: the first, the last and some between."""

NAMED = {kernel.name: kernel for kernel in KERNELS}


def argument(given: Any) -> Any:
    """An argument as a user would say it; ``None`` for what is not said."""
    if isinstance(given, Buffer):
        return {"elements": int(np.prod(given.shape))}
    return given.item() if isinstance(given, np.generic) else None


def swept(services: Services, kernel: FixtureKernel, shape: Shape, /, **changes: Any) -> Any:
    told = {str(n): argument(each) for n, each in enumerate(shape.arguments.values())}
    launch = {
        "grid": list(shape.grid),
        "block": list(shape.block),
        "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        "arguments": {name: value for name, value in told.items() if value is not None},
    }
    body = {
        "ptx": ptx_text(kernel.source, targets(kernel.source)[-1]),
        "kernel": kernel.entry,
        "gpu": "h100",
        "launch": launch,
        **changes,
    }
    return sweep(services, SweepRequest.model_validate(body))


@cache
def asked_memory(name: str, number: int) -> dict[str, Any]:
    kernel = NAMED[name]
    return run_fixture(kernel, kernel.shapes[number], targets(kernel.source)[-1]).memory


def same_memory(kernel: FixtureKernel, number: int, point: Any) -> bool:
    """Whether a shape leaves the memory that the asked launch leaves. Sums that threads add up
    atomically may be rounded in another order."""
    shape = kernel.shapes[number]
    got = run(
        ptx_text(kernel.source, targets(kernel.source)[-1]),
        kernel.entry,
        tuple(point["grid"]),
        tuple(point["block"]),
        reference_arguments(kernel.name, shape),
        shape.dynamic_shared_bytes,
    ).memory
    wanted = asked_memory(kernel.name, number)
    adds = any(f"{op}.global.add.f" in ptx_text(kernel.source, targets(kernel.source)[-1])
               for op in ("red", "atom"))  # fmt: skip
    return all(
        np.allclose(got[name], array, 1e-5, 1e-6, equal_nan=True)
        if adds and array.dtype.kind == "f"
        else got[name].tobytes() == array.tobytes()
        for name, array in wanted.items()
    )


def some(points: list[Any]) -> list[Any]:
    if len(points) <= MOST_RUN:
        return points
    return [points[round(at)] for at in np.linspace(0, len(points) - 1, MOST_RUN)]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_proposed_launch_leaves_the_same_memory(
    services: Services, kernel: FixtureKernel
) -> None:
    for number, shape in enumerate(kernel.shapes):
        answer = swept(services, kernel, shape)
        others = [
            point
            for point in answer["points"]
            if (point["grid"], point["block"])
            != (answer["reference"]["grid"], answer["reference"]["block"])
        ]
        for point in some(others):
            assert same_memory(kernel, number, point), (number, point["grid"], point["block"])


def test_the_interpreter_finds_what_a_sweep_leaves_out(services: Services) -> None:
    """The check above can fail: launches that are left out do change the memory."""
    for name, block in (("transpose_direct", [8, 64]), ("grid3d", [32, 1, 1])):
        kernel = NAMED[name]
        for number, shape in enumerate(kernel.shapes[:2]):
            asked = {"blocks": [block]}
            answer = swept(services, kernel, shape, **asked)
            assert [left["block"][: len(block)] for left in answer["left_out"]] == [block]
            every = swept(services, kernel, shape, **asked, include_unproven=True)["points"]
            assert not same_memory(kernel, number, every[0])


@pytest.mark.parametrize("name", ["saxpy", "warp_reduce", "grid_stride", "stencil3d"])
def test_kernels_that_know_their_place_alone_are_proposed_other_blocks(
    services: Services, name: str
) -> None:
    kernel = NAMED[name]
    answer = swept(services, kernel, kernel.shapes[0])
    others = [p for p in answer["points"] if p["block"] != answer["reference"]["block"]]
    assert others
    assert all(same_memory(kernel, 0, point) for point in some(others))
