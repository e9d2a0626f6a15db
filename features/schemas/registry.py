"""Every schema by its id."""

from __future__ import annotations

from functools import lru_cache

from wattcast.features.errors import SchemaError
from wattcast.features.schemas.activity import ActivitySchema
from wattcast.features.schemas.schema import Schema
from wattcast.features.schemas.tables import SCHEMA_IDS, read_definition

AnySchema = Schema | ActivitySchema


@lru_cache(maxsize=1)
def published_schemas() -> dict[str, Schema]:
    """The schemas of published data sets, by id."""
    return {schema_id: Schema(read_definition(schema_id)) for schema_id in SCHEMA_IDS}


@lru_cache(maxsize=1)
def activity_schema() -> ActivitySchema:
    """``activity1``."""
    return ActivitySchema()


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
