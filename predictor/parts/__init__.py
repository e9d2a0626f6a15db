"""Parts that several answers share, as plain data of the shapes in ``predictor.messages``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import ServiceError
from wattcast.features.gpus import GpuProfile
from wattcast.models.estimate import Estimate
from wattcast.models.time.base import TimePrediction
from wattcast.predictor.messages import KernelRequest
from wattcast.predictor.parts.arguments import by_position
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.sources import Source

if TYPE_CHECKING:
    from wattcast.predictor import Limits, Predictor

MOST_WARNINGS = 200
"""Warnings of one answer; hostile PTX could bring one for every line."""


def analysed(
    predictor: Predictor,
    request: KernelRequest,
    source: Source,
    gpu: GpuProfile,
    *,
    ptxas: bool = False,
) -> KernelAnalysis:
    """The analysis of the requested kernel; the very same one if it was asked for before.

    ``ptxas`` asks the compiler for registers that nobody gives, where settings allow it.
    Raises PtxError, KernelError, LaunchError, and ServiceError for a time cap over the limit.
    """
    module = source.known.module
    function = module.kernel(request.kernel)
    launch = request.launch.launch()
    if launch.arguments:
        kernels = source.cuda.kernels if source.cuda is not None else ()
        launch = replace(launch, arguments=by_position(function, launch.arguments, kernels))
    cap = cap_seconds(predictor.settings, request)
    ptxas = ptxas and predictor.settings.ptxas == "auto" and request.registers_per_thread is None
    ptxas = ptxas and predictor.sources.may_compile
    key = (
        source.known.sha256,
        function.name,
        launch.grid,
        launch.block,
        launch.dynamic_shared_bytes,
        tuple(launch.arguments.items()),
        tuple(sorted(request.loops.items())),
        request.registers_per_thread,
        request.static_shared_bytes,
        request.analysis,
        cap,
        ptxas,
        # Profiles of the user may change. The analysis holds this one, so its id stays its own.
        id(gpu),
    )

    def make() -> KernelAnalysis:
        return analyse(
            module,
            function,
            launch,
            gpu,
            loops=request.loops,
            registers_per_thread=request.registers_per_thread,
            static_shared_bytes=request.static_shared_bytes,
            ptxas=ptxas,
            analysis=request.analysis,
            time_cap_seconds=cap,
        )

    # An analysis holds its module, and is weighed without it: it goes when the module does.
    if not predictor.modules.keeps(source.known):
        return make()
    return predictor.analysed.get_or_make(key, make, predictor.modules.place(source.known))


def cap_seconds(settings: Limits, request: KernelRequest) -> float:
    """Time cap of the executed analysis: the request's, else the settings'. Raises ServiceError."""
    asked = request.analysis_seconds
    if asked is None:
        return min(settings.execution_seconds, settings.max_execution_seconds)
    if asked > settings.max_execution_seconds:
        raise ServiceError(
            "validation",
            f"analysis_seconds: {asked:g} asked; at most {settings.max_execution_seconds:g} "
            "are given (WATTCAST_MAX_EXECUTION_SECONDS)",
            field="analysis_seconds",
        )
    return asked


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
    """``wattcast.predictor.messages.KernelName``."""
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


def time_model(found: TimePrediction | None) -> dict[str, Any] | None:
    """``wattcast.predictor.messages.TimeModel``."""
    if found is None:
        return None
    return {
        "family": found.family,
        "regime": found.regime,
        "parts": dict(found.parts),
        "model": None if found.card is None else reference_of(found.card),
    }


def compiled(source: Source) -> dict[str, Any] | None:
    """``wattcast.predictor.messages.Compiled``; ``None`` where the request brought PTX."""
    return source.cuda.answer() if source.cuda is not None else None


def warnings(
    source: Source, analysis: KernelAnalysis, *groups: Iterable[Diagnostic]
) -> list[dict[str, Any]]:
    """``wattcast.predictor.messages.WarningLine``: each once, in order, at most ``MOST_WARNINGS``.

    The compiler's come first, with their lines in the CUDA source; other warnings of a kernel
    that was compiled tell both lines.
    """
    found: list[dict[str, Any]] = []
    lines: dict[int, int] = {}
    if source.cuda is not None:
        found = [_warning(d, None, d.line) for d in source.cuda.compiled.diagnostics]
        lines = {
            instruction.line: instruction.location.line
            for instruction in analysis.function.body.instructions
            if instruction.location is not None
        }
    found += _each_once((analysis.diagnostics, *groups), lines)
    if len(found) > MOST_WARNINGS:
        left_out = len(found) - MOST_WARNINGS
        more = Diagnostic("more_warnings", f"{left_out} more warnings are left out")
        found = [*found[:MOST_WARNINGS], _warning(more, None, None)]
    return found


def plain_warnings(*groups: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """The same where there is no kernel: few, and none has a line."""
    return _each_once(groups, {})


def _each_once(
    groups: Iterable[Iterable[Diagnostic]], source_lines: Mapping[int, int]
) -> list[dict[str, Any]]:
    return [
        _warning(each, each.line, source_lines.get(each.line) if each.line is not None else None)
        for each in dict.fromkeys(each for group in groups for each in group)
    ]


def _warning(found: Diagnostic, line: int | None, source_line: int | None) -> dict[str, Any]:
    return {
        "code": found.code,
        "detail": found.detail,
        "line": line,
        "column": found.column,
        "source_line": source_line,
    }
