"""The same launch of old and new code: what changes in time, power and energy.

Both sides are predicted by the same models, so that what those are wrong about largely cancels in
the ratio. Kernels are matched by name; a single kernel on either side needs no common one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wattcast.features.errors import KernelError, ServiceError
from wattcast.features.gpus import GpuProfile
from wattcast.features.ptx.ir import Function
from wattcast.models.energy import energy
from wattcast.models.estimate import quantity
from wattcast.predictor import parts
from wattcast.predictor.messages import KernelTiming
from wattcast.predictor.messages.compare import MOST_KERNELS, ComparedCode, CompareRequest, Limits
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.limits import Chosen, cost
from wattcast.predictor.parts.power_models import reference_of
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.trust import apart, trust

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

_QUANTITIES = (("time", "seconds"), ("power", "watts"), ("energy", "joules"))


def compare(predictor: Predictor, request: CompareRequest) -> dict[str, Any]:
    """``CompareAnswer``. Nothing is stored.

    Raises what ``predict`` raises (the error tells which side), KernelError where no kernel is on
    both sides, and ServiceError for too many.
    """
    names = [request.gpu] if request.gpu is not None else list(request.gpus or ())
    gpus = [predictor.gpus.load(name) for name in dict.fromkeys(names)]
    comparisons: list[dict[str, Any]] = []
    warnings: list[dict[str, Any]] = []
    marked: list[dict[str, Any]] = []
    kernels = _pairs(*_kernels(predictor, request, gpus[0]))
    for old, new in kernels.both:
        for gpu in gpus:
            before = _side(predictor, request, request.old, "old", old, gpu)
            after = _side(predictor, request, request.new, "new", new, gpu)
            warnings += after.pop("warnings")
            del before["warnings"]
            marked.append({**after, "gpu": gpu.id})
            comparisons.append(_comparison(request.limits, gpu, before, after))
    return {
        "comparisons": comparisons,
        "added": [_name(function) for function in kernels.added],
        "removed": [_name(function) for function in kernels.removed],
        "passed": not any(each["exceeded"] for each in comparisons),
        "apart": apart(marked),
        "markdown": markdown(comparisons, request.limits, kernels.added, kernels.removed),
        "warnings": parts.distinct(warnings),
    }


class _Pairs(NamedTuple):
    """Kernels on both sides, and those on one."""

    both: list[tuple[Function, Function]]
    added: Sequence[Function] = ()
    removed: Sequence[Function] = ()


def _kernels(
    predictor: Predictor, request: CompareRequest, gpu: GpuProfile
) -> tuple[Sequence[Function], Sequence[Function]]:
    found = []
    for side, name in ((request.old, "old"), (request.new, "new")):
        with parts.about(name):
            module = predictor.sources.read(side, gpu).known.module
            wanted = [module.kernel(side.kernel)] if side.kernel else list(module.kernels)
            if not wanted:
                module.kernel(None)  # raises: there is none
            if len(wanted) > MOST_KERNELS:
                raise ServiceError(
                    "validation",
                    f"{len(wanted)} kernels; at most {MOST_KERNELS} are compared: name one",
                    field="kernel",
                )
            found.append(wanted)
    return found[0], found[1]


def _pairs(old: Sequence[Function], new: Sequence[Function]) -> _Pairs:
    """Raises KernelError where nothing can be compared."""
    if len(old) == len(new) == 1:
        return _Pairs([(old[0], new[0])])
    before, after = {each.name: each for each in old}, {each.name for each in new}
    pairs = _Pairs(
        both=[(before[each.name], each) for each in new if each.name in before],
        added=[each for each in new if each.name not in before],
        removed=[each for each in old if each.name not in after],
    )
    if not pairs.both:
        raise KernelError(
            "old and new have no kernel of the same name", known=[each.demangled for each in new]
        )
    return pairs


def _side(
    predictor: Predictor,
    request: CompareRequest,
    code: ComparedCode,
    side: str,
    kernel: Function,
    gpu: GpuProfile,
) -> dict[str, Any]:
    """What one side takes, with components, model and warnings."""
    asked: KernelTiming = code.model_copy(update={"kernel": kernel.name})
    with parts.about(side), parts.asked_seconds(predictor, asked):
        source: Source = predictor.sources.read(asked, gpu)
        analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
        clocks, beside = clocks_of(request.clocks, gpu)
        models = Chosen(asked.time_model, request.model)
        limit, board = request.power_limit_watts, request.board or ""
        found = cost(predictor, models, analysis, gpu, clocks, limit, board)
        duration, watts, card = found.told()
    seconds, power = duration.estimate.value, found.power
    return {
        "kernel": parts.kernel_name(analysis),
        "power": parts.estimate(watts, "watts"),
        "time": parts.estimate(duration.estimate, "seconds"),
        "energy": parts.estimate(energy(watts, duration, gpu), "joules"),
        "clocks": found.clocks._asdict(),
        "model": reference_of(card),
        "trust": trust(watts.basis, card, (), parts.facts(analysis)["trip_counts"]),
        "joules": None
        if power.components is None
        else {name: watts * seconds for name, watts in power.components.items()},
        "warnings": parts.warnings(source, analysis, power.diagnostics, beside, found.notes),
    }


def _comparison(
    limits: Limits, gpu: GpuProfile, old: dict[str, Any], new: dict[str, Any]
) -> dict[str, Any]:
    change = {
        f"{name}_percent": 100 * (new[name][unit] / old[name][unit] - 1)
        for name, unit in _QUANTITIES
    }
    components = None
    if old["joules"] is not None and new["joules"] is not None:
        joules = {name: new["joules"][name] - old["joules"][name] for name in new["joules"]}
        components = dict(sorted(joules.items(), key=lambda part: -abs(part[1])))
    return {
        "gpu": gpu.id,
        "clocks": new["clocks"],
        "model": new["model"],
        "old": {name: old[name] for name in ("kernel", "power", "time", "energy")},
        "new": {name: new[name] for name in ("kernel", "power", "time", "energy")},
        "change": change,
        "components": components,
        "exceeded": [
            name
            for name, bound in limits.model_dump().items()
            if bound is not None and change[name.removeprefix("max_")] > bound
        ],
    }


def _name(function: Function) -> dict[str, str]:
    return {"mangled": function.name, "demangled": function.demangled}


# --- Markdown ------------------------------------------------------------------------------


def markdown(
    comparisons: Sequence[dict[str, Any]],
    limits: Limits,
    added: Sequence[Function] = (),
    removed: Sequence[Function] = (),
) -> str:
    """A table for a pull request; names are written so that none becomes markup."""
    bounds = [
        f"{name.removeprefix('max_').removesuffix('_percent')} {bound:+g} %"
        for name, bound in limits.model_dump().items()
        if bound is not None
    ]
    broken = sum(bool(each["exceeded"]) for each in comparisons)
    verdict = f"**{broken} of {len(comparisons)} beyond the limit.**" if broken else "Within it."
    lines = ["### Predicted energy", ""]
    if bounds:
        lines += [f"Limit: {', '.join(bounds)}. {verdict}", ""]
    lines += [
        "| kernel | GPU | energy | | time | | power | | |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
        *(_row(each) for each in comparisons),
    ]
    for what, functions in (("Added", added), ("Removed", removed)):
        if functions:
            named = ", ".join(plain(each.demangled) for each in functions)
            lines += ["", f"{what}: {named}"]
    lines += ["", "Predicted by Wattcast from the PTX; nothing was run."]
    return "\n".join(lines) + "\n"


def _row(each: dict[str, Any]) -> str:
    cells = [plain(each["new"]["kernel"]["demangled"]), each["gpu"]]
    for name, unit, symbol in (
        ("energy", "joules", "J"), ("time", "seconds", "s"), ("power", "watts", "W"),
    ):  # fmt: skip
        cells.append(
            f"{quantity(each['old'][name][unit], symbol)} → "
            f"{quantity(each['new'][name][unit], symbol)}"
        )
        cells.append(f"{each['change'][f'{name}_percent']:+.1f} %")
    cells.append("beyond the limit" if each["exceeded"] else "")
    return f"| {' | '.join(cells)} |"


def plain(name: str) -> str:
    """A name as HTML text: neither pipes nor backticks nor tags of it mean anything."""
    told = (
        one if one.isalnum() or one in " _,:()" else f"&#{ord(one)};"
        for one in name[:200]
        if one.isprintable()
    )
    return f"<code>{''.join(told)}</code>"
