"""Feature schemas: what the published data sets hold, computed as they compute it.

<schema>.toml   ordered fields, and the constants of each GPU, every value with its source
tables.py       reads those files
counting.py     the authors' instruction classes and counters, on our IR
formulas.py     the row formulas, on numbers and arrays
derive.py       columns of a row from its other columns: for serving and for training
schema.py       Schema.vector(facts) -> FeatureVector
activity.py     activity1: what a launch physically does, on any GPU
registry.py     every schema by its id
"""

from wattcast.features.schemas.registry import (
    AnySchema,
    activity_schema,
    get_schema,
    list_schemas,
    published_schemas,
)
from wattcast.features.schemas.schema import FeatureVector, KernelFacts, Schema
from wattcast.features.schemas.tables import Field, GpuTable

__all__ = [
    "AnySchema",
    "FeatureVector",
    "Field",
    "GpuTable",
    "KernelFacts",
    "Schema",
    "activity_schema",
    "get_schema",
    "list_schemas",
    "published_schemas",
]
