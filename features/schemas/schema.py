"""Named, versioned feature schemas: facts of a kernel in, ordered feature vector out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from wattcast.features.activity import Activity
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import SchemaError
from wattcast.features.gpus import gpu_ids
from wattcast.features.launch import Launch
from wattcast.features.schemas.counting import PtxCounts
from wattcast.features.schemas.derive import derive, launch_columns
from wattcast.features.schemas.formulas import Floats, average_latency, misc_inst_sm
from wattcast.features.schemas.tables import (
    SCHEMA_IDS,
    AnyFile,
    Definition,
    Field,
    GpuTable,
    Rules,
    SchemaFile,
    parse_file,
    read_definition,
    text_of,
)

MISSING = float("nan")


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a published schema needs to know of one launch.

    ``occupancy`` is the theoretical one (0..1], ``shared_bytes_per_block`` static plus dynamic;
    ``None`` gives a missing feature. ``n_loop`` is the authors' nLoop, from
    ``counting.find_n_loop``; ``diagnostics`` are handed on to the vector.
    """

    counts: PtxCounts
    launch: Launch
    gpu_id: str
    occupancy: float | None
    registers_per_thread: float | None
    shared_bytes_per_block: float | None
    n_loop: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()


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


class NamedSchema(Generic[AnyFile]):
    """What every schema has, as its file says."""

    def __init__(self, definition: AnyFile) -> None:
        self._definition = definition

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, version={self.version})"

    @property
    def id(self) -> str:
        """Its name, e.g. ``alavani2023``."""
        return self._definition.id

    @property
    def version(self) -> int:
        """Counts up with every change of the definition."""
        return self._definition.version

    @property
    def title(self) -> str:
        """One line for people."""
        return self._definition.title

    @property
    def source(self) -> str:
        """Where the definition comes from."""
        return self._definition.source

    @property
    def fields(self) -> tuple[Field, ...]:
        """The features, in order."""
        return self._definition.fields

    @property
    def sha256(self) -> str:
        """Hash over the definition; a model card carries it."""
        return self._definition.sha256

    @cached_property
    def model_fields(self) -> tuple[str, ...]:
        """Names of the model inputs, in order."""
        return tuple(field.name for field in self.fields if field.model_input)


class ActivitySchema(NamedSchema[SchemaFile]):
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


class Schema(NamedSchema[Definition]):
    """The schema of a published data set."""

    @property
    def rules(self) -> Rules:
        """What holds for every GPU of the schema."""
        return self._definition.rules

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids of the GPUs that the schema has a table for."""
        return tuple(self._definition.gpus)

    def table(self, gpu_id: str) -> GpuTable:
        """The schema's constants for a GPU. Raises SchemaError if it does not cover the GPU."""
        table = self._definition.gpus.get(gpu_id)
        if table is None:
            raise SchemaError(
                f"schema {self.id} has no published data for {gpu_id!r}; "
                f"it covers: {', '.join(self.gpus)}",
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
        table = self.table(gpu_id or facts.gpu_id)
        columns = self._columns(table, facts)
        names = [field.name for field in self.fields]
        values = {
            name: MISSING if name in table.blank else float(columns.get(name, MISSING))
            for name in names
        }
        return FeatureVector(
            self.id, table.gpu_id, values, self.model_fields, tuple(facts.diagnostics)
        )

    def _columns(self, table: GpuTable, facts: KernelFacts) -> dict[str, Floats | float]:
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
    table: GpuTable, rules: Rules, facts: KernelFacts, waves: float
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
    return {schema_id: Schema(read_definition(schema_id)) for schema_id in SCHEMA_IDS}


@lru_cache(maxsize=1)
def activity_schema() -> ActivitySchema:
    """``activity1``."""
    return ActivitySchema(parse_file(text_of("activity1")))


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
