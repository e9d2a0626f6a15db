"""What turns a request into watts, seconds and joules: no web framework, no terminal, no database.

    predict, analyze, features, explain, hotspots, advise, sweep, dvfs, compare, cost, rank, tunings
                  one file for each use case: a function of a ``Predictor`` and a request
    messages/     what goes in and comes out of each, under the same names
    parts/        what they share: code as sent or compiled, analyses kept, models, clocks
    catalog       the GPUs, schemas and models at hand

HTTP, command line and Python are faces of it (``wattcast.app``).
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from copy import copy
from pathlib import Path
from typing import Protocol

from wattcast.features import analysis, gpus
from wattcast.models.operators import Operators
from wattcast.models.store import PACKAGED_ARTIFACTS
from wattcast.predictor.parts import drift, power_models, sources, stored, work
from wattcast.predictor.parts.memory import RINGS, Kept, Memory, ModuleCache, analysis_bytes
from wattcast.predictor.tuning_files import TuningRun, held_bytes


class Limits(Protocol):
    """What a predictor may use, and where its users' profiles and models lie.
    ``wattcast.app.settings.Settings`` describes each and says its default."""

    home: Path
    max_ptx_bytes: int
    cache_bytes: int
    compile_seconds: float
    analysis_effort: int
    max_analysis_effort: int
    analysis_seconds: float
    unsafe_compile: bool

    @property
    def ptxas(self) -> str:
        """``auto``: registers nobody gives are asked of ptxas; ``off``: they are estimated."""


_FRESH_SECONDS = 1.0
"""How long a profile is used before its file is looked at again."""

_MOST_NAMES = 1024
"""Names remembered; only names that exist are, so aliases in odd spellings cannot fill memory."""


class Gpus:
    """Profiles of the package, overlaid by ``home/gpus``. Safe from any thread."""

    def __init__(self, home: Path) -> None:
        self._overlay = home / "gpus"
        self._loaded: dict[str, tuple[float, gpus.GpuProfile]] = {}

    def load(self, gpu_id: str) -> gpus.GpuProfile:
        """By id or alias, in any case. Raises GpuError listing the known ids."""
        now = time.monotonic()
        known = self._loaded.get(gpu_id)
        if known is not None and now - known[0] < _FRESH_SECONDS:
            return known[1]
        profile = gpus.load_gpu(gpu_id, overlay=self._overlay)
        if len(self._loaded) >= _MOST_NAMES:
            self._loaded.clear()
        self._loaded[gpu_id] = (now, profile)
        return profile

    def all(self) -> tuple[gpus.GpuProfile, ...]:
        """All profiles, by id."""
        return gpus.list_gpus(overlay=self._overlay)


class Predictor:
    """Everything a use case needs. ``store`` keeps predictions; ``None``: nothing is kept.

    ``own``: CUDA source comes from the caller's own files, so that it is compiled even where no
    isolation is in force.
    """

    def __init__(
        self,
        settings: Limits,
        store: stored.Keeper | None = None,
        memory: Memory | None = None,
        *,
        own: bool = False,
    ) -> None:
        self.settings = settings
        self.store = store
        self.gpus = Gpus(settings.home)
        self.memory = memory or Memory(settings.cache_bytes)
        self.modules = ModuleCache(self.memory, settings.max_ptx_bytes)
        self.sources = sources.Sources(settings, self.modules, self.memory, own=own)
        self.analysed: Kept[Hashable, analysis.KernelAnalysis] = self.memory.room(
            analysis_bytes, grows=True, rings=RINGS
        )
        self.spaces: Kept[str, TuningRun] = self.memory.room(held_bytes)
        self.power = power_models.PowerModels(settings.home)
        self.work_time = work.WorkTimeModels(settings.home)
        self.operators = Operators((PACKAGED_ARTIFACTS, settings.home / "artifacts"))
        self.drift = drift.DriftWatch()

    def without_store(self) -> Predictor:
        """The same, with the same caches, that keeps no prediction."""
        other = copy(self)
        other.store = None
        return other
