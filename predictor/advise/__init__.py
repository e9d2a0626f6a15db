"""What to change about a launch, and what each change would gain.

adviser.py     a launch, and what becomes of it with a finding mended
patches.py     the user's own lines with a change made, as diffs
launches.py    the same code with another launch, other registers, other clocks
snippets.toml  each finding's lines of CUDA C++, before and after

Every gain is the difference of two predictions of the default time model and the physical power
model, at the clocks that the board's power limit leaves: of the launch as it is, and of the launch
mended. Code is mended in its activity or in its PTX, which is then analysed like any other
(``wattcast.features.findings``); the launch by asking again with another request. What rests on a
loop whose trips are a guess, or on data that nobody described, gets no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from wattcast.features import errors, memory
from wattcast.features.activity.counts import QUANTITIES, Activity
from wattcast.predictor import Predictor, messages, parts, sweep
from wattcast.predictor.advise import adviser as advising
from wattcast.predictor.advise.launches import others, patches
from wattcast.predictor.messages.advise import Advice, AdviceAnswer, Fusion, Gain, Outcome
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts import power_models, stored

MOST_ADVICE = 25


def advice(predictor: Predictor, prediction_id: UUID) -> AdviceAnswer:
    """What to change about the launch of a stored prediction.

    Raises ServiceError ``unknown-prediction`` or ``no-explanation`` (measured work has no code),
    and AnalysisError where the kernel cannot be analysed.
    """
    record = stored.record_of(predictor, prediction_id)
    if stored.answer_of(record).time is None:
        raise errors.ServiceError("no-explanation", f"prediction {prediction_id} has no time")
    answer = advise(predictor, stored.request_of(predictor, record))
    return answer.model_copy(update={"prediction_id": prediction_id})


@parts.within_asked_seconds
def advise(
    predictor: Predictor, request: PredictRequest, *, patch: str | None = None
) -> AdviceAnswer:
    """The same for a request with one GPU; its ``model`` and ``time_model`` do not matter.
    ``patch`` asks for changes of the CUDA source as diffs, and names its file.
    Raises what ``predict`` raises, and AnalysisError."""
    assert request.gpu is not None
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    adviser = advising.Adviser(predictor, request, source, gpu)
    found = list(adviser.findings())
    unpriced = [each for each in found if not isinstance(each, Advice)]
    priced = [each for each in found if isinstance(each, Advice)]
    kept = [each for each in (*priced, *others(adviser)) if _worth_it(each.gain, each.code)]
    kept.sort(key=lambda each: (
        each.code == "lower_clocks", not _free(each.gain), -each.gain.joules, -each.gain.seconds
    ))  # fmt: skip
    analysis = adviser.analysis
    return AdviceAnswer(
        gpu=gpu.id,
        kernel=parts.kernel_name(analysis.function),
        clocks=messages.ClocksAnswer.from_attributes(adviser.clocks),
        model=power_models.reference_of(adviser.model.card),
        time_model="bottleneck",
        before=adviser.before,
        advice=kept[:MOST_ADVICE],
        unpriced=unpriced[:MOST_ADVICE],
        needs=parts.needs(source, analysis) if unpriced or analysis.trips_assumed else [],
        patches=None if patch is None else patches(adviser, patch),
        warnings=parts.warnings(
            source,
            analysis,
            analysis.activity_diagnostics,
            parts.left_out("suggestions", len(kept), MOST_ADVICE),
        ),
    )


def fusions(predictor: Predictor, requests: Sequence[PredictRequest]) -> list[Fusion]:
    """Elementwise passes that follow a product of matrices or each other, and what fusing them
    saves.

    ``requests`` are launches in the order in which they run, each with one GPU. A pass uses neither
    matrix units, shared memory, barriers nor atomics, and reads from device memory what the launch
    before it writes, or more: that these are the same data is not known, but to the caller. Of two
    passes both read each word once (a stencil does not). Fused, that is neither written nor read,
    and the launch of the pass goes; what else it does is added, though much of it would pass beside
    a product. Raises as ``advise`` does.
    """
    found: list[Fusion] = []
    chain: list[advising.Adviser] = []
    for request in requests:
        assert request.gpu is not None
        gpu = predictor.gpus.load(request.gpu)
        next_ = advising.Adviser(predictor, request, predictor.sources.read(request, gpu), gpu)
        on = chain and next_.follows(chain[-1]) and (chain[0].multiplies or next_.once)
        chain = [*chain, next_] if on else [next_] if next_.multiplies or next_.once else []
        if len(chain) > 1:
            found = [*(found[:-1] if len(chain) > 2 else found), _fused(chain)]
    return [each for each in found if _worth_it(each.gain)]


def _fused(chain: Sequence[advising.Adviser]) -> Fusion:
    """A product or pass with the passes after it, as launches and as one."""
    before = Outcome.together(each.before for each in chain)
    after: list[Activity] = []
    for number, each in enumerate(chain):
        activity = each.analysis.activity
        kept = chain[number - 1].written if number else 0.0
        gone = each.written if number + 1 < len(chain) else 0.0
        loads, stores = (
            max(0.0, 1.0 - less / max(many, 1.0))
            for less, many in (
                (kept, activity.global_load_sectors), (gone, activity.global_store_sectors),
            )
        )  # fmt: skip
        less = replace(
            activity,
            kernel_launches=0 if number else activity.kernel_launches,
            global_load_sectors=loads * activity.global_load_sectors,
            global_load_requests=loads * activity.global_load_requests,
            load_requests_per_warp=loads * activity.load_requests_per_warp,
            global_store_sectors=stores * activity.global_store_sectors,
            global_store_requests=stores * activity.global_store_requests,
            l2_sectors=max(0.0, activity.l2_sectors - kept - gone),
            dram_read_sectors=max(0.0, activity.dram_read_sectors - kept),
            dram_write_sectors=max(0.0, activity.dram_write_sectors - gone),
        )
        after.append(less)
    then = Outcome.together(one.outcome(less) for one, less in zip(chain, after, strict=True))
    if not chain[0].multiplies:
        then = chain[0].outcome(_added(after))
    spared = 2 * memory.SECTOR_BYTES * sum(each.written for each in chain[:-1])
    names = [each.analysis.function.demangled for each in chain]
    passes = " and ".join(names[1:])
    return Fusion(
        code="unfused_passes",
        kernels=names,
        bytes=spared,
        detail=f"{names[0]} writes what {passes} read again, element by element",
        remedy=f"compute {passes} on the results before {names[0]} stores them",
        before=before,
        after=then,
        gain=advising.gain(before, then),
    )


def _added(passes: Sequence[Activity]) -> Activity:
    """Passes in one launch, that of the first: each thread does what one of each does."""
    values = [each.values() for each in passes]
    names = QUANTITIES[QUANTITIES.index("warp_instructions_ptx") :]
    return replace(passes[0], **{name: sum(each[name] for each in values) for name in names})


def _free(saved: Gain) -> bool:
    """It saves more than two predictions are apart, and not by taking longer: such advice comes
    first. Clocks come last: they can be lowered whatever else is changed, best at the end."""
    apart = 100 * sweep.RESOLUTION
    return saved.energy_percent >= apart and saved.time_percent > -apart


def _worth_it(saved: Gain, code: str = "") -> bool:
    """It saves energy or time noticeably, and costs no more of the other than it saves."""
    energy, time = saved.energy_percent, saved.time_percent
    least = (
        advising.LEAST_REWRITTEN_PERCENT
        if code in advising.REWRITTEN
        else advising.LEAST_GAIN_PERCENT
    )
    return max(energy, time) >= least and energy >= 0 and time + energy >= 0
