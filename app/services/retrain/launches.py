"""Measured launches as the physical time and power models see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattcast.app.store.measurements import Measurement
from wattcast.features.activity import Activity
from wattcast.features.gpus import GpuProfile
from wattcast.features.schemas import activity_schema
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities, unit_activities
from wattcast.models.time.base import Regime
from wattcast.models.time.beside import NOTHING_BESIDE, Beside, beside
from wattcast.models.time.bottleneck import (
    combined_seconds,
    launch_seconds,
    regime,
    resource_seconds,
)
from wattcast.predictor import parts
from wattcast.predictor.messages import Clocks
from wattcast.predictor.messages.analyze import AnalyzeRequest

if TYPE_CHECKING:
    from wattcast.app.services import Services

FindTexts = Callable[[Sequence[str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class MeasuredAt:
    """What the models work out of a measured launch at the clocks it ran at: the default time
    model's seconds and regime, and the units' activities at that time."""

    clocks: ClockPair
    seconds: float
    regime: Regime
    activities: UnitActivities


@dataclass(frozen=True)
class Launches:
    """Works out measured launches of a GPU.

    ``texts`` finds stored PTX by hash. Matrix units, atomics and dependent chains are told by the
    code alone, not by ``activity1``; so launches whose code is known are analysed as a prediction
    would, and those that use the first two need it.
    """

    services: Services
    gpu: GpuProfile
    texts: FindTexts

    def of(self, rows: Sequence[Measurement]) -> list[MeasuredAt | str]:
        """Each launch, or why nothing can be said of it."""
        told = self._told(rows)
        return [
            found if isinstance(found, str) else self._at(row, *found)
            for row, found in zip(rows, told, strict=True)
        ]

    def refused(self, rows: Sequence[Measurement]) -> list[str | None]:
        """Why nothing can be said of a launch, as far as that shows without working it out."""
        return [found if isinstance(found, str) else None for found in self._told(rows)]

    def _told(self, rows: Sequence[Measurement]) -> list[tuple[Activity, str | None] | str]:
        """The activity of each launch and its code, if that is known; or what is wrong."""
        activities = [_activity(row) for row in rows]
        wanted = {
            row.ptx_sha256
            for row, activity in zip(rows, activities, strict=True)
            if row.ptx_sha256 and isinstance(activity, Activity)
        }
        texts = self.texts(sorted(wanted))
        found: list[tuple[Activity, str | None] | str] = []
        for row, activity in zip(rows, activities, strict=True):
            ptx = texts.get(row.ptx_sha256 or "")
            if isinstance(activity, str):
                found.append(activity)
            elif ptx is None and _needs_code(activity):
                found.append("uses atomics or matrix units, of which features do not tell enough")
            else:
                found.append((activity, ptx))
        return found

    def _at(self, row: Measurement, activity: Activity, ptx: str | None) -> MeasuredAt | str:
        more = NOTHING_BESIDE if ptx is None else self._beside(row, ptx)
        gpu = self.gpu
        clocks = Clocks(core_mhz=row.core_mhz, memory_mhz=row.memory_mhz).pair(gpu)
        resources = resource_seconds(activity, gpu, clocks, more=more)
        start = launch_seconds(activity, gpu)
        seconds = combined_seconds(resources) + start
        if not (seconds > 0 and math.isfinite(seconds)):
            return "its activity1 is no launch"
        # Rates are counts over the time it really took, where that was measured: power is answered
        # at the time that is answered, which a correction of times brings near it.
        took = row.time_seconds or seconds
        units = unit_activities(activity, gpu, clocks, took, more=more)
        return MeasuredAt(clocks, seconds, regime(resources, start), units)

    def _beside(self, row: Measurement, ptx: str) -> Beside:
        """From the very analysis that a prediction of the launch rests on, as in the upload."""
        started = dict(row.launch or {})
        more = ("loops", "registers_per_thread", "static_shared_bytes")
        asked = {name: started.pop(name) for name in more if name in started}
        request = AnalyzeRequest.model_validate(
            {"ptx": ptx, "gpu": self.gpu.id, "kernel": row.kernel, "launch": started, **asked}
        )
        source = self.services.sources.read(request, self.gpu)
        analysis = parts.analysed(self.services, request, source, self.gpu, ptxas=True)
        return beside(analysis.extras)


def _needs_code(activity: Activity) -> bool:
    return activity.tensor_instructions > 0 or activity.atomic_requests > 0


def _activity(row: Measurement) -> Activity | str:
    schema = activity_schema()
    vector = row.vectors.get(schema.id)
    if vector is None:
        return f"no features of {schema.id}"
    if not all(math.isfinite(value) and value >= 0 for value in vector):
        return f"its {schema.id} is no launch"
    named = dict(zip((field.name for field in schema.fields), vector, strict=True))
    # Uploaded features may say anything; these two no model can do without.
    if not (named["sm_imbalance"] and named["kernel_launches"]):
        return f"its {schema.id} is no launch"
    return Activity(**named)
