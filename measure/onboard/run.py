"""Onboarding: from a recording to a GPU that Wattcast knows like those it ships.

    profile     latencies, throughput, bandwidths, launch overhead   (profile.py)
    power       the physical model, on microbenchmarks alone         (power.py)
    validate    time and power of application kernels, none of which was fitted on
    write       gpus/<id>.toml, artifacts/<id>/power/..., onboarding/<id>/report.md and report.json

All of it follows from the recording: measured now or replayed, the result is the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from wattcast.features.errors import DataError, ModelError
from wattcast.features.gpus import GpuProfile
from wattcast.measure.onboard.data import loaded
from wattcast.measure.onboard.power import (
    FittedPower,
    PowerRow,
    Rows,
    fit_power,
    picojoules,
    power_rows,
)
from wattcast.measure.onboard.profile import FittedProfile, fit_profile
from wattcast.measure.onboard.report import Validation, card, markdown, time_interval, validate
from wattcast.measure.recording import Recording, read_recording
from wattcast.models.cards import ModelCard
from wattcast.models.power import physical
from wattcast.models.store import ArtifactStore
from wattcast.training.provenance import write_parameters


@dataclass(frozen=True)
class Onboarded:
    """What an onboarding made. ``power`` and ``validation`` are ``None`` where the recording has
    too little power; the profile is there all the same."""

    gpu: GpuProfile
    profile: FittedProfile
    power: FittedPower | None
    picojoules: Mapping[str, float]
    validation: Validation | None
    card: ModelCard | None
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def onboard(
    path: Path,
    home: Path,
    gpu: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Onboarded:
    """Fit, validate and write everything below ``home``.

    ``gpu`` names the profile to start from where the device's name does not. Nothing appears
    under its name before it is complete. Raises DataError for a recording that tells too little.
    """
    recording = read_recording(path)
    if recording.provenance == "imported":
        raise DataError("an imported recording has no probes to onboard with", file=path.name)
    if not recording.configurations:
        raise DataError(f"{path.name} has no measured configurations", file=path.name)
    notes = [*recording.sensor.notes]
    notes += [f"{one.key}: {one.detail}" for one in recording.failures]
    notes += recording.doubts
    notes += [f"{one.key}: {note}" for one in recording.configurations for note in one.result.notes]
    if recording.torn:
        notes.append("the recording's last line was cut off and is left out")
    progress("profile")
    profile = fit_profile(recording, gpu)
    work = home / "onboarding" / profile.id
    shutil.rmtree(work, ignore_errors=True)
    board = loaded(profile.data, work)
    progress("activities of what was measured")
    rows = power_rows(recording, board)
    interval = time_interval(rows)
    if interval is not None:
        profile.data["time_interval"] = interval
        board = loaded(profile.data, work)
    notes += profile.notes + rows.notes
    power, validation = _power(recording, board, rows, notes, progress)
    events = {} if power is None else picojoules(power.parameters, board)
    progress("writing")
    final = loaded(profile.data, home / "gpus")
    files = [home / "gpus" / f"{final.id}.toml"]
    written: ModelCard | None = None
    if power is not None and validation is not None:
        notes += power.notes
        about = card(path, recording, power, validation, rows)
        if about is not None:
            artifacts = home / "artifacts"
            written = write_parameters(about, artifacts, power.parameters)
            files.append(artifacts / written.folder)
        else:
            notes.append("fewer than two kernels to validate on: no power model is written")
    shutil.rmtree(work)
    work.mkdir(parents=True)
    made = Onboarded(final, profile, power, events, validation, written, tuple(files), tuple(notes))
    report = work / "report.md"
    report.write_text(markdown(made, recording), "utf-8")
    figures = work / "report.json"
    figures.write_text(json.dumps(json_data(made), indent=1) + "\n", "utf-8")
    return replace(made, files=(*files, report, figures))


def json_data(made: Onboarded) -> dict[str, Any]:
    """Everything found, as JSON."""
    validation = made.validation
    return {
        "gpu": made.gpu.id,
        "profile": dict(made.profile.fitted),
        "power": None
        if made.power is None
        else {
            "picojoules": {k: v for k, v in made.picojoules.items() if k != "active_watts"},
            "active_watts": made.picojoules["active_watts"],
            "idle_watts": made.power.parameters.idle_watts,
            "error_share": {
                name: error if isfinite(error) else None
                for name, error in made.power.error_share.items()
            },
            "residual_percent": made.power.residual_percent,
        },
        "validation": None if validation is None else validation.json_data(),
        "notes": list(made.notes),
    }


def pooled_parameters(gpu: GpuProfile) -> physical.PhysicalParameters:
    """The packaged pooled model's parameters for a GPU: prior of what was not measured."""
    artifact = ArtifactStore().find(physical.POOLED, "power", "physical", "activity1")
    return physical.parameters_for(gpu, artifact.parameters(physical.PhysicalParameters))


def _power(
    recording: Recording,
    gpu: GpuProfile,
    rows: Rows,
    notes: list[str],
    progress: Callable[[str], None],
) -> tuple[FittedPower | None, Validation | None]:
    """The power model, or why there is none."""
    pooled = pooled_parameters(gpu)
    limit = recording.device.power_limit_watts or gpu.tdp_watts
    idle = gpu.idle_watts if gpu.idle_watts is not None else physical.IDLE_SHARE * limit

    def refitted(train: list[PowerRow]) -> physical.PhysicalParameters:
        return fit_power(train, gpu, idle, pooled, limit).parameters

    progress("power")
    try:
        power = fit_power(rows.micro, gpu, idle, pooled, limit)
    except (DataError, ModelError) as error:
        notes.append(f"no power model: {error}")
        return None, validate(rows, None, refitted)

    progress("validation")
    try:
        return power, validate(rows, power.parameters, refitted)
    except DataError as error:
        notes.append(f"the power model cannot be validated: {error}")
        return power, validate(rows, None, refitted)
