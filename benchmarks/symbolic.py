"""The symbolic analysis: a small kernel, a large one, and growth with size."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measure import Row, at_most, fact, in_fresh_process, median_seconds
from benchmarks.ptx_text import kernel
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module

LAUNCH = Launch.of(4096, 256, arguments={"1": 1_000_000})


def rows() -> Iterator[Row]:
    """Every row of this part.

    The PTX is parsed already; each figure includes building the value graph of the text, which
    a second launch of the same kernel does not pay.
    """
    yield at_most("symbolic analysis, 100 instructions", _seconds(100, 50) * 1e3, 4.0, "ms")
    smallest = 0.0
    for size in (1000, 2000, 4000, 8000):
        seconds = _seconds(size, 5)
        smallest = smallest or seconds
        yield fact(f"symbolic analysis, {size} instructions", seconds * 1e3, "ms")
        if size == 8000:
            yield at_most("growth from 1,000 to 8,000 instructions", seconds / smallest, 12.0, "x")
    seconds = _seconds(10_000, 5, blocks=200)
    yield at_most("symbolic, 10,000 instructions in 200 blocks", seconds * 1e3, 250.0, "ms")
    yield at_most("its peak memory above the import", _peak_mebibytes(), 300.0, "MiB")


def _seconds(size: int, repeats: int, blocks: int | None = None) -> float:
    from wattcast.features.symbolic import analyse_symbolically

    text = kernel(size, blocks=blocks)
    parsed = [read_module(text) for _ in range(repeats + 2)]
    for module in parsed:
        _ = module.kernel().body
    modules = iter(parsed)

    def once() -> None:
        module = next(modules)
        analyse_symbolically(module, module.kernel(), LAUNCH)

    return median_seconds(once, repeats, 1)


def _peak_mebibytes() -> float:
    code = """
from pathlib import Path
from benchmarks.ptx_text import kernel
from benchmarks.symbolic import LAUNCH
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import analyse_symbolically

def field(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

small = read_module(kernel(20)); analyse_symbolically(small, small.kernel(), LAUNCH)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = field("VmRSS")
module = read_module(kernel(10_000, blocks=200))
analyse_symbolically(module, module.kernel(), LAUNCH)
print(field("VmHWM") - before)
"""
    return float(in_fresh_process(code))
