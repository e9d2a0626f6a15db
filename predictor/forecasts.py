"""Every configuration of a tuning space as predicted, by this process or by a crew of workers.

    group     configurations of one code and launch, at several clocks or limits
    compile   the sources of some groups, by one process of the compiler
    predict   a group by one worker, which analyses it once; equal PTX and launches are one group
    keep      a line of a file for each configuration, as soon as it is predicted

Order and values do not depend on who works.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from math import isclose
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattcast.features import cuda, errors
from wattcast.predictor import Predictor, tuning_files
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.sources import CudaSource
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import SETTINGS, WORTH, Crew, TuningProblem, alone, request_of

TOGETHER = 4
"""Sources that one process of the compiler takes: three quarters of its starts are saved, and
workers still end about together."""

AHEAD = 32
"""Groups of each worker between two looks at the results: they wait for the last of them, and an
interrupted run loses what was compiled of them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A configuration as predicted, or the reason why it cannot be and of what ``kind`` it is: the
    ``slug`` of an error (``features/errors.py``)."""

    parameters: Mapping[str, tuning_files.Value]
    seconds: float = 0.0
    joules: float = 0.0
    problem: str | None = None
    kind: str | None = None


def forecasts(
    predictor: Predictor,
    problem: TuningProblem,
    configurations: Sequence[tuning_files.Configuration],
    kept: Path | None = None,
    crew: Crew | None = None,
) -> Iterator[Forecast]:
    """Every configuration as predicted, in order.

    ``kept`` is a file that remembers them: a run that was interrupted goes on where it stopped.
    Nothing of it is used where its first prediction is not the one that is made today. Raises
    DataError where the problem does not fit, or workers elsewhere predict something else than this
    process, and for the first configuration what concerns all: no such GPU, model, kernel or
    compiler.
    """
    if not configurations:
        return
    asked = [_key(request_of(problem, one)) for one in configurations]
    known = _known(kept) if kept is not None else {}
    here = alone(predictor)
    seen: dict[str, Forecast] = {}
    _, first = next(_predicted(here, problem, configurations, [[0]], seen, strict=True))
    if (found := known.get(asked[0])) is not None and found != first:
        known, found = {}, None
    if kept is not None and found is None:
        _keep(kept, asked[0], first, new=not known)
    done = {0: first}
    done |= {at: known[key] for at, key in enumerate(asked) if at and key in known}
    groups: dict[str, list[int]] = {}
    for at, one in enumerate(configurations):
        if at not in done:
            code = {name: value for name, value in one.parameters.items() if name not in SETTINGS}
            groups.setdefault(json.dumps(code), []).append(at)
    if crew is None or len(groups) < WORTH * crew.workers:
        crew = here
    elif crew.elsewhere:
        _, theirs = next(_predicted(crew, problem, configurations, [[0]], {}))
        if not _alike(theirs, first):
            raise errors.DataError(
                f"the workers predict {_said(theirs)} for the first configuration, this process "
                f"{_said(first)}: they have another version, other models or another WATTCAST_HOME"
            )
    left = iter(groups.values())
    ready = 0
    while part := list(islice(left, TOGETHER if crew is here else AHEAD * crew.workers)):
        for at, row in _predicted(crew, problem, configurations, part, seen):
            if kept is not None and row.kind not in _PASSING:
                _keep(kept, asked[at], row)
            done[at] = row
            while ready in done:
                yield done.pop(ready)
                ready += 1
    for at in range(ready, len(asked)):
        yield done[at]


_REFUSED = (
    cuda.CompileError,
    errors.PtxError,
    errors.LaunchError,
    errors.AnalysisError,
    errors.TooComplexError,
    ValidationError,
)
"""What one configuration may have and others not."""

_PASSING = frozenset({"time-limit", "compiler-missing", "compiler-not-isolated"})
"""Kinds of what the next try, or another machine, may not meet."""


def failures(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Refused configurations (``asdict`` of forecasts) by kind, the most frequent first: ``kind``,
    ``count``, and the ``first`` with its ``parameters`` and ``problem``."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"] or "other", []).append(row)
    ordered = sorted(kinds.items(), key=lambda each: -len(each[1]))
    return [{"kind": kind, "count": len(each), "first": each[0]} for kind, each in ordered]


def _alike(one: Forecast, other: Forecast) -> bool:
    """Up to what other processors round otherwise."""
    return one.kind == other.kind and isclose(
        one.seconds * one.joules, other.seconds * other.joules
    )


def _said(row: Forecast) -> str:
    return row.problem or f"{row.seconds:.6g} s and {row.joules:.6g} J"


# --- what workers do -----------------------------------------------------------------------------


def _predicted(
    crew: Crew,
    problem: TuningProblem,
    configurations: Sequence[tuning_files.Configuration],
    groups: Sequence[Sequence[int]],
    seen: dict[str, Forecast],
    *,
    strict: bool = False,
) -> Iterator[tuple[int, Forecast]]:
    """Configurations of groups by number, as they are ready. ``seen`` are those predicted by PTX
    and launch; ``strict``: what is no fault of one configuration is raised."""
    requests = {at: request_of(problem, configurations[at]) for group in groups for at in group}
    codes: dict[int, CudaSource | Forecast | None] = dict.fromkeys(range(len(groups)))
    alone = problem.request.get("headers") or problem.request.get("compiler_options")
    if problem.request.get("cuda") is not None and not alone:
        gpu = str(problem.request["gpu"])
        texts = [requests[group[0]]["cuda"] for group in groups]
        parts = [texts[at : at + TOGETHER] for at in range(0, len(texts), TOGETHER)]
        compiling = partial(_compiled, crew.predictor, gpu, strict=strict)
        for at, made in crew.map(compiling, parts):
            codes |= dict(enumerate(made, at * TOGETHER))
    waiting: dict[str, list[int]] = {}
    tasks: list[tuple[CudaSource | None, dict[str, dict[str, Any]]]] = []
    for number, group in enumerate(groups):
        code = codes[number]
        fresh: dict[str, dict[str, Any]] = {}
        for at in group:
            if isinstance(code, Forecast):
                yield at, replace(code, parameters=dict(configurations[at].parameters))
                continue
            ptx = {"cuda": code.compiled.ptx} if code is not None else {}
            key = _key({**requests[at], **ptx})
            if key not in seen and key not in waiting:
                fresh[key] = requests[at]
            waiting.setdefault(key, []).append(at)
        if fresh:
            tasks.append((code if isinstance(code, CudaSource) else None, fresh))
    for key in waiting.keys() & seen.keys():
        yield from _each(configurations, waiting.pop(key), seen[key])
    for _, rows in crew.map(partial(_answered, crew.predictor, strict=strict), tasks):
        seen |= rows
        for key, row in rows.items():
            yield from _each(configurations, waiting.pop(key), row)


def _each(
    configurations: Sequence[tuning_files.Configuration], places: Sequence[int], row: Forecast
) -> Iterator[tuple[int, Forecast]]:
    for at in places:
        yield at, replace(row, parameters=dict(configurations[at].parameters))


def _compiled(
    make: Callable[[], Predictor], gpu: str, texts: Sequence[str], *, strict: bool = False
) -> list[CudaSource | Forecast]:
    try:
        predictor = make()
        capability = predictor.gpus.load(gpu).compute_capability
        made = predictor.sources.compile_all(texts, capability)
    except errors.WattcastError as error:
        if strict:
            raise
        return [_refused(error)] * len(texts)
    return [_refused(one) if isinstance(one, cuda.CompileError) else one for one in made]


def _answered(
    make: Callable[[], Predictor],
    task: tuple[CudaSource | None, Mapping[str, Mapping[str, Any]]],
    *,
    strict: bool = False,
) -> dict[str, Forecast]:
    source, requests = task
    found = {}
    for key, request in requests.items():
        predictor = make()
        if source is not None:
            gpu = predictor.gpus.load(request["gpu"])
            predictor.sources.hold(source, gpu.compute_capability)
        found[key] = forecast(predictor, request, strict=strict)
    return found


def forecast(predictor: Predictor, request: Mapping[str, Any], *, strict: bool = False) -> Forecast:
    """One request as predicted, without its parameters. ``strict``: raises what is no fault of one
    configuration (no such GPU, model, kernel or compiler)."""
    try:
        answer = predict(predictor, PredictRequest.model_validate(request))
        if answer["energy"] is None:
            raise errors.LaunchError("no model tells its energy", field="gpu")
    except (errors.WattcastError, ValidationError) as error:
        if strict and not isinstance(error, _REFUSED):
            raise
        return _refused(error)
    return Forecast({}, answer["time"]["seconds"], answer["energy"]["joules"])


def _refused(error: errors.WattcastError | ValidationError) -> Forecast:
    if isinstance(error, ValidationError):
        one = error.errors(include_url=False)[0]
        told = f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        return Forecast({}, problem=told, kind="validation")
    return Forecast({}, problem=error.detail, kind=getattr(error, "kind", error.slug))


# --- what is remembered --------------------------------------------------------------------------


def _key(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()


def _known(file: Path) -> dict[str, Forecast]:
    """What a file remembers; a last line that was cut short is ended, so that more can follow."""
    found: dict[str, Forecast] = {}
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            with file.open("a", encoding="utf-8") as out:
                out.write("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                key = row.pop("key")
                found[key] = Forecast(**row)
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut short when the run was interrupted
    return found


def _keep(file: Path, key: str, row: Forecast, *, new: bool = False) -> None:
    with file.open("w" if new else "a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, **asdict(row)}) + "\n")
