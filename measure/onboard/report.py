"""The card of an onboarded power model, and the report a user reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.features.schemas import get_schema
from wattcast.measure.onboard.data import SOURCE
from wattcast.measure.onboard.power import FittedPower, PowerRow, Rows, predicted_watts
from wattcast.measure.recording import Recording
from wattcast.models import cards
from wattcast.models.intervals import Residuals, calibrate, conformal_factors
from wattcast.models.power import ONBOARD
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PhysicalParameters
from wattcast.models.store import PARAMETERS_NAME
from wattcast.training.evaluation.scores import (
    mape_percent,
    median_ape_percent,
    protocol_scores,
    r2,
)
from wattcast.training.families import library_versions
from wattcast.training.provenance import code_revision, feature_facts, today, training_facts

if TYPE_CHECKING:
    from wattcast.measure.onboard.run import Onboarded

SCHEMA = "activity1"


def card(
    path: Path,
    recording: Recording,
    power: FittedPower,
    validation: Validation,
    rows: Rows,
) -> cards.ModelCard | None:
    """The model's card; ``None`` where fewer than two kernels were left out to judge it by.
    ``path`` is the recording's."""
    if len(set(validation.families)) < 2:
        return None
    fitted, sha256 = rows.micro, cards.sha256_of(path)
    watts = np.array([row.watts for row in fitted], dtype=np.float64)
    vectors = np.array([row.activities for row in fitted])
    random, grouped = validation.power
    units = UnitActivities._fields
    measured, families = validation.watts, validation.families
    _, groups = np.unique(families, return_inverse=True)
    return cards.ModelCard(
        gpu=power.parameters.gpu,
        target="power",
        family="physical",
        source=ONBOARD,
        version=1,
        feature_schema=cards.SchemaReference(id=SCHEMA, sha256=get_schema(SCHEMA).sha256),
        features=feature_facts(
            units,
            vectors.round(6),
            dict.fromkeys(units, "share of the unit's peak over the measured time"),
        ),
        training=training_facts(
            vectors,
            watts,
            [row.family for row in fitted],
            kernels=len({row.key for row in fitted}),
            dropped={"no power": sum(row.watts is None for row in rows.rows)},
        ),
        sources=(
            cards.Source(
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
        scores=tuple(
            protocol_scores(one.protocol, folds, measured, families, one.model, one.baseline)
            for one, folds in ((random, min(10, len(measured))), (grouped, len(set(families))))
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
        (family, str(launches), *map(_percent_text, errors))
        for family, launches, *errors in (one.values() for one in validation.by_family())
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


def _percent_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.0f} ms"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown: a line for every row; ends with a newline."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *rows))


# --- How well a GPU's fitted models do on application kernels they were not --------------------


Floats = NDArray[np.float64]
Refit = Callable[[list[PowerRow]], PhysicalParameters]

FOLDS = 10
ASSIGNMENTS = 10
LEVEL = 0.9


@dataclass(frozen=True)
class Predictions:
    """Out-of-fold predictions of one protocol, ``[assignments, n]``, and their baseline."""

    protocol: Literal["random", "grouped"]
    model: Floats
    baseline: Floats


@dataclass(frozen=True)
class Validation:
    """Rows that were predicted, and how.

    ``on_applications`` is false where no application kernel was measured: then each family of
    microbenchmarks is left out in turn.
    """

    on_applications: bool
    rows: tuple[PowerRow, ...]
    timed: tuple[PowerRow, ...]
    power: tuple[Predictions, ...]
    outside: NDArray[np.bool_]

    @property
    def watts(self) -> Floats:
        """Measured watts, ``[n]``."""
        return np.array([row.watts for row in self.rows], dtype=np.float64)

    @property
    def families(self) -> NDArray[np.str_]:
        """What rows are grouped by, ``[n]``."""
        return np.array([row.family for row in self.rows])

    def power_scores(self, protocol: str) -> dict[str, float]:
        """MAPE, median APE, R2 of model and baseline: means over the assignments."""
        (found,) = [one for one in self.power if one.protocol == protocol]
        return {
            **_scores("", self.watts, found.model),
            **_scores("baseline_", self.watts, found.baseline),
        }

    def time_scores(self) -> dict[str, float]:
        """MAPE and median APE of predicted times, and of the median time as the prediction."""
        if not self.timed:
            return {}
        measured = np.array([row.measured_seconds for row in self.timed])
        predicted = np.array([row.predicted_seconds for row in self.timed])
        return {
            **_scores("", measured, predicted[np.newaxis]),
            **_scores("baseline_", measured, np.full((1, len(measured)), np.median(measured))),
        }

    def by_family(self) -> list[dict[str, Any]]:
        """Mean errors of each kernel."""
        grouped = [one for one in self.power if one.protocol == "grouped"]
        found = []
        for family in sorted({row.family for row in (*self.rows, *self.timed)}):
            timed = [row for row in self.timed if row.family == family]
            seconds = [row.predicted_seconds / row.measured_seconds - 1 for row in timed]
            mine = self.families == family if len(self.rows) else np.zeros(0, dtype=np.bool_)
            share = (grouped[0].model[0] / self.watts - 1)[mine] if grouped and mine.any() else None
            power = None if share is None else _percent(share)
            errors = {"time_error_percent": _percent(seconds), "power_error_percent": power}
            found.append({"family": family, "launches": len(timed), **errors})
        return found

    def json_data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "on_applications": self.on_applications,
            "launches": len(self.timed),
            "kernels": len({row.family for row in self.timed}),
            "power": {one.protocol: self.power_scores(one.protocol) for one in self.power},
            "time": self.time_scores(),
            "by_family": self.by_family(),
        }


def validate(rows: Rows, parameters: PhysicalParameters | None, refit: Refit) -> Validation:
    """Predict applications (or families of microbenchmarks left out).

    ``refit`` fits on other rows; ``parameters`` are those fitted on microbenchmarks, ``None`` to
    judge times alone. Raises DataError for too few rows to leave some out.
    """
    applications, micro = rows.applications, rows.micro
    known = [row for row in applications if row.watts is not None]
    if parameters is None:
        return Validation(bool(applications), (), tuple(applications), (), np.zeros(0, np.bool_))
    if len({row.family for row in known}) >= 2:
        grouped = _fixed(known, micro, parameters)
        random = _random(known, micro, refit)
        outside = _outside(known, micro)
        return Validation(True, tuple(known), tuple(applications), (random, grouped), outside)
    grouped = _families_left_out(micro, refit)
    random = _random(micro, [], refit)
    outside = np.zeros(len(micro), dtype=np.bool_)
    return Validation(False, tuple(micro), tuple(micro), (random, grouped), outside)


def time_interval(rows: Rows) -> dict[str, Any] | None:
    """``[time_interval]`` of the profile from application kernels; ``None`` for fewer than two."""
    real = rows.applications
    families = sorted({row.family for row in real})
    if len(families) < 2:
        return None
    ratios = [np.log(row.measured_seconds / row.predicted_seconds) for row in real]
    groups = [families.index(row.family) for row in real]
    low, high = conformal_factors(ratios, groups, LEVEL, symmetric=True)
    return {
        "source": SOURCE,
        "level": LEVEL,
        "low_factor": round(low, 6),
        "high_factor": round(high, 6),
        "kernels": len(families),
    }


def _fixed(
    known: Sequence[PowerRow], micro: Sequence[PowerRow], parameters: PhysicalParameters
) -> Predictions:
    """The model as it is: it saw microbenchmarks alone. The baseline is their median, or the
    median of the other applications, whichever is nearer on the whole."""
    model = np.array([predicted_watts(parameters, row) for row in known])
    watts, families = _watts(known), np.array([row.family for row in known])
    others = np.array([np.median(watts[families != family]) for family in families])
    constant = np.full(len(known), np.median(_watts(micro)))
    candidates = (others, constant)
    baseline = min(candidates, key=lambda one: float(np.mean(np.abs(one / watts - 1))))
    return Predictions("grouped", model[np.newaxis], baseline[np.newaxis])


def _families_left_out(rows: Sequence[PowerRow], refit: Refit) -> Predictions:
    _, folds = np.unique([row.family for row in rows], return_inverse=True)
    return Predictions("grouped", *_left_out(rows, (), refit, [folds]))


def _random(known: Sequence[PowerRow], always: Sequence[PowerRow], refit: Refit) -> Predictions:
    folds, count = min(FOLDS, len(known)), len(known)
    seeded = [np.random.default_rng(s).permutation(count) % folds for s in range(ASSIGNMENTS)]
    return Predictions("random", *_left_out(known, always, refit, seeded))


def _left_out(
    rows: Sequence[PowerRow],
    always: Sequence[PowerRow],
    refit: Refit,
    assignments: Sequence[NDArray[np.int64]],
) -> Floats:
    """Watts of each row by a fit on ``always`` and the other folds, and the median of those folds,
    ``[2, assignments, n]``."""
    found = np.empty((2, len(assignments), len(rows)))
    for at, fold in enumerate(assignments):
        for number in np.unique(fold):
            rest = [row for row, own in zip(rows, fold, strict=True) if own != number]
            parameters, tested = refit([*always, *rest]), np.flatnonzero(fold == number)
            found[0, at, tested] = [predicted_watts(parameters, rows[int(n)]) for n in tested]
            found[1, at, tested] = np.median(_watts(rest))
    return found


def _outside(known: Sequence[PowerRow], micro: Sequence[PowerRow]) -> NDArray[np.bool_]:
    """Rows with a unit busier than in any microbenchmark, ``[n]``."""
    highest = np.max([row.activities for row in micro], axis=0)
    return np.array([bool(np.any(np.array(row.served) > highest + 0.05)) for row in known])


def _watts(rows: Sequence[PowerRow]) -> Floats:
    return np.array([row.watts for row in rows], dtype=np.float64)


def _scores(prefix: str, measured: Floats, predicted: Floats) -> dict[str, float]:
    return {
        f"{prefix}{score.__name__}": float(np.mean([score(measured, one) for one in predicted]))
        for score in (mape_percent, median_ape_percent, r2)
    }


def _percent(shares: Any) -> float | None:
    values = np.abs(np.asarray(shares, dtype=np.float64)) * 100
    return float(values.mean()) if len(values) else None
