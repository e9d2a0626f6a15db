"""The whole analysis of a kernel launch as plain data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath

from wattcast.features import activity, schemas
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.launch import PointerHint
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages import Coverage
from wattcast.predictor.messages import analyze as messages
from wattcast.predictor.parts import arguments, sources

MOST_ROWS = 2000
"""Accesses and source lines of one answer; a warning tells how many are left out."""


@parts.within_asked_seconds
def analyze(predictor: Predictor, request: messages.AnalyzeRequest) -> messages.AnalyzeAnswer:
    """Loops, accesses, mix, occupancy, registers and activity of a launch.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError, and
    ServiceError for limits.
    """
    gpu = predictor.gpus.load(request.gpu)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True)
    activity = analysis.activity.values()
    executed = analysis.executed if analysis.activity_how == "executed" else None
    accesses, lines = analysis.accesses, analysis.lines
    mix = sorted(analysis.mix.items(), key=lambda item: -item[1])
    return messages.AnalyzeAnswer(
        gpu=gpu.id,
        **parts.code_of(source, analysis.function),
        launch=_launch(analysis, source),
        how=analysis.activity_how,
        occupancy=messages.AnalyzedOccupancy.from_attributes(
            analysis.occupancy,
            limits={str(name): blocks for name, blocks in analysis.occupancy.limits.items()},
            waves=analysis.waves,
        ),
        registers=parts.resources(analysis)["registers"],
        loops=_loops(analysis),
        mix=dict(mix),
        blocks=_blocks(analysis),
        accesses=[messages.AnalyzedAccess.from_attributes(each) for each in accesses[:MOST_ROWS]],
        activity=[
            messages.Quantity.from_attributes(field, value=activity[field.name])
            for field in schemas.activity_schema().fields
        ],
        lines=[_line(line, source) for line in lines[:MOST_ROWS]],
        sampling=None
        if executed is None
        else messages.Sampling.from_attributes(
            executed.sampling, sampled_blocks=len(executed.sampling.plan.blocks)
        ),
        needs=parts.needs(source, analysis),
        coverage=Coverage.from_attributes(analysis.coverage),
        warnings=parts.warnings(
            source,
            analysis,
            analysis.activity_diagnostics,
            parts.left_out("accesses", len(accesses), MOST_ROWS),
            parts.left_out("blocks", len(analysis.cfg.blocks), MOST_ROWS),
            parts.left_out("lines", len(lines), MOST_ROWS),
        ),
    )


def _launch(analysis: KernelAnalysis, source: sources.Source) -> messages.AnalyzedLaunch:
    launch, function = analysis.launch, analysis.function
    parameters = arguments.described(function, arguments.c_names(function, source.kernels))
    given = {
        position: asdict(value) if isinstance(value, PointerHint) else value
        for position, value in launch.arguments.items()
    }
    return messages.AnalyzedLaunch.from_attributes(
        launch,
        grid=list(launch.grid),
        block=list(launch.block),
        static_shared_bytes=analysis.static_shared_bytes,
        arguments=[
            messages.AnalyzedArgument(**parameter.data(), given=given.get(parameter.key()))
            for parameter in parameters
        ],
    )


def _blocks(analysis: KernelAnalysis) -> list[messages.AnalyzedBlock]:
    """Basic blocks with what bounds their own speed: how long their chain of dependences is."""
    body = analysis.function.body
    return [
        messages.AnalyzedBlock.from_attributes(
            chain, label=block.label, line=body.instructions[block.start].line
        )
        for block, chain in zip(analysis.cfg.blocks, analysis.chains, strict=True)
        if chain.instructions
    ][:MOST_ROWS]


def _line(line: activity.LineActivity, source: sources.Source) -> messages.AnalyzedLine:
    """A source line; of what was compiled here, a header is told by its name alone."""
    row = asdict(line)
    if source.cuda is not None and line.file is not None:
        row["file"] = PurePath(line.file).name
    return messages.AnalyzedLine(**row)


def _loops(analysis: KernelAnalysis) -> list[messages.AnalyzedLoop]:
    """Trip counts with each loop's depth and, where it was executed, what was seen of it."""
    observed: dict[int, messages.ObservedTrips] = {}
    if analysis.activity_how == "executed":
        observed = {
            seen.loop: messages.ObservedTrips.from_attributes(seen)
            for seen in analysis.executed.loops
            if seen.function == analysis.function.name
        }
    return [
        messages.AnalyzedLoop(**trip.data(), depth=loop.depth, observed=observed.get(loop.index))
        for loop, trip in zip(analysis.loops.loops, parts.trip_counts(analysis), strict=True)
    ]


# A feature vector with names, units and sources.


@parts.within_asked_seconds
def features(predictor: Predictor, request: messages.FeaturesRequest) -> messages.FeaturesAnswer:
    """The vector of a launch in a schema's order.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError, or
    SchemaError for an unknown schema and for one without a table for the GPU.
    """
    gpu = predictor.gpus.load(request.gpu)
    schema = schemas.get_schema(request.schema_id)
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu)
    vector = analysis.vector(schema.id)
    values = parts.values(vector)
    return messages.FeaturesAnswer(
        schema=schema.id,
        gpu=gpu.id,
        **parts.code_of(source, analysis.function),
        features=[
            messages.FeatureValue.from_attributes(field, value=values[field.name])
            for field in schema.fields
        ],
        **parts.resources(analysis),
        warnings=parts.warnings(source, analysis, vector.diagnostics),
    )
