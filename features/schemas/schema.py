"""Named, versioned feature schemas: facts of a kernel in, ordered feature vector out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.activity import Activity
from wattcast.features.errors import Diagnostic, SchemaError
from wattcast.features.gpus import GpuProfile, gpu_ids
from wattcast.features.launch import Launch
from wattcast.features.schemas import formulas, tables
from wattcast.features.schemas.counting import PtxCounts
from wattcast.features.schemas.formulas import Floats, average_latency, misc_inst_sm

MISSING = float("nan")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a published schema needs to know of one launch.

    ``occupancy`` is the theoretical one (0..1], ``shared_bytes_per_block`` static plus dynamic;
    ``None`` gives a missing feature. ``n_loop`` is the authors' nLoop, from
    ``counting.find_n_loop``; ``diagnostics`` are handed on to the vector. ``profile``, where given,
    may hold what the schema has no table of: the regressions of an onboarded GPU.
    """

    counts: PtxCounts
    launch: Launch
    gpu_id: str
    occupancy: float | None
    registers_per_thread: float | None
    shared_bytes_per_block: float | None
    n_loop: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()
    profile: GpuProfile | None = None


@dataclass(frozen=True, slots=True)
class FeatureVector:
    """Values of a schema's fields, in its order; NaN is missing."""

    schema_id: str
    gpu_id: str
    values: Mapping[str, float]
    model_fields: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]

    def model_inputs(self) -> NDArray[np.float32]:
        """The model inputs, shape (len(model_fields),), in that order."""
        with np.errstate(over="ignore"):  # beyond float32 is infinite; a model refuses that
            return np.array([self.values[name] for name in self.model_fields], dtype=np.float32)


class NamedSchema(Generic[tables.AnyFile]):
    """What every schema has, as its file says.

    ``id`` is its name (``alavani2023``), ``title`` one line for people, ``source`` where it comes
    from, ``fields`` the features in order. ``version`` counts up with every change; ``sha256`` is
    over the whole definition, and a model card carries it.
    """

    def __init__(self, definition: tables.AnyFile) -> None:
        self._definition = definition
        self.id = definition.id
        self.version = definition.version
        self.title = definition.title
        self.source = definition.source
        self.fields = definition.fields
        self.sha256 = definition.sha256

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, version={self.version})"

    @cached_property
    def model_fields(self) -> tuple[str, ...]:
        """Names of the model inputs, in order."""
        return tuple(field.name for field in self.fields if field.model_input)


class ActivitySchema(NamedSchema[tables.SchemaFile]):
    """``activity1``: what a launch physically does. It needs no table, so it covers every GPU
    with a profile; all its fields are model inputs."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of all GPUs with a profile."""
        return gpu_ids()

    def vector(
        self, activity: Activity, gpu_id: str, diagnostics: tuple[Diagnostic, ...] = ()
    ) -> FeatureVector:
        """The vector of a measured activity."""
        measured = activity.values()
        values = {field.name: measured[field.name] for field in self.fields}
        return FeatureVector(self.id, gpu_id, values, self.model_fields, diagnostics)


class Schema(NamedSchema[tables.Definition]):
    """The schema of a published data set.

    ``rules`` hold for every GPU of the schema; ``gpus`` are those it has a table for.
    """

    def __init__(self, definition: tables.Definition) -> None:
        super().__init__(definition)
        self.rules = definition.rules
        self.gpus = tuple(definition.gpus)

    def table(self, gpu_id: str, profile: GpuProfile | None = None) -> tables.GpuTable:
        """The schema's constants for a GPU, or those that its profile was onboarded with. Raises
        SchemaError if neither covers the GPU."""
        table = self._definition.gpus.get(gpu_id)
        if table is None and profile is not None and self.id == "alavani2023":
            table = tables.onboarded_table(profile)
        if table is None:
            raise SchemaError(
                f"schema {self.id} has no published data for {gpu_id!r}; "
                f"it covers: {', '.join(self.gpus)}; activity1 covers every GPU",
                schema=self.id,
                gpu=gpu_id,
                known=list(self.gpus),
            )
        return table

    def vector(self, facts: KernelFacts, gpu_id: str | None = None) -> FeatureVector:
        """The features of one launch, computed as the published rows were.

        ``gpu_id`` names another table than that of ``facts.gpu_id``. Raises SchemaError if
        the schema does not cover the GPU.
        """
        table = self.table(gpu_id or facts.gpu_id, None if gpu_id else facts.profile)
        columns = self._columns(table, facts)
        names = [field.name for field in self.fields]
        values = {
            name: MISSING if name in table.blank else float(columns.get(name, MISSING))
            for name in names
        }
        return FeatureVector(
            self.id, table.gpu_id, values, self.model_fields, tuple(facts.diagnostics)
        )

    def _columns(self, table: tables.GpuTable, facts: KernelFacts) -> dict[str, Floats | float]:
        launch, rules = facts.launch, self.rules
        launched = launch_columns(table, rules, launch.blocks, launch.threads_per_block)
        columns: dict[str, Floats | float] = {
            **launched,
            "block_size": launch.threads_per_block,
            "grid_size": launch.blocks,
            "sm_active": launch.threads_per_block,
            "occupancy": _given(facts.occupancy),
            "reg_thread": _given(facts.registers_per_thread),
            "shmem_block": _given(facts.shared_bytes_per_block),
        }
        columns |= _counted(table, rules, facts, float(launched["simulated_waves"]))
        columns |= derive(table, rules, columns)
        return columns


def _given(value: float | None) -> float:
    return MISSING if value is None else float(value)


def _counted(
    table: tables.GpuTable, rules: tables.Rules, facts: KernelFacts, waves: float
) -> dict[str, Floats | float]:
    """Columns of the counters: instructions and latencies per SM, and their averages."""
    counts, static = facts.counts, facts.counts.static
    dynamic = counts.dynamic(facts.n_loop)
    load_cycles = float(table.load_cycles(facts.launch.threads))
    store_cycles = float(table.store_cycles(facts.launch.threads))
    comp_sm = waves * dynamic.compute
    comp_lat = waves * counts.compute_cycles(table.compute_latency, facts.n_loop)
    load_sm, store_sm = waves * dynamic.global_load, waves * dynamic.global_store
    glob_sm, glob_lat = load_sm + store_sm, load_sm * load_cycles + store_sm * store_cycles
    shar_sm = waves * dynamic.shared_load
    shar_lat = shar_sm * table.shared_load
    misc_sm = misc_inst_sm(
        waves, static.compute_total, counts.branch, counts.label, counts.returns, dynamic.unknown
    )
    misc_lat = misc_sm * (MISSING if table.misc_latency is None else table.misc_latency)
    last = {"global_load": load_cycles, "global_store": store_cycles, None: 0.0}
    return {
        "comp_inst_kernel": static.compute_total,
        "comp_inst_sm": comp_sm,
        "comp_lat_sm": comp_lat,
        "avg_comp_lat": average_latency(comp_lat, comp_sm),
        "glob_inst_kernel": static.global_load + static.global_store,
        "glob_inst_sm": glob_sm,
        "glob_load_sm": load_sm,
        "glob_store_sm": store_sm,
        "glob_lat_sm": glob_lat,
        "avg_glob_lat": average_latency(glob_lat, glob_sm),
        "last_global_cycles": last[counts.last_global],
        "shar_inst_kernel": static.shared_load,
        "shar_inst_sm": shar_sm,
        "shar_lat_sm": shar_lat,
        "avg_shar_lat": average_latency(shar_lat, shar_sm, empty=rules.no_shared_latency),
        "misc_inst_kernel": static.unknown,
        "misc_inst_sm": misc_sm,
        "misc_lat_sm": misc_lat,
        "avg_misc_lat": average_latency(misc_lat, misc_sm),
        "branch": waves * counts.branch,
    }


# --- every schema by its id ---------------------------------------------------------------

AnySchema = Schema | ActivitySchema


@lru_cache(maxsize=1)
def published_schemas() -> dict[str, Schema]:
    """The schemas of published data sets, by id."""
    return {schema_id: Schema(tables.read_definition(schema_id)) for schema_id in tables.SCHEMA_IDS}


@lru_cache(maxsize=1)
def activity_schema() -> ActivitySchema:
    """``activity1``."""
    return ActivitySchema(tables.parse_file(tables.text_of("activity1")))


def list_schemas() -> tuple[AnySchema, ...]:
    """Every schema, those of published data first."""
    return (*published_schemas().values(), activity_schema())


def get_schema(schema_id: str) -> AnySchema:
    """The schema of an id. Raises SchemaError for an unknown one."""
    published = published_schemas().get(schema_id)
    if published is not None:
        return published
    if schema_id == activity_schema().id:
        return activity_schema()
    known = [schema.id for schema in list_schemas()]
    raise SchemaError(
        f"no feature schema {schema_id!r}; known: {', '.join(known)}",
        schema=schema_id,
        known=known,
    )


# --- derived columns of a row from its other columns: one code for serving and for training -----


def launch_columns(
    table: tables.GpuTable, rules: tables.Rules, grid: ArrayLike, block: ArrayLike
) -> dict[str, Floats]:
    """Columns that only the launch decides: total_threads, n_warps, simulated_waves (w), waves.

    ``waves`` is the column as the files of ``rules`` hold it.
    """
    blocks = np.asarray(grid, dtype=np.float64)
    threads = np.asarray(blocks * np.asarray(block, dtype=np.float64))
    simulated = formulas.simulated_waves(blocks, block, table.sm_count, table.threads_per_sm)
    waves = {
        "blocks_per_sm": formulas.waves_column(blocks, table.sm_count),
        "simulated": simulated,
        "threads": formulas.thread_waves(threads, table.sm_count, table.threads_per_sm),
    }
    return {
        "total_threads": threads,
        "n_warps": formulas.n_warps(blocks),
        "simulated_waves": simulated,
        "waves": waves[rules.waves_column],
    }


def derive(
    table: tables.GpuTable, rules: tables.Rules, columns: Mapping[str, ArrayLike]
) -> dict[str, Floats]:
    """Columns computed from other columns of the same row, for one GPU.

    ``columns`` needs total_threads and the inputs of what is wanted; what its inputs do not
    allow is left out of the answer (a KeyError never comes out). Answer, where possible:
    total_inst, wtotal, inst_issue_cycles, cache_penalty, Global_Throughput, glb_penalty,
    sh_throughput, sh_penalty. Inputs besides Table 5.4's names: ``simulated_waves`` and
    ``last_global_cycles`` (latency of the last global instruction; powerquant2026 only).
    """
    known = {name: np.asarray(value, dtype=np.float64) for name, value in columns.items()}
    out: dict[str, Floats] = {}
    threads = known["total_threads"]
    out["wtotal"] = formulas.wtotal(threads, *rules.wtotal)
    parts = [known.get(f"{part}_inst_sm") for part in ("comp", "glob", "shar", "misc")]
    if "total_inst" in known:
        out["total_inst"] = known["total_inst"]
    elif all(part is not None for part in parts):
        out["total_inst"] = formulas.total_inst(*[part for part in parts if part is not None])
    issue = _issue_cycles(table, known, out.get("total_inst"))
    if issue is not None:
        out["inst_issue_cycles"] = issue
    cache = _cache_penalty(table, rules, known, out["wtotal"])
    if cache is not None:
        out["cache_penalty"] = cache
    out |= _penalties(table, known)
    return out


def _issue_cycles(
    table: tables.GpuTable, known: Mapping[str, Floats], total: Floats | None
) -> Floats | None:
    threads, divisor = known["total_threads"], table.issue_divisor
    if table.issue_rule == "cleaned":
        names = ("comp_inst_kernel", "glob_inst_kernel", "misc_inst_kernel")
        if not all(name in known for name in names):
            return None
        compute, global_, misc = (known[name] for name in names)
        waves = formulas.thread_waves(threads, table.sm_count, table.threads_per_sm)
        return formulas.issue_cycles_cleaned(threads, waves, compute, global_, misc, divisor)
    if total is None:
        return None
    if table.issue_rule == "thesis":
        return formulas.issue_cycles_thesis(threads, total, divisor)
    return formulas.issue_cycles_powerquant(threads, total, divisor)


def _cache_penalty(
    table: tables.GpuTable, rules: tables.Rules, known: Mapping[str, Floats], wtotal: Floats
) -> Floats | None:
    latency_name = {
        "average": "avg_glob_lat",
        "total": "glob_lat_sm",
        "last": "last_global_cycles",
    }[table.cache_latency]
    latency = known.get(latency_name)
    if rules.cache_global == "static":
        static, waves = known.get("glob_inst_kernel"), known.get("simulated_waves")
        count = None if static is None or waves is None else np.asarray(static * waves)
    else:
        count = known.get("glob_inst_sm")
    if latency is None or count is None:
        return None
    return formulas.cache_penalty(known["total_threads"], count, latency, wtotal, table.l2_bytes)


def _penalties(table: tables.GpuTable, known: Mapping[str, Floats]) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    threads, ghz = known["total_threads"], table.memory_ghz
    if table.global_throughput and ghz and "glob_inst_sm" in known:
        count = known["glob_inst_sm"]
        out["Global_Throughput"] = formulas.throughput(count, *table.global_throughput)
        out["glb_penalty"] = formulas.glb_penalty(
            threads, count, out["Global_Throughput"], table.sm_count, ghz
        )
    if table.shared_throughput and ghz and "shar_inst_sm" in known:
        count = known["shar_inst_sm"]
        out["sh_throughput"] = formulas.throughput(count, *table.shared_throughput)
        penalty = (
            formulas.sh_penalty_k20 if table.sh_penalty_rule == "k20" else formulas.sh_penalty_m60
        )
        out["sh_penalty"] = penalty(threads, count, out["sh_throughput"], ghz)
    return out
