"""Parts that several answers share, as plain data of the shapes in ``app.messages``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.messages import KernelRequest
from app.services.modules import KnownModule
from features.analysis import KernelAnalysis, analyse
from features.diagnostics import Diagnostic
from features.gpus import GpuProfile
from models.estimate import Estimate

MOST_WARNINGS = 200
"""Warnings of one answer; hostile PTX could bring one for every line."""


def analysed(request: KernelRequest, known: KnownModule, gpu: GpuProfile) -> KernelAnalysis:
    """The analysis of the requested kernel. Raises PtxError, KernelError or LaunchError."""
    return analyse(
        known.module,
        request.kernel,
        request.launch.launch(),
        gpu,
        loops=request.loops,
        registers_per_thread=request.registers_per_thread,
        static_shared_bytes=request.static_shared_bytes,
    )


def estimate(part: Estimate, unit: str) -> dict[str, Any]:
    """An estimate whose value is named by its unit: ``watts``, ``seconds`` or ``joules``."""
    return {
        unit: part.value,
        "low": part.low,
        "high": part.high,
        "level": part.level,
        "basis": part.basis,
    }


def kernel_name(analysis: KernelAnalysis) -> dict[str, str]:
    """``app.messages.KernelName``."""
    function = analysis.function
    return {"mangled": function.name, "demangled": function.demangled}


def facts(analysis: KernelAnalysis) -> dict[str, Any]:
    """What an answer says of the analysis besides features: occupancy, registers, trips."""
    occupancy, registers = analysis.occupancy, analysis.registers
    return {
        "occupancy": {
            "occupancy": occupancy.occupancy,
            "resident_blocks_per_sm": occupancy.resident_blocks_per_sm,
            "resident_warps_per_sm": occupancy.resident_warps_per_sm,
            "limiter": occupancy.limiter,
        },
        "registers": {
            "value": registers.registers_per_thread,
            "low": registers.low,
            "high": registers.high,
            "how": registers.how,
        },
        "trip_counts": [
            {
                "loop": trip.label,
                "trips": trip.count,
                "how": trip.how,
                "line": trip.line,
                "source_line": trip.source_line,
            }
            for trip in analysis.trip_counts
        ],
    }


def warnings(*groups: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """``app.messages.WarningLine``: each once, in order, at most ``MOST_WARNINGS``."""
    found = list(dict.fromkeys(d for group in groups for d in group))
    if len(found) > MOST_WARNINGS:
        left_out = len(found) - MOST_WARNINGS
        found = found[:MOST_WARNINGS]
        found.append(Diagnostic("more_warnings", f"{left_out} more warnings are left out"))
    return [{"code": d.code, "detail": d.detail, "line": d.line, "column": d.column} for d in found]
