"""The schema files: ordered fields and one table of constants per GPU, each with its source."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from numpy.typing import ArrayLike

from wattcast.features.schemas.formulas import Floats, LatencyPiece, load_latency

COMPUTE_KINDS = ("arithmetic", "mov", "setp", "cvt", "div", "sqrt")
"""Kinds of compute instruction that the published latencies tell apart."""

IssueRule = Literal["thesis", "powerquant", "cleaned"]
CacheLatency = Literal["average", "total", "last"]


@dataclass(frozen=True, slots=True)
class Field:
    """One feature. ``changeable``: a programmer can change it (source, launch or compiler).

    ``dtype`` is int or float; every value may be missing (NaN).
    """

    name: str
    dtype: str
    unit: str
    description: str
    source: str
    model_input: bool
    changeable: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every GPU of a schema.

    ``wtotal``: slope and intercept of W. ``static_global``: cache_penalty counts the static
    global instructions times w instead of glob_inst_sm. ``no_shared_latency``: avg_shar_lat
    of a kernel without shared loads. ``waves_column``: field ``waves`` is
    ceil(nB/nSM), w, or ``formulas.thread_waves``.
    """

    wtotal: tuple[float, float]
    static_global: bool
    waves_column: Literal["blocks_per_sm", "simulated", "threads"]
    no_shared_latency: float


@dataclass(frozen=True, slots=True)
class GpuTable:
    """The constants that one schema uses for one GPU; latencies in cycles.

    ``sources`` maps each name to where its value comes from. Throughput models are (a, b, c)
    of ``formulas.throughput``, ``None`` where the columns are blank. ``blank`` names the
    fields without a value in the published file.
    """

    gpu_id: str
    title: str
    sm_count: int
    threads_per_sm: int
    l2_bytes: int
    issue_rule: IssueRule
    issue_divisor: float
    compute_latency: Mapping[str, float]
    global_load: tuple[LatencyPiece, ...]
    global_store: float
    store_as_load: bool
    shared_load: float
    misc_latency: float | None
    cache_latency: CacheLatency
    global_throughput: tuple[float, float, float] | None
    shared_throughput: tuple[float, float, float] | None
    memory_ghz: float | None
    sh_penalty_rule: Literal["k20", "m60"] | None
    blank: frozenset[str]
    sources: Mapping[str, str]

    def load_cycles(self, threads: ArrayLike) -> Floats:
        """Latency of a global load in a launch of ``threads``."""
        return load_latency(threads, self.global_load)

    def store_cycles(self, threads: ArrayLike) -> Floats:
        """Latency of a global store: its own, or the load's where the data charge that."""
        if self.store_as_load:
            return self.load_cycles(threads)
        return load_latency(threads, (LatencyPiece(float("inf"), 0.0, self.global_store),))


@dataclass(frozen=True, slots=True)
class Definition:
    """One schema file as read. ``sha256`` is over its fields, rules, tables and version."""

    id: str
    version: int
    title: str
    source: str
    fields: tuple[Field, ...]
    rules: Rules
    gpus: Mapping[str, GpuTable]
    sha256: str


SCHEMA_IDS = ("alavani2023", "powerquant2026", "powerquant2026r")


def read_definition(schema_id: str) -> Definition:
    """Read a schema file of this package; ``schema_id`` is one of ``SCHEMA_IDS``."""
    text = files(__package__).joinpath(f"{schema_id}.toml").read_text(encoding="utf-8")
    return parse_definition(text)


def parse_definition(text: str) -> Definition:
    """Make a Definition of the text of a schema file. Comments do not enter its sha256."""
    raw = tomllib.loads(text)
    return Definition(
        id=raw["id"],
        version=raw["version"],
        title=raw["title"],
        source=raw["source"],
        fields=fields_of(raw),
        rules=_rules({name: entry["value"] for name, entry in raw["rules"].items()}),
        gpus={gpu_id: _table(gpu_id, entry) for gpu_id, entry in raw["gpus"].items()},
        sha256=hash_of(raw),
    )


def fields_of(raw: Mapping[str, Any]) -> tuple[Field, ...]:
    """The fields of a schema file, in order."""
    return tuple(Field(**field) for field in raw["fields"])


def hash_of(raw: Mapping[str, Any]) -> str:
    """sha256 over all a schema file says; comments and layout do not enter."""
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _rules(values: Mapping[str, Any]) -> Rules:
    slope, intercept = values["wtotal"]
    return Rules(
        wtotal=(slope, intercept),
        static_global=values["cache_global"] == "static",
        waves_column=values["waves_column"],
        no_shared_latency=values["no_shared_latency"],
    )


def _table(gpu_id: str, raw: Mapping[str, Any]) -> GpuTable:
    compute = raw["compute_latency"]
    entries = {n: e for n, e in raw.items() if n not in ("title", "compute_latency")}
    values = {name: entry["value"] for name, entry in entries.items()}
    sources = {name: entry["source"] for name, entry in (entries | compute).items()}
    return GpuTable(
        gpu_id=gpu_id,
        title=raw["title"],
        sm_count=values["sm_count"],
        threads_per_sm=values["threads_per_sm"],
        l2_bytes=values["l2_bytes"],
        issue_rule=values["issue_rule"],
        issue_divisor=float(values["issue_divisor"]),
        compute_latency={kind: float(compute[kind]["value"]) for kind in COMPUTE_KINDS},
        global_load=tuple(LatencyPiece(*piece) for piece in values["global_load"]),
        global_store=float(values["global_store"]),
        store_as_load=values["store_as_load"],
        shared_load=float(values["shared_load"]),
        misc_latency=values.get("misc_latency"),
        cache_latency=values["cache_latency"],
        global_throughput=_triple(values.get("global_throughput")),
        shared_throughput=_triple(values.get("shared_throughput")),
        memory_ghz=values.get("memory_ghz"),
        sh_penalty_rule=values.get("sh_penalty_rule"),
        blank=frozenset(values["blank"]),
        sources=sources,
    )


def _triple(value: list[float] | None) -> tuple[float, float, float] | None:
    if value is None:
        return None
    a, b, c = value
    return (a, b, c)
