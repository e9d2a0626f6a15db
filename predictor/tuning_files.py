"""What Kernel Tuner reads and writes: spaces in the T1 format, results in T4, and its cache files.

Formats: the T1 and T4 schemas 1.0.0 and the cache schemas 1.0.0 to 1.1.0 in Kernel Tuner's own
repository (KernelTuner/kernel_tuner, kernel_tuner/schema).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from wattcast.features.effort import checkpoint
from wattcast.features.errors import DataError
from wattcast.predictor.variants import Rule, rule

Value = int | float | str | bool

_TIMES = {"time": 1e-3, "time_s": 1.0}
"""Names of a measured time, and seconds in its unit (Kernel Tuner measures milliseconds)."""

_ENERGIES = ("energy", "nvml_energy", "ps_energy", "pmt_energy")
"""Names of a measured energy in joules: user metric, NVML, PowerSensor and PMT observers."""

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "J": 1.0, "mJ": 1e-3}

MOST_VALUE = 2**63
"""Size of a parameter's value: beyond 64 bits no kernel takes one."""


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


def held_bytes(run: TuningRun) -> int:
    """About the memory that a run holds: 0.5 kB and 0.1 kB for each parameter of a configuration
    (tracemalloc, gemm of benchmark_hub: 1.7 kB with 14)."""
    return len(run.configurations) * (500 + 100 * len(run.configurations[0].parameters))


def read_tuning(text: str) -> TuningRun:
    """A T4 results file or a cache file. Raises DataError for what is neither."""
    document = _parsed(text)
    if isinstance(document.get("results"), list):
        found = [_result(number, row) for number, row in enumerate(document["results"])]
        return _checked(TuningRun(tuple(found)))
    if isinstance(document.get("cache"), dict):
        return _checked(_cache(document))
    if isinstance(document.get("tune_params"), dict) or "ConfigurationSpace" in document:
        return _checked(_space(document))
    raise DataError(
        "neither T4 results (results), a Kernel Tuner cache (cache), a T1 definition "
        "(ConfigurationSpace) nor a space of our own (tune_params)"
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # A cache that is still written to lacks its last braces.
        try:
            document = json.loads(text.rstrip().rstrip(",") + "}}")
        except (ValueError, RecursionError) as error:
            raise DataError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError("expected a JSON object")
    return document


def _checked(run: TuningRun) -> TuningRun:
    if not run.configurations:
        raise DataError("the file has no configurations")
    names = run.configurations[0].parameters.keys()
    if not names:
        raise DataError("the file has no tunable parameters")
    for one in run.configurations:
        if one.parameters.keys() != names:
            raise DataError(f"{dict(one.parameters)} has other parameters than {sorted(names)}")
        for name, value in one.parameters.items():
            is_number = isinstance(value, int | float) and -MOST_VALUE <= value <= MOST_VALUE
            if not (is_number or isinstance(value, str)):
                raise DataError(f"parameter {name!r} is neither a number nor a text: {value!r:.40}")
    return run


def _result(number: int, row: Any) -> Configuration:
    if not isinstance(row, Mapping) or not isinstance(row.get("configuration"), Mapping):
        raise DataError(f"results[{number}] has no configuration")
    measured: dict[str, float] = {}
    given = row.get("measurements")
    for each in given if isinstance(given, list) else ():
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
    if not names or not all(isinstance(name, str) for name in names):
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
    return TuningRun(
        tuple(found),
        kernel=_text(document.get("kernel_name")),
        device=_text(document.get("device_name")),
        problem_size=_size(document.get("problem_size")),
    )


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) and given else None


def _size(given: Any) -> tuple[int, ...] | None:
    sizes = [given] if isinstance(given, int) else given if isinstance(given, list) else []
    whole = tuple(part for part in sizes if isinstance(part, int))
    return whole if whole and len(whole) == len(sizes) else None


# --- spaces that nobody has measured -------------------------------------------------------------

MOST_CONFIGURATIONS = 1_000_000
"""Values multiplied out before restrictions; the largest space of Kernel Tuner's own benchmarks
has 82,944 (gemm, benchmark_hub)."""


def _space(document: Mapping[str, Any]) -> TuningRun:
    """All values multiplied out, less what the restrictions forbid."""
    kernel, size = document.get("kernel_name"), document.get("problem_size")
    if "ConfigurationSpace" in document:
        parameters, restrictions = _of_t1(document["ConfigurationSpace"])
        about = document.get("KernelSpecification")
        about = about if isinstance(about, dict) else {}
        kernel, size = about.get("KernelName"), about.get("ProblemSize")
    else:
        parameters, restrictions = document["tune_params"], document.get("restrictions") or []
    for name, values in parameters.items():
        kinds = isinstance(values, list) and all(isinstance(each, Value) for each in values)
        if not kinds or not values:
            raise DataError(f"tunable parameter {name!r} needs a list of numbers or texts")
    if prod(len(values) for values in parameters.values()) > MOST_CONFIGURATIONS:
        raise DataError(f"more than {MOST_CONFIGURATIONS:,} configurations: give fewer values")
    if not isinstance(restrictions, list) or not all(isinstance(r, str) for r in restrictions):
        raise DataError("restrictions are a list of expressions, such as 'block_size_x <= 1024'")
    rules = [_expression(each, parameters) for each in restrictions]
    every = (dict(zip(parameters, row, strict=True)) for row in product(*parameters.values()))
    kept = []
    for row in every:
        checkpoint()
        if all(rule(row) for rule in rules):
            kept.append(Configuration(row, None, None))
    return TuningRun(
        tuple(kept),
        kernel=_text(kernel),
        problem_size=_size(size),
    )


def _of_t1(space: Any) -> tuple[dict[str, Any], list[Any]]:
    try:
        parameters = {}
        for each in space["TuningParameters"]:
            values = each["Values"]  # a list, or Python's text of one
            parameters[str(each["Name"])] = (
                list(ast.literal_eval(values)) if isinstance(values, str) else values
            )
        return parameters, [each["Expression"] for each in space.get("Conditions") or ()]
    except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(
            f"ConfigurationSpace: expected TuningParameters with Name and Values, and Conditions "
            f"with Expression ({error})"
        ) from error


def _expression(text: str, names: Mapping[str, object]) -> Rule:
    """A restriction as a function of the parameters, of numbers, comparisons and logic alone."""
    shown = text if len(text) <= 200 else f"{text[:200]}..."

    def leaf(node: ast.expr) -> Rule:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                return lambda row: constant
            case ast.Name(id=name) if name in names:
                return lambda row: row[name]
            case ast.Name(id=name):
                raise DataError(f"restriction {shown!r}: {name} is no tunable parameter")
        raise DataError(f"restriction {shown!r}: {ast.unparse(node)} is not understood")

    try:
        read = rule(ast.parse(text.strip(), mode="eval").body, leaf)
    except RecursionError as error:
        raise DataError(f"restriction {shown!r} is nested too deeply") from error
    except (SyntaxError, ValueError) as error:
        raise DataError(f"restriction {shown!r}: no expression of Python") from error

    def of(row: Mapping[str, Value]) -> Any:
        try:
            return read(row)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise DataError(f"restriction {shown!r} with {dict(row)}: {error}") from error

    return of


def t4_text(measured: Sequence[Configuration]) -> str:
    """Measurements as a T4 results file; a configuration measured twice has two results."""
    results = []
    for one in measured:
        given = (("time", one.time_seconds, "s"), ("energy", one.energy_joules, "J"))
        found = [
            {"name": name, "value": value, "unit": unit}
            for name, value, unit in given
            if value is not None
        ]
        results.append(
            {
                "configuration": dict(one.parameters),
                "objectives": [each["name"] for each in found],
                "times": {},
                "invalidity": "correct" if one.valid else "runtime",
                "correctness": int(one.valid),
                "measurements": found,
            }
        )
    return json.dumps({"schema_version": "1.0.0", "results": results}, indent=1) + "\n"


def _number(value: Any) -> float | None:
    """A measured value; ``None`` for what stands in for one (1e20, error names)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e19 else None
