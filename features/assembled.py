"""What ptxas makes of a kernel, asked once for each capability and cap of registers."""

from __future__ import annotations

from wattcast.features.attached import Attached
from wattcast.features.cuda import PtxasReport, measure_resources
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx.ir import Function, Module

_Asked = tuple[str, int | None]

_known: Attached[Function, dict[_Asked, PtxasReport | None]] = Attached("assembled")


def assembled(
    module: Module, function: Function, gpu: GpuProfile, most_registers: int | None = None
) -> PtxasReport | None:
    """Registers, stack and spills of ``function`` on ``gpu``; ``None`` if ptxas cannot tell.

    ``most_registers`` per thread caps them, as ``-maxrregcount`` does.
    """
    known = _known.set(function, {})
    asked = gpu.compute_capability, most_registers
    if asked not in known:
        major, minor = gpu.compute_capability.split(".")
        known[asked] = measure_resources(
            module.text, function.name, (int(major), int(minor)), most_registers=most_registers
        )
    return known[asked]


def spill_warning(function: Function, report: PtxasReport) -> Diagnostic | None:
    """What to say of a kernel whose registers do not hold its values; its PTX shows none of it."""
    if not report.spills:
        return None
    return Diagnostic(
        "registers_spilled",
        f"ptxas spills registers at {report.registers_per_thread} a thread: "
        f"{report.spill_store_bytes} bytes stored and {report.spill_load_bytes} bytes loaded per "
        "thread. Their time and energy are not predicted. Relax __launch_bounds__ or "
        "-maxrregcount, or keep fewer values alive",
        function.line,
    )
