"""``wattcast measure`` and ``wattcast onboard``: a GPU's own measurements, and what follows."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from wattcast.app.cli import exits, inputs, output
from wattcast.app.settings import Settings
from wattcast.app.store.private import private_folder

if TYPE_CHECKING:
    from wattcast.measure.workload import Pattern


class CampaignOptions(inputs.Options):
    """What is measured, and for how long."""

    panel = inputs.OWN
    device: int | None = None
    """CUDA device number. Required if there are several GPUs."""
    applications: bool = False
    """Also measure application kernels, for validation."""
    only: str | None = None
    """Only workloads whose id starts with this (several: a,b)."""
    minutes: Annotated[float | None, typer.Option(min=0.0)] = None
    """Start nothing new after this many minutes. Run again to continue."""

    def run(
        self,
        path: Path,
        patterns: tuple[Pattern, ...] = ("uniform",),
        held: Mapping[str, float | None] | None = None,
        *,
        dry: bool = False,
    ) -> dict[str, Any]:
        """Measure on the real GPU; counts of what was done."""
        from wattcast.measure.run import Machine, Request, prepare

        starts = tuple(self.only.split(",")) if self.only else ()
        most = inf if self.minutes is None else 60 * self.minutes
        request = Request(self.applications, patterns, starts, held or {}, most)
        machine = Machine.here(self.device)
        try:
            campaign = prepare(machine, request)
            if dry:
                return {
                    "planned": len(campaign.planned),
                    "minutes": campaign.seconds / 60,
                    "notes": list(campaign.notes),
                }
            with _terminated():
                outcome = campaign.run(path, inputs.progress)
        except KeyboardInterrupt:
            inputs.fail(
                f"interrupted; {path} keeps what was measured; run it again to continue",
                exits.Exit.INTERRUPTED,
            )
        finally:
            machine.close()
        return asdict(outcome)


class HoldOptions(inputs.Options):
    """What is held while it is measured."""

    panel = inputs.OWN
    hold_core_mhz: float | None = None
    """Hold the core clock in MHz; restored afterwards."""
    hold_memory_mhz: float | None = None
    """Hold the memory clock in MHz; restored afterwards."""
    hold_power_limit: float | None = None
    """Hold a power limit in watts; restored afterwards."""


def measure(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING.jsonl")],
    campaign: CampaignOptions,
    hold: HoldOptions,
    patterns: str = "uniform",
    plan: bool = False,
) -> output.Shown[dict[str, Any]]:
    """Measure microbenchmarks on a GPU of this machine.

    Records time, power and energy. Clocks and power limit stay as they are unless an option holds
    them. You can interrupt it at any time and run it again to continue.

    Args:
        recording: Recording to write, or to continue.
        patterns: Data patterns: uniform,zeros,random_bits. The first is used for fitting.
        plan: Only print what would be measured and how long it takes.
    """
    held = {
        "core_mhz": hold.hold_core_mhz,
        "memory_mhz": hold.hold_memory_mhz,
        "power_limit_watts": hold.hold_power_limit,
    }
    outcome = campaign.run(recording, _patterns(patterns), held, dry=plan)
    if plan:
        least = f"at least {outcome['minutes']:.0f} minutes"
        return output.told(outcome, f"{outcome['planned']} configurations, {least}")
    counts = (
        f"{recording}: {outcome['measured']} measured, {outcome['known']} already there, "
        f"{outcome['failed']} failed, {outcome['unresolved']} unresolved"
    )
    left = f", {outcome['left']} left; run it again to continue" if outcome["left"] else ""
    return output.told(outcome, counts + left)


def onboard(
    recording: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    gpu: str | None = None,
    *,
    campaign: CampaignOptions,
) -> output.Shown[dict[str, Any]]:
    """Measure a GPU of this machine and fit its profile and models.

    Validates them, and writes profile, model, card and report to WATTCAST_HOME. After an
    interruption, run it again to continue.

    Args:
        recording: File for the measurements. Default: in WATTCAST_HOME.
        replay: Fit an existing recording. Needs no GPU.
        gpu: Profile to start from, if the device name matches none.
    """
    try:
        from wattcast.measure.onboard.run import json_data
        from wattcast.measure.onboard.run import onboard as run
    except ImportError as error:  # before hours of measuring rather than after
        extra = "pip install 'wattcast[measure,train]'"
        inputs.fail(f"onboarding needs {error.name}: {extra}", exits.Exit.NO_ANSWER)
    home = private_folder(Settings().home)
    if replay is not None and recording is not None:
        inputs.fail("--replay fits a recording, --recording makes a new one; give one of them")
    path = replay
    if path is None:
        path = recording or home / "recordings" / f"device-{campaign.device or 0}.jsonl"
        campaign.run(path)
    made = run(path, home, gpu, inputs.progress)
    lines = [f"{made.gpu.name} is now known as {made.gpu.id}"]
    if (validation := made.validation) is not None:
        protocols = [found.protocol for found in validation.power]
        scores = {f"power, {name}": validation.power_scores(name) for name in protocols}
        for what, one in {**scores, "time": validation.time_scores()}.items():
            if one:
                mean, without = one["mape_percent"], one["baseline_mape_percent"]
                lines.append(f"{what}: {mean:.1f} % mean error ({without:.1f} % without a model)")
    files = [str(one) for one in made.files]
    return output.told({**json_data(made), "files": files}, *lines, *files)


def _patterns(text: str) -> tuple[Pattern, ...]:
    from wattcast.measure.workload import Pattern

    known = get_args(Pattern)
    chosen = tuple(part.strip() for part in text.split(","))
    for one in chosen:
        if one not in known:
            inputs.fail(f"--patterns {one!r}: expected some of {', '.join(known)}")
    return chosen  # type: ignore[return-value]


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM like an interrupt from the keyboard, so that clocks are set back."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
