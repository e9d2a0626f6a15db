"""The card of an onboarded power model, and the report a user reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.schemas import get_schema
from wattcast.models.cards import (
    FeatureFacts,
    ModelCard,
    ProtocolScores,
    SchemaReference,
    Source,
    sha256_of,
)
from wattcast.models.intervals import Residuals, calibrate
from wattcast.models.power import ONBOARD
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PARAMETERS_NAME
from wattcast.training.card_tables import table
from wattcast.training.evaluation.scores import point_scores, spread_of
from wattcast.training.families import library_versions
from wattcast.training.measure.recording import Recording
from wattcast.training.onboard.power import FittedPower, Rows
from wattcast.training.onboard.validate import LEVEL, Predictions, Validation
from wattcast.training.provenance import code_revision, today, training_facts

if TYPE_CHECKING:
    from wattcast.training.onboard.run import Onboarded

SCHEMA = "activity1"


def card(
    path: Path,
    recording: Recording,
    power: FittedPower,
    validation: Validation,
    rows: Rows,
) -> ModelCard | None:
    """The model's card; ``None`` where fewer than two kernels were left out to judge it by.
    ``path`` is the recording's."""
    if len(set(validation.families)) < 2:
        return None
    fitted, sha256 = rows.micro, sha256_of(path)
    watts = np.array([row.watts for row in fitted], dtype=np.float64)
    vectors = np.array([row.activities for row in fitted])
    random, grouped = validation.power
    measured, families = validation.watts, validation.families
    _, groups = np.unique(families, return_inverse=True)
    return ModelCard(
        gpu=power.parameters.gpu,
        target="power",
        family="physical",
        source=ONBOARD,
        version=1,
        feature_schema=SchemaReference(id=SCHEMA, sha256=get_schema(SCHEMA).sha256),
        features=tuple(
            FeatureFacts(
                name=unit,
                minimum=round(float(vectors[:, at].min()), 6),
                maximum=round(float(vectors[:, at].max()), 6),
                missing_share=0.0,
                reproduced_note="share of the unit's peak over the measured time",
            )
            for at, unit in enumerate(UnitActivities._fields)
        ),
        training=training_facts(
            vectors,
            watts,
            [row.family for row in fitted],
            kernels=len({row.key for row in fitted}),
            dropped={"no power": sum(row.watts is None for row in rows.rows)},
        ),
        sources=(
            Source(
                repository=f"{recording.provenance} on {recording.device.name}",
                path=path.name,
                sha256=sha256,
                used_sha256=sha256,
                licence=recording.sessions[0].licence,
            ),
        ),
        hyperparameters={
            "fitted_on": "microbenchmarks alone",
            "idle_watts": power.parameters.idle_watts,
        },
        libraries=library_versions(("numpy", "scipy")),
        scores=(
            _scores(validation, random, min(10, len(measured))),
            _scores(validation, grouped, len(set(families))),
        ),
        intervals=calibrate(
            grouped=Residuals(measured, grouped.model[0], groups),
            random=Residuals(measured, random.model[0], groups),
            outside=validation.outside,
            floor_watts=float(min(measured.min(), watts.min())),
            level=LEVEL,
        ),
        files={PARAMETERS_NAME: "0" * 64},
        created=today(),
        code_revision=code_revision(),
    )


def _scores(validation: Validation, found: Predictions, folds: int) -> ProtocolScores:
    watts, families = validation.watts, validation.families
    return ProtocolScores(
        table="measured",
        protocol=found.protocol,
        folds=folds,
        assignments=len(found.model),
        model=spread_of([point_scores(watts, one, families) for one in found.model]),
        baseline=spread_of([point_scores(watts, one, families) for one in found.baseline]),
    )


def markdown(made: Onboarded, recording: Recording) -> str:
    """The report."""
    device, sensor = recording.device, recording.sensor
    period = _milliseconds(sensor.update_period_seconds)
    unresolved = [one for one in recording.configurations if one.result.unresolved]
    parts = [
        f"# {made.gpu.name}: onboarding",
        f"Profile `{made.gpu.id}`, {recording.provenance}: {len(recording.configurations)} "
        f"configurations on board {device.label}, driver {device.driver_version}. Power sensor: "
        f"{sensor.power or 'none'}, energy counter {'yes' if sensor.energy_counter else 'no'}, new "
        f"value every {period}, lag {_milliseconds(sensor.lag_seconds)}.",
        "## Profile",
        table(
            ("quantity", "value"),
            [(name, f"{value:.5g}") for name, value in made.profile.fitted.items()],
        ),
    ]
    if made.power is not None:
        errors = {name: f"{error:.1%}" for name, error in made.power.error_share.items()}
        errors |= dict.fromkeys(made.power.unresolved, "not resolved")
        parts += [
            "## Energy of events",
            f"Idle {made.power.parameters.idle_watts:.1f} W; running at all "
            f"{made.picojoules['active_watts']:.1f} W more. Mean residual "
            f"{made.power.residual_percent:.2f} % of the microbenchmarks' power.",
            table(
                ("event", "pJ", "standard error"),
                [
                    (name, f"{value:.4g}", errors.get(name, "pooled, or 0"))
                    for name, value in made.picojoules.items()
                    if name != "active_watts"
                ],
            ),
        ]
    if made.validation is not None and made.validation.timed:
        parts += _validation(made.validation)
    parts += ["## What is missing or weak"]
    notes = [f"- {note}" for note in made.notes]
    notes += [
        f"- {one.key}: not resolved: {', '.join(one.result.unresolved)}" for one in unresolved
    ]
    parts.append("\n".join(dict.fromkeys(notes)) or "Nothing.")
    return "\n\n".join(parts) + "\n"


def _validation(validation: Validation) -> list[str]:
    what = (
        "application kernels, fitted on microbenchmarks alone"
        if validation.on_applications
        else "families of microbenchmarks, each left out in turn (no application was measured)"
    )
    rows = []
    for found in validation.power:
        scores = validation.power_scores(found.protocol)
        rows.append(("power", found.protocol, *_three(scores)))
    if times := validation.time_scores():
        rows.append(("time", "grouped", *_three(times)))
    families = [
        (
            one["family"],
            str(one["launches"]),
            _percent(one["time_error_percent"]),
            _percent(one["power_error_percent"]),
        )
        for one in validation.by_family()
    ]
    return [
        "## Accuracy",
        f"On {what}; in brackets the median as the prediction for everything.",
        table(("target", "protocol", "mean error", "median error", "R2"), rows),
        table(("kernel", "launches", "time error", "power error"), families),
    ]


def _three(scores: dict[str, float]) -> tuple[str, str, str]:
    def both(name: str, form: str) -> str:
        return f"{scores[name]:{form}} ({scores[f'baseline_{name}']:{form}})"

    return both("mape_percent", ".1f"), both("median_ape_percent", ".1f"), both("r2", ".2f")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.0f} ms"
