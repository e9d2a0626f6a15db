"""What Kernel Tuner reads and writes: spaces in the T1 format, results in T4, and its cache files.

Formats: the T1 and T4 schemas 1.0.0 and the cache schemas 1.0.0 to 1.1.0 in Kernel Tuner's own
repository (KernelTuner/kernel_tuner, kernel_tuner/schema).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from wattcast.features.checked import json_value, real
from wattcast.features.errors import DataError, checkpoint
from wattcast.predictor import expressions

Value = int | float | str | bool

_TIMES = {"time": 1e-3, "time_s": 1.0}
"""Names of a measured time, and seconds in its unit (Kernel Tuner measures milliseconds)."""

_ENERGIES = ("energy", "nvml_energy", "ps_energy", "pmt_energy")
"""Names of a measured energy in joules: user metric, NVML, PowerSensor and PMT observers."""

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "J": 1.0, "mJ": 1e-3}

MOST_VALUE = 2**63
"""Size of a parameter's value: beyond 64 bits no kernel takes one."""

MOST_PARAMETERS, MOST_CHARACTERS = 64, 200
"""Tunable parameters, and characters of a name or a text among their values; the largest space of
Kernel Tuner's own benchmarks has 15 (gemm, benchmark_hub)."""


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

    configurations: Sequence[Configuration]
    kernel: str | None = None
    device: str | None = None
    problem_size: tuple[int, ...] | None = None


def held_bytes(run: TuningRun) -> int:
    """About the memory that a run holds: 0.5 kB and 0.1 kB for each parameter of a configuration
    (tracemalloc, gemm of benchmark_hub: 1.7 kB with 14); a number each where it is a space."""
    if isinstance(run.configurations, Space):
        return 10_000 + run.configurations.numbers.nbytes
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
        document = json_value(text)
    except DataError:
        # A cache that is still written to lacks its last braces.
        document = json_value(text.rstrip().rstrip(",") + "}}")
    if not isinstance(document, dict):
        raise DataError("expected a JSON object")
    return document


def _checked(run: TuningRun) -> TuningRun:
    if not run.configurations:
        raise DataError("the file has no configurations")
    names = run.configurations[0].parameters.keys()
    _check_names(names)
    for one in () if isinstance(run.configurations, Space) else run.configurations:
        if one.parameters.keys() != names:
            raise DataError(f"{dict(one.parameters)} has other parameters than {sorted(names)}")
        for name, value in one.parameters.items():
            _check_value(name, value)
    return run


def _check_names(names: Collection[Any]) -> None:
    if not names:
        raise DataError("the file has no tunable parameters")
    if len(names) > MOST_PARAMETERS:
        raise DataError(f"{len(names):,} tunable parameters; at most {MOST_PARAMETERS} are taken")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS:
            raise DataError(
                f"tunable parameter {name!r:.40}: a name has 1 to {MOST_CHARACTERS} characters"
            )


def _check_value(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and -MOST_VALUE <= value <= MOST_VALUE
    if not (is_number or (isinstance(value, str) and len(value) <= MOST_CHARACTERS)):
        raise DataError(
            f"parameter {name!r:.40} is neither a number nor a text of at most {MOST_CHARACTERS} "
            f"characters: {value!r:.40}"
        )


def _result(number: int, row: Any) -> Configuration:
    if not isinstance(row, Mapping) or not isinstance(row.get("configuration"), Mapping):
        raise DataError(f"results[{number}] has no configuration")
    measured: dict[str, float] = {}
    given = row.get("measurements")
    for each in given if isinstance(given, list) else ():
        if isinstance(each, Mapping) and isinstance(each.get("name"), str):
            number_ = real(each.get("value"))
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
    names = document.get("tune_params_keys") or document.get("tune_params")
    if not isinstance(names, list | dict) or not all(isinstance(name, str) for name in names):
        raise DataError("the cache does not list its tunable parameters (tune_params_keys)")
    _check_names(names)
    found = []
    for key, row in document["cache"].items():
        if not isinstance(row, Mapping) or not all(name in row for name in names):
            raise DataError(f"cache[{key!r:.200}] lacks one of {', '.join(names):.200}")
        time = next(
            (value * unit for name, unit in _TIMES.items() if (value := real(row.get(name)))), None
        )
        energy = next((value for name in _ENERGIES if (value := real(row.get(name)))), None)
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
"""Configurations that the restrictions leave; the largest space of Kernel Tuner's own benchmarks
has 82,944 before them (gemm, benchmark_hub)."""

MOST_VALUES = 50_000
"""Values of all parameters together: each is a number or a text in memory."""

MOST_RESTRICTIONS = 256

MOST_WORK = 500_000_000
"""Parts of restrictions times the rows that they are worked out for: some 3 s of one core."""

AT_ONCE, LEAST_WORK = 4_096, 1_000
"""Rows that are worked out at once, and as how many fewer count: NumPy's calls take their time."""


class Space(Sequence[Configuration]):
    """The configurations that restrictions leave of values multiplied out, in the order of
    ``itertools.product``. Each is held as its number in that order, ``[n]`` of int64."""

    def __init__(self, values: Mapping[str, Sequence[Value]], numbers: NDArray[np.int64]) -> None:
        self.values, self.numbers = values, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Configuration: ...
    @overload
    def __getitem__(self, place: slice) -> Space: ...
    def __getitem__(self, place: int | slice) -> Configuration | Space:
        if isinstance(place, slice):
            return Space(self.values, self.numbers[place])
        number, parameters = int(self.numbers[place]), {}
        for name in reversed(list(self.values)):
            number, digit = divmod(number, len(self.values[name]))
            parameters[name] = self.values[name][digit]
        return Configuration({name: parameters[name] for name in self.values}, None, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        return self.values == other.values and np.array_equal(self.numbers, other.numbers)


def _space(document: Mapping[str, Any]) -> TuningRun:
    """All values multiplied out, less what the restrictions forbid."""
    kernel, size = document.get("kernel_name"), document.get("problem_size")
    if "ConfigurationSpace" in document:
        values, restrictions = _of_t1(document["ConfigurationSpace"])
        about = document.get("KernelSpecification")
        about = about if isinstance(about, dict) else {}
        kernel, size = about.get("KernelName"), about.get("ProblemSize")
    else:
        values, restrictions = document["tune_params"], document.get("restrictions") or []
    _check_names(values)
    for name, each in values.items():
        if not isinstance(each, list) or not each:
            raise DataError(f"tunable parameter {name!r} needs a list of numbers or texts")
        for value in each[: MOST_VALUES + 1]:
            _check_value(name, value)
    if sum(map(len, values.values())) > MOST_VALUES:
        raise DataError(f"the tunable parameters have more than {MOST_VALUES:,} values")
    if prod(len(each) for each in values.values()) >= 2**63:
        raise DataError("more than 2^63 combinations: give fewer values")
    if not isinstance(restrictions, list) or not all(isinstance(r, str) for r in restrictions):
        raise DataError("restrictions are a list of expressions, such as 'block_size_x <= 1024'")
    if len(restrictions) > MOST_RESTRICTIONS:
        raise DataError(f"{len(restrictions):,} restrictions; at most {MOST_RESTRICTIONS}")
    space = Space(values, _allowed(values, [_Rule.read(each, values) for each in restrictions]))
    return TuningRun(space, kernel=_text(kernel), problem_size=_size(size))


class _Rule(NamedTuple):
    """A restriction, and the columns of the values it is about."""

    text: str
    read_as: expressions.Expression
    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, text: str, values: Mapping[str, Sequence[Value]]) -> _Rule:
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        try:
            found = expressions.read(text)
            for name in sorted(found.names - values.keys()):
                raise expressions.ExpressionError(f"{name} is no tunable parameter")
            columns = {name: expressions.column(values[name]) for name in found.names}
        except (expressions.ExpressionError, TypeError) as error:
            raise DataError(f"restriction {shown!r}: {error}") from error
        return cls(shown, found, columns)

    def holds(self, digits: Mapping[str, NDArray[np.int64]], rows: int) -> NDArray[np.bool_]:
        """Whether it holds for values given by their place in their lists. Raises DataError."""
        given = {name: column[digits[name]] for name, column in self.columns.items()}
        try:
            return self.read_as.holds(given, rows)
        except (TypeError, ArithmeticError) as error:
            raise DataError(f"restriction {self.text!r}: {error}") from error


def _allowed(values: Mapping[str, Sequence[Value]], rules: Sequence[_Rule]) -> NDArray[np.int64]:
    """Numbers of the configurations that satisfy all rules, each asked as soon as all of its names
    have a value. Raises DataError for too many, or for too much work."""
    names = list(values)
    due: list[list[_Rule]] = [[] for _ in names]
    for rule in rules:
        due[max((names.index(name) for name in rule.columns), default=0)].append(rule)
    kept: list[NDArray[np.int64]] = []
    count = work = 0

    def extended(begun: NDArray[np.int64], at: int) -> Iterator[NDArray[np.int64]]:
        """``begun`` numbers the first ``at`` values; with one more, those that are allowed."""
        nonlocal work
        width = len(values[names[at]])
        step = max(1, AT_ONCE // width)
        for start in range(0, len(begun), step):
            checkpoint()
            some = (begun[start : start + step, None] * width + np.arange(width)).ravel()
            work += max(len(some), LEAST_WORK)
            for rule in due[at]:
                work += max(len(some), LEAST_WORK) * rule.read_as.size
                if work > MOST_WORK:
                    raise DataError(
                        "the restrictions leave too many combinations to look at: put the "
                        "parameters first that they are about, or give fewer values"
                    )
                digits, left = {}, some
                for name in reversed(names[: at + 1]):
                    left, digit = np.divmod(left, len(values[name]))
                    if name in rule.columns:
                        digits[name] = digit
                some = some[rule.holds(digits, len(some))]
                if not len(some):
                    break
            if len(some):
                yield from [some] if at == len(names) - 1 else extended(some, at + 1)

    for some in extended(np.zeros(1, np.int64), 0):
        kept.append(some)
        count += len(some)
        if count > MOST_CONFIGURATIONS:
            raise DataError(f"more than {MOST_CONFIGURATIONS:,} configurations: give fewer values")
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def _of_t1(space: Any) -> tuple[dict[str, Any], list[Any]]:
    try:
        parameters = {}
        for each in space["TuningParameters"]:
            values = each["Values"]  # a list, or Python's text of one
            if isinstance(values, str) and len(values) > 100 * MOST_CHARACTERS:
                raise ValueError(f"{len(values):,} characters of values")
            parameters[str(each["Name"])] = (
                list(ast.literal_eval(values)) if isinstance(values, str) else values
            )
        return parameters, [each["Expression"] for each in space.get("Conditions") or ()]
    except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(
            f"ConfigurationSpace: expected TuningParameters with Name and Values, and Conditions "
            f"with Expression ({error})"
        ) from error
    except AttributeError as error:
        raise DataError("ConfigurationSpace: expected an object") from error


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
