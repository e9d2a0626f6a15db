"""What a measured power or time can be: one rule for every way in which it comes.

    notes = check_measured(gpu, power_watts=200, time_seconds=1e-3, where="known[0]")

Known launches of requests, uploaded rows, ``wattcast calibrate`` and recordings, our own as
imported ones, all ask here. Bounds are wide: they catch another unit (milliwatts, nanoseconds),
not a bad sensor.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import DataError

MOST_POWER_OF_LIMIT = 1.5
"""Watts above this share of the board's limit are no watts: NVML reports milliwatts, and boards
exceed their limit by a few percent for moments only."""

MOST_POWER_WATTS = 3000.0
"""The same where no profile tells the limit: about twice the 1,400 W of a GB300, the highest power
of one GPU that NVIDIA has announced (2025)."""

LEAST_POWER_WATTS = 1e-3
"""Above 0, as far as a sensor tells: NVML reports whole milliwatts (nvmlDeviceGetPowerUsage)."""

LEAST_POWER_OF_IDLE = 0.1
"""Watts below this share of the idle power are doubtful: a kernel takes more than no kernel."""

SHORTEST_SECONDS = 1e-7
"""100 ns: an empty kernel takes microseconds (Zhang et al., "A Study of Single and Multi-device
Synchronization Methods in Nvidia GPUs", IPDPS 2020), so this is another unit."""

LONGEST_SECONDS = 86_400.0
"""A day: no single launch of a kernel takes as long."""


class Board(Protocol):
    """What must be known of a board: its name, limit and idle power. Every GpuProfile is one."""

    @property
    def id(self) -> str: ...
    @property
    def tdp_watts(self) -> float: ...
    @property
    def idle_watts(self) -> float | None: ...


def check_measured(
    gpu: Board | None,
    *,
    power_watts: float | None = None,
    time_seconds: float | None = None,
    where: str = "",
) -> tuple[Diagnostic, ...]:
    """Warnings of a measured launch; ``gpu`` is ``None`` where nobody knows the board.

    Power must be above 0 (1 mW) and at most 1.5 times the board's limit, time between 100 ns and a
    day.
    Raises DataError naming the field (after ``where``), the value and the bound; its context has
    ``field`` and ``reason``, the sentence without the field.
    """
    if time_seconds is not None:
        _check_time(time_seconds, _named(where, "time_seconds"))
    if power_watts is None:
        return ()
    field = _named(where, "power_watts")
    _check_power(gpu, power_watts, field)
    idle = None if gpu is None else gpu.idle_watts
    if gpu is None or idle is None or power_watts >= LEAST_POWER_OF_IDLE * idle:
        return ()
    detail = (
        f"{field}: {power_watts:g} W is below {LEAST_POWER_OF_IDLE * idle:g} W, a tenth of the "
        f"idle power of {gpu.id} ({idle:g} W). It was accepted as given; check its unit"
    )
    return (Diagnostic("power_below_idle", detail),)


def _named(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _check_time(seconds: float, field: str) -> None:
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:  # also where it is no number
        raise _implausible(
            field,
            f"{seconds:g} s is not between {SHORTEST_SECONDS:g} s (100 ns) and "
            f"{LONGEST_SECONDS:g} s (a day); give the time of one launch in seconds",
        )


def _check_power(gpu: Board | None, watts: float, field: str) -> None:
    if not (watts >= LEAST_POWER_WATTS and isfinite(watts)):
        raise _implausible(field, f"{watts:g} W is too low; give at least {LEAST_POWER_WATTS:g} W")
    most = MOST_POWER_WATTS if gpu is None else MOST_POWER_OF_LIMIT * gpu.tdp_watts
    if watts > most:
        limit = (
            f"{most:g} W, more than any board draws"
            if gpu is None
            else f"{most:g} W, {MOST_POWER_OF_LIMIT:g} times the limit of {gpu.id} "
            f"({gpu.tdp_watts:g} W)"
        )
        raise _implausible(field, f"{watts:g} W is more than {limit}; is it in milliwatts?")


def _implausible(field: str, reason: str) -> DataError:
    return DataError(f"{field}: {reason}", field=field, reason=reason)
