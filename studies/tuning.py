"""How many configurations have to be measured before one is near the best: ``wattcast tune``
beside random search and the strategies that Kernel Tuner ships.

    python -m studies tuning                              200 configurations of every space
    python -m studies tuning --space NAME --configurations 400 --seeds 50 --write

Spaces are those of ``counters.toml``, each cut to the same seeded configurations as
``studies counters`` asks: predictions of whole spaces take days of a core. The best is the best of
the cut. Our search is deterministic; the others run with many seeds on the same measurements, in
Kernel Tuner's simulation mode, and their medians count. Random search is worked out: of n of which
k are near, it needs (n + 1) / (k + 1) on average. The ablation is our search without predictions.

Constants of the search (``models/search.py``) were chosen on made-up boards. The time model's norm
from 7.0 on was chosen with these spaces in sight (``studies counters``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.counters import Row, Space, folder, revision, sample, spaces
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError, WattcastError
from wattcast.models.search import Search, coded
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.training.card_tables import table

Floats = NDArray[np.float64]

RESULTS = Path(__file__).with_suffix(".json")
NEAR = (1.01, 1.05)
"""How near the best is near enough."""
STRATEGIES = (
    "random_sample",
    "greedy_ils",
    "mls",
    "genetic_algorithm",
    "simulated_annealing",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "dual_annealing",
    "basinhopping",
    "HybridVNDX",
    "AdaptiveTabuGreyWolf",
)
"""Kernel Tuner's, but for those that need packages of their own or more than a second a step. Some
need neighbours, and fail on a cut that leaves a configuration without."""


def forecasts(space: Space, rows: Sequence[Row], most: int, *, kept: bool) -> dict[int, float]:
    """Predicted seconds of the seeded configurations by their place; without those that cannot be
    predicted. What was predicted before by this revision, or by any if ``kept``, is not predicted
    again. Raises DataError without the PTX."""
    seeded, _ = sample(rows, most)
    file = folder() / f"{space.name}.forecasts.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    known = {
        row["place"]: row["seconds"]
        for row in map(json.loads, lines)
        if kept or row["revision"] == revision()
    }
    predictor = Predictor(Settings())
    with file.open("a", encoding="utf-8") as out:
        for place in seeded:
            if place in known or kept:
                continue
            ptx = folder() / space.ptx(rows[place])
            if not ptx.is_file():
                continue
            known[place] = _seconds(predictor, space, rows[place], ptx.read_text(encoding="utf-8"))
            line = {"revision": revision(), "place": place, "seconds": known[place]}
            out.write(json.dumps(line) + "\n")
    return {place: known[place] for place in seeded if known.get(place) is not None}


def _seconds(predictor: Predictor, space: Space, row: Row, ptx: str) -> float | None:
    body = {"ptx": ptx, "kernel": space.kernel, "gpu": row["gpu"], "launch": space.launch(row)}
    if space.clocks is not None:
        body["clocks"] = space.clocks
    try:
        return float(predict(predictor, PredictRequest.model_validate(body))["time"]["seconds"])
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


def by_search(values: Sequence[Sequence[float]], predicted: Floats, measured: Floats) -> list[int]:
    """The order in which our search measures, until the best is found or it stops; then the rest
    of its proposals up to half of the space."""
    search = Search(coded(values), predicted)
    order: list[int] = []
    for _ in range(measured.size // 2):
        proposed = search.propose()
        if not proposed:
            break
        (place,) = proposed
        search.tell(place, float(measured[place]))
        if place not in order:
            order.append(place)
        if measured[place] <= measured.min() * NEAR[0]:
            break
    return order


def stopped(
    values: Sequence[Sequence[float]], predicted: Floats, measured: Floats
) -> tuple[int, float]:
    """How many our search measures before it stops by itself, and what it loses of the best."""
    search = Search(coded(values), predicted)
    while not search.finished():
        (place,) = search.propose()
        search.tell(place, float(measured[place]))
    best = search.best()
    assert best is not None
    return len(search.measured), float(measured[best] / measured.min() - 1)


def by_kernel_tuner(
    names: Sequence[str], values: Sequence[Sequence[float]], measured: Floats, seeds: int
) -> dict[str, list[list[int]]]:
    """The orders in which each strategy measures, one for every seed; none of one that needs
    neighbours of configurations that have none in a cut."""
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
                options = {"max_fevals": measured.size // 2}
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
                        found[strategy] = []  # it walks to neighbours, which a cut has not
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


def study(space: Space, most: int, seeds: int, *, kept: bool) -> dict[str, Any]:
    """The figures of one space. Raises DataError without data or PTX."""
    rows = space.rows()
    predicted_by_place = forecasts(space, rows, most, kept=kept)
    if len(predicted_by_place) < 20:
        raise DataError(f"{space.name}: only {len(predicted_by_place)} configurations predicted")
    chosen = [rows[place] for place in predicted_by_place]
    names, values = tunables(space, chosen)
    measured = np.array([float(row["time_seconds"]) for row in chosen])
    predicted = np.array(list(predicted_by_place.values()))
    flat = np.full(measured.size, float(np.median(measured)))
    at, lost = stopped(values, predicted, measured)
    counts: dict[str, Any] = {}
    near_count = {f"{n - 1:.0%}": int((measured <= measured.min() * n).sum()) for n in NEAR}
    counts["random, worked out"] = {
        near: (measured.size + 1) / (k + 1) for near, k in near_count.items()
    }
    counts["wattcast tune"] = needed(measured, by_search(values, predicted, measured))
    counts["without predictions"] = needed(measured, by_search(values, flat, measured))
    counts["predicted order alone"] = needed(
        measured, [int(each) for each in np.argsort(predicted, kind="stable")]
    )
    for strategy, orders in by_kernel_tuner(names, values, measured, seeds).items():
        counts[strategy] = {near: median(orders, measured, near) for near in near_count}
    return {
        "revision": "kept" if kept else revision(),
        "configurations": int(measured.size),
        "of": len(rows),
        "seeds": seeds,
        "stopped": {"measured": at, "lost_percent": round(100 * lost, 2)},
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
            f"**{name}**: {one['configurations']} of {one['of']} configurations, "
            f"{one['seeds']} seeds. `wattcast tune` stops by itself after {stop['measured']} "
            f"and loses {stop['lost_percent']} %.\n\n"
            + table(["measurements needed", "within 1 %", "within 5 %"], rows)
        )
    return "\n\n".join(said)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Print the tables; 2 without data or PTX."""
    parser = argparse.ArgumentParser(prog="python -m studies tuning", description=__doc__)
    parser.add_argument("--space", action="append", choices=sorted(spaces()))
    parser.add_argument("--configurations", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--kept", action="store_true", help="also predictions of other revisions")
    parser.add_argument("--write", action="store_true", help=f"also {RESULTS.name}")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name in given.space or spaces():
        try:
            found[name] = study(spaces()[name], given.configurations, given.seeds, kept=given.kept)
        except DataError as error:
            print(f"{name}: {error}", file=sys.stderr)
            if given.space:
                return 2
    if given.write:
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**before, **found}, indent=1) + "\n", encoding="utf-8")
    say(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
