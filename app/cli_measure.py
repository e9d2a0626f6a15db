"""``wattcast measure`` and ``wattcast onboard``: a GPU's own measurements, and what follows."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from app.cli_inputs import AsJson, fail
from app.settings import Settings

if TYPE_CHECKING:
    from training.measure.device import Device
    from training.measure.workload import Pattern, Workload

DeviceIndex = Annotated[
    int | None, typer.Option("--device", help="CUDA's number of the GPU; needed with several.")
]
Applications = Annotated[
    bool, typer.Option("--applications", help="Application kernels too, to validate on.")
]
Patterns = Annotated[
    str, typer.Option(help="Data patterns: uniform,zeros,random_bits (the first is fitted on).")
]
Only = Annotated[str | None, typer.Option(help="Only workloads whose id starts so (several: a,b).")]
HoldCore = Annotated[
    float | None, typer.Option("--hold-core-mhz", help="Hold the core clock; set back afterwards.")
]
HoldMemory = Annotated[
    float | None,
    typer.Option("--hold-memory-mhz", help="Hold the memory clock; set back afterwards."),
]
HoldLimit = Annotated[
    float | None,
    typer.Option("--hold-power-limit", help="Hold a power limit in watts; set back afterwards."),
]
Dry = Annotated[
    bool, typer.Option("--plan", help="Say what would be measured and how long it takes.")
]


def measure(
    recording: Annotated[
        Path, typer.Argument(metavar="RECORDING.jsonl", help="Grows; goes on where it stopped.")
    ],
    device: DeviceIndex = None,
    applications: Applications = False,
    patterns: Patterns = "uniform",
    only: Only = None,
    hold_core_mhz: HoldCore = None,
    hold_memory_mhz: HoldMemory = None,
    hold_power_limit: HoldLimit = None,
    plan: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Measure time, power and energy of the microbenchmarks on a GPU of this machine.

    Clocks and power limit stay as they are unless a flag holds them. Interrupt it at any time.
    """
    held = {
        "core_mhz": hold_core_mhz,
        "memory_mhz": hold_memory_mhz,
        "power_limit_watts": hold_power_limit,
    }
    outcome = _measured(recording, device, applications, _patterns(patterns), only, held, dry=plan)
    if as_json:
        print(json.dumps(outcome, indent=2))
    elif plan:
        print(f"{outcome['planned']} configurations, about {outcome['minutes']:.0f} minutes")
    else:
        print(
            f"{recording}: {outcome['measured']} measured, {outcome['known']} known before, "
            f"{outcome['failed']} failed, {outcome['unresolved']} not resolved"
        )


def onboard(
    recording: Annotated[
        Path | None,
        typer.Option("--recording", metavar="FILE", help="Where measurements go; default: home."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Fit a recording made before; needs no GPU."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Profile to start from, if the name tells none.")
    ] = None,
    device: DeviceIndex = None,
    applications: Applications = False,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Make a GPU of this machine a known one: measure it, fit its profile and models, validate.

    Profile, model, card and report go to WATTCAST_HOME. Run it again to go on after an
    interruption.
    """
    from training.onboard.run import onboard as run
    from training.onboard.run import told

    home = Settings().home
    if replay is not None and recording is not None:
        fail("--replay fits what is recorded, --recording measures: give one of them", 2)
    path = replay
    if path is None:
        path = recording or home / "recordings" / f"device-{device or 0}.jsonl"
        nothing: dict[str, float | None] = {}
        _measured(path, device, applications, ("uniform",), only, nothing, dry=False)
    made = run(path, home, gpu, _progress)
    if as_json:
        print(json.dumps({**told(made), "files": [str(one) for one in made.files]}, indent=2))
        return
    print(f"{made.gpu.name} is known as {made.gpu.id}")
    if made.validation is not None:
        for found in made.validation.power:
            scores = made.validation.power_scores(found.protocol)
            print(
                f"power, {found.protocol}: {scores['mape_percent']:.1f} % mean error "
                f"({scores['baseline_mape_percent']:.1f} % without a model)"
            )
        if times := made.validation.time_scores():
            print(
                f"time: {times['mape_percent']:.1f} % mean error "
                f"({times['baseline_mape_percent']:.1f} % without a model)"
            )
    for file in made.files:
        print(file)


def _measured(
    path: Path,
    index: int | None,
    applications: bool,
    patterns: tuple[Pattern, ...],
    only: str | None,
    held: dict[str, float | None],
    *,
    dry: bool,
) -> dict[str, Any]:
    """Measure on the real GPU; counts of what was done."""
    from training.measure import campaign
    from training.measure.device import SystemClock
    from training.measure.driver import CudaRunner
    from training.measure.nvml import Nvml
    from training.measure.protocol import Settings as Protocol

    settings, clock = Protocol(), SystemClock()
    runner = CudaRunner(index)
    nvml = Nvml()
    sensor = nvml.sensor(clock, runner.pci_bus())
    device = _merged(runner.device(), sensor.facts(), sensor.driver_version())
    label = "-".join(f"{value:g}" for value in held.values() if value is not None)
    planned, notes = campaign.plan(
        _workloads(device, applications, only),
        device.board.compute_capability,
        device.board.memory_bytes,
        patterns,
        label,
    )
    campaign.require(planned)
    seconds = campaign.planned_seconds(planned, settings)
    if dry:
        return {"planned": len(planned), "minutes": seconds / 60, "notes": notes}
    for note in notes:
        _progress(note)
    _progress(f"{device.name}: {len(planned)} configurations, about {seconds / 60:.0f} minutes")
    try:
        with _terminated(), sensor.held(**held):
            head = campaign.session(runner, device, "measured", settings, notes, held)
            outcome = campaign.run_campaign(
                path, head, planned, runner, sensor, sensor.traits, clock, settings, _progress
            )
    except KeyboardInterrupt:
        fail(f"interrupted; {path} keeps what was measured: run it again to go on", 130)
    finally:
        runner.close()
        nvml.close()
    return {
        "measured": outcome.measured,
        "known": outcome.known,
        "failed": outcome.failed,
        "unresolved": outcome.unresolved,
    }


def _workloads(device: Device, applications: bool, only: str | None) -> list[Workload]:
    from training.measure import catalogue

    found = list(catalogue.micro(device.board))
    if applications:
        found += catalogue.applications(device.board)
    starts = tuple(only.split(",")) if only else ("",)
    return [one for one in found if one.id.startswith(starts)]


def _merged(device: Device, facts: dict[str, float], driver: str | None) -> Device:
    """What CUDA and NVML tell together; NVML's clocks are the ones that are read later."""
    update: dict[str, Any] = {"driver_version": driver}
    if "power_limit_watts" in facts:
        update["power_limit_watts"] = facts["power_limit_watts"]
    if "max_memory_mhz" in facts:
        update["max_memory_mhz"] = facts["max_memory_mhz"]
    if "memory_bus_bits" in facts:
        update["memory_bus_bits"] = int(facts["memory_bus_bits"])
    return device.model_copy(update=update)


def _patterns(text: str) -> tuple[Pattern, ...]:
    from training.measure.workload import Pattern

    known = get_args(Pattern)
    chosen = tuple(part.strip() for part in text.split(","))
    for one in chosen:
        if one not in known:
            fail(f"--patterns {one!r}: expected some of {', '.join(known)}", 2)
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


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
