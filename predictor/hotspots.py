"""Where a launch spends its energy and time: by basic block, PTX line and source line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from wattcast.features.activity.instructions import InstructionEvents, measure_instructions
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cfg import build_cfg
from wattcast.features.errors import AnalysisError, Diagnostic, ServiceError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.ptx.ir import Function, Instruction
from wattcast.models.clocks import ClockPair
from wattcast.models.power import PHYSICAL
from wattcast.models.speed import NAMES, Attribution, Floats, Unit, attributed, unit_cycles
from wattcast.models.time.beside import beside
from wattcast.predictor import parts
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.stored import answer_of, is_compiled, record_of, request_of
from wattcast.predictor.parts.time_and_power import BoardModels

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

DEFAULT_ROWS = 200
"""Rows of each ranking unless asked otherwise."""

MOST_ROWS = 5000
"""Rows of each ranking that can be asked for; the others are summed up in ``rest``."""


def hotspots(
    predictor: Predictor, prediction_id: UUID, rows: int = DEFAULT_ROWS
) -> messages.HotspotsAnswer:
    """Places of a stored prediction: its own joules and seconds, shared out.

    Raises ServiceError ``unknown-prediction`` or ``no-explanation`` (nothing was predicted, or
    from measured work), and AnalysisError where the kernel cannot be analysed any more.
    """
    record = record_of(predictor, prediction_id)
    answer = answer_of(record)
    request = request_of(predictor, record)
    if answer.energy is None:
        raise ServiceError(
            "no-explanation", f"prediction {prediction_id} holds no energy: nothing to share out"
        )
    return hotspots_of(predictor, request, answer, rows, compiled_here=is_compiled(record))


@parts.within_asked_seconds
def hotspots_of(
    predictor: Predictor,
    request: PredictRequest,
    answer: PredictAnswer,
    rows: int = DEFAULT_ROWS,
    *,
    compiled_here: bool = False,
) -> messages.HotspotsAnswer:
    """The same for an answer of ``POST /predict`` for one GPU, and the request behind it.
    ``compiled_here``: file names in the PTX are ours, not the caller's."""
    gpu = predictor.gpus.load(answer.gpu)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
    assert answer.time is not None
    assert answer.energy is not None
    assert answer.kernel is not None
    clocks = ClockPair(answer.clocks.core_mhz, answer.clocks.memory_mhz)
    seconds, joules = answer.time.seconds, answer.energy.joules
    found = attribution(predictor, analysis, gpu, clocks, seconds, request.board or "")
    notes = list(_notes(found, answer))
    table = _Table(analysis, found.shares.scaled(seconds, joules), found.events, found.cycles)
    bare = compiled_here or source.cuda is not None
    return messages.HotspotsAnswer(
        prediction_id=answer.id,
        **parts.members(answer, "gpu", "kernel", "clocks"),
        seconds=seconds,
        joules=joules,
        shares_by=reference_of(found.model),
        cycles=seconds * clocks.core_hz,
        unit_cycles=table.told(table.unit_cycles),
        start=messages.Cost(
            joules=table.shares.start_joules,
            seconds=table.shares.start_seconds,
            energy_share=table.shares.start_joules / joules,
            time_share=table.shares.start_seconds / seconds,
        ),
        blocks=messages.Blocks(**_ranked(table.blocks(), table, rows, messages.BlockHotspot)),
        lines=messages.Lines(**_ranked(table.lines(), table, rows, messages.LineHotspot)),
        source_lines=messages.SourceLines(
            **_ranked(table.source_lines(bare=bare), table, rows, messages.SourceHotspot)
        ),
        warnings=parts.warnings(source, analysis, analysis.activity_diagnostics, notes),
    )


@dataclass(frozen=True, slots=True)
class Shares:
    """An attribution with the card of the physical model that made it, and the cycles that each
    instruction takes of each unit (``wattcast.models.speed``)."""

    shares: Attribution
    events: Mapping[str, InstructionEvents]
    cycles: Mapping[str, Mapping[Unit, Floats]]
    model: Any


def attribution(
    predictor: Predictor,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float | None = None,
    board: str = "",
) -> Shares:
    """Seconds and joules by instruction, by the physical power model at the duration answered.
    Raises AnalysisError where the kernel cannot be analysed dynamically."""
    models = BoardModels(predictor.power, gpu, model=PHYSICAL, board=board)
    watts = models.watts(analysis, clocks, time_seconds)
    if watts.components is None:
        raise AnalysisError("; ".join(note.detail for note in watts.diagnostics))
    functions = analysis.counts.functions(analysis.counts.factors())
    events = measure_instructions(analysis.module, functions, analysis.activity)
    activity, more = analysis.activity, beside(analysis.extras)
    shares = attributed(events, activity, gpu, clocks, watts.components, more)
    return Shares(shares, events, unit_cycles(events, activity, gpu, clocks, more), watts.card)


def _notes(found: Shares, answer: PredictAnswer) -> Iterator[Diagnostic]:
    """What else answered than the models that share out."""
    assert answer.model is not None
    assert answer.time_model is not None
    family, timed_by = answer.model.family, answer.time_model.family
    if family != found.model.family:
        yield Diagnostic(
            "shares_of_another_model",
            f"the {family} model predicts only total power; it was divided among lines in the "
            "proportions of the physical model",
        )
    if timed_by != "bottleneck":
        yield Diagnostic(
            "shares_of_another_model",
            f"the {timed_by} model predicts only total time; it was divided among lines in the "
            "proportions of the bottleneck model",
        )


class _Row:
    """Sums over the instructions of one place."""

    def __init__(self, place: dict[str, Any], components: int, units: int) -> None:
        self.place = place
        self.seconds = 0.0
        self.joules = np.zeros(components)
        self.cycles = np.zeros(units)
        self.executions = self.machine = self.lanes = 0.0


class _Table:
    """Instructions of all functions of a launch, grouped by place."""

    def __init__(
        self,
        analysis: KernelAnalysis,
        shares: Attribution,
        events: Mapping[str, InstructionEvents],
        cycles: Mapping[str, Mapping[Unit, Floats]],
    ) -> None:
        self.analysis, self.shares, self.events = analysis, shares, events
        self.units = tuple(unit for unit in NAMES if any(unit in each for each in cycles.values()))
        self.cycles: dict[str, Floats] = {
            name: np.array(
                [each.get(unit, np.zeros(events[name].alu.size)) for unit in self.units]
            ).reshape(len(self.units), -1)
            for name, each in cycles.items()
        }

    @property
    def unit_cycles(self) -> Floats:
        """Of all instructions, by unit."""
        found: Floats = np.sum([each.sum(axis=1) for each in self.cycles.values()], axis=0)
        return found

    def told(self, cycles: Floats) -> dict[str, float]:
        """Cycles by unit, those that are used."""
        named = zip(self.units, cycles.tolist(), strict=True)
        return {unit: part for unit, part in named if part > 0.0}

    def blocks(self) -> list[_Row]:
        """By basic block of every function."""
        rows = []
        for name, function in self._functions():
            own = function is self.analysis.function
            cfg = self.analysis.cfg if own else build_cfg(function.body)
            of_block = {at: block for block in cfg.blocks for at in range(block.start, block.end)}
            body = function.body.instructions

            def place(
                one: Instruction, of_block: Any = of_block, body: Any = body, name: str = name
            ) -> tuple[Hashable, dict[str, Any]]:
                block = of_block[one.position]
                first, last = body[block.start], body[block.end - 1]
                return block.index, {
                    "function": name,
                    "block": block.index,
                    "label": block.label,
                    "line": first.line,
                    "last_line": last.line,
                    "source_line": first.location.line if first.location else None,
                }

            rows += self._grouped({name: function}, place)
        return rows

    def lines(self) -> list[_Row]:
        """By line of the PTX."""
        text = self.analysis.module.text.splitlines()

        def place(one: Instruction) -> tuple[Hashable, dict[str, Any]]:
            return one.line, {
                "line": one.line,
                "source_line": one.location.line if one.location else None,
                "text": parts.line_of(text, one.line),
            }

        return self._grouped(dict(self._functions()), place)

    def source_lines(self, *, bare: bool) -> list[_Row]:
        """By line of the source, where the PTX tells it (``.loc``); ``bare`` file names."""
        files = self.analysis.module.files

        def place(one: Instruction) -> tuple[Hashable, dict[str, Any]] | None:
            if one.location is None:
                return None
            file = files.get(one.location.file)
            told = PurePath(file).name if bare and file is not None else file
            return (file, one.location.line), {"file": told, "line": one.location.line}

        return self._grouped(dict(self._functions()), place)

    def _functions(self) -> Iterator[tuple[str, Function]]:
        for name in self.events:
            function = self.analysis.module.function(name)
            assert function is not None
            yield name, function

    def _grouped(
        self,
        functions: Mapping[str, Function],
        place: Callable[[Instruction], tuple[Hashable, dict[str, Any]] | None],
    ) -> list[_Row]:
        rows: dict[Hashable, _Row] = {}
        for name, function in functions.items():
            events, seconds = self.events[name], self.shares.seconds[name]
            joules, cycles = self.shares.joules[name], self.cycles[name]
            for one in function.body.instructions:
                at = one.position
                if not (events.warp_executions[at] or events.machine_instructions[at]):
                    continue
                found = place(one)
                if found is None:
                    continue
                key, described = found
                row = rows.get(key)
                if row is None:
                    sizes = len(self.shares.components), len(self.units)
                    row = rows[key] = _Row(described, *sizes)
                row.seconds += float(seconds[at])
                row.cycles += cycles[:, at]
                row.joules += joules[:, at]
                row.executions += float(events.warp_executions[at])
                row.machine += float(events.machine_instructions[at])
                row.lanes += float(events.active_lanes[at])
        return list(rows.values())


def _ranked(
    rows: list[_Row], table: _Table, most: int, kind: type[messages.Hotspot]
) -> dict[str, Any]:
    """``rows``, the costliest first, and the ``rest`` summed up."""
    total_seconds, total_joules = table.shares.total_seconds, table.shares.total_joules
    rows = sorted(rows, key=lambda row: -float(row.joules.sum()))
    told = []
    for rank, row in enumerate(rows[:most], 1):
        joules = float(row.joules.sum())
        by_component = sorted(
            zip(table.shares.components, row.joules.tolist(), strict=True),
            key=lambda part: -part[1],
        )
        told.append(
            kind(
                rank=rank,
                **row.place,
                joules=joules,
                seconds=row.seconds,
                energy_share=joules / total_joules,
                time_share=row.seconds / total_seconds,
                warp_executions=row.executions,
                machine_instructions=row.machine,
                # Lanes and warps are extrapolated apart where a time cap cut the execution short.
                active_lane_fraction=min(1.0, row.lanes / max(1.0, WARP_SIZE * row.executions)),
                components={name: part for name, part in by_component if part > 0.0},
                unit_cycles=table.told(row.cycles),
            )
        )
    left = rows[most:]
    return {
        "rows": told,
        "rest": messages.Rest(
            rows=len(left),
            joules=sum(float(row.joules.sum()) for row in left),
            seconds=sum(row.seconds for row in left),
        ),
    }
