"""The two dynamic analyses of one launch, each run at most once and only when asked for."""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.activity.counts import Access
from wattcast.features.counts import Traffic
from wattcast.features.errors import (
    NONSENSE,
    AnalysisError,
    Diagnostic,
    LaunchError,
    WattcastError,
)
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import classify
from wattcast.features.launch import Argument, Launch, PointerHint, in_rows
from wattcast.features.loops import Origin, deciding
from wattcast.features.needs import with_assumed
from wattcast.features.ptx.ir import Function, Instruction, Module, filled_by_host
from wattcast.features.trips import How, TripCount, resolve_trips

if TYPE_CHECKING:
    from wattcast.features.execution import ExecutionResult
    from wattcast.features.symbolic import AccessInfo, SymbolicResult
    from wattcast.features.symbolic.forms import Forms


# Launches that are asked for one after the other, worked out together.
#
#     with together(launches):
#         for launch in launches: analyse(module, function, launch, gpu, analysis="symbolic")
#
# What is told of each launch is what it is alone (``features.symbolic.analyse_together``): this
# says which others to look at on the way, never what to find.

AHEAD = 128
"""Launches worked out before they are asked for: results of so many are held (some 10 kB each for
100 instructions), and numpy's time per operation is shared by about as many."""


class _Waiting:
    """Launches to come, and what was worked out of them before they were asked for."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = {_key(launch): launch for launch in launches}
        self._keys = list(self._launches)
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._found: dict[Hashable, dict[Hashable, SymbolicResult]] = {}

    def take(
        self,
        module: Module,
        function: Function,
        launch: Launch,
        accesses: bool,
        assume: bool,
    ) -> SymbolicResult | None:
        """The analysis of a launch and, on the way, of those that follow it; ``None`` for one that
        nobody announced, or that cannot be analysed."""
        from wattcast.features.symbolic import analyse_together

        key = _key(launch)
        place = self._place.get(key)
        if place is None:
            return None
        what = id(module), function.name, accesses, assume
        known = self._found.get(what)
        if known is None or key not in known:
            keys = self._keys[place : place + AHEAD]
            several = [self._launches[one] for one in keys]
            if assume:
                several = [with_assumed(function, one) for one in several]
            place_of = {id(one): key for one, key in zip(several, keys, strict=True)}
            pairs = analyse_together(module, function, several, accesses=accesses)
            known = self._found[what] = {place_of[id(one)]: result for one, result in pairs}
        return known.get(key)


_WAITING: ContextVar[_Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def together(launches: Sequence[Launch]) -> Iterator[None]:
    """Announce the launches of one kernel that are analysed inside."""
    token = _WAITING.set(_Waiting(launches))
    try:
        yield
    finally:
        _WAITING.reset(token)


def announced(
    module: Module, function: Function, launch: Launch, accesses: bool, assume: bool
) -> SymbolicResult | None:
    """The symbolic analysis of an announced launch, ``with_assumed`` if that is asked for; ``None``
    if it has to be made alone."""
    waiting = _WAITING.get()
    return None if waiting is None else waiting.take(module, function, launch, accesses, assume)


def _key(launch: Launch) -> Hashable:
    given = launch.arguments.items()
    arguments = tuple((name, type(value), value) for name, value in given)
    return launch.grid, launch.block, launch.dynamic_shared_bytes, arguments


@contextmanager
def _degrading(analysis: str) -> Iterator[None]:
    """Turn a failure of an analysis into an AnalysisError.

    Text can be PTX to the reader and still make no sense (an operand too few, a register of
    two widths): no analysis foresees all of it, and none may take the answer down.
    """
    try:
        yield
    except NONSENSE as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise AnalysisError(
            f"the {analysis} analysis cannot make sense of this kernel "
            f"({type(error).__name__} in {Path(where.filename).name}, line {where.lineno})",
            analysis=analysis,
        ) from error


@dataclass(eq=False)
class Runs:
    """Symbolic and executed analysis of one launch."""

    module: Module
    function: Function
    launch: Launch
    gpu: GpuProfile
    loops: Mapping[str, float]
    effort: float
    extrapolate: bool = True
    prefer_symbols: bool = False
    assume: bool = False
    """Nothing may run: of integers that nobody gave symbols assume what an execution would."""
    guessed: frozenset[str] = frozenset()
    """Arguments of the launch that nobody gave: trips that they decide are assumed."""

    @cached_property
    def symbolic(self) -> SymbolicResult:
        """Counts worked out without running. Raises LaunchError for arguments that do not fit."""
        return self._worked_out(accesses=True)

    @cached_property
    def asked(self) -> Launch:
        """The launch with what symbols assume of it."""
        return with_assumed(self.function, self.launch) if self.assume else self.launch

    @cached_property
    def _told(self) -> SymbolicResult:
        if self.asked is self.launch:
            return self.symbolic
        return self._worked_out(accesses=True, assume=True)

    def assumptions(self, names: Set[str] | None = None) -> tuple[Diagnostic, ...]:
        """What is assumed of arguments: of these, or of those that symbols alone assume."""
        if names is None:
            names = self.asked.arguments.keys() - self.launch.arguments.keys()
        return tuple(
            Diagnostic("argument_assumed", f"{name} is not given; {value:,} is assumed",
                       self.function.line)
            for name, value in self.asked.arguments.items()
            if name in names
        )  # fmt: skip

    @cached_property
    def proven(self) -> SymbolicResult:
        """The same where every count is exact and reuse follows from the addresses. Raises
        AnalysisError, which tells what is not proven."""
        from wattcast.features.symbolic import refused

        found = self._told
        if found.unproven is not None:
            raise refused(found.unproven)
        _ = self.traffic
        return found

    @cached_property
    def flow(self) -> SymbolicResult:
        """The same but for what accesses do: who executes what, and how often. Raises LaunchError.

        An execution is planned by it and told apart from guesses; what is accessed it counts.
        """
        if "symbolic" in vars(self) or self._knowable:
            return self.symbolic
        return self._worked_out(accesses=False)

    @cached_property
    def _knowable(self) -> bool:
        """Whether it may be that symbols tell everything, and that is asked for."""
        from wattcast.features.symbolic import knowable

        with _degrading("symbolic"):
            return self.prefer_symbols and knowable(self.module, self.function)

    @cached_property
    def traffic(self) -> Traffic:
        """Global memory by symbols. Raises AnalysisError for an address that is no sum of
        multiples of lane, block and loop counters."""
        from wattcast.features.symbolic.footprints import traffic

        return traffic(self.module, self.function, self.asked, self._told, self._row)

    @cached_property
    def _row(self) -> int:
        """Blocks in a row of the grid that the kernel makes of a line; 0 if it makes none."""
        from wattcast.features.symbolic.forms import row_of

        return row_of(self._forms) if self._forms else 0

    @cached_property
    def _forms(self) -> Forms | None:
        """What block numbers are made into, where the kernel can be followed."""
        from wattcast.features.symbolic.analyse import Arguments
        from wattcast.features.symbolic.build import scheme
        from wattcast.features.symbolic.forms import Forms

        try:
            with _degrading("symbolic"):
                made = scheme(self.module, self.function)
                return Forms(made, self.launch, Arguments(made, self.launch, self.module).constant)
        except AnalysisError:
            return None

    @cached_property
    def all_known(self) -> bool:
        """Whether symbols tell exactly what an execution would count: nothing has to run."""
        try:
            return self._knowable and self.proven.exact and self.traffic.exact
        except AnalysisError:
            return False

    def _worked_out(self, *, accesses: bool, assume: bool = False) -> SymbolicResult:
        from wattcast.features.symbolic import analyse_symbolically

        with _degrading("symbolic"):
            found = announced(self.module, self.function, self.launch, accesses, assume)
            return found or analyse_symbolically(
                self.module, self.function, self.asked if assume else self.launch, accesses=accesses
            )

    @property
    def executed(self) -> ExecutionResult:
        """Sampled blocks run over arrays. Raises LaunchError for arguments that do not fit."""
        return self._execution[0]

    @cached_property
    def _execution(self) -> tuple[ExecutionResult, frozenset[int]]:
        """The execution, and the loops whose trips it was told.

        Those are given ones that made-up data would decide, and assumed ones that the data
        never led into.
        """
        from wattcast.features.execution import execute, plan_blocks

        def run(forced: Mapping[int, float]) -> ExecutionResult:
            return execute(
                self.function,
                self.module,
                self.launch,
                self.gpu,
                plan=plan_blocks(
                    in_rows(self.launch, self._row),
                    cuts=self._cuts,
                    balanced=self._differ,
                ),
                effort=self.effort,
                forced=forced,
                extrapolate=self.extrapolate,
            )

        with _degrading("executed"):
            known = deciding(self.function)
            trips = resolve_trips(known.cfg, known.forest, self.loops, self.launch)
            forced = {
                trip.loop: trip.count
                for trip in trips
                if trip.loop in known.forest.waiting
                or (self.made_up(trip.loop) and (trip.how == "given" or self._guessed(trip.loop)))
            }
            found = run(forced)
            entered = {info.loop for info in found.loops if info.function == self.function.name}
            missed = {
                trip.loop: trip.count
                for trip in trips
                if self.made_up(trip.loop) and trip.loop not in entered and trip.count
            }
            if not missed.keys() <= forced.keys():
                forced = {**missed, **forced}
                found = run(forced)
            return found, frozenset(forced)

    @cached_property
    def _given(self) -> Mapping[str, Argument]:
        return self.launch.by_name([parameter.name for parameter in self.function.parameters])

    def made_up(self, loop: int) -> bool:
        """Whether data that nobody described decide a loop of the kernel: trips found by running
        it on made-up data are no knowledge."""
        return self.invented(deciding(self.function).loops[loop], trips=True)

    def invented(self, origin: Origin, *, trips: bool = False) -> bool:
        """Whether what rests on ``origin`` (a loop's ``trips``?) rests on data nobody described."""
        hosted = [variable.name for variable in filled_by_host(self.module)]
        described = {
            name
            for name, hint in self._given.items()
            if isinstance(hint, PointerHint) and hint.describes(trips=trips)
        }
        data = origin.data | origin.variables.intersection(hosted)
        return origin.loaded and not (data and data <= described)

    def _guessed(self, loop: int) -> bool:
        """Whether contents of buffers that nobody described decide a loop, and nothing that the
        kernel itself leaves there: random numbers would run it as often as their range says, which
        is the launch's shape."""
        known = deciding(self.function)
        inside = (known.cfg.blocks[block] for block in known.forest.loops[loop].blocks)
        atomic = any(
            classify(one.opcode).category == "atomic"
            for block in inside
            for one in known.cfg.instructions(block)
        )
        return bool(known.loops[loop].data) and not atomic

    def _missing(self, loop: int) -> bool:
        """Whether an argument that nobody gave decides a loop."""
        return not deciding(self.function).loops[loop].arguments <= self._given.keys()

    @property
    def _differ(self) -> bool:
        """Whether blocks may differ from all their neighbours, as far as symbols tell."""
        try:
            return not self.flow.sampling.exact
        except WattcastError:
            return False

    @property
    def _cuts(self) -> tuple[tuple[int, ...], ...]:
        """Where along the axes of the grid blocks begin to behave differently, if that is known."""
        try:
            found = self.flow.sampling.cuts
        except WattcastError:
            return ((), (), ())
        if not self._row:
            return found
        height = self.launch.blocks // self._row  # a row that is cut is one of its own
        rows = {row for cut in found[0] for row in (cut // self._row, -(-cut // self._row))}
        return (), tuple(sorted(rows - {0, height})), ()

    def ahead(self, *, may_execute: bool) -> None:
        """Find out what an activity needs. What is wrong is told where it is asked for."""
        with suppress(AnalysisError, LaunchError):
            if not self.all_known:
                _ = self.executed if may_execute else self.proven

    def infer(
        self,
        trips: tuple[TripCount, ...],
        *,
        may_execute: bool,
    ) -> tuple[tuple[TripCount, ...], tuple[Diagnostic, ...]]:
        """Replace assumed trip counts by what the analyses find out.

        First the symbolic one; what it cannot tell is executed if that is allowed.
        """
        if all(trip.how != "assumed" for trip in trips):
            return trips, ()
        try:
            worked_out = self.flow if may_execute or self.prefer_symbols else self._told
            exact = (info for info in worked_out.loops if info.exact)
            found = {info.loop: info for info in exact if not self._missing(info.loop)}
        except AnalysisError as error:
            return trips, (Diagnostic("analysis_failed", error.detail, self.function.line),)
        better = [
            self._found_out(trip, found[trip.loop].count, found[trip.loop].how)
            if trip.how == "assumed" and trip.loop in found
            else trip
            for trip in trips
        ]
        open_ones = [each for each in better if each.how == "assumed" and each.loop not in found]
        if not may_execute or not open_ones:
            return tuple(better), ()
        try:
            executed = self.executed
        except AnalysisError as error:
            failed = Diagnostic("analysis_failed", error.detail, self.function.line)
            return tuple(better), (failed,)
        ran = executed.trips(self.function.name)
        for index, trip in enumerate(better):
            if trip not in open_ones or self._missing(trip.loop):
                continue
            if trip.loop in self._execution[1]:
                continue
            if trip.loop not in ran:
                if self.made_up(trip.loop) or not executed.sampling.completed:
                    continue
                ran[trip.loop] = 0.0  # nobody enters it, as a rest of an unrolled loop
            how: How = "assumed" if self.made_up(trip.loop) else "executed"
            if how == "executed" and deciding(self.function).loops[trip.loop].loaded:
                how = "given"  # by what the launch tells of the data
            better[index] = self._found_out(trip, ran[trip.loop], how)
        return tuple(better), executed.diagnostics

    def _found_out(self, trip: TripCount, count: float, how: How) -> TripCount:
        """A loop with the trips that an analysis found."""
        if not self.guessed.isdisjoint(deciding(self.function).loops[trip.loop].arguments):
            how = "assumed"
        return replace(trip, count=count, how=how, source_count=None)


def accesses(
    module: Module, function: Function, executed: ExecutionResult | None, symbolic: SymbolicResult
) -> tuple[Access, ...]:
    """Every memory access that ran, in text order: counts from execution, shape from symbols."""
    shapes = {info.position: info for info in symbolic.accesses}
    results = executed.functions if executed is not None else symbolic.functions
    found: list[Access] = []
    for name, counts in results.items():
        owner = module.function(name)
        if owner is None:
            continue
        for one in owner.body.instructions:
            facts = classify(one.opcode)
            at = one.position
            requests = float(counts.requests[at])
            shared = float(counts.shared_requests[at])
            if not facts.accesses_memory or facts.space == "param" or not requests + shared:
                continue
            shape = shapes.get(at) if name == function.name else None
            found.append(
                _access(
                    name,
                    one,
                    shape,
                    requests or shared,
                    float(counts.sectors[at]) / requests if requests else None,
                    float(counts.shared_transactions[at]) / shared if shared else None,
                )
            )
    return tuple(found)


def _access(
    name: str,
    one: Instruction,
    shape: AccessInfo | None,
    requests: float,
    sectors: float | None,
    transactions: float | None,
) -> Access:
    facts = classify(one.opcode)
    return Access(
        function=name,
        position=one.position,
        line=one.line,
        source_line=one.location.line if one.location else None,
        opcode=one.opcode,
        space=facts.space or facts.category,
        is_load=facts.category in ("load", "copy", "atomic", "texture"),
        is_store=facts.category in ("store", "copy", "atomic"),
        requests=requests,
        sectors_per_request=sectors if sectors is None or np.isfinite(sectors) else None,
        transactions_per_request=transactions,
        stride_bytes=shape.stride_bytes if shape else None,
        affine=shape.affine if shape else None,
        address=shape.address if shape else None,
    )
