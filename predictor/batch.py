"""Many launches of one kernel: the code is read and analysed once, then only numbers change.

Every launch is predicted as ``POST /predict`` would; those that behave alike are worked out
together, to the same last bit (``features.symbolic.arith``). One that cannot run has its problem in
its place, and the others are answered. Nothing is stored, and no analysis is kept.
"""

from __future__ import annotations

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import AnalysisError, Diagnostic, LaunchError
from wattcast.features.gpus import GpuProfile
from wattcast.predictor import Predictor, parts, predict
from wattcast.predictor.messages import ClocksAnswer, Need
from wattcast.predictor.messages import sweep as messages
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.time_and_power import TimeAndPower


def predict_many(predictor: Predictor, request: messages.BatchRequest) -> messages.BatchAnswer:
    """Predictions of many launches, in their order.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, GpuError, ModelError and
    ClockError for what all launches share, and GivenUpError where the request's clock runs out.
    """
    with parts.asked_seconds(predictor, request):
        return _predict_many(predictor, request)


def _predict_many(predictor: Predictor, request: messages.BatchRequest) -> messages.BatchAnswer:
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    function = source.known.module.kernel(request.kernel)
    clocks, beside = parts.clocks_of(request.clocks, gpu)
    shared = {name: getattr(request, name) for name in type(request).model_fields}
    launches = shared.pop("launches")
    one = PredictRequest.model_construct(**shared, launch=launches[0])
    answers: list[messages.BatchPrediction] = []
    needs: dict[int, Need] = {}
    notes = {note.code: note for note in reversed(beside)}
    first: tuple[KernelAnalysis, TimeAndPower] | None = None
    with parts.announced(source, function, launches):
        for launch in launches:
            try:
                asked = one.model_copy(update={"launch": parts.completed(function, launch)})
                found = predict.launched(predictor, asked, source, gpu, clocks, keep=False)
                if request.analysis == "symbolic" and found[1].duration is None:
                    asked = asked.model_copy(update={"analysis": "auto"})  # nothing was proven
                    found = predict.launched(predictor, asked, source, gpu, clocks, keep=False)
                analysis, point = found
                own = _notes(analysis, point)
                answers.append(_answer(analysis, point, gpu, own))
            except (LaunchError, AnalysisError) as error:
                problem = messages.LaunchProblem.of(error)
                answers.append(messages.BatchPrediction(problem=problem))
                continue
            first = first or found
            for note in own:
                notes.setdefault(note.code, note)
            if analysis.needs:
                for need in parts.needs(source, analysis):
                    needs.setdefault(need.position, need)
    best = first[1] if first is not None else None
    card = best.power.card if best is not None else None
    return messages.BatchAnswer(
        gpu=gpu.id,
        **parts.code_of(source, function),
        clocks=ClocksAnswer.from_attributes(best.clocks if best is not None else clocks),
        model=reference_of(card) if card else None,
        time_model=best.duration.family if best and best.duration else None,
        analysis=request.analysis,
        predictions=answers,
        failed=sum(each.problem is not None for each in answers),
        needs=list(needs.values()),
        warnings=parts.warnings(source, first[0], notes.values())
        if first is not None
        else parts.plain_warnings(notes.values()),
    )


def _notes(analysis: KernelAnalysis, point: TimeAndPower) -> list[Diagnostic]:
    of_vector = point.power.vector.diagnostics if point.power.vector else ()
    return [*analysis.diagnostics, *of_vector, *point.power.diagnostics, *point.notes]


def _answer(
    analysis: KernelAnalysis, point: TimeAndPower, gpu: GpuProfile, notes: list[Diagnostic]
) -> messages.BatchPrediction:
    duration = point.duration
    return messages.BatchPrediction(
        **point.costs(gpu),
        regime=duration.regime if duration else None,
        occupancy=analysis.occupancy.occupancy,
        waves=analysis.waves,
        coverage=predict.coverage_of(analysis, point),
        warnings=list(dict.fromkeys(note.code for note in notes)),
    )
