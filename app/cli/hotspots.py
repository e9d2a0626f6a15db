"""``wattcast hotspots``: where a launch spends its energy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Shown, predictor
from wattcast.predictor.messages.hotspots import HotspotsAnswer
from wattcast.predictor.messages.predict import PredictRequest


def hotspots(
    on: inputs.OnGpu,
    launch: inputs.KernelOptions,
    models: inputs.ModelOptions,
    rows: Annotated[int, typer.Option(min=1)] = 12,
    resources: bool = False,
) -> Shown[HotspotsAnswer]:
    """Rank the blocks and lines of a kernel by energy and time.

    Args:
        rows: Rows shown in each ranking.
        resources: Print the cycles that lines take of each unit.
    """
    from wattcast.features.errors import ServiceError
    from wattcast.predictor.hotspots import hotspots_of
    from wattcast.predictor.predict import predict_one

    opened = predictor()
    request = inputs.request(PredictRequest, launch, on, models)
    prediction = predict_one(opened, request)
    if prediction.energy is None:
        raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
    answer = _with_source(hotspots_of(opened, request, prediction, rows), launch.file)
    report = answer.resources if resources else answer.report
    return Shown(answer, report, file=launch.file)


def _with_source(answer: HotspotsAnswer, file: Path) -> HotspotsAnswer:
    """The caller's own file name, and ``text``, where the line's file can be read: the CUDA source
    itself, or what a file of PTX was compiled from, at its place or beside it."""
    from wattcast.features.cuda.compile import SOURCE_NAME

    own = file.suffix in inputs.CUDA_SUFFIXES
    read: dict[str, list[str]] = {}
    rows = []
    for row in answer.source_lines.rows:
        name = row.file or ""
        if name not in read:
            at = Path(name)
            places = [file] if own and name == SOURCE_NAME else [at, file.parent / at.name]
            read[name] = next((_lines(place) for place in places if place.is_file()), [])
        lines = read[name]
        text = lines[row.line - 1].strip() if 0 < row.line <= len(lines) else None
        named = {"file": file.name} if own and name == SOURCE_NAME else {}
        rows.append(row.model_copy(update={**named, "text": text}))
    ranking = answer.source_lines.model_copy(update={"rows": rows})
    return answer.model_copy(update={"source_lines": ranking})


def _lines(place: Path) -> list[str]:
    try:
        return place.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
