"""Parts that several answers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from wattcast.features import assembled, gpus, occupancy, runs, schemas
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import Diagnostic, LaunchError, WattcastError, giving_up, refused
from wattcast.features.launch import Launch
from wattcast.features.needs import with_guards
from wattcast.features.ptx.ir import Function
from wattcast.models.clocks import ClockPair, admitted, default_clocks, is_supported
from wattcast.models.intervals import Estimate
from wattcast.predictor import messages
from wattcast.predictor.parts.arguments import as_launched, by_position, c_names
from wattcast.predictor.parts.sources import Source

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages import Clocks, KernelCode, KernelRequest, LaunchRequest
    from wattcast.predictor.parts.time_and_power import TimeAndPower

PUBLISHED = ("scheduling", "delay")
"""Time models of the thesis: they look at the text and at trip counts."""

MOST_LINES = 5
"""Lines named of what one cause does elsewhere."""

P = ParamSpec("P")
R = TypeVar("R", bound="KernelRequest")
T = TypeVar("T")

MOST_TEXT = 200
"""Characters of a PTX line that are shown."""

MOST_WARNINGS = 200
"""Warnings of one answer; hostile PTX could bring one for every line."""


def analysed(
    predictor: Predictor,
    request: KernelRequest,
    source: Source,
    gpu: gpus.GpuProfile,
    *,
    ptxas: bool = False,
    keep: bool = True,
) -> KernelAnalysis:
    """The analysis of the requested kernel; the very same one if it was asked for before.

    ``ptxas`` asks the compiler for registers that nobody gives, where settings allow it; without
    ``keep`` the analysis is made anew, and not kept.
    Raises PtxError, KernelError, LaunchError, and ServiceError for a budget over the limit.
    """
    module = source.known.module
    function = module.kernel(request.kernel)
    launch = launch_of(source, function, request.launch)
    settings, effort = predictor.settings, request.analysis_effort
    if effort is None:
        effort = min(settings.analysis_effort, settings.max_analysis_effort)
    elif effort > (most := settings.max_analysis_effort):
        told = f"at most {most:,} is given (WATTCAST_MAX_ANALYSIS_EFFORT)"
        raise refused(f"analysis_effort: {effort:,} asked; {told}", "analysis_effort")
    ptxas = ptxas and settings.ptxas == "auto" and request.registers_per_thread is None
    ptxas = ptxas and predictor.sources.may_compile

    def make() -> KernelAnalysis:
        return analyse(
            module,
            function,
            launch,
            gpu,
            loops=request.loops,
            registers_per_thread=request.registers_per_thread,
            static_shared_bytes=request.static_shared_bytes,
            ptxas=ptxas,
            analysis=request.analysis,
            effort=effort,
            ahead=getattr(request, "time_model", None) not in PUBLISHED,
        )

    # An analysis holds its module, and is weighed without it: it goes when the module does.
    place = predictor.modules.place(source.known) if keep else None
    if place is None:
        return make()
    key = (
        source.known.sha256,
        function.name,
        launch.grid,
        launch.block,
        launch.dynamic_shared_bytes,
        tuple(launch.arguments.items()),
        launch.l2,
        launch.reference_threads,
        tuple(sorted(request.loops.items())),
        request.registers_per_thread,
        request.static_shared_bytes,
        request.analysis,
        effort,
        ptxas,
        # Profiles of the user may change. The analysis holds this one, so its id stays its own.
        id(gpu),
    )
    return predictor.analysed.get_or_make(key, make, place)


def assembled_ahead(
    predictor: Predictor, asked: Iterable[KernelRequest], gpu: gpus.GpuProfile
) -> AbstractContextManager[None]:
    """Kernels of PTX that are analysed inside with ``ptxas``: their compilers run at once. What is
    wrong with one is told where it is analysed."""
    found = []
    for one in asked if predictor.settings.ptxas == "auto" else ():
        with suppress(WattcastError):
            if one.ptx and one.registers_per_thread is None and predictor.sources.may_compile:
                module = predictor.sources.read(one, gpu).known.module
                found.append((module, module.kernel(one.kernel), gpu))
    return assembled.ahead(found)


def launch_of(source: Source, function: Function, asked: LaunchRequest) -> Launch:
    """The launch asked for, arguments by position; whole numbers that nobody gives are those that
    the source's own launches pass. Raises LaunchError."""
    launch = asked.launch()
    given = by_position(function, launch.arguments, source.kernels, source.known.module)
    passed = {} if source.cuda is None else as_launched(function, source.cuda.passed)
    if not given and not passed:
        return launch
    told = {at: one.value for at, one in passed.items() if at not in given}
    return replace(launch, arguments={**told, **given})


def announced(
    source: Source, function: Function, launches: Iterable[LaunchRequest]
) -> AbstractContextManager[None]:
    """Launches that are analysed inside: what can be worked out for many at once is."""
    known = []
    for asked in launches:
        with suppress(LaunchError):
            launch = launch_of(source, function, completed(function, asked))
            known.append(with_guards(function, launch))
    return runs.together(known)


@contextmanager
def asked_seconds(predictor: Predictor, request: KernelCode) -> Iterator[None]:
    """Work inside is given up after the request's ``analysis_seconds``, if it names any.
    Raises ServiceError for more than the settings give, and GivenUpError from within."""
    asked, most = request.analysis_seconds, predictor.settings.analysis_seconds
    if asked is None:
        yield
        return
    if asked > most:
        told = f"at most {most:g} are given (WATTCAST_ANALYSIS_SECONDS)"
        raise refused(f"analysis_seconds: {asked:g} asked; {told}", "analysis_seconds")
    with giving_up(asked):
        yield


def within_asked_seconds(
    answer: Callable[Concatenate[Predictor, R, P], T],
) -> Callable[Concatenate[Predictor, R, P], T]:
    """A use case whose request may name ``analysis_seconds``, held to them, and need not name
    the block size that its kernel fixes."""

    @wraps(answer)
    def within(predictor: Predictor, request: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with asked_seconds(predictor, request):
            return answer(predictor, with_block(predictor, request), *args, **kwargs)

    return within


def with_block(predictor: Predictor, request: R) -> R:
    """The request with the block size that its kernel fixes, where it names none.
    Raises LaunchError where the kernel fixes none, and what reading the kernel raises."""
    names = [getattr(request, "gpu", None), *(getattr(request, "gpus", None) or ())]
    gpu = next((name for name in names if name is not None), None)
    if request.launch.block is not None or gpu is None or not (request.ptx or request.cuda):
        return request
    source = predictor.sources.read(request, predictor.gpus.load(gpu))
    launch = completed(source.known.module.kernel(request.kernel), request.launch)
    return request.model_copy(update={"launch": launch})


def made_up(gpu: gpus.GpuProfile, like: messages.Like) -> gpus.GpuProfile:
    """A board like the GPU that the request makes up. One id for all boards like a
    GPU: what is kept by id stays bounded, and no measurement is of it."""
    given = {name: getattr(gpu, name) for name in type(gpu).model_fields}
    given |= {"id": f"{gpu.id}-like", "aliases": (), "driver": None, "time_interval": None}
    for section, name, value in (
        ("chip", "sm_count", like.sms),
        ("memory", "bandwidth_bytes_per_second", like.memory_gbps and like.memory_gbps * 1e9),
    ):
        if value is not None:
            part = given[section]
            fact = getattr(part, name).model_copy(update={"value": value})
            given[section] = part.model_copy(update={name: fact})
    return type(gpu)(**given)


def completed(function: Function, launch: LaunchRequest) -> LaunchRequest:
    """The launch with the block size that its kernel fixes, where it names none.
    Raises LaunchError where the kernel fixes none."""
    if launch.block is not None:
        return launch
    block = occupancy.fixed_block(function)
    if block is None:
        raise LaunchError(
            f"launch.block is not given, and no .reqntid of {function.demangled} fixes it: "
            "give the threads of a block",
            field="block",
        )
    return launch.model_copy(update={"block": list(block)})


NO_KERNEL: dict[str, Any] = {
    **dict.fromkeys(("kernel", "compiled", "occupancy", "registers", "coverage")),
    "trip_counts": [],
    "needs": [],
}
"""Members of an answer that rests on no kernel's code."""


def members(of: object, *names: str) -> dict[str, Any]:
    """Attributes by name."""
    return {name: getattr(of, name) for name in names}


@contextmanager
def about(what: str) -> Iterator[None]:
    """Errors from inside say that they are about ``what``: a part of the request."""
    try:
        yield
    except WattcastError as error:
        error.detail = f"{what}: {error.detail}"
        error.args = (error.detail,)
        raise


def costs(time: Estimate | None, power: Estimate | None, energy: Estimate | None) -> dict[str, Any]:
    """Members ``time``, ``power`` and ``energy`` of an answer; ``None`` for what is not told."""
    return {
        "time": time and messages.Time.of(time),
        "power": power and messages.Power.of(power),
        "energy": energy and messages.Energy.of(energy),
    }


def clocks_of(asked: Clocks | None, gpu: gpus.GpuProfile) -> tuple[ClockPair, Sequence[Diagnostic]]:
    """The clocks a request names, or the GPU's default ones. Raises ClockError."""
    if asked is None:
        return default_clocks(gpu), ()
    pair = asked.pair(gpu)
    admitted([pair], gpu)
    if is_supported(pair, gpu):
        return pair, ()
    detail = (
        f"{gpu.id} is not known to run at {pair.core_mhz:g}/{pair.memory_mhz:g} MHz; the "
        "prediction is extrapolated"
    )
    return pair, (Diagnostic("clocks_extrapolated", detail),)


def values(vector: schemas.FeatureVector) -> dict[str, float | None]:
    """A vector's values by name; a missing one is ``None``."""
    return {
        name: None if value is None or value != value else value
        for name, value in vector.values.items()
    }


def kernel_name(function: Function) -> messages.KernelName:
    """A kernel under both its names."""
    return messages.KernelName(mangled=function.name, demangled=function.demangled)


def code_of(source: Source, function: Function) -> dict[str, Any]:
    """Members ``kernel`` and ``compiled`` of an answer."""
    made = source.cuda
    return {
        "kernel": kernel_name(function),
        "compiled": made
        and messages.Compiled.from_attributes(made.compiled, source_sha256=made.sha256),
    }


def resources(analysis: KernelAnalysis) -> dict[str, Any]:
    """Members ``occupancy``, ``registers`` and ``trip_counts`` of an answer."""
    known = analysis.registers
    return {
        "occupancy": messages.Occupancy.from_attributes(analysis.occupancy),
        "registers": messages.Registers.from_attributes(known, value=known.registers_per_thread),
        "trip_counts": trip_counts(analysis),
    }


def trip_counts(analysis: KernelAnalysis) -> list[messages.LoopTrips]:
    """Executions of each loop's body, and how they are known."""
    return [
        messages.LoopTrips.from_attributes(trip, loop=trip.label, trips=trip.count)
        for trip in analysis.trip_counts
    ]


def needs(source: Source, analysis: KernelAnalysis) -> list[messages.Need]:
    """Arguments to give first, by their C names where known."""
    if not analysis.needs:
        return []
    names = c_names(analysis.function, source.kernels)
    return [
        messages.Need.from_attributes(need, argument=(names[need.position] or head) + plus + at)
        for need in analysis.needs
        for head, plus, at in [need.argument.partition("+")]
    ]


def warnings(
    source: Source, analysis: KernelAnalysis, *groups: Iterable[Diagnostic]
) -> list[messages.WarningLine]:
    """What to warn of: each warning once, in order, at most ``MOST_WARNINGS``.

    The compiler's come first, with their lines in the CUDA source; other warnings of a kernel
    that was compiled tell both lines.
    """
    listed: list[messages.WarningLine] = []
    lines: dict[int, int] = {}
    if source.cuda is not None:
        listed = [_warning(d, None, d.line) for d in source.cuda.compiled.diagnostics]
        for at, one in as_launched(analysis.function, source.cuda.passed).items():
            if analysis.launch.arguments.get(at) == one.value:
                name = analysis.function.parameters[int(at)].name
                detail = f"{name} (argument {at}) is {one.value:,}, as the source launches it"
                listed.append(_warning(Diagnostic("argument_as_launched", detail), None, one.line))
        lines = {
            instruction.line: instruction.location.line
            for instruction in analysis.function.body.instructions
            if instruction.location is not None and instruction.location.line  # 0: of no line
        }
    doubts = _doubts(analysis, source.cuda is None)
    listed += _each_once((doubts, analysis.diagnostics, *groups), lines)
    told = zip(
        analysis.function.parameters, c_names(analysis.function, source.kernels), strict=True
    )
    if names := {parameter.name: name for parameter, name in told if name is not None}:
        listed = [
            each.model_copy(
                update={"detail": _WORD.sub(lambda word: names.get(word[0], word[0]), each.detail)}
            )
            for each in listed
        ]
    if len(listed) > MOST_WARNINGS:
        left_out = len(listed) - MOST_WARNINGS
        more = Diagnostic("more_warnings", f"{left_out} more warnings are not listed")
        listed = [*listed[:MOST_WARNINGS], _warning(more, None, None)]
    return listed


def _doubts(analysis: KernelAnalysis, is_ptx: bool) -> Iterator[Diagnostic]:
    """What looks like a mistake: PTX of a later generation, a block of one axis."""
    target = re.match(r"sm_(\d+)", analysis.module.target or "")
    own = analysis.gpu.compute_capability.replace(".", "")
    if is_ptx and target is not None and int(target[1]) // 10 > int(own) // 10:
        yield Diagnostic(
            "newer_target",
            f"the PTX is for {target[0]}, which {analysis.gpu.id} (sm_{own}) cannot run: "
            f"compile it for sm_{own}, or name a board that can",
        )
    (_, *rest), grid = analysis.launch.block, analysis.launch.grid
    text = analysis.module.text
    if rest == [1, 1] and grid[1] > 1 and "%tid.y" in text and "%tid.z" not in text:
        yield Diagnostic(
            "flat_block",
            "the code reads threadIdx.y, but the block has threads along x alone: give both, "
            "as 16x16",
        )
    for value in analysis.launch.arguments.values():
        count = getattr(value, "elements", value)
        if isinstance(count, int) and count <= grid[0] < count + analysis.launch.block[0]:
            with suppress(WattcastError):
                yield from _grid_in_threads(analysis, count)
            return


IN_BLOCKS = 4
"""Stores by all threads of a block below which a grid as large as the data counts threads: where
each element is stored but once, one block in so many threads stores (a judgement)."""


def _grid_in_threads(analysis: KernelAnalysis, count: int) -> Iterator[Diagnostic]:
    """A grid of as many blocks as there are elements, though each thread takes one."""
    launch, activity = analysis.launch, analysis.activity
    stores = activity.global_store_requests + activity.atomic_requests
    if 0 < stores * launch.threads_per_block <= IN_BLOCKS * launch.blocks * launch.warps_per_block:
        yield Diagnostic(
            "grid_in_threads",
            f"a grid counts blocks: {launch.blocks:,} of {launch.threads_per_block} threads are "
            f"{launch.threads:,} threads, most of which do nothing: for {count:,} elements give "
            f"{-(-count // launch.block[0])} blocks along x",
        )


def plain_warnings(*groups: Iterable[Diagnostic]) -> list[messages.WarningLine]:
    """The same where there is no kernel: few, and none has a line."""
    return _each_once(groups, {})


def later(points: Iterable[TimeAndPower], base: TimeAndPower | None = None) -> list[Diagnostic]:
    """Warnings of single points that ``base`` has not, each kind once."""
    known = set() if base is None else {note.code for note in base.warnings}
    first: dict[str, Diagnostic] = {}
    for note in (note for point in points for note in point.warnings):
        if note.code not in known:
            first.setdefault(note.code, note)
    return list(first.values())


def left_out(what: str, count: int, most: int) -> list[Diagnostic]:
    """What to warn of where an answer lists only the first ``most`` of ``count``."""
    more = count - most
    return [Diagnostic("more_rows", f"{more} more {what} are not listed")] if more > 0 else []


def line_of(text: Sequence[str], line: int) -> str:
    """A line of the PTX as answers show it: its first characters."""
    return text[line - 1].strip()[:MOST_TEXT] if line <= len(text) else ""


def distinct(warnings: Iterable[messages.WarningLine]) -> list[messages.WarningLine]:
    """Warnings of several answers, each once."""
    return list(dict.fromkeys(warnings))


def _each_once(
    groups: Iterable[Iterable[Diagnostic]], source_lines: Mapping[int, int]
) -> list[messages.WarningLine]:
    causes: dict[tuple[str, str], list[Diagnostic]] = {}
    for each in dict.fromkeys(each for group in groups for each in group):
        causes.setdefault(_cause(each), []).append(each)
    listed = []
    for same in causes.values():
        first = next((d for d in same if d.code in _ARGUMENT), same[0])
        line = first.line
        others = [d.line for d in same if d is not first and d.line is not None]
        more = ""
        if len(same) > 1:
            more = _and_more(len(same) - 1, [source_lines.get(n, n) for n in others])
        source_line = source_lines.get(line) if line is not None else None
        listed.append(_warning(first, line, source_line, more))
    return listed


_WORD = re.compile(r"[\w$]+")
_ARGUMENT = ("argument_assumed", "argument_missing")
_NOT_GIVEN = re.compile(r"argument (\S+) is not given")
_PARTICULAR = re.compile(r"[$%]?[\w.$]*\d[\w.$]*")
"""What tells warnings of one cause apart: lines, labels, numbers, types of an opcode."""


@lru_cache(maxsize=4096)
def _cause(found: Diagnostic) -> tuple[str, str]:
    """Warnings with equal ones are one line of an answer."""
    missing = _NOT_GIVEN.search(found.detail)
    if missing is not None:
        return "argument", missing[1]
    if found.code in _ARGUMENT and found.detail.startswith("pointer "):
        return found.code, "data"
    if found.code in _ARGUMENT:
        return "argument", found.detail.split(" ")[0]
    return found.code, _PARTICULAR.sub("#", found.detail)


def _and_more(count: int, lines: list[int]) -> str:
    told = ", ".join(str(line) for line in sorted(set(lines))[:MOST_LINES])
    where = f" in line{'s' * (len(set(lines)) > 1)} {told}" if told else ""
    cut = ", ..." if len(set(lines)) > MOST_LINES else ""
    return f" ({count} more of this cause{where}{cut})"


def _warning(
    diagnostic: Diagnostic, line: int | None, source_line: int | None, more: str = ""
) -> messages.WarningLine:
    told = diagnostic.detail + more
    return messages.WarningLine.from_attributes(
        diagnostic, detail=told, line=line, source_line=source_line
    )
