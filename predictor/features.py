"""A feature vector with names, units and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattcast.features.schemas import get_schema
from wattcast.predictor import parts
from wattcast.predictor.messages.features import FeaturesAnswer, FeaturesRequest, FeatureValue

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


@parts.within_asked_seconds
def features(predictor: Predictor, request: FeaturesRequest) -> FeaturesAnswer:
    """The vector of a launch in a schema's order.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError, or
    SchemaError for an unknown schema and for one without a table for the GPU.
    """
    gpu = predictor.gpus.load(request.gpu)
    schema = get_schema(request.schema_id)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu)
    vector = analysis.vector(schema.id)
    values = parts.values(vector)
    return FeaturesAnswer(
        schema=schema.id,
        gpu=gpu.id,
        kernel=parts.kernel_name(analysis.function),
        compiled=parts.compiled(source),
        features=[
            FeatureValue(
                name=field.name,
                value=values[field.name],
                **parts.members(field, "unit", "source", "description", "model_input"),
            )
            for field in schema.fields
        ],
        occupancy=parts.occupancy(analysis),
        registers=parts.registers(analysis),
        trip_counts=parts.trip_counts(analysis),
        warnings=parts.warnings(source, analysis, vector.diagnostics),
    )
