"""What to change about a launch, and what each change would gain.

Every gain is the difference of two predictions of the default time model and the physical power
model: of the launch as it is, and of the launch mended. Code is mended in its activity
(``wattcast.features.findings``), launch, registers and clocks by asking again with another request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.assembled import assembled
from wattcast.features.errors import AnalysisError, LaunchError, ServiceError
from wattcast.features.findings import Finding, find
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import axes_of, covering_grid, usual_blocks
from wattcast.features.occupancy import occupancy
from wattcast.models.clocks import ClockPair, supported_pairs
from wattcast.models.power.physical import PhysicalPowerModel, WorkAtTime
from wattcast.models.time.beside import Beside, beside
from wattcast.models.time.bottleneck import (
    launch_seconds,
    predicted_seconds,
    regime,
    resource_seconds,
)
from wattcast.predictor import parts
from wattcast.predictor.messages import KernelRequest, LaunchRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.stored import record_of, request_of

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

LEAST_GAIN_PERCENT = 0.5
"""Less than this, of energy and of time, is within what rounding of a launch's shape makes."""

MOST_ADVICE = 25
MOST_PLACES = 50

MOST_SLOWDOWN = 1.05
"""How much longer a launch at lower clocks may take to be advised."""

TAIL = 1.05
"""Work of the busiest SM over the mean from which the tail is told of."""

_BLOCKS_TRIED = frozenset({64, 128, 192, 256, 384, 512, 768, 1024})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds and watts of a launch."""

    seconds: float
    watts: float

    @property
    def joules(self) -> float:
        """Their product."""
        return self.seconds * self.watts

    def answer(self) -> dict[str, float]:
        """``wattcast.predictor.messages.advise.Outcome``."""
        return {"seconds": self.seconds, "watts": self.watts, "joules": self.joules}


@dataclass(frozen=True, slots=True)
class _Other:
    """The launch asked for otherwise: ``request`` holds what changes."""

    code: str
    detail: str
    remedy: str
    request: dict[str, Any]
    outcome: Outcome


def advice(predictor: Predictor, prediction_id: UUID) -> dict[str, Any]:
    """``AdviceAnswer`` of a stored prediction.

    Raises ServiceError ``unknown-prediction`` or ``no-explanation`` (measured work has no code),
    and AnalysisError where the kernel cannot be analysed.
    """
    record = record_of(predictor, prediction_id)
    if json.loads(record.result)["time"] is None:
        raise ServiceError("no-explanation", f"prediction {prediction_id} has no time")
    found = advise(predictor, request_of(predictor, record))
    return {"prediction_id": str(prediction_id), **found}


@parts.within_asked_seconds
def advise(predictor: Predictor, request: PredictRequest) -> dict[str, Any]:
    """The same for a request with one GPU; its ``model`` and ``time_model`` do not matter.
    Raises what ``predict`` raises, and AnalysisError."""
    assert request.gpu is not None
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    adviser = _Adviser(predictor, request, source, gpu)
    found = [*adviser.findings(), *adviser.others()]
    kept = [each for each in found if _worth_it(each["gain"])]
    kept.sort(key=lambda each: (-each["gain"]["joules"], -each["gain"]["seconds"]))
    analysis = adviser.analysis
    return {
        "gpu": gpu.id,
        "kernel": parts.kernel_name(analysis),
        "clocks": adviser.clocks._asdict(),
        "model": reference_of(adviser.model.card),
        "time_model": "bottleneck",
        "before": adviser.before.answer(),
        "advice": kept[:MOST_ADVICE],
        "warnings": parts.warnings(
            source,
            analysis,
            analysis.activity_diagnostics,
            parts.left_out("suggestions", len(kept), MOST_ADVICE),
        ),
    }


def _worth_it(gain: Mapping[str, float]) -> bool:
    """It saves energy or time noticeably, and costs no more of the other than it saves."""
    energy, time = gain["energy_percent"], gain["time_percent"]
    return max(energy, time) >= LEAST_GAIN_PERCENT and energy >= 0 and time + energy >= 0


class _Adviser:
    """One launch on one GPU, and what becomes of it otherwise."""

    def __init__(
        self, predictor: Predictor, request: PredictRequest, source: Source, gpu: GpuProfile
    ) -> None:
        self._predictor, self._request, self._source, self._gpu = predictor, request, source, gpu
        self.clocks, _ = clocks_of(request.clocks, gpu)
        self.model: PhysicalPowerModel = predictor.power.physical(gpu)
        self.analysis = self._analysed(request)
        self._more = beside(self.analysis.extras)
        self.before = self._outcome(self.analysis.activity)

    def _analysed(self, request: KernelRequest) -> KernelAnalysis:
        return parts.analysed(self._predictor, request, self._source, self._gpu, ptxas=True)

    def _outcome(
        self, activity: Activity, clocks: ClockPair | None = None, more: Beside | None = None
    ) -> Outcome:
        pair = clocks or self.clocks
        besides = self._more if more is None else more
        seconds = predicted_seconds(activity, self._gpu, pair, more=besides)
        found = self.model.predict(WorkAtTime(activity, seconds, besides), pair)
        return Outcome(seconds, found.estimate.value)

    def findings(self) -> Iterator[dict[str, Any]]:
        """What is found in the code, mended."""
        text = self.analysis.module.text.splitlines()
        for finding in find(self.analysis):
            after = self._outcome(finding.mended)
            changes = finding.changes(self.analysis.activity)
            activity = [
                {"name": name, "before": before, "after": then}
                for name, (before, then) in changes.items()
            ]
            yield self._advice(finding, after, _places(finding, text), activity)

    def others(self) -> Iterator[dict[str, Any]]:
        """The launch with another shape, other registers, other clocks."""
        for find_other in (self._shape, self._registers, self._shared_memory, self._clocks):
            other = find_other()
            if other is not None:
                yield self._advice(other, other.outcome, [], [], other.request)

    def _advice(
        self,
        found: Finding | _Other,
        after: Outcome,
        places: list[dict[str, Any]],
        activity: list[dict[str, Any]],
        request: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        before = self.before
        return {
            **parts.members(found, "code", "detail", "remedy"),
            "places": places,
            "activity": activity,
            "request": request,
            "after": after.answer(),
            "gain": {
                "seconds": before.seconds - after.seconds,
                "watts": before.watts - after.watts,
                "joules": before.joules - after.joules,
                "time_percent": 100 * (1 - after.seconds / before.seconds),
                "energy_percent": 100 * (1 - after.joules / before.joules),
            },
        }

    def _asked_again(self, **changes: Any) -> tuple[KernelAnalysis, Outcome] | None:
        """The launch with a changed request; ``None`` where that cannot be launched."""
        asked = self._request.model_copy(update=changes)
        try:
            analysis = self._analysed(asked)
            return analysis, self._outcome(analysis.activity, more=beside(analysis.extras))
        except (LaunchError, AnalysisError):
            return None

    def _shape(self) -> _Other | None:
        """Another block size, where the code does not fix it by declaring shared memory."""
        analysis = self.analysis
        launch = analysis.launch
        if analysis.static_shared_bytes or launch.dynamic_shared_bytes or axes_of(launch) > 1:
            return None
        best: tuple[Outcome, dict[str, Any], KernelAnalysis] | None = None
        for block in usual_blocks(1):
            if block[0] not in _BLOCKS_TRIED or block == launch.block:
                continue
            shape = {"grid": list(covering_grid(launch, block)), "block": list(block)}
            other = self._request.launch.model_dump(exclude_defaults=True)
            found = self._asked_again(launch=LaunchRequest.model_validate({**other, **shape}))
            if found is not None and (best is None or found[1].joules < best[0].joules):
                best = found[1], {"launch": {**other, **shape}}, found[0]
        if best is None:
            return None
        outcome, request, other_analysis = best
        grid, block = request["launch"]["grid"][0], request["launch"]["block"][0]
        busiest = analysis.activity.sm_imbalance
        then = other_analysis.occupancy.occupancy
        code = "launch_shape"
        why = (
            f"{launch.blocks} blocks of {launch.threads_per_block} threads in {analysis.waves:g} "
            f"waves; {grid} of {block} take {other_analysis.waves:g}, at {then:.0%} occupancy"
        )
        if busiest > TAIL and other_analysis.activity.sm_imbalance < busiest:
            code = "tail_effect"
            why = (
                f"{launch.blocks} blocks on {self._gpu.sm_count} SMs: the busiest SM has "
                f"{busiest:.2f} times the mean to do, with the other shape "
                f"{other_analysis.activity.sm_imbalance:.2f}"
            )
        elif analysis.occupancy.limiter == "blocks" and then > analysis.occupancy.occupancy:
            code = "occupancy_limiter"
            why = (
                f"no more than {analysis.occupancy.resident_blocks_per_sm} blocks fit on an SM, "
                f"so small ones leave it {analysis.occupancy.occupancy:.0%} occupied"
            )
        remedy = f"launch {grid} blocks of {block} threads (wattcast sweep tries more shapes)"
        return _Other(code, why, remedy, request, outcome)

    def _registers(self) -> _Other | None:
        """As few registers as let one more block in, if the kernel can do with them."""
        analysis = self.analysis
        if analysis.occupancy.limiter != "registers":
            return None
        now = analysis.registers.registers_per_thread
        floor = analysis.static.registers(self._gpu).low
        for fewer in range(now - 1, floor - 1, -1):
            resident = occupancy(self._gpu, analysis.launch, fewer, analysis.static_shared_bytes)
            if resident.resident_blocks_per_sm > analysis.occupancy.resident_blocks_per_sm:
                found = self._asked_again(registers_per_thread=fewer)
                if found is None:
                    return None
                capped = None
                if analysis.registers.how == "ptxas":
                    capped = assembled(analysis.module, analysis.function, self._gpu, fewer)
                if capped is not None and capped.spills:
                    return None  # what spilling takes is not predicted: no gain can be told
                return _Other(
                    "occupancy_limiter",
                    f"{now} registers a thread let {analysis.occupancy.resident_warps_per_sm} of "
                    f"{self._gpu.max_warps_per_sm} warps reside on an SM",
                    f"limit them to {fewer} (-maxrregcount or __launch_bounds__): "
                    f"{resident.resident_warps_per_sm} warps; "
                    + ("ptxas spills nothing then" if capped else "check that nothing is spilled"),
                    {"registers_per_thread": fewer},
                    found[1],
                )
        return None

    def _shared_memory(self) -> _Other | None:
        """As little shared memory as lets one more block in."""
        analysis = self.analysis
        resident = analysis.occupancy
        if resident.limiter != "shared_memory" or resident.resident_blocks_per_sm < 1:
            return None
        facts = self._gpu.capability
        unit = facts.shared_allocation_unit
        wanted = resident.resident_blocks_per_sm + 1
        room = self._gpu.shared_bytes_per_sm // wanted // unit * unit
        room -= facts.reserved_shared_bytes_per_block + analysis.launch.dynamic_shared_bytes
        if room < 0 or not analysis.static_shared_bytes:
            return None
        found = self._asked_again(static_shared_bytes=room)
        if found is None:
            return None
        return _Other(
            "occupancy_limiter",
            f"{analysis.shared_bytes_per_block} bytes of shared memory a block let "
            f"{resident.resident_warps_per_sm} of {self._gpu.max_warps_per_sm} warps reside",
            f"make its arrays {room} bytes at most, by smaller tiles or types: {wanted} blocks fit",
            {"static_shared_bytes": room},
            found[1],
        )

    def _clocks(self) -> _Other | None:
        """The clock pair that takes the least energy and hardly longer."""
        activity, best = self.analysis.activity, None
        for pair in supported_pairs(self._gpu):
            outcome = self._outcome(activity, pair)
            near = outcome.seconds <= MOST_SLOWDOWN * self.before.seconds
            if near and (best is None or outcome.joules < best[1].joules):
                best = pair, outcome
        if best is None or best[0].core_mhz >= self.clocks.core_mhz:
            return None
        pair, outcome = best
        longer = 100 * (outcome.seconds / self.before.seconds - 1)
        resources = resource_seconds(activity, self._gpu, self.clocks, more=self._more)
        bound = regime(resources, launch_seconds(activity, self._gpu))
        return _Other(
            "lower_clocks",
            f"the launch is bound by {bound}: at {pair.core_mhz:g} instead of "
            f"{self.clocks.core_mhz:g} MHz it takes {longer:+.1f} % time",
            f"lock the core clock at {pair.core_mhz:g} MHz (nvidia-smi --lock-gpu-clocks)",
            {"clocks": pair._asdict()},
            outcome,
        )


def _places(finding: Finding, text: list[str]) -> list[dict[str, Any]]:
    return [
        {
            **parts.members(each, "function", "line", "source_line", "opcode"),
            "text": parts.line_of(text, each.line),
        }
        for each in finding.places[:MOST_PLACES]
    ]
