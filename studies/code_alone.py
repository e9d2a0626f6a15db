"""Public programs asked as a first question is: code and launch, and no argument.

    python -m studies code-alone --sources FOLDER    FOLDER/PROGRAM-cuda/*.cu, as HeCBench lies
    python -m studies code-alone --sources FOLDER --part 0/2    every second program, for two cores
    python -m studies code-alone --sources FOLDER --write       also the errors, for intervals
    python -m studies code-alone                                tables of the errors kept

Launches and times are those of ``time/rtx_3080_launches.csv`` of the data folder (an RTX 3080 at
1440 MHz, its caches flushed before every launch). The sources are not part of this repository. Each
grid and block of a kernel is one row, its first launch the measured one. What arguments would tell
is assumed by the service, so this asks what an answer is worth where a loop, a guard or an address
rests on a guess. Shares are means over programs. The range of assumed trips rests on the first 114
rows (``features/trips.py``), and what guards say of loops was judged by all that answer now, so
figures of trips are not those of rows held out.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import wattcast
from studies import parser_of
from studies.card_tables import table
from studies.data.launches import CLOCKS, GPU, MeasuredLaunch, read_launches
from wattcast.features.errors import WattcastError

RESULTS = Path(__file__).with_suffix(".csv")
FILES = 3
"""Sources of a program that are tried: those that launch the kernel come first."""
LONGEST_SECONDS = 30.0
KNOWN = ("nothing", "arguments")
"""Doubts that leave a launch's work known but for what is assumed of its arguments."""
BY_THREADS = ((0, 4), (4, 5), (5, 6), (6, 7), (7, 10))
"""Decades of threads of a launch."""


class Asked(NamedTuple):
    """One launch: what decides its time and was not given, what bounds it, ln(measured / predicted)
    seconds, the same of both ends of the interval, and decades of threads."""

    program: str
    kernel: str
    doubt: str
    regime: str
    off: float
    low: float
    high: float
    decades: float


def sources(folder: Path, kernel: str) -> list[Path]:
    """CUDA files of a program that name a kernel, those that launch it first."""
    launch = re.compile(rf"\b{re.escape(kernel)}\s*(?:<[^;{{}}]{{0,200}}>\s*)?<<<")
    found = []
    for path in sorted(folder.rglob("*.cu")):
        text = path.read_text(encoding="latin-1")
        if re.search(rf"\b{re.escape(kernel)}\b", text):
            found.append((not launch.search(text), "__global__" not in text, path))
    return [path for _, _, path in sorted(found)][:FILES]


def doubt_of(answer: wattcast.Prediction) -> str:
    """What the time rests on that nobody gave."""
    assumed, told = {need.assumes for need in answer.needs}, {one.code for one in answer.warnings}
    if "external_call" in told:
        return "calls"  # of a function that another file holds
    if "trips" in assumed or "trip_count_assumed" in told:
        return "trips"
    return "arguments" if assumed else "nothing"


def ask(row: MeasuredLaunch, folder: Path) -> Asked | str:
    """The answer beside what was measured; where no file of the program answers, why."""
    why = "no source"
    name = row.signature.removeprefix("void ")
    launch = row.work.launch
    for path in sources(folder, row.kernel):
        for kernel in dict.fromkeys((_without_parameters(name), row.kernel)):
            try:
                answer = wattcast.predict(
                    path, gpu=GPU, grid=launch.grid, block=launch.block, kernel=kernel, l2="cold",
                    clocks={"core_mhz": CLOCKS.core_mhz, "memory_mhz": CLOCKS.memory_mhz},
                    analysis_seconds=LONGEST_SECONDS, registry=False,
                )  # fmt: skip
            except WattcastError as error:
                why = type(error).__name__
                continue
            if (time := answer.time) is None or answer.time_model is None:
                return "no time"
            low, high = (math.log(end / time.seconds) for end in (time.low, time.high))
            off = math.log(row.seconds / time.seconds)
            return Asked(
                row.program, row.kernel, doubt_of(answer), str(answer.time_model.regime),
                *(round(each, 3) for each in (off, low, high, math.log10(launch.threads))),
            )  # fmt: skip
    return why


def _without_parameters(name: str) -> str:
    depth = 0
    for at, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            return name[:at]
    return name


def described(title: str, rows: Sequence[Asked]) -> list[str]:
    """A line of the table: shares and quantiles are over programs."""
    many = Counter(row.program for row in rows)
    weights = np.array([1 / many[row.program] for row in rows])
    off, low, high = (
        np.array([getattr(row, name) for row in rows]) for name in ("off", "low", "high")
    )

    def share(where: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
        return f"{weights[where].sum() / weights.sum():.2f}"

    def quantile(values: np.ndarray[tuple[int], np.dtype[np.float64]], part: float) -> float:
        order = np.argsort(values)
        at = np.searchsorted(np.cumsum(weights[order]), part * weights.sum())
        return float(values[order][min(int(at), values.size - 1)])

    return [
        title, str(len(rows)), str(len(many)),
        f"{math.exp(quantile(np.abs(off), 0.5)):.2f}",
        *(share(np.abs(off) <= math.log(within)) for within in (1.25, 2.0)),
        share((low <= off) & (off <= high)), share(off > high), share(off < low),
        f"{math.exp(quantile(high - low, 0.5)):.1f}",
        *(f"{math.exp(quantile(off, part)):.3g}" for part in (0.05, 0.5, 0.95)),
    ]  # fmt: skip


def tables(asked: Sequence[Asked], failed: Counter[str]) -> str:
    """Errors and intervals by what is in doubt, by what bounds a launch without assumed trips, and
    where trips are assumed by threads of the launch."""
    titles = (
        "in doubt", "launches", "programs", "median factor", "within 1.25", "within 2", "inside",
        "above", "below", "high/low", "measured/told .05", ".5", ".95",
    )  # fmt: skip

    def grouped(rows: Iterable[Asked], of: Callable[[Asked], str]) -> Iterator[list[str]]:
        for name, each in groupby(sorted(rows, key=of), of):
            yield described(name, list(each))

    lines = list(grouped(asked, lambda row: row.doubt))
    known = [row for row in asked if row.doubt in KNOWN]
    lines += grouped(known, lambda row: f"no trips, {row.regime}")
    lines += grouped(known, lambda row: f"{row.doubt}, {row.regime}")
    trips = [row for row in asked if row.doubt == "trips"]
    for low, high in BY_THREADS:
        if rows := [row for row in trips if low <= row.decades < high]:
            lines.append(described(f"trips, 1e{low} to 1e{high} threads", rows))
    why = ", ".join(f"{name} {count}" for name, count in failed.most_common())
    return f"{table(titles, lines)}\nWithout an answer: {why or 'none'}.\n"


def kept() -> list[Asked]:
    """The errors of the last run."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows: list[list[Any]] = list(csv.reader(file))[1:]
        return [Asked(*row[:4], *map(float, row[4:])) for row in rows]


def rows_of(launches: Sequence[MeasuredLaunch], part: str) -> Iterator[MeasuredLaunch]:
    """The first launch of each grid and block of a CUDA kernel, of a part of the programs."""
    which, parts = (int(each) for each in part.split("/"))
    cuda = [row for row in launches if row.program.endswith("-cuda")]
    programs = sorted({row.program for row in cuda})[which::parts]
    first = {row.same_launch: row for row in reversed(cuda)}
    yield from (row for row in reversed(first.values()) if row.program in programs)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m studies code-alone``."""
    parser: argparse.ArgumentParser = parser_of("code-alone", __doc__)
    parser.add_argument("--sources", type=Path, help="folder of PROGRAM-cuda")
    parser.add_argument("--part", default="0/1", help="N/M: every Mth program from the Nth on")
    parser.add_argument("--write", action="store_true", help=f"errors into {RESULTS.name}")
    given = parser.parse_args(arguments)
    asked, failed = list[Asked](), Counter[str]()
    if given.sources is None:
        asked = kept()
    for row in rows_of(read_launches(), given.part) if given.sources else ():
        found = ask(row, given.sources / row.program)
        if isinstance(found, str):
            failed[found] += 1
        else:
            asked.append(found)
    print(tables(asked, failed))
    if given.write:
        programs = {row.program for row in rows_of(read_launches(), given.part)}
        rows = sorted([row for row in kept() if row.program not in programs] + asked)
        with RESULTS.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerows([Asked._fields, *rows])
    return 0
