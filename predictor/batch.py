"""Many launches of one kernel: the code is read and analysed once, then only numbers change.

Every launch is predicted as ``POST /predict`` would; those that behave alike are worked out
together, to the same last bit (``features.symbolic.each``). One that cannot run has its problem in
its place, and the others are answered. Nothing is stored, and no analysis is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError, LaunchError
from wattcast.predictor import parts
from wattcast.predictor.messages.batch import BatchRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.predict import Launched, launched, rests_on_activity

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


def predict_many(predictor: Predictor, request: BatchRequest) -> dict[str, Any]:
    """``BatchAnswer``.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, GpuError, ModelError and
    ClockError for what all launches share, and GivenUpError where the request's clock runs out.
    """
    with parts.asked_seconds(predictor, request):
        return _predict_many(predictor, request)


def _predict_many(predictor: Predictor, request: BatchRequest) -> dict[str, Any]:
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    function = source.known.module.kernel(request.kernel)
    clocks, beside = clocks_of(request.clocks, gpu)
    shared = {name: getattr(request, name) for name in type(request).model_fields}
    launches = shared.pop("launches")
    one = PredictRequest.model_construct(**shared, launch=launches[0])
    answers: list[dict[str, Any]] = []
    needs: dict[int, dict[str, Any]] = {}
    notes = {note.code: note for note in reversed(beside)}
    first: Launched | None = None
    with parts.announced(source, function, launches):
        for launch in launches:
            try:
                asked = one.model_copy(update={"launch": parts.completed(function, launch)})
                found = launched(predictor, asked, source, gpu, clocks, keep=False)
                own = _notes(found)
                answers.append(_answer(found, own))
            except (LaunchError, AnalysisError) as error:
                field = error.context.get("field")
                problem = {"kind": error.slug, "detail": error.detail, "field": field}
                answers.append({"problem": problem})
                continue
            first = first or found
            for note in own:
                notes.setdefault(note.code, note)
            if found.analysis.needs:
                for need in parts.needs(source, found.analysis):
                    needs.setdefault(need["position"], need)
    card = first.cost.power.card if first is not None else None
    return {
        "gpu": gpu.id,
        "kernel": {"mangled": function.name, "demangled": function.demangled},
        "compiled": parts.compiled(source),
        "clocks": (first.cost.clocks if first is not None else clocks)._asdict(),
        "model": reference_of(card) if card else None,
        "time_model": first.cost.duration.family if first and first.cost.duration else None,
        "analysis": request.analysis,
        "predictions": answers,
        "failed": sum("problem" in each for each in answers),
        "needs": list(needs.values()),
        "warnings": parts.warnings(source, first.analysis, notes.values())
        if first is not None
        else parts.plain_warnings(notes.values()),
    }


def _notes(found: Launched) -> list[Diagnostic]:
    power, notes = found.cost.power, found.cost.notes
    of_vector = power.vector.diagnostics if power.vector else ()
    return [*found.analysis.diagnostics, *of_vector, *power.diagnostics, *notes]


def _answer(found: Launched, notes: list[Diagnostic]) -> dict[str, Any]:
    analysis, cost, both = found
    duration, power = cost.duration, cost.power
    return {
        "power": parts.estimate(power.estimate, "watts") if power.estimate else None,
        "time": parts.estimate(duration.estimate, "seconds") if duration else None,
        "energy": parts.estimate(both, "joules") if both else None,
        "regime": duration.regime if duration else None,
        "occupancy": analysis.occupancy.occupancy,
        "waves": analysis.waves,
        "coverage": parts.coverage(analysis) if rests_on_activity(power, duration) else None,
        "warnings": list(dict.fromkeys(note.code for note in notes)),
    }
