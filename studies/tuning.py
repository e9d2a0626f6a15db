"""How many configurations have to be measured before one is near the best: ``wattcast tune``
beside random search and the strategies that Kernel Tuner ships, on whole spaces.

    python -m studies tuning --space NAME --compile 'COMMAND {space} {ptx}'
    python -m studies tuning --kept                with the predictions of other revisions too

Spaces are those of ``counters.toml`` that were measured on one board alone, with every
configuration that ran. ``wattcast tune`` predicts a part of each and has more predicted as the
search goes on; PTX that the folder of public spaces lacks is made by the command. Our search is
deterministic; the others run with many seeds on the same measurements, in Kernel Tuner's simulation
mode, and their medians count. Random search is worked out: of n of which k are near, it needs
(n + 1) / (k + 1) on average. The ablation is our search without predictions.

Constants of the search (``models/search.py``, ``predictor/tune.py``) were chosen on made-up boards.
The time model's norm from 7.0 on was chosen with these spaces in sight (``studies counters``).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table
from studies.counters import SEED, Row, Space, folder, revision, spaces
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError, WattcastError
from wattcast.models.search import Search, coded
from wattcast.predictor import Predictor
from wattcast.predictor.forecasts import Forecast
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one
from wattcast.predictor.tune import FIRST, PREDICTIONS, Tuning

Floats = NDArray[np.float64]

NEAR = (1.01, 1.05)
"""How near the best is near enough."""
STRATEGIES = (
    "greedy_ils",
    "greedy_mls",
    "ordered_greedy_mls",
    "mls",
    "genetic_algorithm",
    "simulated_annealing",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "dual_annealing",
    "basinhopping",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
)
"""Kernel Tuner's, but for those that need packages of their own or more than a second a step."""
WHOLE = ("convolution_a100", "convolution_titan_rtx", "dedispersion_a100", "gemm_titan_rtx")
MOST = 0.1
"""Share of a space that a strategy may measure."""
MOST_ABLATED = 300
MOST_WATCHED = 100
"""Measurements after which a search that has found the best is not asked whether it stops."""


class Forecasts:
    """Predicted seconds of a space's configurations, made where they are asked for and kept beside
    the PTX: of this revision, or of any if ``kept``. ``command`` makes a missing PTX file."""

    def __init__(self, space: Space, rows: Sequence[Row], command: str | None, kept: bool) -> None:
        self.space, self.rows, self._command = space, rows, command
        self._file = folder() / f"{space.name}.forecasts.jsonl"
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.is_file() else []
        self._known: dict[int, float | None] = {
            row["place"]: row["seconds"]
            for row in map(json.loads, lines)
            if kept or row["revision"] == revision()
        }
        self._predictor = Predictor(Settings())

    def seconds(self, place: int) -> float | None:
        """None where it cannot be predicted. Raises DataError without PTX."""
        if place not in self._known:
            made = _seconds(self._predictor, self.space, self.rows[place], self._ptx(place))
            self._known[place] = made
            with self._file.open("a", encoding="utf-8") as out:
                row = {"revision": revision(), "place": place, "seconds": made}
                out.write(json.dumps(row) + "\n")
        return self._known[place]

    def _ptx(self, place: int) -> str:
        file = folder() / self.space.ptx(self.rows[place])
        if not file.is_file() and self._command is not None:
            words = [
                each.format(space=self.space.name, ptx=file) for each in shlex.split(self._command)
            ]
            file.parent.mkdir(exist_ok=True)
            subprocess.run(words, check=False)  # noqa: S603  the command of who runs the study
        if not file.is_file():
            raise DataError(f"no {file.name}: give --compile")
        return file.read_text(encoding="utf-8")


def _seconds(predictor: Predictor, space: Space, row: Row, ptx: str) -> float | None:
    body = {"ptx": ptx, "kernel": space.kernel, "gpu": row["gpu"], "launch": space.launch(row)}
    if space.clocks is not None:
        body["clocks"] = space.clocks
    try:
        return float(predict_one(predictor, PredictRequest.model_validate(body))["time"]["seconds"])
    except WattcastError:
        return None


def tunables(space: Space, rows: Sequence[Row]) -> tuple[list[str], list[list[float]]]:
    """Names of parameters of which there is more than one value, and every row's."""
    names = [name for name in space.tunables if len({row[name] for row in rows}) > 1]
    return names, [[float(row[name]) for name in names] for row in rows]


def needed(measured: Floats, order: Sequence[int]) -> dict[str, int | None]:
    """How many of an order it takes to come near the best, by how near."""
    best = float(measured.min())
    found: dict[str, int | None] = {}
    for near in NEAR:
        hits = (at for at, place in enumerate(order, 1) if measured[place] <= best * near)
        found[f"{near - 1:.0%}"] = next(hits, None)
    return found


class Searched(NamedTuple):
    """Configurations in the order measured, predictions made until then, and how many were
    measured when it stopped by itself."""

    order: list[int]
    predictions: int
    stopped: int | None


def by_tuning(
    parameters: Sequence[Mapping[str, float]],
    seconds: Callable[[int], float | None],
    measured: Floats,
    predictions: int,
) -> Searched:
    """``wattcast tune`` until it is within the nearest of ``NEAR``, or has measured ``MOST``. The
    first that are predicted are those of ``studies counters``."""
    places = {tuple(row.values()): place for place, row in enumerate(parameters)}

    def made(wanted: Sequence[Mapping[str, Any]]) -> list[Forecast]:
        found = [(row, seconds(places[tuple(row.values())])) for row in wanted]
        return [
            Forecast(row, problem="none") if one is None else Forecast(row, one, 1.0)
            for row, one in found
        ]

    first = made(
        [
            parameters[place]
            for place in np.random.default_rng(SEED).permutation(measured.size)[:FIRST]
        ]
    )
    tuning = Tuning(first, "time", None, parameters, made)
    tuning.study(predictions)
    order: list[int] = []
    stopped = None
    while len(order) < MOST * measured.size:
        if stopped is None and tuning.finished():
            stopped = len(order)
        proposed = tuning.propose()
        if not proposed:
            break
        place = places[tuple(float(value) for value in proposed[0].values())]
        tuning.tell(proposed[0], float(measured[place]))
        if place not in order:
            order.append(place)
        near = measured[order].min() <= measured.min() * NEAR[0]
        if near and (stopped is not None or len(order) >= MOST_WATCHED):
            break
    return Searched(order, len(tuning.rows), stopped)


def by_search(values: Sequence[Sequence[float]], measured: Floats) -> list[int]:
    """The same search without predictions: all configurations are expected to be alike."""
    search = Search(coded(values), np.full(measured.size, float(np.median(measured))))
    order: list[int] = []
    while len(order) < MOST_ABLATED:
        (place,) = search.propose() or (None,)
        if place is None:
            break
        search.tell(place, float(measured[place]))
        if place not in order:
            order.append(place)
        if measured[place] <= measured.min() * NEAR[0]:
            break
    return order


def by_kernel_tuner(
    names: Sequence[str], values: Sequence[Sequence[float]], measured: Floats, seeds: int
) -> dict[str, list[list[int]]]:
    """The orders in which each strategy measures, one for every seed; none of one that fails."""
    from kernel_tuner import interface, tune_kernel
    from kernel_tuner.searchspace import Searchspace

    parameters = {name: sorted({int(row[at]) for row in values}) for at, name in enumerate(names)}
    places = {tuple(int(each) for each in row): place for place, row in enumerate(values)}
    keys = list(places)

    def ran(given: Mapping[str, int]) -> bool:
        return tuple(given[name] for name in parameters) in places

    built = Searchspace(parameters, ran, 10**9)
    original, interface.Searchspace = interface.Searchspace, lambda *_, **__: built
    try:
        with tempfile.TemporaryDirectory() as where:
            cache = Path(where) / "cache.json"
            cache.write_text(json.dumps(_cache(parameters, keys, measured)), encoding="utf-8")
            found: dict[str, list[list[int]]] = {}
            for strategy, seed in product(STRATEGIES, range(seeds)):
                if found.get(strategy) == []:
                    continue
                options = {"max_fevals": int(MOST * measured.size)}
                with (
                    warnings.catch_warnings(),
                    Path(os.devnull).open("w", encoding="utf-8") as nothing,
                    redirect_stdout(nothing),
                ):
                    warnings.simplefilter("ignore")
                    try:
                        results, _ = tune_kernel(
                            "k", "__global__ void k() {}", 1, [], parameters, lang="CUDA",
                            simulation_mode=True, cache=str(cache), quiet=True, seed=seed,
                            strategy=strategy, strategy_options=options,
                        )  # fmt: skip
                    except (TypeError, ValueError, IndexError):
                        found[strategy] = []
                        continue
                order = dict.fromkeys(
                    places[tuple(int(row[name]) for name in parameters)] for row in results
                )
                found.setdefault(strategy, []).append(list(order))
            return found
    finally:
        interface.Searchspace = original


def _cache(
    parameters: Mapping[str, Sequence[int]], keys: Sequence[Sequence[int]], measured: Floats
) -> dict[str, Any]:
    rows = {
        ",".join(map(str, key)): {
            **dict(zip(parameters, key, strict=True)), "time": 1e3 * seconds,
            "times": [1e3 * seconds], "compile_time": 0, "verification_time": 0,
            "benchmark_time": 0, "strategy_time": 0, "framework_time": 0,
            "timestamp": "2026-01-01 00:00:00+00:00",
        }
        for key, seconds in zip(keys, measured.tolist(), strict=True)
    }  # fmt: skip
    return {
        "device_name": "Simulation", "kernel_name": "k", "problem_size": 1,
        "tune_params_keys": list(parameters), "tune_params": dict(parameters), "cache": rows,
    }  # fmt: skip


def median(orders: Sequence[Sequence[int]], measured: Floats, near: str) -> float | None:
    """Median over seeds; a seed that never came near counts as more than all that did, a strategy
    that does not run as one that never does."""
    if not orders:
        return None
    counts = [needed(measured, order)[near] for order in orders]
    middle = sorted(float("inf") if count is None else count for count in counts)[len(counts) // 2]
    return None if middle == float("inf") else middle


def study(space: Space, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one space. Raises DataError without data or PTX."""
    rows = space.rows()
    names, values = tunables(space, rows)
    measured = np.array([float(row["time_seconds"]) for row in rows])
    made = Forecasts(space, rows, given.compile, given.kept)
    parameters = [dict(zip(names, row, strict=True)) for row in values]
    found = by_tuning(parameters, made.seconds, measured, given.predictions)
    near_count = {f"{n - 1:.0%}": int((measured <= measured.min() * n).sum()) for n in NEAR}
    counts: dict[str, Any] = {
        "random, worked out": {
            near: (measured.size + 1) / (k + 1) for near, k in near_count.items()
        },
        "wattcast tune": needed(measured, found.order),
        "without predictions": needed(measured, by_search(values, measured)),
    }
    for strategy, orders in by_kernel_tuner(names, values, measured, given.seeds).items():
        counts[strategy] = {near: median(orders, measured, near) for near in near_count}
    stopped = found.order if found.stopped is None else found.order[: found.stopped]
    return {
        "revision": "kept" if given.kept else revision(),
        "configurations": len(rows),
        "predictions": found.predictions,
        "seeds": given.seeds,
        "stopped": {
            "measured": found.stopped,
            "lost_percent": round(100 * float(measured[stopped].min() / measured.min() - 1), 2),
        },
        "needed": counts,
    }


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of all spaces."""
    said = []
    for name, one in found.items():
        rows = [
            [how, *("never" if n is None else f"{n:.4g}" for n in counts.values())]
            for how, counts in one["needed"].items()
        ]
        stop = one["stopped"]
        said.append(
            f"**{name}**: {one['configurations']:,} configurations, of which {one['predictions']} "
            f"were predicted; {one['seeds']} seeds. `wattcast tune` stops by itself after "
            f"{stop['measured'] or 'more than it took'} and loses {stop['lost_percent']} %.\n\n"
            + table(["measurements needed", "within 1 %", "within 5 %"], rows)
        )
    return "\n\n".join(said)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Print the tables; 2 without data or PTX."""
    parser = parser_of("tuning", __doc__)
    parser.add_argument("--space", action="append", choices=WHOLE)
    parser.add_argument("--predictions", type=int, default=PREDICTIONS)
    parser.add_argument("--compile", help="makes a missing {ptx} of the {space}, by its file name")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--kept", action="store_true", help="also predictions of other revisions")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name in given.space or WHOLE:
        try:
            found[name] = study(spaces()[name], given)
        except DataError as error:
            print(f"{name}: {error}", file=sys.stderr)
            if given.space:
                return 2
    say(report(found))
    return 0
