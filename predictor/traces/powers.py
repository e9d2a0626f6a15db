"""Watts of each kind of launch on one board: from its code, the operator it does the work of, else
from the outside.

The measured duration says how fast the counted work was done. Where an argument that nobody knows
decides how much work there is, rates are those of the predicted duration instead: a loop of other
length does the same work in a second. The interval then spans both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features import errors, gpus
from wattcast.features.analysis import KernelAnalysis
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import Basis, Estimate, between, weaker
from wattcast.models.power import PHYSICAL, activities
from wattcast.models.power.physical import STANDING, predicted_power
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages.application import ApplicationRequest, How
from wattcast.predictor.messages.predict import PredictRequest, Trust
from wattcast.predictor.parts.time_and_power import OVER_LIMIT, BoardModels, board_limit
from wattcast.predictor.parts.trust import trust
from wattcast.predictor.parts.watts import Watts
from wattcast.predictor.traces import Progress, library, trace
from wattcast.predictor.traces.code import Code, Library

Floats = NDArray[np.float64]

MOST_CLOCKS = 12
"""Core clocks that are tried, beside those of the trace."""


MOST_ANALYSED = 500
"""Kinds of launches of one board that are analysed, those of the most time first; others of the
same kernel take the power of the nearest that was."""


@dataclass(frozen=True)
class KindPower:
    """What launches of one kind draw. ``estimate`` is watts if it ran alone; ``standing_watts`` the
    part of them that a board with clocks up draws anyway; ``scales`` its time and power at
    ``BoardPowers.tried`` over those at the clocks of the trace; without them ``core_share`` of its
    time goes with the core clock: all of it where nobody knows, which promises the least."""

    how: How
    estimate: Estimate
    standing_watts: float
    trust: Trust
    why: str
    family: str | None = None
    data_type: str | None = None
    code: Code | None = None
    request: PredictRequest | None = None
    scales: Floats | None = None
    core_share: float = 1.0


OPERATOR_TRUST: Mapping[Basis, Trust] = {
    "unseen_kernel": Trust(mark="measured board", why="operators were measured on such boards"),
    "extrapolated": Trust(mark="measured board", why="beyond the operators' measured sizes"),
    "uncalibrated": Trust(mark="estimated board", why="operators' power is that of other boards"),
}
"""By what the operator's power rests on."""
BY_TIME_TRUST: Mapping[Basis, Trust] = {
    basis: Trust(mark=one.mark, why="an operator of the kernel's kind; its size is a guess")
    for basis, one in OPERATOR_TRUST.items()
}


@lru_cache(maxsize=64)
def _guess(why: str) -> Trust:
    """One for all kinds: of 200,000 each would take a kilobyte."""
    return Trust(mark="guess", why=why)


def _size(kind: trace.Kind) -> float:
    return log(max(1, prod(kind.grid)))


class BoardPowers:
    """Answers for one GPU. ``notes`` grow as answers are given; ``tried`` are some of the clocks
    that the GPU has up to those of the trace, the last; none where it tells none."""

    def __init__(
        self, predictor: Predictor, request: ApplicationRequest, gpu: gpus.GpuProfile, code: Library
    ) -> None:
        self.predictor, self.request, self.gpu, self.code = predictor, request, gpu, code
        self.clocks: ClockPair
        self.clocks, notes = parts.clocks_of(request.clocks, gpu)
        self.notes: list[errors.Diagnostic] = list(notes)
        cores = [core for core in gpu.supported_core_mhz if core <= self.clocks.core_mhz]
        every = max(1, -(-len(cores) // MOST_CLOCKS))
        chosen = sorted({*cores[::-1][::every], self.clocks.core_mhz}) if cores else []
        self.tried = [ClockPair(core, self.clocks.memory_mhz) for core in chosen]
        physical = predictor.power.physical(gpu, request.board or "")
        still = predicted_power(physical.parameters, activities.AT_REST, self.clocks)
        self.estimated = physical.pooled
        self.limit_watts = board_limit(physical.card, gpu)
        self.idle_watts = min(still.components["idle"], self.limit_watts)
        self.standing_watts = min(still.watts, self.limit_watts)
        self.board_width = 0.0
        if physical.pooled:
            _, high = physical.card.intervals.unseen_kernel.around(np.array([still.watts]))
            self.board_width = log(float(high[0]) / still.watts)

    def all(
        self, served: Iterable[tuple[int, library.Served]], progress: Progress
    ) -> dict[int, KindPower]:
        """The power of each kind, by its number. Raises GivenUpError where its caller gives up."""
        ordered = sorted(served, key=lambda one: (-one[1].seconds, one[0]))
        found = self._library(ordered)
        analysed = 0
        later: list[tuple[int, library.Served, Code]] = []
        for number, one in ordered:
            errors.checkpoint()
            code = self.code.find(one.kind) if one.kind.what == "kernel" else None
            if code is None:
                if number not in found:
                    found[number] = self._unknown(one)
            elif analysed < MOST_ANALYSED:
                analysed += 1
                found[number] = self._from_code(one, code)
                progress("launches analysed", analysed)
            else:
                later.append((number, one, code))
        kinds = dict(ordered)
        analysed_of: dict[int, dict[int, KindPower]] = {}
        for number, power in sorted(found.items()):
            if power.code is not None:
                analysed_of.setdefault(id(power.code), {})[number] = power
        sizes = {
            key: np.array([_size(kinds[number].kind) for number in same])
            for key, same in analysed_of.items()
        }
        for number, one, code in later:
            errors.checkpoint()
            same = list(analysed_of.get(id(code), {}).values())
            found[number] = self._nearest(one, code, same, sizes.get(id(code)))
        return found

    def _library(self, ordered: Sequence[tuple[int, library.Served]]) -> dict[int, KindPower]:
        """Kernels that do the work of an operator whose sizes the trace tells, or of one of the
        size that takes as long."""
        asked = {number: one for number, one in ordered if library.does_the_work(one.kind)}
        sized = library.library_calls(self.predictor, self.gpu, asked)
        left = {number: one for number, one in ordered if number not in sized}
        found = {}
        for number, call in (sized | library.calls_by_time(self.predictor, self.gpu, left)).items():
            kind = asked[number].kind if number in sized else left[number].kind
            value = min(max(call.watts, self.idle_watts), self.limit_watts)
            low, high = (value * factor for factor in call.power_width)
            ends = max(low, min(self.idle_watts, value)), min(high, max(self.limit_watts, value))
            trust, why = OPERATOR_TRUST[call.basis], "at the sizes of its tensors"
            if number in left:
                why = "at the size that takes as long: the trace tells none"
                trust = BY_TIME_TRUST[call.basis]
            found[number] = KindPower(
                "operator" if number in sized else "operator, by time",
                Estimate(value, *ends, library.LEVEL, call.basis),
                min(self.standing_watts, value),
                trust,
                f"the operator's model {why}, and the measured duration",
                library.family_of(kind.name),
                json.loads(kind.operator).get("dtype")
                if number in sized
                else library.data_type_of(kind.name),
                core_share=call.core_share,
            )
        return found

    def _unknown(self, one: library.Served, why: str = "code that is not known") -> KindPower:
        kind = one.kind
        if kind.what != "kernel":
            why = "copies, of which nobody measured what they draw"
        found = library.unknown_power(
            kind,
            self.gpu,
            self.standing_watts,
            self.idle_watts,
            self.board_width,
            self.limit_watts,
        )
        estimate = found.power
        return KindPower(
            "name" if kind.what == "kernel" else "copy",
            estimate,
            min(self.standing_watts, estimate.value),
            _guess(why),
            found.why,
            found.family,
            found.data_type,
        )

    def _from_code(self, one: library.Served, code: Code) -> KindPower:
        try:
            return self._told(one, code)
        except errors.GivenUpError:
            raise
        except errors.WattcastError as error:
            detail = f"{one.kind.name[:100]}: its code in {code.file} is not used: {error}"
            self.notes.append(errors.Diagnostic("code_not_used", detail))
            return self._unknown(one, "code that could not be analysed")

    def asked(self, kind: trace.Kind, code: Code) -> PredictRequest:
        """The launch as ``POST /predict`` would be asked. Raises ValidationError."""
        body: dict[str, Any] = {
            "ptx": code.ptx,
            "kernel": code.kernel,
            "gpu": self.gpu.id,
            "launch": {
                "grid": list(kind.grid),
                "block": list(kind.block),
                "dynamic_shared_bytes": kind.dynamic_shared_bytes,
            },
            "static_shared_bytes": kind.static_shared_bytes,
            **parts.members(self.request, "model", "board", "clocks"),
        }
        if 1 <= kind.registers <= 255:
            body["registers_per_thread"] = kind.registers
        return PredictRequest.model_validate(body)

    def _told(self, one: library.Served, code: Code) -> KindPower:
        request = self.asked(one.kind, code)
        source = self.predictor.sources.read(request, self.gpu)
        analysis = parts.analysed(self.predictor, request, source, self.gpu, ptxas=True)
        needs = parts.needs(source, analysis)
        trips = parts.trip_counts(analysis)
        found = self._watts(analysis, one.mean_seconds or None)
        assumed = bool(needs) or any(trip.how == "assumed" for trip in trips)
        why = "its code at the measured duration"
        if assumed:
            measured, found = found, self._watts(analysis, None)
            missing = needs[0].argument if needs else "the trips of a loop"
            why = f"its code; {missing} is assumed, so rates are those of the predicted duration"
        estimate, card = found.estimate, found.card
        if estimate is None or card is None:
            raise errors.WattcastError(
                "; ".join(note.detail for note in found.diagnostics) or "no model"
            )
        if assumed and measured.estimate is not None:
            other = measured.estimate
            estimate = Estimate(
                estimate.value,
                min(estimate.low, other.low),
                max(estimate.high, other.high),
                min(estimate.level, other.level),
                weaker(estimate.basis, other.basis),
            )
        value = min(max(estimate.value, self.idle_watts), self.limit_watts)
        held = between(estimate, self.idle_watts, self.limit_watts * (1.0 + OVER_LIMIT))
        held = Estimate(value, min(held.low, value), max(held.high, value), held.level, held.basis)
        standing = self.standing_watts
        if found.components is not None:
            standing = sum(found.components[name] for name in STANDING)
        return KindPower(
            "code",
            held,
            min(standing, value),
            trust(estimate.basis, card, needs, trips),
            why,
            code=code,
            request=request,
            scales=self._scales(analysis),
        )

    def _watts(self, analysis: KernelAnalysis, seconds: float | None) -> Watts:
        chosen = {"model": self.request.model, "board": self.request.board or ""}
        models = BoardModels(self.predictor.power, self.gpu, **chosen)
        return next(models.watts(analysis, [self.clocks], None if seconds is None else [seconds]))

    def _scales(self, analysis: KernelAnalysis) -> Floats | None:
        """Time and power at each pair tried over those at the last, ``[n, 2]``; ``None`` where the
        models tell none."""
        models = BoardModels(self.predictor.power, self.gpu, model=PHYSICAL)
        try:
            found = [models.at(analysis, [pair])[0].told() for pair in self.tried]
        except errors.AnalysisError:
            return None
        told = np.array([(time.estimate.value, watts.value) for time, watts, _ in found])
        return np.asarray(told / told[-1]) if len(told) else None

    def _nearest(
        self, one: library.Served, code: Code, same: Sequence[KindPower], sizes: Floats | None
    ) -> KindPower:
        """Of launches of the same kernel that were analysed (``sizes`` [n]) the one of the nearest
        size."""
        if sizes is None:
            return self._unknown(one, f"code of which only {MOST_ANALYSED} launches are analysed")
        near = same[int(np.argmin(np.abs(sizes - _size(one.kind))))]
        low = min(power.estimate.low for power in same)
        high = max(power.estimate.high for power in same)
        estimate = near.estimate
        wide = Estimate(estimate.value, low, high, estimate.level, estimate.basis)
        why = "its code, launched with another grid"
        return KindPower(
            "code, other launch", wide, near.standing_watts, near.trust, why, code=code,
            scales=near.scales,
        )  # fmt: skip


@dataclass(frozen=True)
class Device:
    """One GPU of the trace with its launches (places in the trace) and what they draw."""

    number: int
    gpu: gpus.GpuProfile
    powers: BoardPowers
    kinds: Mapping[int, KindPower]
    at: trace.Integers
    board: trace.Board
