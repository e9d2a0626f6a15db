"""One launch of one kernel as the thesis' time models take it, and what is uncertain about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from wattcast.features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from wattcast.features.attached import Attached
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.features.ptx.ir import Function
from wattcast.models.clocks import ClockPair, checked, default_clocks
from wattcast.models.estimate import Estimate
from wattcast.models.papers.thesis.code import KernelCode
from wattcast.models.papers.thesis.penalties import MemoryCounts
from wattcast.models.time.base import Regime, TimePrediction
from wattcast.models.time.spread import estimate_within, spread


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of one kernel, as plain numbers.

    ``trip_counts[l]`` is how often the body of loop l (index in the LoopForest) runs each time
    the loop is entered; a missing one counts 1 and is reported. ``registers_per_thread`` and
    ``shared_bytes_per_block`` (static and dynamic) limit the resident blocks.
    ``trip_ranges`` and ``register_range`` are the ends of what is uncertain about the kernel, for
    the interval; without them the values count as known.
    """

    code: KernelCode
    launch: Launch
    trip_counts: Sequence[float] = ()
    registers_per_thread: int = 0
    shared_bytes_per_block: int = 0
    trip_ranges: Sequence[tuple[float, float]] | None = None
    register_range: tuple[int, int] | None = None


_codes: Attached[Function, KernelCode] = Attached("time_code")


def work_of(analysis: KernelAnalysis) -> KernelWork:
    """An analysed launch as the scheduler takes it, with what was guessed as ranges."""
    function = analysis.function
    code = _codes.get(function)
    if code is None:
        code = _codes.set(function, KernelCode.of(function.body, analysis.cfg, analysis.loops))
    trips = analysis.trip_counts
    registers = analysis.registers
    return KernelWork(
        code=code,
        launch=analysis.launch,
        trip_counts=tuple(trip.count for trip in trips),
        registers_per_thread=registers.registers_per_thread,
        shared_bytes_per_block=analysis.static_shared_bytes + analysis.launch.dynamic_shared_bytes,
        trip_ranges=tuple(
            ASSUMED_TRIP_RANGE if trip.how == "assumed" else (trip.count, trip.count)
            for trip in trips
        ),
        register_range=(registers.low, registers.high),
    )


def memory_counts(code: KernelCode, multipliers: Sequence[float]) -> MemoryCounts:
    """nGM and nShM of one thread: every block reached, as Algorithms 4 and 6 visit every block."""
    totals = [0.0, 0.0, 0.0, 0.0]
    for block, times in zip(code.blocks, multipliers, strict=True):
        if any(block.memory):
            totals = [
                total + times * each for total, each in zip(totals, block.memory, strict=True)
            ]
    return MemoryCounts(*totals)


def known_trips(work: KernelWork) -> tuple[tuple[float, ...], tuple[Diagnostic, ...]]:
    """A trip count for every loop, and a warning for each that is missing.

    Raises LaunchError for a negative one.
    """
    lines = work.code.loop_lines
    given = tuple(float(count) for count in work.trip_counts)[: len(lines)]
    for count in given:
        if not count >= 0:
            raise LaunchError(f"trip count {count} is negative or no number", field="loops")
    missing = tuple(
        Diagnostic("trip_count_assumed", "no trip count is given for this loop; 1 is used", line)
        for line in lines[len(given) :]
    )
    return given + (1.0,) * len(missing), missing


def other_cases(work: KernelWork, trips: tuple[float, ...]) -> list[tuple[tuple[float, ...], int]]:
    """Other cases the truth may be: the ends of the trip counts and of the registers."""
    ends = [trips]
    if work.trip_ranges is not None:
        ends += [tuple(float(part[end]) for part in work.trip_ranges) for end in (0, 1)]
    registers = {work.registers_per_thread, *(work.register_range or ())}
    cases = [(end, count) for end in dict.fromkeys(ends) for count in sorted(registers)]
    cases.remove((trips, work.registers_per_thread))
    return cases


def span_of_cases(
    work: KernelWork,
    trips: tuple[float, ...],
    likely: float,
    seconds: Callable[[tuple[float, ...], int], float],
) -> tuple[float, float]:
    """Least and most ``seconds`` of ``likely`` and of all other cases of trips and registers."""
    found = [likely]
    for other_trips, registers in other_cases(work, trips):
        try:
            found.append(seconds(other_trips, registers))
        except LaunchError:  # so many registers the kernel cannot have: it would not start
            continue
    return min(found), max(found)


def executed_span(work: KernelWork) -> tuple[float, float]:
    """How many instructions the ends of uncertain trip counts execute, over the likely number.

    ``(least, most)`` around 1: for models whose counts come from one analysis alone.
    """
    trips, _ = known_trips(work)
    sizes = [len(block.charges) for block in work.code.blocks]

    def executed(counts: Sequence[float]) -> float:
        multipliers = work.code.multipliers(counts)
        return sum(size * times for size, times in zip(sizes, multipliers, strict=True))

    likely = executed(trips)
    if not likely:
        return 1.0, 1.0
    ends = [executed(counts) / likely for counts, _ in other_cases(work, trips)]
    return min([1.0, *ends]), max([1.0, *ends])


def code_diagnostics(code: KernelCode) -> tuple[Diagnostic, ...]:
    """What the tables of latencies do not cover: opcodes without one, functions called."""
    found = []
    if code.unmeasured:
        found.append(
            Diagnostic(
                "latency_assumed",
                "no latency was measured for "
                + ", ".join(code.unmeasured)
                + "; a default was used (docs/time.md)",
            )
        )
    found.extend(
        Diagnostic("call_not_timed", "the time in the called function is not counted", line)
        for line in code.calls
    )
    return tuple(found)


class Timed(NamedTuple):
    """Seconds of a launch in one case of trips and registers, and the model's ``parts`` of them."""

    seconds: float
    parts: Mapping[str, float]
    regime: Regime | None = None


class Machine(Protocol):
    """One launch with the numbers of a GPU at its clocks filled in."""

    diagnostics: tuple[Diagnostic, ...]

    def timed(self, trips: Sequence[float], registers: int) -> Timed:
        """Its time in one case. Raises LaunchError where no block fits on an SM."""


class CodeTimeModel:
    """A time model that reads a kernel's code. Stateless; safe to share between threads."""

    family: ClassVar[str]

    def machine(self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair) -> Machine:
        """What tells the time of every case. Raises ModelError for a GPU without published
        latencies."""
        raise NotImplementedError

    def estimate(self, seconds: float, low: float, high: float, gpu: GpuProfile) -> Estimate:
        """The interval around all cases: wider by what the model is known to err."""
        return estimate_within(seconds, low, high, spread(self.family, gpu.id))

    def predict(
        self, analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of an analysed launch; see ``TimeModel``."""
        return self.predict_work(work_of(analysis), gpu, clocks)

    def predict_work(
        self, work: KernelWork, gpu: GpuProfile, clocks: ClockPair | None = None
    ) -> TimePrediction:
        """Time of a launch given as plain numbers.

        Raises ModelError for a GPU without published latencies and for a kernel of which the model
        counts nothing, LaunchError where no block fits on an SM, for clocks that are not above 0
        and for a negative trip count.
        """
        pair = checked(clocks or default_clocks(gpu))
        machine = self.machine(work, gpu, pair)
        trips, missing = known_trips(work)
        middle = machine.timed(trips, work.registers_per_thread)
        low, high = span_of_cases(
            work, trips, middle.seconds, lambda *case: machine.timed(*case).seconds
        )
        return TimePrediction(
            family=self.family,
            estimate=self.estimate(middle.seconds, low, high, gpu),
            clocks=pair,
            parts=middle.parts,
            regime=middle.regime,
            diagnostics=(*missing, *code_diagnostics(work.code), *machine.diagnostics),
        )
