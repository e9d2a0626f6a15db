"""Whole tuning spaces asked as users ask, beside hardware counters and measured times.

    python -m studies counters                      60 configurations of every space
    python -m studies counters --space NAME --configurations 500
    python -m studies counters --configurations 500 --write     also the figures that docs show

Predictions come from the use case that HTTP calls (``wattcast.predictor.predict``): PTX, launch and
arguments in, nothing else. Of each space the same seeded configurations are asked, and the 20
fastest, among which a user who tunes has to choose. Counts and times are scored on the seeded
ones. The clocks are those of the boards where ``counters.toml`` knows them, else the profile's. One
constant of the time model was chosen with these spaces in sight, the norm of an SM's work from 7.0
on (docs/bottleneck.md).

Answers are kept beside the PTX, by the revision of the code and of the models that gave them: an
interrupted run goes on where it stopped. Spaces: ``counters.toml``.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

import wattcast
from studies import parser_of
from studies.card_tables import table
from studies.end_to_end import by_hand, log_ratios, others_median, percent
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError, WattcastError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one
from wattcast.training.data.datasets import find_data

Floats = NDArray[np.float64]
Row = Mapping[str, str]

MANIFEST = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).with_suffix(".json")
FOLDER = "WATTCAST_PUBLIC_SPACES"
SEED = 20261122
QUICK = 60
FASTEST = 20
NEAR = 0.15
"""What counts as near the counter, relative."""
TOP_SHARE = 0.01
"""The predicted best that a user measures to take the best of them."""


@dataclass(frozen=True)
class Space:
    """A tuning space of one kernel (``counters.toml``)."""

    name: str
    table: str
    source: str
    kernel: str
    tunables: Sequence[str]
    grid: Sequence[Sequence[Any]]
    block: Sequence[Any]
    arguments: Mapping[str, Any]
    counters: bool = False
    clocks: Mapping[str, float] | None = None

    def rows(self) -> list[dict[str, str]]:
        """Every configuration measured. Raises DataError without the data folder."""
        data = find_data()
        if data is None:
            raise DataError("no data folder: set WATTCAST_DATA")
        with gzip.open(
            data / "modern" / f"{self.table}.csv.gz", "rt", encoding="utf-8", newline=""
        ) as file:
            return list(csv.DictReader(file))

    def ptx(self, row: Row) -> str:
        """Name of the PTX file of a configuration, below the folder of public spaces."""
        return f"{self.name}/{'-'.join(row[name] for name in self.tunables)}.ptx"

    def launch(self, row: Row) -> dict[str, Any]:
        """Grid, block and arguments of a configuration, as a user sends them."""
        grid = [
            -(-int(extent) // math.prod(int(row[name]) for name in names))
            for extent, *names in self.grid
        ]
        return {
            "grid": grid,
            "block": [int(row[name]) for name in self.block],
            "arguments": self.arguments,
        }


@cache
def spaces() -> Mapping[str, Space]:
    """The spaces of ``counters.toml`` by name."""
    found = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["space"]
    return {one["name"]: Space(**one) for one in found}


def sample(rows: Sequence[Row], most: int) -> tuple[list[int], list[int]]:
    """Places of up to ``most`` seeded rows, those of a smaller sample first; and of the fastest."""
    seeded = np.random.default_rng(SEED).permutation(len(rows))[:most]
    times = [float(row["time_seconds"]) for row in rows]
    return seeded.tolist(), np.argsort(times, kind="stable")[:FASTEST].tolist()


class Asked(NamedTuple):
    """One configuration: seconds measured and predicted, the counts of the answer, what a user
    works out by hand (seconds), counters, what bounds the time, codes of warnings, seconds by
    resource."""

    place: int
    measured_seconds: float
    seconds: float
    low: float
    high: float
    counts: Mapping[str, float]
    by_hand_seconds: float
    row: Row
    bound_by: str
    warnings: tuple[str, ...]
    parts: Mapping[str, float] = MappingProxyType({})


# --- the counters, and what of an answer says the same -----------------------------------------


def _lanes(counts: Mapping[str, float]) -> float:
    return WARP_SIZE * counts["active_lane_fraction"]


def _sum(*names: str) -> Callable[[Row], float]:
    return lambda row: sum(float(row[name]) for name in names)


class Quantity(NamedTuple):
    """A quantity by its name: as predicted from ``activity1``, as Nsight Compute measured it, and
    of which configurations it is told."""

    predicted: Callable[[Mapping[str, float]], float]
    measured: Callable[[Row], float]
    told: Callable[[Row], bool] = lambda row: True


MACHINE_INSTRUCTION_BYTES = 16
"""From compute capability 7.0 on (Jia et al., arXiv:1804.06826, section 2)."""
INSTRUCTION_CACHE_BYTES = 46 * 1024
"""Of an SM of a Tesla T4 (Jia et al., arXiv:1903.07486, Table 3.1)."""


def code_bytes(row: Row) -> float:
    """Machine code that a warp runs through, from the counters; more than there is of loops."""
    warps = math.prod(int(row[f"grid_{axis}"]) for axis in "xyz") * -(
        -math.prod(int(row[f"block_{axis}"]) for axis in "xyz") // WARP_SIZE
    )
    return float(row["smsp__inst_executed.sum"]) / warps * MACHINE_INSTRUCTION_BYTES


def _small(row: Row) -> bool:
    return "VERTICES" in row or code_bytes(row) <= INSTRUCTION_CACHE_BYTES


_THREADS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_L1 = "l1tex__t_sectors_pipe_lsu_mem_local_op_{}.sum"
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"

# ``activity1`` holds instructions by pipe: comparisons of floats run on the pipe of integers, and
# the counters call them FP32. It does not tell local loads from stores: spills are mostly as many.
QUANTITIES: Mapping[str, Quantity] = {
    "warp instructions": Quantity(
        lambda c: c["warp_instructions_sass"], _sum("smsp__inst_executed.sum")
    ),
    "FP32 thread instructions": Quantity(
        lambda c: c["fp32_instructions"] * _lanes(c), _sum(_THREADS.format("fp32"))
    ),
    "INT thread instructions": Quantity(
        lambda c: (
            (c["alu_pipe_instructions"] + c["fma_pipe_instructions"] - c["fp32_instructions"])
            * _lanes(c)
        ),
        _sum(_THREADS.format("integer")),
    ),
    "control thread instructions": Quantity(
        lambda c: c["branches"] * _lanes(c), _sum(_THREADS.format("control"))
    ),
    "global load requests": Quantity(
        lambda c: c["global_load_requests"],
        _sum("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    ),
    "shared wavefronts": Quantity(
        lambda c: c["shared_transactions"],
        _sum(_SHARED.format("ld"), _SHARED.format("st")),
    ),
    "local sectors": Quantity(
        lambda c: c["local_sectors"], _sum(_L1.format("ld"), _L1.format("st"))
    ),
    "L2 read sectors": Quantity(
        lambda c: c["l2_sectors"] - c["global_store_sectors"] - c["local_sectors"] / 2,
        _sum("lts__t_sectors_op_read.sum"),
    ),
    "L2 read sectors, code in the instruction cache": Quantity(
        lambda c: c["l2_sectors"] - c["global_store_sectors"] - c["local_sectors"] / 2,
        _sum("lts__t_sectors_op_read.sum"),
        lambda row: _small(row) and not float(row[_L1.format("ld")]),
    ),
    "L2 write sectors": Quantity(
        lambda c: c["global_store_sectors"] + c["local_sectors"] / 2,
        _sum("lts__t_sectors_op_write.sum"),
    ),
    "DRAM read sectors": Quantity(lambda c: c["dram_read_sectors"], _sum("dram__sectors_read.sum")),
    "DRAM write sectors": Quantity(
        lambda c: c["dram_write_sectors"], _sum("dram__sectors_write.sum")
    ),
}


# --- asking ------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the PTX of the spaces lies. Raises DataError where the setting is absent."""
    given = os.environ.get(FOLDER)
    if not given or not Path(given).is_dir():
        raise DataError(
            f"no PTX of the tuning spaces: set {FOLDER} to a folder of them ({MANIFEST.name} says "
            "which kernels, and how their files are named)"
        )
    return Path(given)


@cache
def revision() -> str:
    """What the answers depend on: a hash of the product's code, facts and models."""
    root = Path(wattcast.__file__).resolve().parent.parent
    whole = hashlib.sha256()
    for part in ("features", "models", "predictor"):
        for path in sorted((root / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                whole.update(path.relative_to(root).as_posix().encode())
                whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


def ask(
    predictor: Predictor, space: Space, rows: Sequence[Row], most: int, *, kept: bool = False
) -> Iterator[Asked]:
    """The sample of a space; what was answered before by the same revision, or by any if ``kept``,
    is taken from the file of answers. Configurations without PTX are left out. Raises DataError."""
    where = folder()
    seeded, fastest = sample(rows, most)
    answers = where / f"{space.name}.answers.jsonl"
    known = dict(_kept(answers, kept))
    with answers.open("a", encoding="utf-8") as file:
        for place in dict.fromkeys((*seeded, *fastest)):
            row = rows[place]
            path = where / space.ptx(row)
            if not path.is_file():
                continue
            answer = known.get(place)
            if answer is None:
                answer = _answer(predictor, space, row, path.read_text(encoding="utf-8"))
                line = {"revision": revision(), "place": place, **answer}
                file.write(json.dumps(line) + "\n")
                file.flush()
            if "problem" not in answer:
                yield Asked(
                    place, float(row["time_seconds"]), answer["seconds"], answer["low"],
                    answer["high"], answer["counts"], answer["by_hand_seconds"], row,
                    answer["bound_by"], tuple(answer["warnings"]), answer["parts"],
                )  # fmt: skip


def _kept(file: Path, of_any: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        line = json.loads(text)
        if of_any or line["revision"] == revision():
            yield line["place"], line


def _answer(predictor: Predictor, space: Space, row: Row, ptx: str) -> dict[str, Any]:
    body = {"ptx": ptx, "kernel": space.kernel, "gpu": row["gpu"], "launch": space.launch(row)}
    if space.clocks is not None:
        body["clocks"] = space.clocks
    try:
        answer = predict_one(predictor, PredictRequest.model_validate(body))
    except WattcastError as error:
        return {"problem": str(error)}
    gpu = load_gpu(row["gpu"])
    clocks = ClockPair(**answer.clocks.data())
    return {
        "seconds": answer["time"]["seconds"],
        "low": answer["time"]["low"],
        "high": answer["time"]["high"],
        "counts": answer["features"],
        "by_hand_seconds": by_hand(answer["features"], gpu, clocks),
        "bound_by": answer["time_model"]["regime"],
        "parts": answer["time_model"]["parts"],
        "warnings": sorted({warning["code"] for warning in answer["warnings"]}),
    }


# --- scores ------------------------------------------------------------------------------------


def count_score(found: Sequence[Asked]) -> dict[str, Any]:
    """Of every quantity: the median ratio of predicted to measured and the percentage of
    configurations near, where something was measured; elsewhere how often nothing is predicted."""
    score: dict[str, Any] = {}
    for name, quantity in QUANTITIES.items():
        chosen = [one for one in found if quantity.told(one.row)]
        predicted = np.array([quantity.predicted(one.counts) for one in chosen])
        measured = np.array([quantity.measured(one.row) for one in chosen])
        some = measured > 0
        line: dict[str, float] = {}
        if some.any():
            ratio = predicted[some] / measured[some]
            line["configurations"] = int(some.sum())
            line["median_ratio"] = round(float(np.median(ratio)), 3)
            line["near_percent"] = round(100 * float((np.abs(ratio - 1) <= NEAR).mean()))
        if not some.all():
            line["zeros"] = int((~some).sum())
            line["zeros_predicted"] = int((predicted[~some] == 0).sum())
        score[name] = line
    return score


def rank_correlation(one: Sequence[float] | Floats, other: Sequence[float] | Floats) -> float:
    """Spearman's, of equals by mean ranks; 0 where one of both does not vary."""
    first, second = rankdata(one), rankdata(other)
    if not np.ptp(first) or not np.ptp(second):
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def lost(predicted: Floats, measured: Floats) -> tuple[float, float]:
    """Time lost in percent of the fastest by measuring the predicted best 1 % and taking the best
    of them, and what a random 1 % loses on average (exact)."""
    size = len(measured)
    tried = max(1, math.ceil(TOP_SHARE * size))
    best = measured.min()
    chosen = measured[np.argsort(predicted, kind="stable")[:tried]].min()
    ordered = np.sort(measured)
    # The fastest of `tried` drawn without return is the k-th where all others are slower.
    ways = [math.comb(size - 1 - place, tried - 1) for place in range(size)]
    expected = sum(w * t for w, t in zip(ways, ordered, strict=True)) / math.comb(size, tried)
    return float(100 * (chosen / best - 1)), float(100 * (expected / best - 1))


def time_score(found: Sequence[Asked], seeded: Sequence[Asked]) -> dict[str, float]:
    """Errors of time on the seeded configurations, beside one constant times what is worked out by
    hand; and what choosing by the prediction loses among all that were asked."""
    measured = np.array([one.measured_seconds for one in seeded])
    seconds = np.array([one.seconds for one in seeded])
    hand = np.array([one.by_hand_seconds for one in seeded])
    hand = hand * others_median(measured / hand)
    inside = [one.low <= one.measured_seconds <= one.high for one in seeded]
    loss, random = lost(
        np.array([one.seconds for one in found]), np.array([one.measured_seconds for one in found])
    )
    return {
        "configurations": len(seeded),
        "median_percent": round(float(np.median(percent(seconds, measured))), 1),
        "mean_percent": round(float(percent(seconds, measured).mean()), 1),
        "median_ratio": round(float(np.median(seconds / measured)), 3),
        "rank_correlation": round(rank_correlation(seconds, measured), 3),
        "by_hand_median_percent": round(float(np.median(percent(hand, measured))), 1),
        "by_hand_rank_correlation": round(rank_correlation(hand, measured), 3),
        "inside_percent": round(100 * float(np.mean(inside))),
        "lost_percent": round(loss, 1),
        "lost_at_random_percent": round(random, 1),
    }


def count_table(figures: Mapping[str, Any]) -> str:
    """Counts beside counters, for every space that has them."""
    counted = {name: one["counts"] for name, one in figures.items() if "counts" in one}
    titles = ["quantity"]
    for name in counted:
        titles += [f"{name}: median ratio", "within 15 %"]
    lines = []
    for quantity in QUANTITIES:
        line = [quantity]
        for score in counted.values():
            one = score[quantity]
            if "median_ratio" in one:
                line += [f"{one['median_ratio']:.2f}", f"{one['near_percent']} %"]
            else:
                line += ["none measured", f"none predicted in {one['zeros_predicted']}"]
        lines.append(line)
    return table(titles, lines)


def time_table(figures: Mapping[str, Any]) -> str:
    """Times, ranks and what a choice loses, space by space."""
    titles = (
        "space", "configurations", "median error %", "median ratio", "rank correlation",
        "by hand: error %", "rank", "in interval %", "best 1 % loses %", "random 1 % loses %",
    )  # fmt: skip
    lines = [
        [
            name, f"{one['time']['configurations']}", f"{one['time']['median_percent']:.1f}",
            f"{one['time']['median_ratio']:.2f}", f"{one['time']['rank_correlation']:.2f}",
            f"{one['time']['by_hand_median_percent']:.1f}",
            f"{one['time']['by_hand_rank_correlation']:.2f}",
            f"{one['time']['inside_percent']}", f"{one['time']['lost_percent']:.1f}",
            f"{one['time']['lost_at_random_percent']:.1f}",
        ]
        for name, one in figures.items()
    ]  # fmt: skip
    return table(titles, lines)


def score(space: Space, found: Sequence[Asked], seeded: Sequence[int]) -> dict[str, Any]:
    """Figures of a space from its answers. Raises DataError where nothing was asked."""
    chosen = [one for one in found if one.place in set(seeded)]
    if not chosen:
        raise DataError(f"{space.name}: the folder {FOLDER} names holds no PTX of it")
    figures: dict[str, Any] = {
        "revision": revision(),
        "kernel": space.kernel,
        "gpu": chosen[0].row["gpu"],
        "time": time_score(found, chosen),
        "log_ratios": log_ratios(
            (one.bound_by, one.measured_seconds, one.seconds) for one in chosen
        ),
    }
    if space.counters:
        figures["counts"] = count_score(chosen)
    return figures


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("counters", __doc__)
    parser.add_argument("--space", choices=tuple(spaces()), action="append")
    parser.add_argument("--configurations", type=int, default=QUICK, help="seeded ones of a space")
    parser.add_argument("--write", action="store_true", help=f"the figures into {RESULTS.name}")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        for name in options.space or spaces():
            space = spaces()[name]
            rows = space.rows()
            found = list(ask(predictor, space, rows, options.configurations))
            seeded = sample(rows, options.configurations)[0]
            figures[name] = score(space, found, seeded)
    write(f"\n## Counts beside hardware counters\n\n{count_table(figures)}")
    write(f"\n## Tuning spaces\n\n{time_table(figures)}")
    if options.write:
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**before, **figures}, indent=2) + "\n", encoding="utf-8")
    return 0
