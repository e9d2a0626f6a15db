"""The one entrance to the analysis: ``analyse(module, kernel, launch, gpu) -> KernelAnalysis``.

    statics(module, function)   what the text alone tells: CFG, loops, registers, shared memory
    analyse(...)                + launch and GPU: occupancy, trip counts, feature vectors

Everything guessed is marked: a trip count says how it is known, registers carry a range,
and each guess leaves a diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from wattcast.features import schemas
from wattcast.features.activity import (
    Access,
    Activity,
    Extras,
    LineActivity,
    measure_activity,
    measure_extras,
    measure_lines,
    measure_mix,
)
from wattcast.features.activity.counts import indexed_arrays
from wattcast.features.activity.instructions import (
    Least,
    Operations,
    measure_least,
    measure_operations,
)
from wattcast.features.assembled import assembling, ptxas_warnings, spills_executed, with_spills
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.counted import Coverage, Floats, LaunchCounts, symbolic_atomics
from wattcast.features.dataflow import BlockChain, dependent_chains
from wattcast.features.errors import (
    CUT_SHORT,
    DEFAULT_EFFORT,
    AnalysisError,
    Diagnostic,
    LaunchError,
)
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.features.loops import LoopForest
from wattcast.features.machine_code import machine_code
from wattcast.features.needs import with_guards
from wattcast.features.occupancy import Occupancy, check_directives, check_launch, occupancy, waves
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.runs import Runs, accesses
from wattcast.features.schemas.counting import find_n_loop
from wattcast.features.statics import KernelStatics, RegisterEstimate, statics
from wattcast.features.trips import (
    ASSUMED_TRIP_RANGE,
    DEFAULT_TRIP_COUNT,
    TripCount,
    assumed_trips_of,
    resolve_trips,
)

if TYPE_CHECKING:
    from wattcast.features.cuda import PtxasReport
    from wattcast.features.execution import ExecutionResult
    from wattcast.features.needs import Need
    from wattcast.features.symbolic import SymbolicResult

MOST_MISSED = 0.05
"""Share of a launch's work or sectors that a budget may leave unreached before counts are worked
out instead: symbols do not follow reuse, which what ran tells of."""

Mode = Literal["auto", "symbolic", "executed"]
"""How trip counts and activity are found out. ``symbolic`` runs nothing and refuses what it cannot
prove, ``executed`` runs sampled blocks. ``auto`` runs nothing where symbols know everything;
else trip counts are worked out, what that leaves open is run if the request gives arguments, and
so is activity."""

__all__ = [
    "ASSUMED_TRIP_RANGE",
    "DEFAULT_EFFORT",
    "DEFAULT_TRIP_COUNT",
    "KernelAnalysis",
    "KernelStatics",
    "Mode",
    "TripCount",
    "analyse",
    "statics",
]


@dataclass(frozen=True, eq=False)
class KernelAnalysis:
    """What one launch of one kernel on one GPU does, and how each part is known.

    ``registers`` is per thread, ``static_shared_bytes`` per block, ``waves`` the rounds in
    which the grid passes through the GPU. ``diagnostics`` holds the warnings of the text, of
    this launch and of its assumptions. ``spilled``: what ptxas says where it spills registers.
    """

    module: Module
    launch: Launch
    gpu: GpuProfile
    static: KernelStatics
    trip_counts: tuple[TripCount, ...]
    registers: RegisterEstimate
    static_shared_bytes: int
    occupancy: Occupancy
    waves: float
    diagnostics: tuple[Diagnostic, ...]
    mode: Mode
    runs: Runs
    spilled: PtxasReport | None = None

    @property
    def function(self) -> Function:
        """The kernel analysed."""
        return self.static.function

    @property
    def cfg(self) -> ControlFlowGraph:
        """Its control flow graph."""
        return self.static.cfg

    @property
    def loops(self) -> LoopForest:
        """Its natural loops."""
        return self.static.loops

    @property
    def shared_bytes_per_block(self) -> int:
        """Static and dynamic shared memory of a block."""
        return self.static_shared_bytes + self.launch.dynamic_shared_bytes

    @property
    def trips_assumed(self) -> bool:
        """Whether any loop's trip count is a guess."""
        return any(trip.how == "assumed" for trip in self.trip_counts)

    @property
    def _nested_guesses(self) -> int:
        """How many loops of assumed trips lie in each other."""
        guessed = {trip.loop for trip in self.trip_counts if trip.how == "assumed"}
        around = (self.loops.around(self.loops.loops[loop].header) for loop in guessed)
        return max(len(guessed.intersection(loops)) for loops in around)

    def trips(self, assumed: float | None = None) -> tuple[float, ...]:
        """Trip count of every loop; ``assumed`` stands in for those that are guessed."""
        return tuple(trip.if_assumed(assumed) for trip in self.trip_counts)

    def _source_trips(self, assumed: float) -> tuple[float, ...]:
        """The same for the loops of the source, as the user gives them."""
        return tuple(
            assumed
            if trip.how == "assumed"
            else trip.count
            if trip.source_count is None or trip.how != "given"
            else trip.source_count
            for trip in self.trip_counts
        )

    @property
    def symbolic(self) -> SymbolicResult:
        """The symbolic analysis, made when first asked for."""
        return self.runs.symbolic

    @property
    def executed(self) -> ExecutionResult:
        """The executed analysis: sampled blocks run over arrays, when first asked for."""
        return self.runs.executed

    @property
    def activity_how(self) -> Literal["executed", "symbolic"]:
        """Which analysis ``activity`` comes from.

        In mode ``auto`` nothing is run where symbols know everything, and exact counts are
        preferred to lower bounds, and where the budget ended before parts of the kernel. Raises
        AnalysisError in mode ``symbolic`` for what is not proven.
        """
        if self.mode == "symbolic":
            _ = self.runs.proven
            return "symbolic"
        if self.mode == "auto" and (self._all_known or self._worked_out_better):
            return "symbolic"
        return "executed"

    @cached_property
    def _all_known(self) -> bool:
        """Whether symbols tell all that an execution would, atomics included, and divisions of
        what lies in constant memory: its contents decide whether they take their long way."""
        if not self.runs.all_known:
            return False
        body = self.function.body
        if indexed_arrays(body):  # what lanes have in common of them, an execution alone knows
            return False
        if machine_code(body).divisions.size and any(
            one.opcode.startswith("ld.const") for one in body.instructions
        ):
            return False
        atomics = symbolic_atomics(self.module, self.function, self.runs.proven)
        return atomics.hottest_operations is not None and all(
            use.passes is not None for use in atomics.uses
        )

    @cached_property
    def _worked_out(self) -> Runs:
        """Symbols of the launch; where an execution was cut short, with what it would assume."""
        asked = self.runs.assume or self._all_known
        return self.runs if asked else replace(self.runs, assume=True)

    @cached_property
    def _worked_out_better(self) -> bool:
        executed = self.executed
        if executed.sampling.completed:
            return False
        try:
            known = self._worked_out.proven.functions[self.function.name]
        except AnalysisError:
            return False
        behind = executed.functions[self.function.name].warp_executions == 0
        return executed.lower_bounds or any(
            bool(counts[behind].sum() > MOST_MISSED * counts.sum())
            for counts in (known.warp_executions, known.sectors)
        )

    @property
    def cut_short(self) -> bool:
        """Whether the budget ended before the execution did: ``activity`` was extrapolated from
        what ran, or worked out without the reuse that only an execution tells of."""
        if self.activity_how == "symbolic" and (self.mode == "symbolic" or self._all_known):
            return False
        return not self.executed.sampling.completed

    @cached_property
    def counts(self) -> LaunchCounts:
        """What was counted of the launch."""
        return LaunchCounts(
            self.module,
            self.function,
            self.launch,
            self.cfg,
            self.loops,
            self.trip_counts,
            self._worked_out if self.activity_how == "symbolic" else self.runs,
            executed=self.activity_how == "executed",
        )

    @cached_property
    def _factors(self) -> Floats | None:
        return self.counts.factors()

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """Arguments that were not given and decide trips, guards or addresses, weightiest first."""
        from wattcast.features.needs import missing

        return missing(self.function, self.launch, self.trip_counts, self.runs.launch)

    @cached_property
    def coverage(self) -> Coverage:
        """How the launch's work is known: executed, extrapolated, worked out or assumed."""
        return self.counts.coverage(self._factors)

    @cached_property
    def activity(self) -> Activity:
        """What the launch physically does: the quantities of ``activity1``.

        Loops run as often as ``trip_counts`` says, also where those were given or assumed and
        the execution ran them otherwise.
        """
        return self._activity(self.registers.registers_per_thread, self.occupancy, self._factors)

    @cached_property
    def activity_cases(self) -> tuple[Activity, ...]:
        """The same at the other ends of what is uncertain, as far as they make a difference:
        registers that change the occupancy, assumed trip counts."""
        registers = self.registers
        cases = []
        for number in sorted({registers.low, registers.high} - {registers.registers_per_thread}):
            try:
                resident = occupancy(self.gpu, self.launch, number, self.static_shared_bytes)
            except LaunchError:
                continue  # so many registers could not be launched: they are not the truth
            if resident.resident_blocks_per_sm != self.occupancy.resident_blocks_per_sm:
                cases.append(self._activity(number, resident, self._factors))
        if self.trips_assumed:
            cases += [
                self._activity(
                    registers.registers_per_thread, self.occupancy, self.counts.factors(trips)
                )
                for trips in assumed_trips_of(self.launch, self._nested_guesses)
            ]
        return tuple(cases)

    def _activity(self, registers: int, resident: Occupancy, factors: Floats | None) -> Activity:
        counts = self.counts
        found = measure_activity(
            self.module, counts.functions(factors), counts.traffic(factors), self.launch, self.gpu,
            resident, registers, self.shared_bytes_per_block,
            waves(self.gpu, self.launch, resident),
        )  # fmt: skip
        if self.spilled is None:
            return found
        ran = self.counts.functions(factors)[self.function.name].warp_executions
        warps = self.launch.blocks * self.launch.warps_per_block
        times = spills_executed(self.counts.cfg, self.spilled, ran / warps)
        return with_spills(
            found, self.spilled, self.launch, self.gpu, self.shared_bytes_per_block, times
        )

    @cached_property
    def extras(self) -> Extras:
        """What the launch does besides: tensor work by kind, atomics."""
        counts, factors = self.counts, self._factors
        traffic = counts.traffic(factors)
        together = self.occupancy.resident_blocks_per_sm * self.gpu.sm_count
        return measure_extras(
            self.module, counts.functions(factors), self.launch, counts.atomics(factors),
            self.shared_bytes_per_block, traffic.busy_blocks,
            traffic.pieces(min(together, self.launch.blocks), self.launch.grid),
        )  # fmt: skip

    @cached_property
    def least(self) -> Least:
        """What its accesses would take, coalesced and without bank conflicts."""
        return measure_least(self.module, self.counts.functions(self._factors))

    @property
    def operations(self) -> Operations:
        """What its lanes ask for."""
        return measure_operations(self.module, self.counts.functions(self._factors))

    @cached_property
    def activity_diagnostics(self) -> tuple[Diagnostic, ...]:
        """What had to be assumed for ``activity``, and what was cut short."""
        if self.activity_how == "executed":
            return self.executed.diagnostics
        told = *self._worked_out.assumptions(), *self._worked_out.proven.diagnostics
        if self._worked_out is self.runs:
            return told
        detail = "the executed analysis was cut short at once: counts are worked out instead"
        return Diagnostic(CUT_SHORT, detail, self.function.line), *told

    @property
    def lines(self) -> tuple[LineActivity, ...]:
        """Activity by source line, the most machine instructions first."""
        return measure_lines(self.module, self.counts.functions(self._factors))

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every memory access that is reached: requests, sectors, conflicts, stride."""
        if self.activity_how == "executed":
            return accesses(self.module, self.function, self.executed, self.symbolic)
        return accesses(self.module, self.function, None, self._worked_out.proven)

    @cached_property
    def chains(self) -> tuple[BlockChain, ...]:
        """Longest dependent chain and instruction-level parallelism of every basic block."""
        return dependent_chains(self.function.body, self.cfg)

    @property
    def mix(self) -> dict[str, float]:
        """Executed warp instructions by opcode class (``global_load``, ``compute``...)."""
        return measure_mix(self.module, self.counts.functions(self._factors))

    @cached_property
    def facts(self) -> schemas.KernelFacts:
        """What the published schemas need of this launch."""
        return self._facts(self.registers.registers_per_thread, self.occupancy, None)

    @cached_property
    def _activity_vector(self) -> schemas.FeatureVector:
        return schemas.activity_schema().vector(
            self.activity, self.gpu.id, self.activity_diagnostics
        )

    def vector(
        self,
        schema_id: str,
        *,
        gpu_id: str | None = None,
        registers_per_thread: int | None = None,
        assumed_trips: float | None = None,
    ) -> schemas.FeatureVector:
        """The feature vector of a schema; ``gpu_id`` names its table if it is not the GPU's own.

        ``registers_per_thread`` and ``assumed_trips`` give the vector of another case within
        the uncertainty: other registers, another trip count for the loops that are guessed.
        Raises SchemaError for an unknown schema or one without a table for the GPU, and
        LaunchError for registers that the GPU cannot launch.
        """
        if schema_id == schemas.activity_schema().id:
            own = self._activity_vector
            return own if gpu_id is None else replace(own, gpu_id=gpu_id)
        facts = self.facts
        if registers_per_thread is not None or assumed_trips is not None:
            registers = registers_per_thread or self.registers.registers_per_thread
            resident = occupancy(self.gpu, self.launch, registers, self.static_shared_bytes)
            facts = self._facts(registers, resident, assumed_trips)
        schema = schemas.published_schemas().get(schema_id)
        if schema is None:
            schemas.get_schema(schema_id)  # raises: it is no schema at all
            raise AssertionError(schema_id)
        return schema.vector(facts, gpu_id)

    def _facts(
        self, registers: int, resident: Occupancy, assumed_trips: float | None
    ) -> schemas.KernelFacts:
        counts = self._source_trips(DEFAULT_TRIP_COUNT if assumed_trips is None else assumed_trips)
        labelled = {
            label: trips
            for loop, trips in zip(self.loops.loops, counts, strict=True)
            for label in self.cfg.blocks[loop.header].labels
        }
        # A self loop that cannot be reached is in no natural loop; the authors count it too.
        n_loop, diagnostics = find_n_loop(
            self.static.counts, {"default": DEFAULT_TRIP_COUNT, **labelled}
        )
        return schemas.KernelFacts(
            counts=self.static.counts,
            launch=self.launch,
            gpu_id=self.gpu.id,
            profile=self.gpu,
            occupancy=resident.occupancy,
            registers_per_thread=registers,
            shared_bytes_per_block=self.shared_bytes_per_block,
            n_loop=n_loop,
            diagnostics=diagnostics,
        )


def analyse(
    module: Module,
    kernel: str | Function | None,
    launch: Launch,
    gpu: GpuProfile,
    *,
    loops: Mapping[str, float] | None = None,
    registers_per_thread: int | None = None,
    static_shared_bytes: int | None = None,
    ptxas: bool = False,
    analysis: Mode = "auto",
    effort: float = DEFAULT_EFFORT,
    extrapolate: bool = True,
    ahead: bool = False,
) -> KernelAnalysis:
    """Analyse one launch of one kernel on one GPU.

    ``kernel`` is a mangled or demangled name, or ``None`` for the only kernel. ``loops`` gives
    trip counts (see ``features.trips``), ``registers_per_thread`` and ``static_shared_bytes``
    replace what is estimated; ``ptxas`` lets the compiler of the extra ``cuda`` count the
    registers where it is installed and takes the PTX. ``analysis`` says how what is not given
    is found out (``Mode``), within ``effort`` units of work for the executed one, which runs every
    iteration of every loop where it may not ``extrapolate``. Whoever asks for ``activity`` after,
    lets it be worked out ``ahead``, beside ptxas. Raises PtxError, KernelError,
    LaunchError for what the GPU refuses, and GivenUpError (``features.errors``).
    """
    function = kernel if isinstance(kernel, Function) else module.kernel(kernel)
    check_directives(module, function, launch)
    static = statics(module, function)
    shared = static.static_shared_bytes if static_shared_bytes is None else static_shared_bytes
    filled = with_guards(function, launch) if static.loops.loops else launch
    runs = Runs(
        module, function, filled, gpu, loops or {}, effort, extrapolate,
        prefer_symbols=analysis == "auto", assume=analysis == "symbolic",
        guessed=frozenset(filled.arguments.keys() - launch.arguments.keys()),
    )  # fmt: skip
    counted = None
    if ptxas and registers_per_thread is None:
        with assembling(module, function, gpu) as told:
            if ahead:
                runs.ahead(may_execute=analysis != "symbolic")
            counted = told()
    if (known := counted.registers_per_thread if counted else registers_per_thread) is not None:
        registers = RegisterEstimate(known, known, known, "ptxas" if counted else "given")
    else:
        registers = _launchable(gpu, launch, static.registers(gpu))
    warnings = ptxas_warnings(module, function.line, counted) if counted is not None else []
    if registers.how not in ("given", "ptxas"):
        warnings.append(_estimated(registers, function.line))
    check_launch(gpu, launch, shared, registers.registers_per_thread)
    resident = occupancy(gpu, launch, registers.registers_per_thread, shared)
    trips = resolve_trips(static.cfg, static.loops, loops or {}, launch)
    may_execute = analysis == "executed" or (analysis == "auto" and bool(filled.arguments))
    trips, found = runs.infer(trips, may_execute=may_execute)
    assumed = [trip.warning() for trip in trips if trip.how == "assumed"]
    assumptions = *assumed, *runs.assumptions(runs.guessed), *found
    return KernelAnalysis(
        module=module,
        launch=launch,
        gpu=gpu,
        static=static,
        trip_counts=trips,
        registers=registers,
        static_shared_bytes=shared,
        occupancy=resident,
        waves=waves(gpu, launch, resident),
        diagnostics=(*static.diagnostics, *warnings, *assumptions),
        mode=analysis,
        runs=runs,
        spilled=counted if counted is not None and counted.spills else None,
    )


def _estimated(registers: RegisterEstimate, line: int) -> Diagnostic:
    detail = (
        f"registers per thread are estimated from liveness: {registers.registers_per_thread}, "
        f"between {registers.low} and {registers.high}"
    )
    return Diagnostic("registers_estimated", detail, line)


def _launchable(gpu: GpuProfile, launch: Launch, estimate: RegisterEstimate) -> RegisterEstimate:
    """An estimate that this launch can have: a compiler told of the block size would spill.

    A block of 1024 threads leaves 64 registers each of 65,536; a higher estimate is ours,
    not the user's mistake.
    """
    most = gpu.max_registers_per_thread
    warps = max(launch.warps_per_block, 1)
    unit = gpu.capability.register_allocation_unit
    partitions = max(1, gpu.capability.sub_partitions_at_launch)
    rounded = -(-warps // partitions) * partitions
    per_warp = gpu.max_registers_per_block // rounded // unit * unit
    most = max(1, min(most, per_warp // 32))
    value = min(estimate.registers_per_thread, most)
    return RegisterEstimate(value, min(estimate.low, value), min(estimate.high, most), estimate.how)
