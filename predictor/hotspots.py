"""Where a launch spends its energy and time: by basic block, PTX line and source line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from wattcast.features import errors, launch
from wattcast.features.activity.instructions import measure_instructions
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cfg import build_cfg
from wattcast.features.ptx.ir import Function, Instruction
from wattcast.models.clocks import ClockPair
from wattcast.models.power import PHYSICAL
from wattcast.models.speed import NAMES, Floats, attributed, unit_cycles
from wattcast.models.time.base import DEFAULT
from wattcast.models.time.beside import beside
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import explain as messages
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.parts import power_models, stored
from wattcast.predictor.parts.time_and_power import BoardModels

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
    record = stored.record_of(predictor, prediction_id)
    answer = stored.answer_of(record)
    request = stored.request_of(predictor, record)
    if answer.energy is None:
        raise errors.ServiceError(
            "no-explanation", f"prediction {prediction_id} holds no energy: nothing to share out"
        )
    return hotspots_of(predictor, request, answer, rows, compiled_here=stored.is_compiled(record))


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
    models = BoardModels(predictor.power, gpu, model=PHYSICAL, board=request.board or "")
    watts = next(models.watts(analysis, [clocks], [seconds]))
    if watts.components is None or watts.card is None:
        raise errors.AnalysisError("; ".join(note.detail for note in watts.diagnostics))
    table = _Table(analysis, clocks, watts.components, seconds, joules)
    bare = compiled_here or source.cuda is not None
    return messages.HotspotsAnswer(
        prediction_id=answer.id,
        **parts.members(answer, "gpu", "kernel", "clocks"),
        seconds=seconds,
        joules=joules,
        shares_by=power_models.reference_of(watts.card),
        cycles=seconds * clocks.core_hz,
        unit_cycles=table.told(table.whole),
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
        warnings=parts.warnings(source, analysis, analysis.activity_diagnostics, _notes(answer)),
    )


def _notes(answer: PredictAnswer) -> Iterator[errors.Diagnostic]:
    """What else answered than the models that share out."""
    assert answer.model is not None
    assert answer.time_model is not None
    others = (answer.model.family, PHYSICAL, "power"), (answer.time_model.family, DEFAULT, "time")
    for family, own, quantity in others:
        if family != own:
            yield errors.Diagnostic(
                "shares_of_another_model",
                f"the {family} model predicts only total {quantity}; it was divided among lines in "
                f"the proportions of the {own} model",
            )


class _Row(NamedTuple):
    """Sums over the instructions of one place, in the order of ``_Table.columns``."""

    place: dict[str, Any]
    sums: Floats


class _Table:
    """Instructions of all functions of a launch, grouped by place: its own seconds and joules,
    shared out as the physical model does.

    ``columns`` by function, ``[quantities, instructions]``: seconds, warp executions, machine
    instructions, lanes, cycles by unit and joules by component.
    """

    def __init__(
        self,
        analysis: KernelAnalysis,
        clocks: ClockPair,
        components: Mapping[str, float],
        seconds: float,
        joules: float,
    ) -> None:
        functions = analysis.counts.functions(analysis.counts.factors())
        events = measure_instructions(analysis.module, functions, analysis.activity)
        about = analysis.activity, analysis.gpu, clocks
        more = beside(analysis.extras)
        cycles = unit_cycles(events, *about, more)
        self.analysis = analysis
        self.shares = attributed(events, *about, components, more).scaled(seconds, joules)
        self.units = tuple(unit for unit in NAMES if any(unit in each for each in cycles.values()))
        self.columns: dict[str, Floats] = {
            name: np.vstack([
                self.shares.seconds[name],
                one.warp_executions, one.machine_instructions, one.active_lanes,
                *(cycles[name].get(unit, np.zeros(one.alu.size)) for unit in self.units),
                self.shares.joules[name],
            ])
            for name, one in events.items()
        }  # fmt: skip
        self.cycles, self.joules = slice(4, 4 + len(self.units)), slice(4 + len(self.units), None)

    @property
    def whole(self) -> Floats:
        """Cycles of all instructions, by unit."""
        each = [columns[self.cycles].sum(axis=1) for columns in self.columns.values()]
        found: Floats = np.sum(each, axis=0)
        return found

    def told(self, cycles: Floats) -> dict[str, float]:
        """Cycles by unit, those that are used."""
        named = zip(self.units, cycles.tolist(), strict=True)
        return {unit: part for unit, part in named if part > 0.0}

    def blocks(self) -> list[_Row]:
        """By basic block of every function."""
        first: dict[int, dict[str, Any]] = {}
        for name, function in self._functions():
            own = function is self.analysis.function
            cfg = self.analysis.cfg if own else build_cfg(function.body)
            body = function.body.instructions
            for block in cfg.blocks:
                begin = body[block.start]
                told = {
                    "function": name,
                    "block": block.index,
                    "label": block.label,
                    "line": begin.line,
                    "last_line": body[block.end - 1].line,
                    "source_line": begin.location.line if begin.location else None,
                }
                first |= dict.fromkeys(map(id, body[block.start : block.end]), told)
        return self._grouped(lambda one: (id(first[id(one)]), first[id(one)]))

    def lines(self) -> list[_Row]:
        """By line of the PTX."""
        text = self.analysis.module.text.splitlines()
        return self._grouped(
            lambda one: (
                one.line,
                {
                    "line": one.line,
                    "source_line": one.location.line if one.location else None,
                    "text": parts.line_of(text, one.line),
                },
            )
        )

    def source_lines(self, *, bare: bool) -> list[_Row]:
        """By line of the source, where the PTX tells it (``.loc``); ``bare`` file names."""
        files = self.analysis.module.files

        def place(one: Instruction) -> tuple[Hashable, dict[str, Any]] | None:
            if one.location is None:
                return None
            file = files.get(one.location.file)
            told = PurePath(file).name if bare and file is not None else file
            return (file, one.location.line), {"file": told, "line": one.location.line}

        return self._grouped(place)

    def _functions(self) -> Iterator[tuple[str, Function]]:
        for name in self.columns:
            function = self.analysis.module.function(name)
            assert function is not None
            yield name, function

    def _grouped(
        self, place: Callable[[Instruction], tuple[Hashable, dict[str, Any]] | None]
    ) -> list[_Row]:
        rows: dict[Hashable, _Row] = {}
        for name, function in self._functions():
            columns = self.columns[name]
            runs = (columns[1:3] != 0).any(axis=0)
            for one in function.body.instructions:
                found = place(one) if runs[one.position] else None
                if found is not None:
                    key, described = found
                    row = rows.setdefault(key, _Row(described, np.zeros(len(columns))))
                    row.sums[:] += columns[:, one.position]
        return list(rows.values())


def _ranked(
    rows: list[_Row], table: _Table, most: int, kind: type[messages.Hotspot]
) -> dict[str, Any]:
    """``rows``, the costliest first, and the ``rest`` summed up."""
    total_seconds, total_joules = table.shares.total_seconds, table.shares.total_joules
    joules_of = {id(row): float(row.sums[table.joules].sum()) for row in rows}
    rows = sorted(rows, key=lambda row: -joules_of[id(row)])
    told = []
    for rank, row in enumerate(rows[:most], 1):
        seconds, executions, machine, lanes = row.sums[:4].tolist()
        joules = joules_of[id(row)]
        by_component = sorted(
            zip(table.shares.components, row.sums[table.joules].tolist(), strict=True),
            key=lambda part: -part[1],
        )
        told.append(
            kind(
                rank=rank,
                **row.place,
                joules=joules,
                seconds=seconds,
                energy_share=joules / total_joules,
                time_share=seconds / total_seconds,
                warp_executions=executions,
                machine_instructions=machine,
                # Lanes and warps are extrapolated apart where a time cap cut the execution short.
                active_lane_fraction=min(1.0, lanes / max(1.0, launch.WARP_SIZE * executions)),
                components={name: part for name, part in by_component if part > 0.0},
                unit_cycles=table.told(row.sums[table.cycles]),
            )
        )
    left = rows[most:]
    rest = messages.Rest(
        rows=len(left),
        joules=sum(joules_of[id(row)] for row in left),
        seconds=sum(float(row.sums[0]) for row in left),
    )
    return {"rows": told, "rest": rest}
