"""Every configuration of a tuning space as predicted: compiled, analysed, and kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattcast.features.cuda import CompileError
from wattcast.features.errors import LaunchError, PtxError
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import TuningProblem, request_of
from wattcast.predictor.tuning_files import Configuration, Value

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


@dataclass(frozen=True, slots=True)
class Forecast:
    """A configuration as predicted, or the reason why it cannot be."""

    parameters: Mapping[str, Value]
    seconds: float = 0.0
    joules: float = 0.0
    problem: str | None = None


def forecasts(
    predictor: Predictor,
    problem: TuningProblem,
    configurations: Sequence[Configuration],
    kept: Path | None = None,
) -> Iterator[Forecast]:
    """Every configuration as predicted, in order. ``kept`` is a file that remembers them: a run
    that was interrupted goes on where it stopped. Nothing of it is used where its first prediction
    is not the one that is made today. Raises DataError where the problem does not fit."""
    known = _known(kept) if kept is not None else {}
    for number, one in enumerate(configurations):
        request = request_of(problem, one)
        key = hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()
        found = known.get(key)
        if found is None or number == 0:
            fresh = _forecast(predictor, one, request)
            if found is not None and found != fresh:
                known, found = {}, None
            if kept is not None and found is None:
                _keep(kept, key, fresh, new=number == 0 and not known)
            found = fresh
        yield found


def _forecast(predictor: Predictor, one: Configuration, request: Mapping[str, Any]) -> Forecast:
    parameters = dict(one.parameters)
    try:
        answer = predict(predictor, PredictRequest.model_validate(request))
        if answer["energy"] is None:
            raise LaunchError("no model tells its energy", field="gpu")
    except (CompileError, PtxError, LaunchError) as error:
        return Forecast(parameters, problem=error.detail)
    return Forecast(parameters, answer["time"]["seconds"], answer["energy"]["joules"])


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


def _keep(file: Path, key: str, row: Forecast, *, new: bool) -> None:
    with file.open("w" if new else "a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, **asdict(row)}) + "\n")
