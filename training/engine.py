"""Where fits and analyses run: threads of this process, other processes, or a Dask cluster.

    open_engine()                   threads; the libraries release the interpreter while they fit
    open_processes(2)               other processes of this machine, for what is Python
    open_engine("tcp://host:8786")  the workers of a Dask scheduler (``WATTCAST_DASK``)

The results are the same bit by bit wherever it is, but for fits spread over several workers.
Workers run this program's code: a scheduler is to be trusted like a database.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np

from wattcast.features.errors import MissingExtraError, ModelError
from wattcast.features.ptx.ir import COLLECT_AFTER
from wattcast.training.evaluation.scores import Floats
from wattcast.training.families import Family, Xgboost, get_family

if TYPE_CHECKING:
    import distributed


T = TypeVar("T")
R = TypeVar("R")

SPREAD_ROWS = 500_000
"""Rows from which one XGBoost fit is spread over the workers; a convention of ours. Below, the fits
of folds run whole, side by side, and stay the same bit by bit."""

WORKERS_SECONDS = 30.0
"""How long a scheduler may take to have a worker."""

RETRIES = 3
"""How often a task runs again that failed on a worker (not: whose worker died, which Dask counts
by itself, ``distributed.scheduler.allowed-failures``)."""


class ClusterError(ConnectionError):
    """The Dask scheduler does not answer or has no worker: worth another try later."""


class Engine(Protocol):
    """Runs one function over many items."""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """Results with the index of their item, in the order in which they are ready.

        ``function`` is one of a module, and pure: it may run twice where a worker dies. Raises
        what it raises.
        """


@dataclass(frozen=True)
class InProcess:
    """Threads of this process, ``jobs`` at a time."""

    jobs: int = 2

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """As ``Engine.map``."""
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                yield from _as_ready(pool, function, items)
            finally:
                pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, which ``open_processes`` makes."""

    pool: Executor

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """As ``Engine.map``. Raises ClusterError where a process was ended from outside."""
        try:
            yield from _as_ready(self.pool, partial(_quiet, function), items)
        except BrokenExecutor as error:
            raise ClusterError(
                "a worker process was ended from outside, perhaps for want of memory; run again, "
                "with fewer workers"
            ) from error


def _as_ready(
    pool: Executor, function: Callable[[T], R], items: Iterable[T]
) -> Iterator[tuple[int, R]]:
    # None is cancelled: joblib 1.6 waits for ever where a pool of cancelled ones is shut down.
    waiting = {pool.submit(function, item): at for at, item in enumerate(items)}
    for done in as_completed(waiting):
        yield waiting[done], done.result()


@contextmanager
def open_processes(jobs: int) -> Iterator[Processes]:
    """Processes that start anew when they are first needed: no lock and no connection comes along,
    and the caller's ``__main__`` is not run again. Raises MissingExtraError without joblib."""
    try:
        from joblib.externals.loky import ProcessPoolExecutor
    except ImportError as error:
        raise MissingExtraError("joblib", "tune") from error
    # A process that has grown makes place for a new one, which is no news.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    pool = ProcessPoolExecutor(jobs, initializer=gc.set_threshold, initargs=COLLECT_AFTER)
    try:
        yield Processes(pool)
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def cores() -> int:
    """How many processors this process may use, by affinity and control groups; 1 without joblib,
    which starts processes."""
    try:
        from joblib import cpu_count
    except ImportError:
        return 1
    return int(cpu_count())


@dataclass(frozen=True)
class OnDask:
    """Workers of a Dask cluster. A worker that dies costs its running tasks, which another one
    then runs; ``client`` belongs to whoever opened it. XGBoost fits on ``spread_rows`` rows or
    more are spread over the workers (``wattcast.training.engine``)."""

    client: distributed.Client
    spread_rows: int = SPREAD_ROWS

    def workers(self) -> int:
        """Tasks that run at once: threads of all workers."""
        return max(1, sum(self.client.nthreads().values()))  # type: ignore[no-untyped-call]

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """As ``Engine.map``."""
        import distributed

        if not (items := list(items)):
            return
        futures = self.client.map(
            partial(_quiet, function), items, pure=False, retries=RETRIES, batch_size=64
        )
        number = {future.key: at for at, future in enumerate(futures)}
        loop = self.client.loop
        done = distributed.as_completed(futures, loop=loop, with_results=True)  # type: ignore[no-untyped-call]
        try:
            for future, result in done:
                yield number[future.key], result
        finally:
            self.client.cancel(futures)  # type: ignore[no-untyped-call]


def _quiet(function: Callable[[Any], R], item: Any) -> R:
    """``function`` with one thread for each numeric library: workers share a machine's cores."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return function(item)


@contextmanager
def open_engine(
    address: str | None = None, jobs: int = 2, spread_rows: int = SPREAD_ROWS
) -> Iterator[Engine]:
    """The engine of a Dask scheduler's address, or threads without one.

    Raises ClusterError where the scheduler does not answer or has no worker, and MissingExtraError
    where Dask is not installed.
    """
    if address is None:
        yield InProcess(jobs)
        return
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError("distributed", "dask") from error
    try:
        client = distributed.Client(  # type: ignore[no-untyped-call]
            address, timeout=WORKERS_SECONDS, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}") from error
    with closing(client):
        try:
            client.wait_for_workers(1, timeout=WORKERS_SECONDS)
        except TimeoutError as error:
            raise ClusterError(f"the Dask scheduler at {address} has no workers") from error
        yield OnDask(client, spread_rows)


# Results of finished fits and predictions, kept so that a training that died goes on there.


class Checkpoints:
    """Arrays by key in a folder; without one, nothing is kept.

    A key names all that a result follows from, so a kept result is the result. A file appears
    under its name at once; one that cannot be read is as if it were not there.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Floats | None:
        """The array kept under ``key``."""
        if self._folder is None:
            return None
        try:
            return np.asarray(np.load(self._path(key), allow_pickle=False), dtype=np.float64)
        except (OSError, ValueError, EOFError):
            return None

    def put(self, key: str, array: Floats) -> None:
        """Keep an array. A full disk costs the checkpoint, not the retraining."""
        if self._folder is None:
            return
        written = self._folder / f".{uuid4().hex}.npy"
        try:
            np.save(written, array, allow_pickle=False)
            written.rename(self._path(key))
        except OSError:
            written.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.npy"


# One XGBoost model fitted on rows that are spread over the workers of a Dask cluster.
#
# For tables that one machine cannot hold or fit in reasonable time. Each worker keeps its rows and
# builds histograms of them; only histograms travel (T. Chen, C. Guestrin, "XGBoost: a scalable tree
# boosting system", 2016). The trees are not bit by bit those of a fit on one machine: cut points
# are sketched from the parts, and sums are added in another order.

ATTEMPTS = 3
"""Fits that are tried: one whose worker dies in the middle fails as a whole and begins anew on the
workers that are left."""


def fit_data_parallel(
    client: distributed.Client,
    parts: Sequence[tuple[Floats, Floats]],
    parameters: Mapping[str, Any] | None = None,
) -> Any:
    """Booster of parts of (vectors ``[n, k]``, watts ``[n]``), each held by one worker.

    ``parameters`` go before the family's hyperparameters. Raises ModelError where no attempt ends.
    """
    import dask.array as da
    import xgboost
    from xgboost import dask as dxgb

    chosen = {**get_family("xgboost").hyperparameters, **(parameters or {})}
    trees = int(chosen.pop("n_estimators"))
    join: Any = da.concatenate
    chunk: Any = da.from_array
    vectors = join([chunk(part[0], chunks=part[0].shape) for part in parts])
    watts = join([chunk(part[1], chunks=part[1].shape) for part in parts])
    error: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            with client.as_current():
                matrix = dxgb.DaskQuantileDMatrix(client, vectors, watts)
                found = dxgb.train(client, {**chosen, "nthread": 1}, matrix, num_boost_round=trees)
        except (xgboost.core.XGBoostError, OSError, RuntimeError) as failed:
            error = failed
            continue
        return found["booster"]
    raise ModelError(f"no fit ended in {ATTEMPTS} attempts: {error}") from error


class SpreadXgboost(Xgboost):
    """XGBoost whose fits on many rows (``OnDask.spread_rows``) take all workers of a cluster."""

    def __init__(self, engine: OnDask) -> None:
        self._engine = engine

    def fit(self, vectors: Floats, watts: Floats, start: bytes | None = None, more: int = 0) -> Any:
        """As ``Family.fit``. Raises ModelError where no attempt ends."""
        if start is not None or len(watts) < self._engine.spread_rows:
            return super().fit(vectors, watts, start, more)
        client = self._engine.client
        workers = max(1, len(client.scheduler_info()["workers"]))
        parts = np.array_split(np.arange(len(watts)), workers)
        return fit_data_parallel(
            client, [(vectors[part], watts[part]) for part in parts], self.hyperparameters
        )


def is_spread(engine: Engine, family: str, rows: int) -> bool:
    """Whether a fit of a family on so many rows is spread over the engine's workers."""
    return isinstance(engine, OnDask) and family == Xgboost.name and rows >= engine.spread_rows


def family_on(engine: Engine, name: str) -> Family:
    """A family by name; where the engine is a cluster, its fits on many rows are spread over it.
    Raises ModelError for an unknown family."""
    if isinstance(engine, OnDask) and name == Xgboost.name:
        return SpreadXgboost(engine)
    return get_family(name)
