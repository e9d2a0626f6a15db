"""Cleaning of the published power files, with a count of what every rule dropped.

The rules are numbered as in the project's accuracy specification and repeated where they act:

1.  rows without any content are dropped (K20), and columns without meaning ignored;
2.  rows with a failed formula or a blank in one of the 15 model inputs are dropped, then
    exact duplicates (line number and bookkeeping apart);
3.  ``_sim`` -> ``_sm`` and other spellings; ``total_threads`` = grid x block;
4.  canonical kernel names, so that a spreadsheet-dragged counter is no new kernel; by rule where
    a complete upstream file holds kernels that ``kernel_names.csv`` does not;
5.  V100's ``branch/branch`` draws idle power at every load: flagged ``idle_power``;
6.  ``sm_active`` is a copy of ``block_size``: not read; empty columns stay missing;
8.  PowerQuant: "NaN" shared latency is 0, register count 0 is missing, duplicates dropped,
    then the median per (kernel, grid, block);
9.  PowerQuant: ``inst_issue_cycles`` overflowed 32 bits and is computed anew
    (schema ``powerquant2026r``);
10. flags ``idle_power``, ``iic_zero``, ``short_run``, ``time_not_kernel``;
11. M60: an occupancy of 0 is missing.

Rule 5b (recomputing what the serving rules give otherwise) is ``studies.data.recompute``'s; rule 7
states a formula and cleans nothing.

Canonical names for spellings that ``kernel_names.csv`` does not hold.

The complete upstream files hold kernels that the copies at hand do not, and the table of names goes
with the copies. Such a kernel is named by rule: spelling, sizes and counters are taken off; a
benchmark or kernel that some source of the table spells alike has its name. What is left over of
one benchmark is ONE kernel group: near-twins cannot be told without looking, and a group too
large makes a score worse, never better than it is.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.training.data import datasets
from wattcast.training.data.datasets import number, validated, wrong

_SIZE = re.compile(r"_\d+(k|mw|m|w)?(?=kernel|$|_|\s)|\d{2,}$", re.IGNORECASE)
"""Sizes and counters: ``_1024``, ``_1MW``, ``_193K``, and the 10 of a dragged ``vecAdd10``."""


def plain_name(spelling: str) -> str:
    """Lower-case letters and digits alone, sizes and counters taken off: ``BFSv1_4096`` -> bfsv1.
    A name that is nothing but digits and signs stays what it is."""
    bare = re.sub(r"[^a-z0-9]", "", _SIZE.sub("", spelling.strip()).lower())
    return bare or re.sub(r"[^a-z0-9]", "", spelling.lower()) or "unnamed"


class NamingRules:
    """Names by rule, learned from the spellings that have one."""

    def __init__(self, names: Mapping[tuple[str, str, str], datasets.KernelName]) -> None:
        families: dict[str, set[str]] = {}
        kernels: dict[tuple[str, str], set[datasets.KernelName]] = {}
        for (_, benchmark, kernel), name in names.items():
            families.setdefault(plain_name(benchmark), set()).add(name.family)
            kernels.setdefault((name.family, plain_name(kernel)), set()).add(name)
        # A spelling that stands for two things tells neither.
        self._families = {key: min(each) for key, each in families.items() if len(each) == 1}
        self._kernels = {key: next(iter(each)) for key, each in kernels.items() if len(each) == 1}

    def name(self, benchmark: str, kernel: str) -> datasets.KernelName:
        """The canonical name of any spelling."""
        bare = plain_name(benchmark)
        family = self._families.get(bare, bare)
        own = plain_name(kernel)
        known = self._kernels.get((family, own))
        return known or datasets.KernelName(f"{family}/{own}", f"{family}/*", family)


class _Layout(Strict):
    ignored: frozenset[str]
    names: Mapping[str, str]


class _Columns(Strict):
    model_inputs: tuple[str, ...]
    text: tuple[str, ...]
    numeric: tuple[str, ...]
    thesis: _Layout
    powerquant: _Layout


_COLUMNS = checked(
    _Columns, read_toml(Path(__file__).with_name("columns.toml")), "training/data/columns.toml"
)
MODEL_INPUTS = _COLUMNS.model_inputs
"""The 15 features finally selected (thesis Table 5.4, bold), in the order of the table."""

TEXT_COLUMNS = _COLUMNS.text
NUMERIC_COLUMNS = _COLUMNS.numeric
"""Uniform columns (Table 5.4 names). ``serial`` is the file's own row number (K20), ``src_row``
the line in the file that was read; a column the file does not have is missing throughout."""

_ALWAYS = frozenset({"grid_size", "block_size", "power_w"})
"""Numbers that every row must have, above 0."""

SM_COUNT = {"K80": 13, "PQ_V100": 80, "PQ_Ampere84": 84, "PQ_Ada24": 24}
"""SMs the PowerQuant tool reckons with (specification of the features, section 4)."""
MAX_THREADS_PER_SM = 2048
"""Threads per SM in the published wave rule, on every GPU (same place)."""


@dataclass(frozen=True)
class CleanTable:
    """Cleaned rows of one file (uniform columns) and rows dropped per rule.
    ``named_by_rule`` counts rows of kernels that ``kernel_names.csv`` does not hold (rule 4)."""

    source: datasets.SourceFile
    path: Path
    sha256: str
    frame: pd.DataFrame
    dropped: dict[str, int]
    named_by_rule: int = 0

    @property
    def training_rows(self) -> pd.DataFrame:
        """Rows for training and scores: without those flagged ``idle_power`` (rule 5)."""
        idle = self.frame["flag"].str.contains("idle_power")
        return self.frame[~idle].reset_index(drop=True)


def clean(source_id: str, root: Path | None = None) -> CleanTable:
    """Read and clean one published file. Raises DataError naming file, row and column."""
    raw = datasets.read_raw(source_id, root)
    if raw.source.layout == "thesis":
        frame, dropped = _clean_thesis(raw)
    else:
        frame, dropped = _clean_powerquant(raw)
    frame, named_by_rule = _name_kernels(frame, raw, root)
    frame["gpu"] = raw.source.id
    if raw.source.layout == "thesis":
        frame["flag"] = _thesis_flags(frame, raw.source.id)
    else:
        frame, merged = _median_per_launch(frame)
        dropped["8 merged into the median of the launch"] = merged
        frame["inst_issue_cycles"], frame["waves"] = _powerquant_issue(frame, raw.source.id)
        frame["flag"] = _powerquant_flags(frame)
    return CleanTable(raw.source, raw.path, raw.sha256, _uniform(frame), dropped, named_by_rule)


def _clean_thesis(raw: datasets.RawTable) -> tuple[pd.DataFrame, dict[str, int]]:
    text = raw.text
    blank = (text.drop(columns=["Sr No."], errors="ignore") == "").all(axis=1)
    text, dropped = text[~blank], {"1 blank rows": int(blank.sum())}
    numbers = _to_numbers(text, _COLUMNS.thesis, raw)
    broken = numbers[list(MODEL_INPUTS)].isna().any(axis=1)
    dropped["2 failed formula or blank in a model input"] = int(broken.sum())
    numbers = numbers.assign(benchmark=text["Benchmark"], kernel=text["Kernel Name"])[~broken]
    numbers = _distinct(numbers, dropped, "2 exact duplicates")
    numbers["occupancy"] = numbers["occupancy"].where(numbers["occupancy"] > 0)
    numbers["n_repeats"] = 1.0
    return numbers, dropped


def _clean_powerquant(raw: datasets.RawTable) -> tuple[pd.DataFrame, dict[str, int]]:
    text = raw.text.copy()
    shared = text["avg_shar_lat"]
    text["avg_shar_lat"] = shared.where(shared != "NaN", "0")
    numbers = _to_numbers(text, _COLUMNS.powerquant, raw)
    numbers["benchmark"] = numbers["kernel"] = text["KernelName"]
    dropped: dict[str, int] = {}
    numbers = _distinct(numbers, dropped, "8 exact duplicates")
    numbers["reg_thread"] = numbers["reg_thread"].where(numbers["reg_thread"] > 0)
    numbers["time_us"] = numbers.pop("time_ns") / 1000
    return numbers, dropped


def _distinct(numbers: pd.DataFrame, dropped: dict[str, int], rule: str) -> pd.DataFrame:
    """Rows that differ but for their numbers in the file, with their threads."""
    repeated = numbers.duplicated(numbers.columns.difference(["serial", "src_row"]))
    dropped[rule] = int(repeated.sum())
    kept = numbers[~repeated].reset_index(drop=True)
    kept["total_threads"] = kept["grid_size"] * kept["block_size"]
    return kept


def _to_numbers(text: pd.DataFrame, layout: _Layout, raw: datasets.RawTable) -> pd.DataFrame:
    """Columns as numbers under their uniform names; failed formulas and blanks are missing."""
    names = {
        name: layout.names.get(name, name.replace("_sim", "_sm"))
        for name in text.columns
        if name not in layout.ignored and name not in raw.source.unused
    }
    known = {*NUMERIC_COLUMNS, "time_ns"}
    columns: dict[str, pd.Series] = {}
    for given, name in names.items():
        if name not in known:
            raise wrong(raw.path, f"has an unexpected column {given!r}", column=given)
        cells = text[given]
        numbers = pd.to_numeric(cells.replace("", None), errors="coerce")
        bad = numbers.isna() & (cells != "") & ~cells.isin(datasets.SPREADSHEET_ERRORS)
        if bad.any():
            line = int(bad.index[bad.to_numpy()][0])
            raise datasets.wrong_cell(raw.path, line, given, f"{cells[line]!r} is not a number")
        columns[given] = numbers.astype(float)
    # PowerQuant's issue cycles overflowed, and rule 9 computes them anew.
    may_be_negative = {"inst_issue_cycles"} if raw.source.layout == "powerquant" else set()
    # Failed formulas and blanks are rule 2's; what else is no power, size or count is a defect.
    schema = {
        given: number(positive=True)
        if name in _ALWAYS
        else number(nullable=True, low=None if name in may_be_negative else 0.0)
        for given, name in names.items()
    }
    needed = {*_ALWAYS, *(MODEL_INPUTS if raw.source.layout == "thesis" else ())}
    schema |= {name: number() for name in sorted(needed - set(names.values()))}
    # The index holds the lines already.
    frame = validated(pd.DataFrame(columns), schema, raw.path, 0).rename(columns=names)
    frame["src_row"] = np.asarray(frame.index, dtype=float)
    return frame


def _name_kernels(
    frame: pd.DataFrame, raw: datasets.RawTable, root: Path | None
) -> tuple[pd.DataFrame, int]:
    """Canonical names, and the number of rows that got theirs by rule.

    Only the complete upstream file, or one that is never trained on, may hold kernels the table
    does not: in any other a name nobody knows is a defect.
    """
    names = datasets.read_kernel_names(root)
    rules = NamingRules(names)
    keys = list(zip(frame["benchmark"], frame["kernel"], strict=True))
    by_rule = [(raw.source.names, *key) not in names for key in keys]
    for at, (benchmark, kernel) in enumerate(keys):
        if by_rule[at] and not (raw.complete or raw.source.reference_only):
            line = int(frame["src_row"].iloc[at])
            said = f"kernel_names.csv does not know {benchmark!r} / {kernel!r}"
            raise wrong(raw.path, said, line, "kernel")
    found = [
        rules.name(*key) if ruled else names[(raw.source.names, *key)]
        for key, ruled in zip(keys, by_rule, strict=True)
    ]
    named = frame.assign(
        kernel_id=[name.kernel_id for name in found],
        kernel_group=[name.group for name in found],
        family=[name.family for name in found],
    )
    return named, sum(by_rule)


def _thesis_flags(frame: pd.DataFrame, source_id: str) -> pd.Series:
    idle = (frame["kernel_id"] == "branch/branch") & (source_id == "V100")
    return _flagged(idle_power=idle, iic_zero=frame["inst_issue_cycles"] == 0)


def _flagged(**flags: pd.Series) -> pd.Series:
    """The names of the flags that hold, each with a semicolon."""
    named = [holds.map({True: f"{name};", False: ""}) for name, holds in flags.items()]
    return functools.reduce(operator.add, named)


def _median_per_launch(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """One row per (kernel, grid, block): medians, at the place of its first row (rule 8)."""
    keys = ["kernel_id", "grid_size", "block_size"]
    groups = frame.groupby(keys, sort=False)
    numeric = [name for name in frame.columns if name in NUMERIC_COLUMNS and name not in keys]
    merged = groups.first()
    merged[numeric] = groups[numeric].median()
    merged["src_row"] = groups["src_row"].first()
    merged["n_repeats"] = groups.size().astype(float)
    return merged.reset_index(), len(frame) - len(merged)


def _powerquant_issue(frame: pd.DataFrame, source_id: str) -> tuple[pd.Series, pd.Series]:
    """Rule 9: floor(max(1, T*w*(comp+glob+misc)/16384)) and w.

    w is ceil(T / (threads per SM x SMs)) here, as the reference files hold it, without the
    inner floor of the row formula (floor(nB/nSM)*nT) that the other columns of a row follow.
    """
    waves = np.maximum(
        1.0, np.ceil(frame["total_threads"] / (SM_COUNT[source_id] * MAX_THREADS_PER_SM))
    )
    counts = frame["comp_inst_kernel"] + frame["glob_inst_kernel"] + frame["misc_inst_kernel"]
    issued = frame["total_threads"] * waves * counts / 16384
    return np.floor(np.maximum(1.0, issued)), waves


def _powerquant_flags(frame: pd.DataFrame) -> pd.Series:
    short = frame["time_us"] < 100_000
    zero = frame["inst_issue_cycles"] == 0
    spans = frame.groupby("kernel_id")[["time_us", "total_threads"]].agg(["min", "max"])
    time_span = spans["time_us"]["max"] / spans["time_us"]["min"]
    thread_span = spans["total_threads"]["max"] / spans["total_threads"]["min"]
    blind = frame["kernel_id"].map((time_span < 4) & (thread_span > 50))
    return _flagged(iic_zero=zero, short_run=short, time_not_kernel=blind)


def _uniform(frame: pd.DataFrame) -> pd.DataFrame:
    for name in NUMERIC_COLUMNS:
        if name not in frame:
            frame[name] = np.nan
    return frame[[*TEXT_COLUMNS, *NUMERIC_COLUMNS]].reset_index(drop=True)
