"""Cost of the executed analysis on every fixture kernel at its large launch.

    python -m benchmarks.execution [KERNEL ...]

``first`` compiles the kernel to handlers as well (PTX already parsed); ``again`` does not.
``rse`` is the stated relative standard error of executed warp instructions.
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np

from features.execution import execute
from features.launch import Argument, Launch, PointerHint
from features.ptx import read_module
from tests.fixtures.kernels.data import Buffer, FixtureKernel, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS


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


def measure(kernel: FixtureKernel) -> tuple[float, float, str]:
    """Milliseconds of the first and the second call, and the rest of the row."""
    shape = kernel.large
    arguments: dict[str, Argument] = {}
    for index, value in enumerate(shape.arguments.values()):
        if isinstance(value, Buffer):
            arguments[str(index)] = hint(value)
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    module = read_module(ptx_path(kernel.source, targets(kernel.source)[-1]).read_text())
    function = module.kernel(kernel.entry)
    _ = function.body
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    times = []
    for _ in range(2):
        began = perf_counter()
        result = execute(function, module, launch)
        times.append(1e3 * (perf_counter() - began))
    sampling = result.sampling
    row = (
        f"{launch.threads:>10} {len(sampling.plan.blocks):>6} {sampling.steps:>6} "
        f"{sampling.relative_standard_error:>7.4f} {'' if sampling.completed else 'cut'}"
    )
    return times[0], times[1], row


def main() -> None:
    """Print the table."""
    chosen = [k for k in KERNELS if not sys.argv[1:] or k.name in sys.argv[1:]]
    print(f"{'kernel':<20} {'first ms':>9} {'again ms':>9} {'threads':>10} blocks   runs     rse")
    firsts, agains = [], []
    for kernel in chosen:
        first, again, row = measure(kernel)
        firsts.append(first)
        agains.append(again)
        print(f"{kernel.name:<20} {first:9.1f} {again:9.1f} {row}")
    print(f"{'median':<20} {np.median(firsts):9.1f} {np.median(agains):9.1f}")
    print(f"{'largest':<20} {max(firsts):9.1f} {max(agains):9.1f}")


if __name__ == "__main__":
    main()
