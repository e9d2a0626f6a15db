"""What to change about a launch, and what each change would gain.

Every gain is the difference of two predictions of the default time model and the physical power
model: of the launch as it is, and of the launch mended. Code is mended in its activity
(``wattcast.features.findings``), launch, registers and clocks by asking again with another request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.assembled import assembled
from wattcast.features.errors import AnalysisError, LaunchError, ServiceError, WattcastError
from wattcast.features.findings import Finding, find
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import axes_of, covering_grid, usual_blocks
from wattcast.features.memory import SECTOR_BYTES
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

SAME = 0.99
"""Of what a launch writes, what the next must read to be taken for a pass over it: the last sectors
of rows may differ."""

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

    @classmethod
    def both(cls, parts: Iterable[Outcome]) -> Outcome:
        """Launches one after another."""
        told = list(parts)
        seconds = sum(each.seconds for each in told)
        return cls(seconds, sum(each.joules for each in told) / seconds)

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


def fusions(predictor: Predictor, requests: Sequence[PredictRequest]) -> list[dict[str, Any]]:
    """Elementwise passes that follow a product of matrices, and what fusing them with it saves.

    ``requests`` are launches in the order in which they run, each with one GPU. A pass uses neither
    matrix units, shared memory, barriers nor atomics, and reads from device memory what the launch
    before it writes, or more: that these are the same data is not known, but to the caller. Fused,
    that is neither written nor read, and the launch of the pass goes; what else it does is added,
    though much of it would pass beside the product. Raises as ``advise`` does.
    """
    found: list[dict[str, Any]] = []
    chain: list[_Adviser] = []
    for request in requests:
        assert request.gpu is not None
        gpu = predictor.gpus.load(request.gpu)
        next_ = _Adviser(predictor, request, predictor.sources.read(request, gpu), gpu)
        if chain and not next_.follows(chain[-1]):
            chain = []
        if chain or next_.analysis.extras.tensor:
            chain = [*chain, next_] if chain and not next_.analysis.extras.tensor else [next_]
        if len(chain) > 1:
            told = _fused(chain)
            found = [*(found[:-1] if len(chain) > 2 else found), told]
    return [each for each in found if _worth_it(each["gain"])]


def _fused(chain: Sequence[_Adviser]) -> dict[str, Any]:
    """A product with the passes after it, as launches and as one."""
    before = Outcome.both(each.before for each in chain)
    after = []
    for number, each in enumerate(chain):
        activity = each.analysis.activity
        kept = chain[number - 1].written if number else 0.0
        gone = each.written if number + 1 < len(chain) else 0.0
        less = replace(
            activity,
            kernel_launches=0 if number else activity.kernel_launches,
            global_load_sectors=max(0.0, activity.global_load_sectors - kept),
            global_store_sectors=max(0.0, activity.global_store_sectors - gone),
            l2_sectors=max(0.0, activity.l2_sectors - kept - gone),
            dram_read_sectors=max(0.0, activity.dram_read_sectors - kept),
            dram_write_sectors=max(0.0, activity.dram_write_sectors - gone),
        )
        after.append(each.outcome(less))
    spared = 2 * SECTOR_BYTES * sum(each.written for each in chain[:-1])
    names = [parts.kernel_name(each.analysis)["demangled"] for each in chain]
    passes = " and ".join(names[1:])
    return {
        "code": "unfused_passes",
        "kernels": names,
        "bytes": spared,
        "detail": f"{names[0]} writes what {passes} read again, element by element",
        "remedy": f"compute {passes} on the sums before {names[0]} stores them",
        **_compared(before, Outcome.both(after)),
    }


def _compared(before: Outcome, after: Outcome) -> dict[str, Any]:
    return {
        "before": before.answer(),
        "after": after.answer(),
        "gain": {
            "seconds": before.seconds - after.seconds,
            "watts": before.watts - after.watts,
            "joules": before.joules - after.joules,
            "time_percent": 100 * (1 - after.seconds / before.seconds),
            "energy_percent": 100 * (1 - after.joules / before.joules),
        },
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
        self.model: PhysicalPowerModel = predictor.power.physical(gpu, request.board or "")
        self.analysis = self._analysed(request)
        self._more = beside(self.analysis.extras)
        self.before = self.outcome(self.analysis.activity)

    def _analysed(self, request: KernelRequest) -> KernelAnalysis:
        return parts.analysed(self._predictor, request, self._source, self._gpu, ptxas=True)

    def outcome(
        self, activity: Activity, clocks: ClockPair | None = None, more: Beside | None = None
    ) -> Outcome:
        """Of ``activity``, at the clocks asked for."""
        pair = clocks or self.clocks
        besides = self._more if more is None else more
        seconds = predicted_seconds(activity, self._gpu, pair, more=besides)
        found = self.model.predict(WorkAtTime(activity, seconds, besides), pair)
        return Outcome(seconds, found.estimate.value)

    @property
    def written(self) -> float:
        """Sectors that reach device memory."""
        return self.analysis.activity.dram_write_sectors

    def follows(self, other: _Adviser) -> bool:
        """Whether this may be an elementwise pass over what ``other`` wrote."""
        activity, extras = self.analysis.activity, self.analysis.extras
        held = activity.shared_requests or activity.barriers or activity.atomic_requests
        return (
            self._gpu.id == other._gpu.id
            and not extras.tensor
            and not held
            and activity.dram_read_sectors >= SAME * other.written > 0
        )

    def findings(self) -> Iterator[dict[str, Any]]:
        """What is found in the code, mended."""
        text = self.analysis.module.text.splitlines()
        for finding in find(self.analysis):
            mended = self._mended(finding)
            if mended is None:
                continue
            activity, after = mended
            before, then = self.analysis.activity.values(), activity.values()
            changes = [
                {"name": name, "before": value, "after": then[name]}
                for name, value in before.items()
                if value != then[name]
            ]
            yield self._advice(finding, after, _places(finding, text), changes)

    def _mended(self, finding: Finding) -> tuple[Activity, Outcome] | None:
        """What a finding leaves: counted, or analysed anew where the PTX was changed; ``None``
        where that cannot be analysed."""
        if finding.ptx is None:
            activity = finding.mended or self.analysis.activity
            more = None if finding.extras is None else beside(finding.extras)
            return activity, self.outcome(activity, more=more)
        function = self.analysis.function.name
        launch = self._request.launch.model_copy(
            update={"arguments": dict(self.analysis.launch.arguments)}
        )
        changed = {
            "ptx": finding.ptx, "cuda": None, "kernel": function, "launch": launch,
            "static_shared_bytes": None,
        }  # fmt: skip
        asked = self._request.model_copy(update=changed)
        try:
            source = self._predictor.sources.read(asked, self._gpu)
            analysis = parts.analysed(self._predictor, asked, source, self._gpu, ptxas=True)
            more = beside(analysis.extras)
            return analysis.activity, self.outcome(analysis.activity, more=more)
        except WattcastError:
            return None

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
        compared = _compared(self.before, after)
        return {
            **parts.members(found, "code", "detail", "remedy"),
            "places": places,
            "activity": activity,
            "request": request,
            "after": compared["after"],
            "gain": compared["gain"],
        }

    def _asked_again(self, **changes: Any) -> tuple[KernelAnalysis, Outcome] | None:
        """The launch with a changed request; ``None`` where that cannot be launched."""
        asked = self._request.model_copy(update=changes)
        try:
            analysis = self._analysed(asked)
            return analysis, self.outcome(analysis.activity, more=beside(analysis.extras))
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
            outcome = self.outcome(activity, pair)
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
