"""Time and power of one launch at the clocks that the board's power limit leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from wattcast.features import activity, errors
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.gpus import GpuProfile
from wattcast.models.cards import ModelCard
from wattcast.models.clocks import HELD_BACK, ClockPair, checked_limit, clocks_within, held_back
from wattcast.models.energy import energy
from wattcast.models.intervals import BOARD_SPREAD, Estimate, between, less_sure
from wattcast.models.power.physical import PhysicalPowerModel
from wattcast.models.time.base import DEFAULT, TimePrediction, get_time_model
from wattcast.models.time.bottleneck import BottleneckTimeModel
from wattcast.models.time.calibration import interval_of, least_seconds
from wattcast.predictor import parts
from wattcast.predictor.messages import ClocksAnswer, Need, TimeModel
from wattcast.predictor.parts.power_models import TARGET, PowerModels, reference_of
from wattcast.predictor.parts.trust import Ranked, trust
from wattcast.predictor.parts.watts import Watts, boosted_watts, physical_watts

if TYPE_CHECKING:
    from wattcast.predictor import Predictor, messages
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.messages.sweep import SweepRequest

READING = 0.01
"""How far a board's mean reading lies above the limit it keeps to, relative: A40 boards at 300 W
read 297 to 303 (fma_sweep_power.csv)."""


OVER_LIMIT = 0.05
"""How far above its limit a mean may lie at most, and how far below it that of a launch which is at
it may be read, relative: an A40 was measured at 303 W on 300
(fma_sweep_power.csv), and NVML calls its readings of Fermi and Kepler accurate to 5 % (nvml.h,
nvmlDeviceGetPowerUsage; nothing better is published)."""


ABOVE_LIMIT = 0.12
"""How far above its limit a board may be read, relative: the limit is a mean. Of readings above
97 % of the limit, or of the rated power, 97.0 % end below this, the mean over nine boards, and all
boards but one have 90 % (by 0.1 a GTX 1080 Ti had 83 %; A40, H200 and B200 keep within 1, 3 and
4 %, Titan Xp reads up to 27 % more: docs/physical.md)."""


@dataclass(frozen=True, slots=True)
class TimeAndPower:
    """Time and power of a launch at ``clocks``; ``notes`` are those of its time."""

    clocks: ClockPair
    duration: TimePrediction | None
    power: Watts
    notes: Sequence[errors.Diagnostic] = ()
    limit_watts: float | None = None

    def told(self) -> tuple[TimePrediction, Estimate, ModelCard]:
        """Time, power and its model's card. Raises AnalysisError where one is not told."""
        if self.duration is None or self.power.estimate is None or self.power.card is None:
            why = [note.detail for note in (*self.notes, *self.power.diagnostics)]
            raise errors.AnalysisError("; ".join(why) or "neither time nor power can be told")
        return self.duration, self.power.estimate, self.power.card

    @property
    def seconds(self) -> float | None:
        """Its time, where it is told."""
        return None if self.duration is None else self.duration.estimate.value

    @property
    def watts(self) -> float:
        """Its power, 0 where none is told."""
        return 0.0 if self.power.estimate is None else self.power.estimate.value

    @property
    def warnings(self) -> tuple[errors.Diagnostic, ...]:
        """What to warn of."""
        return (*self.notes, *self.power.diagnostics)

    def costs(self, gpu: GpuProfile) -> dict[str, Any]:
        """Time, power and energy as answers hold them; ``None`` for what is not told."""
        duration, watts = self.duration, self.power.estimate
        both = energy(watts, duration, gpu) if watts and duration else None
        return parts.costs(duration.estimate if duration else None, watts, both)

    def members(self, gpu: GpuProfile) -> dict[str, Any]:
        """What answers tell of it, and of the models that told it."""
        card, components, timing = self.power.card, self.power.components, self.duration
        by = None if timing is None or timing.card is None else reference_of(timing.card)
        return {
            "gpu": gpu.id,
            "clocks": ClocksAnswer.from_attributes(self.clocks),
            "power_limit_watts": self.limit_watts,
            **self.costs(gpu),
            "model": reference_of(card) if card else None,
            "components": None if components is None else dict(components),
            "time_model": timing
            and TimeModel.from_attributes(timing, parts=dict(timing.parts), model=by),
        }

    def ranked(self, gpu: GpuProfile, analysis: KernelAnalysis) -> Ranked:
        """What decides whether it can be ranked with other GPUs. Raises as ``told``."""
        _, watts, card = self.told()
        mark = trust(watts.basis, card, (), parts.trip_counts(analysis))
        return Ranked(gpu.id, mark, card.family, card.source, watts.basis)


def board_limit(card: ModelCard | None, gpu: GpuProfile) -> float:
    """Watts that the board keeps to as it ships, or those it was measured at where that is more."""
    measured = 0.0 if card is None or card.gpu != gpu.id else card.training.power_maximum_watts
    return measured if measured > gpu.tdp_watts * (1.0 + READING) else gpu.tdp_watts


@dataclass(frozen=True, slots=True)
class BoardModels:
    """The models that tell time and power on a GPU. ``board`` is the label of one of several boards
    of it, where retrained models know it; empty: none is told."""

    power: PowerModels
    gpu: GpuProfile
    time_model: messages.TimeModelChoice = "auto"
    model: messages.ModelChoice = "auto"
    board: str = ""

    @classmethod
    def of(
        cls, predictor: Predictor, request: PredictRequest | SweepRequest, gpu: GpuProfile
    ) -> BoardModels:
        """Those that a request names."""
        return cls(predictor.power, gpu, request.time_model, request.model, request.board or "")

    def watts(
        self,
        analysis: KernelAnalysis,
        pairs: Sequence[ClockPair],
        seconds: Sequence[float] | None = None,
    ) -> Iterator[Watts]:
        """Power at each pair, carrying uncertain registers and trip counts into the interval.

        ``seconds`` are the durations that are answered, by whichever model or correction: rates
        are counts over them. Where it is ``None``, the bottleneck model's.
        Raises ModelError where the GPU has boosted models, but none of the family asked for.
        """
        power, gpu, board = self.power, self.gpu, self.board
        model = power.model_for(gpu, self.model, board)
        if isinstance(model, PhysicalPowerModel):
            told = physical_watts(model, analysis, pairs, seconds)
        else:
            auto = self.model == "auto"
            instead = power.instead_of(model.card, gpu, board) if auto else None
            told = [
                boosted_watts(model, power.physical, instead, analysis, pair, took)
                for pair, took in zip(pairs, seconds or repeat(None), strict=False)
            ]
        notes = power.stands_in(TARGET, gpu.id, board, self.model)
        for found in told:
            card, estimate = found.card, found.estimate
            why: tuple[errors.Diagnostic, ...] = ()
            if card and estimate:
                if power.of_one_board(card, gpu.id, board):
                    estimate = less_sure(estimate, BOARD_SPREAD)
                estimate, why = power.kept_wide(estimate, TARGET, gpu.id, board, card.place)
            yield replace(found, estimate=estimate, diagnostics=(*found.diagnostics, *notes, *why))

    def at(
        self,
        analysis: KernelAnalysis,
        pairs: Sequence[ClockPair],
        given: Callable[[TimePrediction], TimePrediction] | None = None,
    ) -> list[TimeAndPower]:
        """Time and power at each pair of clocks, whatever the limit; all pairs at once take a
        fraction of what they take one by one.

        By ``auto`` the time is the default model's, corrected where a correction of the board, or
        of the GPU, was promoted; a model that is named answers as it is. ``given`` corrects it
        further. Raises ModelError where that model cannot answer for the GPU.
        """
        gpu, power, auto = self.gpu, self.power, self.time_model == "auto"
        model = get_time_model(DEFAULT if auto else self.time_model)
        try:
            if isinstance(model, BottleneckTimeModel):
                told = model.predictions(analysis, gpu, pairs)
            else:
                told = [model.predict(analysis, gpu, pair) for pair in pairs]
        except errors.AnalysisError as error:
            none = (errors.Diagnostic("no_time_model", error.detail),)
            watts = zip(pairs, self.watts(analysis, pairs), strict=True)
            return [TimeAndPower(pair, None, each, none) for pair, each in watts]
        correction = power.times(gpu.id, self.board) if auto else None
        stands_in = power.stands_in("time", gpu.id, self.board, self.time_model)
        durations, notes = [], []
        for each in told:
            found = each if correction is None else correction.corrected(each, gpu)
            name = found.family if found.card is None else found.card.place
            wide, why = power.kept_wide(found.estimate, "time", gpu.id, self.board, name)
            notes.append((*found.diagnostics, *stands_in, *why))
            found = replace(found, estimate=wide) if why else found
            durations.append(long_enough(given(found) if given else found, analysis, gpu))
        seconds = [duration.estimate.value for duration in durations]
        powers = self.watts(analysis, pairs, seconds)
        return [*map(TimeAndPower, pairs, durations, powers, notes)]

    def limited(
        self, analysis: KernelAnalysis, clocks: ClockPair, limit_watts: float | None = None
    ) -> TimeAndPower:
        """Time and power at ``clocks``, or at those that the limit leaves. Raises ClockError."""
        return self.within_limit(lambda one: self.at(analysis, [one])[0], clocks, limit_watts)

    def within_limit(
        self,
        at: Callable[[ClockPair], TimeAndPower],
        asked: ClockPair,
        limit_watts: float | None = None,
    ) -> TimeAndPower:
        """Both at the clocks that a power limit leaves of those asked for.

        ``limit_watts`` is what the user set; the board's own where it is ``None`` or higher. Raises
        ClockError for a limit that the board cannot be set to, or below its idle power.
        """
        asked_limit = checked_limit(limit_watts, self.gpu)
        free = at(asked)
        own = board_limit(free.power.card, self.gpu)
        if free.power.estimate is None or free.duration is None:
            return self._possible(free, own)
        limit = own if asked_limit is None else min(own, asked_limit)
        if free.watts <= limit:
            return self._possible(_capped(free, free, limit, ()), own)
        found = self._lowered(at, free, limit)
        usual = free
        if limit != own and free.watts > own:
            usual = self._lowered(at, free, own)
        instead = "without a limit" if limit == own else f"instead of {own:g} W"
        note = _note(usual, found, f"at {limit:g} W {instead}")
        return self._possible(_capped(free, found, limit, (note,)), own)

    def _possible(self, found: TimeAndPower, limit: float) -> TimeAndPower:
        """Both, with a power that the board can draw: from idle to little over its own limit.

        Idle power that is a guess (``IDLE_SHARE``) does not overrule measured launches of the
        kernel, and what was measured on the board, idle or at work, overrules it.
        """
        watts, card, gpu = found.power.estimate, found.power.card, self.gpu
        if watts is None:
            return found
        physical = self.power.physical(gpu)
        idle = physical.parameters.idle_watts
        if card is not None and card.gpu == gpu.id and card.intervals.floor_watts > 0:
            idle = min(idle, card.intervals.floor_watts)
        if watts.basis == "seen_kernel" and physical.pooled and gpu.idle_watts is None:
            idle = min(idle, watts.low)
        held = between(watts, idle, limit * (1.0 + OVER_LIMIT))
        high = max(held.high, min(watts.high, limit * (1.0 + ABOVE_LIMIT)))
        held = held if high == held.high else replace(held, high=high)
        return found if held is watts else replace(found, power=replace(found.power, estimate=held))

    def _lowered(
        self, at: Callable[[ClockPair], TimeAndPower], free: TimeAndPower, limit: float
    ) -> TimeAndPower:
        """That at the highest clock that fits, where ``free`` does not."""
        found = at(clocks_within(limit, lambda one: at(one).watts, self.gpu, free.clocks))
        idle = self.power.physical(self.gpu).parameters.idle_watts
        runs = held_back(limit, found.watts, idle)
        if runs == 1.0:
            return found
        duration, watts, _ = found.told()
        power, time = found.power, duration.estimate
        slower = replace(time, value=time.value / runs, low=time.low, high=time.high / runs)
        parts = {**duration.parts, HELD_BACK: time.value / runs - time.value}
        held = power.components and {
            name: part * runs + (idle * (1.0 - runs) if name == "idle" else 0.0)
            for name, part in power.components.items()
        }
        estimate = replace(watts, value=limit, low=min(watts.low, limit))
        return replace(
            found,
            duration=replace(duration, estimate=slower, parts=parts),
            power=replace(power, estimate=estimate, components=held),
        )


def long_enough(
    found: TimePrediction, analysis: KernelAnalysis | None, gpu: GpuProfile
) -> TimePrediction:
    """The prediction, its lower end no shorter than the launch can be."""
    cases: list[activity.Activity] = []
    if analysis is not None and found.family == DEFAULT:  # others need not have counted anything
        cases = [analysis.activity, *analysis.activity_cases]
    estimate = found.estimate
    least = min(least_seconds(cases, gpu, found.clocks), estimate.value)
    if least <= estimate.low:
        return found
    return replace(found, estimate=replace(estimate, low=least))


def narrowed(needs: list[Need], duration: TimePrediction | None, gpu: GpuProfile) -> list[Need]:
    """The needs, the first of them with how much narrower the time gets where it is given: what
    is left then is the model's own width."""
    if not needs or duration is None or duration.width is None:
        return needs
    width, _ = interval_of(gpu, duration.regime)
    time = duration.estimate
    narrows = time.high / time.low * width.low_factor / width.high_factor
    if narrows < LEAST_NARROWER:
        return needs
    times = f"{float(f'{narrows:.2g}'):,g}"
    effect = f"{needs[0].effect}, and its interval gets about {times} times narrower"
    return [needs[0].model_copy(update={"effect": effect}), *needs[1:]]


LEAST_NARROWER = 1.5
"""Below this nobody is told: a judgement."""


def _capped(
    free: TimeAndPower, found: TimeAndPower, limit: float, notes: tuple[errors.Diagnostic, ...]
) -> TimeAndPower:
    """``found`` with the interval of a board that may be limited more than told, or not at all."""
    (duration, watts, _), (unlimited, most, _) = found.told(), free.told()
    time = duration.estimate
    high = min(most.high, limit * (1.0 + ABOVE_LIMIT))
    low = min(watts.value, most.low, limit * (1.0 - OVER_LIMIT))
    power = replace(
        found.power,
        estimate=replace(watts, low=low, high=max(watts.value, high)),
        diagnostics=(*found.power.diagnostics, *notes),
    )
    if found is not free:
        earliest = min(time.low, unlimited.estimate.low)
        duration = replace(duration, estimate=replace(time, low=earliest))
    return TimeAndPower(found.clocks, duration, power, found.notes, limit)


def _note(usual: TimeAndPower, found: TimeAndPower, where: str) -> errors.Diagnostic:
    """``usual`` is that without the limit, or under the board's own."""
    (after, less, _), (before, more, _) = found.told(), usual.told()
    longer = after.estimate.value / before.estimate.value
    energy = longer * less.value / more.value
    change = f"{100 * abs(1 - energy):.1f} % {'less' if energy < 1 else 'more'}"
    return errors.Diagnostic(
        "power_limited",
        f"{where} this launch takes {100 * (longer - 1):.1f} % longer and {change} energy: the "
        f"core clock falls from {usual.clocks.core_mhz:g} to {found.clocks.core_mhz:g} MHz",
    )
