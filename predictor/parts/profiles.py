"""GPU profiles of one home folder, without a look at the disk for every request."""

from __future__ import annotations

import time
from pathlib import Path

from wattcast.features.gpus import GpuProfile, list_gpus, load_gpu

_FRESH_SECONDS = 1.0
"""How long a profile is used before its file is looked at again."""

_MOST_NAMES = 1024
"""Names remembered; only names that exist are, so aliases in odd spellings cannot fill memory."""


class Gpus:
    """Profiles of the package, overlaid by ``home/gpus``. Safe from any thread."""

    def __init__(self, home: Path) -> None:
        self._overlay = home / "gpus"
        self._loaded: dict[str, tuple[float, GpuProfile]] = {}

    def load(self, gpu_id: str) -> GpuProfile:
        """By id or alias, in any case. Raises GpuError listing the known ids."""
        now = time.monotonic()
        known = self._loaded.get(gpu_id)
        if known is not None and now - known[0] < _FRESH_SECONDS:
            return known[1]
        profile = load_gpu(gpu_id, overlay=self._overlay)
        if len(self._loaded) >= _MOST_NAMES:
            self._loaded.clear()
        self._loaded[gpu_id] = (now, profile)
        return profile

    def all(self) -> tuple[GpuProfile, ...]:
        """All profiles, by id."""
        return list_gpus(overlay=self._overlay)
