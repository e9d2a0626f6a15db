"""The schema files: ordered fields and one table of constants per GPU, each with its source."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from numpy.typing import ArrayLike
from pydantic import Field as Checked
from pydantic import model_validator

from wattcast.features.checked import Frozen, PositiveInt, Strict, Text, checked
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.schemas.counting import COMPUTE_KINDS, ComputeKind
from wattcast.features.schemas.formulas import Floats, LatencyPiece, load_latency

Triple = tuple[float, float, float]


class Field(Strict):
    """One feature. ``changeable``: a programmer can change it (source, launch or compiler).

    Every value may be missing (NaN).
    """

    name: Text
    dtype: Literal["int", "float"]
    unit: Text
    description: Text
    source: Text
    model_input: bool
    changeable: bool


class Constants(Frozen):
    """Constants written as ``name = { value = ..., source = "..." }``, tables of such included.

    ``sources`` maps each name to where its value comes from.
    """

    sources: Mapping[str, Text]

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, raw: Any) -> Any:
        """Values and sources apart. Raises ValueError for a constant without either."""
        sources: dict[str, Any] = {}

        def value_of(name: str, entry: Any) -> Any:
            if not isinstance(entry, dict):
                return entry
            if "value" not in entry:
                return {key: value_of(key, inner) for key, inner in entry.items()}
            if set(entry) != {"value", "source"}:
                raise ValueError(f"{name}: a constant has a value and a source")
            sources[name] = entry["source"]
            return entry["value"]

        values = {name: value_of(name, entry) for name, entry in dict(raw).items()}
        return {**values, "sources": sources}


class Rules(Constants):
    """What holds for every GPU of a schema.

    ``wtotal``: slope and intercept of W. ``cache_global``: cache_penalty counts glob_inst_sm, or
    the static global instructions times w. ``no_shared_latency``: avg_shar_lat of a kernel
    without shared loads. ``waves_column``: field ``waves`` is ceil(nB/nSM), w, or
    ``formulas.thread_waves``.
    """

    wtotal: tuple[float, float]
    cache_global: Literal["static", "dynamic"]
    waves_column: Literal["blocks_per_sm", "simulated", "threads"]
    no_shared_latency: float


class GpuTable(Constants):
    """The constants that one schema uses for one GPU; latencies in cycles.

    Throughput models are (a, b, c) of ``formulas.throughput``, ``None`` where the columns are
    blank. ``blank`` names the fields without a value in the published file.
    """

    gpu_id: Text
    title: Text
    sm_count: PositiveInt
    threads_per_sm: PositiveInt
    l2_bytes: PositiveInt
    issue_rule: Literal["thesis", "powerquant", "cleaned"]
    issue_divisor: float
    compute_latency: Annotated[Mapping[ComputeKind, float], Checked(min_length=len(COMPUTE_KINDS))]
    global_load: tuple[LatencyPiece, ...]
    global_store: float
    store_as_load: bool
    shared_load: float
    misc_latency: float | None = None
    cache_latency: Literal["average", "total", "last"]
    global_throughput: Triple | None = None
    shared_throughput: Triple | None = None
    memory_ghz: float | None = None
    sh_penalty_rule: Literal["k20", "m60"] | None = None
    blank: frozenset[str]

    def load_cycles(self, threads: ArrayLike) -> Floats:
        """Latency of a global load in a launch of ``threads``."""
        return load_latency(threads, self.global_load)

    def store_cycles(self, threads: ArrayLike) -> Floats:
        """Latency of a global store: its own, or the load's where the data charge that."""
        if self.store_as_load:
            return self.load_cycles(threads)
        return load_latency(threads, (LatencyPiece(float("inf"), 0.0, self.global_store),))


def onboarded_table(gpu: GpuProfile) -> GpuTable | None:
    """The thesis' constants for a GPU that was measured as the thesis measured its own: rows of its
    Table 3.2, latency by threads, throughput curves. ``None`` where the profile lacks any of them.

    What the published data hold of no GPU but theirs is as in most of them: issue cycles by the
    thesis' rule, stores charged as loads, ten cycles for what has no row.
    """
    latency, global_curve = gpu.global_memory_latency, gpu.global_memory_throughput
    shared_curve, rows = gpu.shared_memory_throughput, gpu.latency_cycles
    try:
        compute: dict[ComputeKind, float] = {
            "arithmetic": rows["add.f32"],
            "mov": rows["mov"],
            "setp": rows["setp"],
            "cvt": rows["cvt"],
            "div": rows["div.f32"],
            "sqrt": rows["sqrt.f32"],
        }
        shared_load = rows["ld.shared"]
    except KeyError:
        return None
    if latency is None or global_curve is None or shared_curve is None:
        return None
    return GpuTable(
        sources={},
        gpu_id=gpu.id,
        title=gpu.name,
        sm_count=gpu.sm_count,
        threads_per_sm=gpu.max_threads_per_sm,
        l2_bytes=gpu.l2_bytes,
        issue_rule="thesis",
        issue_divisor=65536,
        compute_latency=compute,
        global_load=tuple(
            LatencyPiece(one.below_threads or float("inf"), one.slope, one.constant)
            for one in latency.pieces
        ),
        global_store=latency.pieces[-1].constant,
        store_as_load=True,
        shared_load=shared_load,
        misc_latency=10,
        cache_latency="average",
        global_throughput=(global_curve.a, global_curve.b, global_curve.c),
        shared_throughput=(shared_curve.a, shared_curve.b, shared_curve.c),
        memory_ghz=gpu.memory_mhz / 1e3,
        sh_penalty_rule="m60",
        blank=frozenset(),
    )


class SchemaFile(Strict):
    """What every schema file says. ``sha256`` is over its fields and all else it holds."""

    id: Text
    version: PositiveInt
    title: Text
    source: Text
    fields: tuple[Field, ...]
    sha256: Text


class Definition(SchemaFile):
    """The file of a published schema."""

    rules: Rules
    gpus: Mapping[str, GpuTable]


SCHEMA_IDS = ("alavani2023", "powerquant2026", "powerquant2026r")

AnyFile = TypeVar("AnyFile", bound=SchemaFile)


def read_definition(schema_id: str) -> Definition:
    """Read a schema file of this package; ``schema_id`` is one of ``SCHEMA_IDS``."""
    return parse_definition(text_of(schema_id))


def text_of(schema_id: str) -> str:
    """A schema file of this package."""
    return files(__package__).joinpath(f"{schema_id}.toml").read_text(encoding="utf-8")


def parse_definition(text: str) -> Definition:
    """Make a Definition of the text of a schema file. Comments do not enter its sha256.

    Raises DataError naming the keys at fault.
    """
    raw = tomllib.loads(text)
    gpus = {gpu_id: {"gpu_id": gpu_id, **table} for gpu_id, table in raw.get("gpus", {}).items()}
    return _checked(Definition, raw, {"gpus": gpus})


def parse_file(text: str) -> SchemaFile:
    """The same for a schema that has fields alone."""
    return _checked(SchemaFile, tomllib.loads(text), {})


def _checked(kind: type[AnyFile], raw: Mapping[str, Any], more: Mapping[str, Any]) -> AnyFile:
    name = f"{raw.get('id', 'schema')}.toml"
    return checked(kind, {**raw, **more, "sha256": hash_of(raw)}, name)


def hash_of(raw: Mapping[str, Any]) -> str:
    """sha256 over all a schema file says; comments and layout do not enter."""
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
