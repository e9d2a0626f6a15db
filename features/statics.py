"""What the PTX of a kernel tells without launch or GPU: ``statics(module, function)``."""

from __future__ import annotations

from dataclasses import dataclass, field

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph, build_cfg
from wattcast.features.effort import checkpoint
from wattcast.features.errors import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import classify
from wattcast.features.loops import LoopForest, natural_loops
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.registers import RegisterEstimate, estimate_registers, static_shared_bytes
from wattcast.features.schemas.counting import PtxCounts, count


@dataclass(frozen=True, eq=False)
class KernelStatics:
    """What the PTX of one kernel tells without launch or GPU."""

    function: Function
    cfg: ControlFlowGraph
    loops: LoopForest
    counts: PtxCounts
    static_shared_bytes: int
    diagnostics: tuple[Diagnostic, ...]
    _registers: dict[str, RegisterEstimate] = field(default_factory=dict, init=False, repr=False)

    def registers(self, gpu: GpuProfile) -> RegisterEstimate:
        """The liveness estimate; worked out only where nobody gives the number.

        It depends on the compute capability alone, and is kept for it.
        """
        known = self._registers.get(gpu.compute_capability)
        if known is None:
            known = estimate_registers(self.function, self.cfg, gpu=gpu)
            self._registers[gpu.compute_capability] = known
        return known


def statics(module: Module, function: Function) -> KernelStatics:
    """Analyse a kernel's text once; later calls for the same function are look-ups.

    Raises PtxError where the body is not PTX, TooComplexError where it is beyond its limits.
    """
    return _statics(function, module)


@attached
def _statics(function: Function, module: Module) -> KernelStatics:
    body = function.body
    cfg = build_cfg(body)
    loops = natural_loops(cfg)
    checkpoint()
    return KernelStatics(
        function=function,
        cfg=cfg,
        loops=loops,
        counts=count(body),
        static_shared_bytes=static_shared_bytes(module, function),
        diagnostics=(
            *module.diagnostics,
            *body.diagnostics,
            *cfg.diagnostics,
            *loops.diagnostics,
            *_unknown_opcodes(function),
        ),
    )


def _unknown_opcodes(function: Function) -> list[Diagnostic]:
    """One warning per unknown opcode, at its first place."""
    first: dict[str, Diagnostic] = {}
    for instruction in function.body.instructions:
        opcode = instruction.opcode
        if opcode not in first and not classify(opcode).known:
            detail = f"{opcode} is not a known PTX instruction; it is counted as unknown"
            place = (instruction.line, instruction.column)
            first[opcode] = Diagnostic("unknown_opcode", detail, *place)
    return list(first.values())
