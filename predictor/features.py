"""A feature vector with names, units and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattcast.features.schemas import get_schema
from wattcast.predictor import parts
from wattcast.predictor.messages.features import FeaturesRequest

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


@parts.within_asked_seconds
def features(predictor: Predictor, request: FeaturesRequest) -> dict[str, Any]:
    """``FeaturesAnswer``.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError, or
    SchemaError for an unknown schema and for one without a table for the GPU.
    """
    gpu = predictor.gpus.load(request.gpu)
    schema = get_schema(request.schema_id)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu)
    vector = analysis.vector(schema.id)
    return {
        "schema": schema.id,
        "gpu": gpu.id,
        "kernel": parts.kernel_name(analysis),
        "compiled": parts.compiled(source),
        "features": [
            {
                "name": field.name,
                "value": vector.values[field.name],
                **parts.members(field, "unit", "source", "description", "model_input"),
            }
            for field in schema.fields
        ],
        **parts.facts(analysis),
        "warnings": parts.warnings(source, analysis, vector.diagnostics),
    }
