"""Data-parallel fits on a local Dask cluster: ``python -m benchmarks.cluster``.

Synthetic rows through ``training.engine`` on one and two workers: seconds, and the most
memory that scheduler and workers take together. No budget of seconds: it shares its cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil

GIBIBYTE = 2**30
FEATURES = 15
PARTS = 8


@contextmanager
def most_memory() -> Iterator[Callable[[], int]]:
    """Most resident bytes of this process and all below it, looked at every 50 ms."""
    done = threading.Event()
    most = [0]

    def look() -> None:
        own = psutil.Process(os.getpid())
        while not done.wait(0.05):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most[0] = max(most[0], total)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def fit(workers: int, rows: int, trees: int) -> tuple[float, int, float]:
    """Seconds, most bytes, and the error left as a share of the no-information baseline's."""
    import distributed

    from wattcast.training.engine import OnDask, fit_data_parallel, open_engine
    from wattcast.training.families import Xgboost

    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(rows, FEATURES)).astype(np.float32)
    watts = 100 + 20 * vectors[:, 0] + 10 * np.abs(vectors[:, 1]) * (vectors[:, 2] > 0)
    watts += generator.normal(size=rows)
    parts = [(vectors[at], watts[at]) for at in np.array_split(np.arange(rows), PARTS)]
    with (
        most_memory() as peak,
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        open_engine(cluster.scheduler_address) as engine,
    ):
        assert isinstance(engine, OnDask)
        start = time.perf_counter()
        model = fit_data_parallel(engine.client, parts, {"n_estimators": trees})
        seconds = time.perf_counter() - start
        found = Xgboost().predict(model, vectors[:50_000])
        error = np.mean(np.abs(found - watts[:50_000]))
        baseline = np.mean(np.abs(watts[:50_000] - np.median(watts)))
        return seconds, peak(), float(error / baseline)


def main() -> int:
    """Print one line for each number of workers; exit status 1 beyond the memory asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--most-gib", type=float, default=4.0)
    options = parser.parse_args()
    within = True
    for workers in options.workers:
        seconds, most, share = fit(workers, options.rows, options.trees)
        within = within and most <= options.most_gib * GIBIBYTE
        print(
            f"{options.rows} rows, {options.trees} trees, {workers} workers: {seconds:.1f} s, "
            f"{most / GIBIBYTE:.2f} GiB, error {share:.3f} of the baseline's "
            f"(load {psutil.getloadavg()[0]:.1f})",
            flush=True,
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
