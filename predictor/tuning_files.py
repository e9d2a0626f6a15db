"""What Kernel Tuner writes: results in the T4 format, and its cache files.

Formats: the T4 results schema 1.0.0 and the cache schemas 1.0.0 to 1.1.0 in Kernel Tuner's own
repository (KernelTuner/kernel_tuner, kernel_tuner/schema).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattcast.features.errors import DataError

Value = int | float | str | bool

_TIMES = {"time": 1e-3, "time_s": 1.0}
"""Names of a measured time, and seconds in its unit (Kernel Tuner measures milliseconds)."""

_ENERGIES = ("energy", "nvml_energy", "ps_energy", "pmt_energy")
"""Names of a measured energy in joules: user metric, NVML, PowerSensor and PMT observers."""

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "J": 1.0, "mJ": 1e-3}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of a tuning space; ``None`` where a quantity was not measured.
    ``valid`` is false for a configuration that was refused or failed."""

    parameters: Mapping[str, Value]
    time_seconds: float | None
    energy_joules: float | None
    valid: bool = True


@dataclass(frozen=True, slots=True)
class TuningRun:
    """The configurations of a file, in its order; the file may name kernel, device and size."""

    configurations: tuple[Configuration, ...]
    kernel: str | None = None
    device: str | None = None
    problem_size: tuple[int, ...] | None = None


def read_tuning(text: str) -> TuningRun:
    """A T4 results file or a cache file. Raises DataError for what is neither."""
    document = _parsed(text)
    if isinstance(document.get("results"), list):
        found = [_result(number, row) for number, row in enumerate(document["results"])]
        return _checked(TuningRun(tuple(found)))
    if isinstance(document.get("cache"), dict):
        return _checked(_cache(document))
    raise DataError("neither a T4 results file (results) nor a Kernel Tuner cache (cache)")


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        # A cache that is still written to lacks its last braces.
        try:
            document = json.loads(text.rstrip().rstrip(",") + "}}")
        except ValueError as error:
            raise DataError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError("expected a JSON object")
    return document


def _checked(run: TuningRun) -> TuningRun:
    if not run.configurations:
        raise DataError("the file has no configurations")
    return run


def _result(number: int, row: Any) -> Configuration:
    if not isinstance(row, Mapping) or not isinstance(row.get("configuration"), Mapping):
        raise DataError(f"results[{number}] has no configuration")
    measured: dict[str, float] = {}
    for each in row.get("measurements") or ():
        if isinstance(each, Mapping) and isinstance(each.get("name"), str):
            number_ = _number(each.get("value"))
            unit = _UNITS.get(str(each.get("unit") or ""))
            if number_ is not None:
                measured[each["name"]] = number_ * unit if unit is not None else number_
                if unit is None and each["name"] in _TIMES:
                    measured[each["name"]] = number_ * _TIMES[each["name"]]
    valid = row.get("invalidity", "correct") == "correct"
    return Configuration(
        dict(row["configuration"]),
        next((measured[name] for name in _TIMES if name in measured), None) if valid else None,
        next((measured[name] for name in _ENERGIES if name in measured), None) if valid else None,
        valid,
    )


def _cache(document: Mapping[str, Any]) -> TuningRun:
    names: Sequence[str] = document.get("tune_params_keys") or list(
        document.get("tune_params") or ()
    )
    if not names:
        raise DataError("the cache does not list its tunable parameters (tune_params_keys)")
    found = []
    for key, row in document["cache"].items():
        if not isinstance(row, Mapping) or not all(name in row for name in names):
            raise DataError(f"cache[{key!r}] lacks one of {', '.join(map(str, names))}")
        time = next(
            (value * unit for name, unit in _TIMES.items() if (value := _number(row.get(name)))),
            None,
        )
        energy = next((value for name in _ENERGIES if (value := _number(row.get(name)))), None)
        # A failure is written in the objective's place, by the name of its class.
        failed = any(isinstance(row.get(name), str) for name in (*_TIMES, *_ENERGIES))
        failed = failed or "__error__" in row
        parameters = {name: row[name] for name in names}
        if failed:
            time = energy = None
        found.append(Configuration(parameters, time, energy, valid=not failed))
    size = document.get("problem_size")
    sizes = [size] if isinstance(size, int) else size if isinstance(size, list) else []
    whole = tuple(part for part in sizes if isinstance(part, int))
    return TuningRun(
        tuple(found),
        kernel=document.get("kernel_name") or None,
        device=document.get("device_name") or None,
        problem_size=whole if whole and len(whole) == len(sizes) else None,
    )


def _number(value: Any) -> float | None:
    """A measured value; ``None`` for what stands in for one (1e20, error names)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e19 else None
