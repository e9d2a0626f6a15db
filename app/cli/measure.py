"""``wattcast measure`` and ``wattcast onboard``: a GPU's own measurements, and what follows."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from wattcast.app.cli.exits import Exit
from wattcast.app.cli.inputs import AsJson, fail, progress
from wattcast.app.settings import Settings
from wattcast.app.store.private import private_folder

if TYPE_CHECKING:
    from wattcast.measure.run import Request
    from wattcast.measure.workload import Pattern

DeviceIndex = Annotated[
    int | None,
    typer.Option("--device", help="CUDA device number. Required if there are several GPUs."),
]
Applications = Annotated[
    bool, typer.Option("--applications", help="Also measure application kernels, for validation.")
]
Patterns = Annotated[
    str,
    typer.Option(help="Data patterns: uniform,zeros,random_bits. The first is used for fitting."),
]
Only = Annotated[
    str | None, typer.Option(help="Only workloads whose id starts with this (several: a,b).")
]
HoldCore = Annotated[
    float | None,
    typer.Option("--hold-core-mhz", help="Hold the core clock in MHz; restored afterwards."),
]
HoldMemory = Annotated[
    float | None,
    typer.Option("--hold-memory-mhz", help="Hold the memory clock in MHz; restored afterwards."),
]
HoldLimit = Annotated[
    float | None,
    typer.Option("--hold-power-limit", help="Hold a power limit in watts; restored afterwards."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        min=0.0,
        help="Start nothing new after this many minutes. Run again to continue.",
    ),
]
Dry = Annotated[
    bool, typer.Option("--plan", help="Only print what would be measured and how long it takes.")
]


def measure(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING.jsonl")],
    device: DeviceIndex = None,
    applications: Applications = False,
    patterns: Patterns = "uniform",
    only: Only = None,
    hold_core_mhz: HoldCore = None,
    hold_memory_mhz: HoldMemory = None,
    hold_power_limit: HoldLimit = None,
    minutes: Minutes = None,
    plan: Dry = False,
    as_json: AsJson = False,
) -> None:
    """Measure microbenchmarks on a GPU of this machine.

    Records time, power and energy. Clocks and power limit stay as they are unless an option holds
    them. You can interrupt it at any time and run it again to continue.

    Args:
        recording: Recording to write, or to continue.
    """
    from wattcast.measure.run import Request

    held = {
        "core_mhz": hold_core_mhz,
        "memory_mhz": hold_memory_mhz,
        "power_limit_watts": hold_power_limit,
    }
    request = Request(applications, _patterns(patterns), _starts(only), held, _seconds(minutes))
    outcome = _measured(recording, device, request, dry=plan)
    if as_json:
        print(json.dumps(outcome, indent=2))
    elif plan:
        print(f"{outcome['planned']} configurations, at least {outcome['minutes']:.0f} minutes")
    else:
        print(
            f"{recording}: {outcome['measured']} measured, {outcome['known']} already there, "
            f"{outcome['failed']} failed, {outcome['unresolved']} unresolved"
            + (f", {outcome['left']} left; run it again to continue" if outcome["left"] else "")
        )


def onboard(
    recording: Annotated[Path | None, typer.Option("--recording", metavar="FILE")] = None,
    replay: Annotated[Path | None, typer.Option("--replay", metavar="FILE")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu")] = None,
    device: DeviceIndex = None,
    applications: Applications = False,
    only: Only = None,
    minutes: Minutes = None,
    as_json: AsJson = False,
) -> None:
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
        from wattcast.measure.run import Request
    except ImportError as error:  # before hours of measuring rather than after
        fail(
            f"onboarding needs {error.name}: pip install 'wattcast[measure,train]'", Exit.NO_ANSWER
        )
    home = private_folder(Settings().home)
    if replay is not None and recording is not None:
        fail("--replay fits a recording, --recording makes a new one; give one of them")
    path = replay
    if path is None:
        path = recording or home / "recordings" / f"device-{device or 0}.jsonl"
        request = Request(applications, only=_starts(only), most_seconds=_seconds(minutes))
        _measured(path, device, request)
    made = run(path, home, gpu, progress)
    if as_json:
        print(json.dumps({**json_data(made), "files": [str(one) for one in made.files]}, indent=2))
        return
    print(f"{made.gpu.name} is now known as {made.gpu.id}")
    if (validation := made.validation) is not None:
        protocols = [found.protocol for found in validation.power]
        scores = {f"power, {name}": validation.power_scores(name) for name in protocols}
        for what, one in {**scores, "time": validation.time_scores()}.items():
            if one:
                mean, without = one["mape_percent"], one["baseline_mape_percent"]
                print(f"{what}: {mean:.1f} % mean error ({without:.1f} % without a model)")
    for file in made.files:
        print(file)


def _measured(
    path: Path, index: int | None, request: Request, *, dry: bool = False
) -> dict[str, Any]:
    """Measure on the real GPU; counts of what was done."""
    from wattcast.measure.run import Machine, prepare

    machine = Machine.here(index)
    try:
        campaign = prepare(machine, request)
        if dry:
            return {
                "planned": len(campaign.planned),
                "minutes": campaign.seconds / 60,
                "notes": list(campaign.notes),
            }
        with _terminated():
            outcome = campaign.run(path, progress)
    except KeyboardInterrupt:
        fail(
            f"interrupted; {path} keeps what was measured; run it again to continue",
            Exit.INTERRUPTED,
        )
    finally:
        machine.close()
    return asdict(outcome)


def _seconds(minutes: float | None) -> float:
    return inf if minutes is None else 60 * minutes


def _starts(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _patterns(text: str) -> tuple[Pattern, ...]:
    from wattcast.measure.workload import Pattern

    known = get_args(Pattern)
    chosen = tuple(part.strip() for part in text.split(","))
    for one in chosen:
        if one not in known:
            fail(f"--patterns {one!r}: expected some of {', '.join(known)}")
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
