"""Cost of the executed analysis on every fixture kernel at its large launch, and on programs
made to hang it.

    python -m benchmarks execution              budgets only
    python -m benchmarks.execution [KERNEL ...] one line per kernel

``first`` compiles the kernel to handlers as well (PTX already parsed); ``again`` does not.
``rse`` is the stated relative standard error of executed warp instructions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import numpy as np

from benchmarks.measure import Row, at_most, fact
from tests.fixtures.kernels.data import Buffer, FixtureKernel, Shape, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.generated.hostile import PROGRAMS
from wattcast.features.execution import execute
from wattcast.features.launch import Argument, Launch, PointerHint
from wattcast.features.ptx import read_module


def hint(buffer: Buffer) -> PointerHint:
    """What a fixture's buffer holds, as a user would say it."""
    elements = int(np.prod(buffer.shape))
    low, high = buffer.low, buffer.high
    if buffer.fill == "offsets":
        high = (low + high) / 2 * elements
        low = 0.0
    kinds = {"zeros": "zeros", "index": "index", "sorted": "sorted", "offsets": "sorted"}
    if buffer.fill == "constant":
        high = low
    return PointerHint(elements, kinds.get(buffer.fill, "uniform"), low, high)


def launch_of(shape: Shape) -> Launch:
    """A fixture's launch, with what a user would say of its arguments."""
    arguments: dict[str, Argument] = {}
    for index, value in enumerate(shape.arguments.values()):
        if isinstance(value, Buffer):
            arguments[str(index)] = hint(value)
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    return Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)


class Measured(NamedTuple):
    """Milliseconds of the first call (which compiles the kernel to handlers) and the second."""

    first: float
    again: float
    threads: int
    blocks: int
    steps: int
    relative_standard_error: float
    completed: bool


def rows() -> Iterator[Row]:
    """Every row of this part: one first call per kernel, as a user's request is."""
    measured = [measure(kernel, calls=1) for kernel in KERNELS]
    times = [m.first for m in measured]
    cut = sum(not m.completed for m in measured) / len(measured)
    of = f"{len(measured)} fixtures at large launches"
    yield at_most(f"executed analysis, median of {of}", float(np.median(times)), 100.0, "ms")
    yield fact("executed analysis, 90th percentile", float(np.percentile(times, 90)), "ms")
    yield fact("executed analysis, worst", max(times), "ms")
    yield fact("executed analysis, cut short by the budget", 100 * cut, "%")
    hostile = {name: _milliseconds_of_hostile(name) for name in PROGRAMS}
    worst = max(hostile, key=lambda name: hostile[name])
    yield fact(f"executed analysis, worst hostile program ({worst})", hostile[worst], "ms")


def _milliseconds_of_hostile(name: str) -> float:
    """One call on a program of ``tests.generated.hostile``, PTX already parsed."""
    program = PROGRAMS[name]
    module = read_module(program.ptx)
    function = module.kernel(None)
    _ = function.body
    began = perf_counter()
    execute(function, module, program.launch)
    return 1e3 * (perf_counter() - began)


def measure(kernel: FixtureKernel, calls: int = 2) -> Measured:
    """Run a fixture's large launch; with one call ``again`` is that of the first."""
    module = read_module(ptx_path(kernel.source, targets(kernel.source)[-1]).read_text())
    function = module.kernel(kernel.entry)
    _ = function.body
    launch = launch_of(kernel.large)
    times = []
    for _ in range(calls):
        began = perf_counter()
        result = execute(function, module, launch)
        times.append(1e3 * (perf_counter() - began))
    sampling = result.sampling
    return Measured(
        times[0], times[-1], launch.threads, len(sampling.plan.blocks), sampling.steps,
        sampling.relative_standard_error, sampling.completed,
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    chosen = [k for k in KERNELS if not sys.argv[1:] or k.name in sys.argv[1:]]
    print(f"{'kernel':<20} {'first ms':>9} {'again ms':>9} {'threads':>10} blocks   runs     rse")
    measured = []
    for kernel in chosen:
        m = measure(kernel)
        measured.append(m)
        print(
            f"{kernel.name:<20} {m.first:9.1f} {m.again:9.1f} {m.threads:>10} {m.blocks:>6} "
            f"{m.steps:>6} {m.relative_standard_error:>7.4f} {'' if m.completed else 'cut'}"
        )
    firsts, agains = [m.first for m in measured], [m.again for m in measured]
    print(f"{'median':<20} {np.median(firsts):9.1f} {np.median(agains):9.1f}")
    print(f"{'largest':<20} {max(firsts):9.1f} {max(agains):9.1f}")


if __name__ == "__main__":
    main()
