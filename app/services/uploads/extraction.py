"""Features of measured launches, from their PTX: what a prediction of the same launch would see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.messages import AnalyzeRequest
from app.services import parts
from features.errors import AnalysisError
from features.gpus import GpuProfile
from features.schemas import activity_schema, published_schemas

if TYPE_CHECKING:
    from app.services import Services


@dataclass(frozen=True, slots=True)
class Extracted:
    """The kernel of a row, and its vectors by schema, every field in the schema's order."""

    kernel: str
    demangled: str
    vectors: Mapping[str, tuple[float, ...]]


def extract(services: Services, request: AnalyzeRequest, gpu: GpuProfile) -> Extracted:
    """``activity1`` and every published schema with a table for the GPU.

    A kernel that cannot be analysed dynamically has the published ones alone. Raises PtxError,
    KernelError and LaunchError, and AnalysisError where nothing is left.
    """
    source = services.sources.read(request, gpu)
    analysis = parts.analysed(services, request, source, gpu, ptxas=True)
    vectors: dict[str, tuple[float, ...]] = {}
    for schema in published_schemas().values():
        if gpu.id in schema.gpus:
            vectors[schema.id] = tuple(analysis.vector(schema.id).values.values())
    activity = activity_schema().id
    try:
        vectors[activity] = tuple(analysis.vector(activity).values.values())
    except AnalysisError:
        if not vectors:
            raise
    return Extracted(analysis.function.name, analysis.function.demangled, vectors)


def group_of(kernel: str) -> str:
    """A kernel's name without namespaces, template arguments and parameters.

    Instances of one template do nearly the same, so evaluation must not learn from one and ask
    about another; the same name in another program joins them, which errs on the safe side.
    """
    name = kernel.replace("(anonymous namespace)::", "")
    depth, plain = 0, []
    for character in name:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
        elif character == "(" and depth == 0:
            break
        elif depth == 0:
            plain.append(character)
    words = "".join(plain).split()
    return words[-1].rpartition("::")[2] if words else kernel
