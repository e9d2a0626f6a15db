"""A launch on one GPU, and what becomes of it with a finding mended."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from wattcast.features import errors, gpus, launch, loops, places
from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.findings import Finding, find
from wattcast.features.invariance import doubt
from wattcast.features.needs import with_assumed
from wattcast.features.ptx.ir import Address, Instruction, Register
from wattcast.models.clocks import ClockPair, checked_limit, clocks_within, held_back
from wattcast.models.power.physical import PhysicalPowerModel, WorkAtTime
from wattcast.models.time.beside import Beside, beside
from wattcast.models.time.bottleneck import predicted_seconds
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import LaunchRequest, PointerArgument
from wattcast.predictor.messages import advise as messages
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts import swept, time_and_power
from wattcast.predictor.parts.sources import Source

LEAST_GAIN_PERCENT = 0.5
"""Less than this, of energy and of time, is within what rounding of a launch's shape makes."""

REWRITTEN = ("register_tiling", "thread_per_row", "tensor_cores")
LEAST_REWRITTEN_PERCENT = 10.0
"""The same where a kernel is written anew and its bound holds nothing of what that costs: by hand
the change saves 4 to 26 points less, so that 8 % at most of an FP64 product on an RTX 3090 was a
loss (``python -m studies advice``)."""

MOST_PLACES = 50

MOST_PTX = 200_000
"""Characters of changed PTX that an answer carries at most."""

SAME = 0.99
"""Of what a launch writes, what the next must read to be taken for a pass over it: the last sectors
of rows may differ."""


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The launch asked for otherwise: ``request`` holds what changes."""

    code: str
    detail: str
    remedy: str
    request: dict[str, Any]
    outcome: messages.Outcome
    at_least = False


@cache
def snippets() -> dict[str, dict[str, str]]:
    """Lines of CUDA C++ ``before`` and ``after`` a change, by code and form of a finding."""
    text = Path(__file__).with_name("snippets.toml").read_text(encoding="utf-8")
    return {name: {side: text.strip("\n") for side, text in both.items()}
            for name, both in tomllib.loads(text).items()}  # fmt: skip


def gain(before: messages.Outcome, after: messages.Outcome) -> messages.Gain:
    """How much less is taken after a change."""
    return messages.Gain(
        seconds=before.seconds - after.seconds,
        watts=before.watts - after.watts,
        joules=before.joules - after.joules,
        time_percent=100 * (1 - after.seconds / before.seconds),
        energy_percent=100 * (1 - after.joules / before.joules),
    )


class Adviser:
    """One launch on one GPU, and what becomes of it otherwise."""

    def __init__(
        self, predictor: Predictor, request: PredictRequest, source: Source, gpu: gpus.GpuProfile
    ) -> None:
        self._predictor, self._source = predictor, source
        self.request, self.gpu = request, gpu
        self.clocks, _ = parts.clocks_of(request.clocks, gpu)
        self.model: PhysicalPowerModel = predictor.power.physical(gpu, request.board or "")
        own = time_and_power.board_limit(self.model.card, gpu)
        asked = checked_limit(request.power_limit_watts, gpu)
        self._limit = own if asked is None else min(own, asked)
        self.analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
        self.more = beside(self.analysis.extras)
        self.before = self.outcome(self.analysis.activity)
        self.launch = request.launch.model_dump(exclude_defaults=True)
        if assumed := self._assumed():
            self.launch["arguments"] = {**self.launch.get("arguments", {}), **assumed}

    def _assumed(self) -> dict[str, int]:
        """By position, the whole numbers that stand for arguments not given. Another grid keeps
        them: it would stand for less work otherwise, and seem to save what it leaves out."""
        function, launch = self.analysis.function, self.analysis.launch
        names = [each.name for each in function.parameters]
        told = with_assumed(function, launch).arguments
        parts = (
            (*name.partition("+"), told[name]) for name in told if name not in launch.arguments
        )
        return {
            f"{names.index(head)}{plus}{at}": value
            for head, plus, at, value in parts
            if isinstance(value, int)
        }

    def outcome(
        self, activity: Activity, clocks: ClockPair | None = None, more: Beside | None = None
    ) -> messages.Outcome:
        """Of ``activity``, at the clocks asked for or at those that the power limit leaves."""
        besides = self.more if more is None else more

        def free(pair: ClockPair) -> messages.Outcome:
            seconds = predicted_seconds(activity, self.gpu, pair, more=besides)
            found = self.model.predict(WorkAtTime(activity, seconds, besides), pair)
            return messages.Outcome.of(seconds, found.estimate.value)

        asked = clocks or self.clocks
        found = free(asked)
        idle = self.model.parameters.idle_watts
        if found.watts > self._limit:
            pair = clocks_within(self._limit, lambda one: free(one).watts, self.gpu, asked)
            found = free(pair)
            runs = held_back(self._limit, found.watts, idle)
            if runs < 1.0:
                found = messages.Outcome.of(found.seconds / runs, self._limit)
        watts = min(max(found.watts, idle), self._limit * (1.0 + time_and_power.OVER_LIMIT))
        return messages.Outcome.of(found.seconds, watts)

    @property
    def written(self) -> float:
        """Sectors that reach device memory."""
        return self.analysis.activity.dram_write_sectors

    @property
    def multiplies(self) -> bool:
        """Whether this is a product on matrix units."""
        return bool(self.analysis.extras.tensor)

    @property
    def passes(self) -> bool:
        """Whether no thread may need what others of the launch compute."""
        activity = self.analysis.activity
        held = activity.shared_requests or activity.barriers or activity.atomic_requests
        return not (held or self.multiplies)

    @property
    def once(self) -> bool:
        """Whether it passes over data of device memory that no two threads read."""
        activity = self.analysis.activity
        return self.passes and activity.dram_read_sectors >= SAME * activity.global_load_sectors

    def follows(self, other: Adviser) -> bool:
        """Whether this may be an elementwise pass over what ``other`` wrote."""
        reads = self.analysis.activity.dram_read_sectors
        return self.gpu.id == other.gpu.id and self.passes and reads >= SAME * other.written > 0

    def findings(self) -> Iterator[messages.Advice | messages.Advised]:
        """What is found in the code, mended; without a gain where that would rest on a guess."""
        text = self.analysis.module.text.splitlines()
        for finding in find(self.analysis):
            if self._guessed(finding):
                if finding.ptx is not None or self._noticed(finding):
                    yield messages.Advised(**self._told(finding), places=_places(finding, text))
                continue
            mended = self._mended(finding)
            if mended is None:
                continue
            activity, after = mended
            before, then = self.analysis.activity.values(), activity.values()
            changes = [
                messages.ChangedQuantity(name=name, before=value, after=then[name])
                for name, value in before.items()
                if value != then[name]
            ]
            request = None
            if finding.grid is not None:
                request = {"launch": {**self.launch, "grid": [finding.grid]}}
            yield self.advice(finding, after, _places(finding, text), changes, request)

    def _guessed(self, finding: Finding) -> bool:
        """Whether what a finding costs rests on a loop whose trips are a guess, or on addresses or
        branches that data decide which nobody described."""
        analysis = self.analysis
        known, body = loops.deciding(analysis.function), analysis.function.body.instructions
        return analysis.trips_assumed or any(
            analysis.runs.invented(known.of(*_deciders(body[each.position])))
            for each in finding.places
            if each.function == analysis.function.name
        )

    def _noticed(self, finding: Finding) -> bool:
        """Whether a finding saves anything noticeable under what was assumed."""
        mended = self._mended(finding)
        saved = None if mended is None else gain(self.before, mended[1])
        return saved is None or max(saved.energy_percent, saved.time_percent) >= LEAST_GAIN_PERCENT

    def _mended(self, finding: Finding) -> tuple[Activity, messages.Outcome] | None:
        """What a finding leaves: counted, or analysed anew where the PTX was changed; ``None``
        where that cannot be analysed."""
        if finding.ptx is None:
            activity = finding.mended or self.analysis.activity
            more = None if finding.extras is None else beside(finding.extras)
            return activity, self.outcome(activity, more=more)
        asked = self.request.model_copy(
            update={
                "ptx": finding.ptx,
                "cuda": None,
                "kernel": self.analysis.function.name,
                "launch": self._by_position(finding.grid),
                "static_shared_bytes": None,
            }
        )
        try:
            analysis, outcome = self.anew(asked)
            return analysis.activity, outcome
        except errors.WattcastError:
            return None

    def anew(
        self, asked: PredictRequest, source: Source | None = None
    ) -> tuple[KernelAnalysis, messages.Outcome]:
        """Another launch, of other code without a ``source``. Raises what ``predict`` raises."""
        source = source or self._predictor.sources.read(asked, self.gpu)
        analysis = parts.analysed(self._predictor, asked, source, self.gpu, ptxas=True)
        return analysis, self.outcome(analysis.activity, more=beside(analysis.extras))

    def _by_position(self, grid: int | None) -> LaunchRequest:
        """The launch with its arguments by position, as PTX has no C names, and with so many
        blocks if any."""
        given = {
            name: PointerArgument.model_validate(value, from_attributes=True)
            if isinstance(value, launch.PointerHint)
            else value
            for name, value in self.analysis.launch.arguments.items()
        }
        if grid is not None:
            given |= self._assumed()
        changed = {"arguments": given} | ({} if grid is None else {"grid": [grid]})
        return self.request.launch.model_copy(update=changed)

    def advice(
        self,
        found: Finding | Otherwise,
        after: messages.Outcome,
        places: list[messages.AdvicePlace],
        activity: list[messages.ChangedQuantity],
        request: dict[str, Any] | None = None,
    ) -> messages.Advice:
        """One thing to change, and what that saves."""
        ptx = getattr(found, "ptx", None)
        made = isinstance(found, Otherwise) or ptx is not None
        return messages.Advice(
            **self._told(found),
            places=places,
            activity=activity,
            request=request,
            changed_ptx=ptx if ptx is not None and len(ptx) <= MOST_PTX else None,
            after=after,
            gain=gain(self.before, after),
            promise="at_least" if found.at_least else "estimate" if made else "at_most",
        )

    def _told(self, found: Finding | Otherwise) -> dict[str, Any]:
        form = getattr(found, "form", "")
        snippet = snippets().get(f"{found.code}-{form}" if form else found.code, {})
        return {
            **parts.members(found, "code", "detail", "remedy"),
            "snippet_before": snippet.get("before"),
            "snippet_after": snippet.get("after"),
        }

    def least(
        self, shapes: Iterable[dict[str, Any]], *, strides: bool
    ) -> tuple[KernelAnalysis, messages.Outcome, dict[str, Any]] | None:
        """Of the launches with other members that are shown to compute the same the one of the
        fewest joules, and what to ask for. ``strides``: a loop covers what the threads do not."""
        asked = ({**self.launch, **shape} for shape in shapes)
        found = (
            (*tried, {"launch": each})
            for each in asked
            if (tried := self._launched(LaunchRequest.model_validate(each), strides=strides))
        )
        return min(found, key=lambda each: each[1].joules, default=None)

    def _launched(
        self, launch: LaunchRequest, *, strides: bool
    ) -> tuple[KernelAnalysis, messages.Outcome] | None:
        """Another launch; ``None`` where it is not shown to compute the same
        (``wattcast.features.invariance``, and threads that are more store nothing)."""
        analysis = self.analysis
        base, other = analysis.launch, launch.launch()
        if doubt(analysis.module, analysis.function, base, other, strides=strides) is not None:
            return None
        tried = self.asked_again(launch=launch)
        if tried is None or strides or not places.extra_threads(base, other):
            return tried
        before = self._as_assumed
        return tried if before is not None and before == swept.stored(tried[0]) else None

    @cached_property
    def _as_assumed(self) -> dict[str, float] | None:
        """What the launch stores with the arguments given that were assumed."""
        if not self._assumed():
            return swept.stored(self.analysis)
        same = self.asked_again(launch=LaunchRequest.model_validate(self.launch))
        return None if same is None else swept.stored(same[0])

    def asked_again(self, **changes: Any) -> tuple[KernelAnalysis, messages.Outcome] | None:
        """The launch with a changed request; ``None`` where that cannot be launched."""
        try:
            return self.anew(self.request.model_copy(update=changes), self._source)
        except (errors.LaunchError, errors.AnalysisError):
            return None


def _deciders(one: Instruction) -> Iterator[str]:
    """Registers of an instruction that decide where it goes: of its address, its guard."""
    if one.predicate is not None:
        yield one.predicate
    for each in one.operands:
        if isinstance(each, Address) and isinstance(each.base, Register):
            yield each.base.name


def _places(finding: Finding, text: list[str]) -> list[messages.AdvicePlace]:
    return [
        messages.AdvicePlace.from_attributes(each, text=parts.line_of(text, each.line))
        for each in finding.places[:MOST_PLACES]
    ]
