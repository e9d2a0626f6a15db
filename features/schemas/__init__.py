"""Feature schemas: what the published data sets hold, computed as they compute it.

<schema>.toml   ordered fields, and the constants of each GPU, every value with its source
tables.py       reads and checks those files
counting.py     the authors' instruction classes and counters, on our IR
formulas.py     the row formulas, on numbers and arrays
schema.py       Schema.vector(facts) -> FeatureVector; activity1; every schema by its id; a row's
                columns from its other columns, for serving and for training
"""

from wattcast.features.schemas.schema import (
    AnySchema,
    FeatureVector,
    KernelFacts,
    Schema,
    activity_schema,
    get_schema,
    list_schemas,
    published_schemas,
)
from wattcast.features.schemas.tables import Field

__all__ = [
    "AnySchema", "FeatureVector", "Field", "KernelFacts", "Schema", "activity_schema", "get_schema",
    "list_schemas", "published_schemas",
]  # fmt: skip
