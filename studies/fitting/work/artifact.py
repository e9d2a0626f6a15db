"""The shipped model of time from measured work: cross-validated, fitted, written with its card.

Equal data, seeds and library versions give equal files, byte for byte (SOURCE_DATE_EPOCH sets the
card's date).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies.data.launches import CLOCKS, GPU, MeasuredLaunch, launches_path, read_launches
from studies.data.tables import source_of_table
from studies.fitting.trees.compact import save_compact
from studies.fitting.work.folds import (
    MODEL,
    PHYSICAL,
    PROTOCOLS,
    RESIDUAL_SHRINKAGE,
    LeftOut,
    WorkCatboost,
    WorkTable,
    fit_residual,
    inputs_of,
    leave_out,
)
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import FeatureFacts, SchemaReference, Source, sha256_of
from wattcast.models.explain import BACKGROUND_NAME
from wattcast.models.intervals import EXTRAPOLATED_WIDENING, IntervalWidth, conformal_factors
from wattcast.models.store import PACKAGED_ARTIFACTS, Float32s
from wattcast.models.time.calibration import (
    MeasuredClocks,
    TimeCard,
    TimeIntervals,
    TimeProtocol,
    TimeTrainingFacts,
    TimeWidth,
)
from wattcast.models.time.measured_work import facts_of, work_schema
from wattcast.models.time.work_model import FAMILY
from wattcast.training.data.datasets import data_root
from wattcast.training.families import library_versions
from wattcast.training.provenance import (
    code_revision,
    fingerprint,
    summarise,
    today,
    write_artifact,
)

Floats = NDArray[np.float64]
Progress = Callable[[str], None]

SOURCE = "hecbench"
ASSIGNMENTS = 5
LEVEL = 0.9


@dataclass(frozen=True)
class Trained:
    """A written card, the launches, and the predictions it was judged by."""

    card: TimeCard
    launches: tuple[MeasuredLaunch, ...]
    left_out: Mapping[TimeProtocol, LeftOut]


def train(
    out_dir: Path = PACKAGED_ARTIFACTS,
    path: Path | None = None,
    assignments: int = ASSIGNMENTS,
    progress: Progress = lambda line: None,
) -> Trained:
    """Cross-validate, fit on all launches, write the artifact below ``out_dir``.

    Raises DataError for a missing or defective table.
    """
    path = path or launches_path()
    launches = read_launches(path)
    table = WorkTable.of(launches)
    progress(f"{len(launches)} launches")
    left_out: dict[TimeProtocol, LeftOut] = {}
    for protocol in PROTOCOLS:
        progress(f"{protocol} folds")
        left_out[protocol] = leave_out(table, protocol, range(assignments), os.cpu_count() or 1)
    # Constants are those of the schema: they serve every GPU, and the trees rest on them.
    vectors, physical = inputs_of(table, work_schema().constants)
    trees = fit_residual(table, vectors, physical, np.arange(len(launches)))
    card = _card(path, launches, table, vectors, left_out)
    write = partial(_write_files, trees, vectors)
    return Trained(write_artifact(card, out_dir, write), launches, left_out)


def calibrated(table: WorkTable, port: LeftOut) -> TimeIntervals:
    """Widths from launches whose program and its ports were left out, one group each.

    Coverage is that on the half of the groups whose residuals did not make the width, both ways.
    ``uncalibrated`` is the physical estimate's own width, widened for another GPU.
    """
    groups = np.tile(table.groups["port"], len(port.predicted[MODEL]))
    outside = port.outside.ravel()
    residuals = {
        way: np.log(np.tile(table.seconds, len(values)) / values.ravel())
        for way, values in port.predicted.items()
    }
    inner = _width(residuals[MODEL], groups)
    outer = inner.widened(EXTRAPOLATED_WIDENING)
    if outside.any():
        needed = _width(residuals[MODEL][outside], groups[outside])
        outer = max(outer, needed, key=lambda width: width.high_factor)
    inside = _split_coverage(residuals[MODEL], groups)
    beyond = _inside(residuals[MODEL][outside], outer)
    physical = _width(residuals[PHYSICAL], groups).widened(EXTRAPOLATED_WIDENING)
    return TimeIntervals(
        level=LEVEL,
        unseen_kernel=_with_coverage(inner, inside, groups),
        extrapolated=_with_coverage(outer, beyond, groups[outside]),
        uncalibrated=TimeWidth.of(physical),
    )


def _width(residuals: Floats, groups: NDArray[np.int64]) -> IntervalWidth:
    low, high = conformal_factors(residuals, groups, LEVEL, symmetric=True)
    return IntervalWidth(low_factor=low, high_factor=high)


def _inside(residuals: Floats, width: IntervalWidth) -> NDArray[np.bool_]:
    return np.asarray(np.abs(residuals) <= np.log(width.high_factor))


def _split_coverage(residuals: Floats, groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each residual lies in the width that the other half of the groups makes."""
    half = (np.random.default_rng(0).permutation(groups.max() + 1) % 2)[groups]
    inside = np.empty(len(residuals), dtype=np.bool_)
    for part in (0, 1):
        width = _width(residuals[half != part], groups[half != part])
        inside[half == part] = _inside(residuals[half == part], width)
    return inside


def _with_coverage(
    width: IntervalWidth, inside: NDArray[np.bool_], groups: NDArray[np.int64]
) -> TimeWidth:
    if not len(inside):
        return TimeWidth.of(width)
    shares = [inside[groups == group].mean() for group in np.unique(groups)]
    return TimeWidth(
        low_factor=width.low_factor,
        high_factor=width.high_factor,
        launches=round(float(inside.mean()), 4),
        groups=round(float(np.mean(shares)), 4),
    )


def _card(
    path: Path,
    launches: Sequence[MeasuredLaunch],
    table: WorkTable,
    vectors: Float32s,
    left_out: Mapping[TimeProtocol, LeftOut],
) -> TimeCard:
    schema = work_schema()
    ports = [launch.port_group for launch in launches]
    facts = facts_of(load_gpu(GPU))
    return TimeCard(
        gpu=GPU,
        target="time",
        family=FAMILY,
        source=SOURCE,
        version=1,
        feature_schema=SchemaReference(id=schema.id, sha256=schema.sha256),
        features=tuple(
            FeatureFacts(
                name=name,
                minimum=float(vectors[:, at].min()),
                maximum=float(vectors[:, at].max()),
                missing_share=0.0,
                reproduced_share=1.0,
                reproduced_note="computed as it is served",
            )
            for at, name in enumerate(schema.inputs)
        ),
        training=TimeTrainingFacts(
            rows=len(launches),
            kernels=len({launch.same_kernel for launch in launches}),
            kernel_groups=len(set(ports)),
            programs=len({launch.program for launch in launches}),
            time_minimum_seconds=float(table.seconds.min()),
            time_median_seconds=float(np.median(table.seconds)),
            time_maximum_seconds=float(table.seconds.max()),
            fingerprint=fingerprint(vectors.astype(np.float64), table.seconds, ports),
        ),
        sources=(_source(path),),
        hyperparameters={
            **WorkCatboost().hyperparameters,
            "residual_shrinkage": RESIDUAL_SHRINKAGE,
            "launch_weight": "1 / sqrt(launches of the program)",
        },
        libraries=library_versions(("catboost", "scipy")),
        scores=tuple(one.scores(table) for one in left_out.values()),
        intervals=calibrated(table, left_out["port"]),
        # The real checksums come with the files; a card without any would not be valid.
        files={"model.onnx": "0" * 64},
        created=today(),
        code_revision=code_revision(),
        clocks=MeasuredClocks(core_mhz=CLOCKS.core_mhz, memory_mhz=CLOCKS.memory_mhz),
        gpu_facts={name: float(value) for name, value in facts.items()},
    )


def _source(path: Path) -> Source:
    """The card entry of the table: below the data folder, or another copy of the same table."""
    origin = source_of_table(launches_path(data_root()))
    found = sha256_of(path)
    return origin.model_copy(update={"sha256": found, "used_sha256": found})


def _write_files(trees: object, vectors: Float32s, folder: Path) -> None:
    names = work_schema().inputs
    save_compact(WorkCatboost(), trees, folder, len(names))
    background = summarise(vectors.astype(np.float64), names)
    (folder / BACKGROUND_NAME).write_text(background.model_dump_json() + "\n", "utf-8")
